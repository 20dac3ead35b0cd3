//! A terminal for the examples.

use vmlab_base::output::Output;

/// Standard output for results, and stderr for notes.
pub(crate) struct Terminal;

impl Output for Terminal {
    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        println!("{line}");
        Ok(())
    }

    fn note(&mut self, line: &str) {
        eprintln!("{line}");
    }
}
