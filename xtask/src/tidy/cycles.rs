//! The modules of a crate import each other in one direction.
//!
//! # Theory
//! A cycle of imports makes one unit of all modules in it: none can be read, tested or moved without the others. So the
//! graph of the top-level modules of a crate has no cycle. An edge is a path outside tests that begins with `crate` or
//! `super`, in an import or not. A name that the root exports again counts as a name of its module. A module and its
//! sub-modules are one node, and the root is none: it declares all modules.
//!
//! [`ALLOWED`] has the edges that are left, each with a reason. An entry that is not needed to break a cycle is a
//! violation, too, so the list only shrinks.

use super::Report;
use super::source::{Kind, Token};
use super::sync_facade::paths;
use super::tree::{File, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// The folders whose crates are checked.
const CHECKED: [&str; 5] = ["core/", "process/", "check/", "lab/", "xtask/"];

/// The file with the list.
const LIST: &str = "xtask/src/tidy/cycles.rs";

/// Edges that are left: the crate, the module that imports, the imported one, the reason.
const ALLOWED: [Allowed; 3] = [
    (
        "vmalloc-preload",
        "hot",
        "abi",
        "its pointers begin at the functions that look up the next definitions",
    ),
    ("vmalloc-preload", "large", "fault", "the handler of faults is set when the allocator is made"),
    ("vmalloc-preload", "next", "abi", "a definition that is this library's own malloc is not the next one"),
];

/// An edge that is left, and the reason.
type Allowed = (&'static str, &'static str, &'static str, &'static str);

/// The edges of a crate, with the file and the line of the first path of each.
type Edges<'t> = BTreeMap<(String, String), (&'t str, usize)>;

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    // A tree without this file is one that a test planted.
    let allowed: &[Allowed] = if tree.file(LIST).is_some() { &ALLOWED } else { &[] };
    check_with(tree, report, allowed);
}

fn check_with(tree: &Tree, report: &mut Report, allowed: &[Allowed]) {
    let mut crates: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in tree.files() {
        let is_checked = CHECKED.iter().any(|folder| file.path().starts_with(folder));
        if let Some((krate, _)) = file.path().split_once("/src/").filter(|_| is_checked) {
            crates.entry(krate).or_default().push(file);
        }
    }
    let names: Vec<&str> = crates.keys().map(|krate| krate.rsplit('/').next().unwrap_or_default()).collect();
    for (krate, ..) in allowed.iter().filter(|entry| !names.contains(&entry.0)) {
        report.add(LIST, 1, format!("there is no crate {krate}: remove it from the list"));
    }
    for (krate, files) in crates {
        let name = krate.rsplit('/').next().unwrap_or_default();
        let mut edges = edges(krate, &files);
        for &(_, from, to, _) in allowed.iter().filter(|entry| entry.0 == name) {
            let edge = (from.to_string(), to.to_string());
            let is_needed = edges.contains_key(&edge) && reaches(&edges, to, from);
            if !is_needed {
                let what = format!("{name}: {from} to {to} closes no cycle: remove it from the list");
                report.add(LIST, 1, what);
            }
        }
        edges.retain(|(from, to), _| {
            !allowed.iter().any(|entry| (entry.0, entry.1, entry.2) == (name, from.as_str(), to.as_str()))
        });
        for ((from, to), &(path, line)) in &edges {
            if reaches(&edges, to, from) {
                let way = way(&edges, to, from).join(", which imports ");
                report.add(path, line, format!("{from} imports {way}"));
            }
        }
    }
}

