//! Recordings as text and as JSON.

use vmlab_replay::diff::recording::{Area, Areas, Recording};
use vmlab_replay::engine::{Step, What};
use vmlab_trace::Entry;
use vmlab_trace::Mark;
use vmlab_trace::jsonl::{Item, When};

#[test]
fn text_and_json_say_the_same() {
    let text = "x-1 [000] 1.000001: tracing_mark_write: vmlab pools drained\n\
        x-1 [000] 1.000002: tracing_mark_write: vmlab vmallocinfo begin opens\n\
        x-1 [001] 1.000003: alloc_vmap_area: va_start: 4096 size=8192 align=1 vstart=0x1000 vend=0xffff000 failed=0\n\
        x-1 [000] 1.000004: free_vmap_area_noflush: va_start=0x1000 nr_lazy=2 nr_lazy_max=9\n\
        x-1 [000] 1.000004: free_vmap_area_noflush: va_start=\n\
        CPU:1 [LOST 3 EVENTS]\n";
    let read = Recording::read(text.as_bytes());
    assert_eq!((read.steps.len(), read.allocs(), read.cpus, read.bad, read.lost), (4, 1, 2, 1, 3));
    let first = Step { line: 1, ns: 1_000_001_000, cpu: 0, what: What::Mark(Mark::Drained), counted: true };
    assert_eq!((read.steps[0], read.steps[1].what), (first, What::Mark(Mark::Opens(When::Begin))));
    let json: String = text
        .lines()
        .filter_map(|line| Item::Event(Entry::from_text(line)?).to_json().ok())
        .map(|line| line + "\n")
        .collect();
    let area =
        r#"{"area":{"when":"begin","start":"0x1000","end":"0x3000","bytes":8192,"text":"unpurged vm_area"}}"#;
    let same = Recording::read(format!("{json}{area}\n").as_bytes());
    assert_eq!(same.steps, read.steps);
    let areas = same.begin.unwrap().areas;
    assert_eq!(areas, [Area { start: 0x1000, size: 0x2000, lazy: true }]);
}

#[test]
fn the_name_of_a_task_may_begin_with_a_brace() {
    let event = |task| format!("{task}-1 [000] 1.000004: free_vmap_area_noflush: va_start=0x1000\n");
    let text = [event("{x"), event("x"), "{nonsense\n".to_string()].concat();
    let read = Recording::read(text.as_bytes());
    assert_eq!((read.steps.len(), read.bad), (2, 1));
}

#[test]
fn cpus_without_an_event_count_where_the_head_lists_them() {
    let event = r#"{"event":"free_vmap_area_noflush","cpu":0,"va_start":"0x1000"}"#;
    for (cpus, want) in [("4", 4), ("0", 1), ("\"18446744073709551615\"", u32::MAX)] {
        let text = format!("{{\"vmlab\":{{\"version\":1,\"cpus\":{cpus}}}}}\n{event}\n");
        let read = Recording::read(text.as_bytes());
        assert_eq!((read.steps.len(), read.bad, read.cpus), (1, 0, want), "{text}");
    }
}

#[test]
fn hashed_addresses_are_no_areas() {
    let text = "0x00000000a3eb8df1-0x0000000040ab02d3   20480 irq_init+0xca/0x100 vmap\n\
                0xffffc90000000000-0xffffc90000005000   20480 irq_init+0xca/0x100 vmap\n\n";
    let areas = Areas::read(text.as_bytes());
    assert_eq!((areas.areas.len(), areas.bad), (1, 1));
}
