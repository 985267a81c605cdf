//! Snapshots of the files of a session, and the packs that have their contents.

use sqlx::{FromRow, PgExecutor};
use uuid::Uuid;

use crate::{
    base::{Id, Timestamp},
    domain::{
        EventId, OrgId, SessionId, StepId, TurnId,
        event::Draft,
        tree::{Place, SnapshotId},
    },
    store::{
        Error, Result, Store, Tx,
        column::{count, uncount},
        connection::Connection,
        parameter::named,
    },
};

/// A snapshot that is stored in the transaction that appends its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Its event, one of those of the append. The snapshot has its `seq`, turn and step.
    pub event: EventId,
    pub snapshot: SnapshotId,
    /// The place of the root directory.
    pub root: Place,
    /// Number of the files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// The packs that the session does not have yet, in the order of their numbers, which follow the highest one that it
    /// has. Their objects are stored.
    pub packs: Vec<SnapshotPack>,
}

/// A pack of the snapshots of a session: an object with contents and directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPack {
    pub number: u32,
    /// SHA-256 of its bytes, which is that of the object.
    pub digest: [u8; 32],
    pub bytes: u64,
}

/// The files of a session at one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The `seq` of the event.
    pub seq: i64,
    pub snapshot: SnapshotId,
    pub turn: Option<TurnId>,
    pub step: Option<StepId>,
    /// The place of the root directory.
    pub root: Place,
    /// Number of the files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    pub created_at: Timestamp,
}

#[derive(FromRow)]
struct Row {
    seq: i64,
    snapshot_id: String,
    turn_id: Option<Uuid>,
    step_id: Option<Uuid>,
    root_pack: i32,
    root_offset: i64,
    root_bytes: i32,
    files: i32,
    bytes: i64,
    created_at: Timestamp,
}

impl Row {
    fn snapshot(self) -> Result<Snapshot> {
        let snapshot = SnapshotId::try_from(self.snapshot_id);
        Ok(Snapshot {
            seq: self.seq,
            snapshot: snapshot.map_err(|error| Error::Corrupt(error.to_string()))?,
            turn: self.turn_id.map(Id::from_uuid),
            step: self.step_id.map(Id::from_uuid),
            root: Place {
                pack: self.root_pack.cast_unsigned(),
                offset: uncount(self.root_offset),
                bytes: self.root_bytes.cast_unsigned(),
            },
            files: u64::try_from(self.files).unwrap_or_default(),
            bytes: uncount(self.bytes),
            created_at: self.created_at,
        })
    }
}

impl Store {
    /// Returns the newest snapshot of a session.
    pub async fn newest_snapshot(&self, org: OrgId, session: SessionId) -> Result<Option<Snapshot>> {
        newest(&self.system, org, session, i64::MAX).await
    }

    /// Returns the newest snapshot of a session whose event has this `seq` or a lower one.
    pub async fn snapshot_at(&self, org: OrgId, session: SessionId, seq: i64) -> Result<Option<Snapshot>> {
        newest(&self.system, org, session, seq).await
    }

    /// Returns the packs of a session, by number.
    pub async fn snapshot_packs(&self, org: OrgId, session: SessionId) -> Result<Vec<SnapshotPack>> {
        packs(&self.system, org, session).await
    }
}

impl Tx {
    /// Returns the newest snapshot of a session.
    pub async fn newest_snapshot(&mut self, session: SessionId) -> Result<Option<Snapshot>> {
        self.snapshot_at(session, i64::MAX).await
    }

    /// Returns the newest snapshot of a session whose event has this `seq` or a lower one.
    pub async fn snapshot_at(&mut self, session: SessionId, seq: i64) -> Result<Option<Snapshot>> {
        let org = self.org;
        newest(self.connection(), org, session, seq).await
    }

    /// Returns the packs of a session, by number.
    pub async fn snapshot_packs(&mut self, session: SessionId) -> Result<Vec<SnapshotPack>> {
        let org = self.org;
        packs(self.connection(), org, session).await
    }
}

