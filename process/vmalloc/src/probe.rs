//! Detection of the system's features: each is tried as an allocator uses it, on pages mapped for the test.
//!
//! No existing allocator is affected, and all pages mapped here are unmapped.

use crate::PAGE_BYTES;
use core::ptr::with_exposed_provenance_mut;
use vmalloc_os::os::{
    Errno, Huge, Linux, Os, Span, Stopped, can_end_sections, has_concurrency_ids, has_sections,
};

/// The result of a system call: nothing, or the cause of its failure.
pub type Answer = Result<(), Errno>;

/// The features of this system that the library uses. See [`machine`].
///
/// Each answer is that of the system at the time of the call; a seccomp filter may deny later what worked then.
/// granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// Number of possible CPUs: CPU numbers are below this.
    pub cpus: usize,
    /// True if libc registered an area for restartable sequences: the CPU is read without a call, and per-CPU data need
    /// no atomic operation.
    pub rseq: bool,
    /// True if the kernel provides concurrency ids (`mm_cid`, Linux 6.3): per-CPU data have as many units as the
    /// process uses CPUs at once.
    pub concurrency_ids: bool,
    /// True if `membarrier` can end the sections of other threads: per-CPU references and counters can be read exactly.
    pub ends_sections: bool,
    /// Address space can be reserved and made usable in steps. Without it no allocator can be made.
    pub commit: Answer,
    /// Pages can be moved by `UFFDIO_MOVE` (Linux 6.8), so that areas grow without a copy and without more mappings.
    pub move_pages: Answer,
    /// Pages can be moved by `mremap`, where each move adds mappings.
    pub remap: Answer,
    /// Pages can be made to fault by `MADV_GUARD_INSTALL` (Linux 6.13): guards that are no mappings of their own.
    pub guard: Answer,
    /// Huge pages can be requested, span by span.
    pub advise: Answer,
    /// Pages can be released.
    pub discard: Answer,
    /// Runs of pages that one call releases (`process_madvise`, Linux 5.10); 1 if each takes a call.
    pub discard_batch: usize,
    /// The limit of address space in bytes, if there is one (`RLIMIT_AS`).
    pub address_limit: Option<usize>,
    /// The greatest number of mappings of the process (`vm.max_map_count`).
    pub mappings_max: u64,
}

/// Detects the features of this system that the library uses.
///
/// Maps 64 pages for it and unmaps them. Cost: some fifteen system calls. Locks: none.
///
/// # Errors
/// If no address space can be reserved.
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
    Ok(Machine { discard_batch: linux.discard_batch(), ..machine })
}

/// Pages of the reservation, and the distance between those that are used.
const PAGES: usize = 64;
const STEP: usize = 8;

/// Tries each feature once.
fn probe(os: &impl Os) -> Result<Machine, Errno> {
    let within = Span { at: os.reserve(PAGES * PAGE_BYTES)?, bytes: PAGES * PAGE_BYTES };
    // SAFETY: reserved above, and known to this function alone.
    let commit = unsafe { os.commit(within) };
    let mut machine = Machine {
        cpus: os.cpus(),
        rseq: has_sections(),
        concurrency_ids: has_concurrency_ids(),
        ends_sections: can_end_sections(),
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
    // SAFETY: reserved above, and no reference to it exists.
    unsafe { os.unmap(within) };
    Ok(machine)
}

/// Tries the features that need pages, each on pages of its own.
fn take(os: &impl Os, within: Span, machine: &mut Machine) {
    let page = |step: usize| Span { at: within.at + step * STEP * PAGE_BYTES, bytes: PAGE_BYTES };
    for step in 0..7 {
        touch(page(step));
    }
    // SAFETY: committed pages that no other code knows, disjoint, and in the reservation. The destination was never
    // touched.
    let moved = unsafe { os.move_pages(page(0), page(0).at + PAGE_BYTES) };
    machine.move_pages = moved.map_err(|Stopped { errno, .. }| errno);
    // SAFETY: the same.
    machine.remap = unsafe { os.remap(page(1), page(1).at + PAGE_BYTES) };
    // SAFETY: committed pages that no other code knows.
    machine.guard = unsafe { os.guard(page(2)) };
    if machine.guard.is_ok() {
        // SAFETY: the same.
        machine.guard = unsafe { os.unguard(page(2)) };
    }
    // SAFETY: part of the reservation.
    machine.advise = unsafe { os.advise(page(3), Huge::Yes) };
    // SAFETY: committed pages that no other code knows.
    machine.discard = unsafe { os.discard(&[page(5), page(6)]) }.map_err(|(_, errno)| errno);
}

/// Makes a page resident.
fn touch(page: Span) {
    // SAFETY: a committed page of this test.
    unsafe { with_exposed_provenance_mut::<u8>(page.at).write_volatile(1) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use vmalloc_os::os::Call;
    use vmalloc_os::os::shim::Shim;

    /// Probes a system on which `calls` fail.
    fn without(calls: &[Call]) -> Result<Machine, Errno> {
        let shim = Shim::default();
        shim.fail_with(Errno(libc::EPERM));
        for &call in calls {
            shim.fail(call, 0);
        }
        let machine = probe(&shim);
        assert_eq!(shim.mapped(), 0, "all pages are unmapped");
        machine
    }

    #[test]
    fn each_failed_call_is_reported_and_no_other() {
        let all = without(&[]).unwrap();
        assert_eq!((all.commit, all.discard), (Ok(()), Ok(())));
        let failed = Err(Errno(libc::EPERM));
        for (call, of) in [
            (Call::Move, (|machine| machine.move_pages) as fn(&mut Machine) -> Answer),
            (Call::Remap, |machine| machine.remap),
            (Call::Guard, |machine| machine.guard),
            (Call::Unguard, |machine| machine.guard),
            (Call::Advise, |machine| machine.advise),
            (Call::Discard, |machine| machine.discard),
        ] {
            let mut one = without(&[call]).unwrap();
            // On a kernel without guards, none is removed.
            if call != Call::Unguard || all.guard.is_ok() {
                assert_eq!(of(&mut one), failed, "{call:?}");
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
        let failed = Err(Errno(libc::EPERM));
        assert_eq!([none.commit, none.move_pages, none.guard, none.discard], [failed; 4]);
        assert_eq!(without(&[Call::Reserve]), Err(Errno(libc::EPERM)));
    }

    #[test]
    fn limits_are_reported() {
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
