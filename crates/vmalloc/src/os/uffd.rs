//! Moving pages to other addresses and leaving the mappings as they are: `userfaultfd` and its call `UFFDIO_MOVE`.
//!
//! # Theory
//! ```text
//!   |== pages ==|                |  nothing  |        one mapping before, the same mapping after:
//!   |  nothing  |                |== pages ==|        64 ns a page, a microsecond for a huge page
//! ```
//! `mremap` moves a mapping, and each move makes two more of them for good. `UFFDIO_MOVE` moves
//! pages. It asks that the destination mapping be registered with a userfaultfd. So the destination
//! pages are registered for the time of the move and no longer. A registered mapping has no pages
//! of several sizes (mTHP), does not merge with others, and cannot be registered by the program
//! itself. The pages are their caller's alone meanwhile, so no fault is ever reported, and no
//! thread has to read the descriptor.
//!
//! Nothing is opened before the first move. If that fails (a kernel before 6.8, a seccomp profile),
//! it is not tried again.
//!
//! A child of a fork has a copy of the descriptor that belongs to its parent's memory: [`Mover::forget`] closes it
//! there, and the next move begins anew.
//!
//! The descriptor has a high number: programs that close one of the lowest three expect to get it when they open
//! something.
//!
//! Others may close all descriptors of a process, and open something else by the same number. A userfaultfd has an
//! inode of its own since Linux 5.13, and those that move pages are younger: its **mark** is kept beside the number.
//! Whoever closes the descriptor, moves pages with it compares the two first, and leaves alone what is another's.
//! # Source
//! `man 2 userfaultfd`, `man 2 ioctl_userfaultfd`; kernel `include/uapi/linux/userfaultfd.h` for the layouts.

use super::linux::{done, errno};
use super::plain::is_plain;
use super::{Errno, Span, Stopped};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// `UFFD_USER_MODE_ONLY`: whoever has no privilege may have this much.
const USER_MODE_ONLY: c_int = 1;
/// `UFFD_API`, and the feature `UFFD_FEATURE_MOVE`.
const API: u64 = 0xaa;
const FEATURE_MOVE: u64 = 1 << 16;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MODE_MISSING: u64 = 1;
/// Descriptors that programs hardly count on, the best first.
pub(super) const HIGH: [c_int; 4] = [900, 200, 60, 10];
/// `UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES`.
const ALLOW_HOLES: u64 = 1 << 1;
/// Times that a call is made again that moved nothing and returned "again".
const TRIES: u32 = 64;

/// The number of a call by which both sides tell each other something: `_IOWR(0xaa, number, T)`.
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

/// A descriptor by its number, and below that the mark of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Opened(u64);

impl Opened {
    /// Nobody opened it yet. No descriptor has this number.
    const NOTHING: Self = Self(u64::MAX);

    fn new(fd: c_int) -> Result<Self, Errno> {
        Ok(Self((fd as u32 as u64) << 32 | u64::from(mark(fd)?)))
    }

    fn fd(self) -> c_int {
        (self.0 >> 32) as c_int
    }

    /// The same file is behind the number still.
    fn is_ours(self) -> bool {
        self != Self::NOTHING && !is_plain() && Self::new(self.fd()) == Ok(self)
    }

    /// Closes it, unless somebody did.
    fn close(self) {
        if self.is_ours() {
            // SAFETY: opened here, and used by nobody.
            let _closed = unsafe { libc::close(self.fd()) };
        }
    }
}

/// Returns a number that tells the file of a descriptor from others. May be called in a child of a
/// fork.
pub(super) fn mark(fd: c_int) -> Result<u32, Errno> {
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: writes what is known of a file.
    done(unsafe { libc::fstat(fd, about.as_mut_ptr()) })?;
    // SAFETY: all zeros is a value, and so is what was written.
    let about = unsafe { about.assume_init() };
    let (device, inode): (u64, u64) = (about.st_dev, about.st_ino);
    // Odd, so that no two inodes below 2^32 of a device are the same.
    Ok(device.wrapping_mul(0x9e37_79b9).wrapping_add(inode) as u32)
}

/// A userfaultfd, once somebody needs it.
pub(super) struct Mover {
    // Atomic.
    /// An [`Opened`]. Of all who open one, one changes it; it becomes nothing when it is lost.
    opened: AtomicU64,
    /// The system has no such thing, or refuses it.
    off: AtomicBool,
}

impl Mover {
    pub(super) const fn new() -> Self {
        Self { opened: AtomicU64::new(Opened::NOTHING.0), off: AtomicBool::new(false) }
    }

