//! Images in a form that every model takes: decoded once, at most `IMAGE_SIDE_MAX` pixels a side, upright.
//!
//! An image that a provider refuses would end every later turn of its session, so one that cannot be decoded is refused
//! when it is sent.

use std::io::Cursor;

use bytes::Bytes;
use image::{
    DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, Rgba, RgbaImage, codecs::jpeg::JpegEncoder,
    imageops, metadata::Orientation,
};

use crate::{
    base::limit::{IMAGE_DECODED_BYTES_MAX, IMAGE_PIXELS_MAX, IMAGE_SENT_BYTES_MAX, IMAGE_SIDE_MAX},
    domain::content::ModelImage,
};

/// Qualities of JPEG images, of 100, tried in this order.
const QUALITIES: [u8; 3] = [85, 70, 50];
/// Memory of one decoder beside the image itself, in bytes.
const DECODER_BYTES_MAX: u64 = 64 << 20;

/// The image for models, and its bytes if they are not those of the file.
pub(super) type Prepared = (ModelImage, Option<Bytes>);

/// Reason why a file is no image that a model can get.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoImage {
    #[error("the image cannot be decoded: {0}")]
    Undecodable(#[from] image::ImageError),
    #[error("the image has {width} x {height} pixels; at most {} megapixels are accepted", IMAGE_PIXELS_MAX / 1_000_000)]
    TooManyPixels { width: u32, height: u32 },
    #[error("the image has no pixels")]
    Empty,
}

/// Decodes an image; converts it if a model cannot take it as it is. For a blocking thread.
pub(super) fn prepare(content: &[u8]) -> Result<Prepared, NoImage> {
    let reader =
        ImageReader::new(Cursor::new(content)).with_guessed_format().map_err(image::ImageError::IoError)?;
    let format = reader.format();
    let mut decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 {
        return Err(NoImage::Empty);
    }
    if pixels > IMAGE_PIXELS_MAX || decoder.total_bytes() > IMAGE_DECODED_BYTES_MAX {
        return Err(NoImage::TooManyPixels { width, height });
    }
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(decoder.total_bytes() + DECODER_BYTES_MAX);
    decoder.set_limits(limits)?;
    let orientation = decoder.orientation()?;
    let decoded = DynamicImage::from_decoder(decoder)?;
    let is_small = width.max(height) <= IMAGE_SIDE_MAX && content.len() <= IMAGE_SENT_BYTES_MAX;
    if let (true, Orientation::NoTransforms, Some(media_type)) =
        (is_small, orientation, format.and_then(sendable))
    {
        let bytes = content.len() as u64;
        let image = ModelImage { media_type: media_type.to_owned(), bytes, width, height, converted: false };
        return Ok((image, None));
    }
    convert(decoded, orientation)
}

/// Returns the media type of a format that every model takes. Of GIF, some take no animations.
fn sendable(format: ImageFormat) -> Option<&'static str> {
    match format {
        ImageFormat::Png => Some("image/png"),
        ImageFormat::Jpeg => Some("image/jpeg"),
        ImageFormat::WebP => Some("image/webp"),
        _ => None,
    }
}

fn convert(mut image: DynamicImage, orientation: Orientation) -> Result<Prepared, NoImage> {
    let side = IMAGE_SIDE_MAX;
    if image.width().max(image.height()) > side {
        image = image.thumbnail(side, side);
    }
    image.apply_orientation(orientation);
    image = match image.color().has_alpha() {
        true => DynamicImage::ImageRgba8(image.into_rgba8()),
        false => DynamicImage::ImageRgb8(image.into_rgb8()),
    };
    let mut png = Vec::new();
    image.write_to(&mut Cursor::new(&mut png), ImageFormat::Png)?;
    // A photo is much larger as PNG.
    if image.color().has_alpha() && png.len() <= IMAGE_SENT_BYTES_MAX {
        return Ok(converted(&image, "image/png", png));
    }
    let mut image = on_white(image);
    let jpeg = loop {
        let sizes = QUALITIES.iter().map(|quality| encode_jpeg(&image, *quality));
        let fitting =
            sizes.into_iter().find(|jpeg| jpeg.as_ref().is_ok_and(|jpeg| jpeg.len() <= IMAGE_SENT_BYTES_MAX));
        match fitting {
            Some(jpeg) => break jpeg?,
            None => image = image.thumbnail(image.width().div_ceil(2), image.height().div_ceil(2)),
        }
    };
    let is_drawing = png.len() <= jpeg.len();
    let (media_type, content) = if is_drawing { ("image/png", png) } else { ("image/jpeg", jpeg) };
    Ok(converted(&image, media_type, content))
}

