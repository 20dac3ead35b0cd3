//! A long random run beside the model, while calls of the system fail for a time.

use super::*;
use va_base::InvariantViolation;
use va_sim::machine::SimMachine;
use va_sim::op::Rng;
use va_sim::soak::{self, Soak};

/// Areas live at a time.
const LIVE_MAX: usize = 400;

struct Run {
    model: Model,
    /// The largest area.
    largest: usize,
    shim: Shim,
    failures: u64,
}

impl Soak for Run {
    fn step(&mut self, rng: &mut Rng, fails: bool) -> bool {
        if rng.below(1000) == 0 {
            // On the CPU of the last call, if the arena has nodes.
            self.model.heap.leave_node_0();
        }
        if self.model.areas.len() > LIVE_MAX
            && let Some(at) = self.model.nth()
        {
            self.model.free(at);
            return true;
        }
        // Without areas it may find nothing to free.
        let calls = !self.model.areas.is_empty();
        if let Err(error) = self.model.step(self.largest) {
            assert!(fails, "the system gives what it is asked for, and yet: {error}");
            self.failures += 1;
        }
        calls
    }

    fn failures(&self) -> u64 {
        self.failures
    }

    fn set_fails(&mut self, rng: &mut Rng, fails: bool) {
        self.shim.allow();
        if fails {
            self.shim.halve(rng.below(2) == 0);
            for call in [Call::Map, Call::Commit, Call::Discard, Call::Move, Call::Remap, Call::Renew] {
                if rng.below(2) == 0 {
                    self.shim.fail(call, rng.below(4));
                }
            }
        }
    }

    fn walk(&self) -> Result<(), InvariantViolation> {
        self.model.check();
        Ok(())
    }
}

#[test]
fn sp4_calls_that_fail_for_a_while_leave_the_heap_whole() {
    soak::all("process, a heap", 3, |seed| {
        let shim = Shim::default();
        let huge_pages = if seed % 4 == 3 { HugePages::System } else { HugePages::Auto };
        // Pages are really mapped, and those of zeros read: the system takes most of the time for large areas, and
        // where little is cached.
        let cached = if seed / 4 % 2 == 0 { 2 * MIB } else { 16 * MIB };
        let largest = if seed / 8 % 4 == 0 { MIB } else { MIB / 4 };
        // Every second one of a seed's kind has nodes.
        let arena = if seed / 32 % 2 == 0 { 1 << 36 } else { 1 << 32 };
        let mut model = Model::new(heap_on(huge_pages, &shim, arena, cached));
        model.state ^= seed;
        let mut run = Run { model, largest, shim, failures: 0 };
        let tally = soak::run(&mut run, &SimMachine::new(1), seed);
        run.model.end();
        tally
    });
}
