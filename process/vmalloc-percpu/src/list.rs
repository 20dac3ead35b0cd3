//! A list of nodes in each unit: last in, first out, without a lock or a locked instruction if sections are available.
//! Threads that share a unit (no sections, no number of their own) exclude each other by a lock bit of the head.
//!
//! # Theory
//! The link is in the node. A push writes it and then, as the only store visible to other threads, the head. A pop
//! reads the link of the first node and stores it as the head. Only sections of this unit change its head, and an
//! interrupted section restarts. So the node whose link was read is still the first one when the head is stored. The
//! ABA problem of lists with compare-exchange (the node was popped and pushed in between) does not occur.
//!
//! # Invariants
//! - **LL1 once** a node is in one list, or has one owner.

use super::local::Local;
use super::{Error, PerCpu, Space, Word};
use alloc::boxed::Box;
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A node of a list, with a value. The link is used while the node is in a list.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Node<T> {
    link: u64,
    /// The value, which only its owner accesses.
    pub value: T,
}

impl<T> Node<T> {
    /// Creates a node that is in no list.
    pub const fn new(value: T) -> Self {
        Self { link: 0, value }
    }
}

/// A list in each unit. A push and a pop use the unit of the thread's current CPU.
///
/// A list takes values by a shared reference, so it is invariant in `T`: pushed and popped values have the same
/// lifetime.
///
/// ```compile_fail
/// use vmalloc_percpu::PerCpuList;
/// fn shorter<'l, 's, 'a>(list: &'l PerCpuList<'s, &'static str>) -> &'l PerCpuList<'s, &'a str> {
///     list
/// }
/// ```
pub struct PerCpuList<'s, T> {
    heads: PerCpu<'s, Word>,
    /// The lists own their nodes, and values are added by a shared reference, as to a cell.
    owns: PhantomData<Cell<Node<T>>>,
}

// SAFETY: nodes move between threads, with one owner at a time (LL1).
unsafe impl<T: Send> Send for PerCpuList<'_, T> {}
// SAFETY: as before; no reference to a node in a list is ever returned.
unsafe impl<T: Send> Sync for PerCpuList<'_, T> {}

impl<'s, T> PerCpuList<'s, T> {
    /// Creates empty lists.
    ///
    /// # Errors
    /// As [`Space::alloc`].
    pub fn new(space: &'s Space) -> Result<Self, Error> {
        Ok(Self { heads: space.zeroed()?, owns: PhantomData })
    }

    #[inline(always)]
    fn heads(&self) -> Local<'_> {
        self.heads.word()
    }

    /// Pushes a node to the front of this unit's list. Checks LL1 by its type: a box owns its node exclusively.
    #[inline(always)]
    pub fn push(&self, node: Box<Node<T>>) {
        let node = NonNull::from(Box::leak(node));
        node.expose_provenance();
        // SAFETY: a leaked box: it lives until it is popped (LL1), aligned to 8, its link first; the words are private,
        // heads only.
        unsafe { self.heads().push(node.cast()) };
    }

    /// Pops the first node of this unit's list. Lists of other units may have nodes even if it returns `None`.
    #[inline(always)]
    pub fn pop(&self) -> Option<Box<Node<T>>> {
        // SAFETY: the words are private, heads only.
        let node = unsafe { self.heads().pop() }?;
        // SAFETY: a box that `push` leaked, and a node is popped once (LL1).
        Some(unsafe { Box::from_raw(node.cast::<Node<T>>().as_ptr()) })
    }

    /// Removes the nodes of all units, and calls `each` with each of them.
    pub fn drain(&mut self, mut each: impl FnMut(Box<Node<T>>)) {
        let take = |head: u64| {
            let mut next = head;
            while let Some(node) =
                NonNull::new(core::ptr::with_exposed_provenance_mut::<Node<T>>(next as usize))
            {
                // SAFETY: a box that `push` leaked; it was in a list from which no other thread pops, as this borrow is
                // exclusive (LL1).
                let node = unsafe { Box::from_raw(node.as_ptr()) };
                next = node.link;
                each(node);
            }
        };
        // SAFETY: exclusive, so no other thread uses the heads.
        unsafe { self.heads().take_all(take) };
    }
}

impl<T> Drop for PerCpuList<'_, T> {
    fn drop(&mut self) {
        self.drain(drop);
    }
}

impl<T> fmt::Debug for PerCpuList<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpuList").finish_non_exhaustive()
    }
}
