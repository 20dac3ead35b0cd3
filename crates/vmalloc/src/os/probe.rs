//! Which ways the allocator takes on this machine, found out as it does itself: by taking them, with some pages of our
//! own.
//!
//! Nothing of an allocator that is there is touched, and what is mapped here is unmapped.

use super::linux::Linux;
use super::{Errno, Huge, Os, Span, Stopped};
use crate::PAGE_BYTES;
use core::ptr::with_exposed_provenance_mut;

/// The answer of a system call: nothing, or the reason of its failure.
pub type Answer = Result<(), Errno>;

/// The ways that the library takes on this machine. See [`machine`].
///
/// Each answer is that of the system at the time of the question; a filter of system calls may refuse later what it
/// granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// CPUs that there can be, as numbers below this.
    pub cpus: usize,
    /// libc registered an area for restartable sequences, so that the CPU is read without a call, and per-CPU data need
    /// no atomic operation.
    pub rseq: bool,
    /// The kernel keeps concurrency ids there (`mm_cid`, Linux 6.3): per-CPU data for as many CPUs as the process uses
    /// at once.
    pub concurrency_ids: bool,
    /// `membarrier` can end the sections of other threads: per-CPU references and counters are exact when they are
    /// asked.
    pub ends_sections: bool,
    /// Address space can be reserved and made usable bit by bit. Without it there is no allocator.
    pub commit: Answer,
    /// Pages can be moved by `UFFDIO_MOVE` (Linux 6.8), so that areas grow without a copy and without more mappings.
    pub move_pages: Answer,
    /// Pages can be moved by `mremap`, each move at the price of mappings.
    pub remap: Answer,
    /// Pages can be made to fault by `MADV_GUARD_INSTALL` (Linux 6.13): guards that are no mappings of their own.
    pub guard: Answer,
    /// Huge pages can be asked for, span by span.
    pub advise: Answer,
    /// Pages can be given back.
    pub discard: Answer,
    /// Runs of pages given back by one call (`process_madvise`, Linux 5.10); 1 if each takes one.
    pub discard_batch: usize,
    /// Bytes of address space that the process may have, if they are limited (`RLIMIT_AS`).
    pub address_limit: Option<usize>,
    /// Mappings that the process may have (`vm.max_map_count`).
    pub mappings_max: u64,
}

/// Finds out which ways the library takes on this machine.
///
/// Maps 64 pages for it and unmaps them. Cost: some fifteen system calls. Locks: none.
///
/// # Errors
/// If not even address space can be reserved.
///
/// ```
/// let machine = vmalloc::machine()?;
/// assert!(machine.cpus >= 1);
/// println!("guards that are no mappings: {}", machine.guard.is_ok());
/// # Ok::<(), vmalloc::Errno>(())
/// ```
pub fn machine() -> Result<Machine, Errno> {
    let linux = Linux::new();
    let machine = probe(&linux)?;
    Ok(Machine { discard_batch: linux.advisor.batch(), ..machine })
}

/// Pages of the reservation, and how far apart those lie that are tried.
const PAGES: usize = 64;
const STEP: usize = 8;

/// Takes each way once.
fn probe(os: &impl Os) -> Result<Machine, Errno> {
    let within = Span { at: os.reserve(PAGES * PAGE_BYTES)?, bytes: PAGES * PAGE_BYTES };
    // SAFETY: reserved above, by us alone.
    let commit = unsafe { os.commit(within) };
    let mut machine = Machine {
        cpus: os.cpus(),
        rseq: crate::percpu::has_sections(),
        concurrency_ids: crate::percpu::has_concurrency_ids(),
        ends_sections: crate::percpu::can_end_sections(),
        commit,
        move_pages: commit,
        remap: commit,
        guard: commit,
        advise: commit,
        discard: commit,
        discard_batch: 1,
        address_limit: os.address_limit(),
        mappings_max: os.mappings_max(),
    };
    if commit.is_ok() {
        take(os, within, &mut machine);
    }
    // SAFETY: reserved above, and nobody refers to it.
    unsafe { os.unmap(within) };
    Ok(machine)
}

