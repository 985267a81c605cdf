// Schedules of an agent, and their runs.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { Age, Badge, Confirmed, Dialog, Empty, More, Trouble } from "../parts/basics";
import { words } from "../parts/format";
import { ListPage } from "../parts/list-page";
import { useList } from "../parts/lists";
import { ScheduleForm } from "./schedule-form";

type Schedule = Schemas["Schedule"];
type Run = Schemas["ScheduleRun"];

export const schedulesOf = (agent: string) => ["agent", agent, "schedules"];

export function Schedules({ agent }: { agent: string }) {
  const [open, setOpen] = useState<"new" | Schedule>();
  const { query, list } = useList<Schedule>(
    schedulesOf(agent),
    (cursor, signal) =>
      take(
        api.GET("/v3/agents/{agent_id}/schedules", {
          params: { path: { agent_id: agent }, query: { limit: 100, cursor } },
          signal,
        }),
      ),
    10_000,
  );
  const close = () => setOpen(undefined);
  return (
    <>
      <ListPage
        title="Schedules"
        heading="h2"
        add="New schedule"
        onAdd={() => setOpen("new")}
        of={{ query, list }}
        empty={
          <Empty title="No schedules yet">
            <p>
              A schedule sends the same input to this agent at fixed times. Each run creates a session or wakes an existing
              one.
            </p>
            <p>For example, “0 7 * * MON-FRI” runs a report at 7 on weekdays in your time zone.</p>
          </Empty>
        }
      >
        <ul className="cards">
          {list.map((schedule) => (
            <Card key={schedule.id} schedule={schedule} onEdit={() => setOpen(schedule)} />
          ))}
        </ul>
      </ListPage>
      {open && (
        <Dialog title={open === "new" ? "New schedule" : "Edit the schedule"} onClose={close}>
          <ScheduleForm agent={agent} schedule={open === "new" ? undefined : open} onDone={close} />
        </Dialog>
      )}
    </>
  );
}

/** Input of a run as short text. */
function told(input: Schedule["input"]): string {
  if (typeof input === "string") return input;
  return typeof input.text === "string" ? input.text : JSON.stringify(input);
}

function Card({ schedule, onEdit }: { schedule: Schedule; onEdit: () => void }) {
  const queries = useQueryClient();
  const [showsRuns, setShowsRuns] = useState(false);
  const params = { path: { agent_id: schedule.agent_id, schedule_id: schedule.id } };
  const onSuccess = () => queries.invalidateQueries({ queryKey: schedulesOf(schedule.agent_id) });
  const turn = useMutation({
    mutationFn: () =>
      take(api.PATCH("/v3/agents/{agent_id}/schedules/{schedule_id}", { params, body: { enabled: !schedule.enabled } })),
    onSuccess,
  });
  const fire = useMutation({
    mutationFn: () => take(api.POST("/v3/agents/{agent_id}/schedules/{schedule_id}/fire", { params })),
    onSuccess: () => {
      setShowsRuns(true);
      return onSuccess();
    },
  });
  const remove = useMutation({
    mutationFn: () => take(api.DELETE("/v3/agents/{agent_id}/schedules/{schedule_id}", { params })),
    onSuccess,
  });
  return (
    <li>
      <strong>{schedule.title || "Untitled"}</strong>
      <span className="mono">{schedule.cron}</span>
      <span className="quiet">{schedule.time_zone}</span>
      <span className="quiet grow">
        {schedule.next_fire_at && (
          <>
            next <Age ts={schedule.next_fire_at} />
          </>
        )}
      </span>
      {!schedule.enabled && (
        <span className="badge" data-tone={schedule.paused_reason ? "bad" : "warn"}>
          <i aria-hidden />
          {schedule.paused_reason ? `paused: ${words(schedule.paused_reason)}` : "paused"}
        </span>
      )}
      {schedule.enabled && schedule.consecutive_failures > 0 && (
        <span className="badge" data-tone="warn">
          <i aria-hidden />
          {schedule.consecutive_failures === 1 ? "the last run failed" : `${schedule.consecutive_failures} runs failed in a row`}
        </span>
      )}
      <p className="whole clamp">{told(schedule.input)}</p>
      {schedule.session_id && (
        <p className="whole quiet">
          wakes <Link href={`/sessions/${schedule.session_id}`}>{schedule.session_id}</Link>
        </p>
      )}
      <div className="actions whole">
        <button type="button" disabled={fire.isPending} onClick={() => fire.mutate()}>
          Run now
        </button>
        <button type="button" disabled={turn.isPending} onClick={() => turn.mutate()}>
          {schedule.enabled ? "Pause" : "Resume"}
        </button>
        <button type="button" onClick={onEdit}>
          Edit
        </button>
        <Confirmed label="Delete" sure="Confirm delete" disabled={remove.isPending} onConfirm={() => remove.mutate()} />
        <button type="button" className="plain" aria-expanded={showsRuns} onClick={() => setShowsRuns(!showsRuns)}>
          Runs
        </button>
      </div>
      <Trouble error={turn.error ?? fire.error ?? remove.error} />
      {showsRuns && <Runs schedule={schedule} />}
    </li>
  );
}

function Runs({ schedule }: { schedule: Schedule }) {
  const { query, list } = useList<Run>(
    [...schedulesOf(schedule.agent_id), schedule.id, "runs"],
    (cursor, signal) =>
      take(
        api.GET("/v3/agents/{agent_id}/schedules/{schedule_id}/runs", {
          params: { path: { agent_id: schedule.agent_id, schedule_id: schedule.id }, query: { limit: 20, cursor } },
          signal,
        }),
      ),
    3_000,
  );
  return (
    <div className="whole">
      <Trouble error={query.error} />
      {query.isSuccess && list.length === 0 && <p className="quiet">No runs yet. “Run now” starts one immediately.</p>}
      <ul className="runs" aria-label="Runs">
        {list.map((run) => (
          <li key={run.id}>
            <Badge of={run.state} />
            <Age ts={run.slot} />
            {run.manual && <span className="quiet">manual</span>}
            {run.session_id && <Link href={`/sessions/${run.session_id}`}>session</Link>}
            {run.error && (
              <span>
                {run.error.message} <span className="mono quiet">{run.error.code}</span>
              </span>
            )}
          </li>
        ))}
      </ul>
      <More query={query} />
    </div>
  );
}
