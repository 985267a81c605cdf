//! API reference: every operation and type of the API description, as pages.
//!
//! `/docs/api` lists the operations by tag, `/docs/api/<tag>` describes them, `/docs/api/types` describes the
//! objects in requests and responses. Generated from the description as JSON, so it contains everything that
//! the routes declare.

use std::{collections::BTreeMap, fmt::Write};

use serde_json::Value;

use super::{
    html::{PageLink, escape, frame},
    markdown::inline,
};

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// An operation with its method and path.
struct Operation<'a> {
    method: &'static str,
    path: &'a str,
    said: &'a Value,
}

/// Every page of the reference, by its address below `/docs/`.
pub(super) fn pages(description: &Value) -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    let mut keep = |name: String, title: &str, main: &str| {
        let address = format!("/docs/{name}");
        pages.insert(name, frame(&PageLink { address: &address, title }, main));
    };
    let mut index =
        format!("<h1>Reference</h1>\n<p>{}</p>\n", inline(text(&description["info"]["description"])));
    index.push_str(concat!(
        "<p>Requests carry a key (<a href=\"/docs/authentication\">authentication</a>); failures have the ",
        "form of <a href=\"/docs/errors\">errors</a>. Machine-readable: <a href=\"/docs/openapi.yaml\">",
        "openapi.yaml</a>. <a href=\"/docs/api/types\">All types</a>.</p>\n"
    ));
    for tag in list(&description["tags"]) {
        let (name, about) = (text(&tag["name"]), inline(text(&tag["description"])));
        let operations = operations(description, name);
        let _ = write!(
            index,
            "<h2 id=\"{0}\"><a href=\"/docs/api/{0}\">{0}</a></h2>\n<p>{about}</p>\n",
            escape(name)
        );
        index.push_str("<ul class=\"operations\">\n");
        let mut page = format!("<h1>{}</h1>\n<p>{about}</p>\n", escape(name));
        for operation in &operations {
            let id = escape(text(&operation.said["operationId"]));
            let summary = inline(text(&operation.said["summary"]));
            let _ = writeln!(
                index,
                "<li><a href=\"/docs/api/{}#{id}\">{}</a> <span>{summary}</span></li>",
                escape(name),
                operation.head(),
            );
            page.push_str(&operation.section(description));
        }
        index.push_str("</ul>\n");
        keep(format!("api/{name}"), name, &page);
    }
    keep("api".to_owned(), "Reference", &index);
    keep("api/types".to_owned(), "Types", &types(description));
    pages
}

fn operations<'a>(description: &'a Value, tag: &str) -> Vec<Operation<'a>> {
    let paths = description["paths"].as_object().into_iter().flatten();
    let of_path = |(path, item): (&'a String, &'a Value)| {
        let methods =
            METHODS.iter().filter(|method| list(&item[**method]["tags"]).iter().any(|own| own == tag));
        methods.map(|method| Operation { method, path, said: &item[*method] }).collect::<Vec<_>>()
    };
    paths.flat_map(of_path).collect()
}

impl Operation<'_> {
    /// Method and path as HTML.
    fn head(&self) -> String {
        let method = self.method.to_ascii_uppercase();
        format!("<code><b class=\"{}\">{method}</b> {}</code>", self.method, escape(self.path))
    }

    fn section(&self, description: &Value) -> String {
        let said = self.said;
        let id = escape(text(&said["operationId"]));
        let mut html = format!(
            "<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{}</h2>\n<p class=\"head\">{}</p>\n",
            inline(text(&said["summary"])),
            self.head(),
        );
        for paragraph in text(&said["description"]).split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
            let _ = writeln!(html, "<p>{}</p>", inline(paragraph));
        }
        let scope = &said["security"][0]["bearer"][0];
        if let Some(scope) = scope.as_str() {
            let _ = writeln!(html, "<p>Scope: <code>{}</code></p>", escape(scope));
        }
        html.push_str(&parameters(&said["parameters"]));
        let body = &said["requestBody"];
        for (media, content) in body["content"].as_object().into_iter().flatten() {
            let need = if body["required"] == true { "" } else { ", optional" };
            let (media, shape) = (escape(media), shape(&content["schema"]));
            let _ = writeln!(html, "<h3>Body</h3>\n<p>{shape} <small>{media}{need}</small></p>");
            html.push_str(&example(content_example(description, content)));
        }
        html.push_str("<h3>Responses</h3>\n<dl class=\"answers\">\n");
        for (status, response) in said["responses"].as_object().into_iter().flatten() {
            let response = resolved(description, response);
            let _ = writeln!(
                html,
                "<dt><code>{}</code></dt>\n<dd>{}",
                escape(status),
                inline(text(&response["description"]))
            );
            for (media, content) in response["content"].as_object().into_iter().flatten() {
                let _ = writeln!(html, " {} <small>{}</small>", shape(&content["schema"]), escape(media));
                html.push_str(&example(content_example(description, content)));
            }
            html.push_str("</dd>\n");
        }
        html.push_str("</dl>\n</section>\n");
        html
    }
}

/// Example of a request or response body; null if it has none.
fn content_example<'a>(description: &'a Value, content: &'a Value) -> &'a Value {
    &resolved(description, &content["examples"]["default"])["value"]
}

