//! Linux with fault injection: a test can let each call fail. For tests of the crates over this one, with the feature
//! `testing`.

use super::{Call, Entry, Errno, Huge, Linux, Os, Room, Span, Stopped, ThreadName};
use core::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

const CALLS: usize = Call::Unmap as usize + 1;

/// A system whose clones share their state.
#[derive(Clone)]
pub struct Shim(Arc<State>);

impl core::fmt::Debug for Shim {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shim").finish_non_exhaustive()
    }
}

type Watch = Box<dyn Fn(Call) + Send + Sync>;

struct State {
    linux: Linux,
    /// Called first in each call.
    watch: OnceLock<Watch>,
    /// Calls of a kind that succeed before the next ones fail.
    left: [AtomicU64; CALLS],
    /// Calls of a kind that fail after those.
    injected: [AtomicU64; CALLS],
    calls: [AtomicU64; CALLS],
    limit: AtomicUsize,
    reserve_max: AtomicUsize,
    commit_max: AtomicUsize,
    mapped: AtomicUsize,
    mappings_max: AtomicU64,
    /// Available bytes; `u64::MAX` if the system does not report them.
    available: AtomicU64,
    is_short: AtomicBool,
    /// Nanoseconds of its clock, which only tests advance.
    now: AtomicU64,
    /// The error of an injected failure.
    errno: AtomicI32,
    /// True if a failed remap leaves a hole at its destination.
    tears: AtomicBool,
    /// True if a failed move does half of its work.
    halves: AtomicBool,
    /// True if pages can never move.
    still: AtomicBool,
    cpu: AtomicUsize,
    cpus: AtomicUsize,
}

impl Default for Shim {
    fn default() -> Self {
        let many = || [const { AtomicU64::new(u64::MAX) }; CALLS];
        Self(Arc::new(State {
            linux: Linux::new(),
            watch: OnceLock::new(),
            left: many(),
            injected: many(),
            calls: [const { AtomicU64::new(0) }; CALLS],
            limit: AtomicUsize::new(usize::MAX),
            reserve_max: AtomicUsize::new(usize::MAX),
            commit_max: AtomicUsize::new(usize::MAX),
            mapped: AtomicUsize::new(0),
            mappings_max: AtomicU64::new(65_530),
            available: AtomicU64::new(u64::MAX),
            is_short: AtomicBool::new(false),
            now: AtomicU64::new(1),
            errno: AtomicI32::new(Errno::NOMEM.0),
            tears: AtomicBool::new(false),
            halves: AtomicBool::new(false),
            still: AtomicBool::new(false),
            cpu: AtomicUsize::new(usize::MAX),
            cpus: AtomicUsize::new(4),
        }))
    }
}

impl Shim {
    /// Lets every call of a kind fail after `granted` more.
    pub fn fail(&self, call: Call, granted: u64) {
        self.fail_some(call, granted, u64::MAX);
    }

    /// Lets `count` calls of a kind fail after `granted` more.
    pub fn fail_some(&self, call: Call, granted: u64, count: u64) {
        self.0.injected[call as usize].store(count, Ordering::Relaxed);
        self.0.left[call as usize].store(granted, Ordering::Relaxed);
    }

    /// Sets the error of injected failures.
    pub fn fail_with(&self, errno: Errno) {
        self.0.errno.store(errno.0, Ordering::Relaxed);
    }

    /// Sets whether a failed remap leaves a hole at its destination.
    pub fn tear(&self, tears: bool) {
        self.0.tears.store(tears, Ordering::Relaxed);
    }

    /// Sets whether a failed move has moved half.
    pub fn halve(&self, halves: bool) {
        self.0.halves.store(halves, Ordering::Relaxed);
    }

    /// Reports from now on that pages can never move, as a kernel before 6.8.
    pub fn stand_still(&self) {
        self.0.still.store(true, Ordering::Relaxed);
    }

    /// Ends all fault injection.
    pub fn allow(&self) {
        self.0.left.iter().for_each(|left| left.store(u64::MAX, Ordering::Relaxed));
    }

    /// Sets a function that each call calls first, in the thread that makes it.
    pub fn watch(&self, watch: impl Fn(Call) + Send + Sync + 'static) {
        assert!(self.0.watch.set(Box::new(watch)).is_ok(), "a system is watched once");
    }

