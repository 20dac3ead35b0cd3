//! The addresses by which sections find their unit, and the number of CPUs.
//!
//! Missing support is reported, and its only effect is that operations are atomic ones. A number is computed once a
//! process.

use super::Index;
use super::rseq::Area;
use vmalloc_os::os::{Once, read_start};

/// Returns the addresses by which this process can use sections, and the kind of its numbers.
pub(super) fn area(index: Index) -> Option<(Area, Index)> {
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    {
        /// The offsets of `cpu_id` and `mm_cid` in the area.
        const CPU_AT: isize = 4;
        const MM_CID_AT: isize = 24;
        let area = vmalloc_os::os::rseq_area()?;
        Some(match index {
            Index::ConcurrencyId if vmalloc_os::os::has_concurrency_ids() => {
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

/// Returns the number of possible CPUs: every CPU number is below it.
pub(super) fn cpus_possible() -> u32 {
    static COUNT: Once = Once::new();
    COUNT.get(count_cpus)
}

fn count_cpus() -> u32 {
    let mut text = [0u8; 256];
    let listed = read_start(c"/sys/devices/system/cpu/possible", &mut text).and_then(last_of);
    // SAFETY: reads a number.
    let configured = || u32::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }).unwrap_or(1);
    listed.map_or_else(configured, |last| last.saturating_add(1)).max(1)
}

/// Returns the last, largest number of a list such as `0-3,8-11`.
fn last_of(text: &[u8]) -> Option<u32> {
    let text = core::str::from_utf8(text).ok()?.trim();
    text.rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(all(test, not(loom)))]
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
}
