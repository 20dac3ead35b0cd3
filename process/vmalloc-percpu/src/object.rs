//! Objects with a copy in each unit: of a type, of a layout, or static.
//!
//! # Theory
//! An object has the same offset in every unit of its chunk, so a handle is the address in unit 0. The copy of unit `n`
//! is `n` strides above. A thread that requests the current copy may be on another CPU when it uses the copy. So copies
//! are only shared (`T: Sync`), and an indivisible change is a section on a [`Word`].
//!
//! Every reference to a copy borrows the owner of the object, whatever the lifetime of the space: the space of the
//! process is `'static`, its objects are not.

use super::hot::Hot;
use super::local::{Local, Word};
use super::shape::STRIDE;
use super::{Error, Space};
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool, AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16,
    AtomicU32, AtomicU64, AtomicUsize,
};
use va_percpu::Offset;
use vmalloc_os::Published;

/// A type with a value of all zero bytes. Values that began as zeros are not dropped.
///
/// # Safety
/// - All zero bytes are a valid value of the type.
/// - A [`Word`] in one of its values is in all of them, at the same offset. So it is in no variant of an enum, in no
///   union and in no optional value (`Option`, `OnceLock`). [`View::local`] finds it in one copy and runs sections on
///   all. Structs and arrays of words and of other such types fulfil this.
pub unsafe trait Zeroable: Send + Sync {}

macro_rules! zeroable {
    ($($type:ty),+) => {$(
        // SAFETY: a number, for which zero is valid.
        unsafe impl Zeroable for $type {}
    )+};
}
zeroable!(AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicIsize);
zeroable!(AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, AtomicBool, Word);

// SAFETY: zeros are the null pointer.
unsafe impl<T> Zeroable for AtomicPtr<T> {}
// SAFETY: zeros are that many values of all zeros.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}

/// A handle of an object: any thread may use it while the object lives.
pub struct View<'s, T> {
    hot: &'s Hot,
    /// The copy in unit 0.
    first: NonNull<T>,
    /// True if all units were written; else unused units are zeros.
    all: bool,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

// SAFETY: it yields only shared references, to values that threads may share.
unsafe impl<T: Sync> Send for View<'_, T> {}
// SAFETY: as before.
unsafe impl<T: Sync> Sync for View<'_, T> {}

impl<T> fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("first", &self.first).finish_non_exhaustive()
    }
}

impl<'s, T: Sync + 's> View<'s, T> {
    #[inline(always)]
    fn place(&self, unit: u32) -> NonNull<T> {
        // SAFETY: a unit of the chunk: callers pass numbers of existing units.
        unsafe { self.first.byte_add(unit as usize * STRIDE) }
    }

    #[inline(always)]
    fn copy(&self, unit: u32) -> &'s T {
        // SAFETY: aligned, in a chunk that lives as long as `'s`; written by `init`, or zeros, which are a value.
        unsafe { self.place(unit).as_ref() }
    }

    /// Calls `f` with the copy of the thread's current CPU. Another thread may use the same copy at the same time,
    /// since this one may move to another CPU at any moment. So changes need atomics.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(self.copy(self.hot.unit()))
    }

    /// Returns the copy of a unit, if the unit exists. The unit counts as used from now on.
    #[must_use]
    pub fn get(&self, unit: u32) -> Option<&'s T> {
        (unit < self.hot.units()).then(|| {
            self.hot.touch(unit);
            self.copy(unit)
        })
    }

    /// Returns the copies of all units that were ever used; those of the others are zeros. After [`Space::with_init`]
    /// it returns all copies.
    pub fn iter(&self) -> impl Iterator<Item = &'s T> + use<'s, T> {
        let (view, all) = (*self, self.all.then(|| 0..self.hot.units()));
        let used = (!self.all).then(|| self.hot.live_units());
        all.into_iter().flatten().chain(used.into_iter().flatten()).map(move |unit| view.copy(unit))
    }

    /// Returns the operations on the [`Word`] that `field` selects in a copy, or `None` if that word is outside the
    /// copy. Unit 0 counts as used from now on, since `field` gets its copy.
    pub fn local(&self, field: impl FnOnce(&T) -> &Word) -> Option<Local<'s>>
    where
        T: Zeroable,
    {
        // Checks PP1: `field` may store to the copy.
        self.hot.touch(0);
        let word = NonNull::from(field(self.copy(0))).cast::<u8>();
        let at = word.addr().get().checked_sub(self.first.addr().get())?;
        if at.checked_add(size_of::<Word>())? > size_of::<T>() {
            return None;
        }
        // SAFETY: inside the object, as checked above.
        let first = unsafe { self.first.cast::<u8>().byte_add(at) };
        // SAFETY: a word of an object that lives as long as `'s`; a word in one copy is a word in all, by the contract
        // of `Zeroable`; a `Word` is not changed by other means. Values other than zeros were written by `init`.
        Some(unsafe { Local::new(self.hot, first) })
    }
}

