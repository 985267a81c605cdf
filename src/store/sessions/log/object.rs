//! A segment and its object: a line of JSON for each event, compressed with zstd.

use std::{
    borrow::Cow,
    collections::{BTreeSet, VecDeque},
    fmt::Display,
    io::{self, Read as _, Write as _},
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sqlx::FromRow;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    base::{
        Timestamp,
        limit::{
            BLOB_RETRY, BLOB_TIMEOUT, SEGMENT_BYTES_MAX, SEGMENT_CACHE_TTL, SEGMENT_EVENTS_MAX,
            SEGMENT_READ_BYTES_MAX, SEGMENT_READS_MAX, SEGMENTS_CACHED_MAX,
        },
        seal::sha256,
        text::hex,
    },
    blob::{self, Blobs},
    domain::{Entry, EventId, OrgId, SessionId, StepId, TurnId},
    store::{
        Error, Result,
        column::{level, threshold},
    },
};

/// zstd compression level: an object is written once.
const LEVEL: i32 = 3;

/// A part of the log of an archived session that is an object in the blob store.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Segment {
    /// `seq` of the first event.
    pub from_seq: i64,
    /// `seq` of the last event.
    pub to_seq: i64,
    /// SHA-256 of the object.
    pub digest: Vec<u8>,
    /// Size of the object.
    pub bytes: i64,
    /// The types of the events.
    pub types: Vec<String>,
}

impl Segment {
    /// Returns the key of the object. It begins as those of all blobs of the session.
    pub fn key(&self, org: OrgId, session: SessionId) -> String {
        let digest = hex(&self.digest);
        format!("{}/{}/segments/{}-{digest}", org.uuid(), session.uuid(), self.from_seq)
    }

    /// Returns whether the event with this `seq` is in the segment.
    pub fn contains(&self, seq: i64) -> bool {
        (self.from_seq..=self.to_seq).contains(&seq)
    }
}

/// A line of an object. Texts of JSON are strings, so that they are read back byte for byte.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    seq: i64,
    id: EventId,
    ts_micros: i64,
    #[serde(rename = "type")]
    kind: Cow<'a, str>,
    level: i16,
    actor: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    turn_id: Option<TurnId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    step_id: Option<StepId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    refs: Option<Cow<'a, str>>,
    body: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    content_ref: Option<Cow<'a, str>>,
    body_bytes: i32,
    /// Final: a session is archived when its turns have ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    processed_at_micros: Option<i64>,
}

fn micros(ts: Timestamp) -> i64 {
    i64::try_from(ts.unix_timestamp_nanos() / 1_000).expect("the years of a timestamp fit")
}

fn timestamp(micros: i64) -> io::Result<Timestamp> {
    Timestamp::from_unix_timestamp_nanos(i128::from(micros) * 1_000).map_err(io::Error::other)
}

impl<'a> From<&'a Entry> for Line<'a> {
    fn from(entry: &'a Entry) -> Self {
        Self {
            seq: entry.seq,
            id: entry.id,
            ts_micros: micros(entry.ts),
            kind: entry.kind.as_str().into(),
            level: threshold(entry.level),
            actor: entry.actor.as_str().into(),
            turn_id: entry.turn_id,
            step_id: entry.step_id,
            refs: entry.refs.as_deref().map(Into::into),
            body: entry.body.as_str().into(),
            content_ref: entry.content_ref.as_deref().map(Into::into),
            body_bytes: entry.body_bytes,
            processed_at_micros: entry.processed_at.map(micros),
        }
    }
}

impl Line<'_> {
    fn entry(self, session: SessionId) -> io::Result<Entry> {
        Ok(Entry {
            session,
            seq: self.seq,
            id: self.id,
            ts: timestamp(self.ts_micros)?,
            kind: self.kind.into_owned(),
            level: level(self.level).map_err(io::Error::other)?,
            actor: self.actor.into_owned(),
            turn_id: self.turn_id,
            step_id: self.step_id,
            refs: self.refs.map(Cow::into_owned),
            body: self.body.into_owned(),
            content_ref: self.content_ref.map(Cow::into_owned),
            body_bytes: self.body_bytes,
            processed_at: self.processed_at_micros.map(timestamp).transpose()?,
        })
    }
}

/// Writes the object of a segment. Its memory is that of the compressed events.
pub(crate) struct SegmentEncoder {
    encoder: zstd::Encoder<'static, Vec<u8>>,
    from_seq: i64,
    next_seq: i64,
    /// Size of the lines.
    bytes: usize,
    types: BTreeSet<String>,
}

