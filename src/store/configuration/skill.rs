//! Versions of skills, and the sessions that use them.

use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    base::{Id, Timestamp, limit::FILE_UNUSED_AFTER},
    domain::{
        OrgId, Session, SkillId,
        skill::{PinnedSkill, SkillChoice},
    },
    store::{Error, Result, Store, Tx},
};

/// A version that has no number yet.
#[derive(Clone, Debug)]
pub struct NewSkill {
    pub id: SkillId,
    pub name: String,
    pub description: String,
    /// Of its archive, in hex.
    pub sha256: String,
    pub bytes: u64,
    pub files: u32,
    pub created_at: Timestamp,
}

/// A version of a skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    pub id: SkillId,
    pub name: String,
    pub version: i32,
    pub description: String,
    pub sha256: String,
    pub bytes: u64,
    pub files: u32,
    pub created_at: Timestamp,
}

#[derive(FromRow)]
struct Row {
    skill_id: Uuid,
    name: String,
    version: i32,
    description: String,
    sha256: String,
    bytes: i64,
    files: i32,
    created_at: Timestamp,
}

impl From<Row> for Skill {
    fn from(row: Row) -> Self {
        let Row { skill_id, name, version, description, sha256, bytes, files, created_at } = row;
        let (bytes, files) = (bytes.cast_unsigned(), files.cast_unsigned());
        Self { id: Id::from_uuid(skill_id), name, version, description, sha256, bytes, files, created_at }
    }
}

macro_rules! skills {
    ($rest:literal) => {
        concat!(
            "select skill_id, name, version, description, sha256, bytes, files, created_at
             from skill
             where org_id = $1 and version is not null ",
            $rest
        )
    };
}

