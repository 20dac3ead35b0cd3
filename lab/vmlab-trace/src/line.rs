//! One line of a trace.

use super::entry::mark;
use super::event::{Event, Line, Mark};
use super::fields::{field, hex, number, split};
use super::jsonl::Item;

/// Parses one line of any of the tools.
pub fn parse(line: &str) -> Line {
    let line = line.trim();
    // A line of a recording; the name of a task may also begin with `{`.
    if line.starts_with('{')
        && let Ok(item) = Item::from_json(line)
    {
        return match item {
            Some(Item::Event(entry)) => entry.line(),
            Some(Item::Lost(lost)) => Line::Lost(lost.events.0),
            Some(Item::Header(_) | Item::Area(_) | Item::Stats(_) | Item::Summary(_)) => Line::Comment,
            Some(Item::Stack(_)) | None => Line::Other,
        };
    }
    if line.is_empty() || line.starts_with('#') {
        return overwritten(line).map_or(Line::Comment, Line::Lost);
    }
    let Some((name, fields)) = split(line) else {
        let mark = || mark(line).and_then(|(_, text)| Mark::from_text(text)).map_or(Line::Other, Line::Mark);
        return lost(line).map_or_else(mark, Line::Lost);
    };
    let event = match name {
        "alloc_vmap_area" => alloc(fields),
        "free_vmap_area_noflush" => {
            field(fields, "va_start").and_then(number).map(|addr| Event::Free { addr })
        }
        "purge_vmap_area_lazy" => {
            field(fields, "num_purged").and_then(number).map(|purged| Event::Purge { purged })
        }
        "percpu_create_chunk" => base(fields).map(|base| Event::ChunkCreate { base }),
        "percpu_destroy_chunk" => base(fields).map(|base| Event::ChunkDestroy { base }),
        "percpu_alloc_percpu" | "percpu_free_percpu" | "percpu_alloc_percpu_fail" => return Line::Percpu,
        // Durations and locks: nothing of the address space.
        _ => return Line::Other,
    };
    event.map_or(Line::Bad, Line::Event)
}

/// Returns the CPU that the line names, `[003]` before the event; 0 if it names none.
pub fn cpu(line: &str) -> u16 {
    let Some((name, _)) = split(line.trim()) else { return 0 };
    // The name of a task may also contain brackets: the last pair before the event is the CPU.
    let head = line.split_once(&format!("{name}:")).map_or("", |(head, _)| head);
    let number = |word: &str| word.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    head.split_whitespace().rev().find_map(number).unwrap_or(0)
}

/// `# entries-in-buffer/entries-written: 10/14`: a full ring buffer lost the difference.
fn overwritten(line: &str) -> Option<u64> {
    let counts = line.strip_prefix('#')?.trim_start().strip_prefix("entries-in-buffer/entries-written:")?;
    let (in_buffer, written) = counts.split_whitespace().next()?.split_once('/')?;
    let lost = written.parse::<u64>().ok()?.checked_sub(in_buffer.parse().ok()?)?;
    (lost > 0).then_some(lost)
}

/// `CPU:0 [LOST 3 EVENTS]` (tracefs), `CPU:0 [3 EVENTS DROPPED]` (trace-cmd).
fn lost(line: &str) -> Option<u64> {
    let (cpu, note) = line.strip_prefix("CPU:")?.split_once('[')?;
    cpu.trim().parse::<u16>().ok()?;
    let mut words = note.strip_suffix(']')?.split_whitespace();
    match (words.next()?, words.next()?, words.next()?, words.next()) {
        ("LOST", count, "EVENTS", None) | (count, "EVENTS", "DROPPED", None) => count.parse().ok(),
        _ => None,
    }
}

/// Returns the number of events that the recorder reports as lost, and the CPU.
pub(crate) fn lost_at(line: &str) -> Option<(u64, Option<u16>)> {
    let line = line.trim();
    let cpu = line.strip_prefix("CPU:").and_then(|rest| rest.split_once('[')?.0.trim().parse().ok());
    lost(line).or_else(|| overwritten(line)).map(|events| (events, cpu))
}

fn alloc(fields: &str) -> Option<Event> {
    let get = |key| field(fields, key).and_then(number);
    // The address is printed as "va_start: N", unlike every other field.
    let addr = match fields.strip_prefix("va_start:") {
        Some(rest) => number(rest.split_whitespace().next()?)?,
        None => get("va_start")?,
    };
    let event = Event::Alloc {
        addr,
        size: get("size")?,
        align: get("align")?,
        vstart: get("vstart")?,
        vend: get("vend")?,
        failed: match get("failed")? {
            0 => false,
            1 => true,
            _ => return None,
        },
    };
    Some(event)
}

