//! Moving pages to other addresses without changing mappings: `userfaultfd` and its operation `UFFDIO_MOVE`.
//!
//! # Theory
//! ```text
//!   |== pages ==|                |  nothing  |        one mapping before, the same mapping after:
//!   |  nothing  |                |== pages ==|        64 ns a page, a microsecond for a huge page
//! ```
//! `mremap` moves a mapping, and each move adds two mappings for good. `UFFDIO_MOVE` moves pages. It requires that the
//! destination mapping be registered with a userfaultfd. So the destination pages are registered for the time of the
//! move only. A registered mapping has no pages of several sizes (mTHP), does not merge with others, and cannot be
//! registered by the program itself. The caller owns the pages exclusively meanwhile, so no fault is ever reported, and
//! no thread has to read the descriptor.
//!
//! Nothing is opened before the first move. If opening fails (a kernel before 6.8, a seccomp profile), it is not tried
//! again.
//!
//! A child of a fork has a copy of the descriptor that refers to its parent's memory: [`Mover::forget`] closes it
//! there, and the next move opens another.
//!
//! The descriptor has a high number: programs that close one of the lowest three expect to get that number from their
//! next `open`.
//!
//! The program may close all descriptors of the process, and open another file with the same number. A userfaultfd has
//! an inode of its own since Linux 5.13, and those that move pages are younger. So its **mark** is stored beside the
//! number. Every close of the descriptor, and every error of a move, compares the two first, and leaves a foreign file
//! alone.
//! # Source
//! `man 2 userfaultfd`, `man 2 ioctl_userfaultfd`; kernel `include/uapi/linux/userfaultfd.h` for the layouts.

use super::linux::{done, errno};
use super::plain::{is_plain, unless_plain};
use super::{Errno, Span, Stopped};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// `UFFD_USER_MODE_ONLY`: what an unprivileged process may open.
const USER_MODE_ONLY: c_int = 1;
/// `UFFD_API`, and the feature `UFFD_FEATURE_MOVE`.
const API: u64 = 0xaa;
const FEATURE_MOVE: u64 = 1 << 16;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MODE_MISSING: u64 = 1;
/// Descriptors that programs hardly use, the best first.
pub(super) const HIGH: [c_int; 4] = [900, 200, 60, 10];
/// `UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES`.
const ALLOW_HOLES: u64 = 1 << 1;
/// Number of times that a call is repeated that moved nothing and returned `EAGAIN`.
const TRIES: u32 = 64;

/// Returns the number of an operation with input and output: `_IOWR(0xaa, number, T)`.
const fn call<T>(number: u64) -> libc::Ioctl {
    (3 << 30 | (size_of::<T>() as u64) << 16 | API << 8 | number) as libc::Ioctl
}

const CALL_API: libc::Ioctl = call::<Api>(0x3f);
const CALL_REGISTER: libc::Ioctl = call::<Register>(0);
/// `_IOR(0xaa, 1, Range)`.
const CALL_UNREGISTER: libc::Ioctl =
    (2 << 30 | (size_of::<Range>() as u64) << 16 | API << 8 | 1) as libc::Ioctl;
