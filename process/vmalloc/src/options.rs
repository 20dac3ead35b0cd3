//! The parameters of an allocator.

use core::time::Duration;

/// The parameters of an allocator.
///
/// Each field has a setter of the same name:
///
/// ```
/// let memory = vmalloc::Vmalloc::new(vmalloc::Options::default().guards(true).cache_bytes_max(64 << 20))?;
/// # Ok::<(), vmalloc::CreateError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Address space that it may reserve, in bytes. It takes what the machine and the limits of the process allow, at
    /// most half of `RLIMIT_AS`, and needs 32 MiB. 1 TiB by default. From 64 GiB on, 30 parts in 128 are for CPUs that
    /// wait for each other: without such CPUs no area lies there.
    pub arena_bytes_max: usize,
    /// Freed memory that it may cache, in bytes; 128 MiB by default. Magazines of CPUs hold part of it, at most a
    /// quarter in areas below 2 MiB and half in larger ones. An idle process caches nothing once it has its
    /// [thread](Self::background_thread), except parts of blocks that others use. Of areas that were freed while that
    /// slept, at most one of less than 2 MiB a CPU stays. 0 releases everything at once. The bound is never more than a
    /// quarter of what the system and its control groups have left, which is read after each 32 MiB. It trades resident
    /// memory against page faults: `docs/decisions/0014-two-zones.md`. Where threads wait for each other, CPUs get
    /// addresses of their own, one part for each 16 MiB of this bound and at most 16. Then what is free in blocks
    /// that are partly in use does not count to it, and the bound may be exceeded by an eighth.
    pub cache_bytes_max: usize,
    /// If true, each area is followed by a guard page, so that an access past the end of its pages faults. Costs a page
    /// of addresses an area, and a system call when an area is carved and when it leaves the magazines; nothing while
    /// it is reused. An area that is resized to another number of pages is copied then. Before Linux 6.13 there are no
    /// more than an eighth of `vm.max_map_count`; areas beyond have none, and [`crate::Stats::unguarded_areas`] counts
    /// them. `false` by default; the hardened profile always has guards.
    pub guards: bool,
    /// The handling of mistakes with memory.
    pub profile: Profile,
    /// The areas that are on huge pages.
    pub huge_pages: HugePages,
    /// Time that freed memory stays cached that no caller needs, about; 1 s by default. `None`: it stays until others
    /// need it. It is released by a thread ([`background_thread`](Self::background_thread)) or, while there is none, by
    /// the program's calls, 8 MiB at a time. These are frees that find a place taken, areas that shrink, and one cached
    /// allocation of 128. A program that makes none of them keeps its cache. Not in the hardened profile.
    pub decay: Option<Duration>,
    /// If true, a thread applies [`decay`](Self::decay), so that an idle process caches nothing. `true` by default. It
    /// starts when 16 MiB are cached. `unshare(CLONE_NEWUSER)` and the like fail in a process with threads: call them
    /// before, or run without this thread. Its code is of the library that has the allocator: one that is closed by
    /// `dlclose` needs `-z nodelete`, or no such thread. A process whose last other thread ends by `pthread_exit` goes on
    /// with this one, which takes no signal: run it without.
    pub background_thread: bool,
    /// If true, the caller of each area is recorded for [`crate::Vmalloc::vmallocinfo`]: the location of the call in
    /// the source, or the text given to [`crate::Vmalloc::alloc_tagged`]. Costs a few nanoseconds an allocation, eight
    /// bytes of address range a page of the arena, and memory in steps of 256 KiB. That is one step for each 128 MiB in
    /// which areas begin; nothing where it is off. A library that allocated must not be unloaded when its areas are
    /// listed: its texts and locations are read. Not in the hardened profile. `false` by default.
    pub caller_tags: bool,
    /// If true, freed memory is zeroed at once, so that no caller reads what another wrote. Otherwise
    /// [`crate::Vmalloc::alloc`] returns memory with its old contents, also of other threads. Costs as much as writing
    /// each area, or as its release if little of it is resident. The hardened profile always does so. `false` by
    /// default.
    pub zero_on_free: bool,
}

/// The areas that are on transparent huge pages, if the system has those.
///
/// The first byte that is touched of a fresh huge page makes all of it resident, 2 MiB, which areas below that size
/// share. A program that touches little of large areas has more memory resident. But there is one page fault where
/// there would be 512, at a twentieth of their time, and pages move by 2 MiB at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum HugePages {
    /// None.
    Never,
    /// Those of 64 KiB and more.
    #[default]
    Auto,
    /// Those that the settings of the system choose: no madvise() call. Areas below 4 MiB are cached, moved and
    /// released by 64 KiB, so that hardly more is resident than the program uses.
    System,
    /// All.
    Always,
}

impl Options {
    vmalloc_os::setters! {
        arena_bytes_max: usize,
        cache_bytes_max: usize,
        guards: bool,
        profile: Profile,
        huge_pages: HugePages,
        decay: Option<Duration>,
        background_thread: bool,
        caller_tags: bool,
        zero_on_free: bool,
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            arena_bytes_max: 1 << 40,
            cache_bytes_max: 128 << 20,
            guards: false,
            profile: Profile::Ordinary,
            huge_pages: HugePages::Auto,
            decay: Some(Duration::from_secs(1)),
            background_thread: true,
            caller_tags: false,
            zero_on_free: false,
        }
    }
}

/// The handling of mistakes with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Profile {
    /// A bad free is a typed error. Writes outside an area are not detected.
    #[default]
    Ordinary,
    /// Overflows and uses after free fault, bad frees abort, addresses cannot be guessed: at the cost of some system
    /// calls for each area.
    Hardened(Hardened),
}

/// The numbers of the hardened profile. Each field has a setter of the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Hardened {
    /// Address space in which areas are placed at random, in bytes; more if more than a quarter of it is taken, less
    /// where the system denies it. 16 GiB by default: a small area is in one of 2^13 tables of 2^9 pages, of which 16
    /// are in use at a time.
    pub window_bytes: usize,
    /// Address space of freed areas that is not reused yet, in bytes. 1 GiB by default.
    pub quarantine_bytes_max: usize,
    /// Areas that the quarantine may have. 16,384 by default.
    pub quarantine_areas_max: usize,
    /// The method by which access is denied.
    pub walls: Walls,
}

impl Hardened {
    vmalloc_os::setters! {
        window_bytes: usize,
        quarantine_bytes_max: usize,
        quarantine_areas_max: usize,
        walls: Walls,
    }
}

impl Default for Hardened {
    fn default() -> Self {
        Self {
            window_bytes: 16 << 30,
            quarantine_bytes_max: 1 << 30,
            quarantine_areas_max: 1 << 14,
            walls: Walls::Best,
        }
    }
}

/// The methods by which the hardened profile denies access to addresses that are beside an area, or were in one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Walls {
    /// By guard markers (Linux 6.13 and later); by protection where there are none.
    #[default]
    Best,
    /// By the protection of mappings. Each area splits one, so there may be an eighth of `vm.max_map_count` at a time;
    /// no pages stay cached.
    Protection,
}