impl<'s> View<'s, Word> {
    /// Returns the operations on the word.
    #[inline(always)]
    #[must_use]
    pub fn word(&self) -> Local<'s> {
        // SAFETY: a word of an object that lives as long as `'s`; a `Word` is not changed by other means.
        unsafe { Local::new(self.hot, self.first.cast()) }
    }
}

/// A `T` in each unit, freed on drop. So its references borrow it, even in a `'static` space:
///
/// ```compile_fail,E0505
/// let names = vmalloc_percpu::Space::global()?.with_init(|_| String::new())?;
/// let name: Option<&String> = names.get(0);
/// drop(names);
/// assert_eq!(name.map(String::len), Some(0));
/// # Ok::<(), vmalloc_percpu::Error>(())
/// ```
/// ```compile_fail,E0505
/// let hits = vmalloc_percpu::Space::global()?.zeroed::<vmalloc_percpu::Word>()?;
/// let word = hits.word();
/// drop(hits);
/// word.add(1);
/// # Ok::<(), vmalloc_percpu::Error>(())
/// ```
/// ```compile_fail,E0716
/// let view: vmalloc_percpu::View<'static, vmalloc_percpu::Word> =
///     vmalloc_percpu::Space::global()?.zeroed::<vmalloc_percpu::Word>()?.view();
/// # Ok::<(), vmalloc_percpu::Error>(())
/// ```
/// A type with a word in only some of its values is not [`Zeroable`]:
///
/// ```compile_fail,E0277
/// use vmalloc_percpu::Word;
/// enum Either {
///     Word(Word),
///     Name(String),
/// }
/// let init = |unit| if unit == 0 { Either::Word(Word::default()) } else { Either::Name(String::new()) };
/// let both = vmalloc_percpu::Space::global()?.with_init(init)?;
/// let elsewhere: &'static Word = Box::leak(Box::default());
/// both.local(|either| if let Either::Word(word) = either { word } else { elsewhere });
/// # Ok::<(), vmalloc_percpu::Error>(())
/// ```
pub struct PerCpu<'s, T> {
    view: View<'s, T>,
    space: &'s Space,
    offset: Offset,
    owns: PhantomData<T>,
}

impl<'s, T> PerCpu<'s, T> {
    fn place(space: &'s Space, all: bool) -> Result<Self, Error> {
        let (offset, first) = space.alloc_raw(Layout::new::<T>())?;
        let view = View { hot: space.hot(), first: first.cast(), all };
        Ok(Self { view, space, offset, owns: PhantomData })
    }

