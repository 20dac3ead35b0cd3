//! The default tests, workers and targets: those that the patches and the talk measured, with fewer loops.
//!
//! | scenario | tests | workers | from |
//! |---|---|---|---|
//! | `one` | the eight of 5.1, in order | 1 | the patch of 5.2, `performance` |
//! | `all` | the same, each worker in its own order | one for each CPU of this machine | the talk |
//! | `crowd` | fix_size, full_fit, long_busy_list | 64 | the series of 6.9 |
//! | `ram` | vm_map_ram of 5 pages | 64 | the patch of 6.4 |
//!
//! A million loops take the list of 5.1 hours, in the kernel and here; so the default is fewer. Mappings have the
//! million of the patch: with 10,000 loops a worker takes a millisecond, which is less than its turn on a CPU that 32 of
//! them share. They ran one after the other, and none found a lock held. With 200,000 some still did.

use crate::suite::params::Params;

pub(super) use super::measure::Scenario;

/// The default number of loops.
const LOOPS: u32 = 10_000;
/// The default number of loops of mappings.
const RAM_LOOPS: u32 = 1_000_000;
/// Workers of the patches' machines of 64 CPUs.
const CROWD: u32 = 64;
/// The tests of 5.1, of the crowd, and of mappings.
const EIGHT: u32 = 255;
const THREE: u32 = 7;
const RAM: u32 = 1024;

/// The targets of `one` and `all`, of `crowd`, and of `ram`.
const WHOLE: [&str; 5] = ["list", "one-lock", "hashed", "nodes", "space"];

/// Returns true if the user chose neither tests nor workers.
pub fn is_usual(params: &Params) -> bool {
    let usual = Params::new(params.suite);
    let Params { test_repeat_count, test_loop_count, nr_pcpu_objects, .. } = *params;
    *params == Params { test_repeat_count, test_loop_count, nr_pcpu_objects, ..usual }
}

/// Returns the comparisons, with `names` as targets, or the default targets if there are none.
pub fn all(params: &Params, cpus: u32, names: &[String]) -> Vec<Scenario> {
    let targets = |usual: &[&str]| -> Vec<String> {
        let chosen = names.iter().cloned();
        if names.is_empty() { usual.iter().map(ToString::to_string).collect() } else { chosen.collect() }
    };
    if !is_usual(params) {
        return vec![Scenario { name: "yours", params: *params, targets: targets(&WHOLE) }];
    }
    let loops_or = |usual: u32| match params.test_loop_count {
        unset if unset == Params::new(params.suite).test_loop_count => usual,
        set => set,
    };
    let one = Params {
        run_test_mask: EIGHT,
        test_loop_count: loops_or(LOOPS),
        sequential_test_order: true,
        ..*params
    };
    let every = Params { nr_threads: cpus, sequential_test_order: false, ..one };
    let crowd = Params { run_test_mask: THREE, nr_threads: CROWD, ..every };
    let ram = Params { run_test_mask: RAM, nr_pages: 5, test_loop_count: loops_or(RAM_LOOPS), ..crowd };
    vec![
        Scenario { name: "one", params: one, targets: targets(&WHOLE) },
        Scenario { name: "all", params: every, targets: targets(&WHOLE) },
        // `one-lock` and `hashed` do not differ in these tests, and the list would not end.
        Scenario { name: "crowd", params: crowd, targets: targets(&["one-lock", "nodes", "space"]) },
        Scenario { name: "ram", params: ram, targets: targets(&["one-lock", "hashed", "nodes", "space"]) },
    ]
}
