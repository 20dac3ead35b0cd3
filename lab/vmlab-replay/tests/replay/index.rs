//! Small traces on an index, event by event.

use va_sim::model::ModelIndex;
use va_tree::FreeIndex;
use vmlab_machine::kernel_extent;
use vmlab_replay::{Call, Columns, Replay, Tally, default_window, fuzz};
use vmlab_trace::Trace;
use vmlab_trace::vmallocinfo::Table;

fn replayed(text: &str, table: &Table) -> (Tally, u64) {
    let trace = Trace::read(text.as_bytes());
    let window = default_window(&trace);
    let index = ModelIndex::new(kernel_extent(), window).unwrap();
    let mut replay = Replay::new(index, window, table);
    replay.run(&trace);
    (replay.tally.clone(), replay.index.hole_count())
}

fn alloc(addr: u64, size: u64, align: u64, failed: u8) -> String {
    format!(
        "alloc_vmap_area: va_start: {addr} size={size} align={align} vstart=0x100000 vend=0x200fff failed={failed}\n"
    )
}

#[test]
fn rp1_every_allocation_is_in_one_column() {
    let text = [
        alloc(0x10_0000, 0x2000, 1, 0),
        alloc(0x10_4000, 0x1000, 1, 0),
        alloc(0x10_2000, 0x2000, 4096, 0),
        // The kernel failed where there is room, and the reverse.
        alloc(0x20_0fff, 0x1000, 4096, 1),
        alloc(0x20_0fff, 0x8000_0000, 4096, 1),
        "# a comment\n".to_string(),
        alloc(0x10_5800, 0x10, 3, 0),
    ]
    .concat();
    let (tally, _) = replayed(&text, &Table::default());
    let columns = Columns { equal: 2, lower: 1, higher: 0, failed_both: 1, failed_differs: 2 };
    assert_eq!((tally.columns, tally.malformed), (columns, 1));
    assert!(columns.check(6).is_ok() && columns.check(7).is_err());
    // A request that no allocator accepts is listed with the others.
    let named: Vec<_> = tally.first_differences.iter().map(|d| (d.number, d.line)).collect();
    assert_eq!(named, [(2, 2), (4, 4), (6, 7)]);
}

#[test]
fn what_is_freed_comes_back_at_the_next_purge_only() {
    let free = "free_vmap_area_noflush: va_start=0x100000 nr_lazy=2 nr_lazy_max=9\n";
    let idle = "purge_vmap_area_lazy: start=0xffffffffffffffff end=0x0 num_purged=0\n";
    let purge = "purge_vmap_area_lazy: start=0x100000 end=0x102000 num_purged=1\n";
    let first = alloc(0x10_0000, 0x2000, 1, 0);
    let text = [first.as_str(), free, idle, &alloc(0x10_2000, 0x1000, 1, 0), purge, &first].concat();
    let (tally, _) = replayed(&text, &Table::default());
    assert_eq!((tally.columns.equal, tally.inferred), (3, 0));
}

#[test]
fn what_events_do_not_show_is_inferred_and_counted() {
    let unknown = "free_vmap_area_noflush: va_start=0x7000 nr_lazy=2 nr_lazy_max=9\n";
    let chunk = "percpu_create_chunk: base_addr=0x200000\n";
    let again = alloc(0x10_0000, 0x2000, 1, 0);
    let text = [again.as_str(), unknown, chunk, &again].concat();
    let (tally, _) = replayed(&text, &Table::default());
    assert_eq!((tally.inferred, tally.chunks, tally.chunks_guessed), (3, 1, 1));
    // The second allocation of a range that we still hold: ours is higher.
    assert_eq!((tally.columns.equal, tally.columns.higher), (1, 1));
    let info = "0x200000-0x201000 4096 pcpu_get_vm_areas+0x0/0x1 vmalloc\n";
    let (tally, _) = replayed(chunk, &Table::read(info.as_bytes()));
    assert_eq!((tally.chunks, tally.chunks_guessed, tally.malformed), (1, 0, 0));
}

#[test]
fn a_stored_call_is_small() {
    assert!(size_of::<Call>() <= 48);
}

#[test]
fn bytes_that_are_no_text_do_no_harm() {
    let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
    fuzz(&bytes);
    fuzz(&[]);
    fuzz(&[0x1f, 0x8b]);
    fuzz(&[0x28, 0xb5, 0x2f, 0xfd, 0, 0]);
}
