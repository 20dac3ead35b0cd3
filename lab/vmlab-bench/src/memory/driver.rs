//! The allocation calls of a child: the same on `malloc` and its relatives, on ours, and on plain mappings.
//!
//! # Theory
//! Allocated memory is owned by a [`Held`], which has the type of its driver and is taken by value when it is freed. So
//! safe code here stays safe for every workload. It does not free itself, since the free is measured.

use super::task::Touch;
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use vmalloc::{LargeAlloc, Vmalloc};

const PAGE_BYTES: usize = 4096;

/// An allocation of a driver of type `H`: `bytes` bytes, owned by the holder alone.
#[derive(Debug)]
pub struct Held<H> {
    at: NonNull<u8>,
    bytes: usize,
    align: usize,
    of: PhantomData<fn() -> H>,
}

// SAFETY: it owns its bytes, and every driver frees allocations of other threads.
unsafe impl<H> Send for Held<H> {}

impl<H> Held<H> {
    /// For drivers, which have allocated `bytes` bytes at `at`.
    fn new(at: *mut u8, bytes: usize, align: usize) -> Option<Self> {
        Some(Self { at: NonNull::new(black_box(at))?, bytes, align, of: PhantomData })
    }

    #[inline(always)]
    pub fn write(&mut self, offset: usize) {
        assert!(offset < self.bytes);
        // SAFETY: inside the allocation, as checked.
        let at = unsafe { self.at.add(offset) };
        // SAFETY: inside an allocation that is ours alone.
        unsafe { at.write_volatile(1) };
    }

    /// Returns its address.
    pub fn address(&self) -> usize {
        self.at.addr().get()
    }

    /// Writes to it.
    #[inline(always)]
    pub fn touch(&mut self, touch: Touch) {
        match touch {
            Touch::Byte => self.write(0),
            Touch::Pages => self.touch_from(0),
            Touch::Sparse => self.touch_every(0, 4 * PAGE_BYTES),
        }
    }

    /// Writes to every page from an offset on.
    #[inline(always)]
    pub fn touch_from(&mut self, from: usize) {
        self.touch_every(from, PAGE_BYTES);
    }

    #[inline(always)]
    fn touch_every(&mut self, from: usize, step: usize) {
        (from..self.bytes).step_by(step).for_each(|offset| self.write(offset));
    }

    /// Fills it with zeros.
    pub fn fill(&mut self) {
        // SAFETY: all of an allocation that is ours alone.
        unsafe { self.at.write_bytes(0, self.bytes) };
        black_box(self.at);
    }

    /// Returns true if the first byte and the last are zero. The allocation must have been zeroed.
    pub fn is_zero(&self) -> bool {
        // SAFETY: inside the allocation, which has at least one byte.
        let last = unsafe { self.at.add(self.bytes - 1) };
        [self.at, last].iter().all(|at| {
            // SAFETY: inside an allocation that is ours alone; it was initialised, as the caller guarantees.
            unsafe { at.read_volatile() == 0 }
        })
    }
}

/// An allocator under test. `None` means that the allocation failed.
pub trait Driver: Sync + Sized {
    fn alloc(&self, bytes: usize) -> Option<Held<Self>>;
    fn aligned(&self, bytes: usize, align: usize) -> Option<Held<Self>>;
    fn zeroed(&self, bytes: usize) -> Option<Held<Self>>;
    /// Grows, and preserves the content. On `None` the old allocation is lost.
    fn resize(&self, held: Held<Self>, bytes: usize) -> Option<Held<Self>>;
    fn free(&self, held: Held<Self>);
    /// Releases unused memory to the system, if the allocator has a call for it.
    fn trim(&self) {}
}

/// The alignment that `malloc` guarantees.
const ALIGN: usize = 16;

fn layout(bytes: usize, align: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), align).ok()
}

/// `malloc` of the loaded library.
#[derive(Debug)]
pub struct Malloc;

impl Driver for Malloc {
    #[inline(always)]
    fn alloc(&self, bytes: usize) -> Option<Held<Self>> {
        // SAFETY: any size is valid.
        let at = unsafe { libc::malloc(bytes.max(1)) };
        Held::new(at.cast(), bytes, ALIGN)
    }

