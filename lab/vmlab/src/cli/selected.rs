//! `--from`, `--to`, `--cpu` and `--task`: the part of a trace that is counted and shown.

use anyhow::{Result, bail};
use vmlab_trace::Selection;

/// The events that are counted. Those before, and those of others, are replayed all the same.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct Selected {
    /// Count the events from this time of the trace's clock on, seconds; those before are replayed, so that areas that
    /// live then are there
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub(super) from: Option<u64>,
    /// End at this time, seconds
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub(super) to: Option<u64>,
    /// Count the events of this CPU alone; those of others are replayed, and an area counts if its allocation does
    #[arg(long, value_name = "N")]
    pub(super) cpu: Option<u16>,
    /// Count the events of the tasks of this name alone; as --cpu
    #[arg(long, value_name = "NAME")]
    pub(super) task: Option<String>,
}

impl Selected {
    /// Returns the selection.
    ///
    /// # Errors
    /// If its time ends before it begins.
    pub(super) fn selection(&self) -> Result<Selection> {
        let &Self { from, to, cpu, ref task } = self;
        let selection = Selection { from_ns: from, to_ns: to, cpu, task: task.clone() };
        selection.check()?;
        Ok(selection)
    }

    /// Fails if an option is given where no input is a trace.
    pub(super) fn none_if_no_trace(&self, why: &str) -> Result<()> {
        if !self.selection()?.is_all() {
            bail!("--from, --to, --cpu and --task are of a trace, {why}");
        }
        Ok(())
    }
}

/// Parses seconds into nanoseconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..1e10).contains(seconds));
    seconds
        .map(|seconds| (seconds * 1e9).round() as u64)
        .ok_or_else(|| "not seconds such as 12.5".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_or_reported_in_a_line() {
        assert_eq!(["0", "0.219395", "12.5"].map(seconds), [0, 219_395_000, 12_500_000_000].map(Ok));
        for bad in ["", "-1", "x", "nan", "1e30", "inf"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
