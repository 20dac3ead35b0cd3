//! The configuration of a process's spaces, which allocate the addresses of areas.

use va_base::{Machine, Pages, Platform};
use va_space::Config;
use va_space::config::Standard;
use va_space::decay::Quarter;
use va_space::lookup::MapLookup;
use va_space::node::HashedZones;
use va_tree::BTreeIndex;

/// The policy of a process's spaces. No pools: cached memory (a quarantine, or dirty pages, in front of the space)
/// stays busy in the space. Areas are lazy only briefly, since their pages are released before their addresses.
pub(crate) struct Process;

impl Config for Process {
    type Base = Standard;
    type Index<P: Platform + Clone + Send> = BTreeIndex<P>;
    type Zone = HashedZones;
    type Decay = Quarter;
    type Lookup<P: Machine> = MapLookup;
    const NODES_MAX: u32 = 1;
    const POOL_ON_ONE_NODE: bool = false;
    const POOL_PAGES_MAX: u64 = 0;
    const POOL_TRIES: u32 = 0;
    const STEAL: bool = false;
    const SLICE_AREAS: u64 = u64::MAX;

    /// No limit in practice: the caller that frees purges after its last free.
    fn lazy_max(_cpus: u32) -> Pages {
        Pages::new(1 << 40)
    }
}
