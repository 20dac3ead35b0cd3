//! The comparison of policies by `vmlab whatif`, on shipped recordings.

use super::*;

fn whatif(name: &str, more: &[&str]) -> Value {
    let assert = vmlab().args(["whatif", "--json"]).args(more).arg(shipped(name)).assert().success();
    serde_json::from_str(&stdout_of(&assert)).unwrap()
}

fn of(value: &Value, policy: usize, keys: [&str; 4]) -> [u64; 4] {
    keys.map(|key| number(&value["policies"][policy], key))
}

#[test]
fn a_recording_is_compared_under_the_policies_of_its_version() {
    let held = whatif("held-out.jsonl.zst", &[]);
    let names: Vec<&str> = (0..3).map(|at| held["policies"][at]["policy"].as_str().unwrap()).collect();
    assert_eq!((names, &held["version"]), (vec!["linux616", "onelock52", "standard"], &Value::from(1)));
    for policy in 0..3 {
        // 3,553 areas and a chunk; the kernel purged once, by its threshold, and each policy does.
        let counts = of(&held, policy, ["requests", "failed", "purges", "flushes"]);
        assert_eq!(counts, [3554, 0, 1, 1], "{held}");
        assert_eq!(number(&held["policies"][policy], "passed_over"), 0);
    }
    // Areas from before the recording stay, wherever others go.
    assert_eq!((number(&held["pinned"], "areas"), number(&held["pinned"], "span_bytes") >> 20), (315, 138));
    // One flush of two CPUs, and 3,296 areas at once; or seven of them in a slice.
    let stalls = [0, 2].map(|policy| number(&held["policies"][policy], "longest_stall_ns"));
    assert_eq!(stalls, [2 * 2000 + 3296 * 150, 2 * 2000 + 7 * 150]);
    assert!(held["verdict"].as_str().unwrap().starts_with("no request fails under linux616; "), "{held}");
}

#[test]
fn policies_differ_in_span_and_in_failures() {
    let nodes = whatif("nodes-smp4.ftrace.gz", &["--policy", "linux69,onelock52,standard"]);
    let spans = [0, 1, 2].map(|policy| of(&nodes, policy, ["span_bytes", "kept_bytes", "holes", "nodes"]));
    // Pools keep addresses apart, and a policy without them needs fewer.
    assert!(spans[1][0] < spans[0][0] && spans[0][0] < spans[2][0], "{spans:?}");
    assert!(spans[1][1] < spans[0][1] && [spans[0][3], spans[1][3]] == [4, 1], "{spans:?}");
    assert!(nodes["verdict"].as_str().unwrap().contains("onelock52 needs 1.2 times less"), "{nodes}");
    // Two requests failed in the kernel: its search passes holes that would do.
    let test = whatif("test_vmalloc-mask127-smp1.ftrace.gz", &["--policy", "linux69,standard"]);
    let failed = [0, 1].map(|policy| of(&test, policy, ["requests", "failed", "saved", "passed_over"]));
    assert_eq!(failed, [[67184, 2, 0, 0], [67184, 0, 2, 0]]);
    assert!(test["verdict"].as_str().unwrap().contains("2 of these are met under standard"), "{test}");
}

#[test]
fn each_policy_has_a_film_of_its_own_addresses() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("films.html");
    let args = ["--films", path.to_str().unwrap()];
    let nodes = whatif("nodes-smp4.ftrace.gz", &args);
    let html = std::fs::read_to_string(&path).unwrap();
    assert_eq!(html.matches("data-film data-linked").count(), 3);
    let films: Vec<Value> = html
        .split("<script type=\"application/json\">")
        .skip(1)
        .map(|rest| serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap())
        .collect();
    for (at, film) in films.iter().enumerate() {
        // What a film shows as busy and lazy is at most what the policy kept, and the peak is near a moment.
        let moments = film["moments"].as_array().unwrap();
        let lazy =
            moments.iter().map(|moment| moment[3].as_u64().unwrap() + moment[4].as_u64().unwrap()).max();
        let kept = number(&nodes["policies"][at], "kept_bytes") / 4096;
        let lazy = lazy.unwrap();
        assert!(lazy * 10 > kept * 7 && lazy * 10 < kept * 13, "{at}: {lazy} of {kept} pages");
        // All requests are met, so that the same is busy in the end.
        let busy = |film: &Value| film["moments"].as_array().unwrap().last().unwrap()[2].clone();
        assert_eq!(busy(film), busy(&films[0]));
    }
    for name in ["linux69", "onelock52", "standard"] {
        assert!(html.contains(&format!("The same requests under {name}: ")), "{name}");
    }
}

#[test]
fn the_table_fits_eighty_columns_and_says_what_is_modelled() {
    let assert = vmlab().arg("whatif").arg(shipped("boot-smp1.ftrace.gz")).assert().success();
    let text = stdout_of(&assert);
    let table: Vec<&str> = text.lines().take_while(|line| !line.starts_with("a stall")).collect();
    assert!(table.len() > 12 && table.iter().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("2 us for each CPU of a flush and 150 ns for each area"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("verdict: no request fails under linux69; "), "{text}");
    for (args, why) in [
        (&["--policy", "x"][..], "invalid value 'x'"),
        (&["--cpus", "0"], "0 is not in 1..=4096"),
        (&["--kernel", "new"], "new is no release of a kernel"),
    ] {
        let assert = vmlab().arg("whatif").args(args).arg(shipped("boot-smp1.ftrace.gz")).assert().failure();
        assert!(stderr_of(&assert).contains(why), "{args:?}: {}", stderr_of(&assert));
    }
}
