//! Names the profile of the build, which a table of figures states.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Cargo tells a build script of `release` or `debug` alone, and writes below a folder of the profile's name.
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let folder = out.ancestors().nth(3).and_then(|folder| folder.file_name()?.to_str());
    println!("cargo::rustc-env=VMLAB_PROFILE={}", folder.unwrap_or("unknown"));
}
