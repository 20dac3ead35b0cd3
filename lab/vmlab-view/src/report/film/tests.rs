//! Compares a film's moments with the events, and the page's steps with the moments.

use super::*;
use crate::report::section::Section;
use serde_json::Value;
use va_sim::op::Rng;
use va_sim::platform::HeapPlatform;
use va_tree::RbIndex;
use va_tree::rb::Linux;
use vmlab_replay::Replay;

fn alloc(cpu: u16, addr: u64, size: u64) -> String {
    format!(
        "t{cpu}-1 [{cpu:03}] ..... 1.{addr:06}: alloc_vmap_area: va_start: {} size={size} align=1 vstart=0x100000 vend=0xffffffff failed=0\n",
        addr + 0x10_0000
    )
}

/// Returns a film as a page has it.
fn written(film: Film) -> String {
    let mut section = Section::new("t");
    write(&mut section, film, 1 << 20);
    section.html
}

/// Returns a trace as an allocator would record it: lowest fit, frees, purges, chunks; hundreds of moments.
fn some_trace(seed: u64, events: u64) -> String {
    let mut rng = Rng::new(seed);
    let mut text = String::new();
    let mut live: Vec<u64> = Vec::new();
    let mut top = 0;
    for _ in 0..events {
        match rng.below(10) {
            0..=5 => {
                let size = (rng.below(40) + 1) * 4096;
                text += &alloc(rng.below(3) as u16, top, size);
                live.push(top + 0x10_0000);
                top += size + rng.below(3) * 4096;
            }
            6..=8 if !live.is_empty() => {
                let at = live.swap_remove(rng.below(live.len() as u64) as usize);
                text += &format!(
                    "t-1 [000] ..... 2.0: free_vmap_area_noflush: va_start={at:#x} nr_lazy=2 nr_lazy_max=9\n"
                );
            }
            _ => text += "t-1 [001] ..... 2.0: purge_vmap_area_lazy: start=0x0 end=0x0 num_purged=3\n",
        }
    }
    text
}

/// Plays a page moment by moment, as its script does.
fn played(json: &str) -> Vec<BTreeMap<u64, (u64, u64)>> {
    let film: Value = serde_json::from_str(json).unwrap();
    let number = |value: &Value| value.as_i64().unwrap();
    let mut areas = BTreeMap::new();
    let mut all = Vec::new();
    for (at, step) in film["steps"].as_array().unwrap().iter().enumerate() {
        if (at as u64).is_multiple_of(film["key"].as_u64().unwrap()) {
            areas.clear();
        }
        let mut from = 0;
        for more in step[0].as_array().unwrap() {
            from += number(more);
            assert!(areas.remove(&(from as u64)).is_some(), "what goes was there");
        }
        let mut end = 0;
        for come in step[1].as_array().unwrap().chunks(3) {
            let begin = end + number(&come[0]);
            areas.insert(begin as u64, (number(&come[1]) as u64, number(&come[2]) as u64));
            end = begin + number(&come[1]);
        }
        all.push(areas.clone());
    }
    all
}

fn carried(film: &Film) -> Vec<BTreeMap<u64, (u64, u64)>> {
    let code = |state| match state {
        State::Lazy => 0,
        State::Pooled => 1,
        State::Busy(holder) => u64::from(holder) + 2,
    };
    let list = |moment: &Moment| {
        let areas = moment.areas.iter();
        areas.map(|(&from, area)| (from, (area.pages, code(area.state)))).collect()
    };
    film.moments.iter().map(list).collect()
}

#[test]
fn fm1_the_steps_of_a_page_come_to_every_moment() {
    for seed in 0..6 {
        let trace = Trace::read(some_trace(seed, 700).as_bytes());
        let film = Film::of_trace(&trace, &Table::default()).unwrap();
        assert_eq!((film.moments.len(), film.events), (MOMENTS, 700));
        assert!(film.pooled, "three CPUs, so that Linux pools");
        let (json, film) = encode(film, usize::MAX);
        assert_eq!(played(&json), carried(&film), "FM1");
    }
}

