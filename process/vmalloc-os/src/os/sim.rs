//! A simulated system in place of `linux.rs`, under Miri, which makes no system calls.
//!
//! # Theory
//! A mapping is one allocation of Miri's. The simulation keeps the only pointer to it and a state for each page, and
//! never exposes that pointer. To open a page is to expose a new pointer to it, derived from the first. To close it is
//! to derive another one exclusively and expose nothing: pointers that were exposed earlier are invalid from then on.
//! So an access by an address, which Miri allows through exposed pointers alone, is an error in a page that is not
//! open, as it would fault in a process. To release, move or close pages counts as a write: Miri reports a race if
//! another thread accesses them at that time.
//!
//! Pages are as in Linux: zeros when they are mapped, released or moved away, and resident if a byte is not zero. CPUs
//! are numbers of threads. There are no forks, no symbols of libc, and no files.
//! # Locking
//! One lock for all mappings, as in a kernel. It orders the calls of all threads, so that a race between a thread before
//! its call and another after a later call is not seen.

use super::{Entry, Errno, Huge, Os, Room, Span, Stopped, ThreadName};
use crate::PAGE_BYTES;
use core::alloc::Layout;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::{null_mut, slice_from_raw_parts_mut, with_exposed_provenance_mut};
use std::alloc::{alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The largest reservation. Miri takes as much address space of its own.
const RESERVED_MAX: usize = 160 << 20;
const CPUS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    /// Not mapped: accesses are errors, and another mapping may be made here.
    Gone,
    /// Mapped without access.
    Shut,
    /// Readable and writable.
    Open,
    /// Accesses are errors until [`Os::unguard`].
    Guarded,
}

/// One allocation of Miri's, whose only pointer this is.
struct Mapping {
    root: *mut u8,
    pages: usize,
    /// The state of the pages from a page on, up to the next one with another state. Miri is too slow for a state of
    /// each page.
    states: BTreeMap<usize, Page>,
}

// SAFETY: the pointer is used under the lock of all mappings.
unsafe impl Send for Mapping {}

/// Mappings by their first address.
static MAPPINGS: Mutex<BTreeMap<usize, Mapping>> = Mutex::new(BTreeMap::new());
static THREADS: Mutex<Vec<Option<JoinHandle<()>>>> = Mutex::new(Vec::new());

fn mappings() -> MutexGuard<'static, BTreeMap<usize, Mapping>> {
    MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * PAGE_BYTES, PAGE_BYTES).unwrap_or(Layout::new::<u8>())
}

/// Makes a mapping, each of whose pages has a state.
fn map(bytes: usize, state: Page) -> Result<usize, Errno> {
    if bytes == 0 || bytes % PAGE_BYTES != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if bytes > RESERVED_MAX {
        return Err(Errno::NOMEM);
    }
    let pages = bytes / PAGE_BYTES;
    // SAFETY: the size is not 0.
    let root = unsafe { alloc_zeroed(layout(pages)) };
    if root.is_null() {
        return Err(Errno::NOMEM);
    }
    let mut mapping = Mapping { root, pages, states: BTreeMap::from([(0, Page::Shut)]) };
    mapping.open(0, if state == Page::Open { pages } else { 0 }, Page::Shut);
    mappings().insert(root.addr(), mapping);
    Ok(root.addr())
}

/// Calls `with` with the mapping that contains a span, the span's first page in it and its number of pages.
fn within<T>(
    span: Span,
    with: impl FnOnce(&mut Mapping, usize, usize) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut all = mappings();
    let (&start, mapping) = all.range_mut(..=span.at).next_back().ok_or(Errno::NOMEM)?;
    let (first, pages) = ((span.at - start) / PAGE_BYTES, span.bytes.div_ceil(PAGE_BYTES));
    if span.at % PAGE_BYTES != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if first + pages > mapping.pages {
        return Err(Errno::NOMEM);
    }
    with(mapping, first, pages)
}

impl Mapping {
    fn place(&self, page: usize) -> *mut u8 {
        // SAFETY: a page of the allocation, or its end.
        unsafe { self.root.add(page * PAGE_BYTES) }
    }

