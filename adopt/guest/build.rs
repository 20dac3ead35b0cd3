//! Links the program that boots: at the addresses of `linker.ld`, without the start files of a system.

use std::env::var;

fn main() {
    println!("cargo:rerun-if-changed=linker.ld");
    // The library is also built for machines with a system, where there is nothing to link.
    if var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none") {
        for argument in ["--no-pie", "--build-id=none", "-zmax-page-size=4096", "--gc-sections"] {
            println!("cargo:rustc-link-arg-bins={argument}");
        }
        println!("cargo:rustc-link-arg-bins=-T{}/linker.ld", var("CARGO_MANIFEST_DIR").unwrap_or_default());
    }
}
