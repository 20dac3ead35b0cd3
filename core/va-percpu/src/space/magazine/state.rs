//! The state of each object that a magazine may hold: a byte, found by address without a lock.
//!
//! # Theory
//! A free in a magazine takes no shared lock, and still rejects an offset at which no object begins. So each address
//! that is a multiple of [`GRAIN`] may have a byte. It says that an object of a class begins there, which a magazine
//! holds (*cached*) or a caller has (*live*). All other objects have no byte, or a zero one: the store knows them.
//!
//! ```text
//!            refill                 alloc: a store             free: one compare-exchange
//!   NONE  ------------->  CACHED  ------------------->  LIVE  --------------------------> CACHED
//!     ^------------------------ flush, or a free in the space -----------------------------'
//! ```
//!
//! Of two frees of one object at the same time, one compare-exchange fails: that is its price, one locked operation.
//! A state leaves *none*, and comes to it, only under `chunks`, in the hold that takes or frees the bits. So a free in
//! the space that finds *none* there frees what the store has. For example, two threads free one object. The first one
//! is preempted before it takes `chunks`, and a refill takes the bytes. Then the first one finds *cached*, and fails.
//!
//! Bytes are in leaves of 4 KiB of a unit, leaves in spans of up to 64, spans in lists by hash. A span covers addresses
//! of one chunk. It is added before the first refill from there. When its chunk is destroyed all its bytes are zero,
//! and it is used for another. A reader that changes a byte of it at that moment frees by an offset of a destroyed
//! chunk, which is its mistake. It checks the span again and undoes its change. A reader that only passes through may be
//! led into another list, and miss a span behind. So it believes that there is none only if no span left a list
//! meanwhile.
//!
//! # Locking
//! Reading takes none. Spans are added and removed under `chunks`; leaves are added under it, and never removed.
//!
//! # Cost
//! A byte for 8 of a unit in pages with such objects; 16 KiB for the heads of the lists. A search reads four lines.

use super::class::CLASSES;
use va_base::sync::AtomicRef;
use va_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use va_base::{Machine, Meta, Table, Va};

/// The bytes of a unit for which there is one state. Objects of a magazine begin at multiples of it.
pub(crate) const GRAIN: u64 = 8;

#[cfg(not(loom))]
mod shape {
    pub(super) const LEAF_SHIFT: u32 = 12;
    pub(super) const LEAVES: usize = 64;
    pub(super) const HEADS: usize = 2048;
}
#[cfg(loom)]
mod shape {
    // A model creates every atomic anew.
    pub(super) const LEAF_SHIFT: u32 = 7;
    pub(super) const LEAVES: usize = 32;
    pub(super) const HEADS: usize = 2;
}
use shape::{HEADS, LEAF_SHIFT, LEAVES};

/// Bytes from one leaf to the next.
pub(super) const LEAF_BYTES: u64 = 1 << LEAF_SHIFT;
const STATES: usize = (1 << LEAF_SHIFT) / GRAIN as usize;
/// log2 of the bytes of a span, unless a chunk's addresses are aligned to less.
const SPAN_SHIFT_MAX: u32 = LEAF_SHIFT + LEAVES.trailing_zeros();
/// The key of a span that is not in use: no address has it.
const NO_KEY: u64 = u64::MAX;

/// No object of a magazine begins there.
const NONE: u8 = 0;
const CACHED: u8 = 1;
const LIVE: u8 = 2;
/// The walk of `validate` was here.
const SEEN: u8 = 0x80;
const CLASS_SHIFT: u32 = 2;
const _: () = assert!(CLASSES << CLASS_SHIFT < SEEN as usize);

/// The states of consecutive addresses. Protocol PR-MAG.
pub(super) struct Leaf([AtomicU8; STATES]);

impl Table for Leaf {
    va_base::empty_table!(Self(va_base::array_of!(AtomicU8::new(NONE); STATES)));
}

/// Leaves of consecutive addresses, of one chunk. Protocol PR-SPAN.
pub(crate) struct Span {
    key: AtomicU64,
    /// The address at which the bitmap of the chunk begins, for events.
    base: AtomicU64,
    next: AtomicRef<Self>,
    /// The next span that is not in use. Protocol PR-LOCK.
    unused: AtomicRef<Self>,
    leaves: [AtomicRef<Leaf>; LEAVES],
}

impl Table for Span {
    va_base::empty_table!(Self {
        key: AtomicU64::new(NO_KEY_AS_ZERO),
        base: AtomicU64::new(0),
        next: AtomicRef::new(),
        unused: AtomicRef::new(),
        leaves: va_base::array_of!(AtomicRef::new(); LEAVES),
    });
}

/// An empty table is all zeros, so keys are stored inverted.
const NO_KEY_AS_ZERO: u64 = !NO_KEY;

