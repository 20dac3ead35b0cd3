//! Statistics for a recorder of the crate `metrics`, as `Vmalloc::publish_metrics` of the crate `vmalloc` reports them.

use crate::mappings::{MappingStats, Mappings};
use ::metrics::{counter, gauge};

impl Mappings {
    /// Publishes [`stats`](Self::stats) to the recorder of the process, or of this thread. Current values are gauges,
    /// and the total of flushes is a counter. The label `allocator` is `name`.
    ///
    /// No lock is held while the recorder runs.
    pub fn publish_metrics(&self, name: &'static str) {
        let MappingStats {
            range_bytes,
            mapped_bytes,
            stale_bytes,
            system_mappings,
            system_mappings_max,
            flush_calls,
            frames,
        } = self.stats();
        gauge!("vmalloc_vmap_range_bytes", "allocator" => name).set(range_bytes as f64);
        gauge!("vmalloc_vmap_mapped_bytes", "allocator" => name).set(mapped_bytes as f64);
        gauge!("vmalloc_vmap_stale_bytes", "allocator" => name).set(stale_bytes as f64);
        gauge!("vmalloc_vmap_system_mappings", "allocator" => name).set(system_mappings as f64);
        gauge!("vmalloc_vmap_system_mappings_max", "allocator" => name).set(system_mappings_max as f64);
        gauge!("vmalloc_vmap_frames", "allocator" => name).set(frames as f64);
        counter!("vmalloc_vmap_flush_calls_total", "allocator" => name).absolute(flush_calls);
    }
}