    /// Returns the number of calls of a kind so far, including failed ones.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.0.calls[call as usize].load(Ordering::Relaxed)
    }

    /// Sets the limit of address space that it reports.
    pub fn limit_addresses(&self, bytes: Option<usize>) {
        self.0.limit.store(bytes.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Lets reservations of more bytes than that fail.
    pub fn fail_above(&self, bytes: Option<usize>) {
        self.0.reserve_max.store(bytes.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Lets commits of more bytes than that fail.
    pub fn fail_commit_above(&self, bytes: Option<usize>) {
        self.0.commit_max.store(bytes.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Sets the greatest number of mappings that it reports.
    pub fn limit_mappings(&self, max: u64) {
        self.0.mappings_max.store(max, Ordering::Relaxed);
    }

    /// Sets the available bytes.
    pub fn set_available(&self, bytes: u64) {
        self.0.available.store(bytes, Ordering::Relaxed);
    }

    /// Sets whether memory is short, regardless of the available bytes.
    pub fn set_short(&self, is_short: bool) {
        self.0.is_short.store(is_short, Ordering::Relaxed);
    }

    /// Advances the clock.
    pub fn pass(&self, time: core::time::Duration) {
        self.0.now.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Sets the CPU of all callers.
    pub fn on_cpu(&self, cpu: usize) {
        self.0.cpu.store(cpu, Ordering::Relaxed);
    }

    /// Sets the number of CPUs that later calls return.
    pub fn set_cpus(&self, cpus: usize) {
        self.0.cpus.store(cpus, Ordering::Relaxed);
    }

    /// Returns the bytes that are mapped and reserved.
    #[must_use]
    pub fn mapped(&self) -> usize {
        self.0.mapped.load(Ordering::Relaxed)
    }

    fn granted(&self, call: Call) -> Result<(), Errno> {
        if let Some(watch) = self.0.watch.get() {
            watch(call);
        }
        let at = call as usize;
        self.0.calls[at].fetch_add(1, Ordering::Relaxed);
        let take = |counter: &AtomicU64| {
            let less = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
        };
        if take(&self.0.left[at]) || !take(&self.0.injected[at]) {
            return Ok(());
        }
        Err(Errno(self.0.errno.load(Ordering::Relaxed)))
    }

    fn noted(&self, bytes: usize, mapped: Result<usize, Errno>) -> Result<usize, Errno> {
        if mapped.is_ok() {
            self.0.mapped.fetch_add(bytes, Ordering::Relaxed);
        }
        mapped
    }
}

impl Os for Shim {
    fn reserve(&self, bytes: usize) -> Result<usize, Errno> {
        self.granted(Call::Reserve)?;
        if bytes > self.0.reserve_max.load(Ordering::Relaxed) {
            return Err(Errno::NOMEM);
        }
        self.noted(bytes, self.0.linux.reserve(bytes))
    }

    fn map(&self, bytes: usize) -> Result<usize, Errno> {
        self.granted(Call::Map)?;
        self.noted(bytes, self.0.linux.map(bytes))
    }

    unsafe fn unmap(&self, span: Span) -> bool {
        if self.granted(Call::Unmap).is_err() {
            return false;
        }
        self.0.mapped.fetch_sub(span.bytes, Ordering::Relaxed);
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.unmap(span) }
    }

    unsafe fn commit(&self, span: Span) -> Result<(), Errno> {
        self.granted(Call::Commit)?;
        if span.bytes > self.0.commit_max.load(Ordering::Relaxed) {
            return Err(Errno::NOMEM);
        }
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.commit(span) }
    }

    unsafe fn discard(&self, spans: &[Span]) -> Result<(), (usize, Errno)> {
        for (done, span) in spans.iter().enumerate() {
            self.granted(Call::Discard).map_err(|errno| (done, errno))?;
            // SAFETY: as this function's contract.
            unsafe { self.0.linux.discard(core::slice::from_ref(span)) }?;
        }
        Ok(())
    }

    unsafe fn move_pages(&self, from: Span, to: usize) -> Result<(), Stopped> {
        if let Err(errno) = self.granted(Call::Move) {
            let pages = from.bytes / crate::PAGE_BYTES;
            let bytes = if self.0.halves.load(Ordering::Relaxed) { pages / 2 * crate::PAGE_BYTES } else { 0 };
            // SAFETY: as this function's contract.
            unsafe { self.0.linux.move_pages(Span { bytes, ..from }, to) }?;
            return Err(Stopped { bytes, errno });
        }
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.move_pages(from, to) }
    }

    fn can_move(&self) -> bool {
        self.0.linux.can_move() && !self.0.still.load(Ordering::Relaxed)
    }

    unsafe fn remap(&self, from: Span, to: usize) -> Result<(), Errno> {
        if let Err(errno) = self.granted(Call::Remap) {
            if self.0.tears.load(Ordering::Relaxed) {
                // SAFETY: as this function's contract: no reference to it exists.
                unsafe { self.0.linux.unmap(Span { at: to, ..from }) };
            }
            return Err(errno);
        }
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.remap(from, to) }
    }

    unsafe fn guard(&self, span: Span) -> Result<(), Errno> {
        self.granted(Call::Guard)?;
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.guard(span) }
    }

    unsafe fn unguard(&self, span: Span) -> Result<(), Errno> {
        self.granted(Call::Unguard)?;
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.unguard(span) }
    }

    fn can_guard(&self) -> bool {
        self.0.linux.can_guard()
    }

    unsafe fn advise(&self, span: Span, huge: Huge) -> Result<(), Errno> {
        self.granted(Call::Advise)?;
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.advise(span, huge) }
    }

    unsafe fn inherit(&self, span: Span, inherited: bool) -> Result<(), Errno> {
        self.granted(Call::Advise)?;
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.inherit(span, inherited) }
    }

    fn can_disinherit(&self) -> bool {
        self.0.linux.can_disinherit()
    }

    fn forget(&self) {
        self.0.linux.forget();
    }

    unsafe fn renew(&self, span: Span) -> Result<(), Errno> {
        self.granted(Call::Renew)?;
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.renew(span) }
    }

    unsafe fn keep_policy(&self, from: Span, to: Span) -> bool {
        // SAFETY: as this function's contract.
        self.granted(Call::Advise).is_ok() && unsafe { self.0.linux.keep_policy(from, to) }
    }

    unsafe fn reset(&self, span: Span) -> Result<(), Errno> {
        self.granted(Call::Forbid)?;
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.reset(span) }
    }

    unsafe fn mend(&self, span: Span) -> bool {
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.mend(span) }
    }

    unsafe fn map_at(&self, span: Span) -> Result<(), Errno> {
        self.granted(Call::Commit)?;
        // SAFETY: as this function's contract.
        let mapped = unsafe { self.0.linux.map_at(span) };
        self.noted(span.bytes, mapped.map(|()| span.at)).map(drop)
    }

    unsafe fn forbid(&self, span: Span) -> Result<(), Errno> {
        self.granted(Call::Forbid)?;
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.forbid(span) }
    }

    fn resident(&self, span: Span, seen: &mut [u8]) -> Result<(), Errno> {
        self.granted(Call::Resident)?;
        self.0.linux.resident(span, seen)
    }

    fn random(&self) -> Result<[u64; 2], Errno> {
        self.granted(Call::Random)?;
        self.0.linux.random()
    }

    unsafe fn spawn(&self, stack: Span, entry: Entry, argument: *mut c_void) -> Result<ThreadName, Errno> {
        self.granted(Call::Spawn)?;
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.spawn(stack, entry, argument) }
    }

    unsafe fn join(&self, thread: ThreadName) {
        // SAFETY: as this function's contract.
        unsafe { self.0.linux.join(thread) };
    }

    fn cpu(&self) -> usize {
        match self.0.cpu.load(Ordering::Relaxed) {
            usize::MAX => self.0.linux.cpu(),
            cpu => cpu,
        }
    }

    fn cpus(&self) -> usize {
        self.0.cpus.load(Ordering::Relaxed)
    }

    fn address_limit(&self) -> Option<usize> {
        Some(self.0.limit.load(Ordering::Relaxed)).filter(|&limit| limit != usize::MAX)
    }

    fn available(&self) -> Option<Room> {
        let bytes = self.0.available.load(Ordering::Relaxed);
        let is_short = self.0.is_short.load(Ordering::Relaxed);
        (bytes != u64::MAX).then_some(Room { bytes, is_short })
    }

    fn now(&self) -> Option<u64> {
        Some(self.0.now.load(Ordering::Relaxed))
    }

    fn mappings_max(&self) -> u64 {
        self.0.mappings_max.load(Ordering::Relaxed)
    }
}