    /// Nobody has refused it yet.
    pub(super) fn is_on(&self) -> bool {
        !self.off.load(Ordering::Relaxed) && !is_plain()
    }

    /// Moves the pages of `from` to `to`, where none may be.
    ///
    /// # Safety
    /// Both are of one reservation; nobody else refers to either.
    pub(super) unsafe fn move_pages(&self, from: Span, to: usize) -> Result<(), Stopped> {
        let nothing = |errno| Stopped { bytes: 0, errno };
        let opened = self.ready().map_err(nothing)?;
        if from.bytes == 0 {
            return Ok(());
        }
        let target = Span { at: to, ..from };
        // Refused, it is so for this target: the program may have one of its own there.
        if let Err(errno) = register(opened.fd(), target) {
            if is_lost(errno) {
                self.lose(opened);
            }
            return Err(nothing(errno));
        }
        // SAFETY: this function's contract.
        let moved = unsafe { self.move_registered(opened, from, to) };
        if !unregister(opened.fd(), target) {
            // Whoever touched a page that is missing there would wait for ever: without the descriptor nothing is
            // registered.
            self.lose(opened);
            opened.close();
        }
        moved
    }

    /// The same where `to` is registered.
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
            // Part of it was moved, or the mappings are changing.
            if errno.0 == libc::EAGAIN && tries < TRIES {
                continue;
            }
            // Somebody closed all descriptors, and may have another file by this number now.
            if is_lost(errno) || !opened.is_ours() {
                self.lose(opened);
            }
            return Err(Stopped { bytes: done, errno });
        }
        Ok(())
    }

    /// Begins anew in a child, which has one thread: the descriptor is its parent's.
    pub(super) fn forget(&self) {
        let opened = self.opened();
        self.lose(opened);
        opened.close();
    }

    fn opened(&self) -> Opened {
        // Acquire pairs with the release of whoever opened it.
        Opened(self.opened.load(Ordering::Acquire))
    }

    /// Begins anew, unless another thread did.
    fn lose(&self, opened: Opened) {
        let (old, new) = (opened.0, Opened::NOTHING.0);
        let _others = self.opened.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed);
    }

    /// The descriptor, opened now if nobody has, or if it is another's by now.
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

    /// Turns it off if a refusal is one for good.
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

/// Somebody closed all descriptors, and may have another file by this number now.
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
    let refused = match if code == 0 { Opened::new(fd) } else { Err(errno()) } {
        Err(errno) => errno,
        opened => return opened,
    };
    close(fd);
    Err(refused)
}

/// The same where the system call is not allowed and the device is.
fn open_device(flags: c_int) -> Result<c_int, Errno> {
    let path = c"/dev/userfaultfd";
    // SAFETY: a path that ends with 0.
    let device = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if device < 0 {
        return Err(errno());
    }
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::ioctl(device, CALL_NEW, flags) };
    let opened = if fd < 0 { Err(errno()) } else { Ok(fd) };
    close(device);
    opened
}