/// Returns the edges between the top-level modules of a crate.
fn edges<'t>(krate: &str, files: &[&'t File]) -> Edges<'t> {
    let modules: BTreeSet<&str> =
        files.iter().filter_map(|file| module(krate, file.path())).map(|path| path[0]).collect();
    // Names that the root exports again, by the module that they come from.
    let mut exported: BTreeMap<String, String> = BTreeMap::new();
    for root in files.iter().filter(|file| module(krate, file.path()).is_none()) {
        for (_, mut path) in paths(&tokens(root)) {
            if matches!(path[0].as_str(), "self" | "crate") {
                path.remove(0);
            }
            if let [first, .., last] = &path[..]
                && modules.contains(first.as_str())
            {
                exported.insert(last.clone(), first.clone());
            }
        }
    }
    let mut edges = Edges::new();
    let for_tests: Vec<String> = files.iter().flat_map(|file| test_modules(file)).collect();
    for file in files {
        if for_tests.iter().any(|module| file.path().starts_with(module)) {
            continue;
        }
        let Some(own) = module(krate, file.path()) else { continue };
        for (line, path) in paths(&tokens(file)) {
            let supers = path.iter().take_while(|word| *word == "super").count();
            let name = match path[0].as_str() {
                "crate" => path.get(1),
                // Those of sub-modules lead to the module itself.
                "super" if supers == own.len() => path.get(supers),
                _ => None,
            };
            let Some(name) = name else { continue };
            let to = if modules.contains(name.as_str()) { Some(name) } else { exported.get(name) };
            if let Some(to) = to.filter(|to| *to != own[0]) {
                edges.entry((own[0].to_string(), to.clone())).or_insert((file.path(), line));
            }
        }
    }
    edges
}

/// Returns the file and the folder of each module that a file declares for tests.
fn test_modules(file: &File) -> Vec<String> {
    let path = file.path().strip_suffix(".rs").unwrap_or(file.path());
    let folder = ["/mod", "/lib", "/main"].iter().find_map(|name| path.strip_suffix(name)).unwrap_or(path);
    let tokens = file.source().map_or(&[][..], |source| source.tokens());
    let declared = tokens.windows(3).filter_map(|three| match three {
        [
            Token { kind: Kind::Ident(word), test: true, .. },
            Token { kind: Kind::Ident(name), .. },
            Token { kind: Kind::Punct(';'), .. },
        ] if word == "mod" => Some(name),
        _ => None,
    });
    declared.flat_map(|name| [format!("{folder}/{name}.rs"), format!("{folder}/{name}/")]).collect()
}

/// Returns the tokens outside tests.
fn tokens(file: &File) -> Vec<&Token> {
    file.source().map_or(Vec::new(), |source| source.tokens().iter().filter(|token| !token.test).collect())
}

/// Returns the path of the module in a file, such as `["a", "b"]`, and `None` for the root and for programs.
fn module<'p>(krate: &str, path: &'p str) -> Option<Vec<&'p str>> {
    let path = path.strip_prefix(krate)?.strip_prefix("/src/")?.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let words: Vec<_> = path.split('/').collect();
    (!matches!(words[..], ["lib" | "main"] | ["bin", ..])).then_some(words)
}

/// Returns true if the edges lead from one module to another.
fn reaches(edges: &Edges, from: &str, to: &str) -> bool {
    !way(edges, from, to).is_empty()
}