    fn aligned(&self, bytes: usize, align: usize) -> Option<Held<Self>> {
        let mut at = null_mut();
        // SAFETY: the pointer is writable; a bad alignment is an error.
        let error = unsafe { libc::posix_memalign(&raw mut at, align, bytes.max(1)) };
        if error == 0 { Held::new(at.cast(), bytes, align) } else { None }
    }

    fn zeroed(&self, bytes: usize) -> Option<Held<Self>> {
        // SAFETY: any size is valid.
        let at = unsafe { libc::calloc(1, bytes.max(1)) };
        Held::new(at.cast(), bytes, ALIGN)
    }

    fn resize(&self, held: Held<Self>, bytes: usize) -> Option<Held<Self>> {
        // SAFETY: it came from `malloc` or a related function, and is taken by value.
        let at = unsafe { libc::realloc(held.at.as_ptr().cast(), bytes.max(1)) };
        Held::new(at.cast(), bytes, ALIGN)
    }

    #[inline(always)]
    fn free(&self, held: Held<Self>) {
        // SAFETY: it came from `malloc` or a related function, and is taken by value.
        unsafe { libc::free(black_box(held.at.as_ptr()).cast()) };
    }

    fn trim(&self) {
        // SAFETY: it has no preconditions.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Ours.
impl Driver for Vmalloc {
    #[inline(always)]
    fn alloc(&self, bytes: usize) -> Option<Held<Self>> {
        self.aligned(bytes, ALIGN)
    }

    #[inline(always)]
    fn aligned(&self, bytes: usize, align: usize) -> Option<Held<Self>> {
        let area = Vmalloc::alloc(self, layout(bytes, align)?).ok()?;
        Held::new(area.as_ptr(), bytes, align)
    }

    fn zeroed(&self, bytes: usize) -> Option<Held<Self>> {
        let area = self.alloc_zeroed(layout(bytes, ALIGN)?).ok()?;
        Held::new(area.as_ptr(), bytes, ALIGN)
    }

    fn resize(&self, held: Held<Self>, bytes: usize) -> Option<Held<Self>> {
        let to = layout(bytes, held.align)?;
        // SAFETY: the holder owns the area and passes it by value. (An area of another allocator would be an error.)
        let area = unsafe { self.grow(held.at, to) }.ok()?;
        Held::new(area.as_ptr(), bytes, held.align)
    }

    #[inline(always)]
    fn free(&self, held: Held<Self>) {
        // SAFETY: the holder owns the area and passes it by value. (An area of another allocator would be an error.)
        let freed = unsafe { Vmalloc::free(self, black_box(held.at)) };
        assert!(freed.is_ok());
    }

    fn trim(&self) {
        Vmalloc::trim(self);
    }
}

/// The options of our memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Make {
    Any,
    Zeros,
    /// On huge pages, if available.
    Huge,
}

/// The calls of the kernel's test suite on our allocator ([`crate::suite`]): every page has memory, and a resize that
/// fails changes nothing.
impl Held<Vmalloc> {
    pub fn make(memory: &Vmalloc, bytes: usize, align: usize, make: Make) -> Option<Self> {
        let layout = layout(bytes, align)?;
        let area = match make {
            Make::Any => memory.alloc(layout),
            Make::Zeros => memory.alloc_zeroed(layout),
            Make::Huge => memory.alloc_huge(layout),
        };
        let mut held = Self::new(area.ok()?.as_ptr(), bytes, align)?;
        held.populate(0);
        Some(held)
    }

    /// Writes a zero to every page from an offset on, which is a multiple of a page.
    #[inline(always)]
    fn populate(&mut self, from: usize) {
        (from..self.bytes).step_by(PAGE_BYTES).for_each(|offset| self.put(offset, 0));
    }

    /// Writes a byte.
    #[inline(always)]
    pub fn put(&mut self, offset: usize, byte: u8) {
        assert!(offset < self.bytes);
        // SAFETY: inside the allocation, as checked.
        let at = unsafe { self.at.add(offset) };
        // SAFETY: inside an allocation that is ours alone.
        unsafe { at.write_volatile(byte) };
    }

    /// Reads the first byte, which was written on allocation.
    #[inline(always)]
    pub fn first(&self) -> u8 {
        // SAFETY: there is a byte at least, it is ours alone, and `make` wrote to it.
        unsafe { self.at.read_volatile() }
    }

