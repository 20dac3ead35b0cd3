//! Fork handlers: they take the locks of all allocators before a fork, and release them after it.
//!
//! # Theory
//! A child has one thread and a copy of all memory, locks as they were at that moment. So before a fork, libc calls us
//! to take every lock of every allocator: then nobody is in the midst of anything, and parent and child give them all
//! back. What was allocated is there in both; each frees its own copy.
//!
//! libc does this for `fork`, not for `vfork`, `clone` or `_Fork`: whoever calls those must not allocate in the child.
//!
//! libc calls those who prepare in the reverse order of their registration. One that was registered before ours is
//! called while all locks are held, by the thread that holds them: it must not allocate here, or it waits for itself.
//! To let it pass, everybody who takes a lock would have to ask who forks.
//!
//! The handlers are registered once, before the first allocator is made. A child whose parent was
//! in the midst of registering cannot know whether it had been done. So the handlers may be
//! registered twice there. The second call of a pair finds that the thread has the locks, or that
//! no thread has.
//!
//! **Streams.** A thread that reads a line holds its stream and asks for memory. A thread that
//! flushes all streams holds their list and waits for that stream. A fork asks for the list. So the
//! list comes before our locks here, as in glibc, which takes its own behind it.
//!
//! **Handlers of signals** may fork while the thread that they interrupted is in the midst of a call. With one thread
//! no lock is taken: whatever that one holds it goes on with, in the child, too. With more, those that it holds are left
//! to it, and for the others the fork waits a while only. What it did not get stays taken in the child, except the locks of
//! purges, refills and hidden runs, which a child can release.
//!
//! **Cached pages** are hidden from the child before the locks are taken, if they are more than a megabyte. To share one
//! costs an entry of a page table now, and a copy when it is used again (`heap/hidden.rs`).
//!
//! # Locking
//! ```text
//!   list of libc's streams  >  making the default allocator  >  list of allocators  >  all locks of each
//! ```

