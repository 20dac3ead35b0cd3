//! Every package has the licence, the edition and the lints of the house, and none is published by accident.

use super::Report;
use super::tree::Tree;

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    for (file, dir, manifest) in tree.manifests() {
        // A package with a workspace of its own, as the fuzz targets: nothing to inherit from.
        let own_workspace = manifest.contains_key("workspace");
        let inherits = |table: &str, key: &str| {
            manifest.get(table).and_then(|table| table.get(key)?.get("workspace")?.as_bool()) == Some(true)
        };
        for key in ["license", "edition", "rust-version", "publish"] {
            let given = manifest["package"].get(key).is_some();
            if !(inherits("package", key) || own_workspace && given) {
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
        let folder = dir.strip_prefix("crates/");
        if folder.is_some() && folder != name {
            report.add(file.path(), 1, "the crate is not named like its folder");
        }
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
        assert!(planted(check, &[("crates/a/Cargo.toml", GOOD)]).is_empty());
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
            assert_eq!(planted(check, &[("crates/a/Cargo.toml", &bad)]).len(), 1, "{part}");
        }
    }

    #[test]
    fn a_workspace_of_its_own_says_everything_itself() {
        let own = "[package]\nname = \"x\"\ndescription = \"X\"\nlicense = \"MIT\"\nedition = \"2024\"\n\
            rust-version = \"1.95\"\npublish = false\n[workspace]\n[lints.rust]\nmissing_docs = \"warn\"\n";
        assert!(planted(check, &[("fuzz/Cargo.toml", own)]).is_empty());
        assert_eq!(planted(check, &[("fuzz/Cargo.toml", &own.replace("license = \"MIT\"\n", ""))]).len(), 1);
    }
}
