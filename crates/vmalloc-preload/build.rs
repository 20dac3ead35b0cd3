//! Link options of the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Its constructor runs before all others, so what a user chose holds for all of them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Its functions call each other, not a definition of another library that was preloaded before it: that one may have
    // come from here (LP2).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // Memory that it gave out outlives whoever closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
