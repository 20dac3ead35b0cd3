//! Reads of this process's memory that do not fault, even if the memory is unmapped.
//!
//! # Theory
//! A load from an unmapped address ends the process. So the system copies the bytes, and returns how many it copied:
//! `process_vm_readv` on the own process. If that fails (a seccomp profile), the copy goes through a pipe, to which a
//! write fails where a load would. Bytes that cannot be read are zeros, as in Linux's `vread_iter`.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `vread_iter`, `aligned_vread_iter`); `man 2 process_vm_readv`.

use crate::PAGE_BYTES;
use crate::os::{Errno, errno, unless_plain};
#[cfg(not(miri))]
use crate::os::{pointer, process_id};
use core::ffi::{c_int, c_long};
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicBool, Ordering};

/// The methods of copying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Method {
    Direct,
    Pipe,
}

/// Set once the direct method has failed. Protocol PR-ONCE.
static DENIED: AtomicBool = AtomicBool::new(false);

/// Copies bytes from an address of this process, with zeros for those that cannot be read. Returns the number of bytes
/// read: none where only plain calls are made ([`plain_calls_only`](crate::os::plain_calls_only)).
pub fn peek(from: usize, to: &mut [u8]) -> usize {
    if let Some(count) = unless_plain(|| peek_now(from, to)) {
        return count;
    }
    to.fill(0);
    0
}

fn peek_now(from: usize, to: &mut [u8]) -> usize {
    if to.is_empty() {
        return 0;
    }
    if !DENIED.load(Ordering::Relaxed) {
        match peek_by(Method::Direct, from, to) {
            Some(count) => return count,
            None => DENIED.store(true, Ordering::Relaxed),
        }
    }
    peek_by(Method::Pipe, from, to).unwrap_or_else(|| {
        to.fill(0);
        0
    })
}

/// Copies by one method. Returns `None` if the system denies it.
fn peek_by(way: Method, from: usize, to: &mut [u8]) -> Option<usize> {
    let pipe = match way {
        Method::Direct => None,
        Method::Pipe => Some(Pipe::new()?),
    };
    let (mut at, mut count) = (0, 0);
    while at < to.len() {
        let part = &mut to[at..];
        let place = from.wrapping_add(at);
        let page_end = (PAGE_BYTES - place % PAGE_BYTES).min(part.len());
        let got = match &pipe {
            None => direct(place, part)?,
            Some(pipe) => pipe.through(place, &mut part[..page_end])?,
        };
        (at, count) = (at + got, count + got);
        // The following bytes cannot be read, up to the end of their page.
        let rest = &mut to[at..];
        if !rest.is_empty() && (pipe.is_none() || got < page_end) {
            let place = from.wrapping_add(at);
            let gap = (PAGE_BYTES - place % PAGE_BYTES).min(rest.len());
            rest[..gap].fill(0);
            at += gap;
        }
    }
    Some(count)
}

/// Copies the readable bytes at the start of the range, and returns their number.
#[cfg(miri)]
fn direct(from: usize, to: &mut [u8]) -> Option<usize> {
    Some(crate::os::read_memory(from, to))
}

/// Copies the readable bytes at the start of the range, and returns their number.
#[cfg(not(miri))]
fn direct(from: usize, to: &mut [u8]) -> Option<usize> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: pointer(from), iov_len: to.len() };
    let me = process_id() as libc::pid_t;
    // SAFETY: writes to `to` alone; the system checks the addresses that it reads.
    let got = unsafe { libc::process_vm_readv(me, &raw const local, 1, &raw const remote, 1, 0) };
    counted(got as c_long)
}

/// Returns the bytes that a call copied: 0 at a bad address, `None` if the call failed otherwise.
fn counted(got: c_long) -> Option<usize> {
    match usize::try_from(got) {
        Ok(got) => Some(got),
        Err(_) => (errno() == Errno(libc::EFAULT)).then_some(0),
    }
}

struct Pipe {
    out: c_int,
    into: c_int,
}

impl Pipe {
    fn new() -> Option<Self> {
        let mut ends = [0; 2];
        // SAFETY: writes two numbers.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
        (made == 0).then_some(Self { out: ends[0], into: ends[1] })
    }

    /// Copies the readable bytes at the start of the range, and returns their number. The range is at most a page, for
    /// which a pipe has room.
    fn through(&self, from: usize, to: &mut [u8]) -> Option<usize> {
        let place = with_exposed_provenance::<core::ffi::c_void>(from);
        // SAFETY: the system checks the addresses that it reads.
        let put = counted(unsafe { libc::syscall(libc::SYS_write, self.into, place, to.len()) })?;
        // SAFETY: writes at most `put` bytes, which `to` has.
        let got = unsafe { libc::syscall(libc::SYS_read, self.out, to.as_mut_ptr(), put) };
        if put == 0 { Some(0) } else { counted(got) }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        for end in [self.out, self.into] {
            // SAFETY: our own descriptor, which is not used any more.
            let _closed = unsafe { libc::syscall(libc::SYS_close, end) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{Linux, Os, Span};
    use core::ptr::with_exposed_provenance_mut;

    #[test]
    fn bytes_that_cannot_be_read_are_zeros_by_either_way() {
        let linux = Linux::new();
        let base = linux.map(5 * PAGE_BYTES).unwrap();
        // Two pages of sevens, an unmapped one, two pages of sevens.
        // SAFETY: mapped just above.
        unsafe { with_exposed_provenance_mut::<u8>(base).write_bytes(7, 5 * PAGE_BYTES) };
        // SAFETY: no reference to it exists.
        unsafe { linux.unmap(Span { at: base + 2 * PAGE_BYTES, bytes: PAGE_BYTES }) };
        // Miri takes a write of unreadable memory to a pipe for an access.
        let ways = if cfg!(miri) { &[Method::Direct][..] } else { &[Method::Direct, Method::Pipe] };
        for &way in ways {
            let cases = [(1, 2), (0, 5), (1, 4), (2, 1), (0, 2)];
            let cases = cases.map(|(from, len)| (from * PAGE_BYTES, len * PAGE_BYTES));
            for (from, len) in cases.into_iter().take(if cfg!(miri) { 1 } else { cases.len() }) {
                for (from, len) in [(from, len), (from + 5, len - 9)] {
                    let mut to = vec![1u8; len];
                    let want: Vec<u8> =
                        (from..from + len).map(|at| if at / PAGE_BYTES == 2 { 0 } else { 7 }).collect();
                    let count = want.iter().filter(|&&byte| byte == 7).count();
                    assert_eq!(
                        peek_by(way, base + from, &mut to),
                        Some(count),
                        "{way:?}, {len} bytes from {from}"
                    );
                    assert!(to == want, "{way:?}, {len} bytes from {from}");
                }
            }
        }
        assert_eq!(peek(8, &mut [9; 3]), 0);
        assert_eq!(peek(usize::MAX - 1, &mut [9; 1]), 0);
        // SAFETY: no reference to it remains.
        unsafe { linux.unmap(Span { at: base, bytes: 5 * PAGE_BYTES }) };
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "tests beside it would write unreadable memory to a pipe, which Miri takes for an access"
    )]
    fn a_call_that_is_denied_is_replaced_by_the_other() {
        DENIED.store(true, Ordering::Relaxed);
        let from = [3u8; 100];
        let mut to = [0; 100];
        assert_eq!(peek((&raw const from).expose_provenance(), &mut to), 100);
        assert_eq!(to, from);
    }
}
