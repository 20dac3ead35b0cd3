//! Functions with a copy of the body for each fault.
//!
//! ```text
//! fn f(a: u32) -> u32 { a + 1 }   becomes   fn f(a: u32) -> u32 { match ::va_base::mutant() {
//!                                               7 => { a - 1 }
//!                                               _ => { a + 1 }
//!                                           } }
//! ```
//! Only the text is changed: a copy is the body's text with a part replaced, as cargo-mutants replaces it.

use super::list::{Mutant, Place};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// The text of a file with copies, and for each of its lines the number of the fault whose copy it is part of, or 0.
pub(super) struct Woven {
    pub(super) text: String,
    pub(super) lines: Vec<u32>,
}

/// The function that each choice calls: the number of the fault to commit, or 0. In constants there is none. It calls
/// C's `getenv`, since the library's function allocates, and tests forbid that.
pub(super) const SELECTOR: &str = r#"
/// Returns the number of the fault to commit, or 0.
#[must_use]
pub const fn mutant() -> u32 {
    const fn none() -> u32 { 0 }
    core::intrinsics::const_eval_select((), none, selected)
}
#[inline]
fn selected() -> u32 {
    use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static SELECTED: AtomicU32 = AtomicU32::new(u32::MAX);
    let known = SELECTED.load(Relaxed);
    if known != u32::MAX { return known; }
    unsafe extern "C" { fn getenv(name: *const core::ffi::c_char) -> *const core::ffi::c_char; }
    let text = unsafe { getenv(c"MUTANT".as_ptr()) };
    let text = if text.is_null() { c"" } else { unsafe { core::ffi::CStr::from_ptr(text) } };
    let number = text.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    SELECTED.store(number, Relaxed);
    number
}
"#;

/// The features that [`SELECTOR`] needs.
pub(super) const FEATURES: &str =
    "#![feature(core_intrinsics, const_eval_select)]\n#![allow(internal_features)]\n";

/// Returns the text of a file with one fault.
pub(super) fn broken(text: &str, mutant: &Mutant) -> Result<String> {
    let file = File::new(text);
    let (from, to) = (file.at(mutant.span.start)?, file.at(mutant.span.end)?);
    Ok(format!("{}{}{}", &text[..from], mutant.replacement, &text[to..]))
}

/// Returns the text of a file with copies for all `mutants`.
pub(super) fn weave(text: &str, mutants: &[&Mutant]) -> Result<Woven> {
    let file = File::new(text);
    let mut functions = BTreeMap::<_, Vec<&Mutant>>::new();
    for mutant in mutants {
        let function = mutant.function.as_ref().context("a fault outside of functions")?.span;
        // A function before those inside it.
        functions
            .entry((file.at(function.start)?, usize::MAX - file.at(function.end)?))
            .or_default()
            .push(mutant);
    }
    let mut bodies = Vec::new();
    for ((_, end), mutants) in functions {
        let close = usize::MAX - end - 1;
        let open = *file.braces.get(&close).context("a function does not end with a brace")?;
        bodies.push(Body { open, close, mutants });
    }
    let mut woven = Woven { text: String::new(), lines: vec![0] };
    file.emit(&mut woven, 0..text.len(), &bodies)?;
    // Each caller would have the copies of all that it inlines, and its callers those of both.
    woven.text = woven.text.replace("#[inline(always)]", "#[inline]");
    Ok(woven)
}

/// A function's body, from its opening brace to the closing one.
struct Body<'m> {
    open: usize,
    close: usize,
    mutants: Vec<&'m Mutant>,
}

impl Woven {
    fn push(&mut self, text: &str, of: u32) {
        self.text.push_str(text);
        if let Some(last) = self.lines.last_mut() {
            *last = of;
        }
        self.lines.extend(text.matches('\n').map(|_| of));
    }
}

struct File<'t> {
    text: &'t str,
    /// The offset of each line.
    lines: Vec<usize>,
    /// The opening brace of each closing one.
    braces: BTreeMap<usize, usize>,
}

impl<'t> File<'t> {
    fn new(text: &'t str) -> Self {
        let lines = [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, lines, braces: braces(text) }
    }

    fn at(&self, place: Place) -> Result<usize> {
        let start = place.line.checked_sub(1).and_then(|line| self.lines.get(line));
        let start = *start.context("a line that the file does not have")?;
        let column = self.text[start..].char_indices().nth(place.column - 1);
        Ok(column.map_or(self.text.len(), |(at, _)| start + at))
    }

