//! Chooses the linker's arguments for the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Its constructor runs before all others, so what a user chose holds for all of them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Memory that it gave out outlives whoever closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