    pub(super) fn zeroed(space: &'s Space) -> Result<Self, Error>
    where
        T: Zeroable,
    {
        Self::place(space, false)
    }

    pub(super) fn with_init(space: &'s Space, mut init: impl FnMut(u32) -> T) -> Result<Self, Error>
    where
        T: Send + Sync,
    {
        // All units count as used from now on, so that their bytes are zeroed for the next object. If `init` panics,
        // the earlier values are leaked.
        let (offset, first) = space.alloc_raw(Layout::new::<T>())?;
        let view = View { hot: space.hot(), first: first.cast::<T>(), all: true };
        for unit in 0..space.units() {
            space.hot().touch(unit);
            // SAFETY: in the object of this unit, which is not shared yet.
            unsafe { view.place(unit).write(init(unit)) };
        }
        Ok(Self { view, space, offset, owns: PhantomData })
    }

    /// Returns the number of units, including the last one, for threads without a number of their own.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.space.units()
    }

    /// Returns a handle of the object, which can be copied.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        self.view
    }
}

impl<T: Sync> PerCpu<'_, T> {
    /// Calls [`View::with`].
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        self.view().with(f)
    }

    /// Calls [`View::get`].
    #[must_use]
    pub fn get(&self, unit: u32) -> Option<&T> {
        self.view().get(unit)
    }

    /// Calls [`View::iter`].
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.view().iter()
    }

    /// Calls [`View::local`].
    pub fn local(&self, field: impl FnOnce(&T) -> &Word) -> Option<Local<'_>>
    where
        T: Zeroable,
    {
        self.view().local(field)
    }

    /// Returns the object's offset in its space.
    pub(super) fn offset(&self) -> Offset {
        self.offset
    }
}

impl PerCpu<'_, Word> {
    /// Calls [`View::word`].
    #[inline(always)]
    #[must_use]
    pub fn word(&self) -> Local<'_> {
        self.view().word()
    }
}

impl<T> Drop for PerCpu<'_, T> {
    fn drop(&mut self) {
        if core::mem::needs_drop::<T>() {
            let units = if self.view.all { self.space.units() } else { 0 };
            for unit in 0..units {
                // SAFETY: a unit of the chunk.
                let place = unsafe { self.view.first.byte_add(unit as usize * STRIDE) };
                // SAFETY: written by `init`; no reference to it remains.
                unsafe { place.drop_in_place() };
            }
        }
        // SAFETY: references to the object borrow `self`: all come from `view`, whose lifetime is that of the borrow.
        unsafe { self.space.free_raw(self.offset) };
    }
}

impl<T> fmt::Debug for PerCpu<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpu").field("offset", &self.offset).finish_non_exhaustive()
    }
}

/// Bytes in each unit with a layout chosen at run time, freed on drop.
pub struct PerCpuBox<'s> {
    pub(super) space: &'s Space,
    offset: Offset,
    first: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it yields only addresses of memory, and words that any thread may change.
unsafe impl Send for PerCpuBox<'_> {}
// SAFETY: as before.
unsafe impl Sync for PerCpuBox<'_> {}

impl<'s> PerCpuBox<'s> {
    pub(super) fn new(space: &'s Space, layout: Layout) -> Result<Self, Error> {
        let (offset, first) = space.alloc_raw(layout)?;
        Ok(Self { space, offset, first, layout })
    }

    /// Returns the address of the bytes of a unit, if the unit exists. The unit counts as used from now on.
    #[must_use]
    pub fn as_ptr(&self, unit: u32) -> Option<NonNull<u8>> {
        if unit >= self.space.units() {
            return None;
        }
        self.space.hot().touch(unit);
        // SAFETY: a unit of the chunk.
        Some(unsafe { self.first.byte_add(unit as usize * STRIDE) })
    }

    /// Returns the address of the copy in unit 0.
    pub(super) fn first(&self) -> NonNull<u8> {
        self.first
    }

    /// Returns the size and alignment of the bytes of a unit.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the operations on the word at offset `at`, if that is inside and its address is a multiple of 8.
    #[must_use]
    pub fn local(&self, at: usize) -> Option<Local<'_>> {
        let end = at.checked_add(size_of::<u64>())?;
        if end > self.layout.size() {
            return None;
        }
        // SAFETY: inside the object, as checked above.
        let first = unsafe { self.first.byte_add(at) };
        if !first.addr().get().is_multiple_of(align_of::<u64>()) {
            return None;
        }
        // SAFETY: inside an object that lives as long as this borrow; code that writes by address is responsible for
        // it.
        Some(unsafe { Local::new(self.space.hot(), first) })
    }
}

