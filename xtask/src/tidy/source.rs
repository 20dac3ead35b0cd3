//! The contents of a Rust file: its tokens, each marked as of tests or not; its test functions; its comments.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::iter::Peekable;
use std::str::FromStr;

/// A token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A word.
    Ident(String),
    /// A punctuation character.
    Punct(char),
    /// A string, a number or a character, as written.
    Literal(String),
    /// An opening bracket.
    Open(char),
    /// A closing bracket.
    Close(char),
}

/// A token and its location.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    /// The line, from 1.
    pub(crate) line: usize,
    /// True if it is compiled for tests only.
    pub(crate) test: bool,
}

/// A function with `#[test]`.
#[derive(Clone, Debug)]
pub(crate) struct TestFn {
    pub(crate) name: String,
    /// The first line and the last, from 1.
    pub(crate) lines: (usize, usize),
}

/// A Rust file.
pub(crate) struct Source {
    tokens: Vec<Token>,
    tests: Vec<TestFn>,
    inner_attributes: Vec<String>,
    comments: Vec<(usize, String)>,
    unreadable: Option<String>,
}

impl Source {
    /// Reads a file; `test` if all of it is compiled for tests only.
    pub(crate) fn read(text: &str, test: bool) -> Self {
        let mut source = Self {
            tokens: Vec::new(),
            tests: Vec::new(),
            inner_attributes: Vec::new(),
            comments: comments(text),
            unreadable: None,
        };
        // A first line `#!/...` and a byte order mark are not tokens.
        match TokenStream::from_str(text) {
            Ok(tokens) => source.flatten(tokens, test),
            Err(error) => source.unreadable = Some(error.to_string()),
        }
        source
    }

    /// Returns every token outside doc comments.
    pub(crate) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the functions with `#[test]`.
    pub(crate) fn tests(&self) -> &[TestFn] {
        &self.tests
    }

    /// Returns `forbid(unsafe_code)` for `#![forbid(unsafe_code)]`, and so on.
    pub(crate) fn inner_attributes(&self) -> &[String] {
        &self.inner_attributes
    }

    /// Returns the lines with a comment, and its text; doc comments too.
    pub(crate) fn comments(&self) -> &[(usize, String)] {
        &self.comments
    }

    /// Returns the reason why the file has no tokens.
    pub(crate) fn unreadable(&self) -> Option<&str> {
        self.unreadable.as_deref()
    }

    fn flatten(&mut self, stream: TokenStream, test: bool) {
        let mut trees = stream.into_iter().peekable();
        // Properties from the attributes before an item, until its body or its semicolon.
        let (mut item_is_test, mut has_test_attribute) = (false, false);
        // Name and line of the `#[test] fn` before its body.
        let mut function: Option<(String, usize)> = None;
        while let Some(tree) = trees.next() {
            let line = tree.span().start().line;
            match tree {
                TokenTree::Punct(sign) if sign.as_char() == '#' => {
                    if let Some((inner, group)) = attribute(&mut trees) {
                        let words = words(&group.stream());
                        if words.starts_with("doc=") {
                            continue;
                        }
                        has_test_attribute |= !inner && words == "test";
                        item_is_test |= !inner && (words == "test" || cfg_test(&group.stream()));
                        if inner {
                            self.inner_attributes.push(words);
                        }
                        self.push(Kind::Punct('#'), line, test);
                        self.group(&group, test);
                    } else {
                        self.push(Kind::Punct('#'), line, test);
                    }
                }
                TokenTree::Punct(sign) => {
                    self.push(Kind::Punct(sign.as_char()), line, test || item_is_test);
                    if sign.as_char() == ';' {
                        (item_is_test, has_test_attribute, function) = (false, false, None);
                    }
                }
                TokenTree::Ident(word) => {
                    let word = word.to_string();
                    let next = match trees.peek() {
                        Some(TokenTree::Ident(name)) => Some(name.to_string()),
                        _ => None,
                    };
                    if let (true, "fn", Some(name)) = (has_test_attribute, word.as_str(), next) {
                        function = Some((name, line));
                    }
                    self.push(Kind::Ident(word), line, test || item_is_test);
                }
                TokenTree::Literal(literal) => {
                    self.push(Kind::Literal(literal.to_string()), line, test || item_is_test);
                }
                TokenTree::Group(group) => {
                    let body = group.delimiter() == Delimiter::Brace;
                    self.group(&group, test || item_is_test);
                    if body {
                        if let Some((name, first)) = function.take() {
                            let lines = (first, group.span_close().end().line);
                            self.tests.push(TestFn { name, lines });
                        }
                        (item_is_test, has_test_attribute) = (false, false);
                    }
                }
            }
        }
    }

    fn push(&mut self, kind: Kind, line: usize, test: bool) {
        self.tokens.push(Token { kind, line, test });
    }