/// Returns the base of a chunk.
fn base(fields: &str) -> Option<u64> {
    field(fields, "base_addr").and_then(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &str = "va_start: 18419722475945328640 size=20480 align=1 vstart=0xffa0000000000000 vend=0xffd1ffffffffffff failed=0";
    const ALLOC: Line = Line::Event(Event::Alloc {
        addr: 18_419_722_475_945_328_640,
        size: 20480,
        align: 1,
        vstart: 0xffa0_0000_0000_0000,
        vend: 0xffd1_ffff_ffff_ffff,
        failed: false,
    });

    #[test]
    fn the_cpu_stands_in_brackets_before_the_event() {
        for (head, want) in [
            ("x-1 [003] ..... 1.0: ", 3),
            ("a [7] b-12 [012] 1.0: ", 12),
            ("swapper 0 [001] 1.0: vmalloc:", 1),
            ("x-1 [99999999] 1.0: ", 0),
            ("", 0),
        ] {
            assert_eq!(cpu(&format!("{head}alloc_vmap_area: {FIELDS} [005]")), want, "{head}");
        }
        assert_eq!(cpu("x-1 [003] ..... 1.0: sched_switch: prev=1"), 0);
    }

    #[test]
    fn the_three_shapes_of_an_allocation() {
        for head in [
            "          <idle>-0       [000] d..1.     0.219395: alloc_vmap_area: ",
            " kworker/u8:3-77    [002]     7.219395: alloc_vmap_area:      ",
            "swapper     0 [000]     0.219395: vmalloc:alloc_vmap_area: ",
            "alloc_vmap_area: ",
        ] {
            assert_eq!(parse(&format!("{head}{FIELDS}")), ALLOC, "{head}");
        }
    }

    #[test]
    fn the_other_events() {
        let event = |line| match parse(line) {
            Line::Event(event) => event,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(
            event(
                "a-1 [000] .. 1.5: free_vmap_area_noflush: va_start=0xffa0000000055000 nr_lazy=2 nr_lazy_max=8192"
            ),
            Event::Free { addr: 0xffa0_0000_0005_5000 }
        );
        assert_eq!(
            event("a-1 [000] .. 1.5: purge_vmap_area_lazy: start=0xffffffffffffffff end=0x0 num_purged=3"),
            Event::Purge { purged: 3 }
        );
        assert_eq!(
            event("a-1 [000] .. 1.5: percpu_create_chunk: base_addr=ffd1ffffffc00000"),
            Event::ChunkCreate { base: 0xffd1_ffff_ffc0_0000 }
        );
        assert_eq!(
            event("a-1 [000] .. 1.5: percpu_destroy_chunk: base_addr=0xffd1ffffffc00000"),
            Event::ChunkDestroy { base: 0xffd1_ffff_ffc0_0000 }
        );
        let line = "a-1 [0] 1: percpu_alloc_percpu: call_site=f+0x1/0x2 size=4 base_addr=ff off=1";
        assert_eq!(parse(line), Line::Percpu);
    }

    #[test]
    fn what_is_not_understood_is_bad_what_is_not_ours_is_other_what_is_lost_is_counted() {
        for bad in [
            "alloc_vmap_area:",
            "alloc_vmap_area: va_start: x size=1",
            "alloc_vmap_area: va_start: 99999999999999999999 size=1 align=1 vstart=0x0 vend=0x1 failed=0",
            "alloc_vmap_area: va_start: 1 size=1 align=1 vstart=0x0 vend=0x1 failed=7",
            "alloc_vmap_area: va_start: 1 size=1 align=1 vstart=0x0 failed=0",
            "free_vmap_area_noflush: va_start=",
            "percpu_create_chunk: base_addr=(____ptrval____)",
            "purge_vmap_area_lazy: start=0x0 end=0x0",
        ] {
            assert_eq!(parse(bad), Line::Bad, "{bad}");
        }
        for other in ["sched_switch: prev_comm=alloc_vmap_area", "hello", ":::", "my_alloc_vmap_area: size=1"]
        {
            assert_eq!(parse(other), Line::Other, "{other}");
        }
        for (text, events) in [
            ("CPU:3 [LOST 42 EVENTS]", 42),
            ("CPU:0 [7 EVENTS DROPPED]", 7),
            ("# entries-in-buffer/entries-written: 10/14   #P:1", 4),
        ] {
            assert_eq!(parse(text), Line::Lost(events), "{text}");
        }
        for comment in
            ["", "   ", "# tracer: nop", "#", "# entries-in-buffer/entries-written: 151/151   #P:1"]
        {
            assert_eq!(parse(comment), Line::Comment);
        }
    }
}
