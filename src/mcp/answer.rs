//! The answer to a call, in a form for a model: text, and images.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use rmcp::{
    ErrorData,
    model::{CallToolResult, ContentBlock, ErrorCode, ResourceContents},
};

use crate::base::limit::MCP_IMAGES_MAX;

/// The answer of a server to a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Text for the model.
    pub text: String,
    /// The tool, or the server, reports an error.
    pub is_error: bool,
    /// The server does not know the tool.
    pub is_unknown_tool: bool,
    pub images: Vec<Image>,
}

/// An image of an answer. Its bytes are not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Media type by the word of the server, such as `image/png`.
    pub media_type: String,
    pub content: Bytes,
}

impl Answer {
    /// Reads a result.
    pub(super) fn of(result: CallToolResult, tool: &str) -> Self {
        let mut answer = Self { is_error: result.is_error.unwrap_or_default(), ..Self::default() };
        let parts: Vec<_> = result.content.into_iter().filter_map(|block| answer.take(block)).collect();
        answer.text = parts.join("\n\n");
        // Servers that have both should give the same; text is what models read best.
        if let (true, Some(structured)) = (answer.text.is_empty(), result.structured_content) {
            answer.text = structured.to_string();
        }
        answer.is_unknown_tool =
            answer.is_error && answer.text.contains(tool) && says_unknown_tool(&answer.text);
        answer
    }

    /// Reads an error of the protocol.
    pub(super) fn of_error(error: &ErrorData) -> Self {
        let is_unknown_tool = error.code == ErrorCode::METHOD_NOT_FOUND
            || (error.code == ErrorCode::INVALID_PARAMS && says_unknown_tool(&error.message));
        let text = format!("The server reports an error: {} ({})", error.message, error.code.0);
        Self { text, is_error: true, is_unknown_tool, images: Vec::new() }
    }

    /// Returns the text of a block; an image is taken out.
    fn take(&mut self, block: ContentBlock) -> Option<String> {
        match block {
            ContentBlock::Text(text) => Some(text.text),
            ContentBlock::Image(image) => self.take_image(&image.data, image.mime_type),
            ContentBlock::Audio(audio) => Some(format!("[{} audio, which is not shown]", audio.mime_type)),
            ContentBlock::Resource(resource) => match resource.resource {
                ResourceContents::TextResourceContents { uri, text, .. } => Some(format!("{uri}\n{text}")),
                ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => match mime_type {
                    Some(media_type) if media_type.starts_with("image/") => {
                        self.take_image(&blob, media_type)
                    }
                    media_type => {
                        let media_type = media_type.unwrap_or_else(|| "binary".to_owned());
                        Some(format!(
                            "[{uri}: {media_type} of {} bytes, which is not shown]",
                            blob.len() / 4 * 3
                        ))
                    }
                },
                _ => Some("[a resource that is not shown]".to_owned()),
            },
            ContentBlock::ResourceLink(link) => {
                let description = link.description.map(|words| format!(": {words}")).unwrap_or_default();
                Some(format!("[{} at {}{description}]", link.name, link.uri))
            }
            _ => Some("[content of a kind that is not shown]".to_owned()),
        }
    }

    fn take_image(&mut self, data: &str, media_type: String) -> Option<String> {
        if self.images.len() >= MCP_IMAGES_MAX {
            return Some(format!("[one more image; at most {MCP_IMAGES_MAX} are shown]"));
        }
        match BASE64_STANDARD.decode(data) {
            Ok(content) => {
                self.images.push(Image { media_type, content: content.into() });
                None
            }
            Err(_) => Some("[an image whose data cannot be read]".to_owned()),
        }
    }
}

/// The protocol has no code of its own for a tool that does not exist; servers of the official libraries say this.
fn says_unknown_tool(words: &str) -> bool {
    let words = words.to_ascii_lowercase();
    words.contains("unknown tool") || (words.contains("tool") && words.contains("not found"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(result: serde_json::Value) -> Answer {
        Answer::of(serde_json::from_value(result).expect("a result"), "x")
    }

    #[test]
    fn blocks_become_text_and_images() {
        let png = BASE64_STANDARD.encode(b"png");
        let read = answer(json!({ "content": [
            { "type": "text", "text": "one" },
            { "type": "image", "data": png, "mimeType": "image/png" },
            { "type": "image", "data": "%", "mimeType": "image/png" },
            { "type": "audio", "data": "", "mimeType": "audio/wav" },
            { "type": "resource", "resource": { "uri": "file:///a", "text": "two" } },
            { "type": "resource", "resource": { "uri": "file:///b", "blob": "AAAA", "mimeType": "application/zip" } },
            { "type": "resource_link", "uri": "file:///c", "name": "c", "description": "three" },
        ]}));
        assert_eq!(
            read.images,
            [Image { media_type: "image/png".to_owned(), content: Bytes::from_static(b"png") }]
        );
        for part in [
            "one",
            "file:///a\ntwo",
            "[an image whose data cannot be read]",
            "audio/wav",
            "[file:///b: application/zip of 3 bytes",
            "[c at file:///c: three]",
        ] {
            assert!(read.text.contains(part), "{part}: {}", read.text);
        }
    }

    #[test]
    fn structured_content_is_read_where_there_is_no_text() {
        assert_eq!(answer(json!({ "structuredContent": { "a": 1 } })).text, r#"{"a":1}"#);
        let both = json!({ "content": [{ "type": "text", "text": "x" }], "structuredContent": { "a": 1 } });
        assert_eq!(answer(both).text, "x");
    }

    #[test]
    fn a_tool_that_is_gone_is_told_from_other_errors() {
        let error = |code, words: &str| Answer::of_error(&ErrorData::new(code, words.to_owned(), None));
        assert!(error(ErrorCode::INVALID_PARAMS, "Tool x not found").is_unknown_tool);
        assert!(error(ErrorCode::METHOD_NOT_FOUND, "").is_unknown_tool);
        assert!(!error(ErrorCode::INVALID_PARAMS, "a is missing").is_unknown_tool);
        let told = json!({ "content": [{ "type": "text", "text": "Unknown tool: x" }], "isError": true });
        assert!(answer(told).is_unknown_tool);
    }
}