impl Tx {
    /// Stores the row of a version without a number.
    pub async fn insert_skill(&mut self, skill: &NewSkill) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "insert into skill (org_id, skill_id, name, description, sha256, bytes, files, created_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(org)
        .bind(skill.id.uuid())
        .bind(&skill.name)
        .bind(&skill.description)
        .bind(&skill.sha256)
        .bind(skill.bytes.cast_signed())
        .bind(skill.files.cast_signed())
        .bind(skill.created_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Gives a version the next number of its name. If the newest version has the same bytes, it is returned instead, and
    /// this one is deleted. Also returns whether the version is new.
    ///
    /// # Errors
    /// `NotFound` if it was deleted because it had no number for too long.
    pub async fn publish_skill(&mut self, skill: SkillId) -> Result<(Skill, bool)> {
        let org = self.org.uuid();
        // The lock on the row of the name orders uploads of one skill.
        let (name, sha256): (String, String) = sqlx::query_as(
            "with own as (
                 select name, sha256 from skill where org_id = $1 and skill_id = $2 for update
             ), counted as (
                 insert into skill_name (org_id, name)
                 select $1, name from own
                 on conflict (org_id, name) do update set last_version = skill_name.last_version
             )
             select name, sha256 from own",
        )
        .bind(org)
        .bind(skill.uuid())
        .fetch_one(self.connection())
        .await?;
        // A new statement sees what another upload committed before the lock was free.
        if let Some(same) = self.newest_skill(&name).await?.filter(|newest| newest.sha256 == sha256) {
            sqlx::query("delete from skill where org_id = $1 and skill_id = $2")
                .bind(org)
                .bind(skill.uuid())
                .execute(self.connection())
                .await?;
            return Ok((same, false));
        }
        let row: Row = sqlx::query_as(
            "with counted as (
                 update skill_name set last_version = last_version + 1
                 where org_id = $1 and name = $3
                 returning last_version
             )
             update skill s set version = c.last_version
             from counted c
             where s.org_id = $1 and s.skill_id = $2
             returning s.skill_id, s.name, s.version, s.description, s.sha256, s.bytes, s.files, s.created_at",
        )
        .bind(org)
        .bind(skill.uuid())
        .bind(&name)
        .fetch_one(self.connection())
        .await?;
        Ok((row.into(), true))
    }

    /// Reads the newest version of a name. By the unique index `skill_version`.
    pub async fn newest_skill(&mut self, name: &str) -> Result<Option<Skill>> {
        let org = self.org.uuid();
        let row: Option<Row> = sqlx::query_as(skills!("and name = $2 order by version desc limit 1"))
            .bind(org)
            .bind(name)
            .fetch_optional(self.connection())
            .await?;
        Ok(row.map(Skill::from))
    }

    /// Reads one version and locks it, and the others of its name against deletion, until the transaction ends.
    pub async fn lock_skill(&mut self, skill: SkillId) -> Result<Skill> {
        let org = self.org.uuid();
        let name = self.skill(skill).await?.name;
        sqlx::query("select from skill_name where org_id = $1 and name = $2 for update")
            .bind(org)
            .bind(&name)
            .execute(self.connection())
            .await?;
        let row: Row = sqlx::query_as(skills!("and skill_id = $2 for update"))
            .bind(org)
            .bind(skill.uuid())
            .fetch_one(self.connection())
            .await?;
        Ok(row.into())
    }

    /// Returns the bytes of all versions of all skills of the organization.
    pub async fn skill_bytes(&mut self) -> Result<u64> {
        let org = self.org.uuid();
        let bytes: i64 =
            sqlx::query_scalar("select coalesce(sum(bytes), 0)::bigint from skill where org_id = $1")
                .bind(org)
                .fetch_one(self.connection())
                .await?;
        Ok(bytes.cast_unsigned())
    }

    /// Reads one version.
    pub async fn skill(&mut self, skill: SkillId) -> Result<Skill> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(skills!("and skill_id = $2"))
            .bind(org)
            .bind(skill.uuid())
            .fetch_one(self.connection())
            .await?;
        Ok(row.into())
    }

    /// Returns a page of versions, newest first, of one name if it is given.
    pub async fn skills(
        &mut self,
        name: Option<&str>,
        below: Option<SkillId>,
        limit: i64,
    ) -> Result<Vec<Skill>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(skills!(
            "and ($2::uuid is null or skill_id < $2) and ($4::text is null or name = $4)
             order by skill_id desc limit $3"
        ))
        .bind(org)
        .bind(below.map(Id::uuid))
        .bind(limit)
        .bind(name)
        .fetch_all(self.connection())
        .await?;
        Ok(rows.into_iter().map(Skill::from).collect())
    }

    /// Returns the versions that are chosen, and protects them from deletion until the transaction ends. The inner `Err` is
    /// the index of the first one that does not exist. By the unique index `skill_version`.
    pub async fn pin_skills(
        &mut self,
        choices: &[SkillChoice],
    ) -> Result<std::result::Result<Vec<PinnedSkill>, usize>> {
        let org = self.org.uuid();
        let mut pinned = Vec::with_capacity(choices.len());
        for (index, choice) in choices.iter().enumerate() {
            let row: Option<Row> = sqlx::query_as(skills!(
                "and name = $2 and ($3::integer is null or version = $3)
                 order by version desc
                 limit 1
                 for key share"
            ))
            .bind(org)
            .bind(&choice.skill)
            .bind(choice.version.number())
            .fetch_optional(self.connection())
            .await?;
            let Some(Row { skill_id, name, version, description, sha256, .. }) = row else {
                return Ok(Err(index));
            };
            let skill_id = Id::from_uuid(skill_id);
            pinned.push(PinnedSkill { skill_id, name, version, description, sha256 });
        }
        Ok(Ok(pinned))
    }

    /// Records the skills that these sessions use. One that does not exist is left out.
    pub async fn use_skills(&mut self, sessions: impl Iterator<Item = &Session>) -> Result<()> {
        let org = self.org.uuid();
        let uses = sessions.flat_map(|session| {
            let agent = session.created.agent_snapshot.as_ref();
            let skills = agent.into_iter().flat_map(|agent| &agent.pinned_skills);
            skills.map(|skill| (session.id.uuid(), skill.skill_id.uuid()))
        });
        let (sessions, skills): (Vec<_>, Vec<_>) = uses.unzip();
        if skills.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "insert into session_skill (org_id, session_id, skill_id)
             select s.org_id, u.session_id, s.skill_id
             from unnest($2::uuid[], $3::uuid[]) u (session_id, skill_id)
             join skill s on s.org_id = $1 and s.skill_id = u.skill_id
             join session using (org_id, session_id)
             on conflict do nothing",
        )
        .bind(org)
        .bind(&sessions)
        .bind(&skills)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// As [`Tx::use_skills`] for a session that used others before.
    pub async fn replace_skills(&mut self, session: &Session) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query("delete from session_skill where org_id = $1 and session_id = $2")
            .bind(org)
            .bind(session.id.uuid())
            .execute(self.connection())
            .await?;
        self.use_skills(std::iter::once(session)).await
    }

    /// Returns the name of an agent whose active revision needs this version: it names its number, or there is no other.
    pub async fn agent_with_skill(&mut self, skill: &Skill) -> Result<Option<String>> {
        let org = self.org.uuid();
        let agent = sqlx::query_scalar(
            "select a.name
             from agent a
             join revision r on r.org_id = a.org_id and r.revision_id = a.active_revision_id
             cross join lateral json_array_elements(
                 case json_typeof(r.turn_settings -> 'skills')
                     when 'array' then r.turn_settings -> 'skills'
                     else '[]'
                 end
             ) chosen
             where a.org_id = $1
               and a.deleted_at is null
               and chosen ->> 'skill' = $2
               and (
                   chosen ->> 'version' = $3::integer::text
                   or (chosen ->> 'version' = 'latest' and not exists (
                       select from skill s
                       where s.org_id = $1 and s.name = $2 and s.version is not null and s.version <> $3
                   ))
               )
             limit 1",
        )
        .bind(org)
        .bind(&skill.name)
        .bind(skill.version)
        .fetch_optional(self.connection())
        .await?;
        Ok(agent)
    }

    /// Deletes a version; its blob is removed later.
    ///
    /// # Errors
    /// `Conflict("session_skill_exists")` while a session uses it.
    pub async fn delete_skill(&mut self, skill: SkillId) -> Result<()> {
        let org = self.org.uuid();
        let deleted = sqlx::query("delete from skill where org_id = $1 and skill_id = $2")
            .bind(org)
            .bind(skill.uuid())
            .execute(self.connection())
            .await?;
        if deleted.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }
}

impl Store {
    /// Deletes versions that got no number. Returns how many. By the index `skill_unpublished`.
    pub async fn delete_unpublished_skills(&self, limit: i64) -> Result<u64> {
        let deleted = sqlx::query(
            "delete from skill
             where (org_id, skill_id) in (
                 select org_id, skill_id from skill
                 where version is null and created_at < now() - $1 * interval '1 second'
                 order by created_at
                 limit $2
                 for update skip locked
             )",
        )
        .bind(FILE_UNUSED_AFTER.as_secs_f64())
        .bind(limit)
        .execute(&self.system)
        .await?;
        Ok(deleted.rows_affected())
    }
}

/// Returns the blob key of the archive of a version.
pub(crate) fn content_key(org: OrgId, skill: SkillId) -> String {
    format!("{}/{}/content", org.uuid(), skill.uuid())
}
