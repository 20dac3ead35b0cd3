//! The sources and the working folders of applications: `target/clients`.
//!
//! ```text
//!   target/clients/venv      Python's packages, by pip          target/clients/input    files made here
//!   target/clients/venv      Python's packages, by pip          target/clients/input    files made here
//!                 /sources   crates, for C and Rust sources     target/clients/NAME     the folder of an application
//!                 /packages  the distribution's sources, of upstream test suites
//! ```
//! Programs come from the distribution by apt, if installing is allowed. Installed ones are used.

use super::input::{self, Scale};
use super::suites::Suite;
use super::table::Client;
use super::trial::{Scene, exists};
use crate::sh::{Cmd, Show, on_path};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Crates whose sources are compiled, by exact version.
const SOURCES: &str = "[workspace]\n\n[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n\
     [lib]\npath = \"lib.rs\"\n\n[dependencies]\nlibsqlite3-sys = \"=0.30.1\"\nregex-syntax = \"=0.8.11\"\n";

/// The folder of all applications, and the packages that may be installed.
pub(crate) struct Place {
    root: PathBuf,
    base: PathBuf,
    install: bool,
    scale: Scale,
    path: String,
}

impl Place {
    pub(crate) fn new(root: &Path, install: bool, scale: Scale) -> Result<Self> {
        let base = root.join("target/clients");
        if !input::is_made(&scale.dir(&base)) {
            // By another process: the memory of this one at any time is the least peak that the system reports for an
            // application.
            Cmd::new(root, std::env::current_exe().context("where is this program?")?)
                .args(["clients", "--make-input", scale.word()])
                .run(Show::Failure)?;
        }
        let here = std::env::var("PATH").context("no PATH")?;
        // Before the caller's path: the distribution's programs, not replacements of them, and PostgreSQL's, which it
        // installs elsewhere.
        let mut dirs = vec![base.join("venv/bin")];
        let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path().join("bin"))
            .collect();
        versions.sort();
        dirs.extend(versions.pop());
        dirs.extend(["/usr/bin".into(), "/bin".into(), "/usr/sbin".into()]);
        dirs.extend(std::env::split_paths(&here));
        let path = std::env::join_paths(dirs)?.to_string_lossy().into_owned();
        Ok(Self { root: root.to_path_buf(), base, install, scale, path })
    }

    /// Returns the packages that are missing.
    pub(crate) fn missing(
        &self,
        programs: &[(&'static str, &'static str)],
        modules: &[&'static str],
    ) -> Vec<&'static str> {
        let no_program =
            programs.iter().filter(|(program, _)| !exists(program, &self.path)).map(|(program, _)| *program);
        let no_module = modules.iter().filter(|module| !self.has_module(module)).copied();
        no_program.chain(no_module).collect()
    }

    /// Returns true if pip installed a package here: by the folder of its metadata.
    fn has_module(&self, module: &str) -> bool {
        let start = format!("{}-", module.replace('-', "_"));
        let libraries = fs::read_dir(self.base.join("venv/lib")).into_iter().flatten().flatten();
        libraries
            .flat_map(|python| {
                fs::read_dir(python.path().join("site-packages")).into_iter().flatten().flatten()
            })
            .any(|entry| {
                let name = entry.file_name().to_string_lossy().to_lowercase();
                name.starts_with(&start) && name.ends_with(".dist-info")
            })
    }

    /// Installs missing packages, if that is allowed.
    ///
    /// # Errors
    /// The packages that are still missing afterwards, and why.
    pub(crate) fn provide(
        &self,
        programs: &[(&'static str, &'static str)],
        modules: &[&'static str],
    ) -> Result<()> {
        if self.missing(programs, modules).is_empty() {
            return Ok(());
        }
        if self.install {
            let packages: Vec<&str> = programs
                .iter()
                .filter(|(program, _)| !exists(program, &self.path))
                .map(|(_, package)| *package)
                .collect();
            if !packages.is_empty() && on_path("apt-get") {
                Cmd::new(&self.root, "apt-get")
                    .args(["install", "-y", "--no-install-recommends"])
                    .args(packages)
                    .env("DEBIAN_FRONTEND", "noninteractive")
                    .run(Show::Failure)?;
            }
            let absent: Vec<&str> =
                modules.iter().filter(|module| !self.has_module(module)).copied().collect();
            if !absent.is_empty() {
                let venv = self.base.join("venv");
                if !venv.join("bin/python3").exists() {
                    Cmd::new(&self.root, "python3").args(["-m", "venv"]).arg(&venv).run(Show::Failure)?;
                }
                Cmd::new(&self.root, venv.join("bin/python3"))
                    .args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:"])
                    .args(absent)
                    .run(Show::Failure)?;
            }
        }
        let missing = self.missing(programs, modules);
        if !missing.is_empty() {
            bail!("not installed: {}", missing.join(", "));
        }
        Ok(())
    }

    /// Returns the folder of the crates whose sources are compiled, fetched by cargo once.
    fn sources(&self) -> Result<PathBuf> {
        let dir = self.base.join("sources");
        let (vendor, marker) = (dir.join("vendor"), dir.join("vendored.toml"));
        // The marker has the list of crates: another list is fetched anew.
        if fs::read_to_string(&marker).ok().as_deref() != Some(SOURCES) {
            fs::create_dir_all(&dir)?;
            fs::write(dir.join("Cargo.toml"), SOURCES)?;
            fs::write(dir.join("lib.rs"), "")?;
            Cmd::cargo(&dir).args(["vendor", "--quiet", "vendor"]).run(Show::Failure)?;
            fs::write(&marker, SOURCES)?;
        }
        Ok(vendor)
    }

    fn scripts(&self) -> PathBuf {
        self.root.join("xtask/src/clients/scripts")
    }

    /// Returns a folder by name, separate for each scale, with the variables of scripts. It is not set up yet.
    pub(crate) fn scene(&self, name: &str) -> Result<Scene> {
        let dir = match self.scale {
            Scale::Full => self.base.join(name),
            Scale::Quick => self.base.join(format!("{name}-quick")),
        };
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        // Servers run as other users.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let vars = vec![
            ("PATH", self.path.clone()),
            ("SCRIPTS", text(self.scripts())),
            ("INPUT", text(self.scale.dir(&self.base))),
            ("SCALE", self.scale.word().to_string()),
            ("SOURCES", text(self.base.join("sources/vendor"))),
        ];
        Ok(Scene { dir, vars })
    }

    /// Installs the packages of an application, and sets up its folder. Returns the folder and the version.
    pub(crate) fn set_up(&self, client: &Client) -> Result<(Scene, String)> {
        self.provide(client.programs, client.modules)?;
        if client.set_up.contains("$SOURCES") {
            self.sources()?;
        }
        let scene = self.scene(client.name)?;
        self.once(&scene, client.set_up)?;
        let version = scene.read(client.version).context("its version")?;
        Ok((scene, version.trim().to_string()))
    }

    /// Runs a set-up script unless it has run here.
    fn once(&self, scene: &Scene, script: &str) -> Result<()> {
        // The marker has the script that has run, and its input: another script, and other input, sets up anew.
        let marker = scene.dir.join("set-up.sh");
        let mut whole = format!("# {}\n{script}", self.scale.dir(Path::new("")).display());
        // And the sources of ours that the script names.
        for rest in script.split("$SCRIPTS/").skip(1) {
            let name = rest.split(['"', ' ', '\n']).next().unwrap_or_default();
            let path = self.scripts().join(name);
            let source = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            whole += &format!("\n# {name} {:08x}", crc32fast::hash(&source));
        }
        if fs::read_to_string(&marker).ok().as_deref() != Some(whole.as_str()) {
            scene.read(script).context("its set-up")?;
            fs::write(&marker, whole)?;
        }
        Ok(())
    }

    /// Installs the packages of an upstream suite, and sets up its folder. Its tests come from the distribution's
    /// source package of the tested program, in the installed version if it is still available. Scripts find it in
    /// `PACKAGE`.
    pub(crate) fn set_up_suite(&self, suite: &Suite) -> Result<Scene> {
        self.provide(suite.programs, suite.modules)?;
        let mut scene = self.scene(&format!("suite-{}", suite.client))?;
        if let Some(program) = suite.source {
            let package = self.base.join("packages").join(program);
            if !package.join("source").exists() {
                if !self.install {
                    bail!("the sources of {program} are not there");
                }
                self.provide(&[("dpkg-source", "dpkg-dev")], &[])?;
                fs::create_dir_all(&package)?;
                let fetch = Scene { dir: package.clone(), vars: scene.vars.clone() };
                fetch
                    .read(&format!("sh \"$SCRIPTS/source_package.sh\" {program}"))
                    .context("its source package")?;
                // The old set-up is of an earlier version.
                fs::remove_dir_all(&scene.dir)?;
                fs::create_dir_all(&scene.dir)?;
            }
            let text = package.join("source").to_string_lossy().into_owned();
            scene.vars.push(("PACKAGE", text));
        }
        self.once(&scene, suite.set_up)?;
        Ok(scene)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(base: &Path) -> Place {
        Place {
            root: base.to_path_buf(),
            base: base.to_path_buf(),
            install: false,
            scale: Scale::Full,
            path: "/usr/bin:/bin".to_string(),
        }
    }

    #[test]
    fn what_is_missing_is_named_and_nothing_is_installed_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let programs = [("sh", "dash"), ("no-such-program", "nothing")];
        assert_eq!(place.missing(&programs, &["no_module"]), ["no-such-program", "no_module"]);
        let error = place.provide(&programs, &["no_module"]).unwrap_err().to_string();
        assert_eq!(error, "not installed: no-such-program, no_module");
        assert!(!dir.path().join("venv").exists());
        fs::create_dir_all(dir.path().join("venv/lib/python3.11/site-packages/scikit_learn-1.2.dist-info"))
            .unwrap();
        assert!(place.has_module("scikit-learn") && !place.has_module("scikit"));
    }

    #[test]
    fn a_set_up_runs_once_and_again_when_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let client = |set_up| Client { name: "c", set_up, version: "echo 1.0", ..Client::EMPTY };
        for _ in 0..2 {
            let (scene, version) = place.set_up(&client("echo x >>count")).unwrap();
            assert_eq!(
                (fs::read_to_string(scene.dir.join("count")).unwrap().as_str(), version.as_str()),
                ("x\n", "1.0")
            );
        }
        place.set_up(&client("echo y >>count")).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("c/count")).unwrap(), "x\ny\n");
        fs::create_dir_all(place.scripts()).unwrap();
        for (source, copies) in [("one", "one"), ("one", "one"), ("two", "onetwo")] {
            fs::write(place.scripts().join("a.c"), source).unwrap();
            place.set_up(&client("cat \"$SCRIPTS/a.c\" >>copies")).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join("c/copies")).unwrap(), copies);
        }
        let error = format!("{:#}", place.set_up(&client("echo why >&2; exit 1")).err().unwrap());
        assert!(error.contains("its set-up") && error.contains("why"), "{error}");
    }
}
