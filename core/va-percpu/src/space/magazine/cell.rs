//! The memory of magazines: what each one holds, and its counts.
//!
//! # Theory
//! A **cell** is a table from the machine, behind a lock that its owner takes once a call ([`Machine::OwnerLock`]). Any
//! other thread that needs the objects of an idle magazine only tries that lock. Cells form a list that only grows; a
//! magazine takes the first free cell.
//!
//! Of each class a cell has two stacks. *Clean* objects are zero in every unit, and an alloc takes the top one. *Dirty*
//! objects were freed since. When an alloc finds no clean object, it zeroes the top ones of the dirty stack together.
//!
//! # Invariants
//! - **MC1 once**     a cached object is allocated in the store, and is in one stack of one cell; its state says so.
//! - **MC2 clean**    a clean object is zero in every unit.
//! - **MC3 bounded**  a cell holds at most its share of bytes, and its count of bytes is that of its objects.
//! - **MC4 counted**  the objects that left the store for magazines are those that are cached or live.

use super::super::MagazineStats;
use super::class::{CLASSES, SIZES};
use super::state::Span;
use va_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use va_base::sync::{Mutex, MutexGuard, OnceRef, RawMutex};
use va_base::{Machine, Meta, Table};

/// Most objects of one stack, and of one batch.
pub(super) const MOST: usize = if cfg!(loom) { 4 } else { 128 };
/// Fewest objects of the first refill of a class; each further one takes twice as many.
const FIRST_REFILL: u32 = if cfg!(loom) { 2 } else { 8 };
/// Bytes of a unit that a first refill spans. The states of 512 bytes share a line of the cache
/// ([`state`](super::state)), so objects that magazines use at the same time should be farther apart.
const FIRST_REFILL_BYTES: u32 = if cfg!(loom) { 1 } else { 1 << 10 };

/// The objects of a class: addresses in the first unit of their chunk.
pub(super) struct Stack {
    pub(super) clean: [u64; MOST],
    pub(super) dirty: [u64; MOST],
    pub(super) clean_len: u8,
    pub(super) dirty_len: u8,
    /// Objects of the next refill; 0 for the first.
    refill: u8,
}

const _: () = assert!(MOST <= u8::MAX as usize);

impl Stack {
    const EMPTY: Self = Self { clean: [0; MOST], dirty: [0; MOST], clean_len: 0, dirty_len: 0, refill: 0 };

    /// Takes the top clean object.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<u64> {
        let top = usize::from(self.clean_len).checked_sub(1)?;
        let at = *self.clean.get(top)?;
        self.clean_len -= 1;
        Some(at)
    }

    /// Adds clean objects. `false` if there is no room for them.
    pub(super) fn push_clean(&mut self, objects: &[u64]) -> bool {
        let from = usize::from(self.clean_len);
        let Some(places) = self.clean.get_mut(from..from + objects.len()) else { return false };
        places.copy_from_slice(objects);
        self.clean_len += objects.len() as u8;
        true
    }

    /// Adds a dirty object. `false` if there would be more than `most`.
    #[inline(always)]
    pub(super) fn push_dirty(&mut self, at: u64, most: u8) -> bool {
        if self.dirty_len >= most {
            return false;
        }
        let Some(place) = self.dirty.get_mut(usize::from(self.dirty_len)) else { return false };
        *place = at;
        self.dirty_len += 1;
        true
    }

    /// Returns the objects that the next refill takes, and doubles them for the one after.
    pub(super) fn refill(&mut self, size: u32, most: u8) -> u8 {
        let first = (FIRST_REFILL_BYTES / size).max(FIRST_REFILL) as u8;
        let now = self.refill.max(first).min(most);
        self.refill = now.saturating_mul(2).min(most);
        now
    }

    fn len(&self) -> u32 {
        u32::from(self.clean_len) + u32::from(self.dirty_len)
    }
}

/// Objects on their way from a cell to the store, or to be zeroed.
pub(super) struct Batch {
    pub(super) at: [u64; MOST],
    pub(super) len: usize,
}

impl Batch {
    pub(super) const EMPTY: Self = Self { at: [0; MOST], len: 0 };

    pub(super) fn objects(&self) -> &[u64] {
        &self.at[..self.len]
    }

    fn push(&mut self, at: u64) -> bool {
        let Some(place) = self.at.get_mut(self.len) else { return false };
        *place = at;
        self.len += 1;
        true
    }
}

