// Form of a schedule: times, input, overlap policy.
import { type FormEvent, useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Field, Trouble } from "../parts/basics";
import { choice, chosen, EnvironmentSelect } from "../parts/environment-select";
import { formOf, LimitFields, limitsOf } from "../parts/limits";
import { schedulesOf } from "./schedules";

type Schedule = Schemas["Schedule"];

/** Common times; any cron expression of five fields can be typed. */
const TIMES = [
  ["0 * * * *", "hourly"],
  ["0 7 * * *", "daily at 7"],
  ["0 7 * * MON-FRI", "weekdays at 7"],
  ["0 9 * * MON", "Mondays at 9"],
  ["0 9 1 * *", "monthly on day 1"],
] as const;

const ZONES = ["UTC", ...Intl.supportedValuesOf("timeZone")];

function begun(schedule?: Schedule) {
  return {
    cron: schedule?.cron ?? "0 7 * * MON-FRI",
    time_zone: schedule?.time_zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone,
    input: typeof schedule?.input === "object" ? JSON.stringify(schedule.input, null, 2) : (schedule?.input ?? ""),
    isObject: typeof schedule?.input === "object",
    overlap: schedule?.overlap ?? ("skip" as Schemas["Overlap"]),
    title: schedule?.title ?? "",
    session_id: schedule?.session_id ?? "",
    environment: chosen(schedule?.environment),
    limits: formOf(schedule?.limits ?? {}),
  };
}

type Form = ReturnType<typeof begun>;

/** Reads the form; throws where the input should be a JSON object and is not. */
function read(form: Form, schedule?: Schedule): Schemas["CreateSchedule"] {
  const input = form.isObject ? (JSON.parse(form.input) as Record<string, unknown>) : form.input;
  const when = { cron: form.cron.trim(), time_zone: form.time_zone.trim(), overlap: form.overlap, input };
  if (form.session_id.trim()) return schedule ? when : { ...when, session_id: form.session_id.trim() };
  const limits = limitsOf(form.limits, schedule?.limits ?? {});
  return {
    ...when,
    title: form.title.trim() || null,
    ...(Object.keys(limits).length > 0 && { limits }),
    ...choice(form.environment),
  };
}

export function ScheduleForm(props: { agent: string; schedule?: Schedule; onDone: () => void }) {
  const { agent, schedule } = props;
  const queries = useQueryClient();
  const [form, setForm] = useState(() => begun(schedule));
  const [invalid, setInvalid] = useState(false);
  const set = (change: Partial<Form>) => setForm({ ...form, ...change });
  const save = useMutation({
    mutationFn: (body: Schemas["CreateSchedule"]): Promise<unknown> =>
      schedule
        ? take(
            api.PATCH("/v3/agents/{agent_id}/schedules/{schedule_id}", {
              params: { path: { agent_id: agent, schedule_id: schedule.id } },
              body,
            }),
          )
        : take(api.POST("/v3/agents/{agent_id}/schedules", { params: { path: { agent_id: agent } }, body })),
    onSuccess: () => {
      queries.invalidateQueries({ queryKey: schedulesOf(agent) });
      props.onDone();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    try {
      setInvalid(false);
      save.mutate(read(form, schedule));
    } catch {
      setInvalid(true);
    }
  };
  const wakes = form.session_id.trim() !== "";
  return (
    <form onSubmit={submit}>
      <div className="row">
        <Field label="Times" hint="minute hour day month weekday">
          {(id, hint) => (
            <input id={id} aria-describedby={hint} className="mono" required spellCheck={false} value={form.cron} onChange={(event) => set({ cron: event.target.value })} />
          )}
        </Field>
        <Field label="Time zone">
          {(id) => (
            <>
              <input id={id} required list="zones" value={form.time_zone} onChange={(event) => set({ time_zone: event.target.value })} />
              <datalist id="zones">
                {ZONES.map((zone) => (
                  <option key={zone} value={zone} />
                ))}
              </datalist>
            </>
          )}
        </Field>
      </div>
      <p className="actions" role="group" aria-label="Common times">
        {TIMES.map(([cron, said]) => (
          <button key={cron} type="button" className="small" onClick={() => set({ cron })}>
            {said}
          </button>
        ))}
      </p>
      <Field label="Input" hint="Sent on each run.">
        {(id, hint) => (
          <textarea id={id} aria-describedby={hint} rows={4} required className={form.isObject ? "mono" : ""} value={form.input} onChange={(event) => set({ input: event.target.value })} />
        )}
      </Field>
      <label className="check">
        <input type="checkbox" checked={form.isObject} onChange={(event) => set({ isObject: event.target.checked })} />
        Parse the input as a JSON object
      </label>
      <Field label="While the previous run is active">
        {(id) => (
          <select id={id} value={form.overlap} onChange={(event) => set({ overlap: event.target.value as Form["overlap"] })}>
            <option value="skip">skip the new run</option>
            <option value="allow">start the new run as well</option>
          </select>
        )}
      </Field>
      {!wakes && (
        <Field label="Title" hint="Title of the sessions that it creates.">
          {(id, hint) => <input id={id} aria-describedby={hint} value={form.title} onChange={(event) => set({ title: event.target.value })} />}
        </Field>
      )}
      <details>
        <summary>Session, environment, limits</summary>
        {!schedule && (
          <Field label="Session to wake" hint="Session id. Each run sends the input to this session. Empty: each run creates a session.">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} className="mono" value={form.session_id} onChange={(event) => set({ session_id: event.target.value })} />
            )}
          </Field>
        )}
        {!wakes && (
          <>
            <EnvironmentSelect value={form.environment} onChange={(environment) => set({ environment })} />
            <LimitFields values={form.limits} onChange={(limits) => set({ limits })} />
          </>
        )}
      </details>
      {invalid && (
        <p className="trouble" role="alert">
          The input is not a JSON object.
        </p>
      )}
      <Trouble error={save.error} />
      <footer>
        <button type="submit" className="main" disabled={save.isPending}>
          {schedule ? "Save" : "Create"}
        </button>
      </footer>
    </form>
  );
}