    /// Resizes it; returns it unchanged on failure.
    pub fn resized(mut self, memory: &Vmalloc, bytes: usize) -> Result<Self, Self> {
        let Some(layout) = layout(bytes, self.align) else { return Err(self) };
        let populated = self.bytes.next_multiple_of(PAGE_BYTES);
        // SAFETY: the holder owns the area and passes it by value. (An area of another allocator would be an error.)
        let Ok(area) = (unsafe { memory.grow(self.at, layout) }) else { return Err(self) };
        (self.at, self.bytes) = (area, bytes.max(1));
        self.populate(populated);
        Ok(self)
    }

    /// Frees it.
    #[inline]
    pub fn end(self, memory: &Vmalloc) {
        Driver::free(memory, self);
    }
}

/// Ours as a global allocator.
pub struct Kvs;

static KV: LargeAlloc<System> = LargeAlloc::new(System);

impl Kvs {
    /// Returns the requested layout, which the free needs again. It was valid when it was allocated.
    fn layout_of(held: &Held<Self>) -> Layout {
        layout(held.bytes, held.align).unwrap_or(Layout::new::<u8>())
    }
}

impl Driver for Kvs {
    #[inline(always)]
    fn alloc(&self, bytes: usize) -> Option<Held<Self>> {
        self.aligned(bytes, ALIGN)
    }

    #[inline(always)]
    fn aligned(&self, bytes: usize, align: usize) -> Option<Held<Self>> {
        let layout = layout(bytes, align)?;
        // SAFETY: the layout has a size.
        let at = unsafe { KV.alloc(layout) };
        Held::new(at, bytes, align)
    }

    fn zeroed(&self, bytes: usize) -> Option<Held<Self>> {
        let layout = layout(bytes, ALIGN)?;
        // SAFETY: the layout has a size.
        let at = unsafe { KV.alloc_zeroed(layout) };
        Held::new(at, bytes, ALIGN)
    }

    fn resize(&self, held: Held<Self>, bytes: usize) -> Option<Held<Self>> {
        let to = layout(bytes, held.align)?;
        // SAFETY: allocated there with that layout and taken by value; the new size is that of a layout, and not 0.
        let at = unsafe { KV.realloc(held.at.as_ptr(), Self::layout_of(&held), to.size()) };
        Held::new(at, bytes, held.align)
    }

    #[inline(always)]
    fn free(&self, held: Held<Self>) {
        // SAFETY: allocated there with that layout, and taken by value.
        unsafe { KV.dealloc(black_box(held.at.as_ptr()), Self::layout_of(&held)) };
    }
}

/// A mapping for each allocation, as in programs without an allocator.
pub struct Mmap;

impl Driver for Mmap {
    #[inline(always)]
    fn alloc(&self, bytes: usize) -> Option<Held<Self>> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at any free address.
        let at = unsafe { libc::mmap(null_mut(), bytes.max(1), access, kind, -1, 0) };
        if at == libc::MAP_FAILED { None } else { Held::new(at.cast(), bytes, PAGE_BYTES) }
    }

    fn aligned(&self, bytes: usize, align: usize) -> Option<Held<Self>> {
        if align <= PAGE_BYTES { self.alloc(bytes) } else { None }
    }

    fn zeroed(&self, bytes: usize) -> Option<Held<Self>> {
        self.alloc(bytes)
    }

    fn resize(&self, held: Held<Self>, bytes: usize) -> Option<Held<Self>> {
        let (at, old) = (held.at.as_ptr().cast(), held.bytes.max(1));
        // SAFETY: the whole of a mapping of our own, taken by value.
        let at = unsafe { libc::mremap(at, old, bytes.max(1), libc::MREMAP_MAYMOVE) };
        if at == libc::MAP_FAILED { None } else { Held::new(at.cast(), bytes, PAGE_BYTES) }
    }

    #[inline(always)]
    fn free(&self, held: Held<Self>) {
        // SAFETY: the whole of a mapping of our own, taken by value.
        let unmapped = unsafe { libc::munmap(held.at.as_ptr().cast(), held.bytes.max(1)) };
        assert_eq!(unmapped, 0);
    }
}