/// An example as HTML, closed until a reader opens it: text as it is, anything else as JSON.
fn example(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => text.clone(),
        value => serde_json::to_string_pretty(value).expect("a value is JSON"),
    };
    format!("<details><summary>Example</summary>\n<pre><code>{}</code></pre></details>\n", escape(&text))
}

fn parameters(parameters: &Value) -> String {
    let rows = list(parameters).iter().map(|parameter| {
        let need = if parameter["required"] == true { "required" } else { "" };
        let place = format!("{} {need}", text(&parameter["in"]));
        row(text(&parameter["name"]), place.trim(), &parameter["schema"], text(&parameter["description"]))
    });
    let rows: String = rows.collect();
    if rows.is_empty() {
        String::new()
    } else {
        format!("<h3>Parameters</h3>\n{}", table("parameter", "in", &rows))
    }
}

fn types(description: &Value) -> String {
    let mut html = "<h1>Types</h1>\n".to_owned();
    for (name, schema) in description["components"]["schemas"].as_object().into_iter().flatten() {
        let name = escape(name);
        let _ = write!(html, "<section aria-labelledby=\"{name}\">\n<h2 id=\"{name}\">{name}</h2>\n");
        let about = text(&schema["description"]);
        if !about.is_empty() {
            let _ = writeln!(html, "<p>{}</p>", inline(about));
        }
        // A type that extends others has their fields first.
        let parts: Vec<_> =
            list(&schema["allOf"]).iter().map(|part| resolved(description, part)).chain([schema]).collect();
        let is_needed = |field: &str| {
            parts.iter().any(|part| list(&part["required"]).iter().any(|needed| needed == field))
        };
        let fields = parts.iter().filter_map(|part| part["properties"].as_object()).flatten();
        let rows = fields.map(|(field, shape)| {
            let need = if is_needed(field) { "required" } else { "" };
            row(field, need, shape, about_of(shape))
        });
        let rows: String = rows.collect();
        if rows.is_empty() {
            let _ = writeln!(html, "<p>{}</p>", shape(schema));
        } else {
            html.push_str(&table("field", "", &rows));
        }
        html.push_str(&example(&schema["examples"][0]));
        html.push_str("</section>\n");
    }
    html
}

fn table(first: &str, second: &str, rows: &str) -> String {
    format!(
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Table\"><table>\n<thead><tr><th>{first}</th>\
         <th>{}</th><th>type</th><th>meaning</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n",
        if second.is_empty() { "required" } else { second },
    )
}

fn row(name: &str, need: &str, schema: &Value, about: &str) -> String {
    let (name, need, about) = (escape(name), escape(need), inline(about));
    format!(
        "<tr><td><code>{name}</code></td><td>{need}</td><td>{}</td><td>{about}</td></tr>\n",
        shape(schema)
    )
}

/// Description of a field, also if its type is a `oneOf`.
fn about_of(schema: &Value) -> &str {
    let of_choice = || {
        list(&schema["oneOf"]).iter().map(|choice| text(&choice["description"])).find(|said| !said.is_empty())
    };
    match text(&schema["description"]) {
        "" => of_choice().unwrap_or_default(),
        said => said,
    }
}

/// Short form of a type, with links to named types.
fn shape(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|place| place.rsplit('/').next()) {
        let name = escape(name);
        return format!("<a href=\"/docs/api/types#{name}\">{name}</a>");
    }
    for several in ["oneOf", "anyOf", "allOf"] {
        let shapes: Vec<_> = list(&schema[several]).iter().map(shape).collect();
        if !shapes.is_empty() {
            return shapes.join(if several == "allOf" { " and " } else { " or " });
        }
    }
    let words = list(&schema["enum"]).iter().map(|word| format!("<code>{}</code>", escape(&plain(word))));
    let words: Vec<_> = words.collect();
    if !words.is_empty() {
        return words.join(", ");
    }
    match &schema["type"] {
        Value::Array(kinds) => {
            kinds.iter().map(|kind| named(text(kind), schema)).collect::<Vec<_>>().join(" or ")
        }
        kind => named(text(kind), schema),
    }
}

fn named(kind: &str, schema: &Value) -> String {
    let bounds = match (&schema["minimum"], &schema["maximum"]) {
        (Value::Null, Value::Null) => String::new(),
        (least, Value::Null) => format!(", {} or more", plain(least)),
        (Value::Null, most) => format!(", at most {}", plain(most)),
        (least, most) => format!(", {} to {}", plain(least), plain(most)),
    };
    match (kind, text(&schema["format"])) {
        ("array", _) => format!("array of {}", shape(&schema["items"])),
        ("object", _)
            if schema["additionalProperties"].as_object().is_some_and(|shape| !shape.is_empty()) =>
        {
            format!("object of {}", shape(&schema["additionalProperties"]))
        }
        ("", _) => "any".to_owned(),
        ("string", format @ ("date" | "date-time")) => format!("string ({format})"),
        (kind, _) => format!("{}{}", escape(kind), escape(&bounds)),
    }
}

fn resolved<'a>(description: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str().and_then(|place| description.pointer(place.trim_start_matches('#'))) {
        Some(found) => found,
        None => value,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
