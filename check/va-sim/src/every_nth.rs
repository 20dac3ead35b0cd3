//! Every n-th request for memory fails, in every call that makes some: once, three times, and for ever.
//!
//! # Theory
//! A [`Subject`] is a structure in a state that a test prepared, on a machine that fails on demand. A call is made on
//! fresh ones, with the first request failing, with the second, and so on until none fails. So each request of the call
//! fails once by itself, once with the two after it, and once with all after it.
//!
//! ```text
//!   fresh, all seen --> the call --+-- an answer: the one that it has when nothing fails --------+
//!                                  \-- an error of missing memory: all is as it was seen         |
//!                                       --> the same call, with memory: the same answer ---------+
//!                                                                                                |
//!                               all is freed without memory, and the machine has all back <------+
//! ```

use crate::machine::SimMachine;
use std::fmt::Debug;

/// A structure that calls change, on a machine that fails on demand. It is dropped where it ends.
pub trait Subject {
    /// The state that callers can see, which a call that fails does not change.
    type Seen: PartialEq + Debug;
    /// The error of its calls.
    type Error: Debug;
    /// The kinds of requests that can fail, by name.
    const KINDS: &'static [&'static str];

    /// Validates the structure, and returns its state.
    fn seen(&self) -> Self::Seen;

    /// Returns true if an error reports that memory is missing.
    fn is_of_memory(error: &Self::Error) -> bool;

    /// Returns the machine. A structure whose requests go elsewhere, too, has the other functions of its own.
    fn machine(&self) -> &SimMachine;

    /// Grants `granted` more requests of a kind, fails the next `count`, and grants all later ones.
    fn fail(&self, kind: usize, granted: u64, count: u64) {
        self.machine().fail_kind(kind, granted, count);
    }

    /// Fails all requests of all kinds.
    fn fail_all(&self) {
        self.machine().fail_after(0, 0);
    }

    /// Returns the requests that failed so far.
    fn denials(&self) -> u64 {
        self.machine().denials()
    }

    /// Frees all that is allocated, without a request that succeeds. Panics if a free fails or if something is lost.
    fn end(self);
}

/// Makes a call with every n-th request of each kind failing. Returns how many calls failed, by kind.
///
/// # Panics
/// If the call breaks a rule of the [module](self).
#[track_caller]
pub fn every_nth<S: Subject, A: PartialEq + Debug>(
    name: &str,
    fresh: impl Fn() -> S,
    call: impl Fn(&mut S) -> Result<A, S::Error>,
) -> Vec<u64> {
    let mut calm = fresh();
    let expected = call(&mut calm).unwrap_or_else(|error| panic!("{name}, with memory: {error:?}"));
    calm.end();
    let count_errors = |kind| {
        [1, 3, u64::MAX]
            .map(|count| until_none_fails(name, &fresh, &call, &expected, kind, count))
            .iter()
            .sum()
    };
    (0..S::KINDS.len()).map(count_errors).collect()
}

/// Lets requests of one kind fail, for one time. Returns how many calls failed.
fn until_none_fails<S: Subject, A: PartialEq + Debug>(
    name: &str,
    fresh: &impl Fn() -> S,
    call: &impl Fn(&mut S) -> Result<A, S::Error>,
    expected: &A,
    kind: usize,
    count: u64,
) -> u64 {
    let mut errors = 0;
    for n in 0.. {
        let what = format!("{name}, {} {n} fails, {count} times", S::KINDS[kind]);
        let mut subject = fresh();
        let before = subject.seen();
        let denied = subject.denials();
        subject.fail(kind, n, count);
        let answer = call(&mut subject);
        let was_denied = subject.denials() > denied;
        subject.fail(kind, u64::MAX, 0);
        let after = subject.seen();
        match answer {
            Ok(answer) => assert_eq!(&answer, expected, "{what}"),
            Err(error) => {
                assert!(was_denied && S::is_of_memory(&error), "{what}: {error:?}");
                assert_eq!(after, before, "{what}: {error:?}");
                let again = call(&mut subject).unwrap_or_else(|error| panic!("{what}, and again: {error:?}"));
                assert_eq!(&again, expected, "{what}, and again");
                errors += 1;
            }
        }
        subject.fail_all();
        subject.end();
        if !was_denied {
            break;
        }
    }
    errors
}