/// Takes the ways that pages need, each with pages that no other is tried with.
fn take(os: &impl Os, within: Span, machine: &mut Machine) {
    let page = |step: usize| Span { at: within.at + step * STEP * PAGE_BYTES, bytes: PAGE_BYTES };
    for step in 0..7 {
        touch(page(step));
    }
    // SAFETY: committed pages that only we know, apart, and in the reservation. What was there to move to was never
    // touched.
    let moved = unsafe { os.move_pages(page(0), page(0).at + PAGE_BYTES) };
    machine.move_pages = moved.map_err(|Stopped { errno, .. }| errno);
    // SAFETY: the same.
    machine.remap = unsafe { os.remap(page(1), page(1).at + PAGE_BYTES) };
    // SAFETY: committed pages that only we know.
    machine.guard = unsafe { os.guard(page(2)) };
    if machine.guard.is_ok() {
        // SAFETY: the same.
        machine.guard = unsafe { os.unguard(page(2)) };
    }
    // SAFETY: part of the reservation.
    machine.advise = unsafe { os.advise(page(3), Huge::Yes) };
    // SAFETY: committed pages that only we know.
    machine.discard = unsafe { os.discard(&[page(5), page(6)]) }.map_err(|(_, errno)| errno);
}

/// Makes a page be there.
fn touch(page: Span) {
    // SAFETY: a committed page of our own.
    unsafe { with_exposed_provenance_mut::<u8>(page.at).write_volatile(1) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::Call;
    use crate::os::shim::Shim;

    /// Probes a machine on which `calls` fail.
    fn without(calls: &[Call]) -> Result<Machine, Errno> {
        let shim = Shim::default();
        shim.fail_with(Errno(libc::EPERM));
        for &call in calls {
            shim.fail(call, 0);
        }
        let machine = probe(&shim);
        assert_eq!(shim.mapped(), 0, "what was mapped is unmapped");
        machine
    }

    #[test]
    fn each_refused_call_is_told_and_no_other() {
        let all = without(&[]).unwrap();
        assert_eq!((all.commit, all.discard), (Ok(()), Ok(())));
        let refused = Err(Errno(libc::EPERM));
        for (call, of) in [
            (Call::Move, (|machine| machine.move_pages) as fn(&mut Machine) -> Answer),
            (Call::Remap, |machine| machine.remap),
            (Call::Guard, |machine| machine.guard),
            (Call::Unguard, |machine| machine.guard),
            (Call::Advise, |machine| machine.advise),
            (Call::Discard, |machine| machine.discard),
        ] {
            let mut one = without(&[call]).unwrap();
            // A kernel without guards never comes to remove one.
            if call != Call::Unguard || all.guard.is_ok() {
                assert_eq!(of(&mut one), refused, "{call:?}");
            }
            let same = |machine: Machine| {
                [machine.move_pages, machine.remap, machine.guard, machine.advise, machine.discard]
            };
            let differ = same(one).iter().zip(same(all)).filter(|(one, all)| **one != *all).count();
            assert!(differ <= 1, "{call:?}: {one:?}");
        }
    }

    #[test]
    fn without_commit_no_page_is_touched_and_without_reservation_nothing_is_known() {
        let none = without(&[Call::Commit]).unwrap();
        let refused = Err(Errno(libc::EPERM));
        assert_eq!([none.commit, none.move_pages, none.guard, none.discard], [refused; 4]);
        assert_eq!(without(&[Call::Reserve]), Err(Errno(libc::EPERM)));
    }

    #[test]
    fn limits_are_told() {
        let shim = Shim::default();
        shim.limit_addresses(Some(1 << 40));
        shim.limit_mappings(1234);
        let machine = probe(&shim).unwrap();
        assert_eq!((machine.address_limit, machine.mappings_max), (Some(1 << 40), 1234));
    }

    #[test]
    fn the_machine_answers_as_the_allocator_finds_it() {
        let machine = machine().unwrap();
        let linux = Linux::new();
        assert_eq!(machine.guard.is_ok(), linux.can_guard());
        assert_eq!((machine.cpus, machine.mappings_max), (linux.cpus(), linux.mappings_max()));
        assert!(machine.discard_batch == 1 || machine.discard_batch == 64);
        assert!(machine.rseq || !machine.concurrency_ids);
    }
}