/// The objects that a magazine holds.
pub(super) struct Contents {
    pub(super) stacks: [Stack; CLASSES],
    /// Bytes of all objects, of one unit (MC3).
    pub(super) bytes: u32,
    /// The class that makes room next.
    victim: usize,
    /// The span of the last object allocated, and freed.
    pub(super) last: [Option<&'static Span>; 2],
}

impl Contents {
    const EMPTY: Self =
        Self { stacks: [const { Stack::EMPTY }; CLASSES], bytes: 0, victim: 0, last: [None; 2] };

    /// Takes the top dirty objects of a class, at most as many as `into` has room for. Returns their number.
    pub(super) fn take_dirty(&mut self, class: usize, into: &mut [u64]) -> usize {
        let stack = &mut self.stacks[class];
        let end = usize::from(stack.dirty_len).min(MOST);
        let len = end.min(into.len());
        into[..len].copy_from_slice(&stack.dirty[end - len..end]);
        stack.dirty_len = (end - len) as u8;
        self.bytes -= len as u32 * SIZES[class];
        len
    }

    /// Takes the oldest dirty objects of a class, all but an eighth.
    pub(super) fn take_oldest(&mut self, class: usize) -> Batch {
        let stack = &mut self.stacks[class];
        let end = usize::from(stack.dirty_len);
        let taken = end - end / 8;
        let mut batch = Batch { len: taken, ..Batch::EMPTY };
        batch.at[..taken].copy_from_slice(&stack.dirty[..taken]);
        stack.dirty.copy_within(taken..end, 0);
        stack.dirty_len = (end - taken) as u8;
        self.bytes -= batch.len as u32 * SIZES[class];
        batch
    }

    /// Takes objects of any class but `spared`, until a batch is full or at most `bytes` are left.
    pub(super) fn take_any(&mut self, bytes: u32, spared: usize) -> Batch {
        let mut batch = Batch::EMPTY;
        for _ in 0..CLASSES {
            let class = self.victim;
            if class != spared {
                let stack = &mut self.stacks[class];
                while self.bytes > bytes && batch.len < MOST {
                    let stacks = [(&mut stack.dirty_len, &stack.dirty), (&mut stack.clean_len, &stack.clean)];
                    let Some((len, objects)) = stacks.into_iter().find(|(len, _)| **len > 0) else { break };
                    *len -= 1;
                    batch.push(objects[usize::from(*len)]);
                    self.bytes -= SIZES[class];
                }
                // What is hardly used is refilled with little again.
                stack.refill /= 2;
            }
            if self.bytes <= bytes || batch.len == MOST {
                break;
            }
            self.victim = (self.victim + 1) % CLASSES;
        }
        batch
    }

    /// Returns the bytes of the objects, as MC3 counts them.
    pub(super) fn counted_bytes(&self) -> u32 {
        self.stacks.iter().zip(SIZES).map(|(stack, size)| stack.len() * size).sum()
    }
}

/// Counts of a cell: written by the owner, `cached` also by one that drains it; read by any thread. The first four are
/// written under the lock. Each is a counter.
pub(super) struct Counts {
    /// Objects that were allocated, each one once, and their bytes.
    pub(super) allocs: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Objects that were freed.
    pub(super) frees: AtomicU64,
    /// Bytes of the objects that it holds.
    pub(super) cached: AtomicU64,
    /// Allocs that found no clean object.
    pub(super) misses: AtomicU64,
    pub(super) refills: AtomicU64,
    pub(super) flushes: AtomicU64,
    /// Bytes of one unit that were zeroed for it.
    pub(super) zeroed: AtomicU64,
}

/// Faults that tests inject, to check that `validate` finds them.
#[cfg(test)]
#[cfg(not(loom))]
impl Contents {
    /// The top dirty object of a class is clean.
    pub(super) fn break_clean(&mut self, class: usize) {
        let stack = &mut self.stacks[class];
        stack.dirty_len -= 1;
        let object = stack.dirty[usize::from(stack.dirty_len)];
        stack.push_clean(&[object]);
    }

    /// The top dirty object of a class is in its stack twice.
    pub(super) fn break_once(&mut self, class: usize) {
        let stack = &mut self.stacks[class];
        stack.push_dirty(stack.dirty[usize::from(stack.dirty_len) - 1], MOST as u8);
        self.bytes += SIZES[class];
    }