/// Moves a descriptor that was opened a moment ago to a number that programs hardly use, if one is free.
///
/// The kernel opens a file at the lowest free number, which another thread may expect, or give to a file of its own. If
/// another file has the number by now, it is left alone.
pub(super) fn raise(low: c_int) -> c_int {
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
///
/// By the number of the call: the C library's function is a cancellation point, and a free is none.
pub(super) fn close(fd: c_int) {
    // SAFETY: the caller's.
    let _closed = unsafe { libc::syscall(libc::SYS_close, fd) };
}

fn register(fd: c_int, span: Span) -> Result<(), Errno> {
    let mut order = Register { start: span.at as u64, len: span.bytes as u64, mode: MODE_MISSING, ioctls: 0 };
    // SAFETY: the kernel writes `order`; the caller has the span to himself, and touches no page of it until it is
    // unregistered.
    let code = unsafe { libc::ioctl(fd, CALL_REGISTER, &raw mut order) };
    if code == 0 { Ok(()) } else { Err(errno()) }
}

/// Takes the registration back. Where that is refused, pages that are missing could not be faulted in: closing the
/// descriptor ends that.
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

    /// Mappings that touch a span.
    fn mappings(span: Span) -> usize {
        crate::os::shim::mappings_in(span.at, span.at + span.bytes)
    }

    /// An arena of 64 MiB, of which the first half can be used.
    fn arena(linux: &Linux) -> Span {
        // As much again, so that no neighbour of the process merges with it.
        let at = linux.reserve(66 << 20).unwrap() + (1 << 20);
        let arena = Span { at, bytes: 64 << 20 };
        // SAFETY: part of it.
        unsafe { linux.commit(Span { bytes: 32 << 20, ..arena }) }.unwrap();
        arena
    }

    #[test]
    fn pages_move_within_one_mapping_and_leave_zeros() {
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
        // What the frontier reaches later is one mapping with the rest.
        // SAFETY: as before.
        unsafe { linux.commit(Span { at: arena.at + (32 << 20), bytes: 16 << 20 }) }.unwrap();
        assert_eq!(mappings(arena), 2);
        // What was mapped anew, too.
        // SAFETY: as before.
        unsafe { linux.remap(Span { at: to, bytes }, to + (4 << 20)) }.unwrap();
        assert_eq!(read(to + (4 << 20)), 1);
        assert!(mappings(arena) > 2);
        // SAFETY: as before.
        unsafe { linux.renew(Span { at: to + (4 << 20), bytes }) }.unwrap();
        assert_eq!(mappings(arena), 2);
        // Over pages that are there.
        (0..16).for_each(|page| write(arena.at + page * PAGE, 40 + page as u8));
        write(to + 5 * PAGE, 99);
        // SAFETY: as before.
        unsafe { linux.move_pages(Span { at: arena.at, bytes }, to) }.unwrap();
        assert!((0..16).all(|page| read(to + page * PAGE) == 40 + page as u8));
        // Beyond the frontier nothing moves, and it says how much did.
        let edge = arena.at + (48 << 20) - 4 * PAGE;
        (0..16).for_each(|page| write(arena.at + page * PAGE, 60));
        // SAFETY: as before.
        let stopped = unsafe { linux.move_pages(Span { at: arena.at, bytes }, edge) }.unwrap_err();
        assert_eq!(stopped.errno, Errno(libc::EINVAL));
        let there = (0..4).filter(|page| read(edge + page * PAGE) == 60).count();
        let here = (0..16).filter(|page| read(arena.at + page * PAGE) == 60).count();
        assert_eq!((there * PAGE, here), (stopped.bytes, 16 - there));
        assert!(linux.can_move(), "a mistake of the caller's turns nothing off");
        // SAFETY: nobody refers to it any more.
        unsafe { linux.unmap(Span { at: arena.at - (1 << 20), bytes: 66 << 20 }) };
    }

    #[test]
    fn a_descriptor_that_is_lost_is_opened_again() {
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
        // As a child of a fork does, whose mappings are not registered either.
        linux.forget();
        write(arena.at, 6);
        // SAFETY: as before.
        unsafe { linux.move_pages(half, to) }.unwrap();
        assert_eq!((read(to), mappings(arena)), (6, 2));
        // SAFETY: nobody refers to it any more.
        unsafe { linux.unmap(Span { at: arena.at - (1 << 20), bytes: 66 << 20 }) };
    }

    /// Closes the descriptor and opens the file of `other` by its number, as somebody does who closes all that are not
    /// his own.
    fn take_number(opened: Opened, other: c_int) {
        // SAFETY: the tests' own descriptors.
        assert_eq!(unsafe { libc::dup2(other, opened.fd()) }, opened.fd());
    }

    #[test]
    fn what_others_opened_by_its_number_is_left_alone() {
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
        // A child forgets what it has, and closes nothing.
        // SAFETY: the child calls what is under test and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            mover.forget();
            let stays = mark(first.fd()) == Ok(theirs) && mover.opened() == Opened::NOTHING;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!stays)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child.
        assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
        // The process finds out, and opens another.
        assert!(step().is_err() && mover.is_on());
        write(arena.at, 6);
        step().unwrap();
        assert_eq!((read(to), mark(first.fd())), (6, Ok(theirs)));
        // Even if what has the number now is a userfaultfd, too.
        let (second, other) = (mover.opened(), open().unwrap());
        take_number(second, other.fd());
        assert!(step().is_err() && !second.is_ours());
        step().unwrap();
        let third = mover.opened();
        assert!(third.is_ours() && third.fd() != second.fd());
        // Nor does the end close what is another's.
        take_number(third, file);
        drop(mover);
        assert_eq!(mark(third.fd()), Ok(theirs));
        for fd in [file, first.fd(), second.fd(), third.fd(), other.fd()] {
            // SAFETY: opened here, and nobody uses them.
            unsafe { libc::close(fd) };
        }
        // SAFETY: nobody refers to it any more.
        unsafe { linux.unmap(Span { at: arena.at - (1 << 20), bytes: 66 << 20 }) };
    }
}
