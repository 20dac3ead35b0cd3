//! Gives the shared library its name: programs ask for `libvmalloc.so.MAJOR`, whatever minor version they were built with.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libvmalloc.so.{major}");
    // A program may close what it opened while there are areas, and handlers of forks.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
