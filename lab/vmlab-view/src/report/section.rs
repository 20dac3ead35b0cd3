//! A section of a page while it is written, and its headings, which become its contents.

use std::fmt::Write;
use vmlab_base::chart::escape;

/// A section.
pub(super) struct Section {
    id: String,
    /// The text so far.
    pub(super) html: String,
    headings: Vec<String>,
}

impl Section {
    /// Creates an empty section of an id that the page has once.
    pub(super) fn new(id: &str) -> Self {
        Self { id: id.to_string(), html: String::new(), headings: Vec::new() }
    }

    /// Writes the heading of a subsection.
    pub(super) fn heading(&mut self, title: &str) {
        // Writing to a String cannot fail, here and below.
        let _ = write!(self.html, "<h3 id=\"{}-{}\">{}</h3>", self.id, self.headings.len(), escape(title));
        self.headings.push(title.to_string());
    }

    /// Adds the section to a page under a name, with a link to each of its subsections: these stay in view.
    pub(super) fn write_to(self, page: &mut String, name: &str) {
        let Self { id, html, headings } = self;
        let _ = write!(page, "<section id=\"{id}\"><h2>{}</h2>", escape(name));
        if !headings.is_empty() {
            page.push_str("<nav class=\"toc\" aria-label=\"Contents\">");
            for (number, title) in headings.iter().enumerate() {
                let _ = write!(page, "<a href=\"#{id}-{number}\">{}</a>", escape(title));
            }
            page.push_str("</nav>");
        }
        let _ = write!(page, "{html}</section>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_heading_has_a_link_and_what_is_text_is_no_heading() {
        let mut section = Section::new("t1");
        section.html.push_str("<p>&lt;h3&gt;</p>");
        section.heading("a & b");
        section.html.push_str("<p><b><h3>no heading</h3></b></p>");
        section.heading("c");
        let mut page = String::new();
        section.write_to(&mut page, "n<");
        assert!(page.starts_with("<section id=\"t1\"><h2>n&lt;</h2><nav"), "{page}");
        assert!(page.contains("<a href=\"#t1-0\">a &amp; b</a><a href=\"#t1-1\">c</a></nav>"), "{page}");
        assert!(page.contains("<h3 id=\"t1-1\">c</h3></section>"), "{page}");
        let mut page = String::new();
        Section::new("t2").write_to(&mut page, "n");
        assert_eq!(page, "<section id=\"t2\"><h2>n</h2></section>");
    }
}
