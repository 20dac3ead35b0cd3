//! `vmlab doctor`: the features of this system, and the code paths of the library and the recorder that use them.
//!
//! A fact is a finding and its consequence. The facts about the library are read from the library itself
//! ([`vmalloc::machine()`]), which tries each path once. No fact is guessed from versions.

mod library;
mod recording;
mod system;

use crate::terminal::{out, plain};
use anyhow::{Result, bail};
use comfy_table::{Cell, Color, ContentArrangement};
use serde::Serialize;
use std::io::IsTerminal;
use system::System;

/// The version of the object that `--json` prints.
const VERSION: u32 = 1;

/// The output format.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The verdict about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// The best case.
    Good,
    /// A fallback is used, which the fact names.
    Less,
    /// Something is not possible here.
    Missing,
}

/// One finding about this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Fact {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    /// The finding.
    pub(crate) found: String,
    /// The consequence.
    pub(crate) means: String,
}

impl Fact {
    fn new(
        group: &'static str,
        name: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        means: impl Into<String>,
    ) -> Self {
        Self { group, name, verdict, found: found.into(), means: means.into() }
    }
}

/// Prints every fact.
///
/// # Errors
/// If the library cannot work here at all.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut facts = system::facts(&System::default());
    let machine = vmalloc::machine();
    facts.extend(library::facts(machine));
    facts.extend(recording::facts(&recording::Probe::new()));
    let works = machine.is_ok_and(|machine| machine.commit.is_ok());
    let records =
        !facts.iter().any(|fact| fact.group == recording::GROUP && fact.verdict == Verdict::Missing);
    if args.json {
        #[derive(Serialize)]
        struct Report<'a> {
            version: u32,
            library_works: bool,
            can_record: bool,
            facts: &'a [Fact],
        }
        out(&serde_json::to_string(&Report {
            version: VERSION,
            library_works: works,
            can_record: records,
            facts: &facts,
        })?)?;
    } else {
        print(&facts)?;
    }
    if works { Ok(()) } else { bail!("the library cannot work here: no address space can be had") }
}

fn print(facts: &[Fact]) -> Result<()> {
    let mut table = plain();
    // For a program that searches the lines, sentences do not wrap in a pipe.
    if !std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    table.set_header(["", "", "found", "what follows"]);
    let mut group = "";
    for fact in facts {
        let shown = if fact.group == group { "" } else { fact.group };
        group = fact.group;
        let (mark, color) = match fact.verdict {
            Verdict::Good => ("", Color::Reset),
            Verdict::Less => ("- ", Color::Yellow),
            Verdict::Missing => ("! ", Color::Red),
        };
        let found = Cell::new(format!("{mark}{}", fact.found));
        let found = if fact.verdict == Verdict::Good { found } else { found.fg(color) };
        table.add_row([Cell::new(shown), Cell::new(fact.name), found, Cell::new(&fact.means)]);
    }
    out(&table.to_string())
}
