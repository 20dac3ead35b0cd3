//! The areas that stood before the first event of a recording.
//!
//! # Theory
//! A table is read while the kernel runs on. An area with an event between the marks around the table may be in it or
//! not, and a replay applies the event in any case. So the event decides: an area whose first event is its allocation
//! was not there before, and one whose first event is its free was busy.

use crate::event::Event;
use std::collections::BTreeMap;

/// An area that stood before the first event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// First address.
    pub start: u64,
    /// Bytes, guard page included.
    pub size: u64,
    /// True if it was freed and not yet purged.
    pub lazy: bool,
    /// The lazy list that the table shows it in, from 0; `None` if the table shows it busy.
    pub list: Option<u32>,
    /// Index of its line among the areas of the table.
    pub line: usize,
}

/// Returns the areas that stood before the events: those of a table, in its order (first address, bytes, lazy), after
/// the `events` while it was read.
pub fn standing(
    table: impl IntoIterator<Item = (u64, u64, bool)>,
    events: impl IntoIterator<Item = Event>,
) -> Vec<Standing> {
    let mut allocated: BTreeMap<u64, bool> = BTreeMap::new();
    for event in events {
        match event {
            Event::Alloc { addr, failed: false, .. } => _ = allocated.entry(addr).or_insert(true),
            Event::Free { addr } => _ = allocated.entry(addr).or_insert(false),
            _ => {}
        }
    }
    // The lazy lists are consecutive, each in the order of addresses.
    let (mut list, mut last) = (0, 0);
    let mut all = Vec::new();
    for (line, (start, size, lazy)) in table.into_iter().enumerate() {
        let of_list = lazy.then(|| {
            list += u32::from(start < last);
            last = start;
            list
        });
        let lazy = match allocated.get(&start) {
            Some(true) => continue,
            Some(false) => false,
            None => lazy,
        };
        all.push(Standing { start, size, lazy, list: of_list, line });
    }
    all
}

/// Returns the node of each area's lazy list: that of its number, if there are as many lists as nodes.
pub fn nodes_of_lists(areas: &[Standing], nodes: u32) -> impl Fn(&Standing) -> Option<u32> + use<> {
    let lists = areas.iter().filter_map(|area| area.list).max().map_or(0, |last| last + 1);
    move |area| area.list.filter(|_| lists == nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [(u64, u64, bool); 6] = [
        (0x9000, 0x1000, false),
        (0x3000, 0x1000, false),
        (0x5000, 0x2000, true),
        (0x8000, 0x1000, true),
        (0x2000, 0x1000, true),
        (0x7000, 0x1000, true),
    ];

    #[test]
    fn an_event_while_the_table_is_read_decides_what_stood_before() {
        let alloc =
            |addr| Event::Alloc { addr, size: 0x1000, align: 1, vstart: 0, vend: u64::MAX, failed: false };
        let free = |addr| Event::Free { addr };
        let events = [alloc(0x3000), free(0x3000), free(0x8000), alloc(0x8000)];
        let areas = standing(ROWS, events);
        let brief: Vec<_> = areas.iter().map(|area| (area.start, area.lazy, area.list)).collect();
        assert_eq!(
            brief,
            [
                (0x9000, false, None),
                (0x5000, true, Some(0)),
                (0x8000, false, Some(0)),
                (0x2000, true, Some(1)),
                (0x7000, true, Some(1))
            ]
        );
        let nodes = |count| areas.iter().map(nodes_of_lists(&areas, count)).collect::<Vec<_>>();
        assert_eq!(nodes(2), [None, Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(nodes(3), [None; 5]);
    }
}
