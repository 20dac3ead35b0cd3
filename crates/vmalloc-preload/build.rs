//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Its constructor runs before all others, so its handlers of a fork are the last to lock and the first to unlock.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Memory that it gave out outlives whoever closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