use crate::lock::{Fork, Mutex};
use crate::os::{abort_with, find, is_plain, process_id, register_fork_handlers, thread_name};
use core::ffi::{CStr, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// A holder of locks that are held during a fork.
pub(crate) trait Hold {
    /// Tells whether the calling thread has one of the locks.
    fn is_mine(&self) -> bool;

    /// Hides or releases what a child had better not share. Called before any lock is taken, and not by a handler of a
    /// signal.
    fn prepare(&self) {}

    /// Ends what [`prepare`](Self::prepare) began, in the parent and in the child, after the locks are released.
    fn resume(&self) {}

    /// Takes all locks; if the thread was `interrupted` with some, those that it has not and that it gets in a while.
    fn hold(&self, interrupted: bool);

    /// Forgets what a child does not have; the locks are held or the child has always had one thread. Called in the
    /// child before [`release`](Self::release).
    fn forget(&self, held: bool);

    /// Gives them back, in the parent and in the child.
    ///
    /// # Safety
    /// The caller, or in a child the thread it was forked from, called [`hold`](Self::hold).
    unsafe fn release(&self);
}

/// The symbols of libc for forks, if it has them: looked up when the handlers are registered.
struct Libc {
    /// A byte that is not 0 while there is one thread.
    alone: AtomicPtr<c_void>,
    streams: [AtomicPtr<c_void>; 3],
}

/// Take the list of streams, give it back, and make it anew in a child.
const STREAMS: [&CStr; 3] = [c"_IO_list_lock", c"_IO_list_unlock", c"_IO_list_resetlock"];
const LOCK: usize = 0;
const UNLOCK: usize = 1;
const RESET: usize = 2;

static LIBC: Libc =
    Libc { alone: AtomicPtr::new(null_mut()), streams: [const { AtomicPtr::new(null_mut()) }; 3] };

impl Libc {
    fn look_up(&self) {
        self.alone.store(find(c"__libc_single_threaded"), Ordering::Relaxed);
        let found = STREAMS.map(find);
        // All of them or none.
        if found.iter().all(|found| !found.is_null()) {
            for (to, found) in self.streams.iter().zip(found) {
                to.store(found, Ordering::Relaxed);
            }
        }
    }

    /// There is one thread, and libc knows it.
    fn is_alone(&self) -> bool {
        let place = self.alone.load(Ordering::Relaxed).cast::<u8>();
        // SAFETY: libc's variable of that name, a byte, which only this thread could change.
        !place.is_null() && unsafe { place.read_volatile() } != 0
    }

    fn streams(&self, what: usize) {
        let found = self.streams[what].load(Ordering::Relaxed);
        if !found.is_null() {
            // SAFETY: a function of libc's of this type, by its name.
            let call = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn()>(found) };
            call();
        }
    }
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
/// Pages that may be kept while the process forks: 1 MiB.
pub(crate) const KEPT_PAGES: u64 = 256;

/// The process that the allocators are in; 0 where that is not known.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Held while the default allocator is made.
pub(crate) static MAKING: Mutex<()> = Mutex::new(());
/// The thread that holds all locks for a fork; 0 for none.
static FORKER: AtomicUsize = AtomicUsize::new(0);
/// Forks by handlers of signals in the midst of that thread's fork: it goes on with all locks.
static NESTED: AtomicU32 = AtomicU32::new(0);
/// The thread that called [`Hold::prepare`] for a fork that is under way; 0 for none.
static PREPARED: AtomicUsize = AtomicUsize::new(0);
/// 0: the handlers are not registered. [`REGISTERED`]: they are. Otherwise the process that registers them.
static HANDLERS: AtomicU32 = AtomicU32::new(0);
const REGISTERED: u32 = u32::MAX;

/// Registers what allocators do at a fork, unless it is done: the first allocator does. For whoever must be sure that
/// no other handler of `pthread_atfork` was registered before, such as a library that is loaded before all others.
/// Stops the process if libc has no memory for it. Locks: none; a thread that comes at the same time waits.
pub fn prepare_for_forks() {
    // Where nobody may ask, threads that come at the same time are all there is to tell apart.
    let me = if is_plain() { 1 } else { process_id() };
    loop {
        // Acquire pairs with the release below.
        let state = HANDLERS.load(Ordering::Acquire);
        if state == REGISTERED {
            return;
        }
        // Another thread of this process is at it; a process of another number was the parent's.
        if state == me {
            crate::os::yield_now();
            continue;
        }
        if HANDLERS.compare_exchange(state, me, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            LIBC.look_up();
            if !register_fork_handlers(before, in_parent, in_child) {
                abort_with(format_args!("libc has no memory to register what a fork must do"));
            }
            note_process();
            HANDLERS.store(REGISTERED, Ordering::Release);
        }
    }
}

/// Adds a member.
pub(crate) fn register<T: Hold + 'static>(what: NonNull<T>, link: NonNull<Link>) {
    let mut list = LIST.lock();
    let member = Link { what, next: list.0 };
    // SAFETY: allocated for a link, and nobody else is given it.
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
    let me = thread_name();
    if FORKER.load(Ordering::Relaxed) == me {
        // A handler of a signal that comes in the midst of a fork forks, too.
        NESTED.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if LIBC.is_alone() {
        // Nobody else holds a lock; what a signal interrupted may be in the midst of anything.
        if !MAKING.is_mine() && !LIST.is_mine() {
            // SAFETY: nobody changes it.
            let list = unsafe { &*LIST.data_ptr() };
            prepare(list, is_interrupted(list));
        }
        return;
    }
    LIBC.streams(LOCK);
    let interrupted = MAKING.is_mine() || LIST.is_mine();
    MAKING.hold(interrupted);
    LIST.hold(interrupted);
    // SAFETY: held, or in the hands of whom a signal interrupted in this thread.
    let list = unsafe { &*LIST.data_ptr() };
    let interrupted = interrupted || is_interrupted(list);
    prepare(list, interrupted);
    for_each(list, |member| member.hold(interrupted));
    FORKER.store(me, Ordering::Relaxed);
}

/// Tells whether the calling thread has a lock of a member, so that a handler of a signal runs.
fn is_interrupted(list: &List) -> bool {
    let any = core::cell::Cell::new(false);
    for_each(list, |member| any.set(any.get() || member.is_mine()));
    any.get()
}

fn prepare(list: &List, interrupted: bool) {
    if !interrupted {
        for_each(list, |member| member.prepare());
        PREPARED.store(thread_name(), Ordering::Relaxed);
    }
}

extern "C" fn in_parent() {
    if FORKER.load(Ordering::Relaxed) == thread_name() {
        if NESTED.load(Ordering::Relaxed) > 0 {
            NESTED.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        release_all();
        LIBC.streams(UNLOCK);
    } else {
        resume();
    }
}

/// Ends what the calling thread prepared. Called while it holds the lock of the list, or is the only thread.
fn resume() {
    if PREPARED.load(Ordering::Relaxed) == thread_name() {
        PREPARED.store(0, Ordering::Relaxed);
        // SAFETY: nobody changes it; see above.
        for_each(unsafe { &*LIST.data_ptr() }, |member| member.resume());
    }
}

/// Returns whether the caller is a child that uses its parent's memory, as `vfork` makes one. Its limits are
/// not those of the process that the allocators are in. Also true in a child of a bare `clone`.
pub fn is_guest() -> bool {
    let known = PROCESS.load(Ordering::Relaxed);
    known != 0 && !is_plain() && known != process_id()
}

/// Notes the process that the allocators are in, if it may be asked for.
fn note_process() {
    PROCESS.store(if is_plain() { 0 } else { process_id() }, Ordering::Relaxed);
}

extern "C" fn in_child() {
    note_process();
    let held = FORKER.load(Ordering::Relaxed) != 0;
    NESTED.store(0, Ordering::Relaxed);
    // SAFETY: the thread that this one was forked from holds the lock since `before`, or is the only one there ever
    // was.
    let list = unsafe { &*LIST.data_ptr() };
    for_each(list, |member| member.forget(held));
    if held {
        release_all();
        // Not given back: libc has made it anew if there were threads, and has not if there were none.
        LIBC.streams(RESET);
    } else {
        resume();
    }
}

fn release_all() {
    FORKER.store(0, Ordering::Relaxed);
    // SAFETY: this thread, or the one it was forked from, holds the lock since `before`.
    let list = unsafe { &*LIST.data_ptr() };
    // A handler of a signal may fork while an outer fork takes the locks. What that prepared, it resumes itself: it
    // holds the locks that this takes.
    let is_inner = MAKING.is_left() || LIST.is_left();
    for_each(list, |member| {
        // SAFETY: held since `before`.
        unsafe { member.release() };
    });
    if !is_inner {
        resume();
    }
    // SAFETY: as before.
    unsafe { LIST.release() };
    // SAFETY: as before.
    unsafe { MAKING.release() };
}