/// Returns the shortest way from one module to another, both included; empty if there is none.
fn way(edges: &Edges, from: &str, to: &str) -> Vec<String> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next = vec![from];
    while !next.is_empty() && from != to && !before.contains_key(to) {
        let mut after = Vec::new();
        for at in next {
            for (_, found) in edges.keys().filter(|(importer, _)| importer == at) {
                if found != from && !before.contains_key(found.as_str()) {
                    before.insert(found, at);
                    after.push(found.as_str());
                }
            }
        }
        next = after;
    }
    if from != to && !before.contains_key(to) {
        return Vec::new();
    }
    let mut way = vec![to.to_string()];
    let mut at = to;
    while let Some(&earlier) = before.get(at) {
        way.push(earlier.to_string());
        at = earlier;
    }
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    const A: &str = "core/va-x/src/a.rs";
    const B: &str = "core/va-x/src/b.rs";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        planted(check, files)
    }

    #[test]
    fn modules_that_import_each_other_are_found_with_their_lines() {
        assert_eq!(
            found(&[(A, "//! A.\nuse crate::b::B;\n"), (B, "use core::fmt;\nuse super::a;\n")]),
            [
                "core/va-x/src/a.rs:2: a imports b, which imports a",
                "core/va-x/src/b.rs:2: b imports a, which imports b"
            ]
        );
        // In braces, in an expression, and over a third module.
        let three = [
            (A, "use crate::{c, b::{self, B}};\n"),
            (B, "fn b() { crate::c::c() }\n"),
            ("core/va-x/src/c/mod.rs", "use crate::a::A;\n"),
        ];
        assert_eq!(found(&three).len(), 4);
        assert_eq!(found(&[(A, "use crate::b;\n"), (B, "use crate::c;\n")]).len(), 0);
    }

    #[test]
    fn a_name_that_the_root_exports_belongs_to_its_module() {
        let root = ("core/va-x/src/lib.rs", "mod a;\nmod b;\npub use b::{B, C};\npub struct D;\n");
        let of = |text: &str| found(&[root, (A, text), (B, "use crate::a::A;\n")]).len();
        assert_eq!(of("use crate::C;\n"), 2);
        // An item of the root itself belongs to no module.
        assert_eq!(of("use crate::D;\n"), 0);
    }

    #[test]
    fn sub_modules_tests_and_other_crates_close_no_cycle() {
        let inner =
            ("core/va-x/src/a/inner.rs", "use super::A;\nuse crate::a::A;\nuse super::super::b::B;\n");
        let outer = (A, "mod inner;\nuse inner::I;\nuse crate::a::inner::I;\n");
        assert!(found(&[outer, inner, (B, "#[cfg(test)]\nmod tests { use crate::a::A; }\n")]).is_empty());
        assert_eq!(found(&[outer, inner, (B, "use crate::a::A;\n")]).len(), 2);
        let tests = ("core/va-x/src/b/tests.rs", "use crate::a::A;\n");
        assert!(found(&[(A, "use crate::b::B;\n"), (B, "mod tests;\n"), tests]).is_empty());
        let broken = ("core/va-x/src/b/broken.rs", "use crate::a::A;\n");
        assert!(found(&[(A, "use crate::b::B;\n"), (B, "#[cfg(test)]\nmod broken;\n"), broken]).is_empty());
        assert!(found(&[(A, "use va_y::b::B;\n"), (B, "use va_y::a::A;\n")]).is_empty());
        assert!(
            found(&[("fuzz/src/a.rs", "use crate::b::B;\n"), ("fuzz/src/b.rs", "use crate::a::A;\n")])
                .is_empty()
        );
    }

    #[test]
    fn every_folder_with_crates_is_checked() {
        for krate in ["core/va-x", "process/x", "check/va-x", "lab/vmlab-x", "xtask"] {
            let files = ["a", "b"].map(|module| format!("{krate}/src/{module}.rs"));
            let lines = found(&[(&files[0], "use crate::b::B;\n"), (&files[1], "use super::a::A;\n")]);
            assert_eq!(lines.len(), 2, "{krate}");
            assert_eq!(lines[0], format!("{krate}/src/a.rs:1: a imports b, which imports a"));
        }
    }

    #[test]
    fn the_list_has_only_edges_that_close_a_cycle() {
        let with = |allowed: &'static [Allowed], b: &str| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(dir.path().join("core/va-x/src")).unwrap();
            for (path, text) in [(A, "use crate::b::B;\n"), (B, b)] {
                std::fs::write(dir.path().join(path), text).unwrap();
            }
            let mut report = Report { rule: "cycles", findings: Vec::new() };
            check_with(&Tree::load(dir.path()).unwrap(), &mut report, allowed);
            report.findings.into_iter().map(|found| found.what).collect::<Vec<_>>()
        };
        const LEFT: &[Allowed] = &[("va-x", "b", "a", "a reason")];
        assert!(with(LEFT, "use crate::a::A;\n").is_empty());
        assert_eq!(with(LEFT, ""), ["va-x: b to a closes no cycle: remove it from the list"]);
        assert_eq!(with(&[("va-y", "b", "a", "")], ""), ["there is no crate va-y: remove it from the list"]);
    }
}
