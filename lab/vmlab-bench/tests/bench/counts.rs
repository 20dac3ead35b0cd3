//! The rows whose instructions are counted.

use vmlab_bench::counts::main;

#[test]
fn every_row_has_a_name_of_its_own() {
    let mut lines = Vec::new();
    main(None, &mut lines).unwrap();
    let rows: Vec<(&str, &str)> = lines[0].lines().filter_map(|line| line.rsplit_once(' ')).collect();
    let mut names: Vec<&str> = rows.iter().map(|&(name, _)| name).collect();
    assert!(names.len() > 40 && names.iter().all(|name| !name.contains([' ', ','])));
    names.sort();
    names.dedup();
    assert_eq!(names.len(), rows.len());
}

#[test]
fn rows_run_outside_valgrind_too() {
    for name in
        ["index/btree/empty", "space/fix_size", "blocks/lane", "free-slice", "percpu/16", "process/64K"]
    {
        main(Some(name), &mut Vec::new()).unwrap();
    }
    assert!(main(Some("none"), &mut Vec::new()).is_err());
}
