//! The common parts of all benchmarks.

use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use vmlab_bench::harness::*;

#[test]
fn the_commit_shows_changes_other_than_results() {
    let dir = TempDir::new().unwrap();
    let git = |args: &[&str]| {
        let config = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let output = Command::new("git").arg("-C").arg(dir.path()).args(config).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    let commit = |dir: &Path| {
        let header = Header::of(dir, "x").with("");
        header.lines().find_map(|line| line.strip_prefix("commit: ")).map(str::to_string)
    };
    let (code, results) = (dir.path().join("core"), dir.path().join("results"));
    git(&["init", "-q"]);
    for at in [&code, &results] {
        std::fs::create_dir(at).unwrap();
        std::fs::write(at.join("a"), "a").unwrap();
    }
    git(&["add", "."]);
    git(&["commit", "-qm", "a"]);
    let head = git(&["rev-parse", "--short=12", "HEAD"]);
    assert_eq!(commit(&code), Some(head.clone()));
    std::fs::write(results.join("a"), "b").unwrap();
    assert_eq!(commit(&code), Some(head.clone()));
    std::fs::write(code.join("a"), "b").unwrap();
    assert_eq!(commit(&code), Some(head + "+changes"));
}

#[test]
fn the_header_counts_the_cpus_of_the_machine() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let header = Header::read("vmlab bench").with("rounds: 3");
    assert!(header.starts_with("command: vmlab bench\n") && header.ends_with("\nrounds: 3\n"), "{header}");
    let line = header.lines().find(|line| line.starts_with("machine: ")).unwrap();
    let count = line.split(", ").find_map(|part| part.strip_suffix(" CPUs").or(part.strip_suffix(" CPU")));
    assert!(count.unwrap().parse::<usize>().unwrap() >= cpus, "{line}");
}

#[test]
fn every_contender_runs_once_a_round_and_every_second_round_is_backwards() {
    let order: Vec<_> = turns(3, 3).collect();
    assert_eq!(order, [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0), (2, 0), (2, 1), (2, 2)]);
    assert_eq!((turns(0, 3).count(), turns(3, 0).count()), (0, 0));
    let mut ran = String::new();
    let results = in_turn(2, &["a", "b"], |round, name| {
        ran += name;
        // The second contender has no result in the first round.
        Ok((*name == "a" || round > 0).then_some(round))
    });
    assert_eq!((results.unwrap(), ran.as_str()), (vec![vec![0, 1], vec![1]], "abba"));
    let failed = in_turn(2, &[1, 2], |_, &one| if one == 2 { anyhow::bail!("two") } else { Ok(Some(one)) });
    assert_eq!(failed.unwrap_err().to_string(), "two");
}

#[test]
fn rounds_have_a_median_in_the_middle_and_are_never_less_than_a_tenth() {
    let of = |figures: &[f64]| Summary::of(figures.iter().copied());
    let rounds = Summary { count: 3, min: 1.0, median: 2.0, mean: 3.0, max: 6.0 };
    assert_eq!(of(&[6.0, 1.0, 2.0]), Some(rounds));
    assert_eq!(of(&[4.0, 1.0]).unwrap().median, 2.5);
    assert_eq!(of(&[]), None);
    assert_eq!(rounds.without(1.5), Summary { count: 3, min: 0.1, median: 0.5, mean: 1.5, max: 4.5 });
}

#[test]
fn figures_have_units_that_fit_their_size() {
    let texts = [1.234, 12.34, 123.4, 1234.0, 12_340_000.0].map(duration);
    assert_eq!(texts, ["1.23 ns", "12.3 ns", "123 ns", "1.23 us", "12.3 ms"]);
    assert_eq!([1.23, 99.95, 123.4].map(number), ["1.2", "100.0", "123"]);
    assert_eq!([us(1500), mean_us(3000, 2), mean_us(0, 0)], ["1.50", "1.50", "0.00"]);
    assert_eq!((dash(None::<u8>), dash(Some(7)), unique([2, 1, 2])), ("-".into(), "7".into(), vec![2, 1]));
}

#[test]
fn names_select_and_an_unknown_one_is_reported_with_those_that_are_known() {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    for (chosen, left) in [(&[][..], &["a", "b", "c"][..]), (&["c", "a"], &["a", "c"])] {
        let mut all = vec!["a", "b", "c"];
        select(&mut all, &names(chosen), |one| one).unwrap();
        assert_eq!(all, left);
    }
    let error = select(&mut vec!["a", "b"], &names(&["a", "x"]), |one| one).unwrap_err();
    assert_eq!(error.to_string(), "no contender is called x (there are a, b)");
}

#[test]
fn only_a_full_run_writes_to_the_folder_of_results_by_itself() {
    let here = Some(Path::new("here"));
    assert_eq!([folder(here, true), folder(here, false)], [here, here]);
    assert_eq!([folder(None, true), folder(None, false)], [None, Some(Path::new("results"))]);
}

#[test]
fn a_run_has_its_selection_and_ends_with_its_tables_and_files() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("new");
    let table = Table::new("Caption.", 1, ["case"]).grid(
        &["ours", "peer"],
        [1, 2, 3],
        |key| vec![format!("case {key}")],
        |key, name| (*key < 3 && (*key == 1 || *name == "ours")).then(|| format!("{key}.5")),
    );
    assert_eq!(table.rows()[1..], [["case 2", "2.5", "-"], ["case 3", "-", "-"]]);
    let table = table.without_empty_rows();
    assert_eq!(table.rows().len(), 2);
    for (dir, last) in [
        (Some(path.as_path()), format!("wrote {}", path.join("name.md").display())),
        (None, "no files are written of a part of the measurements: --out DIR writes them".to_string()),
    ] {
        let mut lines = Vec::new();
        let mut run = Run::begin(Some("a-"), dir, "name.csv", &mut lines).unwrap();
        assert!(run.wants("a-b") && !run.wants("b"));
        run.check_found(true, "workload's").unwrap();
        let error = run.check_found(false, "workload's").unwrap_err();
        assert_eq!(error.to_string(), "no workload's name contains \"a-\"");
        run.progress("a-b");
        run.end([Report::new("name", "Title", "head\n".to_string(), vec![table.clone()])]).unwrap();
        assert_eq!(
            (lines[0].as_str(), lines[1].as_str(), lines.last()),
            ("a-b ...", "Caption.", Some(&last))
        );
        assert!(lines[2].contains("ours") && lines[2].contains(" 1.5"), "{}", lines[2]);
    }
    let page = std::fs::read_to_string(path.join("name.md")).unwrap();
    assert!(page.starts_with("# Title, ") && page.contains(" build\n\n```text\nhead\n```\n\nCaption.\n\n"));
    assert!(page.contains("| case 2 |  2.5 |    - |"), "{page}");
}