const CALL_MOVE: libc::Ioctl = call::<Move>(5);
/// `USERFAULTFD_IOC_NEW`, of `/dev/userfaultfd`.
const CALL_NEW: libc::Ioctl = (API << 8) as libc::Ioctl;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Move {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

/// A descriptor, and below it in the word the mark of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Opened(u64);

impl Opened {
    /// No open descriptor. No descriptor has this number.
    const NOTHING: Self = Self(u64::MAX);

    fn new(fd: c_int) -> Result<Self, Errno> {
        Ok(Self((fd as u32 as u64) << 32 | u64::from(mark(fd)?)))
    }

    fn fd(self) -> c_int {
        (self.0 >> 32) as c_int
    }

    /// Returns true if the number still refers to the same file.
    fn is_ours(self) -> bool {
        self != Self::NOTHING && Self::new(self.fd()) == Ok(self)
    }

    /// Closes it, unless the program did.
    fn close(self) {
        if self.is_ours() {
            close(self.fd());
        }
    }
}

/// Returns a number that distinguishes the file of a descriptor from others. May be called in a child of a fork.
pub(super) fn mark(fd: c_int) -> Result<u32, Errno> {
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: writes the properties of a file.
    done(unsafe { libc::fstat(fd, about.as_mut_ptr()) })?;
    // SAFETY: all zeros is a value, and so is what was written.
    let about = unsafe { about.assume_init() };
    let (device, inode): (u64, u64) = (about.st_dev, about.st_ino);
    // Odd, so that no two inodes below 2^32 of a device are the same.
    Ok(device.wrapping_mul(0x9e37_79b9).wrapping_add(inode) as u32)
}

/// A userfaultfd, opened at the first move.
#[derive(Debug)]
pub(super) struct Mover {
    // Atomic.
    /// An [`Opened`]. Of all threads that open one, one stores it; it becomes `NOTHING` when it is lost.
    /// Protocol PR-PUBLISH.
    opened: AtomicU64,
    /// True if the system does not have it, or denies it. Protocol PR-ONCE.
    off: AtomicBool,
}

impl Mover {
    pub(super) const fn new() -> Self {
        Self { opened: AtomicU64::new(Opened::NOTHING.0), off: AtomicBool::new(false) }
    }

    /// Returns true if moves were not denied so far.
    pub(super) fn is_on(&self) -> bool {
        !self.off.load(Ordering::Relaxed) && !is_plain()
    }

    /// Moves the pages of `from` to `to`, where no page may be.
    ///
    /// # Safety
    /// Both are in one reservation; no reference to either exists.
    pub(super) unsafe fn move_pages(&self, from: Span, to: usize) -> Result<(), Stopped> {
        // All calls of a move, so that none is left registered.
        // SAFETY: this function's contract.
        let moved = unless_plain(|| unsafe { self.move_all(from, to) });
        moved.unwrap_or(Err(Stopped { bytes: 0, errno: Errno(libc::ENOSYS) }))
    }

    /// The same where calls that are not plain may be made.
    ///
    /// # Safety
    /// As there.
    unsafe fn move_all(&self, from: Span, to: usize) -> Result<(), Stopped> {
        let nothing = |errno| Stopped { bytes: 0, errno };
        let opened = self.ready().map_err(nothing)?;
        if from.bytes == 0 {
            return Ok(());
        }
        let target = Span { at: to, ..from };
        // Such a failure concerns this target only: the program may have registered a descriptor of its own there.
        if let Err(errno) = register(opened.fd(), target) {
            if is_lost(errno) {
                self.lose(opened);
            }
            return Err(nothing(errno));
        }
        // SAFETY: this function's contract.
        let moved = unsafe { self.move_registered(opened, from, to) };
        if !unregister(opened.fd(), target) {
            // An access to a missing page there would wait for ever. Closing the descriptor ends the registration.
            self.lose(opened);
            opened.close();
        }
        moved
    }

    /// Does the same where `to` is registered.
    ///
    /// # Safety
    /// As there.
    unsafe fn move_registered(&self, opened: Opened, from: Span, to: usize) -> Result<(), Stopped> {
        let (mut done, mut tries) = (0, 0);
        while done < from.bytes {
            let mut order = Move {
                dst: (to + done) as u64,
                src: (from.at + done) as u64,
                len: (from.bytes - done) as u64,
                mode: ALLOW_HOLES,
                moved: 0,
            };
            // SAFETY: this function's contract; the kernel writes `order` and moves pages between the two.
            let code = unsafe { libc::ioctl(opened.fd(), CALL_MOVE, &raw mut order) };
            if code == 0 {
                return Ok(());
            }
            let errno = errno();
            let more = usize::try_from(order.moved).unwrap_or(0);
            done += more;
            tries = if more > 0 { 0 } else { tries + 1 };
            // A part of it was moved, or the mappings are changing.
            if errno.0 == libc::EAGAIN && tries < TRIES {
                continue;
            }
            // The program closed all descriptors, and another file may have this number now.
            if is_lost(errno) || !opened.is_ours() {
                self.lose(opened);
            }
            return Err(Stopped { bytes: done, errno });
        }
        Ok(())
    }

    /// Drops the descriptor in a child, which has one thread: it refers to the parent's memory.
    pub(super) fn forget(&self) {
        let opened = self.opened();
        self.lose(opened);
        unless_plain(|| opened.close());
    }

    fn opened(&self) -> Opened {
        // Acquire pairs with the release of the thread that opened it.
        Opened(self.opened.load(Ordering::Acquire))
    }

    /// Drops the descriptor, unless another thread did.
    fn lose(&self, opened: Opened) {
        let (old, new) = (opened.0, Opened::NOTHING.0);
        let _others = self.opened.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed);
    }

    /// Returns the descriptor. Opens one if there is none, or if the number refers to a foreign file by now.
    fn ready(&self) -> Result<Opened, Errno> {
        if !self.is_on() {
            return Err(Errno(libc::ENOSYS));
        }
        let opened = self.opened();
        if opened.is_ours() {
            return Ok(opened);
        }
        if opened != Opened::NOTHING {
            self.lose(opened);
            return Err(Errno(libc::EBADF));
        }
        let opened = self.judge(open())?;
        let (old, new) = (Opened::NOTHING.0, opened.0);
        // Release pairs with the load of `opened`.
        match self.opened.compare_exchange(old, new, Ordering::Release, Ordering::Acquire) {
            Ok(_) => Ok(opened),
            Err(other) => {
                // Another thread was faster.
                opened.close();
                Ok(Opened(other))
            }
        }
    }

    /// Turns moves off if an error is permanent.
    fn judge<T>(&self, result: Result<T, Errno>) -> Result<T, Errno> {
        if let Err(Errno(code)) = result
            && !matches!(
                code,
                libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EINTR | libc::EAGAIN | libc::EBUSY
            )
        {
            self.off.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Returns true if an error shows that the number refers to another file or none.
fn is_lost(errno: Errno) -> bool {
    matches!(errno.0, libc::EBADF | libc::ENOTTY)
}

/// Opens a userfaultfd that moves pages.
#[cold]
fn open() -> Result<Opened, Errno> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    let fd = c_int::try_from(fd).ok().filter(|&fd| fd >= 0);
    let fd = match fd {
        Some(fd) => fd,
        None => open_device(flags)?,
    };
    let fd = raise(fd);
    let mut api = Api { api: API, features: FEATURE_MOVE, ioctls: 0 };
    // SAFETY: the kernel writes `api`.
    let code = unsafe { libc::ioctl(fd, CALL_API, &raw mut api) };
    let failed = match if code == 0 { Opened::new(fd) } else { Err(errno()) } {
        Err(errno) => errno,
        opened => return opened,
    };
    close(fd);
    Err(failed)
}

/// Does the same where the system call is denied and the device is not.
fn open_device(flags: c_int) -> Result<c_int, Errno> {
    let path = c"/dev/userfaultfd";
    // SAFETY: a path that ends with 0.
    let device = unsafe {
        libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC)
    };
    if device < 0 {
        return Err(errno());
    }
    let device = device as c_int;
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::ioctl(device, CALL_NEW, flags) };
    let opened = if fd < 0 { Err(errno()) } else { Ok(fd) };
    close(device);
    opened
}

