//! The machine of a replay: it gives the core what the kernel gave it, and compares what the core asks for.

use super::Policies;
use super::script::Script;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use va_base::{Drain, Epoch, InvariantViolation, Machine, Meta, PAGE_SIZE, Platform, Record, Table, VaRange};
use va_block::Blocks;
use vmlab_machine::{LabMachine, PlainLock, Work};
use vmlab_trace::calls::Request;

// As in `adopt/linux/src/machine.rs`, where the reasons are.
const SLAB_BYTES_MAX: usize = 4 << 10;

/// A machine whose answers are those of a recording. Clones share one state.
#[derive(Clone)]
pub(super) struct Recorded(Arc<Inner>);

struct Inner {
    // Constant.
    possible: u32,
    /// Supplies memory.
    memory: LabMachine<PlainLock>,
    /// The blocks that the machine reclaims, once they are there.
    blocks: OnceLock<Weak<Blocks<Recorded, Policies>>>,
    /// CPUs online during the call: one thread replays.
    online: AtomicU32,
    script: Mutex<Script>,
    /// Frees the tables that this call has retired.
    retired: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl Recorded {
    pub(super) fn new(possible: u32, script: Script) -> Self {
        Self(Arc::new(Inner {
            possible,
            memory: LabMachine::new(possible, possible, Work::Elsewhere),
            blocks: OnceLock::new(),
            online: AtomicU32::new(1),
            script: Mutex::new(script),
            retired: Mutex::new(Vec::new()),
        }))
    }

    /// Sets the blocks that a request to reclaim frees.
    pub(super) fn set_blocks(&self, blocks: &Arc<Blocks<Self, Policies>>) {
        let _first = self.0.blocks.set(Arc::downgrade(blocks));
    }

    pub(super) fn set_online(&self, cpus: u32) {
        self.0.online.store(cpus, Ordering::Relaxed);
    }

    /// Calls `with` with the recording. The core is not called meanwhile.
    pub(super) fn script<T>(&self, with: impl FnOnce(&mut Script) -> T) -> T {
        with(&mut self.0.script.lock())
    }

    /// Frees the tables that were retired. No call is in progress.
    pub(super) fn free_retired(&self) {
        let retired = std::mem::take(&mut *self.0.retired.lock());
        retired.into_iter().for_each(|free| free());
    }

    /// Asks for something, and returns the recorded answer.
    fn ask(&self, request: Request) -> u64 {
        self.script(|script| script.answer(request))
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").field("possible", &self.0.possible).finish_non_exhaustive()
    }
}

impl Platform for Recorded {
    /// As many records as fit in the pages that the kernel supplies.
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let bytes = min.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= SLAB_BYTES_MAX)?;
        let bytes = bytes.next_multiple_of(PAGE_SIZE as usize);
        let supplied = self.ask(Request::Pages { bytes: bytes as u64, supplied: 1 });
        if supplied == 0 { None } else { self.0.memory.alloc_meta(bytes / size_of::<T>()) }
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        let slab = slab.take();
        let bytes = size_of_val(slab).next_multiple_of(PAGE_SIZE as usize);
        self.ask(Request::Free { bytes: bytes as u64 });
        self.0.memory.free_meta(Meta::new(slab));
    }

    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        self.0.memory.bug(what, broken)
    }
}

impl Machine for Recorded {
    type Lock = PlainLock;
    type PurgeLock = PlainLock;
    type OwnerLock = PlainLock;

    fn cpus_possible(&self) -> u32 {
        self.0.possible
    }

    fn cpus_online(&self) -> u32 {
        self.0.online.load(Ordering::Relaxed)
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        let supplied = self.ask(Request::Table { bytes: size_of::<T>() as u64, supplied: 1 });
        if supplied == 0 { None } else { self.0.memory.alloc_table() }
    }

    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        self.ask(Request::Free { bytes: 0 });
        self.0.memory.free_table(table);
    }

    const RETIRES: bool = true;

    fn retire_table<T: Table>(&self, table: Meta<&'static T>) {
        self.ask(Request::Free { bytes: 0 });
        let memory = self.0.memory.clone();
        let table = table.take();
        self.0.retired.lock().push(Box::new(move || memory.free_table(Meta::new(table))));
    }

    /// A flush of the hull, as the kernel's machine makes it.
    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        let start = ranges.iter().map(|range| range.start().get()).min();
        let end = ranges.iter().map(|range| range.end().get()).max();
        if let (Some(start), Some(end)) = (start, end) {
            self.ask(Request::Flush { start, end });
        }
        Epoch(0)
    }

    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }

    fn drain(&self) -> Drain {
        self.ask(Request::Wake {});
        Drain::Elsewhere
    }

    fn reclaim(&self) -> u64 {
        let blocks = self.0.blocks.get().and_then(Weak::upgrade);
        let own = blocks.map_or(0, |blocks| blocks.shrink().blocks * blocks.block_pages().get());
        self.ask(Request::Reclaim {});
        own + self.ask(Request::Reclaimed { pages: 0 })
    }

    fn can_reclaim(&self) -> bool {
        true
    }
}