/// The heads of the lists. Protocol PR-SPAN.
struct Heads([AtomicRef<Span>; HEADS]);

impl Table for Heads {
    va_base::empty_table!(Self(va_base::array_of!(AtomicRef::new(); HEADS)));
}

impl Span {
    #[inline(always)]
    fn has(&self, key: u64) -> bool {
        // Acquire pairs with the release of `add`.
        !self.key.load(Ordering::Acquire) == key
    }

    #[inline(always)]
    fn state(&self, at: u64) -> Option<&'static AtomicU8> {
        let leaf = self.leaves[(at >> LEAF_SHIFT) as usize % LEAVES].load()?;
        Some(&leaf.0[(at / GRAIN) as usize % STATES])
    }

    /// Returns the address at which the bitmap of the chunk begins.
    #[inline(always)]
    pub(super) fn base(&self) -> Va {
        Va::new(self.base.load(Ordering::Relaxed))
    }
}

/// The outcome of [`States::free`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Freed {
    /// The object was live, and is cached now: its class, and the base of its chunk.
    Cached(usize, Va),
    /// No object of a magazine begins at the address: the store knows what does.
    Plain,
    /// A magazine holds the object, or another thread freed it at this moment: nothing is there to free.
    Lost,
}

/// The table that is missing before objects of an address can be cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lacks {
    Nothing,
    Span,
    Leaf,
}

/// The states of all objects.
pub(crate) struct States {
    /// The heads of the lists, or none before there is a magazine. Protocol PR-SPAN.
    heads: AtomicRef<Heads>,
    /// The spans that are not in use, under `chunks`. Protocol PR-LOCK.
    unused: AtomicRef<Span>,
    /// log2 of the bytes of a span.
    shift: u32,
    /// The number of spans that left their list. Written under `chunks`. Protocol PR-SPAN.
    moves: AtomicU64,
}

impl States {
    va_base::const_fn! {
        pub(crate) fn new() -> Self {
            Self { heads: AtomicRef::new(), unused: AtomicRef::new(), shift: 0, moves: AtomicU64::new(0) }
        }
    }

    /// Sets the size of spans: `grain_shift` is log2 of what the addresses of every chunk are a multiple of.
    pub(crate) fn with_grain(mut self, grain_shift: u32) -> Self {
        self.shift = grain_shift.min(SPAN_SHIFT_MAX);
        self
    }

    /// Returns whether there may be objects of magazines.
    #[inline(always)]
    pub(crate) fn is_used(&self) -> bool {
        self.heads.load().is_some()
    }