#[test]
fn fm2_a_film_fits_its_limit_or_has_two_frames_with_the_last() {
    let trace = Trace::read(some_trace(7, 3000).as_bytes());
    let whole = Film::of_trace(&trace, &Table::default()).unwrap();
    let mut counts = Vec::new();
    let all = encode(whole.clone(), usize::MAX).0.len();
    for bytes_max in [all, all / 2, all / 4, 1] {
        let (json, film) = encode(whole.clone(), bytes_max);
        assert!(json.len() <= bytes_max || film.moments.len() <= 2, "FM2");
        assert_eq!(film.moments.last().unwrap().event, 3000);
        assert_eq!(played(&json), carried(&film), "FM1");
        counts.push(film.moments.len());
    }
    assert_eq!((counts[0], counts[3]), (MOMENTS, 2));
    assert!(counts[1] < counts[0] && counts[2] <= counts[1] && counts[2] >= 2, "{counts:?}");
}

#[test]
fn a_moment_has_what_a_replay_on_the_faithful_index_has() {
    let trace = Trace::read(some_trace(3, 240).as_bytes());
    let table = Table::default();
    let film = Film::of_trace(&trace, &table).unwrap();
    let window = vmlab_replay::default_window(&trace);
    let index =
        RbIndex::<Linux, _>::new(vmlab_machine::kernel_extent(), window, HeapPlatform::default()).unwrap();
    let mut replay = Replay::new(index, window, &table);
    let line = Line::of(&film.fold);
    assert_eq!(film.moments.len(), trace.events.len());
    replay.run_watched(&trace, |at, replay| {
        let moment = &film.moments[at];
        fn place<T>(line: &Line<'_>, held: &AreaMap<T>) -> Vec<(u64, u64)> {
            held.iter().map(|(start, size, _)| line.place(start, size).unwrap()).collect()
        }
        let drawn = |wanted: fn(State) -> bool| -> Vec<(u64, u64)> {
            let wanted = moment.areas.iter().filter(|(_, area)| wanted(area.state));
            wanted.map(|(&from, area)| (from, area.pages)).collect()
        };
        assert_eq!(drawn(|state| matches!(state, State::Busy(_))), place(&line, &replay.areas.busy));
        assert_eq!(drawn(|state| state == State::Lazy), place(&line, &replay.areas.lazy));
    });
}

#[test]
fn who_has_an_area_in_the_end_is_known_from_the_table_and_else_the_task() {
    let text = alloc(0, 0, 8192) + &alloc(1, 8192, 4096);
    let info = "0x100000-0x102000 8192 kernel_clone+0x1/0x2 vmalloc\n0x102000-0x104000 8192 other+0x1/0x2\n";
    let film = Film::of_trace(&Trace::read(text.as_bytes()), &Table::read(info.as_bytes())).unwrap();
    let names: Vec<&str> = film.holders.iter().map(|holder| holder.name.as_str()).collect();
    assert_eq!(names, ["kernel_clone", "task t1"], "the second is of another size");
    let last = film.moments.last().unwrap();
    assert_eq!((last.pages, last.count), ([3, 0, 0], 2));
    assert_eq!((film.holders[0].end_pages, film.holders[0].end_areas), (2, 1));
}

#[test]
fn too_many_areas_are_drawn_together_and_nothing_large_is_lost() {
    let mut text = String::new();
    for n in 0..AREAS_MAX as u64 + 100 {
        text += &alloc(0, n * 8192, 4096);
    }
    text += &alloc(0, 1 << 27, 1 << 26);
    let film = Film::of_trace(&Trace::read(text.as_bytes()), &Table::default()).unwrap();
    assert!(film.together_pages > 1);
    let last = film.moments.last().unwrap();
    assert!(last.areas.len() <= 2 * CELLS as usize && last.count == AREAS_MAX + 101, "{}", last.areas.len());
    assert!(last.areas.values().any(|area| area.pages == 1 << 14));
}

