//! The results of a run as text, page, CSV and charts.

use super::header::build;
use super::table::Table;
use anyhow::{Context, Result};
use std::path::Path;
use vmlab_base::chart::{Chart, Scale};
use vmlab_base::file::OutputFile;
use vmlab_base::output::Output;

/// The results of a run.
pub struct Report {
    /// The name of the files, without the extension.
    pub(crate) stem: String,
    pub(crate) title: &'static str,
    pub(crate) header: String,
    pub(crate) tables: Vec<Table>,
    /// Lines of CSV, the first of which names the columns; no file if there are none.
    pub(crate) csv: Vec<String>,
    pub(crate) charts: Vec<Drawn>,
    /// Texts in the form of another program, after the tables. The first is an explanation.
    pub(crate) texts: Vec<String>,
    /// Paragraphs at the end of the page alone.
    pub(crate) notes: Vec<String>,
}

impl Report {
    /// Creates a report of tables alone.
    pub fn new(stem: impl Into<String>, title: &'static str, header: String, tables: Vec<Table>) -> Self {
        let (csv, charts, texts, notes) = Default::default();
        Self { stem: stem.into(), title, header, tables, csv, charts, texts, notes }
    }

    /// Writes it as a terminal shows it.
    ///
    /// # Errors
    /// If a line cannot be written.
    pub fn show(&self, out: &mut dyn Output) -> Result<()> {
        self.tables.iter().try_for_each(|table| table.show(out))?;
        self.texts.iter().skip(1).try_for_each(|text| out.line(text))
    }

    /// Writes its files into a folder: CSV, page and charts.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, dir: &Path, out: &mut dyn Output) -> Result<()> {
        let mut write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            out.line(&format!("wrote {}", path.display()))
        };
        if !self.csv.is_empty() {
            let comments = self.header.lines().map(|line| format!("# {line}\n"));
            let lines = self.csv.iter().map(|line| format!("{line}\n"));
            write(&format!("{}.csv", self.stem), &comments.chain(lines).collect::<String>())?;
        }
        write(&format!("{}.md", self.stem), &self.page())?;
        self.charts.iter().try_for_each(|chart| write(&chart.file, &format!("{}\n", chart.svg)))
    }

    fn page(&self) -> String {
        let mut page = format!("# {}, {} build\n\n```text\n{}```\n", self.title, build(), self.header);
        page.extend(self.tables.iter().map(Table::markdown));
        page.extend(self.notes.iter().map(|note| format!("\n{note}\n")));
        if let [about, texts @ ..] = &self.texts[..] {
            page += &format!("\n{about}\n");
            page.extend(texts.iter().map(|text| format!("\n```text\n{}\n```\n", text.trim_end())));
        }
        page
    }
}

/// Creates the folder, and checks that files can be written there, before any measurement.
///
/// # Errors
/// If they cannot.
pub fn prepare(dir: &Path, name: &str) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    OutputFile::open(&dir.join(name)).map(drop)
}

/// A chart, and the name of its file.
pub struct Drawn {
    /// Name of the file.
    pub file: String,
    /// The chart.
    pub svg: String,
}

/// Draws lines over logarithmic axes, whose names are those of `x` and `y`. Returns `None` if there are no lines.
pub fn log_chart(
    file: String,
    title: &str,
    [x, y]: [&str; 2],
    lines: Vec<(String, Vec<(f64, f64)>)>,
    about: &[&str],
) -> Option<Drawn> {
    if lines.is_empty() {
        return None;
    }
    let (scale, size) = (Scale::Log, (820.0, 470.0));
    let chart = Chart { title, x, y, x_scale: scale, y_scale: scale, lines, about, size };
    Some(Drawn { file, svg: chart.svg(true) })
}
