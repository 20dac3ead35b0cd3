//! Exports the profile and the compiler of the build, which the tables of figures name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Cargo passes only `release` or `debug` to a build script, but its folder has the profile's name.
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let folder = out.ancestors().nth(3).and_then(|folder| folder.file_name()?.to_str());
    println!("cargo::rustc-env=VMLAB_PROFILE={}", folder.unwrap_or("unknown"));
    let rustc = std::process::Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .arg("--version")
        .output();
    let version = rustc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    println!("cargo::rustc-env=VMLAB_RUSTC={}", version.as_deref().unwrap_or("unknown"));
}
