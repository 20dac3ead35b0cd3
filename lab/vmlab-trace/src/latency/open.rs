//! The calls or the waits that threads have begun and not ended.

use super::Thread;
use std::collections::HashMap;

/// The most threads that have any.
const THREADS_MAX: usize = 1 << 16;

/// The open ones of each thread, the first begun first; at most `DEPTH` of one thread.
#[derive(Clone, Debug)]
pub(super) struct Open<T, const DEPTH: usize> {
    threads: HashMap<Thread, Vec<T>>,
}

impl<T, const DEPTH: usize> Default for Open<T, DEPTH> {
    fn default() -> Self {
        Self { threads: HashMap::new() }
    }
}

impl<T, const DEPTH: usize> Open<T, DEPTH> {
    /// Returns true if there is no room for a thread.
    pub(super) fn is_full_for(&self, thread: Thread) -> bool {
        self.threads.len() >= THREADS_MAX && !self.threads.contains_key(&thread)
    }

    /// Returns those of a thread.
    pub(super) fn of(&mut self, thread: Thread) -> &mut [T] {
        self.threads.get_mut(&thread).map_or(&mut [], Vec::as_mut_slice)
    }

    /// Adds one to a thread, in place of its first if it has `DEPTH`. Returns true then.
    pub(super) fn push(&mut self, thread: Thread, one: T) -> bool {
        let open = self.threads.entry(thread).or_default();
        let is_deep = open.len() == DEPTH;
        if is_deep {
            open.remove(0);
        }
        open.push(one);
        is_deep
    }

    /// Lets `take` remove some of a thread's, and returns its result.
    pub(super) fn take<R>(
        &mut self,
        thread: Thread,
        take: impl FnOnce(&mut Vec<T>) -> Option<R>,
    ) -> Option<R> {
        let open = self.threads.get_mut(&thread)?;
        let taken = take(open);
        if open.is_empty() {
            self.threads.remove(&thread);
        }
        taken
    }

    /// Removes all of all threads.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.threads.drain().flat_map(|(_, open)| open)
    }
}
