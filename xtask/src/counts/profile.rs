//! Reads the part of callgrind's output that is needed: the sums of a section of a run.

use super::code::Code;
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::path::Path;

/// Sums over all calls of a section.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Part {
    pub(super) calls: u64,
    pub(super) instructions: u64,
    pub(super) locked: u64,
    /// Lines of data that were not in the cache.
    pub(super) lines: u64,
}

/// Files of code that were read.
#[derive(Default)]
pub(super) struct Codes(HashMap<String, Code>);

impl Codes {
    fn is_locked(&mut self, object: &str, address: u64) -> Result<bool> {
        if !self.0.contains_key(object) {
            self.0.insert(object.to_string(), Code::open(Path::new(object))?);
        }
        // Code without a file, such as the kernel's page, locks nothing.
        Ok(self.0[object].is_locked(address).unwrap_or(false))
    }
}

/// Reads a section, and the word that the program set for it. Returns `None` if the program did not request it.
///
/// Lines of costs are `address line Ir Dr Dw I1mr D1mr D1mw ...`, without trailing zeros. One after `calls=` has the
/// costs of the called function, which has lines of its own.
pub(super) fn read(text: &str, codes: &mut Codes) -> Result<Option<(String, Part)>> {
    let Some(asked) = text.lines().find_map(|line| line.strip_prefix("desc: Trigger: Client Request: "))
    else {
        return Ok(None);
    };
    let (what, calls) = asked.split_once(' ').context("a part without a number of calls")?;
    let mut part = Part { calls: calls.parse().context("a part's number of calls")?, ..Part::default() };
    let events = text.lines().find_map(|line| line.strip_prefix("events: ")).context("no events")?;
    let events: Vec<_> = events.split(' ').collect();
    let column = |name: &str| events.iter().position(|event| *event == name);
    let (Some(ir), Some(reads), Some(writes)) = (column("Ir"), column("D1mr"), column("D1mw")) else {
        bail!("the events are {events:?}");
    };
    let (mut object, mut of_call) = (String::new(), false);
    for line in text.lines() {
        if let Some(path) = line.strip_prefix("ob=") {
            object = path.to_string();
        }
        of_call |= line.starts_with("calls=");
        let Some(address) = line.strip_prefix("0x") else { continue };
        if std::mem::take(&mut of_call) {
            continue;
        }
        let mut words = address.split_whitespace();
        let address = u64::from_str_radix(words.next().unwrap_or_default(), 16).context("an address")?;
        let costs: Vec<u64> = words.skip(1).map(str::parse).collect::<Result<_, _>>().context("a cost")?;
        let cost = |at: usize| costs.get(at).copied().unwrap_or(0);
        part.instructions += cost(ir);
        part.lines += cost(reads) + cost(writes);
        if object.starts_with('/') && codes.is_locked(&object, address)? {
            part.locked += cost(ir);
        }
    }
    Ok(Some((what.to_string(), part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_added_but_for_those_of_calls() {
        let text = "version: 1\ndesc: Trigger: Client Request: run 10\n\npositions: instr line\n\
                    events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\nsummary: 0\n\nob=???\nfl=a.c\nfn=pair\n\
                    0x114d 5 10 10 10 0 1 2 0 1\n0x1150 6 20\ncob=/lib/libc.so\ncfn=malloc\ncalls=10 0x96120 4417\n\
                    0x115b 5 64000 1 1 8 2 1\n0x1160 7 5\n";
        let (what, part) = read(text, &mut Codes::default()).unwrap().unwrap();
        assert_eq!(what, "run");
        assert_eq!(part, Part { calls: 10, instructions: 35, locked: 0, lines: 3 });
    }

    #[test]
    fn what_the_program_did_not_ask_for_is_no_part() {
        let text = "version: 1\ndesc: Trigger: Program termination\nevents: Ir\n";
        assert!(read(text, &mut Codes::default()).unwrap().is_none());
        let text = "desc: Trigger: Client Request: run 10\nevents: Ir Dr\n";
        assert!(read(text, &mut Codes::default()).is_err());
    }
}
