//! Statistics of locks: the figures of a class, and the code locations of its contentions.
//!
//! # Invariants
//! - **LS1 two-places** a contention counts once at the location that waited and once at the location that held the
//!   lock.
//!   A location without a name is counted as the others are, and not shown.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};
use va_base::LockClass;

/// The statistics of the locks of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockStat {
    /// Contentions whose last holder was on another CPU.
    pub con_bounces: u64,
    /// Acquisitions that had to wait.
    pub contentions: u64,
    /// Nanoseconds waited in total.
    pub wait_total_ns: u64,
    /// The shortest wait; 0 if there was none.
    pub wait_min_ns: u64,
    /// The longest wait.
    pub wait_max_ns: u64,
    /// CPU time of the waiting threads, in nanoseconds.
    pub wait_cpu_ns: u64,
    /// Acquisitions whose last holder was on another CPU.
    pub acq_bounces: u64,
    /// Acquisitions.
    pub acquisitions: u64,
    /// Nanoseconds held.
    pub hold_total_ns: u64,
    /// The longest hold.
    pub hold_max_ns: u64,
}

impl LockStat {
    const NONE: Self = Self {
        con_bounces: 0,
        contentions: 0,
        wait_total_ns: 0,
        wait_min_ns: 0,
        wait_max_ns: 0,
        wait_cpu_ns: 0,
        acq_bounces: 0,
        acquisitions: 0,
        hold_total_ns: 0,
        hold_max_ns: 0,
    };

    /// Counts a contention.
    pub(super) fn waited(&mut self, ns: u64, cpu_ns: u64, bounced: bool) {
        let one = Self {
            con_bounces: u64::from(bounced),
            contentions: 1,
            wait_total_ns: ns,
            wait_min_ns: ns,
            wait_max_ns: ns,
            wait_cpu_ns: cpu_ns,
            ..Self::NONE
        };
        self.add(&one);
    }

    /// Adds the statistics of another thread.
    pub fn add(&mut self, other: &Self) {
        self.wait_min_ns = match (self.contentions, other.contentions) {
            (0, _) => other.wait_min_ns,
            (_, 0) => self.wait_min_ns,
            _ => self.wait_min_ns.min(other.wait_min_ns),
        };
        self.con_bounces += other.con_bounces;
        self.contentions += other.contentions;
        self.wait_total_ns += other.wait_total_ns;
        self.wait_max_ns = self.wait_max_ns.max(other.wait_max_ns);
        self.wait_cpu_ns += other.wait_cpu_ns;
        self.acq_bounces += other.acq_bounces;
        self.acquisitions += other.acquisitions;
        self.hold_total_ns += other.hold_total_ns;
        self.hold_max_ns = self.hold_max_ns.max(other.hold_max_ns);
    }
}

/// The statistics of each class, in the order of [`LockClass`].
pub type LockStats = [LockStat; LockClass::COUNT];

/// Statistics of no acquisitions.
pub const NOTHING: LockStats = [LockStat::NONE; LockClass::COUNT];

/// The number of contentions in which one code location took part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContendedAt {
    /// The class, in the order of [`LockClass`].
    pub class: usize,
    /// The code that takes the lock.
    pub place: &'static Location<'static>,
    /// Contentions in which this location waited.
    pub waited: u64,
    /// Contentions in which this location held the lock.
    pub held: u64,
}