    fn group(&mut self, group: &Group, test: bool) {
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ('(', ')'),
            Delimiter::Brace => ('{', '}'),
            Delimiter::Bracket => ('[', ']'),
            Delimiter::None => return self.flatten(group.stream(), test),
        };
        self.push(Kind::Open(open), group.span_open().start().line, test);
        self.flatten(group.stream(), test);
        self.push(Kind::Close(close), group.span_close().start().line, test);
    }
}

/// Reads the rest of `#[...]` or `#![...]` after the `#`. Returns whether it is an inner one, and its contents.
fn attribute(trees: &mut Peekable<impl Iterator<Item = TokenTree>>) -> Option<(bool, Group)> {
    let inner = matches!(trees.peek(), Some(TokenTree::Punct(sign)) if sign.as_char() == '!');
    if inner {
        trees.next();
    }
    match trees.peek() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => {
            let group = group.clone();
            trees.next();
            Some((inner, group))
        }
        _ => None,
    }
}

/// Returns the tokens without spaces.
fn words(stream: &TokenStream) -> String {
    stream.to_string().split_whitespace().collect()
}

/// Returns true if `cfg(...)` holds in tests, or models, only.
fn cfg_test(stream: &TokenStream) -> bool {
    let mut trees = stream.clone().into_iter();
    match (trees.next(), trees.next()) {
        (Some(TokenTree::Ident(word)), Some(TokenTree::Group(group))) if word == "cfg" => {
            implies_test(group.stream())
        }
        _ => false,
    }
}

fn implies_test(stream: TokenStream) -> bool {
    let mut trees = stream.into_iter();
    let Some(TokenTree::Ident(word)) = trees.next() else { return false };
    match (word.to_string().as_str(), trees.next()) {
        // Code under loom is compiled for its models.
        ("test" | "loom", None) => true,
        ("all", Some(TokenTree::Group(group))) => split(group.stream()).into_iter().any(implies_test),
        ("any", Some(TokenTree::Group(group))) => split(group.stream()).into_iter().all(implies_test),
        _ => false,
    }
}

/// Splits at commas.
fn split(stream: TokenStream) -> Vec<TokenStream> {
    let mut parts = vec![Vec::new()];
    for tree in stream {
        match &tree {
            TokenTree::Punct(sign) if sign.as_char() == ',' => parts.push(Vec::new()),
            _ => parts.last_mut().into_iter().for_each(|part| part.push(tree.clone())),
        }
    }
    parts.into_iter().filter(|part| !part.is_empty()).map(TokenStream::from_iter).collect()
}

/// Returns comments at the end of a line or on their own. A `//` in a string counts as one, which no rule minds.
fn comments(text: &str) -> Vec<(usize, String)> {
    let comment = |(at, line): (usize, &str)| line.find("//").map(|from| (at + 1, line[from..].to_string()));
    text.lines().enumerate().filter_map(comment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idents(text: &str, test: bool) -> Vec<String> {
        let source = Source::read(text, false);
        assert_eq!(source.unreadable(), None);
        let of = |token: &Token| match &token.kind {
            Kind::Ident(word) if token.test == test => Some(word.clone()),
            _ => None,
        };
        source.tokens().iter().filter_map(of).collect()
    }

    #[test]
    fn words_in_comments_and_strings_are_no_tokens() {
        let text = "//! hidden\n/// hidden\nfn a() { let b = \"hidden\"; } // hidden\n";
        assert_eq!(idents(text, false), ["fn", "a", "let", "b"]);
        assert_eq!(Source::read(text, false).comments().len(), 3);
    }

    #[test]
    fn what_is_for_tests_only_is_distinguished() {
        let text = "#[cfg(test)] mod t { fn a() {} } fn b() {} #[cfg(all(test, not(loom)))] use c; fn d() {}
            #[cfg(not(test))] fn e() {} #[cfg(any(test, loom))] fn f() {}";
        assert_eq!(idents(text, true), ["mod", "t", "fn", "a", "use", "c", "fn", "f"]);
        let plain = idents(text, false);
        assert!(["b", "d", "e"].iter().all(|name| plain.contains(&name.to_string())));
    }

    #[test]
    fn test_functions_are_found_with_their_lines_even_in_macros() {
        let text = "proptest! {\n  #[test]\n  fn one(x in 0..3) {\n    x;\n  }\n}\nfn two() {}\n#[test] fn three() {}\n";
        let source = Source::read(text, false);
        let found: Vec<_> = source.tests().iter().map(|test| (test.name.as_str(), test.lines)).collect();
        assert_eq!(found, [("one", (3, 5)), ("three", (8, 8))]);
    }

    #[test]
    fn inner_attributes_are_read() {
        let source = Source::read("#![no_std]\n#![forbid(unsafe_code)]\n#[inline] fn a() {}", false);
        assert_eq!(source.inner_attributes(), ["no_std", "forbid(unsafe_code)"]);
    }
}
