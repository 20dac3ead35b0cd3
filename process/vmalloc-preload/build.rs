//! Link options of the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Its constructor runs before all others, so that the user's options apply to all of them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Its functions call each other, not definitions of another library that was preloaded before it, which may call
    // this library (LP2).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // The library stays loaded, since its memory may be used after a close.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
