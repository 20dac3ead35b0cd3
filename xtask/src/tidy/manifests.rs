//! Every package has the licence, the edition and the lints of the workspace, and none is published by accident.

use super::Report;
use super::tree::Tree;

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    for (file, dir, manifest) in tree.manifests() {
        // A package with a workspace of its own, as the fuzz targets, has nothing to inherit from.
        let own_workspace = manifest.contains_key("workspace");
        let inherits = |table: &str, key: &str| {
            manifest.get(table).and_then(|table| table.get(key)?.get("workspace")?.as_bool()) == Some(true)
        };
        let package = &manifest["package"];
        let published = package.get("publish").and_then(toml::Value::as_bool) == Some(true);
        if published {
            published_alike(tree, file.path(), dir, package, report);
        }
        for key in ["license", "edition", "rust-version", "publish"] {
            if published && key == "publish" {
                continue;
            }
            let given = package.get(key).is_some();
            // A library promises compilers before the one that the workspace needs.
            let earlier = published && key == "rust-version" && given;
            if !(inherits("package", key) || own_workspace && given || earlier) {
                report.add(file.path(), 1, format!("lacks {key}.workspace = true"));
            }
        }
        let lints = manifest.get("lints");
        let inherited = lints.and_then(|lints| lints.get("workspace")?.as_bool()) == Some(true);
        if !(inherited || own_workspace && lints.is_some()) {
            report.add(file.path(), 1, "lacks [lints] workspace = true");
        }
        if manifest["package"].get("description").is_none() {
            report.add(file.path(), 1, "lacks a description");
        }
        let name = manifest["package"].get("name").and_then(toml::Value::as_str);
        let folder =
            dir.split_once('/').filter(|(group, _)| crate::GROUPS.contains(group)).map(|(_, name)| name);
        // Deeper are members of other workspaces.
        let folder = folder.filter(|folder| !folder.contains('/'));
        if folder.is_some() && folder != name && !own_workspace {
            report.add(file.path(), 1, "the crate is not named like its folder");
        }
    }
}

/// Checks the fields that a registry requires, and those that readers use there: keywords, a page, an example to run.
fn published_alike(tree: &Tree, path: &str, dir: &str, package: &toml::Value, report: &mut Report) {
    for key in ["keywords", "categories"] {
        let count = package.get(key).and_then(toml::Value::as_array).map_or(0, Vec::len);
        // The registry accepts no more than five.
        if !(1..=5).contains(&count) {
            report.add(path, 1, format!("is published and has {count} {key}, not one to five"));
        }
    }
    if package.get("readme").and_then(toml::Value::as_str) != Some("README.md") {
        report.add(path, 1, "is published and lacks readme = \"README.md\"");
    }
    if package.get("include").is_none() {
        report.add(path, 1, "is published and lacks include, so all files there are packed");
    }
    let examples = format!("{dir}/examples/");
    let example = |name: &str| name.starts_with(&examples) && (name.ends_with(".rs") || name.ends_with(".c"));
    if !tree.files().iter().any(|file| example(file.path())) {
        report.add(path, 1, "is published and has no example");
    }
    let version = tree.file("Cargo.toml").and_then(|file| {
        let root: toml::Table = toml::from_str(file.text()?).ok()?;
        Some(root.get("workspace")?.get("package")?.get("rust-version")?.as_str()?.to_string())
    });
    let own = package.get("rust-version").and_then(toml::Value::as_str);
    let needs = format!("Rust {} or later", own.or(version.as_deref()).unwrap_or_default());
    let page = tree.file(&format!("{dir}/README.md")).and_then(|file| file.text());
    if !page.is_some_and(|text| text.contains(&needs)) {
        report.add(path, 1, format!("is published and has no README.md that says: {needs}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    const GOOD: &str = "[package]\nname = \"a\"\ndescription = \"A\"\nlicense.workspace = true\n\
        edition.workspace = true\nrust-version.workspace = true\npublish.workspace = true\n[lints]\nworkspace = true\n";

    #[test]
    fn what_a_manifest_lacks_is_found() {
        assert!(planted(check, &[("core/a/Cargo.toml", GOOD)]).is_empty());
        assert!(planted(check, &[("adopt/faces/b/Cargo.toml", GOOD)]).is_empty());
        for (part, with) in [
            ("license.workspace = true", ""),
            ("edition.workspace = true", "edition = \"2021\""),
            ("rust-version.workspace = true", ""),
            ("publish.workspace = true", ""),
            ("description = \"A\"", ""),
            ("workspace = true\n[lints]\nworkspace = true", "workspace = true"),
            ("name = \"a\"", "name = \"b\""),
        ] {
            let bad = GOOD.replace(part, with);
            assert_ne!(bad, GOOD);
            assert_eq!(planted(check, &[("core/a/Cargo.toml", &bad)]).len(), 1, "{part}");
        }
    }

    #[test]
    fn what_is_published_can_be_found_read_and_tried() {
        let text = GOOD.replace(
            "publish.workspace = true",
            "publish = true\nreadme = \"README.md\"\nkeywords = [\"k\"]\ncategories = [\"c\"]\ninclude = [\"/src\"]",
        );
        let good = [
            ("Cargo.toml", "[workspace.package]\nrust-version = \"1.2\"\n"),
            ("core/a/Cargo.toml", &text),
            ("core/a/README.md", "Rust 1.2 or later.\n"),
            ("core/a/examples/b.rs", ""),
        ];
        assert!(planted(check, &good).is_empty());
        for (part, with) in [
            ("readme = \"README.md\"\n", ""),
            ("\"README.md\"", "\"other.md\""),
            ("[\"k\"]", "[]"),
            ("[\"c\"]", "[\"1\", \"2\", \"3\", \"4\", \"5\", \"6\"]"),
            ("include", "exclude"),
            ("publish = true", ""),
        ] {
            let bad = text.replace(part, with);
            assert_ne!(bad, text);
            let found = planted(check, &[good[0], ("core/a/Cargo.toml", &bad), good[2], good[3]]);
            assert_eq!(found.len(), 1, "{part}: {found:?}");
        }
        assert_eq!(planted(check, &good[..3]).len(), 1);
        assert_eq!(planted(check, &[good[0], good[1], good[3]]).len(), 1);
        let old = ("core/a/README.md", "Rust 1.1 or later.\n");
        assert_eq!(planted(check, &[good[0], good[1], old, good[3]]).len(), 1);
    }

    #[test]
    fn a_separate_workspace_has_a_complete_manifest() {
        let own = "[package]\nname = \"x\"\ndescription = \"X\"\nlicense = \"MIT\"\nedition = \"2024\"\n\
            rust-version = \"1.95\"\npublish = false\n[workspace]\n[lints.rust]\nmissing_docs = \"warn\"\n";
        assert!(planted(check, &[("fuzz/Cargo.toml", own)]).is_empty());
        assert_eq!(planted(check, &[("fuzz/Cargo.toml", &own.replace("license = \"MIT\"\n", ""))]).len(), 1);
    }
}
