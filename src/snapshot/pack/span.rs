//! Spans: adjacent places of a pack, which one read gets.
//!
//! A tree has many small frames, and a read of a bucket takes tens of milliseconds, whatever its size.

use std::ops::Range;

use super::frame::{FRAME_BYTES_MAX, damaged};
use crate::{domain::tree::Place, snapshot::Error};

/// Largest part of a span that nobody asked for, in bytes, between two places.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// Max size of a span of more than one place, in bytes.
const SPAN_BYTES_MAX: u64 = 4 << 20;

/// A range of a pack that contains some of the wanted places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Range to read.
    pub place: Place,
    /// Indexes of the places that it contains.
    pub members: Range<usize>,
}

impl Span {
    /// Returns the bytes of a place of this span from `stored`, the bytes of the span.
    ///
    /// # Errors
    /// `Damaged` if there are fewer or more.
    pub fn part<'a>(&self, stored: &'a [u8], place: Place) -> Result<&'a [u8], Error> {
        let other_size = || damaged("a read returned another number of bytes");
        let length = |bytes: u32| usize::try_from(bytes).map_err(damaged);
        if stored.len() != length(self.place.bytes)? {
            return Err(other_size());
        }
        let start = place.offset.checked_sub(self.place.offset).ok_or_else(other_size)?;
        let (_, rest) =
            stored.split_at_checked(usize::try_from(start).map_err(damaged)?).ok_or_else(other_size)?;
        rest.get(..length(place.bytes)?).ok_or_else(other_size)
    }
}

/// Groups places, which are sorted, into as few reads as is worth it.
///
/// # Errors
/// `Damaged` for a place that no pack has.
pub fn spans(places: &[Place]) -> Result<Vec<Span>, Error> {
    let mut spans: Vec<Span> = Vec::new();
    for (index, place) in places.iter().enumerate() {
        let end = place.offset.checked_add(place.bytes.into());
        let end = end.filter(|_| place.bytes <= FRAME_BYTES_MAX);
        let end = end.ok_or_else(|| damaged("a place is outside any pack"))?;
        if let Some(span) = spans.last_mut()
            && let Some(bytes) = extended(span.place, *place, end)
        {
            span.place.bytes = bytes;
            span.members.end = index + 1;
        } else {
            spans.push(Span { place: *place, members: index..index + 1 });
        }
    }
    Ok(spans)
}

/// Returns the size of a span with one more place, which ends at `end`; `None` if it is better read alone.
fn extended(span: Place, place: Place, end: u64) -> Option<u32> {
    let gap_start = span.offset + u64::from(span.bytes);
    let is_near = place.offset >= span.offset && place.offset <= gap_start.saturating_add(GAP_BYTES_MAX);
    let bytes = end.max(gap_start) - span.offset;
    let is_one_read = span.pack == place.pack && is_near && bytes <= SPAN_BYTES_MAX;
    is_one_read.then(|| u32::try_from(bytes).ok())?
}