/// Moves a descriptor that was just opened to a number that programs hardly use, if one is free.
///
/// The kernel opens a file at the lowest free number, which another thread may expect, or replace with a file of its
/// own. If another file has the number by now, it is left alone.
pub fn raise(low: c_int) -> c_int {
    let high = HIGH.into_iter().find_map(|least| {
        // SAFETY: makes a descriptor.
        let high = unsafe { libc::fcntl(low, libc::F_DUPFD_CLOEXEC, least) };
        (high >= 0).then_some(high)
    });
    let Some(high) = high else { return low };
    if mark(low) == mark(high) {
        close(low);
    }
    high
}

/// Closes a descriptor that was opened here.
pub fn close(fd: c_int) {
    // SAFETY: the caller's.
    let _closed = unsafe { libc::syscall(libc::SYS_close, fd) };
}

fn register(fd: c_int, span: Span) -> Result<(), Errno> {
    let mut order = Register { start: span.at as u64, len: span.bytes as u64, mode: MODE_MISSING, ioctls: 0 };
    // SAFETY: the kernel writes `order`; the caller owns the span exclusively, and touches no page of it until it is
    // unregistered.
    let code = unsafe { libc::ioctl(fd, CALL_REGISTER, &raw mut order) };
    if code == 0 { Ok(()) } else { Err(errno()) }
}