fn converted(image: &DynamicImage, media_type: &str, content: Vec<u8>) -> Prepared {
    let (width, height, bytes) = (image.width(), image.height(), content.len() as u64);
    let image = ModelImage { media_type: media_type.to_owned(), bytes, width, height, converted: true };
    (image, Some(content.into()))
}

fn encode_jpeg(image: &DynamicImage, quality: u8) -> Result<Vec<u8>, image::ImageError> {
    let mut jpeg = Vec::new();
    image.write_with_encoder(JpegEncoder::new_with_quality(&mut jpeg, quality))?;
    Ok(jpeg)
}

/// Replaces what is transparent, which JPEG does not have.
fn on_white(image: DynamicImage) -> DynamicImage {
    if !image.color().has_alpha() {
        return image;
    }
    let mut white = RgbaImage::from_pixel(image.width(), image.height(), Rgba([255; 4]));
    imageops::overlay(&mut white, &image.into_rgba8(), 0, 0);
    DynamicImage::ImageRgb8(DynamicImage::ImageRgba8(white).into_rgb8())
}

#[cfg(test)]
mod tests {
    use image::RgbImage;

    use super::*;

    /// An image that compresses badly.
    fn noise(width: u32, height: u32) -> DynamicImage {
        let mut state = 1_u32;
        let image = RgbImage::from_fn(width, height, |_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [r, g, b, _] = state.to_be_bytes();
            image::Rgb([r, g, b])
        });
        DynamicImage::ImageRgb8(image)
    }

    fn encode(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut content = Vec::new();
        image.write_to(&mut Cursor::new(&mut content), format).expect("encodes");
        content
    }

    #[test]
    fn a_small_image_is_sent_as_it_is() {
        for (format, media_type) in [
            (ImageFormat::Png, "image/png"),
            (ImageFormat::Jpeg, "image/jpeg"),
            (ImageFormat::WebP, "image/webp"),
        ] {
            let content = encode(&noise(40, 30), format);
            let (image, converted) = prepare(&content).expect("an image");
            assert_eq!((&*image.media_type, image.width, image.height), (media_type, 40, 30));
            assert!(converted.is_none() && !image.converted);
        }
    }

    #[test]
    fn a_large_image_is_scaled_and_small_enough_for_a_request() {
        let (image, converted) = prepare(&encode(&noise(2_400, 1_200), ImageFormat::Png)).expect("an image");
        assert_eq!((image.width, image.height), (2_000, 1_000));
        let converted = converted.expect("another form");
        assert!(converted.len() <= IMAGE_SENT_BYTES_MAX && converted.len() as u64 == image.bytes);
        assert_eq!(image::load_from_memory(&converted).expect("an image").width(), 2_000);
    }

    #[test]
    fn an_animation_becomes_a_picture_and_keeps_what_is_transparent() {
        let clear = DynamicImage::ImageRgba8(RgbaImage::from_pixel(8, 8, Rgba([0, 0, 0, 0])));
        let (image, converted) = prepare(&encode(&clear, ImageFormat::Gif)).expect("an image");
        assert_eq!(image.media_type, "image/png");
        let decoded = image::load_from_memory(&converted.expect("another form")).expect("an image");
        assert_eq!(decoded.to_rgba8().get_pixel(0, 0).0[3], 0);
    }

    #[test]
    fn an_image_that_compresses_badly_is_made_to_fit() {
        let image = DynamicImage::ImageRgba8(noise(2_000, 2_000).into_rgba8());
        let (image, converted) = prepare(&encode(&image, ImageFormat::Png)).expect("an image");
        assert_eq!(image.media_type, "image/jpeg");
        assert!(converted.expect("another form").len() <= IMAGE_SENT_BYTES_MAX);
    }

    #[test]
    fn a_damaged_image_is_refused() {
        let content = encode(&noise(400, 300), ImageFormat::Png);
        assert!(matches!(prepare(&content[..content.len() / 2]), Err(NoImage::Undecodable(_))));
        assert!(prepare(b"\x89PNG\r\n\x1a\n").is_err());
    }

    #[test]
    fn an_image_of_too_many_pixels_is_refused_before_it_is_decoded() {
        // A PNG of 60,000 x 60,000 pixels in 57 bytes.
        let mut content = encode(&noise(1, 1), ImageFormat::Png);
        let size = 60_000_u32.to_be_bytes();
        content[16..20].copy_from_slice(&size);
        content[20..24].copy_from_slice(&size);
        let checksum = crc32(&content[12..29]);
        content[29..33].copy_from_slice(&checksum.to_be_bytes());
        assert!(matches!(prepare(&content), Err(NoImage::TooManyPixels { width: 60_000, height: 60_000 })));
    }

    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |crc, byte| {
            (0..8)
                .fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
        })
    }
}