impl Drop for PerCpuBox<'_> {
    fn drop(&mut self) {
        // SAFETY: references to the object borrow `self`.
        unsafe { self.space.free_raw(self.offset) };
    }
}

impl fmt::Debug for PerCpuBox<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpuBox")
            .field("offset", &self.offset)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl Space {
    /// Allocates zeroed bytes in each unit, which are freed when the value is dropped.
    ///
    /// # Errors
    /// The size is above 32 KiB or the alignment above a page, or the system has no memory; nothing has changed.
    /// # Locks
    /// That of a cache; for a batch that of the index. Cost: tens of nanoseconds, and the zeroing of the units ever
    /// used.
    pub fn alloc(&self, layout: Layout) -> Result<PerCpuBox<'_>, Error> {
        PerCpuBox::new(self, layout)
    }

    /// Allocates a `T` in each unit, all zeros. Units that were never used are not accessed.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn zeroed<T: Zeroable>(&self) -> Result<PerCpu<'_, T>, Error> {
        PerCpu::zeroed(self)
    }

    /// Allocates a `T` in each unit, created by `init` from the number of the unit. Writes to all units.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn with_init<T: Send + Sync>(&self, init: impl FnMut(u32) -> T) -> Result<PerCpu<'_, T>, Error> {
        PerCpu::with_init(self, init)
    }
}

/// A `T` in each unit of the space of the process, allocated at the first use and never freed. Created by
/// [`per_cpu!`](crate::per_cpu).
pub struct Static<T> {
    /// The object in unit 0; null before the first use. Protocol PR-PUBLISH.
    first: Published<T>,
}

impl<T: Zeroable> Static<T> {
    /// Creates the value without memory.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: Published::new() }
    }

    /// Returns a handle of the object, which the first call allocates.
    ///
    /// # Errors
    /// The first call may fail for lack of memory; the next call tries again.
    #[inline(always)]
    pub fn view(&'static self) -> Result<View<'static, T>, Error> {
        let space = Space::global()?;
        match self.first.get() {
            Some(first) => Ok(View { hot: space.hot(), first, all: false }),
            None => self.alloc_view(space),
        }
    }

    #[cold]
    fn alloc_view(&'static self, space: &'static Space) -> Result<View<'static, T>, Error> {
        let (offset, first) = space.alloc_raw(Layout::new::<T>())?;
        let mut first = first.cast::<T>();
        if let Err(other) = self.first.publish(first) {
            // SAFETY: allocated above, and not shared.
            unsafe { space.free_raw(offset) };
            first = other;
        }
        Ok(View { hot: space.hot(), first, all: false })
    }
}

impl<T: Zeroable> Default for Static<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Static<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Static").field("first", &self.first).finish()
    }
}

/// Declares static per-CPU data: zeros in each unit of [`Space::global`], allocated at the first use.
///
/// ```
/// use core::sync::atomic::{AtomicU64, Ordering};
/// vmalloc_percpu::per_cpu! {
///     /// Requests seen.
///     static SEEN: AtomicU64;
/// }
/// SEEN.view()?.with(|seen| seen.fetch_add(1, Ordering::Relaxed));
/// let sum: u64 = SEEN.view()?.iter().map(|seen| seen.load(Ordering::Relaxed)).sum();
/// assert_eq!(sum, 1);
/// # Ok::<(), vmalloc_percpu::Error>(())
/// ```
#[macro_export]
macro_rules! per_cpu {
    ($($(#[$attr:meta])* $vis:vis static $name:ident: $type:ty);+ $(;)?) => {$(
        $(#[$attr])*
        $vis static $name: $crate::Static<$type> = $crate::Static::new();
    )+};
}
