//! A crate depends only on lower layers, by the table in ARCHITECTURE.md.
//!
//! Dependencies of tests are free: models and platforms with fault injection come from above.

use super::Report;
use super::tree::Tree;
use std::collections::BTreeMap;

const TABLE: &str = "ARCHITECTURE.md";

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let Some(lines) = tree.architecture("layers") else {
        return report.add(TABLE, 1, "there is no table ```layers");
    };
    let mut layers = BTreeMap::new();
    for (line, text) in lines {
        let mut words = text.split_whitespace();
        let number =
            words.next().and_then(|word| word.strip_prefix('L')).and_then(|word| word.parse::<u32>().ok());
        match (number, words.next()) {
            (Some(number), Some(name)) => {
                if layers.insert(name, (number, line)).is_some() {
                    report.add(TABLE, line, format!("{name} has two layers"));
                }
            }
            _ => report.add(TABLE, line, format!("is no line of the form L0 name: {text}")),
        }
    }
    let mut seen = Vec::new();
    for (file, _, manifest) in tree.manifests() {
        let Some(name) = manifest["package"].get("name").and_then(toml::Value::as_str) else { continue };
        seen.push(name.to_string());
        let Some(&(layer, _)) = layers.get(name) else {
            report.add(file.path(), 1, format!("{name} has no layer in {TABLE}"));
            continue;
        };
        for dependency in dependencies(&manifest) {
            if let Some(&(below, _)) = layers.get(dependency.as_str()).filter(|&&(below, _)| below >= layer) {
                report.add(file.path(), 1, format!("{name} (L{layer}) depends on {dependency} (L{below})"));
            }
        }
    }
    for (name, (_, line)) in layers {
        if !seen.iter().any(|crate_name| crate_name == name) {
            report.add(TABLE, line, format!("there is no crate {name}"));
        }
    }
}

/// Returns the names of the packages that a package needs to build and to run, on any machine.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let mut tables = vec![manifest];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    tables.extend(targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table)));
    let mut names = Vec::new();
    for table in tables {
        for key in ["dependencies", "build-dependencies"] {
            let Some(entries) = table.get(key).and_then(toml::Value::as_table) else { continue };
            for (name, value) in entries {
                // `short = { package = "name" }`
                let real = value.get("package").and_then(toml::Value::as_str);
                names.push(real.unwrap_or(name).to_string());
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    const TABLE: (&str, &str) = ("ARCHITECTURE.md", "```layers\nL0 base\nL1 tree words\n```\n");
    const BASE: (&str, &str) = ("core/base/Cargo.toml", "[package]\nname = \"base\"\n");
    const TREE: (&str, &str) = (
        "core/tree/Cargo.toml",
        "[package]\nname = \"tree\"\n[dependencies]\nbase = { path = \"../base\" }\n",
    );

    #[test]
    fn lower_layers_and_dependencies_of_tests_are_fine() {
        assert!(planted(check, &[TABLE, BASE, TREE]).is_empty());
        let base = (
            BASE.0,
            "[package]\nname = \"base\"\n[dev-dependencies]\ntree.workspace = true\nserde = \"1\"\n",
        );
        assert!(planted(check, &[TABLE, base, TREE]).is_empty());
    }

    #[test]
    fn a_dependency_upwards_is_found_however_it_is_written() {
        for how in [
            "[dependencies]\ntree.workspace = true\n",
            "[build-dependencies]\ntree = \"1\"\n",
            "[target.'cfg(loom)'.dependencies]\nshort = { package = \"tree\", version = \"1\" }\n",
        ] {
            let base = format!("{}{how}", BASE.1);
            let found = planted(check, &[TABLE, (BASE.0, &base), TREE]);
            assert_eq!(found, ["core/base/Cargo.toml:1: base (L0) depends on tree (L1)"], "{how}");
        }
    }

    #[test]
    fn every_crate_has_one_layer_and_every_line_a_crate() {
        let found = planted(
            check,
            &[("ARCHITECTURE.md", "```layers\nL0 base\nL0 base\nL2 gone\nx\n```\n"), BASE, TREE],
        );
        assert_eq!(
            found,
            [
                "ARCHITECTURE.md:3: base has two layers",
                "ARCHITECTURE.md:4: there is no crate gone",
                "ARCHITECTURE.md:5: is no line of the form L0 name: x",
                "core/tree/Cargo.toml:1: tree has no layer in ARCHITECTURE.md",
            ]
        );
        assert_eq!(planted(check, &[BASE]), ["ARCHITECTURE.md:1: there is no table ```layers"]);
    }
}
