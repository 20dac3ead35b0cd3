//! C libraries that the user names, as peers: the user decides what they were built from.

use anyhow::{Context, Result};
use libloading::Library;
use std::path::Path;
use std::sync::Arc;

/// Loads the library at `path`, and returns what `functions` makes of it. The library stays loaded as long as a clone
/// of the `Arc` exists.
pub(crate) fn load<T>(path: &Path, functions: impl FnOnce(&Arc<Library>) -> Result<T>) -> Result<T> {
    let shown = path.display();
    // SAFETY: the user who names a library on the command line vouches for its initialisers.
    let library = unsafe { Library::new(path) }.with_context(|| format!("cannot load {shown}"))?;
    functions(&Arc::new(library)).with_context(|| shown.to_string())
}

/// Returns the function of a name. Its type must be the one that the interface states for the name.
pub(crate) fn function<F: Copy>(library: &Library, name: &str) -> Result<F> {
    // SAFETY: each caller names a type and a name of one line of the interface in the head of its file.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|found| *found).with_context(|| format!("no {name}"))
}
