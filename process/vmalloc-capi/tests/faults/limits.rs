//! Limits of a process that are reached while it works, and are lifted later: addresses, data, mappings.
//!
//! A call under a limit does its work or returns an error, and changes nothing then. Afterwards no call fails. The
//! limit of mappings is reached as programs reach it: by other mappings, of which each page is one.

use crate::tracer::{Mark, mark};
use crate::work::{self, PAGE, allocate, free_some, limit, look_and_release, resize, settle};
use crate::{number, program};
use std::ptr::null_mut;
use vmalloc::{Options, Vmalloc};

/// Bytes that a limit leaves.
const LEFT: u64 = 4 << 20;
/// More mappings than a process may have.
const MANY: usize = 200_000;

/// Works under a limit, and without it.
fn under(options: Options, begin: impl FnOnce(), end: impl FnOnce()) {
    let memory = Vmalloc::new(options).unwrap();
    let mut held = Vec::with_capacity(64);
    allocate(&memory, &mut held);
    begin();
    allocate(&memory, &mut held);
    resize(&memory, &mut held);
    free_some(&memory, &mut held);
    look_and_release(&memory, &held);
    allocate(&memory, &mut held);
    end();
    mark(Mark::Calm);
    settle(&memory, held);
}

/// Maps pages whose neighbours differ, until the system grants no more mappings. Returns their place.
fn use_up_mappings() -> *mut libc::c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: maps pages of its own.
    let at = unsafe { libc::mmap(null_mut(), MANY * PAGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let is_granted = |&page: &usize| {
        let place = at.wrapping_byte_add(page * PAGE);
        // SAFETY: a page of that mapping.
        unsafe { libc::mprotect(place, PAGE, libc::PROT_READ) == 0 }
    };
    let denied = (1..MANY).step_by(2).find(|page| !is_granted(page));
    assert!(denied.is_some(), "there is no limit of mappings");
    at
}

/// Runs the program of a limit.
pub(super) fn limited(name: &str, options: Options) {
    match name {
        "addresses" => {
            // Less than there is, so nothing more can be mapped.
            under(options, || limit(libc::RLIMIT_AS, LEFT), || limit(libc::RLIMIT_AS, libc::RLIM_INFINITY));
        }
        "data" => under(
            options,
            || limit(libc::RLIMIT_DATA, LEFT),
            || limit(libc::RLIMIT_DATA, libc::RLIM_INFINITY),
        ),
        _ => {
            let place = std::cell::Cell::new(null_mut());
            let end = || {
                // SAFETY: mapped by `use_up_mappings`, and nothing is in it.
                assert_eq!(unsafe { libc::munmap(place.get(), MANY * PAGE) }, 0);
            };
            under(options, || place.set(use_up_mappings()), end);
        }
    }
}

#[test]
fn whatever_limit_is_reached_memory_is_there_again_once_it_is_lifted() {
    for limit in ["addresses", "data", "mappings"] {
        let mut all = 0;
        for profile in ["plain", "guards", "huge"] {
            let name = format!("{limit} {profile}");
            let output = program(&name).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{name}: {text}{}", String::from_utf8_lossy(&output.stderr));
            let errors = number(&text, "errors ").unwrap();
            println!("faulted: a limit of {limit}, `{profile}`: {errors} errors, and none afterwards");
            all += errors;
        }
        assert!(all > 0, "nothing failed under a limit of {limit}");
    }
}

/// Returns the program of a name of two words.
pub(super) fn named(name: &str) -> Option<(&str, Options)> {
    let (limit, profile) = name.split_once(' ')?;
    Some((limit, work::options(profile)?))
}
