//! Sets the shared library's soname: programs load `libvmalloc.so.MAJOR`, regardless of the minor version at build
//! time.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libvmalloc.so.{major}");
    // The library stays loaded: a program may close it while areas and fork handlers exist.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
