//! The committed outcomes: a row for each fault that was tried, and a page with counts and survivors.

use super::trial::Outcome;
use super::{SEED, SUBJECTS};
use crate::machine::machine;
use crate::sh::{Cmd, on_path};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const ROWS: &str = "results/mutants.tsv";
const PAGE: &str = "results/mutation.md";
const REASONS: &str = "xtask/survivors.toml";

/// A fault that was tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) mutant: String,
    pub(super) outcome: Outcome,
    pub(super) commit: String,
    /// The machine, if it is not that of the page.
    pub(super) machine: Option<String>,
}

/// The reasons for survivors.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Reasons {
    #[serde(default)]
    survivor: Vec<Reason>,
}

impl Reasons {
    /// Returns true if a fault has a reason.
    pub(super) fn has(&self, mutant: &str) -> bool {
        self.survivor.iter().any(|reason| reason.mutants.iter().any(|of| of == mutant))
    }
}

/// The reason for some survivors: no caller can see them.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Reason {
    mutants: Vec<String>,
    why: String,
}

/// The rows of all subjects: of each, its number of faults, and those that were tried.
type Rows = BTreeMap<String, (usize, Vec<Record>)>;

/// Returns what was tried of a subject.
pub(super) fn read(root: &Path, subject: &str) -> Result<Vec<Record>> {
    Ok(rows(root)?.remove(subject).map(|(_, records)| records).unwrap_or_default())
}

/// Returns the reasons for survivors.
pub(super) fn reasons(root: &Path) -> Result<Reasons> {
    toml::from_str(&fs::read_to_string(root.join(REASONS)).context(REASONS)?).context(REASONS)
}

/// Replaces the rows of a subject.
pub(super) fn store(root: &Path, subject: &str, faults: usize, records: &[Record]) -> Result<()> {
    let mut rows = rows(root)?;
    rows.insert(subject.to_string(), (faults, records.to_vec()));
    fs::write(root.join(ROWS), text(&rows)).context(ROWS)
}

fn rows(root: &Path) -> Result<Rows> {
    let path = root.join(ROWS);
    if !path.exists() {
        return Ok(Rows::new());
    }
    parsed(&fs::read_to_string(path)?)
}

fn parsed(text: &str) -> Result<Rows> {
    let mut rows = Rows::new();
    for line in text.lines() {
        let fields: Vec<_> = line.split('\t').collect();
        match fields[..] {
            [subject, "faults", count] => {
                rows.entry(subject.to_string()).or_default().0 = count.parse().context(ROWS)?;
            }
            [subject, outcome, mutant, commit, ref machine @ ..] if machine.len() < 2 => {
                let known = Outcome::ALL.into_iter().find(|known| known.name() == outcome);
                let outcome = known.with_context(|| format!("{ROWS}: {outcome:?} is no outcome"))?;
                let (mutant, commit) = (mutant.to_string(), commit.to_string());
                let machine = machine.first().map(|machine| (*machine).to_string());
                let record = Record { mutant, outcome, commit, machine };
                rows.entry(subject.to_string()).or_default().1.push(record);
            }
            _ => bail!("{ROWS}: {line}"),
        }
    }
    Ok(rows)
}

fn text(rows: &Rows) -> String {
    let mut text = String::new();
    for (subject, (faults, records)) in rows {
        let _ = writeln!(text, "{subject}\tfaults\t{faults}");
        for Record { mutant, outcome, commit, machine } in records {
            let machine = machine.iter().fold(String::new(), |_, machine| format!("\t{machine}"));
            let _ = writeln!(text, "{subject}\t{}\t{mutant}\t{commit}{machine}", outcome.name());
        }
    }
    text
}

