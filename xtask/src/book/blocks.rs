//! Fenced blocks of a page, the commands in them, and the comparison of a command's output with the page.

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// A fenced block.
#[derive(Debug)]
pub(super) struct Block {
    /// The line it begins in.
    pub(super) line: usize,
    pub(super) language: String,
    /// The name in `file=NAME`.
    pub(super) file: Option<String>,
    pub(super) text: String,
}

impl Block {
    /// Returns each command, and the output that the page shows for it. A line that ends in a backslash continues in
    /// the next.
    pub(super) fn commands(&self) -> Vec<(String, String)> {
        let mut commands: Vec<(String, String)> = Vec::new();
        let mut goes_on = false;
        for line in self.text.lines() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (_, Some((command, _))) if goes_on => {
                    command.push('\n');
                    command.push_str(line);
                }
                (Some(command), _) => commands.push((command.to_string(), String::new())),
                (None, Some((_, shown))) => {
                    shown.push_str(line.trim_end());
                    shown.push('\n');
                    continue;
                }
                (None, None) => continue,
            }
            goes_on = line.ends_with('\\');
        }
        commands
    }
}

/// Returns the fenced blocks of a page, in order.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut inside = false;
    for (event, range) in Parser::new(page).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                let mut words = info.split(',').map(str::trim);
                let language = words.next().unwrap_or_default().to_string();
                let file = words.find_map(|word| word.strip_prefix("file=")).map(str::to_string);
                let line = 1 + page[..range.start].matches('\n').count();
                found.push(Block { line, language, file, text: String::new() });
                inside = true;
            }
            Event::End(TagEnd::CodeBlock) => inside = false,
            Event::Text(text) if inside => {
                if let Some(block) = found.last_mut() {
                    block.text.push_str(&text);
                }
            }
            _ => {}
        }
    }
    found
}

/// Returns true if `printed` is the shown output, where `...` stands for any text, lines included.
pub(super) fn matches(shown: &str, printed: &str) -> bool {
    let (shown, mut printed) = (shown.trim_end(), printed.trim_end());
    let mut parts = shown.split("...");
    let Some(rest) = parts.next().and_then(|first| printed.strip_prefix(first)) else { return false };
    printed = rest;
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return printed.is_empty() };
    for part in middle {
        match printed.find(part) {
            Some(at) => printed = &printed[at + part.len()..],
            None => return false,
        }
    }
    printed.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_commands_are_found_with_what_is_shown() {
        let page =
            "# A\n\n```console\n$ one \\\n  more\nout\n\nput\n$ two\n```\n\n```c,file=a.c\nint x;\n```\n";
        let found = blocks(page);
        assert_eq!((found[0].line, &*found[0].language, found[0].file.as_deref()), (3, "console", None));
        let shown = |command: &str, shown: &str| (command.to_string(), shown.to_string());
        assert_eq!(found[0].commands(), [shown("one \\\n  more", "out\n\nput\n"), shown("two", "")]);
        assert_eq!((found[1].file.as_deref(), &*found[1].text), (Some("a.c"), "int x;\n"));
    }

    #[test]
    fn dots_stand_for_anything_and_all_else_for_itself() {
        for (shown, printed) in [
            ("a\nb", "a\nb\n"),
            ("a...c", "a b c"),
            ("...", ""),
            ("...\nb", "x\ny\nb"),
            ("a...b...", "axbyb"),
        ] {
            assert!(matches(shown, printed), "{shown:?} {printed:?}");
        }
        for (shown, printed) in
            [("a", "a\nb"), ("a...c", "a b"), ("b...", "ab"), ("a...b...c", "acb"), ("a", "")]
        {
            assert!(!matches(shown, printed), "{shown:?} {printed:?}");
        }
    }
}
