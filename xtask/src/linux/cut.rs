//! Takes definitions out of a C file by name.
//!
//! # Theory
//! With comments, strings and directives blanked, a C file is a sequence of **items** at depth 0: declarations that end
//! with `;`, and functions that end with `}`. An item has the names that it declares or defines. These are the one in
//! front of a function's parameters, that of a variable or a type, and the arguments of a macro that defines something.
//! The text of an item is removed whole, and nothing else is: conditionals around it stay, as do comments.

use anyhow::{Result, bail};
use std::ops::Range;

/// Macros whose arguments are used, not defined, at depth 0.
const USES: [&str; 2] = ["EXPORT_SYMBOL", "EXPORT_SYMBOL_GPL"];

/// An item at depth 0, and the names that it declares or defines.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) range: Range<usize>,
    names: Vec<String>,
}

/// A C file, and its items.
pub(super) struct Source {
    text: String,
    items: Vec<Item>,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// If braces or parentheses do not match.
    pub(super) fn read(text: &str) -> Result<Self> {
        let bare = blanked(text);
        Ok(Self { text: text.to_string(), items: items(&bare)? })
    }

    /// Returns the items with a name, in order.
    fn of(&self, name: &str) -> Vec<&Item> {
        self.items.iter().filter(|item| item.names.iter().any(|it| it == name)).collect()
    }

    /// Returns the text without every item that has one of `names`, and the number of lines that went. `after` are
    /// names of items, and a text to add after the last of each. `edits` are names of items, a text that is in them,
    /// and its replacement.
    ///
    /// # Errors
    /// If a name has no item, or an item lacks the text to replace: the kernel's text is not the expected one.
    pub(super) fn without(
        &self,
        names: &[&str],
        after: &[(&str, &str)],
        edits: &[(&str, &str, &str)],
    ) -> Result<(String, usize)> {
        let mut changes: Vec<(Range<usize>, String)> = Vec::new();
        let mut lines = 0;
        for name in names {
            let found = self.of(name);
            if found.is_empty() {
                bail!("the kernel's text moved: nothing defines {name}");
            }
            for item in found {
                if !changes.iter().any(|(range, _)| *range == item.range) {
                    lines += self.text[item.range.clone()].lines().count();
                    changes.push((item.range.clone(), String::new()));
                }
            }
        }
        for (name, text) in after {
            let Some(item) = self.of(name).pop() else {
                bail!("the kernel's text moved: nothing defines {name}")
            };
            changes.push((item.range.end..item.range.end, format!("\n{text}\n")));
        }
        for (name, from, to) in edits {
            let hits: Vec<_> = self
                .of(name)
                .into_iter()
                .flat_map(|item| {
                    let body = &self.text[item.range.clone()];
                    body.match_indices(from).map(|(at, _)| item.range.start + at)
                })
                .collect();
            if hits.is_empty() {
                bail!("the kernel's text moved: {name} has no `{from}`");
            }
            changes.extend(hits.into_iter().map(|at| (at..at + from.len(), (*to).to_string())));
        }
        changes.sort_by_key(|(range, _)| (range.start, range.end));
        let (mut out, mut at) = (String::with_capacity(self.text.len()), 0);
        for (range, text) in changes {
            if range.start < at {
                bail!("two changes of the kernel's text overlap");
            }
            out.push_str(&self.text[at..range.start]);
            out.push_str(&text);
            at = range.end;
        }
        out.push_str(&self.text[at..]);
        Ok((out, lines))
    }
}

