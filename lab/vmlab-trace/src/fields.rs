//! The name of an event in a line, and its fields as text.

/// The names of our events.
const NAMES: [&str; 8] = [
    "alloc_vmap_area",
    "free_vmap_area_noflush",
    "purge_vmap_area_lazy",
    "percpu_create_chunk",
    "percpu_destroy_chunk",
    "percpu_alloc_percpu",
    "percpu_free_percpu",
    "percpu_alloc_percpu_fail",
];

/// Returns the name of one of our events, and the text after its colon. The name follows a blank, or `vmalloc:` or
/// `percpu:` in perf's output, or begins the line.
pub(super) fn split(line: &str) -> Option<(&'static str, &str)> {
    let mut from = 0;
    while let Some(colon) = line[from..].find(':').map(|at| from + at) {
        let word_start = line[..colon].rfind([' ', '\t', ':']).map_or(0, |at| at + 1);
        let word = &line[word_start..colon];
        if let Some(name) = NAMES.iter().find(|&&name| name == word) {
            return Some((name, line[colon + 1..].trim_start()));
        }
        from = colon + 1;
    }
    None
}

/// Returns the value of `key=value`.
pub(super) fn field<'a>(fields: &'a str, key: &str) -> Option<&'a str> {
    fields.split([' ', '\t', ',']).find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Decimal, or hexadecimal with `0x`.
pub(super) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Hexadecimal, with or without `0x`.
pub(super) fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}
