//! Figures as text.

/// Formats nanoseconds without a unit.
pub fn number(ns: f64) -> String {
    if ns < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// Formats nanoseconds with three digits and a unit.
pub fn duration(ns: f64) -> String {
    let three = |value: f64| match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    match ns {
        ..1e3 => format!("{} ns", three(ns)),
        ..1e6 => format!("{} us", three(ns / 1e3)),
        _ => format!("{} ms", three(ns / 1e6)),
    }
}

/// Formats nanoseconds as microseconds, as `lock_stat` does.
pub fn us(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}

/// Formats the mean of `count` times that are `total` nanoseconds together, in the same form.
pub fn mean_us(total: u64, count: u64) -> String {
    format!("{:.2}", total as f64 / 1e3 / count.max(1) as f64)
}

/// Formats a figure that may be absent.
pub fn dash(figure: Option<impl ToString>) -> String {
    figure.map_or("-".to_string(), |figure| figure.to_string())
}

/// Returns each item once, in order.
pub fn unique<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    all.into_iter().fold(Vec::new(), |mut unique, item| {
        if !unique.contains(&item) {
            unique.push(item);
        }
        unique
    })
}
