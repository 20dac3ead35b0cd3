//! Statistics for a recorder of the crate `metrics`.
//!
//! A program that records metrics installs a recorder. An allocator publishes its statistics there at each call of
//! [`Vmalloc::publish_metrics`]. No lock of the allocator is held while the recorder runs, so the recorder may allocate
//! from it.

use crate::heap::Stats;
use crate::vmalloc::Vmalloc;
use ::metrics::{counter, gauge};

impl Vmalloc {
    /// Publishes [`stats`](Self::stats) to the recorder of the process, or of this thread. Current values are gauges,
    /// in bytes except for `vmalloc_moved_areas`, `vmalloc_guards` and `vmalloc_quarantined_areas`. Totals since the
    /// start are counters. The label `allocator` is `name`.
    ///
    /// Cost: every lock of the allocator once, and the recorder's own cost.
    pub fn publish_metrics(&self, name: &'static str) {
        let Stats {
            arena_bytes,
            committed_bytes,
            live_bytes,
            cached_bytes,
            dirty_bytes,
            record_bytes,
            purged_bytes,
            cache_hits,
            moved_areas,
            copies,
            retired_bytes,
            failed_purges,
            guards,
            unguarded_areas,
            quarantined_bytes,
            quarantined_areas,
            ..
        } = self.stats();
        gauge!("vmalloc_arena_bytes", "allocator" => name).set(arena_bytes as f64);
        gauge!("vmalloc_committed_bytes", "allocator" => name).set(committed_bytes as f64);
        gauge!("vmalloc_live_bytes", "allocator" => name).set(live_bytes as f64);
        gauge!("vmalloc_cached_bytes", "allocator" => name).set(cached_bytes as f64);
        gauge!("vmalloc_dirty_bytes", "allocator" => name).set(dirty_bytes as f64);
        gauge!("vmalloc_record_bytes", "allocator" => name).set(record_bytes as f64);
        gauge!("vmalloc_moved_areas", "allocator" => name).set(moved_areas as f64);
        gauge!("vmalloc_retired_bytes", "allocator" => name).set(retired_bytes as f64);
        gauge!("vmalloc_guards", "allocator" => name).set(guards as f64);
        gauge!("vmalloc_quarantined_bytes", "allocator" => name).set(quarantined_bytes as f64);
        gauge!("vmalloc_quarantined_areas", "allocator" => name).set(quarantined_areas as f64);
        counter!("vmalloc_purged_bytes_total", "allocator" => name).absolute(purged_bytes);
        counter!("vmalloc_cache_hits_total", "allocator" => name).absolute(cache_hits);
        counter!("vmalloc_copies_total", "allocator" => name).absolute(copies);
        counter!("vmalloc_failed_purges_total", "allocator" => name).absolute(failed_purges);
        counter!("vmalloc_unguarded_areas_total", "allocator" => name).absolute(unguarded_areas);
    }
}
