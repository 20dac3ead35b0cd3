//! What a fork does to allocators.
//!
//! # Theory
//! A child has one thread and a copy of all memory, locks as they were at that moment. So before a fork, libc calls us to take
//! every lock of every allocator: then nobody is in the midst of anything, and parent and child give them all back. What was
//! allocated is there in both; each frees its own copy.
//!
//! libc does this for `fork`, not for `vfork`, `clone` or `_Fork`: whoever calls those must not allocate in the child.
//!
//! libc calls those who prepare in the reverse order of their registration. One that was registered before ours is called while
//! all locks are held, by the thread that holds them: it must not allocate here, or it waits for itself.
//! To let it pass, everybody who takes a lock would have to ask who forks.
//!
//! The handlers are registered once, before the first allocator is made. A child whose parent was in the midst of registering
//! cannot know whether it had been done, so they may be registered twice there; the second call of a pair finds that the thread
//! has the locks, or that nobody has.
//!
//! # Locking
//! ```text
//!   making the default allocator  >  list of allocators  >  all locks of each
//! ```

use crate::lock::Mutex;
use crate::os::{abort_with, process_id, register_fork_handlers, thread_id};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

/// What has locks to be held during a fork.
pub(crate) trait Hold {
    /// Takes all locks.
    fn hold(&self);

    /// Forgets what a child does not have. Called in the child before [`release`](Self::release).
    fn forget(&self);

    /// Gives them back, in the parent and in the child.
    ///
    /// # Safety
    /// The caller, or in a child the thread it was forked from, called [`hold`](Self::hold).
    unsafe fn release(&self);
}

/// A member of the list. It lives in the records of its allocator.
pub(crate) struct Link {
    what: NonNull<dyn Hold>,
    next: Option<NonNull<Link>>,
}

struct List(Option<NonNull<Link>>);

// SAFETY: whoever holds the lock of the list may use what is in it: members leave the list before they go.
unsafe impl Send for List {}

static LIST: Mutex<List> = Mutex::new(List(None));
/// Held while the default allocator is made.
pub(crate) static MAKING: Mutex<()> = Mutex::new(());
/// The thread that holds all locks for a fork; 0 for none.
static FORKER: AtomicU32 = AtomicU32::new(0);
/// 0: the handlers are not registered. [`REGISTERED`]: they are. Otherwise the process that registers them.
static HANDLERS: AtomicU32 = AtomicU32::new(0);
const REGISTERED: u32 = u32::MAX;

/// Sees to it that the handlers are registered.
pub(crate) fn ensure_handlers() {
    let me = process_id();
    loop {
        // Acquire pairs with the release below.
        let state = HANDLERS.load(Ordering::Acquire);
        if state == REGISTERED {
            return;
        }
        // Another thread of this process is at it; a process of another number was the parent's.
        if state == me {
            std::thread::yield_now();
            continue;
        }
        if HANDLERS.compare_exchange(state, me, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            if !register_fork_handlers(before, in_parent, in_child) {
                abort_with(format_args!("libc has no memory to register what a fork must do"));
            }
            HANDLERS.store(REGISTERED, Ordering::Release);
        }
    }
}

/// Adds a member.
pub(crate) fn register<T: Hold + 'static>(what: NonNull<T>, link: NonNull<Link>) {
    let mut list = LIST.lock();
    let member = Link { what, next: list.0 };
    // SAFETY: lent for a link, and nobody else is given it.
    unsafe { link.write(member) };
    list.0 = Some(link);
}

/// Takes a member out.
pub(crate) fn unregister<T: Hold + 'static>(what: NonNull<T>) {
    let mut list = LIST.lock();
    let mut place = &mut list.0;
    while let Some(mut link) = *place {
        // SAFETY: members live as long as they are in the list, and the list is locked.
        let link = unsafe { link.as_mut() };
        if core::ptr::addr_eq(link.what.as_ptr(), what.as_ptr()) {
            *place = link.next;
            return;
        }
        place = &mut link.next;
    }
}

/// Calls for every member.
fn for_each(list: &List, call: impl Fn(&dyn Hold)) {
    let mut next = list.0;
    while let Some(link) = next {
        // SAFETY: as in `unregister`.
        let link = unsafe { link.as_ref() };
        // SAFETY: a member lives as long as it is in the list.
        call(unsafe { link.what.as_ref() });
        next = link.next;
    }
}

extern "C" fn before() {
    let me = thread_id();
    if FORKER.load(Ordering::Relaxed) == me {
        return;
    }
    core::mem::forget(MAKING.lock());
    let list = LIST.lock();
    for_each(&list, |member| member.hold());
    core::mem::forget(list);
    FORKER.store(me, Ordering::Relaxed);
}

extern "C" fn in_parent() {
    if FORKER.load(Ordering::Relaxed) == thread_id() {
        release_all();
    }
}

extern "C" fn in_child() {
    // The thread has another number than in the parent, and is the only one.
    if FORKER.load(Ordering::Relaxed) != 0 {
        // SAFETY: the thread that this one was forked from holds the lock since `before`.
        let list = unsafe { &*LIST.data_ptr() };
        for_each(list, |member| member.forget());
        release_all();
    }
}

fn release_all() {
    FORKER.store(0, Ordering::Relaxed);
    // SAFETY: this thread, or the one it was forked from, holds the lock since `before`.
    let list = unsafe { &*LIST.data_ptr() };
    for_each(list, |member| {
        // SAFETY: held since `before`.
        unsafe { member.release() };
    });
    // SAFETY: as before.
    unsafe { LIST.force_unlock() };
    // SAFETY: as before.
    unsafe { MAKING.force_unlock() };
}