    /// Returns the parts of a range of pages that have one state each: their first page, end and state.
    fn runs(&self, first: usize, pages: usize) -> Vec<(usize, usize, Page)> {
        let end = first + pages;
        let before = self.states.range(..=first).next_back().into_iter();
        let starts: Vec<_> = before.chain(self.states.range(first + 1..end.max(first + 1))).collect();
        let ends = starts.iter().skip(1).map(|&(&start, _)| start).chain([end]);
        starts.iter().zip(ends).map(|(&(&start, &state), end)| (start.max(first), end, state)).collect()
    }

    fn has(&self, first: usize, pages: usize, state: Page) -> bool {
        self.runs(first, pages).iter().all(|&(.., has)| has == state)
    }

    /// Returns an error if any page is not mapped.
    fn mapped(&self, first: usize, pages: usize) -> Result<(), Errno> {
        let mapped = self.runs(first, pages).iter().all(|&(.., state)| state != Page::Gone);
        if mapped { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// Invalidates all pointers to pages but the first one, and exposes another if the pages are open now.
    fn set(&mut self, first: usize, pages: usize, state: Page) {
        self.invalidate(first, pages);
        let end = first + pages;
        let after = self.states.range(..=end).next_back().map_or(Page::Gone, |(_, &state)| state);
        self.states.retain(|start, _| !(first..end).contains(start));
        self.states.insert(first, state);
        if end < self.pages {
            self.states.insert(end, after);
        }
        if state == Page::Open {
            let open = slice_from_raw_parts_mut(self.place(first), pages * PAGE_BYTES);
            // SAFETY: in the allocation, and initialized; no other reference to it exists.
            let _address = unsafe { &mut *open }.as_mut_ptr().expose_provenance();
        }
    }

    /// Invalidates all pointers to pages but the first one: writes their contents by that one.
    fn invalidate(&self, first: usize, pages: usize) {
        let place = self.place(first);
        // SAFETY: in the allocation. By the contracts of the calls no reference exists, and later uses of earlier
        // pointers are the errors that are looked for.
        unsafe { place.copy_from(place, pages * PAGE_BYTES) };
    }

    /// Opens the pages that have a state, and leaves the others as they are.
    fn open(&mut self, first: usize, pages: usize, from: Page) {
        for (start, end, state) in self.runs(first, pages) {
            if state == from {
                self.set(start, end - start, Page::Open);
            }
        }
    }

    fn zero(&mut self, first: usize, pages: usize) {
        // SAFETY: in the allocation; as in `set`.
        unsafe { self.place(first).write_bytes(0, pages * PAGE_BYTES) };
    }

    /// Makes pages zeros, in a state.
    fn renew(&mut self, first: usize, pages: usize, state: Page) {
        self.zero(first, pages);
        self.set(first, pages, state);
    }

    /// Moves the contents of pages elsewhere in the mapping.
    fn shift(&mut self, from: usize, to: usize, pages: usize) {
        // SAFETY: both in the allocation.
        unsafe { self.place(to).copy_from(self.place(from), pages * PAGE_BYTES) };
        self.set(to, pages, Page::Open);
        self.renew(from, pages, Page::Open);
    }

    /// Returns the contents of a page. A read by the first pointer would make those that are exposed read-only.
    fn bytes(&self, page: usize) -> &[u8] {
        let place = self.place(page);
        let place =
            if self.has(page, 1, Page::Open) { with_exposed_provenance_mut(place.addr()) } else { place };
        // SAFETY: a page of the allocation; the caller of the system owns it, and holds the lock.
        unsafe { core::slice::from_raw_parts(place, PAGE_BYTES) }
    }
}

/// The simulated system. It has the name of the one that it replaces.
#[derive(Debug, Default)]
pub struct Linux;

impl Linux {
    /// Creates the system.
    pub fn new() -> Self {
        Self
    }

    /// Returns the number of spans that one call releases.
    pub fn discard_batch(&self) -> usize {
        1
    }
}

impl Os for Linux {
    fn reserve(&self, bytes: usize) -> Result<usize, Errno> {
        map(bytes, Page::Shut)
    }

    fn map(&self, bytes: usize) -> Result<usize, Errno> {
        map(bytes, Page::Open)
    }

    unsafe fn unmap(&self, span: Span) -> bool {
        let gone = within(span, |mapping, first, pages| {
            let all = mapping.pages;
            if pages < all {
                mapping.set(first, pages, Page::Gone);
            }
            Ok((pages == all || mapping.has(0, all, Page::Gone)).then_some((mapping.root, all)))
        });
        if let Ok(Some((root, pages))) = gone {
            mappings().remove(&root.addr());
            // SAFETY: allocated by `map`, with as many pages, and no page is mapped any more.
            unsafe { dealloc(root, layout(pages)) };
        }
        true
    }

    unsafe fn commit(&self, span: Span) -> Result<(), Errno> {
        within(span, |mapping, first, pages| {
            mapping.mapped(first, pages)?;
            mapping.open(first, pages, Page::Shut);
            Ok(())
        })
    }

    unsafe fn discard(&self, spans: &[Span]) -> Result<(), (usize, Errno)> {
        for (done, &span) in spans.iter().enumerate() {
            let released = within(span, |mapping, first, pages| {
                mapping.mapped(first, pages)?;
                mapping.zero(first, pages);
                // Each keeps its state.
                mapping.open(first, pages, Page::Open);
                Ok(())
            });
            released.map_err(|errno| (done, errno))?;
        }
        Ok(())
    }

    unsafe fn move_pages(&self, from: Span, to: usize) -> Result<(), Stopped> {
        let moved = within(from, |mapping, first, pages| {
            let target = (to - mapping.root.addr()) / PAGE_BYTES;
            if !mapping.has(first, pages, Page::Open) || !mapping.has(target, pages, Page::Open) {
                return Err(Errno(libc::EINVAL));
            }
            mapping.shift(first, target, pages);
            Ok(())
        });
        moved.map_err(|errno| Stopped { bytes: 0, errno })
    }

    fn can_move(&self) -> bool {
        true
    }

    unsafe fn remap(&self, from: Span, to: usize) -> Result<(), Errno> {
        // SAFETY: this function's contract is narrower.
        unsafe { self.move_pages(from, to) }.map_err(|stopped| stopped.errno)
    }

    unsafe fn guard(&self, span: Span) -> Result<(), Errno> {
        within(span, |mapping, first, pages| {
            mapping.mapped(first, pages)?;
            mapping.renew(first, pages, Page::Guarded);
            Ok(())
        })
    }

    unsafe fn unguard(&self, span: Span) -> Result<(), Errno> {
        within(span, |mapping, first, pages| {
            mapping.mapped(first, pages)?;
            mapping.open(first, pages, Page::Guarded);
            Ok(())
        })
    }

    fn can_guard(&self) -> bool {
        true
    }

    unsafe fn advise(&self, span: Span, _huge: Huge) -> Result<(), Errno> {
        within(span, |mapping, first, pages| mapping.mapped(first, pages))
    }

    unsafe fn inherit(&self, span: Span, _inherited: bool) -> Result<(), Errno> {
        within(span, |mapping, first, pages| mapping.mapped(first, pages))
    }

    fn can_disinherit(&self) -> bool {
        true
    }

    fn forget(&self) {}

    unsafe fn renew(&self, span: Span) -> Result<(), Errno> {
        within(span, |mapping, first, pages| {
            mapping.renew(first, pages, Page::Open);
            Ok(())
        })
    }

    unsafe fn keep_policy(&self, _from: Span, _to: Span) -> bool {
        false
    }

    unsafe fn reset(&self, span: Span) -> Result<(), Errno> {
        within(span, |mapping, first, pages| {
            mapping.renew(first, pages, Page::Shut);
            Ok(())
        })
    }

    unsafe fn mend(&self, span: Span) -> bool {
        // SAFETY: this function's contract.
        unsafe { self.map_at(span) }.is_ok()
    }

    unsafe fn map_at(&self, span: Span) -> Result<(), Errno> {
        within(span, |mapping, first, pages| {
            if !mapping.has(first, pages, Page::Gone) {
                return Err(Errno(libc::EEXIST));
            }
            mapping.renew(first, pages, Page::Open);
            Ok(())
        })
    }

    unsafe fn forbid(&self, span: Span) -> Result<(), Errno> {
        within(span, |mapping, first, pages| {
            mapping.mapped(first, pages)?;
            mapping.set(first, pages, Page::Shut);
            Ok(())
        })
    }

    fn resident(&self, span: Span, seen: &mut [u8]) -> Result<(), Errno> {
        within(span, |mapping, first, pages| {
            mapping.mapped(first, pages)?;
            for (page, seen) in (first..first + pages).zip(seen) {
                *seen = u8::from(mapping.bytes(page) != [0; PAGE_BYTES]);
            }
            Ok(())
        })
    }

    fn random(&self) -> Result<[u64; 2], Errno> {
        let mut words = [0u64; 2];
        // SAFETY: writes as many bytes as `words` has.
        let count = unsafe { libc::getrandom(words.as_mut_ptr().cast(), size_of_val(&words), 0) };
        if usize::try_from(count) == Ok(size_of_val(&words)) { Ok(words) } else { Err(errno()) }
    }

    unsafe fn spawn(&self, _stack: Span, entry: Entry, argument: *mut c_void) -> Result<ThreadName, Errno> {
        struct Argument(*mut c_void);
        // SAFETY: the contract of this function is that of `entry`.
        unsafe impl Send for Argument {}
        let argument = Argument(argument);
        let run = move || {
            // The whole of it, which may be sent.
            let Argument(argument) = { argument };
            entry(argument);
        };
        let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(Some(std::thread::spawn(run)));
        Ok(threads.len() - 1)
    }

    unsafe fn join(&self, thread: ThreadName) {
        let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = threads.get_mut(thread).and_then(Option::take);
        drop(threads);
        // It does not panic.
        let _ended = handle.map(JoinHandle::join);
    }

    fn cpu(&self) -> usize {
        super::thread_number() as usize % CPUS
    }

    fn cpus(&self) -> usize {
        CPUS
    }

    fn address_limit(&self) -> Option<usize> {
        None
    }

    fn available(&self) -> Option<Room> {
        None
    }

    fn now(&self) -> Option<u64> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a time.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
        (failed == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    fn mappings_max(&self) -> u64 {
        65_530
    }
}

/// Copies the readable bytes at the start of a range of addresses, and returns their number.
pub(crate) fn read_memory(from: usize, to: &mut [u8]) -> usize {
    let mut at = 0;
    while at < to.len() {
        let place = from.wrapping_add(at);
        let offset = place % PAGE_BYTES;
        let part = &mut to[at..];
        let bytes = (PAGE_BYTES - offset).min(part.len());
        let page = Span { at: place - offset, bytes: PAGE_BYTES };
        let copied = within(page, |mapping, first, pages| {
            let is_open = mapping.has(first, pages, Page::Open);
            if is_open {
                part[..bytes].copy_from_slice(&mapping.bytes(first)[offset..][..bytes]);
            }
            Ok(is_open)
        });
        if copied != Ok(true) {
            break;
        }
        at += bytes;
    }
    at
}

/// Returns an address as a pointer for the system.
pub fn pointer(at: usize) -> *mut c_void {
    with_exposed_provenance_mut(at)
}

/// Returns the result of a call that returned 0 or -1.
pub fn done(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(errno()) }
}

/// Returns the error of the call that failed last in this thread.
pub fn errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// Returns the number of this process.
pub fn process_id() -> u32 {
    std::process::id()
}

/// Returns `None`: there are no files.
pub fn read_start<'t>(_path: &CStr, _text: &'t mut [u8]) -> Option<&'t [u8]> {
    None
}

/// Returns null: there are no symbols of libc.
pub(crate) fn find(_name: &CStr) -> *mut c_void {
    null_mut()
}

/// Returns `true`: there are no forks.
pub(crate) fn register_fork_handlers(_: extern "C" fn(), _: extern "C" fn(), _: extern "C" fn()) -> bool {
    true
}

/// Writes a message, and stops the process.
#[cold]
pub fn abort_with(message: core::fmt::Arguments<'_>) -> ! {
    eprintln!("vmalloc: {message}");
    std::process::abort()
}
