//! Tables: their content, for a terminal and for a page.

use super::text::dash;
use anyhow::Result;
use comfy_table::{CellAlignment, ContentArrangement, TableComponent, presets};
use std::fmt::Display;
use vmlab_base::output::Output;

/// A table with its caption.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    caption: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns from this one on are numbers, which are aligned to the right.
    numbers_from: usize,
}

impl Table {
    /// Creates a table without rows.
    pub fn new<H: ToString>(
        caption: impl Into<String>,
        numbers_from: usize,
        head: impl IntoIterator<Item = H>,
    ) -> Self {
        let head = head.into_iter().map(|name| name.to_string()).collect();
        Self { caption: caption.into(), head, rows: Vec::new(), numbers_from }
    }

    /// Creates a table with a row for each key and a column for each contender. A row begins with the labels of its
    /// key; a figure that is absent is a dash.
    pub fn grid<K, C: Display>(
        mut self,
        contenders: &[C],
        keys: impl IntoIterator<Item = K>,
        labels: impl Fn(&K) -> Vec<String>,
        figure: impl Fn(&K, &C) -> Option<String>,
    ) -> Self {
        self.head.extend(contenders.iter().map(ToString::to_string));
        for key in keys {
            let figures = contenders.iter().map(|contender| dash(figure(&key, contender)));
            self.rows.push(labels(&key).into_iter().chain(figures).collect());
        }
        self
    }

    /// Removes the rows that have no figure.
    #[must_use]
    pub fn without_empty_rows(mut self) -> Self {
        self.rows.retain(|row| row.iter().skip(self.numbers_from).any(|figure| figure != "-"));
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: &[&dyn Display]) {
        self.push(cells.iter().map(ToString::to_string));
    }

    /// Adds a row of texts.
    pub fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns the rows.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Returns the lines of the table in a form of `comfy_table`.
    fn drawn(&self, form: &str) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_preset(form).set_header(&self.head).add_rows(&self.rows);
        for column in table.column_iter_mut().skip(self.numbers_from) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// Writes the table as a terminal shows it: one rule, and cells that wrap where the terminal ends. In a pipe they do
    /// not wrap, for a program that searches the lines.
    ///
    /// # Errors
    /// If a line cannot be written.
    pub fn show(&self, out: &mut dyn Output) -> Result<()> {
        let mut table = self.drawn(presets::UTF8_HORIZONTAL_ONLY);
        table.remove_style(TableComponent::HorizontalLines);
        table.remove_style(TableComponent::MiddleIntersections);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        out.line(&self.caption)?;
        out.line(&format!("{table}\n"))
    }

    /// Returns the table as a page has it.
    pub(super) fn markdown(&self) -> String {
        format!("\n{}\n\n{}\n", self.caption, self.drawn(presets::ASCII_MARKDOWN).trim_fmt())
    }
}