impl SegmentEncoder {
    /// Creates an encoder for events from `from_seq` on.
    pub(crate) fn new(from_seq: i64) -> Result<Self> {
        let encoder = zstd::Encoder::new(Vec::new(), LEVEL).map_err(corrupt)?;
        Ok(Self { encoder, from_seq, next_seq: from_seq, bytes: 0, types: BTreeSet::new() })
    }

    /// Appends the next events, as many as fit.
    ///
    /// # Errors
    /// `Corrupt` if they do not follow those before.
    pub(crate) fn push(&mut self, entries: &[Entry]) -> Result<()> {
        for entry in entries {
            if self.is_full() {
                break;
            }
            if entry.seq != self.next_seq {
                return Err(Error::Corrupt(format!("event {} of the log is missing", self.next_seq)));
            }
            let mut line = serde_json::to_vec(&Line::from(entry)).map_err(corrupt)?;
            line.push(b'\n');
            self.encoder.write_all(&line).map_err(corrupt)?;
            self.bytes += line.len();
            self.next_seq += 1;
            if !self.types.contains(&entry.kind) {
                self.types.insert(entry.kind.clone());
            }
        }
        Ok(())
    }

    /// Returns `seq` of the event that is appended next.
    pub(crate) fn next_seq(&self) -> i64 {
        self.next_seq
    }

    /// Returns whether the object takes no more events.
    pub(crate) fn is_full(&self) -> bool {
        self.next_seq - self.from_seq >= SEGMENT_EVENTS_MAX || self.bytes >= SEGMENT_BYTES_MAX
    }

    /// Returns the segment and its object; `None` without an event.
    pub(crate) fn finish(self) -> Result<Option<(Segment, Bytes)>> {
        if self.next_seq == self.from_seq {
            return Ok(None);
        }
        let object = self.encoder.finish().map_err(corrupt)?;
        let segment = Segment {
            from_seq: self.from_seq,
            to_seq: self.next_seq - 1,
            digest: sha256(&object).to_vec(),
            bytes: object.len() as i64,
            types: self.types.into_iter().collect(),
        };
        Ok(Some((segment, object.into())))
    }
}

fn corrupt(error: impl Display) -> Error {
    Error::Corrupt(error.to_string())
}

