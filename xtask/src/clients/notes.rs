//! The sentences of the page: results of suites, and the suites that were not run, with the reason.
//!
//! A run of a few applications that preserves the others' figures preserves these sentences, too, and so reads them
//! from the page.

use std::fmt::Write;

/// Lines of two tables, each by the application's name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    /// Application, tests, outcome.
    suites: Vec<[String; 3]>,
    /// Application, reason.
    absent: Vec<[String; 2]>,
}

const SUITES_HEAD: &str = "| upstream suite of | what | outcome |\n|---|---|---|\n";
const ABSENT_HEAD: &str = "| not run | why |\n|---|---|\n";

impl Notes {
    /// Records the outcome of a suite, in place of an older one.
    pub(crate) fn suite(&mut self, client: &str, what: &str, outcome: &str) {
        self.suites.retain(|line| line[0] != client);
        self.suites.push([client, what, outcome].map(cell));
    }

    /// Records the reason why an application was not run.
    pub(crate) fn absent(&mut self, client: &str, why: &str) {
        self.ran(client);
        self.absent.push([client, why].map(cell));
    }

    /// Records that an application was run.
    pub(crate) fn ran(&mut self, client: &str) {
        self.absent.retain(|line| line[0] != client);
    }

    pub(crate) fn no_suites(&self) -> bool {
        self.suites.is_empty()
    }

    /// Reads the text that [`Notes::page`] wrote, anywhere in a page.
    pub(crate) fn read(page: &str) -> Self {
        fn table<const N: usize>(page: &str, head: &str) -> Vec<[String; N]> {
            let rest = page.split_once(head).map_or("", |(_, rest)| rest);
            let lines = rest.lines().map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
            lines
                .filter_map(|line| line.split(" | ").map(str::to_string).collect::<Vec<_>>().try_into().ok())
                .collect()
        }
        Self { suites: table(page, SUITES_HEAD), absent: table(page, ABSENT_HEAD) }
    }

    /// Returns both tables, in Markdown, or an empty text if they have no lines.
    pub(crate) fn page(&self) -> String {
        let mut text = String::new();
        if !self.suites.is_empty() {
            text += "\n## Their upstream suites\n\nEach suite ran without the preload and with it; what fails without it is no failure.\n\n";
            text += SUITES_HEAD;
            for [client, what, outcome] in &self.suites {
                let _to_a_string = writeln!(text, "| {client} | {what} | {outcome} |");
            }
        }
        if !self.absent.is_empty() {
            text += "\n## Not run\n\n";
            text += ABSENT_HEAD;
            for [client, why] in &self.absent {
                let _to_a_string = writeln!(text, "| {client} | {why} |");
            }
        }
        text
    }
}

/// Returns a text that fits into a table cell.
fn cell(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace('|', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_the_page_is_read_from_it_and_replaced_by_name() {
        let mut notes = Notes::default();
        assert_eq!((notes.page().as_str(), notes.no_suites()), ("", true));
        notes.suite("git", "its tests", "3 passed");
        notes.suite("xz", "its tests", "FAILED: a | b\nc");
        notes.absent("nginx", "not installed: nginx");
        let page = format!("# Page\n{}\n| other | table |\n", notes.page());
        assert!(page.contains("| xz | its tests | FAILED: a / b c |\n"), "{page}");
        let mut again = Notes::read(&page);
        assert_eq!(again, notes);
        again.suite("git", "its tests", "4 passed");
        again.ran("nginx");
        let page = again.page();
        assert!(page.contains("| git | its tests | 4 passed |") && !page.contains("3 passed"), "{page}");
        assert!(!page.contains("Not run") && !again.no_suites(), "{page}");
    }
}
