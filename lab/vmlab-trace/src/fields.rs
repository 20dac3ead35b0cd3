//! The name of an event in a line, and its fields as text.

use super::call::Call;
use std::borrow::Cow;

/// The names of our events, besides those of [`Call`].
const NAMES: [&str; 10] = [
    "alloc_vmap_area",
    "free_vmap_area_noflush",
    "purge_vmap_area_lazy",
    "percpu_create_chunk",
    "percpu_destroy_chunk",
    "percpu_alloc_percpu",
    "percpu_free_percpu",
    "percpu_alloc_percpu_fail",
    LOCK_BEGIN,
    LOCK_END,
];

/// The kernel's names of the events of a lock for which a thread waits.
pub(crate) const LOCK_BEGIN: &str = "contention_begin";
pub(crate) const LOCK_END: &str = "contention_end";

/// Returns the name of one of our events, and the text after its colon. The name follows a blank, or `vmalloc:` or
/// `percpu:` in perf's output, or begins the line.
pub(super) fn split(line: &str) -> Option<(&'static str, &str)> {
    let mut from = 0;
    while let Some(colon) = line[from..].find(':').map(|at| from + at) {
        let word_start = line[..colon].rfind([' ', '\t', ':']).map_or(0, |at| at + 1);
        let word = &line[word_start..colon];
        let of_call = || Call::of_event(word).map(|(call, edge)| call.event(edge));
        if let Some(name) = NAMES.into_iter().find(|&name| name == word).or_else(of_call) {
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

/// Returns the text between the first parenthesis and its end.
pub(super) fn in_parentheses(fields: &str) -> Option<&str> {
    Some(fields.strip_prefix('(')?.split_once(')')?.0)
}

/// Returns a function without offset, size and address, and its module if it has one. Characters that no name has are
/// replaced.
pub(super) fn function(text: &str) -> Cow<'_, str> {
    let mut words = text.split_whitespace();
    let first = words.next().unwrap_or("?");
    let name = first.split_once("+0x").map_or(first, |(name, _)| name);
    let module = words.next().filter(|word| word.starts_with('[') && word.ends_with(']'));
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_.$[] -<>:".contains(c);
    let good = |text: &str| text.len() <= FUNCTION_BYTES && text.chars().all(is_of_name);
    if module.is_none() && good(name) {
        return Cow::Borrowed(name);
    }
    let text = module.map_or_else(|| name.to_string(), |module| format!("{name} {module}"));
    Cow::Owned(text.chars().take(FUNCTION_BYTES).map(|c| if is_of_name(c) { c } else { '?' }).collect())
}

/// The most bytes of a function's name; the kernel's have at most 512, and few have 100.
const FUNCTION_BYTES: usize = 200;
