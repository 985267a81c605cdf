//! Media types of files, by their first bytes. What a caller calls a file decides nothing.

use std::str;

use super::content::PDF;

const PNG: &str = "image/png";
const JPEG: &str = "image/jpeg";
const GIF: &str = "image/gif";
const WEBP: &str = "image/webp";
const TEXT: &str = "text/plain";
const BYTES: &str = "application/octet-stream";

/// Returns the media type of a file.
pub fn of(content: &[u8]) -> &'static str {
    match content {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => PNG,
        [0xff, 0xd8, 0xff, ..] => JPEG,
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => GIF,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => WEBP,
        [b'%', b'P', b'D', b'F', b'-', ..] => PDF,
        _ if is_text(content) => TEXT,
        _ => BYTES,
    }
}

/// Whether a media type is that of an image which models can take, if need be in another form.
pub fn is_image(media_type: &str) -> bool {
    [PNG, JPEG, GIF, WEBP].contains(&media_type)
}

/// Returns the usual ending of a name.
pub fn extension(media_type: &str) -> &'static str {
    match media_type {
        PNG => "png",
        JPEG => "jpg",
        GIF => "gif",
        WEBP => "webp",
        PDF => "pdf",
        TEXT => "txt",
        _ => "bin",
    }
}

fn is_text(content: &[u8]) -> bool {
    let is_control =
        |char: char| char.is_control() && !matches!(char, '\n' | '\r' | '\t' | '\u{c}' | '\u{1b}');
    str::from_utf8(content).is_ok_and(|text| !text.chars().any(is_control))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_its_bytes_say() {
        assert_eq!(of(b"\x89PNG\r\n\x1a\nrest"), PNG);
        assert_eq!(of(b"\xff\xd8\xff\xe0"), JPEG);
        assert_eq!(of(b"GIF89a"), GIF);
        assert_eq!(of(b"RIFF\0\0\0\0WEBPVP8 "), WEBP);
        assert_eq!(of(b"RIFF\0\0\0\0WAVE"), BYTES);
        assert_eq!(of(b"%PDF-1.7"), PDF);
        assert_eq!(of("größe,zahl\n1,2\n".as_bytes()), TEXT);
        assert_eq!(of(b"a\0b"), BYTES);
        assert_eq!(of(b"\xff\xfea\0"), BYTES);
    }
}
