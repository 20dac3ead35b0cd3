//! The kernels' own types and functions, as far as the ports use them. A kernel that takes a port has the real ones.

pub mod asterinas;
pub mod hermit;
pub mod lock;
pub mod svsm;
