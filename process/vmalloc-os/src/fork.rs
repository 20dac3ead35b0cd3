//! Fork handlers: they take the locks of all allocators before a fork, and release them after it.
//!
//! # Theory
//! A child has one thread and a copy of all memory, including locks in their state at that moment. So libc calls our
//! handlers before a fork, and they take every lock of every allocator. Then no operation is in progress, and parent
//! and child release the locks. Live areas exist in both; each frees its own copy.
//!
//! libc does this for `fork`, not for `vfork`, `clone` or `_Fork`: a caller of those must not allocate in the child.
//!
//! libc calls the handlers that prepare in the reverse order of their registration. One that was registered before ours
//! runs while all locks are held, in the thread that holds them. It must not allocate here: it would wait for itself.
//! To allow it, every acquisition of a lock would have to check for the forking thread.
//!
//! The handlers are registered once, before the first allocator is made. A child that was forked during the
//! registration cannot know whether it was done. So the handlers may be registered twice there. The second call of a
//! pair finds that the thread holds the locks, or that no thread does.
//!
//! **Streams.** A thread that reads a line holds its stream and allocates memory. A thread that flushes all streams
//! holds their list and waits for that stream. A fork takes the list. So the list comes before our locks here. glibc
//! takes its own malloc's locks after the list as well.
//!
//! **Signal handlers** may fork while the interrupted thread is in a call. With one thread no lock is taken: the thread
//! continues with the locks that it holds, in the child, too. With more threads, a fork leaves the locks that its
//! thread holds, and waits for the others only briefly. A lock that it did not get stays held in the child. The locks
//! of purges, refills and hidden runs are an exception: a child can release them.
//!
//! **Cached pages** are hidden from the child before the locks are taken, if they are more than a megabyte. To share a
//! page costs a page table entry at once, and a copy when it is reused (`process/vmalloc/src/heap/hidden.rs`).
//!
//! # Locking
//! ```text
//!   list of libc's streams  >  making the default allocator  >  list of allocators  >  all locks of each
//! ```

