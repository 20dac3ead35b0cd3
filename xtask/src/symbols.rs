//! The functions that the C libraries export, compared with the lists in git.
//!
//! A program finds them by name when it is loaded. So a name that goes breaks programs that are built already, and a
//! name that appears by mistake replaces a function of another library. The step `header` compares the types.

use crate::sh::Cmd;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Each library, and the list of the functions that it exports.
const LISTS: [(&str, &str); 2] = [
    ("libvmalloc.so", "process/vmalloc-capi/symbols.txt"),
    ("libvmalloc_preload.so", "process/vmalloc-preload/symbols.txt"),
];

/// Compares the libraries in `lib` with their lists.
pub(crate) fn check(root: &Path, lib: &Path) -> Result<()> {
    for (library, list) in LISTS {
        let output = Cmd::new(lib, "nm").args(["-D", "--defined-only", library]).read()?;
        let text = fs::read_to_string(root.join(list)).with_context(|| format!("cannot read {list}"))?;
        if let Some(difference) = difference(&exported(&output), &listed(&text)) {
            bail!("{library} exports other functions than {list} names: {difference}");
        }
    }
    println!("install: both libraries export the functions of their lists");
    Ok(())
}

/// Returns the names in the output of `nm`: `address type name`, with `@version` behind the name of some.
fn exported(output: &str) -> BTreeSet<&str> {
    let names = output.lines().filter_map(|line| line.split_whitespace().nth(2));
    names.map(|name| name.split('@').next().unwrap_or(name)).collect()
}

/// Returns the names of a list: a line each, and lines of `#`.
fn listed(text: &str) -> BTreeSet<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Says what was removed and what was added, or None.
fn difference(exported: &BTreeSet<&str>, listed: &BTreeSet<&str>) -> Option<String> {
    let missing: Vec<_> = listed.difference(exported).copied().collect();
    let added: Vec<_> = exported.difference(listed).copied().collect();
    let part = |what: &str, names: &[&str]| format!("{what} {}", names.join(", "));
    match (missing.is_empty(), added.is_empty()) {
        (true, true) => None,
        (false, true) => Some(part("missing", &missing)),
        (true, false) => Some(part("added", &added)),
        (false, false) => Some(format!("{}; {}", part("missing", &missing), part("added", &added))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NM: &str = "0000000000001000 T vfree\n0000000000002000 T vmalloc@@V_1\n                 w weak\n";

    #[test]
    fn names_are_read_without_versions_and_compared_both_ways() {
        let exported = exported(NM);
        assert_eq!(difference(&exported, &listed("# functions\nvfree\nvmalloc\n")), None);
        assert_eq!(difference(&exported, &listed("vfree\nvmalloc\nvmap\n")).unwrap(), "missing vmap");
        assert_eq!(difference(&exported, &listed("vmalloc\n")).unwrap(), "added vfree");
        assert_eq!(difference(&exported, &listed("vmap\nvfree")).unwrap(), "missing vmap; added vmalloc");
    }
}