/// Writes the page, and fails if a survivor has no reason, or a reason no survivor.
pub(super) fn write(root: &Path) -> Result<()> {
    let (rows, reasons) = (rows(root)?, reasons(root)?);
    let version = if on_path("cargo-mutants") {
        Cmd::cargo(root).args(["mutants", "--version"]).read()?.trim().to_string()
    } else {
        "cargo-mutants (version not known)".to_string()
    };
    let (page, wrong) = page(&rows, &reasons, &format!("{version}, seed {SEED}"), &machine(root));
    fs::write(root.join(PAGE), page)?;
    println!("written to {PAGE}");
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// Returns the page, and what is wrong with the reasons.
fn page(rows: &Rows, reasons: &Reasons, tool: &str, machine: &str) -> (String, Vec<String>) {
    let mut elsewhere = BTreeMap::<_, usize>::new();
    for machine in
        subjects(rows).flat_map(|(_, _, records)| records).filter_map(|record| record.machine.as_ref())
    {
        *elsewhere.entry(machine).or_default() += 1;
    }
    let others: String =
        elsewhere.iter().map(|(machine, count)| format!("\n- {count} of the faults: {machine}")).collect();
    let mut page = format!(
        "# Faults that are tried\n\nEach fault is a change that cargo-mutants makes: another operator, or a function that \
         returns at once. `{ROWS}`\nhas each that was tried, and the commit at which it was. A sample is the beginning \
         of one order of all (`cargo xtask\nmutants`, decision 0097).\n\n- command: `cargo xtask mutants`\n- tool: {tool}\n\
         - machine: {machine}{others}\n\n| subject | faults | tried | do not compile | caught | never end | survivors | of those \
         that compile, noticed |\n|---|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    let mut wrong = Vec::new();
    let why: BTreeMap<_, _> = reasons
        .survivor
        .iter()
        .flat_map(|reason| reason.mutants.iter().map(|mutant| (mutant.as_str(), reason.why.as_str())))
        .collect();
    let survivors: Vec<_> = subjects(rows)
        .flat_map(|(_, _, records)| records)
        .filter(|record| record.outcome == Outcome::Survivor)
        .collect();
    for (subject, faults, records) in subjects(rows) {
        let count = |outcome| records.iter().filter(|record| record.outcome == outcome).count();
        let [caught, never, survivors, failed] = Outcome::ALL.map(count);
        let (noticed, real) = (caught + never, caught + never + survivors);
        // Rounded down: 95 is a goal, and 94.98 is less.
        let share = 1000 * noticed / real.max(1);
        let _ = writeln!(
            page,
            "| `{subject}` | {faults} | {} | {failed} | {caught} | {never} | {survivors} | {}.{} % |",
            records.len(),
            share / 10,
            share % 10
        );
    }
    page += "\n## Survivors\n\n| fault | why no caller can see it |\n|---|---|\n";
    for record in &survivors {
        let reason = why.get(record.mutant.as_str());
        if reason.is_none() {
            wrong.push(format!("{REASONS} has no reason for {}", record.mutant));
        }
        let reason = reason.copied().unwrap_or("**no reason yet**");
        let _ =
            writeln!(page, "| `{}` | {} |", record.mutant.replace('|', "\\|"), reason.replace('|', "\\|"));
    }
    for mutant in why.keys() {
        if survivors.iter().all(|record| record.mutant != *mutant) {
            wrong.push(format!("{REASONS} names what is no survivor: {mutant}"));
        }
    }
    (page, wrong)
}

/// Returns the rows in the order of [`SUBJECTS`].
fn subjects(rows: &Rows) -> impl Iterator<Item = (&'static str, usize, &[Record])> {
    SUBJECTS.iter().filter_map(|subject| {
        let (faults, records) = rows.get(subject.name)?;
        Some((subject.name, *faults, records.as_slice()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "heap\tfaults\t3\nheap\tcaught\ta.rs: + with -\tc0\tanother\nheap\tsurvivor\ta.rs: | with ^\tc1\n";

    #[test]
    fn rows_are_read_as_they_are_written() {
        assert_eq!(text(&parsed(TEXT).unwrap()), TEXT);
        assert!(parsed("heap\tlost\ta\tb\n").unwrap_err().to_string().contains("lost"));
        assert!(parsed("heap\n").is_err() && parsed("heap\tcaught\ta\tb\tc\td\n").is_err());
    }

    #[test]
    fn each_survivor_has_a_reason_and_each_reason_a_survivor() {
        let rows = parsed(TEXT).unwrap();
        let reasons = |text| toml::from_str(text).unwrap();
        let reason = "[[survivor]]\nmutants = ['a.rs: | with ^']\nwhy = 'the parts have no common bit'\n";
        let (good, wrong) = page(&rows, &reasons(reason), "tool", "machine");
        assert!(wrong.is_empty(), "{wrong:?}");
        assert!(good.contains("\n- machine: machine\n- 1 of the faults: another\n\n"), "{good}");
        assert!(good.contains("| `heap` | 3 | 2 | 0 | 1 | 0 | 1 | 50.0 % |\n"), "{good}");
        assert!(good.contains("| `a.rs: \\| with ^` | the parts have no common bit |\n"), "{good}");
        let (_, wrong) = page(&rows, &reasons(""), "tool", "machine");
        assert_eq!(wrong, ["xtask/survivors.toml has no reason for a.rs: | with ^"]);
        let other = "[[survivor]]\nmutants = ['a.rs: | with ^', 'a.rs: + with -']\nwhy = 'x'\n";
        let (_, wrong) = page(&rows, &reasons(other), "tool", "machine");
        assert_eq!(wrong, ["xtask/survivors.toml names what is no survivor: a.rs: + with -"]);
    }
}