/// Decodes the object of a segment. An error means that it does not have the events of the segment.
fn decode(session: SessionId, segment: &Segment, object: &[u8]) -> io::Result<Vec<Entry>> {
    if sha256(object)[..] != segment.digest[..] {
        return Err(io::Error::other("its digest is another one"));
    }
    let mut json = Vec::new();
    zstd::Decoder::new(object)?.take(SEGMENT_READ_BYTES_MAX).read_to_end(&mut json)?;
    let mut entries = Vec::new();
    for line in json.split_inclusive(|byte| *byte == b'\n') {
        entries.push(serde_json::from_slice::<Line<'_>>(line)?.entry(session)?);
    }
    if !entries.iter().map(|entry| entry.seq).eq(segment.from_seq..=segment.to_seq) {
        return Err(io::Error::other("it has other events"));
    }
    Ok(entries)
}

/// Reader of segments, which caches the last ones: a reader of a whole log reads a segment page by page. Cheap to
/// clone.
#[derive(Clone)]
pub(crate) struct Segments {
    blobs: Option<Blobs>,
    /// Bounds the memory for objects that are decoded.
    permits: Arc<Semaphore>,
    /// Ordered by insertion, oldest first.
    cache: Arc<Mutex<VecDeque<Cached>>>,
}

struct Cached {
    key: String,
    at: Instant,
    entries: Arc<Vec<Entry>>,
}

impl Segments {
    /// Creates a reader. Without a blob store it reads no segment.
    pub(crate) fn new(blobs: Option<Blobs>) -> Self {
        Self { blobs, permits: Arc::new(Semaphore::new(SEGMENT_READS_MAX)), cache: Arc::default() }
    }

    /// Returns the events of a segment, in order.
    ///
    /// # Errors
    /// `BlobStore` if the store does not answer, `SegmentLost` if the object is missing or damaged.
    #[expect(clippy::disallowed_methods, reason = "awaited here")]
    pub(super) async fn read(
        &self,
        org: OrgId,
        session: SessionId,
        segment: &Segment,
    ) -> Result<Arc<Vec<Entry>>> {
        let away = |reason: String| Error::BlobStore { retry_after: BLOB_RETRY, reason };
        let lost = |reason: &dyn Display| {
            metrics::counter!("sojourn_blobs_lost_total", "kind" => "segment").increment(1);
            let (from, to) = (segment.from_seq, segment.to_seq);
            tracing::error!(session.id = %session, from, to, %reason, "a segment of a log cannot be read");
            Error::SegmentLost { from, to }
        };
        let key = segment.key(org, session);
        if let Some(entries) = self.cached(&key) {
            return Ok(entries);
        }
        let permit = timeout(BLOB_TIMEOUT, self.permits.acquire()).await;
        let permit = permit.map_err(|_| away("other reads take too long".to_owned()))?;
        let _permit = permit.expect("nobody closes it");
        // Another reader may have read it meanwhile.
        if let Some(entries) = self.cached(&key) {
            return Ok(entries);
        }
        let blobs = self.blobs.as_ref().ok_or_else(|| away("this process has none".to_owned()))?;
        let object = match blobs.get(&key).await {
            Ok(object) => object,
            Err(error @ blob::Error::NotFound) => return Err(lost(&error)),
            Err(blob::Error::Unavailable(reason)) => return Err(away(reason)),
            Err(error @ blob::Error::Timeout) => return Err(away(error.to_string())),
        };
        let wanted = segment.clone();
        let decoded = tokio::task::spawn_blocking(move || decode(session, &wanted, &object));
        let entries = match decoded.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(entries) => Arc::new(entries),
            Err(error) => return Err(lost(&error)),
        };
        let mut cache = self.lock();
        cache.push_back(Cached { key, at: Instant::now(), entries: Arc::clone(&entries) });
        while cache.len() > SEGMENTS_CACHED_MAX {
            cache.pop_front();
        }
        Ok(entries)
    }

    /// Returns a cached segment, and evicts old ones.
    fn cached(&self, key: &str) -> Option<Arc<Vec<Entry>>> {
        let mut cache = self.lock();
        cache.retain(|cached| cached.at.elapsed() < SEGMENT_CACHE_TTL);
        cache.iter().find(|cached| cached.key == key).map(|cached| Arc::clone(&cached.entries))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Cached>> {
        self.cache.lock().expect("no code panics while it holds the cache lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{base::Origin, domain::Level};

    fn entry(session: SessionId, seq: i64, body: &str) -> Entry {
        let origin = Origin::system();
        let is_first = seq == 1;
        Entry {
            session,
            seq,
            id: origin.id(),
            ts: origin.now(),
            kind: if is_first { "user.message" } else { "agent.message" }.to_owned(),
            level: Level::User,
            actor: r#"{"type": "agent"}"#.to_owned(),
            turn_id: is_first.then(|| origin.id()),
            step_id: (!is_first).then(|| origin.id()),
            refs: is_first.then(|| "{\n\"a\":1.0}".to_owned()),
            body: body.to_owned(),
            content_ref: is_first.then(|| "a/b/c".to_owned()),
            body_bytes: 40_000,
            processed_at: is_first.then(|| origin.now()),
        }
    }

    #[test]
    fn events_are_read_back_byte_for_byte() {
        let session = Origin::system().id();
        let entries: Vec<_> = ["{ \"text\" : \"\\u0000 \\n\" }", "{\"text\":\"ä\n\"}"]
            .iter()
            .zip(1..)
            .map(|(body, seq)| entry(session, seq, body))
            .collect();
        let mut encoder = SegmentEncoder::new(1).unwrap();
        encoder.push(&entries).unwrap();
        let (segment, object) = encoder.finish().unwrap().expect("events");
        assert_eq!((segment.from_seq, segment.to_seq), (1, 2));
        assert_eq!(segment.types, ["agent.message", "user.message"]);
        assert_eq!(decode(session, &segment, &object).unwrap(), entries);

        let longer = Segment { to_seq: 3, ..segment.clone() };
        assert!(decode(session, &longer, &object).is_err());
        let mut damaged = object.to_vec();
        damaged[object.len() / 2] ^= 1;
        assert!(decode(session, &segment, &damaged).is_err());
    }

    #[test]
    fn an_object_is_bounded_and_has_no_gap() {
        let session = Origin::system().id();
        let large: Vec<_> = (1..=400).map(|seq| entry(session, seq, &"x".repeat(32 << 10))).collect();
        let mut encoder = SegmentEncoder::new(1).unwrap();
        encoder.push(&large).unwrap();
        assert!(encoder.is_full());
        let (segment, _) = encoder.finish().unwrap().expect("events");
        assert!((240..=260).contains(&segment.to_seq), "{}", segment.to_seq);

        let small: Vec<_> = (1..=SEGMENT_EVENTS_MAX + 5).map(|seq| entry(session, seq, "{}")).collect();
        let mut encoder = SegmentEncoder::new(1).unwrap();
        encoder.push(&small).unwrap();
        assert_eq!(encoder.next_seq(), SEGMENT_EVENTS_MAX + 1);
        assert!(SegmentEncoder::new(1).unwrap().push(&small[1..]).is_err());
        assert!(SegmentEncoder::new(1).unwrap().finish().unwrap().is_none());
    }
}
