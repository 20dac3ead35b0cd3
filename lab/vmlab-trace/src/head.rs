//! The head of an event: the task, the CPU and the time.

use super::fields::split;

/// Nanoseconds of the recorder's clock, from `1.234567:` before the event; 0 where there is none.
///
/// Cost: O(length of the line).
pub fn time_ns(line: &str) -> u64 {
    let Some(head) = head(line) else { return 0 };
    head.split_whitespace().rev().find_map(|word| seconds(word.strip_suffix(':')?)).unwrap_or(0)
}

/// The name of the task that was running: `kworker/0:1` of `kworker/0:1-77`; empty where the line names none.
///
/// Cost: O(length of the line).
pub fn task(line: &str) -> &str {
    let Some(head) = head(line) else { return "" };
    // The CPU follows, in brackets. The name itself may contain blanks and brackets.
    let Some((task_text, _)) = head.rsplit_once('[') else { return "" };
    let task_text = task_text.trim();
    // tracefs also prints the thread group if the option is set: `bash-77 ( 77)`.
    let task_text = task_text
        .strip_suffix(')')
        .and_then(|task_text| task_text.rsplit_once('('))
        .map_or(task_text, |(task_text, _)| task_text.trim_end());
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // perf prints the number after a blank, the others after a dash.
    match task_text.rsplit_once(['-', ' ', '\t']) {
        Some((name, pid)) if number(pid) && !name.trim().is_empty() => name.trim(),
        _ => task_text,
    }
}

/// Returns the text before the name of one of our events.
fn head(line: &str) -> Option<&str> {
    let line = line.trim();
    let (name, _) = split(line)?;
    line.split_once(&format!("{name}:")).map(|(head, _)| head)
}

/// `12.345678` as nanoseconds.
fn seconds(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.')?;
    if part.is_empty() || part.len() > 9 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let ns = part.parse::<u64>().ok()? * 10u64.pow(9 - part.len() as u32);
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = "free_vmap_area_noflush: va_start=0x1000 nr_lazy=2 nr_lazy_max=9";

    #[test]
    fn the_time_and_the_task_stand_before_the_event() {
        for (head, ns, name) in [
            ("          <idle>-0       [000] d..1.     0.219395: ", 219_395_000, "<idle>"),
            (" kworker/u8:3-77    [002]     7.5: ", 7_500_000_000, "kworker/u8:3"),
            ("swapper     0 [000]     0.219395001: vmalloc:", 219_395_001, "swapper"),
            ("a [7] b-12 (     12) [012] .... 3.000000: ", 3_000_000_000, "a [7] b"),
            ("x [001] 1.0: ", 1_000_000_000, "x"),
            ("", 0, ""),
            ("99999999999999999999.0: ", 0, ""),
            ("a-1 [000] 18446744074.0: ", 0, "a"),
            ("a-1 [000] 1.0000000001: ", 0, "a"),
            ("-5 [000] 1.x: ", 0, "-5"),
        ] {
            let line = format!("{head}{EVENT} [5] 9.9:");
            assert_eq!((time_ns(&line), task(&line)), (ns, name), "{head}");
        }
        assert_eq!((time_ns("a-1 [000] 1.0: sched_switch: x"), task("nothing")), (0, ""));
    }
}
