//! Markdown to HTML: headings get anchors, links point to pages, raw HTML is escaped.

use std::collections::HashMap;

use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

use super::pages;

/// A rendered page.
pub(super) struct Written {
    /// Text of its first heading.
    pub title: String,
    pub html: String,
}

/// An entry of the index: a group heading, or a page with its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Group(String),
    Page { address: String, name: String },
}

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

/// Renders a page; `file` is its path in the repository.
pub(super) fn page(text: &str, file: &str) -> Written {
    let mut events: Vec<Event<'_>> = safe(text, file).collect();
    let title = anchor(&mut events);
    // A wide table scrolls separately, also by keyboard.
    let events = events.into_iter().flat_map(|event| match event {
        Event::Start(Tag::Table(_)) => {
            vec![
                Event::Html(r#"<div class="wide" tabindex="0" role="group" aria-label="Table">"#.into()),
                event,
            ]
        }
        Event::End(TagEnd::Table) => vec![event, Event::Html("</div>".into())],
        event => vec![event],
    });
    let mut html = String::new();
    html::push_html(&mut html, events);
    // So does a block with long lines.
    let html = html.replace("<pre>", r#"<pre tabindex="0">"#);
    Written { title, html }
}

/// Renders a sentence of a description, without a paragraph around it.
pub(super) fn inline(text: &str) -> String {
    let mut html = String::new();
    let events = safe(text, "docs/README.md");
    let is_paragraph =
        |event: &Event<'_>| matches!(event, Event::Start(Tag::Paragraph) | Event::End(TagEnd::Paragraph));
    html::push_html(&mut html, events.filter(|event| !is_paragraph(event)));
    html.trim_end().to_owned()
}

/// Groups and pages of the index: its second-level headings, and the first link of each table row below them.
pub(super) fn entries(text: &str, file: &str) -> Vec<Entry> {
    let (mut entries, mut words, mut link, mut is_done) = (Vec::new(), String::new(), None, false);
    for event in parser(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => words.clear(),
            Event::Start(Tag::Link { dest_url, .. }) => {
                words.clear();
                link = pages::target(&dest_url, file);
            }
            Event::Text(text) | Event::Code(text) => words.push_str(&text),
            Event::End(TagEnd::Heading(HeadingLevel::H2)) => entries.push(Entry::Group(words.clone())),
            Event::Start(Tag::TableRow) => is_done = false,
            Event::End(TagEnd::Link) if !is_done && !entries.is_empty() => {
                is_done = true;
                if let Some(address) = link.take() {
                    entries.push(Entry::Page { address, name: words.clone() });
                }
            }
            _ => {}
        }
    }
    entries
}

/// Events of a text that are safe to render.
fn safe<'a>(text: &'a str, file: &str) -> impl Iterator<Item = Event<'a>> {
    // A link to a file that is not served becomes plain text. Links do not nest.
    let mut is_dropped = false;
    parser(text).filter_map(move |event| match event {
        // Defense in depth, although the pages are part of the repository: markup is escaped.
        Event::Html(raw) | Event::InlineHtml(raw) => Some(Event::Text(raw)),
        Event::Start(Tag::HtmlBlock) => Some(Event::Start(Tag::Paragraph)),
        Event::End(TagEnd::HtmlBlock) => Some(Event::End(TagEnd::Paragraph)),
        Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
            let target = pages::target(&dest_url, file);
            is_dropped = target.is_none();
            target.map(|target| Event::Start(Tag::Link { link_type, dest_url: target.into(), title, id }))
        }
        Event::End(TagEnd::Link) => (!std::mem::take(&mut is_dropped)).then_some(event),
        // Images are not served; only their alternative text is shown.
        Event::Start(Tag::Image { .. }) => Some(Event::Start(Tag::Emphasis)),
        Event::End(TagEnd::Image) => Some(Event::End(TagEnd::Emphasis)),
        event => Some(event),
    })
}

/// Sets an anchor on each heading; returns the text of the first.
fn anchor(events: &mut [Event<'_>]) -> String {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let (mut first, mut words, mut begun) = (String::new(), String::new(), None);
    for at in 0..events.len() {
        match &events[at] {
            Event::Start(Tag::Heading { .. }) => {
                words.clear();
                begun = Some(at);
            }
            Event::Text(text) | Event::Code(text) if begun.is_some() => words.push_str(text),
            Event::End(TagEnd::Heading(_)) => {
                if first.is_empty() {
                    first.clone_from(&words);
                }
                let slug = slug(&words);
                let count = seen.entry(slug.clone()).or_default();
                let own = if *count == 0 { slug } else { format!("{slug}-{count}") };
                *count += 1;
                if let Some(start) = begun.take()
                    && let Event::Start(Tag::Heading { id, .. }) = &mut events[start]
                {
                    *id = Some(CowStr::from(own));
                }
            }
            _ => {}
        }
    }
    first
}

/// Anchor of a heading, with GitHub's rules.
fn slug(words: &str) -> String {
    let kept = |character: &char| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_');
    words
        .to_lowercase()
        .chars()
        .filter(kept)
        .map(|character| if character == ' ' { '-' } else { character })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_shown_and_never_obeyed() {
        let text =
            "# A <b>b</b>\n\n<script>alert(1)</script>\n\n[x](javascript:alert(1)) <img src=x onerror=y>\n";
        let written = page(text, "docs/x.md");
        assert!(!written.html.contains("<script") && !written.html.contains("<img"), "{}", written.html);
        assert!(!written.html.contains("href=\"javascript:"), "{}", written.html);
        assert!(inline("`a` <i>b</i>").starts_with("<code>a</code> &lt;i&gt;"));
    }

    #[test]
    fn headings_have_the_anchors_that_links_name() {
        let written = page("# `turn.completed`\n\n## What to do\n\n## What to do\n", "docs/x.md");
        assert_eq!(written.title, "turn.completed");
        for id in ["turncompleted", "what-to-do", "what-to-do-1"] {
            assert!(written.html.contains(&format!("id=\"{id}\"")), "{}", written.html);
        }
    }

    #[test]
    fn the_index_is_read_by_its_headings_and_the_first_links_of_its_rows() {
        let text =
            "# D\n\n[no](no.md)\n\n## One\n\n| page | what |\n|---|---|\n| [A](a.md) | with [B](b.md) |\n";
        let group = Entry::Group("One".to_owned());
        let page = Entry::Page { address: "/docs/a".to_owned(), name: "A".to_owned() };
        assert_eq!(entries(text, "docs/README.md"), [group, page]);
    }
}
