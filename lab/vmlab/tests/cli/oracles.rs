//! Compares the results of each index with the kernel's addresses, and checks their form in `--json`.

use super::*;

#[test]
fn rb_linux_returns_every_address_of_the_single_cpu_traces() {
    for (trace, events, equal, failed_both) in [
        ("boot-smp1", 151, 103, 0),
        ("fork-netns-smp1", 750, 322, 0),
        ("tc-flower-smp1", 691, 292, 0),
        ("test_vmalloc-mask127-smp1", 134_360, 67_181, 6),
    ] {
        let row = row(trace, "rb-linux");
        let got = ["events", "allocs", "equal", "lower", "higher", "failed_both", "failed_differs"]
            .map(|field| number(&row, field));
        assert_eq!(got, [events, equal + failed_both, equal, 0, 0, failed_both, 0], "{trace}");
    }
}

#[test]
fn rp1_every_allocation_is_in_exactly_one_column() {
    let rows = rows(&all().stdout);
    assert_eq!(rows.len(), TRACES.len() * INDEXES.len());
    for row in &rows {
        let sum: u64 = ["equal", "lower", "higher", "failed_both", "failed_differs"]
            .iter()
            .map(|field| number(row, field))
            .sum();
        assert_eq!(number(row, "allocs"), sum, "{row}");
    }
}

#[test]
fn the_exact_indexes_answer_alike_and_only_they_find_what_linux_misses() {
    for trace in TRACES {
        assert_eq!(columns(&row(trace, "btree")), columns(&row(trace, "rb-exact")), "{trace}");
    }
    for trace in ["boot-smp1", "fork-netns-smp1", "tc-flower-smp1"] {
        assert_eq!(columns(&row(trace, "btree")), columns(&row(trace, "rb-linux")), "{trace}");
    }
    // 21 lower addresses, and two requests that fit, but that Linux's search fails.
    let suite = row("test_vmalloc-mask127-smp1", "btree");
    let got =
        ["equal", "lower", "higher", "failed_both", "failed_differs"].map(|field| number(&suite, field));
    assert_eq!(got, [67_160, 21, 0, 4, 2]);
}

#[test]
fn json_objects_have_the_promised_fields_in_order_and_stdout_holds_nothing_else() {
    let lines: Vec<&str> = all().stdout.lines().collect();
    let names = TRACES.iter().flat_map(|trace| INDEXES.map(|index| (trace, index)));
    for (line, (trace, index)) in lines.iter().zip(names) {
        let row: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&row["trace"], &row["index"]), (&Value::from(*trace), &Value::from(index)));
        // No value contains a comma or a colon, so the keys can be split off.
        let keys: Vec<&str> = line
            .trim_matches(['{', '}'])
            .split(',')
            .map(|pair| pair.split_once(':').unwrap().0.trim_matches('"'))
            .collect();
        assert_eq!(keys, FIELDS, "`FIELDS` of this test has the keys of `--json`");
    }
    assert_eq!(lines.len(), TRACES.len() * INDEXES.len());
}

#[test]
fn every_figure_of_a_row_is_computed() {
    for trace in TRACES {
        let rows = INDEXES.map(|index| row(trace, index));
        for row in &rows {
            // The times depend on the machine; the test checks only that they were measured.
            for time in ["ns_median", "ns_min"] {
                let time = row[time].as_f64().unwrap();
                assert!(time.is_finite() && time > 0.0, "{row}");
            }
            // One percpu chunk in each trace is the only fact that is inferred.
            assert_eq!(number(row, "inferred"), 1, "{row}");
            // Whatever an index answered, the areas at the end are the kernel's.
            assert_eq!(row["holes"], rows[0]["holes"], "{row}");
            assert_eq!(row["largest_hole"], rows[0]["largest_hole"], "{row}");
            assert!(number(row, "holes") > 50 && number(row, "largest_hole") > 1 << 53, "{row}");
        }
    }
}

#[test]
fn inferences_are_reported_on_stderr_with_json() {
    assert!(all().stderr.contains("vmlab: each trace: 1 percpu chunk inferred, size from vmallocinfo"));
    assert!(all().stderr.contains("vmlab: report: "));
}
