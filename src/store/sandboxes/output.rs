//! Output of callers' execs so far, for readers that follow it.

use sqlx::FromRow;
use uuid::Uuid;

use crate::domain::{OperationId, SessionId, operation::OutputStream};
use crate::store::{
    Result, Store, Tx,
    column::{count, from_word, uncount, word},
    record::{Fence, held},
};

/// A piece of an exec's output, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub stream: OutputStream,
    /// Number of bytes of the text before it.
    pub position: u64,
    pub content: String,
    /// Number of bytes that the command had written up to the end of this piece.
    pub raw_end: u64,
}

impl Chunk {
    /// Number of bytes of the text up to its end.
    pub fn end(&self) -> u64 {
        self.position + self.content.len() as u64
    }
}

#[derive(FromRow)]
struct Row {
    stream: String,
    position: i64,
    content: String,
    raw_end: i64,
}

impl Row {
    fn chunk(self) -> Result<Chunk> {
        Ok(Chunk {
            stream: from_word(&self.stream)?,
            position: uncount(self.position),
            content: self.content,
            raw_end: uncount(self.raw_end),
        })
    }
}

impl Tx {
    /// Returns the output of an open exec after two byte offsets, in order.
    ///
    /// The offsets are those of stdout and stderr.
    pub async fn output(
        &mut self,
        session: SessionId,
        operation: OperationId,
        (stdout, stderr): (u64, u64),
    ) -> Result<Vec<Chunk>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(
            "select stream, position, content, raw_end
             from exec_output
             where org_id = $1 and session_id = $2 and operation_id = $3
               and position + octet_length(content) > case stream when 'stdout' then $4 else $5 end
             order by stream desc, position",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(operation.uuid())
        .bind(count(stdout))
        .bind(count(stderr))
        .fetch_all(self.connection())
        .await?;
        rows.into_iter().map(Row::chunk).collect()
    }
}

impl Store {
    /// Returns the last piece of each stream that a previous holder stored.
    pub async fn last_output(&self, fence: Fence, operation: OperationId) -> Result<Vec<Chunk>> {
        let rows: Vec<Row> = sqlx::query_as(
            "select distinct on (stream) stream, position, content, raw_end
             from exec_output
             where org_id = $1 and session_id = $2 and operation_id = $3
             order by stream, position desc",
        )
        .bind(fence.org.uuid())
        .bind(fence.session.uuid())
        .bind(operation.uuid())
        .fetch_all(&self.system)
        .await?;
        rows.into_iter().map(Row::chunk).collect()
    }

    /// Appends pieces to the output of an open exec. Returns whether the fence holds.
    pub async fn add_output(&self, fence: Fence, operation: OperationId, chunks: &[Chunk]) -> Result<bool> {
        let streams: Vec<_> = chunks.iter().map(|chunk| word(&chunk.stream)).collect();
        let positions: Vec<_> = chunks.iter().map(|chunk| count(chunk.position)).collect();
        let contents: Vec<_> = chunks.iter().map(|chunk| chunk.content.as_str()).collect();
        let raw_ends: Vec<_> = chunks.iter().map(|chunk| count(chunk.raw_end)).collect();
        let row: Option<(Uuid,)> = sqlx::query_as(concat!(
            held!(),
            ", added as (
                insert into exec_output
                    (org_id, session_id, operation_id, stream, position, content, raw_end)
                select o.org_id, o.session_id, o.operation_id, new.stream, new.position, new.content, new.raw_end
                from held
                join operation o on o.org_id = $1 and o.session_id = held.session_id
                    and o.operation_id = $4 and o.completed_at is null
                cross join unnest($5::text[], $6::bigint[], $7::text[], $8::bigint[])
                    as new (stream, position, content, raw_end)
                on conflict do nothing
             )
             select session_id from held",
        ))
        .bind(fence.org.uuid())
        .bind(fence.session.uuid())
        .bind(fence.epoch)
        .bind(operation.uuid())
        .bind(streams)
        .bind(positions)
        .bind(contents)
        .bind(raw_ends)
        .fetch_optional(&self.system)
        .await?;
        Ok(row.is_some())
    }
}
