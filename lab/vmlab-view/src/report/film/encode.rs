//! Encodes a film as the JSON that its page contains.
//!
//! A list of areas is a list of numbers, three for each area: pages from the end of the area before, pages, and state.
//! The state is 0 for lazy, 1 for pooled, and otherwise the holder's number plus 2. The removed areas are a list of
//! starts, each minus the start before.

use super::{Area, Areas, Film, KEY, Moment, State, part_pages};
use serde_json::{Value, json};
use std::fmt::Write;

/// Returns the film as JSON without `<`, so that no name ends the element that contains it, and the remaining moments.
/// Moments are removed until the JSON fits `bytes_max`, or two remain (FM2).
pub fn encode(mut film: Film, bytes_max: usize) -> (String, Film) {
    loop {
        let text = text(&film);
        // Checks FM2.
        if text.len() <= bytes_max || film.moments.len() <= 2 {
            return (text, film);
        }
        film.thin();
    }
}

fn text(film: &Film) -> String {
    let parts: Vec<Value> = film
        .fold
        .parts()
        .iter()
        .zip(&film.labels)
        .map(|(part, label)| json!([format!("{:x}", part.start & !0xfff), part_pages(*part), label]))
        .collect();
    let times: Vec<Value> = film.moments.iter().map(moment_head).collect();
    let names: Vec<&str> = film.holders.iter().map(|holder| holder.name.as_str()).collect();
    let head = json!({
        "parts": parts, "row": film.row_pages(), "names": names, "moments": times, "key": KEY,
        "events": film.events, "together": film.together_pages, "colours": &film.colours, "opens": film.opens(),
    });
    let mut text = head.to_string();
    text.pop();
    text.push_str(",\"steps\":[");
    let none = Areas::new();
    for (at, moment) in film.moments.iter().enumerate() {
        text.push_str(if at > 0 { ",[" } else { "[" });
        let before = if at % KEY == 0 { &none } else { &film.moments[at - 1].areas };
        let step = Step::between(before, &moment.areas);
        debug_assert_eq!(step.after(before.clone()), moment.areas, "FM1");
        step.write(&mut text);
        text.push(']');
    }
    text.push_str("]}");
    text.replace('<', "\\u003c")
}

/// Events, microseconds (null if not known), pages busy, lazy and pooled, areas.
fn moment_head(moment: &Moment) -> Value {
    let [busy, lazy, pooled] = moment.pages;
    json!([moment.event, moment.time_ns.map(|ns| ns / 1000), busy, lazy, pooled, moment.count])
}

/// The removed areas, and the added ones; a changed area is among both.
struct Step {
    gone: Vec<u64>,
    come: Vec<(u64, Area)>,
}

impl Step {
    fn between(before: &Areas, after: &Areas) -> Self {
        let gone = before.iter().filter(|(from, area)| after.get(from) != Some(area)).map(|(&from, _)| from);
        let come = after.iter().filter(|(from, area)| before.get(from) != Some(area));
        Self { gone: gone.collect(), come: come.map(|(&from, &area)| (from, area)).collect() }
    }

    /// Returns the areas after the step.
    fn after(&self, mut areas: Areas) -> Areas {
        for from in &self.gone {
            areas.remove(from);
        }
        areas.extend(self.come.iter().copied());
        areas
    }

    fn write(&self, text: &mut String) {
        text.push('[');
        let mut last = 0;
        for (at, from) in self.gone.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{}{}", if at > 0 { "," } else { "" }, from - last);
            last = *from;
        }
        text.push_str("],[");
        let mut last = 0u64;
        for (at, &(from, area)) in self.come.iter().enumerate() {
            let code = match area.state {
                State::Lazy => 0,
                State::Pooled => 1,
                State::Busy(holder) => u64::from(holder) + 2,
            };
            // Merged areas may overlap the area before.
            let gap = from as i64 - last as i64;
            let _ = write!(text, "{}{gap},{},{code}", if at > 0 { "," } else { "" }, area.pages);
            last = from + area.pages;
        }
        text.push(']');
    }
}