/// Ends the registration. If that fails, missing pages could not be faulted in: closing the descriptor ends it then.
fn unregister(fd: c_int, span: Span) -> bool {
    let mut order = Range { start: span.at as u64, len: span.bytes as u64 };
    // SAFETY: the kernel reads `order`.
    unsafe { libc::ioctl(fd, CALL_UNREGISTER, &raw mut order) == 0 }
}

#[cfg(test)]
mod tests {
    use super::super::{Linux, Os};
    use super::*;
    use core::ptr::with_exposed_provenance_mut;

    const PAGE: usize = crate::PAGE_BYTES;

    fn place(at: usize) -> *mut u8 {
        with_exposed_provenance_mut(at + 9)
    }

    fn write(at: usize, byte: u8) {
        // SAFETY: the tests' own mappings.
        unsafe { place(at).write(byte) };
    }

    fn read(at: usize) -> u8 {
        // SAFETY: as before.
        unsafe { place(at).read() }
    }

    /// Returns the mappings that touch a span.
    fn mappings(span: Span) -> usize {
        crate::os::shim::mappings_in(span.at, span.at + span.bytes)
    }

    /// Reserves an arena of 64 MiB, whose first half is usable.
    fn arena(linux: &Linux) -> Span {
        // Unused addresses on both sides, so that no neighbour of the process merges with it.
        let at = linux.reserve(66 << 20).unwrap() + (1 << 20);
        let arena = Span { at, bytes: 64 << 20 };
        // SAFETY: part of it.
        unsafe { linux.commit(Span { bytes: 32 << 20, ..arena }) }.unwrap();
        arena
    }

    #[test]
    fn pages_move_within_one_mapping_and_leave_zeros() {
        let _alone = crate::os::alone();
        let linux = Linux::new();
        let arena = arena(&linux);
        let bytes = 16 * PAGE;
        let to = arena.at + (8 << 20);
        for page in (0..16).step_by(2) {
            write(arena.at + page * PAGE, 1 + page as u8);
        }
        assert_eq!(mappings(arena), 2);
        // SAFETY: the arena of this test.
        let moved = unsafe { linux.move_pages(Span { at: arena.at, bytes }, to) };
        if let Err(stopped) = moved {
            assert!(!linux.can_move() && stopped.bytes == 0, "{stopped:?}");
            eprintln!("this kernel moves no pages ({}): nothing else was tested", stopped.errno);
            return;
        }
        for page in 0..16 {
            let want = if page % 2 == 0 { 1 + page as u8 } else { 0 };
            assert_eq!((read(to + page * PAGE), read(arena.at + page * PAGE)), (want, 0), "{page}");
        }
        assert_eq!(mappings(arena), 2, "used and unused, as before");
        // Pages that the frontier reaches later are in the same mapping.
        // SAFETY: as before.
        unsafe { linux.commit(Span { at: arena.at + (32 << 20), bytes: 16 << 20 }) }.unwrap();
        assert_eq!(mappings(arena), 2);
        // So are freshly mapped ones.
        // SAFETY: as before.
        unsafe { linux.remap(Span { at: to, bytes }, to + (4 << 20)) }.unwrap();
        assert_eq!(read(to + (4 << 20)), 1);
        assert!(mappings(arena) > 2);
        // SAFETY: as before.
        unsafe { linux.renew(Span { at: to + (4 << 20), bytes }) }.unwrap();
        assert_eq!(mappings(arena), 2);
        // Over resident pages.
        (0..16).for_each(|page| write(arena.at + page * PAGE, 40 + page as u8));
        write(to + 5 * PAGE, 99);
        // SAFETY: as before.
        unsafe { linux.move_pages(Span { at: arena.at, bytes }, to) }.unwrap();
        assert!((0..16).all(|page| read(to + page * PAGE) == 40 + page as u8));
        // Beyond the frontier nothing moves, and the error has the number of bytes that did.
        let edge = arena.at + (48 << 20) - 4 * PAGE;
        (0..16).for_each(|page| write(arena.at + page * PAGE, 60));
        // SAFETY: as before.
        let stopped = unsafe { linux.move_pages(Span { at: arena.at, bytes }, edge) }.unwrap_err();
        assert_eq!(stopped.errno, Errno(libc::EINVAL));
        let there = (0..4).filter(|page| read(edge + page * PAGE) == 60).count();
        let here = (0..16).filter(|page| read(arena.at + page * PAGE) == 60).count();
        assert_eq!((there * PAGE, here), (stopped.bytes, 16 - there));
        assert!(linux.can_move(), "a mistake of the caller's turns nothing off");
        // SAFETY: no reference to it exists any more.
        unsafe { linux.unmap(Span { at: arena.at - (1 << 20), bytes: 66 << 20 }) };
    }

