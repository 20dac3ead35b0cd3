//! The numbers in machine-readable form: JSON, and CSV with one number a line.

use super::Picture;
use super::measure::{Amount, CallerRow};
use serde_json::{Value, json};
use std::fmt::Write;

/// The version of the object.
const VERSION: u32 = 1;

/// Returns one JSON object of all numbers, without the areas. Addresses are strings.
pub fn json(picture: &Picture) -> String {
    let mut value = serde_json::to_value(&picture.numbers).unwrap_or(Value::Null);
    if let Value::Object(object) = &mut value {
        object.insert("version".to_string(), json!(VERSION));
        object.insert("title".to_string(), json!(picture.title));
        object.insert("overlapping".to_string(), json!(picture.listing.overlapping));
        object.insert("beyond".to_string(), json!(picture.listing.beyond));
        object.insert("notes".to_string(), json!(picture.notes));
    }
    value.to_string()
}

/// Returns CSV, `section,name,measure,value`: a line for each number. Addresses are hexadecimal, sizes bytes.
pub fn csv(picture: &Picture) -> String {
    let numbers = &picture.numbers;
    let mut text = String::from("section,name,measure,value\n");
    let mut line = |section: &str, name: &str, measure: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{section},{},{measure},{value}", quoted(name));
    };
    for (name, Amount { areas, bytes }) in
        [("busy", numbers.busy), ("lazy", numbers.lazy), ("pooled", numbers.pooled), ("holes", numbers.holes)]
    {
        line("state", name, "count", areas.to_string());
        line("state", name, "bytes", bytes.to_string());
    }
    for row in &numbers.windows {
        let name = format!("{:#x}-{:#x}", row.start, row.end);
        line("window", &name, "holes", row.holes.to_string());
        line("window", &name, "hole_bytes", row.hole_bytes.to_string());
    }
    for row in &numbers.aligned {
        let name = row.align.to_string();
        line("align", &name, "largest", row.bytes.to_string());
        line("align", &name, "at", row.at.map_or(String::new(), |at| format!("{at:#x}")));
        line("align", &name, "holes", row.holes.to_string());
    }
    for (log, count) in numbers.holes_by_size.iter().enumerate().filter(|(_, count)| **count > 0) {
        line("holes", &(1_u64 << log).to_string(), "count", count.to_string());
    }
    for CallerRow { name, areas, bytes, largest, keeps_apart, .. } in &numbers.callers {
        line("caller", name, "count", areas.to_string());
        line("caller", name, "bytes", bytes.to_string());
        line("caller", name, "largest", largest.to_string());
        line("caller", name, "keeps_apart", keeps_apart.to_string());
    }
    text
}

/// Quotes a field as RFC 4180 requires.
fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::fold::Part;
    use crate::map::listing::Builder;
    use vmlab_replay::state::State;

    #[test]
    fn json_and_csv_have_the_same_numbers_and_names_are_quoted() {
        let mut builder = Builder::default();
        builder.add(Part { start: 0x1000, end: 0x3000 }, State::Busy, "a, \"b\"");
        builder.add(Part { start: 0x5000, end: 0x6000 }, State::Lazy, "");
        let picture = Picture::of("t", builder.finish(None), vec!["note".to_string()]);
        let value: Value = serde_json::from_str(&json(&picture)).unwrap();
        assert_eq!(value["version"], 1);
        assert_eq!(value["busy"], json!({"areas": 1, "bytes": 8192}));
        assert_eq!(value["aligned"][0], json!({"align": 4096, "bytes": 8192, "at": "0x3000", "holes": 1}));
        assert_eq!((&value["title"], &value["notes"][0]), (&json!("t"), &json!("note")));
        assert_eq!(value["callers"][0]["keeps_apart"], 0);
        let csv = csv(&picture);
        for line in [
            "state,busy,bytes,8192",
            "state,holes,count,1",
            "window,0x1000-0x6000,hole_bytes,8192",
            "align,4096,at,0x3000",
            "align,1073741824,at,",
            "holes,8192,count,1",
            "caller,\"a, \"\"b\"\"\",bytes,8192",
            "caller,(lazy),largest,4096",
        ] {
            assert!(csv.lines().any(|known| known == line), "{line} is not in\n{csv}");
        }
    }
}