/// By the primary key.
async fn newest(
    executor: impl PgExecutor<'_>,
    org: OrgId,
    session: SessionId,
    seq_max: i64,
) -> Result<Option<Snapshot>> {
    let row: Option<Row> = sqlx::query_as(
        "select seq, snapshot_id, turn_id, step_id, root_pack, root_offset, root_bytes, files, bytes, created_at
         from snapshot
         where org_id = $1 and session_id = $2 and seq <= $3
         order by seq desc
         limit 1",
    )
    .bind(org.uuid())
    .bind(session.uuid())
    .bind(seq_max)
    .fetch_optional(executor)
    .await?;
    row.map(Row::snapshot).transpose()
}

/// By the primary key. A session has at most one for each step, and a row has 44 bytes.
async fn packs(executor: impl PgExecutor<'_>, org: OrgId, session: SessionId) -> Result<Vec<SnapshotPack>> {
    let rows: Vec<(i32, [u8; 32], i64)> = sqlx::query_as(
        "select number, digest, bytes
         from snapshot_pack
         where org_id = $1 and session_id = $2
         order by number",
    )
    .bind(org.uuid())
    .bind(session.uuid())
    .fetch_all(executor)
    .await?;
    let pack = |(number, digest, bytes): (i32, [u8; 32], i64)| SnapshotPack {
        number: number.cast_unsigned(),
        digest,
        bytes: uncount(bytes),
    };
    Ok(rows.into_iter().map(pack).collect())
}

/// Stores a snapshot and its new packs, whose event is appended in the same transaction as `draft` with this `seq`.
///
/// # Errors
/// `Conflict("object_ref_object")` if the object of a pack is not stored any more: store it again.
/// `Conflict("snapshot_pack_number")` if the packs do not follow those of the session: an append whose outcome was not known
/// was not written, and the snapshot may name places in its packs.
pub(in crate::store) async fn insert(
    connection: &mut Connection,
    (org, session): (OrgId, SessionId),
    (seq, draft): (i64, &Draft),
    new: &NewSnapshot,
) -> Result<()> {
    insert_packs(connection, org, session, &new.packs).await?;
    named!(
        query(
            "insert into snapshot (
                org_id, session_id, seq, snapshot_id, turn_id, step_id, root_pack, root_offset, root_bytes, files, bytes
             )
             values (
                $org_id, $session_id, $seq, $snapshot_id, $turn_id, $step_id, $root_pack, $root_offset, $root_bytes,
                $files, $bytes
             )"
        ),
        {
            org_id: org.uuid(),
            session_id: session.uuid(),
            seq: seq,
            snapshot_id: new.snapshot.as_str(),
            turn_id: draft.turn_id.map(Id::uuid),
            step_id: draft.step_id.map(Id::uuid),
            root_pack: new.root.pack.cast_signed(),
            root_offset: count(new.root.offset),
            root_bytes: new.root.bytes.cast_signed(),
            files: i32::try_from(new.files).unwrap_or(i32::MAX),
            bytes: count(new.bytes),
        }
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The references to their objects are added by the trigger `snapshot_pack_added`.
async fn insert_packs(
    connection: &mut Connection,
    org: OrgId,
    session: SessionId,
    packs: &[SnapshotPack],
) -> Result<()> {
    let Some(first) = packs.first() else { return Ok(()) };
    let inserted = sqlx::query(
        "insert into snapshot_pack (org_id, session_id, number, digest, bytes)
         select $1, $2, p.number, p.digest, p.bytes
         from unnest($3::integer[], $4::bytea[], $5::bigint[]) as p (number, digest, bytes)
         where $6 = coalesce(
             (select max(number) + 1 from snapshot_pack where org_id = $1 and session_id = $2),
             $6::integer
         )",
    )
    .bind(org.uuid())
    .bind(session.uuid())
    .bind(packs.iter().map(|pack| pack.number.cast_signed()).collect::<Vec<_>>())
    .bind(packs.iter().map(|pack| pack.digest.as_slice()).collect::<Vec<_>>())
    .bind(packs.iter().map(|pack| count(pack.bytes)).collect::<Vec<_>>())
    .bind(first.number.cast_signed())
    .execute(connection)
    .await?;
    match inserted.rows_affected() {
        0 => Err(Error::Conflict("snapshot_pack_number".to_owned())),
        _ => Ok(()),
    }
}
