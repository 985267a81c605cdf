// Form of a schedule: times, input, overlap policy.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Check, Form, readInput, Select, TextArea, TextField } from "../parts/form";
import { schedulesOf } from "./schedules";
import { EnvironmentAndLimits, readTemplate, templateForm, TitleField } from "./template";

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
    session_id: schedule?.session_id ?? "",
    ...templateForm(schedule),
  };
}

type Values = ReturnType<typeof begun>;

/** Reads the form; throws where the input should be a JSON object and is not. */
function read(form: Values, schedule?: Schedule): Schemas["CreateSchedule"] {
  const input = readInput(form.input, form.isObject);
  const when = { cron: form.cron.trim(), time_zone: form.time_zone.trim(), overlap: form.overlap, input };
  if (form.session_id.trim()) return schedule ? when : { ...when, session_id: form.session_id.trim() };
  return { ...when, ...readTemplate(form, schedule) };
}

export function ScheduleForm(props: { agent: string; schedule?: Schedule; onDone: () => void }) {
  const { agent, schedule } = props;
  const queries = useQueryClient();
  const [form, setForm] = useState(() => begun(schedule));
  const set = (change: Partial<Values>) => setForm({ ...form, ...change });
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
  const wakes = form.session_id.trim() !== "";
  return (
    <Form send={() => save.mutate(read(form, schedule))} call={save} label={schedule ? "Save" : "Create"}>
      <div className="row">
        <TextField
          label="Times"
          hint="minute hour day month weekday"
          className="mono" required spellCheck={false} value={form.cron} onChange={(cron) => set({ cron })}
        />
        <TextField label="Time zone" required suggestions={ZONES} value={form.time_zone} onChange={(time_zone) => set({ time_zone })} />
      </div>
      <p className="actions" role="group" aria-label="Common times">
        {TIMES.map(([cron, said]) => (
          <button key={cron} type="button" className="small" onClick={() => set({ cron })}>
            {said}
          </button>
        ))}
      </p>
      <TextArea
        label="Input"
        hint="Sent on each run."
        rows={4} required className={form.isObject ? "mono" : ""} value={form.input} onChange={(input) => set({ input })}
      />
      <Check label="Parse the input as a JSON object" value={form.isObject} onChange={(isObject) => set({ isObject })} />
      <Select label="While the previous run is active" value={form.overlap} onChange={(overlap) => set({ overlap: overlap as Values["overlap"] })}>
        <option value="skip">skip the new run</option>
        <option value="allow">start the new run as well</option>
      </Select>
      {!wakes && <TitleField form={form} set={set} />}
      <details>
        <summary>Session, environment, limits</summary>
        {!schedule && (
          <TextField
            label="Session to wake"
            hint="Session id. Each run sends the input to this session. Empty: each run creates a session."
            className="mono" value={form.session_id} onChange={(session_id) => set({ session_id })}
          />
        )}
        {!wakes && <EnvironmentAndLimits form={form} set={set} />}
      </details>
    </Form>
  );
}
