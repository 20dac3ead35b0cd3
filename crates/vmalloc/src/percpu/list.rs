//! A list of nodes in each unit: last in, first out, without a lock or a locked instruction where there are sections. Threads that share
//! a unit (no sections, no number of their own) take turns by a bit of the head.
//!
//! # Theory
//! The node's link is in the node. A push writes it and then, as the only store that others see,
//! the head. A pop reads the link of the first node and stores it as head. Only sections of this
//! unit change its head, and one that was interrupted begins again. So the node whose link was read
//! is still the first one when the head is stored. A node that was popped and pushed in between
//! (the ABA problem of lists with compare-exchange) cannot go unnoticed.
//!
//! # Invariants
//! - **LL1 once** a node is in one list or with one owner.

use super::local::Local;
use super::{Error, PerCpu, Space, Word};
use alloc::boxed::Box;
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A node of a list, with a value. Its link is used while it is in a list.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Node<T> {
    link: u64,
    /// The value, which is the caller's.
    pub value: T,
}

impl<T> Node<T> {
    /// A node in no list.
    pub const fn new(value: T) -> Self {
        Self { link: 0, value }
    }
}

/// A list in each unit. A push and a pop are on the unit of the CPU that the thread is on at that moment.
///
/// A list takes values by a shared reference, so it is invariant in `T`: what is pushed lives as long as what is popped.
///
/// ```compile_fail
/// use vmalloc::percpu::PerCpuList;
/// fn shorter<'l, 's, 'a>(list: &'l PerCpuList<'s, &'static str>) -> &'l PerCpuList<'s, &'a str> {
///     list
/// }
/// ```
pub struct PerCpuList<'s, T> {
    heads: PerCpu<'s, Word>,
    /// Nodes are owned here, and values go in by a shared reference, as into a cell.
    owns: PhantomData<Cell<Node<T>>>,
}

// SAFETY: nodes go from thread to thread, one owner at a time (LL1).
unsafe impl<T: Send> Send for PerCpuList<'_, T> {}
// SAFETY: as before; nobody gets a reference to a node in a list.
unsafe impl<T: Send> Sync for PerCpuList<'_, T> {}

impl<'s, T> PerCpuList<'s, T> {
    /// Empty lists.
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

    /// Puts a node first on this unit's list. Checks LL1 by its type: whoever has a box of a node has it alone.
    #[inline(always)]
    pub fn push(&self, node: Box<Node<T>>) {
        let node = NonNull::from(Box::leak(node));
        node.expose_provenance();
        // SAFETY: a leaked box: it lives until it is popped (LL1), aligned to 8, its link first; the words are private, heads only.
        unsafe { self.heads().push(node.cast()) };
    }

    /// Takes the first node of this unit's list. `None` says nothing of the lists of other units.
    #[inline(always)]
    pub fn pop(&self) -> Option<Box<Node<T>>> {
        // SAFETY: the words are private, heads only.
        let node = unsafe { self.heads().pop() }?;
        // SAFETY: a box that `push` leaked, and a node is popped once (LL1).
        Some(unsafe { Box::from_raw(node.cast::<Node<T>>().as_ptr()) })
    }

    /// Takes the nodes of all units. Calls `each` with each of them.
    pub fn drain(&mut self, mut each: impl FnMut(Box<Node<T>>)) {
        let take = |head: u64| {
            let mut next = head;
            while let Some(node) =
                NonNull::new(core::ptr::with_exposed_provenance_mut::<Node<T>>(next as usize))
            {
                // SAFETY: a box that `push` leaked; it was in a list of which nobody else takes, as this is exclusive (LL1).
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
