//! The memory policy of an area (`mbind`), for the pages to which the area moves.
//!
//! An area can have several policies, one for each page. Only one that covers the area is preserved. Two pages are
//! compared, a quarter of the area from each end, so that a program may leave out the pages at the ends. The home node
//! of a policy (`set_mempolicy_home_node`) is not preserved.
//! # Source
//! `man 2 get_mempolicy`, `man 2 mbind`; kernel `mm/mempolicy.c`, `include/uapi/linux/mempolicy.h`.

use super::Span;
use super::linux::{done, pointer};
use crate::PAGE_BYTES;
use core::ffi::{c_int, c_long, c_ulong};

/// Requests the policy of an address (`MPOL_F_ADDR`).
const OF_ADDRESS: c_ulong = 2;
/// No policy but that of the thread (`MPOL_DEFAULT`).
const DEFAULT: c_int = 0;
/// The greatest number of nodes of a kernel (`MAX_NUMNODES`): a query for fewer fails.
const NODES: usize = 1024;
/// The kernel reads and writes one node fewer than the requested number.
const NODES_ASKED: c_long = NODES as c_long + 1;

/// A mode with its flags, and a bit for each node.
#[derive(PartialEq, Eq)]
pub(super) struct Policy {
    mode: c_int,
    nodes: [c_ulong; NODES / c_ulong::BITS as usize],
}

/// Returns the policy of the page at an address, unless it is the default one.
pub(super) fn policy_at(at: usize) -> Option<Policy> {
    let mut policy = Policy { mode: DEFAULT, nodes: [0; _] };
    let (mode, nodes) = (&raw mut policy.mode, policy.nodes.as_mut_ptr());
    // SAFETY: the kernel writes a mode, and as many bits as `nodes` has.
    let code =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, mode, nodes, NODES_ASKED, pointer(at), OF_ADDRESS) };
    (code == 0 && policy.mode != DEFAULT).then_some(policy)
}

/// Sets the policy of `from` on `to`. Returns `false` if `from` has none, or more than one, or the system call fails.
///
/// # Safety
/// The caller owns `to` exclusively.
pub(super) unsafe fn keep(from: Span, to: Span) -> bool {
    let pages = from.bytes.div_ceil(PAGE_BYTES);
    let [low, high] = [pages / 4, pages - 1 - pages / 4].map(|page| policy_at(from.at + page * PAGE_BYTES));
    if low != high {
        return false;
    }
    let Some(Policy { mode, nodes }) = low else { return false };
    let (mode, flags) = (c_long::from(mode), 0 as c_ulong);
    // SAFETY: reads `nodes`; the policy is for pages that the caller owns exclusively.
    let code = unsafe {
        libc::syscall(libc::SYS_mbind, pointer(to.at), to.bytes, mode, nodes.as_ptr(), NODES_ASKED, flags)
    };
    done(code as c_int).is_ok()
}