    #[test]
    fn a_descriptor_that_is_lost_is_opened_again() {
        let _alone = crate::os::alone();
        let linux = Linux::new();
        let arena = arena(&linux);
        let half = Span { at: arena.at, bytes: 16 * PAGE };
        let to = arena.at + (8 << 20);
        write(arena.at, 5);
        // SAFETY: the arena of this test.
        if unsafe { linux.move_pages(half, to) }.is_err() {
            return;
        }
        assert_eq!(read(to), 5);
        // As in a child of a fork, whose mappings are not registered either.
        linux.forget();
        write(arena.at, 6);
        // SAFETY: as before.
        unsafe { linux.move_pages(half, to) }.unwrap();
        assert_eq!((read(to), mappings(arena)), (6, 2));
        // SAFETY: no reference to it exists any more.
        unsafe { linux.unmap(Span { at: arena.at - (1 << 20), bytes: 66 << 20 }) };
    }

    /// Closes the descriptor and opens the file of `other` by its number, as a program may that closes all descriptors
    /// it did not open.
    fn take_number(opened: Opened, other: c_int) {
        // SAFETY: the tests' own descriptors.
        assert_eq!(unsafe { libc::dup2(other, opened.fd()) }, opened.fd());
    }

    #[test]
    fn what_others_opened_by_its_number_is_left_alone() {
        let _alone = crate::os::alone();
        let linux = Linux::new();
        let arena = arena(&linux);
        let half = Span { at: arena.at, bytes: 16 * PAGE };
        let to = arena.at + (8 << 20);
        let mover = Mover::new();
        let step = || {
            super::super::advice::discard_one(Span { at: to, ..half }).unwrap();
            // SAFETY: the arena of this test.
            unsafe { mover.move_pages(half, to) }
        };
        write(arena.at, 5);
        if step().is_err() {
            return;
        }
        // SAFETY: makes a descriptor.
        let file = unsafe { libc::memfd_create(c"another's".as_ptr(), libc::MFD_CLOEXEC) };
        let theirs = mark(file).unwrap();
        let first = mover.opened();
        take_number(first, file);
        // A child drops the descriptor without closing a foreign file.
        // SAFETY: the child calls the tested functions and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            mover.forget();
            let stays = mark(first.fd()) == Ok(theirs) && mover.opened() == Opened::NOTHING;
            // SAFETY: exits the child.
            unsafe { libc::_exit(i32::from(!stays)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child.
        assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
        // The process detects it, and opens another.
        assert!(step().is_err() && mover.is_on());
        write(arena.at, 6);
        step().unwrap();
        assert_eq!((read(to), mark(first.fd())), (6, Ok(theirs)));
        // Even if the file with that number is a userfaultfd, too.
        let (second, other) = (mover.opened(), open().unwrap());
        take_number(second, other.fd());
        assert!(step().is_err() && !second.is_ours());
        step().unwrap();
        let third = mover.opened();
        assert!(third.is_ours() && third.fd() != second.fd());
        // Nor does the drop close a foreign file.
        take_number(third, file);
        drop(mover);
        assert_eq!(mark(third.fd()), Ok(theirs));
        for fd in [file, first.fd(), second.fd(), third.fd(), other.fd()] {
            // SAFETY: opened here, and not in use.
            unsafe { libc::close(fd) };
        }
        // SAFETY: no reference to it exists any more.
        unsafe { linux.unmap(Span { at: arena.at - (1 << 20), bytes: 66 << 20 }) };
    }
}
