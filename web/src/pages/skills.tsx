// Versions of skills: uploaded, downloaded, deleted.
import { useRef } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, requestPath, type Schemas, take } from "../api/client";
import { Failure } from "../api/failure";
import { saveAs } from "../api/files";
import { Age, Confirmed, Empty, Loading, More, Trouble } from "../parts/basics";
import { useFilters } from "../parts/filters";
import { FilterField } from "../parts/form";
import { bytes, count } from "../parts/format";
import { useList } from "../parts/lists";
import { visible } from "../parts/text";

type Skill = Schemas["SkillView"];

const SKILLS = ["skills"];
/** Largest archive of a skill, in bytes; the service's own limit. */
const SKILL_BYTES_MAX = 30 << 20;

export function SkillsPage() {
  const queries = useQueryClient();
  const [chosen, choose] = useFilters<"name">();
  const name = chosen("name");
  const { query, list } = useList<Skill>([...SKILLS, { name }], (cursor, signal) =>
    take(api.GET("/v3/skills", { params: { query: { name, limit: 100, cursor } }, signal })),
  );
  const uploading = useMutation({
    mutationFn: upload,
    onSuccess: () => queries.invalidateQueries({ queryKey: SKILLS }),
  });
  return (
    <>
      <div className="head">
        <h1>Skills</h1>
        <UploadButton isUploading={uploading.isPending} onChoose={uploading.mutate} />
      </div>
      <Trouble error={uploading.error} />
      {uploading.data && (
        <p role="status">
          Stored as version {uploading.data.version} of {uploading.data.name}.
        </p>
      )}
      <form className="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <FilterField label="Name" hint="pdf" value={name} onChange={(value) => choose("name", value)} />
      </form>
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && list.length === 0 && <NoSkills isFiltered={Boolean(name)} />}
      <ul className="cards">
        {list.map((skill) => (
          <Card key={skill.id} skill={skill} />
        ))}
      </ul>
      <More query={query} />
    </>
  );
}

function NoSkills({ isFiltered }: { isFiltered: boolean }) {
  if (isFiltered) {
    return (
      <Empty title="No skill has this name">
        <p>Change or clear the filter above.</p>
      </Empty>
    );
  }
  return (
    <Empty title="No skills yet">
      <p>
        A skill is a folder with instructions and files for one kind of task. The agent reads it when a task fits its
        description. The folder has the file <code>SKILL.md</code>, whose header has <code>name</code> and{" "}
        <code>description</code>.
      </p>
      <p>
        Pack the folder with <code>tar -C FOLDER -cf skill.tar .</code> and upload the archive. Then add the skill to an agent.
      </p>
    </Empty>
  );
}

/** Uploads an archive. Throws a `Failure`. */
async function upload(file: File): Promise<Skill> {
  if (file.size > SKILL_BYTES_MAX) throw Failure.invalid("The archive has more than 30 MiB.");
  // A request whose file is a directory or was removed fails like one without a network.
  const archive = await file.arrayBuffer().catch(() => {
    throw Failure.invalid("The file cannot be read. Upload it again.");
  });
  const headers = { "Content-Type": "application/x-tar" };
  return take(api.POST("/v3/skills", { headers, body: "", bodySerializer: () => archive }));
}

function UploadButton({ isUploading, onChoose }: { isUploading: boolean; onChoose: (file: File) => void }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={input}
        type="file"
        accept=".tar,application/x-tar"
        hidden
        onChange={({ target }) => {
          const file = target.files?.[0];
          if (file) onChoose(file);
          // The same file can be chosen again after it was changed.
          target.value = "";
        }}
      />
      <button type="button" className="main" disabled={isUploading} onClick={() => input.current?.click()}>
        {isUploading ? "Uploading…" : "Upload a tar archive"}
      </button>
    </>
  );
}

function Card({ skill }: { skill: Skill }) {
  const queries = useQueryClient();
  const remove = useMutation({
    mutationFn: () => take(api.DELETE("/v3/skills/{skill_id}", { params: { path: { skill_id: skill.id } } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: SKILLS }),
  });
  const download = useMutation({
    mutationFn: async () => {
      const response = await requestPath(`/v3/skills/${encodeURIComponent(skill.id)}/content`);
      const archive = await response.blob().catch(() => {
        throw Failure.unreachable();
      });
      saveAs([archive], `${skill.name}-${skill.version}.tar`);
    },
  });
  return (
    <li>
      <strong>{skill.name}</strong>
      <span className="quiet">version {skill.version}</span>
      <span className="quiet">{skill.files === 1 ? "1 file" : `${count(skill.files)} files`}</span>
      <span className="quiet">{bytes(skill.bytes)}</span>
      <span className="quiet grow">
        <Age ts={skill.created_at} />
      </span>
      <button type="button" disabled={download.isPending} onClick={() => download.mutate()}>
        Download
      </button>
      <Confirmed label="Delete" sure="Confirm delete" disabled={remove.isPending} onConfirm={() => remove.mutate()} />
      <p className="whole">{visible(skill.description)}</p>
      <Trouble error={remove.error ?? download.error} />
    </li>
  );
}