use crate::lock::{Fork, Mutex};
use crate::os::{
    abort_with, find, forget_calls, process_id, register_fork_handlers, thread_name, unless_plain,
};
use core::ffi::{CStr, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// An allocator, or another set of locks, that is locked during a fork.
pub trait Hold {
    /// Returns true if the calling thread holds one of the locks.
    fn is_mine(&self) -> bool;

    /// Hides or releases memory that should not be shared with a child. Called before any lock is taken, and not in a
    /// signal handler.
    fn prepare(&self) {}

    /// Undoes [`prepare`](Self::prepare), in the parent and in the child, after the locks are released.
    fn resume(&self) {}

    /// Takes all locks. If the thread was `interrupted` with some, takes the others, and skips those that stay held for
    /// a while.
    fn hold(&self, interrupted: bool);

    /// Drops state that a child does not have; either the locks are held, or the process has had one thread only.
    /// Called in the child before [`release`](Self::release).
    fn forget(&self, held: bool);

    /// Releases the locks, in the parent and in the child.
    ///
    /// # Safety
    /// The caller, or in a child the thread it was forked from, called [`hold`](Self::hold).
    unsafe fn release(&self);
}

/// The symbols of libc for forks, if it has them; looked up when the program or the library is loaded. Protocol PR-ONCE.
struct Libc {
    /// A byte of libc that is not 0 while the process has one thread.
    alone: AtomicPtr<c_void>,
    streams: [AtomicPtr<c_void>; 3],
}

/// Functions that lock the list of streams, unlock it, and reinitialize its lock in a child.
const STREAMS: [&CStr; 3] = [c"_IO_list_lock", c"_IO_list_unlock", c"_IO_list_resetlock"];
const LOCK: usize = 0;
const UNLOCK: usize = 1;
const RESET: usize = 2;

static LIBC: Libc =
    Libc { alone: AtomicPtr::new(null_mut()), streams: [const { AtomicPtr::new(null_mut()) }; 3] };

impl Libc {
    fn look_up(&self) {
        let found = STREAMS.map(find);
        // All of them or none.
        if found.iter().all(|found| !found.is_null()) {
            for (to, found) in self.streams.iter().zip(found) {
                to.store(found, Ordering::Relaxed);
            }
        }
        // Last, as the sign that the others are known.
        self.alone.store(find(c"__libc_single_threaded"), Ordering::Release);
    }

    /// Returns true if libc knows that there is one thread.
    fn is_alone(&self) -> bool {
        let place = self.alone.load(Ordering::Relaxed).cast::<u8>();
        // SAFETY: libc's variable of that name, a byte that no other thread could change while there is one.
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
#[derive(Debug)]
pub struct Link {
    what: NonNull<dyn Hold>,
    next: Option<NonNull<Link>>,
}

struct List(Option<NonNull<Link>>);

// SAFETY: the holder of the lock may access the members: they leave the list before they are dropped.
unsafe impl Send for List {}

static LIST: Mutex<List> = Mutex::new(List(None));

/// The process of the allocators; 0 if it is not known. Protocol PR-FORK.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The number of forks since the handlers were registered, in this process and those that it was forked from.
/// Protocol PR-FORK.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The lock that is held while the default allocator is made, or another value of the process that is never dropped.
pub static MAKING: Mutex<()> = Mutex::new(());
/// The thread that holds all locks for a fork; 0 for none. Protocol PR-FORK.
static FORKER: AtomicUsize = AtomicUsize::new(0);
/// Forks by signal handlers during that thread's fork, which continues with all locks. Protocol PR-FORK.
static NESTED: AtomicU32 = AtomicU32::new(0);
/// The thread that called [`Hold::prepare`] for a fork in progress; 0 for none. Protocol PR-FORK.
static PREPARED: AtomicUsize = AtomicUsize::new(0);
/// 0 if the handlers are not registered, [`REGISTERED`] if they are, otherwise the process that registers them.
/// Protocol PR-PUBLISH.
static HANDLERS: AtomicU32 = AtomicU32::new(0);
const REGISTERED: u32 = u32::MAX;

/// Looks up the names of libc when this code is loaded, by the thread that loads it. A look-up takes the loader's lock. At
/// the first allocation another thread might hold that lock, and wait in a constructor for the allocation.
#[cfg(not(miri))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = look_names_up;

#[cold]
#[inline(never)]
extern "C" fn look_names_up() {
    let _known = crate::os::has_sections();
    LIBC.look_up();
}

/// Registers the fork handlers of the allocators, unless they are registered; the first allocator does so itself. A
/// library that is loaded before all others calls it, so that no handler of `pthread_atfork` precedes them. Stops the
/// process if libc has no memory for it. Locks: none; a concurrent caller waits.
pub fn prepare_for_forks() {
    if HANDLERS.load(Ordering::Acquire) == REGISTERED {
        return;
    }
    // Unknown in a constructor that runs before `LOADED`, and in a libc without the byte. Acquire pairs with `look_up`.
    if LIBC.alone.load(Ordering::Acquire).is_null() {
        look_names_up();
    }
    // Where the process id must not be read, all callers are taken for threads of one process.
    let me = unless_plain(process_id).unwrap_or(1);
    loop {
        // Acquire pairs with the release below.
        let state = HANDLERS.load(Ordering::Acquire);
        if state == REGISTERED {
            return;
        }
        // Another thread of this process is registering; a different process is the parent, which was doing so at the
        // fork.
        if state == me {
            crate::os::yield_now();
            continue;
        }
        if HANDLERS.compare_exchange(state, me, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            if !register_fork_handlers(before, in_parent, in_child) {
                abort_with(format_args!("libc has no memory to register what a fork must do"));
            }
            note_process();
            HANDLERS.store(REGISTERED, Ordering::Release);
        }
    }
}

/// Adds a member.
///
/// # Safety
/// The member is valid, and is only referred to by shared references, until [`unregister`] removes it. `link` is memory
/// for a link, which is used for nothing else until then.
pub unsafe fn register<T: Hold + 'static>(what: NonNull<T>, link: NonNull<Link>) {
    let mut list = LIST.lock();
    let member = Link { what, next: list.0 };
    // SAFETY: this function's contract: allocated for a link, and no reference to it exists yet.
    unsafe { link.write(member) };
    list.0 = Some(link);
}

/// Removes a member. Does nothing if it is not in the list.
pub fn unregister<T: Hold + 'static>(what: NonNull<T>) {
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

/// Calls a function for every member.
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
        // A signal handler forks during a fork.
        NESTED.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if LIBC.is_alone() {
        // No other thread can hold a lock; an operation that the signal interrupted may be in any state.
        if !MAKING.is_mine() && !LIST.is_mine() {
            // SAFETY: the only thread does not change it meanwhile.
            let list = unsafe { &*LIST.data_ptr() };
            prepare(list, is_interrupted(list));
        }
        return;
    }
    LIBC.streams(LOCK);
    let interrupted = MAKING.is_mine() || LIST.is_mine();
    MAKING.hold(interrupted);
    LIST.hold(interrupted);
    // SAFETY: held by the calling thread, or by the operation that a signal interrupted in this thread.
    let list = unsafe { &*LIST.data_ptr() };
    let interrupted = interrupted || is_interrupted(list);
    prepare(list, interrupted);
    for_each(list, |member| member.hold(interrupted));
    FORKER.store(me, Ordering::Relaxed);
}

/// Returns true if the calling thread holds a lock of a member, which means that it runs a signal handler.
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

/// Undoes what the calling thread prepared. Called while it holds the lock of the list, or is the only thread.
fn resume() {
    if PREPARED.load(Ordering::Relaxed) == thread_name() {
        PREPARED.store(0, Ordering::Relaxed);
        // SAFETY: no thread changes it; see above.
        for_each(unsafe { &*LIST.data_ptr() }, |member| member.resume());
    }
}

/// Returns true if the caller is a child that uses its parent's memory, as `vfork` makes one. Its limits are not those
/// of the process of the allocators. Also true in a child of a bare `clone`.
pub fn is_guest() -> bool {
    let known = PROCESS.load(Ordering::Relaxed);
    known != 0 && unless_plain(process_id).is_some_and(|current| current != known)
}

/// A process. Those of two namespaces may have the same number, and a parent and its child, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    id: u32,
    generation: u32,
}