/// Returns the text with comments, strings, characters and directives as spaces, byte by byte.
fn blanked(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut bare = bytes.to_vec();
    let mut at = 0;
    let mut line_begins = true;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = match rest {
            [b'/', b'*', ..] => find(rest, b"*/").map_or(rest.len(), |end| end + 2),
            [b'/', b'/', ..] => find(rest, b"\n").unwrap_or(rest.len()),
            [b'#', ..] if line_begins => directive(rest),
            [quote @ (b'"' | b'\''), ..] => string(rest, *quote),
            [byte, ..] => {
                line_begins = *byte == b'\n' || (line_begins && byte.is_ascii_whitespace());
                at += 1;
                continue;
            }
            [] => break,
        };
        bare[at..at + end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at += end;
    }
    bare
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Returns the length of a directive, with the lines that continue it.
fn directive(rest: &[u8]) -> usize {
    let mut at = 0;
    while let Some(end) = find(&rest[at..], b"\n") {
        at += end;
        if at == 0 || rest[at - 1] != b'\\' {
            return at;
        }
        at += 1;
    }
    rest.len()
}

/// Returns the length of a string or a character, quotes included.
fn string(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote && rest[at] != b'\n' {
        at += 1 + usize::from(rest[at] == b'\\');
    }
    (at + 1).min(rest.len())
}

fn items(bare: &[u8]) -> Result<Vec<Item>> {
    let (mut items, mut depth, mut start, mut is_function) = (Vec::new(), 0_usize, None, false);
    for (at, &byte) in bare.iter().enumerate() {
        if start.is_none() {
            if byte.is_ascii_whitespace() || byte == b';' {
                continue;
            }
            (start, is_function) = (Some(at), false);
        }
        let mut ends = false;
        match byte {
            b'{' | b'(' | b'[' => {
                is_function |= depth == 0 && byte == b'(';
                depth += 1;
            }
            b'}' | b')' | b']' => {
                let Some(outer) = depth.checked_sub(1) else { bail!("the C text has a bracket too many") };
                depth = outer;
                ends = depth == 0
                    && match byte {
                        b'}' => is_function,
                        // A macro that is used without a semicolon.
                        _ => {
                            start.is_some_and(|start| is_macro(&bare[start..=at]))
                                && !continues(&bare[at + 1..])
                        }
                    };
            }
            // An initial value may have parentheses, and is no function.
            b'=' if depth == 0 => is_function = false,
            b';' => ends = depth == 0,
            _ => {}
        }
        if let (true, Some(from)) = (ends, start) {
            items.push(Item { range: from..at + 1, names: names(&bare[from..=at]) });
            start = None;
        }
    }
    if depth != 0 || start.is_some() {
        bail!("the C text ends inside a definition");
    }
    Ok(items)
}

/// Returns true for one word in capitals and its arguments.
fn is_macro(item: &[u8]) -> bool {
    let head = item.split(|&byte| byte == b'(').next().unwrap_or(item);
    head.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_')
}

/// Returns true if a semicolon or a body follows.
fn continues(rest: &[u8]) -> bool {
    matches!(rest.iter().find(|byte| !byte.is_ascii_whitespace()), Some(b';' | b'{' | b'='))
}

/// Returns the names that an item declares or defines.
fn names(item: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(item);
    let head_end = text.find(['(', '{', '=', ';']).unwrap_or(text.len());
    let head = &text[..head_end];
    let mut names: Vec<&str> = Vec::new();
    match text.as_bytes().get(head_end) {
        Some(b'(') => {
            let words_before = words(head);
            let Some(&name) = words_before.last() else { return Vec::new() };
            if USES.contains(&name) {
                return Vec::new();
            }
            names.push(name);
            // `DEFINE_SPINLOCK(x)`, `module_init(f)`: a call with nothing but its macro in front, or `static`.
            if words_before.iter().all(|word| *word == "static" || *word == name) {
                names.extend(words(text[head_end + 1..].split(')').next().unwrap_or("")));
            }
        }
        Some(b'{') => {
            // A type, and the variable behind it, if there is one.
            names.extend(words(head).pop());
            names.extend(variable(&text[closing(&text, head_end)..]));
        }
        _ => names.extend(variable(head)),
    }
    names.into_iter().map(str::to_string).collect()
}

/// Returns the name of a variable: the last word in front of its bounds and its value.
fn variable(text: &str) -> Option<&str> {
    words(text.split(['=', ';', '[']).next().unwrap_or("")).pop()
}

/// Returns the place behind the brace that closes the one at `open`.
fn closing(text: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return at + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r##"
#include <a.h>
/* int gone(void) { } */
#define LONG(x) { \
	x }
static DEFINE_LOCK(first_lock);
static struct pond {
	int fish[4];
	struct { int x; } inner;
} single = { .fish = { f('}') } };
static struct pond *ponds = &single;
static const char *names[2] = { "}", "b" };
static void early(void);
RB_CALLBACKS(static, callbacks,
	struct pond, key)
static void early(void);

int late(int a, char *b)
{
	if (a) { b = "{"; }
	return first(b);
}
EXPORT_SYMBOL(late);

#ifdef X
struct pond *of(void)
{
	return ponds;
}
#endif
module_init(late);
"##;

    fn without(names: &[&str]) -> (String, usize) {
        Source::read(TEXT).unwrap().without(names, &[], &[]).unwrap()
    }

    #[test]
    fn items_go_by_name_with_their_declarations_and_nothing_else_does() {
        let (text, lines) = without(&["early", "first_lock"]);
        assert!(!text.contains("early") && !text.contains("first_lock"), "{text}");
        assert!(text.contains("EXPORT_SYMBOL(late)") && text.contains("/* int gone"));
        assert_eq!(lines, 3);
        let (text, _) = without(&["pond"]);
        assert!(
            !text.contains("fish") && text.contains("*ponds") && text.contains("struct pond *of"),
            "{text}"
        );
        let (text, _) = without(&["ponds", "names", "of"]);
        assert!(!text.contains("*ponds") && !text.contains("names") && text.contains("single"), "{text}");
        let (text, _) = without(&["late"]);
        assert!(!text.contains("int late") && !text.contains("module_init"), "{text}");
        assert!(text.contains("EXPORT_SYMBOL(late)") && text.contains("#ifdef X"), "{text}");
    }

    #[test]
    fn a_name_or_a_text_that_is_missing_is_an_error_that_names_it() {
        let source = Source::read(TEXT).unwrap();
        let gone = source.without(&["gone"], &[], &[]).unwrap_err().to_string();
        assert!(gone.contains("nothing defines gone"), "{gone}");
        let text = source.without(&[], &[], &[("late", "second(", "x(")]).unwrap_err().to_string();
        assert!(text.contains("late has no `second(`"), "{text}");
        let (text, _) =
            source.without(&["of"], &[("late", "int new;")], &[("late", "first(", "x(")]).unwrap();
        assert!(text.contains("return x(b)") && text.contains("int new;"), "{text}");
        // Of the items with a name, the last: here `module_init`.
        assert!(text.find("int new;") > text.find("module_init"), "{text}");
        // An item gets another name, and its callers stay.
        let (text, _) = source.without(&[], &[], &[("late", "late(", "old_late(")]).unwrap();
        assert!(text.contains("int old_late(int a") && text.contains("EXPORT_SYMBOL(late)"), "{text}");
        assert!(Source::read("int f( {").is_err() && Source::read("}").is_err());
    }
}
