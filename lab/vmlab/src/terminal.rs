//! The output of the commands: lines, notes and tables.

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, TableComponent, presets};
use std::io::Write;
#[cfg(feature = "measure")]
use vmlab_base::output::Output;
use vmlab_base::text::printable;

/// Prints a line on stdout. A closed pipe is not an error, and does not end the work.
pub(crate) fn out(line: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Prints a line on stderr, under the program's name. It may quote a file, so control characters are shown as pictures.
/// An error of that write is ignored.
pub fn print_note(line: &str) {
    let _ = writeln!(std::io::stderr(), "vmlab: {}", printable(line));
}

/// Standard output for results, and stderr for notes.
#[cfg(feature = "measure")]
pub(crate) struct Terminal;

#[cfg(feature = "measure")]
impl Output for Terminal {
    fn line(&mut self, line: &str) -> Result<()> {
        out(line)
    }

    fn note(&mut self, line: &str) {
        print_note(line);
    }

    /// Returns the arguments as they were given, but files without their folders.
    fn command(&self) -> String {
        let args = std::env::args().skip(1);
        args.fold("vmlab".to_string(), |line, arg| line + " " + arg.rsplit('/').next().unwrap_or(""))
    }
}

/// The columns of a terminal that tables fit. Texts wrap.
pub(crate) const COLUMNS: u16 = 80;

/// Returns a table whose only line is under its head.
pub(crate) fn plain() -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_HORIZONTAL_ONLY)
        .remove_style(TableComponent::HorizontalLines)
        .remove_style(TableComponent::MiddleIntersections)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(COLUMNS);
    table
}
