//! Text for readers: numbers, and names of unknown origin.

use std::borrow::Cow;

/// Formats bytes for readers: `12.5 PiB`.
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut scaled = count as f64;
    // What rounds to 1024 is one of the next unit.
    while scaled >= 1023.5 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let text = if scaled >= 100.0 { format!("{scaled:.0}") } else { format!("{scaled:.1}") };
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), units[unit])
}

/// Formats a count with its noun: `1 page`, `67,187 pages`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Formats a number with its digits in groups of three: `67,187`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats nanoseconds with three digits: `812 ns`, `1.23 us`, `45.6 ms`, `7,890 s`.
pub fn duration(ns: u64) -> String {
    if ns < 1000 {
        return format!("{ns} ns");
    }
    let mut scaled = ns as f64 / 1000.0;
    let mut units = ["us", "ms", "s"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    // What rounds to 1000 is one of the next unit.
    while scaled >= 999.5 {
        let Some(next) = units.next() else { return format!("{} {unit}", grouped(scaled.round() as u64)) };
        (scaled, unit) = (scaled / 1000.0, next);
    }
    match scaled {
        0.0..9.995 => format!("{scaled:.2} {unit}"),
        9.995..99.95 => format!("{scaled:.1} {unit}"),
        _ => format!("{scaled:.0} {unit}"),
    }
}

/// Returns a text of unknown origin with each control character replaced by its picture, so that a terminal shows it
/// and does not obey it: `ESC` becomes `\u{241b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|one| if one.is_control() { picture(one) } else { one }).collect())
}

/// Returns the picture of a control character, or the one for characters without a picture.
pub(crate) fn picture(one: char) -> char {
    match one {
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(one)).unwrap_or(char::REPLACEMENT_CHARACTER),
        '\x7f' => '\u{2421}',
        _ => char::REPLACEMENT_CHARACTER,
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, counted, duration, grouped, printable};

    #[test]
    fn control_characters_are_shown_and_nothing_else_is_changed() {
        assert_eq!(printable("a\x1b[31mb\r\x7f\u{9b}2J"), "a\u{241b}[31mb\u{240d}\u{2421}\u{fffd}2J");
        assert!(matches!(printable("kernel_clone \u{e9}"), std::borrow::Cow::Borrowed(_)));
    }

    #[test]
    fn bytes_read_well() {
        let given = [0, 4096, 5 << 19, (2 << 20) + 4096, 150 << 20, u64::MAX];
        assert_eq!(given.map(bytes), ["0 B", "4 KiB", "2.5 MiB", "2 MiB", "150 MiB", "16 EiB"]);
        assert_eq!([1023, (1 << 20) - 1, 1023 << 10].map(bytes), ["1023 B", "1 MiB", "1023 KiB"]);
    }

    #[test]
    fn durations_have_three_digits() {
        let given = [0, 999, 1000, 1234, 9_994, 9_995, 45_649, 99_950, 999_499, 999_500, 1_234_000_000];
        let want = [
            "0 ns", "999 ns", "1.00 us", "1.23 us", "9.99 us", "10.0 us", "45.6 us", "100 us", "999 us",
            "1.00 ms", "1.23 s",
        ];
        assert_eq!(given.map(duration), want);
        assert_eq!([7_890_400_000_000, u64::MAX].map(duration), ["7,890 s", "18,446,744,074 s"]);
    }

    #[test]
    fn one_is_singular_and_all_else_plural() {
        let given = [0, 1, 2, 1000].map(|count| counted(count, "answer"));
        assert_eq!(given, ["0 answers", "1 answer", "2 answers", "1,000 answers"]);
    }

    #[test]
    fn digits_come_in_threes() {
        let given = [0, 999, 1000, 67_187, u64::MAX];
        assert_eq!(given.map(grouped), ["0", "999", "1,000", "67,187", "18,446,744,073,709,551,615"]);
    }
}
