//! The saved inputs of fuzzing, which `tests` runs through the bodies of the fuzz targets as plain tests.
//!
//! A package of its own, for its settings: a body compiles each index and each set of policies, and runs for a few
//! hundred calls. To optimise it takes longer than to run it (decision 0063).

#![forbid(unsafe_code)]
