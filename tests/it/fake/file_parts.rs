//! Files in requests to models, as the providers check them.

use std::collections::HashMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::Value;
use sojourn::domain::{
    FileId, Message,
    content::{Content, FileRef, ModelImage, SentAs},
    shown_files,
};
use uuid::Uuid;

use super::provider::{Refusal, only, refuse};

/// Largest image in base64, in bytes.
const IMAGE_BYTES_MAX: usize = 5 << 20;
/// Largest document, in bytes.
const DOCUMENT_BYTES_MAX: usize = 32 << 20;

/// Checks a block of the Messages API.
pub fn block(block: &Value, path: &str) -> Result<(), Refusal> {
    only(block, path, &["type", "source", "cache_control"])?;
    let source = &block["source"];
    let path = format!("{path}.source");
    only(source, &path, &["type", "media_type", "data"])?;
    let (kind, media_type) = (source["type"].as_str(), source["media_type"].as_str().unwrap_or_default());
    match (block["type"].as_str(), kind, source["data"].as_str()) {
        (Some("image"), Some("base64"), Some(data)) => image(media_type, data, &path),
        (Some("document"), Some("base64"), Some(data)) => pdf(media_type, data, &path),
        (Some("document"), Some("text"), Some(data)) if media_type == "text/plain" && !data.is_empty() => {
            Ok(())
        }
        _ => refuse(format!("{path}: Input should be a valid source")),
    }
}

/// Checks a part of a message of chat completions.
pub fn part(part: &Value, path: &str) -> Result<(), Refusal> {
    match part["type"].as_str() {
        Some("text") => {
            only(part, path, &["type", "text"])?;
            match part["text"].as_str() {
                Some(text) if !text.is_empty() => Ok(()),
                _ => refuse(format!("Invalid value for '{path}.text'.")),
            }
        }
        Some("image_url") => {
            only(part, path, &["type", "image_url"])?;
            only(&part["image_url"], path, &["url", "detail"])?;
            let (media_type, data) = data_url(&part["image_url"]["url"], path)?;
            image(media_type, data, path)
        }
        Some("file") => {
            only(part, path, &["type", "file"])?;
            only(&part["file"], path, &["filename", "file_data"])?;
            if part["file"]["filename"].as_str().is_none_or(str::is_empty) {
                return refuse(format!("Missing required parameter: '{path}.file.filename'."));
            }
            let (media_type, data) = data_url(&part["file"]["file_data"], path)?;
            pdf(media_type, data, path)
        }
        kind => refuse(format!("Invalid value: '{kind:?}' of '{path}.type'.")),
    }
}

/// Checks a part of an item of the Responses API.
pub fn input_part(part: &Value, path: &str) -> Result<(), Refusal> {
    match part["type"].as_str() {
        Some("input_text") => {
            only(part, path, &["type", "text"])?;
            match part["text"].as_str() {
                Some(text) if !text.is_empty() => Ok(()),
                _ => refuse(format!("Invalid value for '{path}.text'.")),
            }
        }
        Some("input_image") => {
            only(part, path, &["type", "detail", "image_url"])?;
            let (media_type, data) = data_url(&part["image_url"], path)?;
            image(media_type, data, path)
        }
        Some("input_file") => {
            only(part, path, &["type", "filename", "file_data"])?;
            let (media_type, data) = data_url(&part["file_data"], path)?;
            pdf(media_type, data, path)
        }
        kind => refuse(format!("Invalid value: '{kind:?}' of '{path}.type'.")),
    }
}

fn data_url<'a>(url: &'a Value, path: &str) -> Result<(&'a str, &'a str), Refusal> {
    let parts = url.as_str().and_then(|url| url.strip_prefix("data:")?.split_once(";base64,"));
    parts.map_or_else(|| refuse(format!("Invalid '{path}': expected a base64-encoded data URL.")), Ok)
}

fn image(media_type: &str, data: &str, path: &str) -> Result<(), Refusal> {
    if data.len() > IMAGE_BYTES_MAX {
        return refuse(format!("{path}.base64: image exceeds 5 MB maximum: {} bytes", data.len()));
    }
    let bytes = decode(data, path)?;
    let format = match media_type {
        "image/png" => image::ImageFormat::Png,
        "image/jpeg" => image::ImageFormat::Jpeg,
        "image/webp" => image::ImageFormat::WebP,
        _ => return refuse(format!("{path}.media_type: Input should be 'image/jpeg', 'image/png', ...")),
    };
    match image::load_from_memory_with_format(&bytes, format) {
        Ok(image) if image.width().max(image.height()) <= 2_000 => Ok(()),
        Ok(_) => refuse(format!(
            "{path}: At least one of the image dimensions exceed max allowed size: 2000 pixels"
        )),
        Err(_) => refuse("Could not process image"),
    }
}

fn pdf(media_type: &str, data: &str, path: &str) -> Result<(), Refusal> {
    let bytes = decode(data, path)?;
    if media_type != "application/pdf" || !bytes.starts_with(b"%PDF-") || bytes.len() > DOCUMENT_BYTES_MAX {
        return refuse(format!("{path}: The PDF specified was not valid."));
    }
    Ok(())
}

fn decode(data: &str, path: &str) -> Result<Vec<u8>, Refusal> {
    match BASE64_STANDARD.decode(data) {
        Ok(bytes) if !bytes.is_empty() => Ok(bytes),
        _ => refuse(format!("{path}.data: Invalid base64 data")),
    }
}

/// A PNG image of so many pixels.
pub fn png(width: u32, height: u32) -> Vec<u8> {
    let pixel = |x: u32, y: u32| image::Rgb([x as u8, y as u8, (x ^ y) as u8]);
    let mut content = Vec::new();
    image::DynamicImage::ImageRgb8(image::RgbImage::from_fn(width, height, pixel))
        .write_to(&mut std::io::Cursor::new(&mut content), image::ImageFormat::Png)
        .expect("an image");
    content
}

/// A part with a small file of each kind.
pub fn sample(kind: u8) -> Content {
    let (media_type, image) = match kind {
        0 => ("image/png", Some(small())),
        1 => ("application/pdf", None),
        2 => ("text/plain", None),
        _ => ("application/octet-stream", None),
    };
    let file = FileRef {
        file_id: FileId::from_uuid(Uuid::from_u128(u128::from(kind) + 1)),
        name: format!("file {kind}"),
        path: format!("/home/agent/files/{kind}"),
        media_type: media_type.to_owned(),
        bytes: 100,
        sha256: String::new(),
        image,
    };
    if kind == 0 { Content::Image(file) } else { Content::Document(file) }
}

fn small() -> ModelImage {
    ModelImage { media_type: "image/png".to_owned(), bytes: 100, width: 2, height: 2, converted: false }
}

/// Returns the bytes of all sample files that a request shows.
pub fn bytes_of(history: &[Message]) -> HashMap<FileId, Bytes> {
    let files = shown_files::parts(history).filter_map(|part| {
        let (file, sent_as) = part.sent_as()?;
        let bytes = match sent_as {
            SentAs::Image => png(2, 2),
            SentAs::Pdf => b"%PDF-1.7".to_vec(),
            SentAs::Text => b"a,b".to_vec(),
            SentAs::Path => return None,
        };
        Some((file.file_id, bytes.into()))
    });
    files.collect()
}
