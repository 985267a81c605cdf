//! HTML frame of every page: head, navigation, main.

use super::{
    markdown::{Entry, entries},
    pages,
};

/// Address and title of a page.
pub(super) struct PageLink<'a> {
    pub address: &'a str,
    pub title: &'a str,
}

/// Escapes text for element content and quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            character => escaped.push(character),
        }
    }
    escaped
}

/// Builds a complete document around `main`, which is HTML.
///
/// The navigation follows the content in the document: on a wide screen it is displayed beside it, on a phone
/// below it, reachable by one link.
pub(super) fn frame(place: &PageLink<'_>, main: &str) -> String {
    let title = escape(place.title);
    let pages = navigation(place.address);
    format!(
        r##"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · Sojourn</title>
<link rel="stylesheet" href="/docs/style.css">
</head>
<body>
<a class="skip" href="#main">Skip to the page</a>
<header>
<a class="mark" href="/docs">Sojourn docs</a>
<a class="to-pages" href="#pages">All pages</a>
<a href="/docs/api">Reference</a>
<a href="/">Dashboard</a>
</header>
<div class="columns">
<main id="main" tabindex="-1">
{main}
</main>
<nav id="pages" aria-label="Pages" tabindex="-1">
{pages}</nav>
</div>
</body>
</html>
"##
    )
}

fn navigation(here: &str) -> String {
    let index = pages::text("docs/README.md").unwrap_or_default();
    let mut html = String::new();
    let mut is_open = false;
    for entry in entries(&index, "docs/README.md") {
        match entry {
            Entry::Group(name) => {
                html.push_str(if is_open { "</ul>\n" } else { "" });
                html.push_str(&format!("<h2>{}</h2>\n<ul>\n", escape(&name)));
                is_open = true;
            }
            Entry::Page { address, name } => {
                let current = if address == here { r#" aria-current="page""# } else { "" };
                let (address, name) = (escape(&address), escape(&name));
                html.push_str(&format!("<li><a href=\"{address}\"{current}>{name}</a></li>\n"));
            }
        }
    }
    html.push_str(if is_open { "</ul>\n" } else { "" });
    html
}
