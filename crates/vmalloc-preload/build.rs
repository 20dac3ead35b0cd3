//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Its constructor runs before all others, so what a user chose holds for all of them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Rust's runtime wants an unwinder; the one of gcc's own archive saves every process a shared library.
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let found = std::process::Command::new(cc).arg("-print-file-name=libgcc_eh.a").output();
    if let Some(dir) = found.ok().and_then(|out| {
        Some(std::path::Path::new(std::str::from_utf8(&out.stdout).ok()?.trim()).parent()?.to_owned())
    }) && dir.is_absolute()
    {
        println!("cargo::rustc-link-search=native={}", dir.display());
        println!("cargo::rustc-link-lib=static=gcc_eh");
    }
    // Memory that it gave out outlives whoever closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
