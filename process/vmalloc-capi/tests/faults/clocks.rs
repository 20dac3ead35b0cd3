//! The clock jumps forward by years, goes back, stands still or fails.
//!
//! The traced program has no page of the kernel's code, so each reading of its clock is a system call, whose answer the
//! test chooses. The kernel's own timers are as ever, so a thread that waits for a time does wake.

use crate::errnos;
use crate::tracer::{Call, Verdict, Watch, trace};
use crate::{number, program};
use libc::c_int;

const SECOND: u64 = 1_000_000_000;
const YEAR: u64 = 31_557_600 * SECOND;
/// The longest time that a clock of the kernel can have, in nanoseconds of 63 bits.
const LONGEST: u64 = 290 * YEAR;

/// The way that a clock goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Still,
    /// A year a reading.
    Forward,
    /// Back by an hour a reading, from ten years on.
    Back,
    /// To any time.
    Leaps(u64),
    Fails(c_int),
}

struct Clock {
    way: Way,
    readings: u64,
}

impl Watch for Clock {
    fn call(&mut self, call: &Call) -> Verdict {
        if call.number != libc::SYS_clock_gettime {
            return Verdict::Pass;
        }
        self.readings += 1;
        Verdict::Time(match &mut self.way {
            Way::Still => YEAR,
            Way::Forward => (self.readings * YEAR).min(LONGEST),
            Way::Back => (10 * YEAR).saturating_sub(self.readings * 3600 * SECOND),
            Way::Leaps(state) => {
                *state =
                    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (*state >> 33) * (LONGEST >> 31)
            }
            Way::Fails(errno) => return Verdict::Fail(*errno),
        })
    }

    fn wants_clock(&self) -> bool {
        true
    }
}

#[test]
fn whatever_the_clock_does_memory_is_bounded_and_nothing_hangs() {
    let fails = errnos::row(libc::SYS_clock_gettime).unwrap().2.iter().map(|&errno| Way::Fails(errno));
    let ways = [Way::Still, Way::Forward, Way::Back, Way::Leaps(1), Way::Leaps(2)];
    for way in ways.into_iter().chain(fails) {
        for name in ["clock", "clock_thread"] {
            let mut clock = Clock { way, readings: 0 };
            let ended = trace(program(name), &mut clock).unwrap();
            assert_eq!(ended.status, 0, "{name} {way:?}: {}", ended.text);
            let [errors, purged, cached] =
                ["errors ", "purged ", "cached "].map(|key| number(&ended.text, key).unwrap());
            assert!(errors == 0 && clock.readings > 20, "{name} {way:?}: {} readings", clock.readings);
            match way {
                // Time that does not pass, or that cannot be known, ages nothing; the budget was not used up.
                Way::Still | Way::Fails(_) => assert_eq!(purged, 0, "{name} {way:?}"),
                Way::Forward => assert!(purged > 0 && cached < 8 << 20, "{name}: {purged} {cached}"),
                Way::Back | Way::Leaps(_) => {}
            }
            println!(
                "faulted: clock, {way:?}, `{name}`: {} readings, {purged} bytes released",
                clock.readings
            );
        }
    }
}
