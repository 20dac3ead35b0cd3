//! The port: memory for records and tables, locks, the flush, and pages for per-CPU memory.

use crate::frames::{self, Frames};
use crate::lock::{IrqLock, WaitLock};
use crate::tables::{READ_WRITE, Tables};
use crate::{cpus::Cpus, shootdown::Shootdown};
use core::mem::MaybeUninit;
use va_base::{Epoch, Machine, Meta, PAGE_SIZE, Platform, Record, Table, Va, VaRange};
use va_map::{Entries, Fill, PageRequest, PageSource, PageTable, Run};
use va_percpu::{BackendError, vm::Mapper};

/// Largest slab of records: it is filled in one call, under a lock.
const SLAB_BYTES_MAX: usize = 64 << 10;

/// The machine of the core: frames and a shootdown, both in statics.
#[derive(Clone, Copy)]
pub struct Port<C: Cpus> {
    /// The frames for records and tables.
    pub frames: &'static Frames<C>,
    /// The flush.
    pub shootdown: &'static Shootdown<C>,
}

/// Whole pages, a power of two, for so many bytes: the binary logarithm.
fn pages_log2(bytes: usize) -> u32 {
    (bytes as u64).div_ceil(PAGE_SIZE).next_power_of_two().trailing_zeros()
}

impl<C: Cpus> Port<C> {
    fn alloc<T>(&self, bytes: usize) -> Option<*mut T> {
        const { assert!(align_of::<T>() as u64 <= PAGE_SIZE) }
        Some(frames::direct(self.frames.alloc(pages_log2(bytes))?).cast())
    }

    fn free<T>(&self, at: *const T, bytes: usize) {
        let first = at.expose_provenance() as u64 / PAGE_SIZE;
        self.frames.free(Run { first, pages: 1 << pages_log2(bytes) });
    }
}

impl<C: Cpus> Platform for Port<C> {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        const { assert!(size_of::<T>() > 0 && size_of::<T>() as u64 <= PAGE_SIZE) }
        let bytes = min.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= SLAB_BYTES_MAX)?;
        let first = self.alloc::<MaybeUninit<T>>(bytes)?;
        // As many as fit, so that `free_meta` finds the number of pages by the length.
        let count = ((PAGE_SIZE as usize) << pages_log2(bytes)) / size_of::<T>();
        // SAFETY: room for `count`, aligned, since a page is, and allocated to no other caller until `free_meta`.
        let slab = unsafe { core::slice::from_raw_parts_mut(first, count) };
        slab.iter_mut().for_each(|place| _ = place.write(T::EMPTY));
        // SAFETY: written just now.
        Some(unsafe { slab.assume_init_mut() })
    }
    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        let bytes = size_of_val(*slab);
        self.free(slab.take().as_ptr(), bytes);
    }
}

impl<C: Cpus> Machine for Port<C> {
    type Lock = IrqLock<C>;
    type PurgeLock = WaitLock<C>;
    type OwnerLock = IrqLock<C>;

    fn cpus_possible(&self) -> u32 {
        C::POSSIBLE as u32
    }
    fn cpus_online(&self) -> u32 {
        C::online().count_ones()
    }
    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        let at = self.alloc::<T>(size_of::<T>())?;
        // A constant is copied to its place: a table is up to 32 KiB, which a kernel's stack may not have.
        // SAFETY: room for one, aligned, and allocated to no other caller.
        unsafe { at.write(T::EMPTY) };
        // SAFETY: written just now, and only shared until `free_table`.
        Some(unsafe { &*at })
    }
    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        self.free(core::ptr::from_ref(table.take()), size_of::<T>());
    }
    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        Epoch(self.shootdown.flush(ranges))
    }
    /// Every flush has ended when `flush` returns.
    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }
}

/// The pages of per-CPU chunks, which `va_percpu::vm::VmChunks` places.
pub struct Units<C: Cpus>(pub Port<C>, pub Tables<C>);

impl<C: Cpus> Mapper for Units<C> {
    fn map(&self, _cpu: u32, range: VaRange) -> Result<(), BackendError> {
        let Self(_, tables) = self;
        let (from, to) = range.whole_pages();
        for page in from..to {
            let frame = tables.alloc_run(0, PageRequest { fill: Fill::Zeros, numa_id: None });
            let run = frame.map(|first| Run { first, pages: 1 });
            let entries = run.map(|run| Entries { run, pages_log2: 0, protection: READ_WRITE });
            if entries.is_none_or(|entries| tables.map(Va::from_page(page), entries).is_err()) {
                run.into_iter().for_each(|run| tables.free(run));
                self.unmap(0, VaRange::from_pages(from, page).unwrap_or_default());
                return Err(BackendError);
            }
        }
        Ok(())
    }
    fn unmap(&self, _cpu: u32, range: VaRange) {
        self.1.unmap(range, &mut |leaf| self.1.free(Run { first: leaf.first, pages: 1 }));
    }
    fn flush(&self, range: VaRange) {
        self.0.flush(&[range]);
    }
    /// Through the mapping of all memory: it works before any CPU uses the page tables.
    fn zero(&self, range: VaRange) {
        let (mut at, end) = (range.start().get(), range.end().get());
        while at < end {
            let next = end.min((at / PAGE_SIZE + 1) * PAGE_SIZE);
            if let Some(leaf) = self.1.leaf(Va::new(at)) {
                self.1.clear(leaf.first, at % PAGE_SIZE, at % PAGE_SIZE + next - at);
            }
            at = next;
        }
    }
}
