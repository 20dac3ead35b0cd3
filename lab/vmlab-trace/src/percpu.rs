//! Events inside percpu chunks, which [`Trace`](super::Trace) only counts.

pub use super::event::PercpuEvent;

use super::fields::{field, hex, split};
use super::jsonl::Item;
use super::{EVENTS_MAX, each_line};
use std::io::Read;
use std::ops::ControlFlow;

/// The most bytes stored of the lines of chunks: more chunks than any machine has.
const AREAS_BYTES_MAX: usize = 1 << 20;

/// The percpu events of a trace.
#[derive(Clone, Debug, Default)]
pub struct PercpuTrace {
    /// In order.
    pub events: Vec<PercpuEvent>,
    /// CPUs that the recorder names (`#P:4`), or 1.
    pub cpus: u32,
    /// Lines about percpu chunks from the tables of a recording.
    pub areas: String,
    /// Lines of such events that cannot be parsed.
    pub bad: u64,
    /// The reason why reading ended early, if it did.
    pub cut_short: Option<String>,
}

impl PercpuTrace {
    /// Reads a whole trace, up to [`EVENTS_MAX`] events.
    pub fn read(input: impl Read) -> Self {
        Self::read_at_most(input, EVENTS_MAX)
    }

    fn read_at_most(input: impl Read, most: usize) -> Self {
        let mut trace = Self { cpus: 1, ..Self::default() };
        trace.cut_short = each_line(input, |_, line| {
            if trace.events.len() == most {
                return ControlFlow::Break("too many events");
            }
            trace.add(line);
            ControlFlow::Continue(())
        });
        trace
    }

    fn add(&mut self, line: &str) {
        if let Some((_, cpus)) = line.strip_prefix('#').and_then(|rest| rest.split_once("#P:")) {
            self.cpus = cpus.trim().parse().unwrap_or(1).clamp(1, 1 << 13);
        }
        if line.starts_with('{')
            && let Ok(item) = Item::from_json(line)
        {
            match item {
                Some(Item::Event(entry)) => self.events.extend(entry.percpu()),
                Some(Item::Header(header)) => {
                    self.cpus = u32::try_from(header.cpus.0).unwrap_or(1).clamp(1, 1 << 13);
                }
                Some(Item::Area(area))
                    if area.text.starts_with("pcpu_get_vm_areas") && self.areas.len() < AREAS_BYTES_MAX =>
                {
                    self.areas.push_str(&format!("{area}\n"));
                }
                _ => {}
            }
            return;
        }
        let Some((name, fields)) = split(line) else { return };
        let event = match name {
            "percpu_alloc_percpu" => alloc(fields),
            "percpu_free_percpu" => free(fields),
            "percpu_create_chunk" => pointer(fields, "base_addr").map(|base| PercpuEvent::Create { base }),
            _ => return,
        };
        match event {
            Some(event) => self.events.push(event),
            None => self.bad += 1,
        }
    }
}

fn pointer(fields: &str, key: &str) -> Option<u64> {
    field(fields, key).and_then(hex)
}

fn decimal(fields: &str, key: &str) -> Option<u64> {
    field(fields, key)?.parse().ok()
}

fn alloc(fields: &str) -> Option<PercpuEvent> {
    Some(PercpuEvent::Alloc {
        base: pointer(fields, "base_addr")?,
        off: decimal(fields, "off")?,
        ptr: pointer(fields, "ptr")?,
        size: decimal(fields, "size")?,
        align: decimal(fields, "align")?,
        reserved: decimal(fields, "reserved")? != 0,
        atomic: decimal(fields, "is_atomic")? != 0,
    })
}

fn free(fields: &str) -> Option<PercpuEvent> {
    Some(PercpuEvent::Free { base: pointer(fields, "base_addr")?, off: decimal(fields, "off")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_and_nonsense_is_counted() {
        let text = "# entries-in-buffer/entries-written: 3/3   #P:4\n\
            a-1 [000] d..1. 0.0: percpu_alloc_percpu: call_site=f+0x1/0x2 reserved=0 is_atomic=1 size=4 align=8 base_addr=ff10 off=24 ptr=000a bytes_alloc=12 gfp_flags=GFP_KERNEL\n\
            a-1 [000] d..1. 0.0: percpu_free_percpu: base_addr=ff10 off=24 ptr=000a\n\
            a-1 [000] ..... 0.0: percpu_create_chunk: base_addr=ffd1ffffffc00000\n\
            a-1 [000] ..... 0.0: percpu_free_percpu: base_addr=ff10 off=-4\n\
            a-1 [000] ..... 0.0: sched_switch: x\n";
        let trace = PercpuTrace::read(text.as_bytes());
        assert_eq!((trace.cpus, trace.bad, trace.cut_short), (4, 1, None));
        let alloc = PercpuEvent::Alloc {
            base: 0xff10,
            off: 24,
            ptr: 10,
            size: 4,
            align: 8,
            reserved: false,
            atomic: true,
        };
        let free = PercpuEvent::Free { base: 0xff10, off: 24 };
        assert_eq!(trace.events, [alloc, free, PercpuEvent::Create { base: 0xffd1_ffff_ffc0_0000 }]);
    }

    #[test]
    fn too_many_events_are_an_early_end() {
        let text = "a-1 [000] ..... 0.0: percpu_create_chunk: base_addr=ffd1ffffffc00000\n".repeat(3);
        let read = |most| PercpuTrace::read_at_most(text.as_bytes(), most);
        let (whole, cut) = (read(3), read(2));
        assert_eq!((whole.events.len(), whole.cut_short), (3, None));
        assert_eq!((cut.events.len(), cut.cut_short.as_deref()), (2, Some("after line 2: too many events")));
    }
}
