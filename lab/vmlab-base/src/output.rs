//! The destination of a command's text, which the caller of a library chooses.

use anyhow::Result;

/// A destination of results, and of notes about the work.
pub trait Output {
    /// Writes a line of the result.
    ///
    /// # Errors
    /// If it cannot be written.
    fn line(&mut self, line: &str) -> Result<()>;

    /// Writes a line that is no part of the result: progress, or a warning. An error of that write is ignored.
    fn note(&mut self, line: &str);

    /// Returns the command that is run, as pages of results state it. The default is a call of the library.
    fn command(&self) -> String {
        "a call of the library".into()
    }
}

/// Stores the lines of both kinds, in order.
impl Output for Vec<String> {
    fn line(&mut self, line: &str) -> Result<()> {
        self.push(line.to_string());
        Ok(())
    }

    fn note(&mut self, line: &str) {
        self.push(line.to_string());
    }
}
