//! The system's support for per-CPU data: libc's rseq area, concurrency ids, the barrier that ends
//! sections, and the number of CPUs.
//!
//! Support is detected once a process, since that searches a symbol in all libraries, and the barrier interrupts CPUs.
//! Missing support is reported, and its only effect is that operations are atomic ones.

use super::Index;
use super::rseq::Area;
use core::sync::atomic::{AtomicU32, Ordering};

/// A result that is computed once. Concurrent first calls compute the same value, so there is no lock that a fork could
/// leave held.
struct Once(AtomicU32);

impl Once {
    /// No result yet: neither a number of CPUs nor a boolean.
    const UNKNOWN: u32 = u32::MAX;

    const fn new() -> Self {
        Self(AtomicU32::new(Self::UNKNOWN))
    }

    fn get(&self, ask: impl FnOnce() -> u32) -> u32 {
        let known = self.0.load(Ordering::Relaxed);
        if known != Self::UNKNOWN {
            return known;
        }
        let answer = ask();
        self.0.store(answer, Ordering::Relaxed);
        answer
    }
}

/// Returns the addresses by which this process can use sections, and the kind of its numbers.
pub(super) fn area(index: Index) -> Option<(Area, Index)> {
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    {
        /// The offsets of `cpu_id` and `mm_cid` in the area.
        const CPU_AT: isize = 4;
        const MM_CID_AT: isize = 24;
        /// The least size of an area with `mm_cid`.
        const WITH_MM_CID: u64 = 28;
        let area = crate::os::rseq_area()?;
        const AT_RSEQ_FEATURE_SIZE: core::ffi::c_ulong = 27;
        // SAFETY: reads a number.
        let filled = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) };
        Some(match index {
            Index::ConcurrencyId if filled >= WITH_MM_CID => {
                (Area { area, id: area + MM_CID_AT }, Index::ConcurrencyId)
            }
            Index::ConcurrencyId | Index::Cpu => (Area { area, id: area + CPU_AT }, Index::Cpu),
        })
    }
    #[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
    {
        let _no_sections_here = index;
        None
    }
}

/// Returns true if sections are available: libc registered an area.
pub(crate) fn has_sections() -> bool {
    area(Index::Cpu).is_some()
}

/// Returns true if the kernel stores concurrency ids in the area.
pub(crate) fn has_concurrency_ids() -> bool {
    area(Index::ConcurrencyId).is_some_and(|(_, index)| index == Index::ConcurrencyId)
}

/// Commands of `membarrier`.
const REGISTER: i64 = 1 << 8;
const FENCE: i64 = 1 << 7;
#[cfg(not(loom))]
const REGISTER_ALL: i64 = 1 << 4;
#[cfg(not(loom))]
const FENCE_ALL: i64 = 1 << 3;

/// Returns true if [`end_sections`] works, from now on and in children. It may still fail later, if the program
/// installs a filter of system calls.
pub(crate) fn can_end_sections() -> bool {
    static CAN: Once = Once::new();
    CAN.get(|| u32::from(membarrier(REGISTER) && membarrier(FENCE))) == 1
}

/// Restarts every section that a thread of this process is in. Earlier stores of these sections are visible afterwards,
/// and earlier stores of this thread are visible to sections that begin later. Returns `false` if the system call
/// fails.
pub(super) fn end_sections() -> bool {
    // A child of a fork has to register again.
    membarrier(FENCE) || (membarrier(REGISTER) && membarrier(FENCE))
}

/// Executes a full barrier on every CPU that runs a thread of this process. Returns `false` if the system denies it.
#[cfg(not(loom))]
pub(crate) fn fence_all() -> bool {
    // As above: a child of a fork has to register again.
    membarrier(FENCE_ALL) || (membarrier(REGISTER_ALL) && membarrier(FENCE_ALL))
}

fn membarrier(command: i64) -> bool {
    // SAFETY: accesses no memory.
    let code = || unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    crate::os::unless_plain(code) == Some(0)
}

/// Returns the number of possible CPUs: every CPU number is below it.
pub(super) fn cpus_possible() -> u32 {
    static COUNT: Once = Once::new();
    COUNT.get(count_cpus)
}

fn count_cpus() -> u32 {
    let mut text = [0u8; 256];
    let path = c"/sys/devices/system/cpu/possible";
    // SAFETY: a path that ends with 0.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    let count = if file < 0 {
        -1
    } else {
        // SAFETY: writes at most as many bytes as `text` has.
        let count = unsafe { libc::read(file, text.as_mut_ptr().cast(), text.len()) };
        // SAFETY: the file that was opened here.
        let _closed = unsafe { libc::close(file) };
        count
    };
    let listed = usize::try_from(count).ok().and_then(|count| last_of(text.get(..count)?));
    // SAFETY: reads a number.
    let configured = || u32::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }).unwrap_or(1);
    listed.map_or_else(configured, |last| last.saturating_add(1)).max(1)
}

/// Returns the last, largest number of a list such as `0-3,8-11`.
fn last_of(text: &[u8]) -> Option<u32> {
    let text = core::str::from_utf8(text).ok()?.trim();
    text.rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_ends_with_its_largest() {
        let cases =
            [("0\n", Some(0)), ("0-63\n", Some(63)), ("0-3,8-11\n", Some(11)), ("", None), ("x", None)];
        for (text, want) in cases {
            assert_eq!(last_of(text.as_bytes()), want, "{text:?}");
        }
        assert!(cpus_possible() >= 1);
    }

    #[test]
    fn an_answer_is_asked_for_once() {
        let (once, mut asked) = (Once::new(), 0);
        for _ in 0..3 {
            let answer = once.get(|| {
                asked += 1;
                7
            });
            assert_eq!(answer, 7);
        }
        assert_eq!(asked, 1);
    }
}
