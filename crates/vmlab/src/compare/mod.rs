//! Targets side by side on the kernel's test suite: ratios, latencies, locks, and the figures of the documents that this began with.
mod measure;
mod observe;