    /// The top dirty object of a class is lost.
    pub(super) fn break_lost(&mut self, class: usize) {
        self.stacks[class].dirty_len -= 1;
        self.bytes -= SIZES[class];
    }
}

/// Adds to a count that one thread at a time writes.
#[inline(always)]
pub(super) fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// The memory of one magazine after another. It remains until the space ends.
pub(crate) struct Cell<R: RawMutex + 'static> {
    contents: Mutex<R, Contents>,
    pub(super) counts: Counts,
    /// A magazine has the cell. Protocol PR-CELL.
    pub(super) taken: AtomicBool,
    /// The CPU that the magazine was created for. Protocol PR-HINT.
    pub(super) cpu: AtomicU32,
    /// Set once.
    next: OnceRef<'static, Cell<R>>,
}

impl<R: RawMutex + Send + Sync + 'static> Table for Cell<R> {
    va_base::empty_table! {
        Self {
            contents: Mutex::new(Contents::EMPTY),
            counts: Counts {
                allocs: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                frees: AtomicU64::new(0),
                cached: AtomicU64::new(0),
                misses: AtomicU64::new(0),
                refills: AtomicU64::new(0),
                flushes: AtomicU64::new(0),
                zeroed: AtomicU64::new(0),
            },
            taken: AtomicBool::new(false),
            cpu: AtomicU32::new(0),
            next: OnceRef::new(),
        }
    }
}

impl<R: RawMutex + 'static> Cell<R> {
    /// Waits for the lock. Only the owner calls this.
    #[inline(always)]
    pub(super) fn lock(&self) -> MutexGuard<'_, R, Contents> {
        self.contents.lock()
    }

    /// Takes the lock if no thread has it.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, R, Contents>> {
        self.contents.try_lock()
    }

    /// Returns its counts.
    pub(crate) fn stats(&self) -> MagazineStats {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        MagazineStats {
            cpu: self.cpu.load(Ordering::Relaxed),
            cached_bytes: of(&counts.cached),
            allocs: of(&counts.allocs),
            bytes: of(&counts.bytes),
            frees: of(&counts.frees),
            misses: of(&counts.misses),
            refills: of(&counts.refills),
            flushes: of(&counts.flushes),
            zeroed_bytes: of(&counts.zeroed),
        }
    }

    /// Publishes the bytes that it holds.
    #[inline(always)]
    pub(super) fn publish(&self, contents: &Contents) {
        self.counts.cached.store(contents.bytes.into(), Ordering::Relaxed);
    }
}

/// The cells of a space.
pub(crate) struct Cells<R: RawMutex + 'static> {
    first: OnceRef<'static, Cell<R>>,
}

impl<R: RawMutex + Send + Sync + 'static> Cells<R> {
    va_base::const_fn! {
        pub(crate) fn new() -> Self {
            Self { first: OnceRef::new() }
        }
    }

    /// Returns every cell, in use or free.
    pub(crate) fn each(&self) -> impl Iterator<Item = &'static Cell<R>> + use<R> {
        core::iter::successors(self.first.get(), |cell| cell.next.get())
    }

    /// Takes the first free cell, or a new one; `None` if the machine has no memory for it.
    pub(super) fn take(&self, machine: &impl Machine, cpu: u32) -> Option<&'static Cell<R>> {
        // Acquire pairs with the release of a magazine that ended: the cell is empty.
        let free = |cell: &&Cell<R>| {
            cell.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if let Some(cell) = self.each().find(free) {
            cell.cpu.store(cpu, Ordering::Relaxed);
            return Some(cell);
        }
        let cell = machine.alloc_table::<Cell<R>>()?;
        cell.taken.store(true, Ordering::Relaxed);
        cell.cpu.store(cpu, Ordering::Relaxed);
        let mut link = &self.first;
        // Another thread may have added one meanwhile: then this one is linked after it.
        while link.set(cell).is_err() {
            link = &link.get()?.next;
        }
        Some(cell)
    }

    /// Frees the memory of all cells. No magazine is left.
    pub(crate) fn free_memory(&self, machine: &impl Machine) {
        let mut next = self.first.get();
        while let Some(cell) = next {
            next = cell.next.get();
            machine.free_table(Meta::new(cell));
        }
    }
}