/// Adds up the counts of threads: one row for each class and location, in the order of the code.
pub fn merge(all: impl IntoIterator<Item = ContendedAt>) -> Vec<ContendedAt> {
    let mut sums: BTreeMap<(usize, &Location<'_>), ContendedAt> = BTreeMap::new();
    for one in all {
        let none = ContendedAt { waited: 0, held: 0, ..one };
        let sum = sums.entry((one.class, one.place)).or_insert(none);
        sum.waited += one.waited;
        sum.held += one.held;
    }
    sums.into_values().collect()
}

/// Numbers of code locations, from 1, which threads store in a lock. A process has a few dozen.
static PLACES: Mutex<Vec<&'static Location<'static>>> = Mutex::new(Vec::new());

fn number_of(place: &'static Location<'static>) -> u32 {
    let mut all = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    // The compiler may emit one location several times.
    let at = all.iter().position(|known| *known == place).unwrap_or_else(|| {
        all.push(place);
        all.len() - 1
    });
    at as u32 + 1
}

fn place_of(number: u32) -> Option<&'static Location<'static>> {
    let all = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    all.get((number as usize).checked_sub(1)?).copied()
}

/// The code locations that one thread has used.
#[derive(Debug)]
pub(super) struct Places {
    /// Cached numbers of locations, so that a thread looks up each location once.
    known: Vec<(&'static Location<'static>, u32)>,
    /// Numbers of waits and holds, by class and location.
    counts: BTreeMap<(usize, u32), (u64, u64)>,
}

impl Places {
    pub(super) const NONE: Self = Self { known: Vec::new(), counts: BTreeMap::new() };

    /// Returns the number of a location.
    pub(super) fn number(&mut self, place: &'static Location<'static>) -> u32 {
        if let Some(&(_, number)) = self.known.iter().find(|(known, _)| std::ptr::eq(*known, place)) {
            return number;
        }
        let number = number_of(place);
        self.known.push((place, number));
        number
    }

    /// Counts a contention by the numbers of its locations, 0 for an unknown one.
    pub(super) fn contended(&mut self, class: usize, wanted_at: u32, held_at: u32) {
        self.counts.entry((class, wanted_at)).or_default().0 += 1;
        self.counts.entry((class, held_at)).or_default().1 += 1;
    }

    /// Returns the counts and resets them. Checks LS1.
    pub(super) fn take(&mut self) -> Vec<ContendedAt> {
        let (waited, held) = self.counts.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        debug_assert_eq!(waited, held, "LS1");
        let one = |((class, number), (waited, held))| {
            Some(ContendedAt { class, place: place_of(number)?, waited, held })
        };
        merge(std::mem::take(&mut self.counts).into_iter().filter_map(one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_saw_adds_up() {
        let one = LockStat {
            contentions: 1,
            wait_total_ns: 5,
            wait_min_ns: 5,
            wait_max_ns: 5,
            hold_max_ns: 2,
            ..LockStat::default()
        };
        let two = LockStat {
            contentions: 2,
            wait_total_ns: 4,
            wait_min_ns: 1,
            wait_max_ns: 3,
            hold_max_ns: 7,
            ..one
        };
        let mut sum = LockStat::default();
        for other in [&one, &LockStat::default(), &two] {
            sum.add(other);
        }
        let figures = |seen: &LockStat| {
            [seen.contentions, seen.wait_total_ns, seen.wait_min_ns, seen.wait_max_ns, seen.hold_max_ns]
        };
        assert_eq!(figures(&sum), [3, 9, 1, 5, 7]);
    }

    #[test]
    fn ls1_each_contention_has_two_places() {
        let [a, b] = [Location::caller(), std::panic::Location::caller()];
        assert_ne!(a, b);
        let (mut first, mut second) = (Places::NONE, Places::NONE);
        let (x, y) = (first.number(a), first.number(b));
        assert_eq!((first.number(a), second.number(b)), (x, y));
        first.contended(1, x, y);
        first.contended(1, x, x);
        first.contended(2, y, x);
        second.contended(1, y, 0);
        let sums = merge(first.take().into_iter().chain(second.take()));
        let row = |class, place, waited, held| ContendedAt { class, place, waited, held };
        // In one of four contentions, the holder's location was unknown.
        assert_eq!(sums, [row(1, a, 2, 1), row(1, b, 1, 1), row(2, a, 0, 1), row(2, b, 1, 0)]);
        assert_eq!(first.take(), []);
    }
}