#[test]
fn numbers_at_the_ends_of_the_space_and_empty_traces_do_no_harm() {
    let event = |addr: u64, size: u64| {
        format!(
            "alloc_vmap_area: va_start: {addr} size={size} align=1 vstart=0x0 vend=0xffffffffffffffff failed=0\n"
        )
    };
    let mut text = String::new();
    for size in [0, 1, 5, 4096, 1 << 40, 1 << 63, u64::MAX] {
        for addr in [0, 1, 4095, 1 << 40, u64::MAX - 4096, u64::MAX] {
            text += &event(addr, size);
        }
    }
    text += "percpu_create_chunk: base_addr=ffffffffffffffff\npercpu_create_chunk: base_addr=0\n";
    for text in [text.as_str(), "", "free_vmap_area_noflush: va_start=0x1 nr_lazy=1 nr_lazy_max=1\n"] {
        let film = Film::of_trace(&Trace::read(text.as_bytes()), &Table::default()).unwrap();
        let html = written(film);
        assert!(!html.contains("NaN") && html.ends_with("</div>") || html.contains("nothing to draw"));
    }
    let table = Table::read(&b"0x0-0xfffffffffffff000 18446744073709547520 f\n0x1-0x2 1 g\n"[..]);
    assert_eq!(table.areas, 2);
    assert!(written(Film::of_table(&table)).contains("<canvas"));
}

#[test]
fn rows_that_are_free_at_every_moment_are_folded_and_no_area_is() {
    for seed in 0..6 {
        // Areas apart, of which some are freed: what is free in the end alone is not folded.
        let mut rng = Rng::new(seed);
        let mut text = String::new();
        for n in 0..60 {
            let at = n * 0x8_0000 + rng.below(100) * 4096;
            text += &alloc(0, at, (rng.below(9) + 1) * 4096);
            if rng.below(2) == 0 {
                let at = at + 0x10_0000;
                text += &format!(
                    "t-1 [000] ..... 2.0: free_vmap_area_noflush: va_start={at:#x} nr_lazy=2 nr_lazy_max=9\n"
                );
            }
        }
        text += "t-1 [001] ..... 2.0: purge_vmap_area_lazy: start=0x0 end=0x0 num_purged=60\n";
        let film = Film::of_trace(&Trace::read(text.as_bytes()), &Table::default()).unwrap();
        let row_pages = film.row_pages();
        let mut folded = 0;
        for row_pages in [1, 3, row_pages, row_pages * 2, film.line_pages()] {
            let rows = film.rows(row_pages, usize::MAX);
            // They cover the line, in order.
            assert_eq!((rows[0].from, rows.last().unwrap().end), (0, film.line_pages()));
            assert!(rows.windows(2).all(|two| two[0].end == two[1].from));
            assert!(rows.iter().all(|row| row.folded || row.end - row.from <= row_pages));
            for row in rows.iter().filter(|row| row.folded) {
                folded += 1;
                assert!(row.end - row.from > row_pages, "two rows at least");
                for moment in &film.moments {
                    let inside = moment.areas.range(..row.end).next_back();
                    assert!(inside.is_none_or(|(from, area)| from + area.pages <= row.from), "{row:?}");
                }
            }
        }
        assert!(film.rows(row_pages, usize::MAX).len() <= ROWS as usize && folded > 100, "{folded}");
    }
}

#[test]
fn hostile_names_stay_text() {
    let name = "</script><script>alert(1)</script>\"'&<!--\u{2028}";
    let info = format!("0x100000-0x102000 8192 {name} vmalloc\n");
    let text = alloc(0, 0, 8192).replace("t0-1", &name.replace(' ', ""))
        + &alloc(0, 8192, 4096).replace("t0-1", "<b>-1");
    let table = Table::read(info.as_bytes());
    for film in [Film::of_trace(&Trace::read(text.as_bytes()), &table).unwrap(), Film::of_table(&table)] {
        let html = written(film);
        assert_eq!((html.matches("<script").count(), html.matches("</script").count()), (1, 1), "{html}");
        assert!(!html.contains("alert(1)<") && !html.contains("<b>") && !html.contains("<!--"), "{html}");
        let json = html.split_once("application/json\">").unwrap().1.split_once("</script>").unwrap().0;
        let names = serde_json::from_str::<Value>(json).unwrap()["names"].to_string();
        assert!(names.contains("alert(1)"), "{names}");
    }
}