/// Binds pages to node 0 (`MPOL_BIND`), as a program does. Returns `false` if the system call fails.
pub fn bind(at: usize, bytes: usize) -> bool {
    if cfg!(miri) {
        return false;
    }
    let node = 1u64;
    let (mode, nodes) = (2 as core::ffi::c_long, 64 as core::ffi::c_long);
    // SAFETY: reads `node`; a policy changes no byte.
    let code = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            super::pointer(at),
            bytes,
            mode,
            &raw const node,
            nodes,
            0 as core::ffi::c_long,
        )
    };
    code == 0
}

/// Returns true if the page at an address has a memory policy of its own.
#[must_use]
pub fn is_bound(at: usize) -> bool {
    #[cfg(miri)]
    let policy: Option<()> = Some(at).and(None);
    #[cfg(not(miri))]
    let policy = super::policy::policy_at(at);
    policy.is_some()
}

/// Returns the number of mappings of this process that touch `[start, end)`, as the system lists them.
///
/// The system writes its list page by page. A mapping that another thread makes meanwhile may merge with one that was
/// listed already. Then the list continues with that mapping again, longer. Addresses that were listed count once.
#[expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#[must_use]
pub fn mappings_in(start: usize, end: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let (mut count, mut listed) = (0, start);
    for line in maps.lines() {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap());
        count += usize::from(from.max(listed) < to.min(end));
        listed = listed.max(to);
    }
    count
}