impl Process {
    /// Returns this process. A child of a fork differs from its parent once [`prepare_for_forks`] was called before
    /// that fork, and a child by other means if its number does. O(1), a system call.
    #[must_use]
    pub fn current() -> Self {
        Self { id: process_id(), generation: GENERATION.load(Ordering::Relaxed) }
    }
}

/// Records the process of the allocators, if the process id may be read.
fn note_process() {
    PROCESS.store(unless_plain(process_id).unwrap_or(0), Ordering::Relaxed);
}

extern "C" fn in_child() {
    forget_calls();
    GENERATION.fetch_add(1, Ordering::Relaxed);
    note_process();
    let held = FORKER.load(Ordering::Relaxed) != 0;
    NESTED.store(0, Ordering::Relaxed);
    // SAFETY: the thread that this one was forked from has held the lock since `before`, or was the only thread.
    let list = unsafe { &*LIST.data_ptr() };
    for_each(list, |member| member.forget(held));
    if held {
        release_all();
        // Not unlocked: libc has reinitialized it if there were threads, and has not locked it otherwise.
        LIBC.streams(RESET);
    } else {
        resume();
    }
}

fn release_all() {
    FORKER.store(0, Ordering::Relaxed);
    // SAFETY: this thread, or the one it was forked from, has held the lock since `before`.
    let list = unsafe { &*LIST.data_ptr() };
    // A signal handler may fork while an outer fork takes the locks. The outer fork itself undoes what it prepared: it
    // holds the locks that this requires.
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
