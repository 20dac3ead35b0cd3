//! Types of COCONUT-SVSM: addresses, boxes of pages, the data of a CPU.

use crate::svsm::VirtualRange;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroUsize;
use core::ops::{Add, Deref, DerefMut};
use core::ptr::NonNull;

/// Binary logarithm of a page.
pub const PAGE_SHIFT: usize = 12;
/// Binary logarithm of a huge page.
pub const PAGE_SHIFT_2M: usize = 21;
/// Bytes of a page.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// Bytes of a huge page.
pub const PAGE_SIZE_2M: usize = 1 << PAGE_SHIFT_2M;

/// First address of the pages of a CPU.
pub const SVSM_PERCPU_TEMP_BASE_4K: VirtAddr = VirtAddr(0xffff_ff00_4000_0000);
/// Address after the last of them.
pub const SVSM_PERCPU_TEMP_END_4K: VirtAddr = VirtAddr(SVSM_PERCPU_TEMP_BASE_4K.0 + (512 << PAGE_SHIFT));
/// First address of the huge pages of a CPU.
pub const SVSM_PERCPU_TEMP_BASE_2M: VirtAddr = SVSM_PERCPU_TEMP_END_4K;
/// Address after the last of them.
pub const SVSM_PERCPU_TEMP_END_2M: VirtAddr = VirtAddr(SVSM_PERCPU_TEMP_BASE_2M.0 + (511 << PAGE_SHIFT_2M));

/// A virtual address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct VirtAddr(usize);

impl VirtAddr {
    /// Address zero.
    pub const fn null() -> Self {
        Self(0)
    }

    /// Wraps an address.
    pub const fn new(addr: usize) -> Self {
        Self(addr)
    }

    /// Returns the address.
    pub const fn bits(self) -> usize {
        self.0
    }
}

impl Add<usize> for VirtAddr {
    type Output = Self;

    fn add(self, bytes: usize) -> Self {
        Self(self.0 + bytes)
    }
}

/// The error of the kernel; of its variants only the one that the port uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SvsmError {
    /// No memory, or no addresses.
    Mem,
}

/// A range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRegion<A> {
    start: A,
    len: usize,
}

impl<A: Copy> MemoryRegion<A> {
    /// Returns `len` bytes from `start` on.
    pub const fn new(start: A, len: usize) -> Self {
        Self { start, len }
    }

    /// Returns the first address.
    pub const fn start(&self) -> A {
        self.start
    }

    /// Returns the bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A value in pages of its own. Here it is on the heap.
#[derive(Debug)]
pub struct PageBox<T: ?Sized>(Box<T>);

impl<T> PageBox<T> {
    /// Allocates pages for a value.
    ///
    /// # Errors
    /// [`SvsmError::Mem`].
    pub fn try_new(value: T) -> Result<Self, SvsmError> {
        Ok(Self(Box::new(value)))
    }
}

impl<T: ?Sized> PageBox<T> {
    /// Returns the value, whose pages are never freed.
    pub fn leak<'a>(boxed: Self) -> &'a mut T
    where
        T: 'a,
    {
        Box::leak(boxed.0)
    }

    /// Owns a value that was leaked.
    ///
    /// # Safety
    /// The pointer is from [`leak`](Self::leak), and there is no other reference to the value.
    pub unsafe fn from_raw(value: NonNull<T>) -> Self {
        // SAFETY: the pointer was leaked from a box, by the contract of this function.
        Self(unsafe { Box::from_raw(value.as_ptr()) })
    }
}

impl<T: Clone> PageBox<[T]> {
    /// Allocates pages for `len` values.
    ///
    /// # Errors
    /// [`SvsmError::Mem`].
    pub fn try_new_slice(value: T, len: NonZeroUsize) -> Result<Self, SvsmError> {
        let mut slice = Vec::new();
        slice.try_reserve_exact(len.get()).map_err(|_| SvsmError::Mem)?;
        slice.resize(len.get(), value);
        Ok(Self(slice.into_boxed_slice()))
    }
}

impl<T: ?Sized> Deref for PageBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> DerefMut for PageBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A lock whose owner never waits: a second one is a bug.
#[derive(Debug)]
pub struct RWLock<T>(lock_api::Mutex<super::lock::Spin, T>);

/// The value of a lock that is held.
pub type LockGuard<'a, T> = lock_api::MutexGuard<'a, super::lock::Spin, T>;

impl<T> RWLock<T> {
    const fn new(value: T) -> Self {
        Self(lock_api::Mutex::new(value))
    }

    fn write_noblock(&self) -> LockGuard<'_, T> {
        self.0.try_lock().expect("the lock is not held")
    }
}

/// The data of a CPU.
#[derive(Debug)]
pub struct PerCpu {
    vrange_4k: RWLock<VirtualRange>,
    vrange_2m: RWLock<VirtualRange>,
}

impl PerCpu {
    /// Sets the ranges, as `initialize_vm_ranges` of the kernel does.
    pub fn initialize_vm_ranges(&self) {
        let pages = |start: VirtAddr, end: VirtAddr, shift: usize| (end.0 - start.0) >> shift;
        let [base, end] = [SVSM_PERCPU_TEMP_BASE_4K, SVSM_PERCPU_TEMP_END_4K];
        self.vrange_4k_mut().init(base, pages(base, end, PAGE_SHIFT), PAGE_SHIFT);
        let [base, end] = [SVSM_PERCPU_TEMP_BASE_2M, SVSM_PERCPU_TEMP_END_2M];
        self.vrange_2m_mut().init(base, pages(base, end, PAGE_SHIFT_2M), PAGE_SHIFT_2M);
    }

    /// Returns the number of the CPU.
    pub fn get_cpu_index(&self) -> usize {
        0
    }

    /// Returns the range of pages.
    pub fn vrange_4k(&self) -> LockGuard<'_, VirtualRange> {
        self.vrange_4k.write_noblock()
    }

    /// Returns the range of pages, to change it.
    pub fn vrange_4k_mut(&self) -> LockGuard<'_, VirtualRange> {
        self.vrange_4k.write_noblock()
    }

    /// Returns the range of huge pages.
    pub fn vrange_2m(&self) -> LockGuard<'_, VirtualRange> {
        self.vrange_2m.write_noblock()
    }

    /// Returns the range of huge pages, to change it.
    pub fn vrange_2m_mut(&self) -> LockGuard<'_, VirtualRange> {
        self.vrange_2m.write_noblock()
    }
}

/// Returns the data of this CPU, the only one.
pub fn this_cpu() -> &'static PerCpu {
    static CPU: PerCpu =
        PerCpu { vrange_4k: RWLock::new(VirtualRange::new()), vrange_2m: RWLock::new(VirtualRange::new()) };
    &CPU
}

/// The log of the kernel: here the last line of it, for tests.
pub mod log {
    use alloc::string::String;

    /// The last line.
    pub static LAST: lock_api::Mutex<crate::stand_in::lock::Spin, String> =
        lock_api::Mutex::new(String::new());

    macro_rules! info {
        ($($words:tt)*) => { *$crate::stand_in::svsm::log::LAST.lock() = alloc::format!($($words)*) };
    }
    pub(crate) use info;
}