    /// Writes a part of the file. `bodies` are those in it, each before those inside it.
    fn emit(&self, woven: &mut Woven, part: std::ops::Range<usize>, bodies: &[Body<'_>]) -> Result<()> {
        let (mut at, mut rest) = (part.start, bodies);
        while let Some((body, others)) = rest.split_first() {
            woven.push(&self.text[at..=body.open], 0);
            woven.push("\nmatch ::va_base::mutant() {\n", 0);
            for mutant in &body.mutants {
                let (from, to) = (self.at(mutant.span.start)?, self.at(mutant.span.end)?);
                let before = &self.text[body.open + 1..from];
                let copy = format!("{before}{}{}", mutant.replacement, &self.text[to..body.close]);
                woven.push(&format!("{} => {{ {copy}}}", mutant.number), mutant.number);
                woven.push("\n", mutant.number);
            }
            woven.push("_ => {", 0);
            let inside = others.iter().take_while(|other| other.close < body.close).count();
            let (inside, after) = others.split_at(inside);
            self.emit(woven, body.open + 1..body.close, inside)?;
            woven.push("}\n}\n", 0);
            (at, rest) = (body.close, after);
        }
        woven.push(&self.text[at..part.end], 0);
        Ok(())
    }
}

/// Returns the opening brace of each closing one; braces in comments, strings and characters are none.
fn braces(text: &str) -> BTreeMap<usize, usize> {
    let bytes = text.as_bytes();
    let (mut open, mut pairs, mut at) = (Vec::new(), BTreeMap::new(), 0);
    while at < bytes.len() {
        let rest = &text[at..];
        at += match bytes[at] {
            b'/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            b'/' if rest.starts_with("/*") => comment(rest),
            b'"' => string(rest),
            b'r' if raw(rest).is_some()
                && !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') =>
            {
                raw(rest).unwrap_or(1)
            }
            b'\'' => character(rest),
            b'{' => {
                open.push(at);
                1
            }
            b'}' => {
                if let Some(start) = open.pop() {
                    pairs.insert(at, start);
                }
                1
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
    }
    pairs
}

/// Returns the length of a block comment, which may have others inside.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        at += match (rest.starts_with(b"/*"), rest.starts_with(b"*/")) {
            (true, _) => {
                depth += 1;
                2
            }
            (_, true) => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the length of a string.
fn string(text: &str) -> usize {
    let mut escaped = true;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of a raw string.
fn raw(text: &str) -> Option<usize> {
    let hashes = text[1..].bytes().take_while(|&byte| byte == b'#').count();
    let body = text[1 + hashes..].strip_prefix('"')?;
    let end = body.find(&format!("\"{}", "#".repeat(hashes)))?;
    Some(1 + hashes + 1 + end + 1 + hashes)
}

/// Returns the length of a character, or 1 for the quote of a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(1, |end| 3 + end + 1),
        Some(_) => chars.next().map_or(1, |(at, next)| if next == '\'' { at + 1 } else { 1 }),
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::{Span, planted};
    use super::*;

    const TEXT: &str = "/// A {.\nfn f(a: &'static str) -> u32 { '}'; \"}\\\"}\"; r#\"}\"# ; fn g() -> u32 { 2 + 2 } 1 + g() }\n";

    fn span(from: usize, to: usize) -> Span {
        let place = |at: usize| {
            let line = TEXT[..at].matches('\n').count() + 1;
            let start = TEXT[..at].rfind('\n').map_or(0, |end| end + 1);
            Place { line, column: at - start + 1 }
        };
        Span { start: place(from), end: place(to) }
    }

    fn two() -> [Mutant; 2] {
        let find = |what: &str| TEXT.find(what).unwrap();
        let (f, g) = (span(0, TEXT.len() - 1), span(find("fn g"), find("} 1 +") + 1));
        let plus = |text: &str| find(text) + 2;
        [
            planted(7, f, span(plus("1 + g"), plus("1 + g") + 1), "-"),
            planted(9, g, span(plus("2 + 2"), plus("2 + 2") + 1), "*"),
        ]
    }

    #[test]
    fn each_fault_has_a_copy_of_its_functions_body() {
        let [outer, inner] = two();
        let woven = weave(TEXT, &[&inner, &outer]).unwrap();
        let head = "/// A {.\nfn f(a: &'static str) -> u32 {\nmatch ::va_base::mutant() {\n";
        let copy = "7 => {  '}'; \"}\\\"}\"; r#\"}\"# ; fn g() -> u32 { 2 + 2 } 1 - g() }\n";
        let own = "_ => { '}'; \"}\\\"}\"; r#\"}\"# ; fn g() -> u32 {\nmatch ::va_base::mutant() {\n9 => {  2 * 2 }\n";
        let rest = "_ => { 2 + 2 }\n}\n} 1 + g() }\n}\n}\n";
        assert_eq!(woven.text, [head, copy, own, rest].concat());
        let of =
            |what: &str| woven.lines[woven.text.lines().position(|line| line.starts_with(what)).unwrap()];
        assert_eq!((of("7 =>"), of("9 =>"), of("_ =>"), of("/// A")), (7, 9, 0, 0));
        assert_eq!(woven.lines.len(), woven.text.lines().count() + 1);
    }

    #[test]
    fn a_fault_alone_replaces_its_text() {
        let [outer, _] = two();
        assert_eq!(broken(TEXT, &outer).unwrap(), TEXT.replace("1 + g", "1 - g"));
    }
}