    #[inline(always)]
    fn head(&self, key: u64) -> Option<&'static AtomicRef<Span>> {
        let hash = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        Some(&self.heads.load()?.0[hash % HEADS])
    }

    /// Returns the span of an address: that of the last call, or one from a list.
    #[inline(always)]
    pub(super) fn span(&self, at: u64, last: Option<&'static Span>) -> Option<&'static Span> {
        let key = at >> self.shift;
        match last {
            Some(last) if last.has(key) => Some(last),
            _ => self.find(key),
        }
    }

    fn find(&self, key: u64) -> Option<&'static Span> {
        loop {
            let before = self.moves.load(Ordering::Acquire);
            let mut span = self.head(key)?.load();
            while let Some(of) = span {
                if of.has(key) {
                    return span;
                }
                span = of.next.load();
            }
            // A span on the way may have left this list, and lead to another one by now. The link that was followed was
            // written after the count was raised, with release, and read with acquire.
            if self.moves.load(Ordering::Acquire) == before {
                return None;
            }
        }
    }

    #[inline(always)]
    fn state(&self, at: u64) -> Option<&'static AtomicU8> {
        self.find(at >> self.shift)?.state(at)
    }

    /// Notes that a cached object of a class is live now: it left its magazine, whose owner calls this.
    #[inline(always)]
    pub(super) fn allocate(span: Option<&'static Span>, at: u64, class: usize) {
        if let Some(state) = span.and_then(|span| span.state(at)) {
            state.store((class << CLASS_SHIFT) as u8 | LIVE, Ordering::Relaxed);
        }
    }

    /// Notes that the live object at an address is cached from now on, if there is one.
    #[inline(always)]
    pub(super) fn free(&self, span: &'static Span, at: u64) -> Freed {
        if !at.is_multiple_of(GRAIN) {
            return Freed::Plain;
        }
        let Some(state) = span.state(at) else { return Freed::Plain };
        let before = state.load(Ordering::Relaxed);
        let cached = before ^ LIVE ^ CACHED;
        if before & LIVE == 0
            || state.compare_exchange(before, cached, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return if before == NONE { Freed::Plain } else { Freed::Lost };
        }
        if !span.has(at >> self.shift) {
            // Its chunk was destroyed, and it is that of another by now.
            state.store(before, Ordering::Release);
            return Freed::Lost;
        }
        Freed::Cached(usize::from(before >> CLASS_SHIFT), span.base())
    }

    /// Ends the life of an object for a free in the space, which frees its bits under the same hold of `chunks`.
    /// Returns `false` if a magazine holds it: it is freed already.
    #[inline(always)]
    pub(crate) fn free_in_space(&self, at: u64) -> bool {
        if !self.is_used() || !at.is_multiple_of(GRAIN) {
            return true;
        }
        self.leave(at)
    }

    #[inline(never)]
    fn leave(&self, at: u64) -> bool {
        let Some(state) = self.state(at) else { return true };
        let before = state.load(Ordering::Relaxed);
        before == NONE
            || before & LIVE != 0
                && state.compare_exchange(before, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns whether no object of a magazine begins at an address, cached or live. The caller holds `chunks`: so it
    /// remains true until that is released.
    pub(crate) fn is_plain(&self, at: u64) -> bool {
        !at.is_multiple_of(GRAIN) || self.state(at).is_none_or(|state| state.load(Ordering::Relaxed) == NONE)
    }

    /// Returns whether a magazine holds the object at an address.
    pub(crate) fn is_cached(&self, at: u64) -> bool {
        at.is_multiple_of(GRAIN)
            && self.state(at).is_some_and(|state| state.load(Ordering::Relaxed) & CACHED != 0)
    }

    /// Notes that an object which was just taken from the chunks, under this hold of `chunks`, is cached. `false` if its
    /// state has no table. `last` is the span of the object before it.
    pub(super) fn begin(&self, at: u64, class: usize, last: &mut Option<&'static Span>) -> bool {
        *last = self.span(at, *last);
        let Some(state) = last.and_then(|span| span.state(at)) else { return false };
        state.store((class << CLASS_SHIFT) as u8 | CACHED, Ordering::Release);
        true
    }

    /// Notes that an object of the chunks is live, and that of a class: a magazine may hold it once it is freed. The
    /// caller holds `chunks`, and found the object there.
    pub(super) fn adopt(&self, at: u64, class: usize) {
        if let Some(state) = self.state(at)
            && state.load(Ordering::Relaxed) == NONE
        {
            state.store((class << CLASS_SHIFT) as u8 | LIVE, Ordering::Release);
        }
    }

    /// Clears the state of a cached object that goes back to the store.
    pub(super) fn end(&self, at: u64) {
        if let Some(state) = self.state(at) {
            state.store(NONE, Ordering::Release);
        }
    }

    /// Returns the address after the last one of the span of an address.
    pub(super) fn span_end(&self, at: u64) -> u64 {
        (at | ((1 << self.shift) - 1)).wrapping_add(1)
    }

    /// Returns the first table that is missing for an address.
    pub(crate) fn lacks(&self, at: u64) -> Lacks {
        match self.find(at >> self.shift) {
            None => Lacks::Span,
            Some(span) if span.state(at).is_none() => Lacks::Leaf,
            Some(_) => Lacks::Nothing,
        }
    }

    /// Sets the heads, unless another thread did so: then it returns these. The caller holds `chunks`.
    pub(super) fn set_heads(&self, made: Headed) -> Option<Headed> {
        if self.heads.load().is_some() {
            return Some(made);
        }
        self.heads.store(Some(made.0.take()));
        None
    }

    /// Uses a span that was used before, if there is one. The caller holds `chunks`.
    pub(super) fn take_unused(&self) -> Option<&'static Span> {
        let span = self.unused.load()?;
        self.unused.store(span.unused.load());
        Some(span)
    }

    /// Puts a span aside that is in no list. The caller holds `chunks`.
    pub(super) fn put_unused(&self, span: &'static Span) {
        span.unused.store(self.unused.load());
        self.unused.store(Some(span));
    }

    /// Adds a span for an address of a chunk whose bitmap begins at `base`. The caller holds `chunks`. Returns the span
    /// if there is one for the address already.
    pub(super) fn add(&self, at: u64, base: Va, span: &'static Span) -> Option<&'static Span> {
        let key = at >> self.shift;
        let Some(head) = self.head(key) else { return Some(span) };
        if self.find(key).is_some() {
            return Some(span);
        }
        span.base.store(base.get(), Ordering::Relaxed);
        span.next.store(head.load());
        span.key.store(!key, Ordering::Release);
        head.store(Some(span));
        None
    }

    /// Adds a leaf for an address. The caller holds `chunks`. Returns the leaf if there is one already.
    pub(super) fn add_leaf(&self, at: u64, leaf: &'static Leaf) -> Option<&'static Leaf> {
        let Some(span) = self.find(at >> self.shift) else { return Some(leaf) };
        let place = &span.leaves[(at >> LEAF_SHIFT) as usize % LEAVES];
        if place.load().is_some() {
            return Some(leaf);
        }
        place.store(Some(leaf));
        None
    }

    /// Removes the spans of a chunk that is destroyed. The caller holds `chunks`.
    pub(crate) fn retire(&self, base: u64, bytes: u64) {
        if !self.is_used() {
            return;
        }
        let step = 1 << self.shift;
        let mut at = base;
        while at < base + bytes {
            self.remove(at >> self.shift);
            at += step;
        }
    }

    fn remove(&self, key: u64) {
        let Some(head) = self.head(key) else { return };
        let mut link: &AtomicRef<Span> = head;
        while let Some(span) = link.load() {
            if span.has(key) {
                link.store(span.next.load());
                // After the link, so that a reader that sees the count does not reach the span. Before the span may lead
                // elsewhere.
                self.moves.fetch_add(1, Ordering::Release);
                span.key.store(NO_KEY_AS_ZERO, Ordering::Release);
                return self.put_unused(span);
            }
            link = &span.next;
        }
    }

    /// Calls `each` with every span, in use or not.
    fn each_span(&self, each: &mut dyn FnMut(Meta<&'static Span>)) {
        let lists = self.heads.load().into_iter().flat_map(|heads| &heads.0);
        for head in lists {
            let mut span = head.load();
            while let Some(of) = span {
                span = of.next.load();
                each(Meta::new(of));
            }
        }
        let mut span = self.unused.load();
        while let Some(of) = span {
            span = of.unused.load();
            each(Meta::new(of));
        }
    }

    /// Frees all tables. No magazine is left.
    pub(crate) fn free_memory(&self, machine: &impl Machine) {
        self.each_span(&mut |span| {
            for leaf in span.leaves.iter().filter_map(AtomicRef::load) {
                machine.free_table(Meta::new(leaf));
            }
            machine.free_table(span);
        });
        if let Some(heads) = self.heads.load() {
            machine.free_table(Meta::new(heads));
        }
    }

    /// Counts the states that say that a magazine holds an object.
    pub(super) fn count_cached(&self) -> u64 {
        let mut count = 0;
        self.each_span(&mut |span| {
            let states = span.leaves.iter().filter_map(AtomicRef::load).flat_map(|leaf| &leaf.0);
            count += states.filter(|state| state.load(Ordering::Relaxed) & CACHED != 0).count() as u64;
        });
        count
    }

    /// Returns whether an object is cached in a class and was not seen since the states were last cleared of that; sees
    /// it, or with `clear` forgets it.
    pub(super) fn see(&self, at: u64, class: usize, clear: bool) -> bool {
        let Some(state) = self.state(at) else { return false };
        let want = (class << CLASS_SHIFT) as u8 | CACHED;
        let (from, to) = if clear { (want | SEEN, want) } else { (want, want | SEEN) };
        state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The heads, before they are set.
pub(super) struct Headed(Meta<&'static Heads>);

impl Headed {
    /// Allocates them.
    pub(super) fn alloc(machine: &impl Machine) -> Option<Self> {
        machine.alloc_table().map(Meta::new).map(Self)
    }

    /// Frees them, since another thread set some.
    pub(super) fn free(self, machine: &impl Machine) {
        machine.free_table(self.0);
    }
}

#[cfg(all(test, loom))]
mod loom {
    use super::*;
    use crate::loom::{Arc, join, model, spawn};
    use va_base::HeapMachine;

    /// A span that leaves a list and joins another, while a reader is in it on the way to one behind.
    #[test]
    fn mc1_a_reader_is_not_led_into_another_list() {
        model(|| {
            let machine = HeapMachine::<parking_lot::RawMutex>::new(1);
            let states = Arc::new(States::new().with_grain(SPAN_SHIFT_MAX));
            let Some(heads) = Headed::alloc(&machine) else { panic!("no memory") };
            assert!(states.set_heads(heads).is_none());
            let head = |key| states.head(key).map(core::ptr::from_ref);
            let is_beside = |key: &u64| head(*key) == head(1);
            let beside = (2..).find(is_beside).unwrap_or_default();
            let elsewhere = (2..).find(|key| !is_beside(key)).unwrap_or_default();
            let at = |key: u64| key << SPAN_SHIFT_MAX;
            for key in [1, beside] {
                let span = machine.alloc_table::<Span>();
                assert!(span.is_some_and(|span| states.add(at(key), Va::new(at(key)), span).is_none()));
            }
            let theirs = states.clone();
            let reader = spawn(move || theirs.find(1).is_some());
            states.retire(at(beside), 1);
            let again = states.take_unused();
            assert!(
                again.is_some_and(|span| states.add(at(elsewhere), Va::new(at(elsewhere)), span).is_none())
            );
            assert!(join(reader), "the span is there all the time");
            states.free_memory(&machine);
        });
    }
}
