// Usage and cost by day, agent and model.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Empty, Loading, More, Trouble } from "../parts/basics";
import { bytes, count, dollars, short, tokens } from "../parts/format";
import { useList } from "../parts/lists";
import { DayChart, type Bar } from "../parts/day-chart";
import { useAgents } from "./agents";

type Row = Schemas["UsageRow"];
type By = "day" | "agent" | "model";

const SPANS = [7, 28, 90] as const;
const DAY_MS = 86_400_000;

const dayOf = (at: number) => new Date(at).toISOString().slice(0, 10);

/** Total cost, or the sum of the parts with a known price. */
function microsOf({ usage: { cost } }: Row): number {
  const parts = [cost?.model_micros, cost?.sandbox_cpu_micros, cost?.sandbox_memory_micros, cost?.fee_micros];
  return cost?.total_micros ?? parts.reduce<number>((sum, part) => sum + (part ?? 0), 0);
}

export function UsagePage() {
  const [days, setDays] = useState<number>(28);
  const [by, setBy] = useState<By>("model");
  const [measure, setMeasure] = useState<"cost" | "tokens">("tokens");
  const today = Date.now();
  const range = { from: dayOf(today - (days - 1) * DAY_MS), to: dayOf(today) };
  // At most 90 days, which fit in one page.
  const daily = useQuery({
    queryKey: ["usage", "day", range],
    queryFn: ({ signal }) =>
      take(api.GET("/v3/usage", { params: { query: { ...range, by: "day", limit: 500 } }, signal })),
  });
  const rows = daily.data?.data ?? [];
  const value = measure === "cost" ? microsOf : (row: Row) => tokens({ ...row.usage });
  const said = measure === "cost" ? dollars : count;
  const byDay = new Map(rows.map((row) => [row.day, row]));
  const bars: Bar[] = Array.from({ length: days }, (_, at) => {
    const day = dayOf(today - (days - 1 - at) * DAY_MS);
    const row = byDay.get(day);
    return { day, value: row ? value(row) : 0 };
  });
  return (
    <>
      <div className="head">
        <h1>Usage</h1>
      </div>
      <Budget />
      <Capacity />
      <div className="filters">
        <Choice label="Days" value={String(days)} options={SPANS.map(String)} onChange={(value) => setDays(Number(value))} />
        <Choice label="Measure" value={measure} options={["tokens", "cost"]} onChange={(value) => setMeasure(value as typeof measure)} />
      </div>
      <Trouble error={daily.error} retry={() => daily.refetch()} />
      {daily.isPending && <Loading />}
      {daily.isSuccess && rows.length === 0 && (
        <Empty title="No usage in this period">
          <p>
            Model calls, sandbox seconds and fees are counted here in real time. Deleting a session does not remove them.
          </p>
        </Empty>
      )}
      {rows.length > 0 && (
        <>
          <DayChart bars={bars} title={measure === "cost" ? "Cost by day" : "Tokens by day"} said={said} />
          <div className="head">
            <h2>Totals</h2>
            <Choice label="By" value={by} options={["model", "agent", "day"]} onChange={(value) => setBy(value as By)} />
          </div>
          <Sums key={by} by={by} range={range} />
        </>
      )}
    </>
  );
}

function Choice(props: { label: string; value: string; options: readonly string[]; onChange: (value: string) => void }) {
  return (
    <label>
      {props.label}{" "}
      <select value={props.value} onChange={(event) => props.onChange(event.target.value)}>
        {props.options.map((option) => (
          <option key={option}>{option}</option>
        ))}
      </select>
    </label>
  );
}

function Tiles({ of }: { of: readonly (readonly [string, string])[] }) {
  return (
    <dl className="totals tiles">
      {of.map(([label, value]) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Balance, and spend caps over trailing days. */
function Budget() {
  const query = useQuery({ queryKey: ["budget"], queryFn: ({ signal }) => take(api.GET("/v3/budget", { signal })) });
  const budget = query.data;
  if (!budget) return <Trouble error={query.error} />;
  const cap = (name: "days_1" | "days_7" | "days_28") => {
    const [spent, most] = [budget.spent[name] ?? 0, budget.spend_caps[name]];
    return most == null ? dollars(spent) : `${dollars(spent)} of ${dollars(most)}`;
  };
  const tiles = [
    ["Last day", cap("days_1")],
    ["Last 7 days", cap("days_7")],
    ["Last 28 days", cap("days_28")],
    ["Balance", budget.balance_micros == null ? "unlimited" : dollars(budget.balance_micros)],
  ] as const;
  return <Tiles of={tiles} />;
}

/** Use of the resources of sandboxes, with the maxima. */
function Capacity() {
  const query = useQuery({
    queryKey: ["capacity"],
    queryFn: ({ signal }) => take(api.GET("/v3/capacity", { signal })),
    refetchInterval: 10_000,
  });
  const now = query.data;
  if (!now) return <Trouble error={query.error} />;
  const share = ({ used, max }: Schemas["ResourceUse"], said: (value: number) => string) =>
    max == null ? said(used) : `${said(used)} of ${said(max)}`;
  const tiles = [
    ["Sandboxes", share(now.sandboxes, count)],
    ["Reserved memory", share(now.memory_bytes, bytes)],
    ["Checkpoints", share(now.checkpoint_bytes, bytes)],
    ["Images", share(now.image_bytes, bytes)],
    ["Sessions waiting", count(now.sessions_waiting)],
  ] as const;
  return <Tiles of={tiles} />;
}

function Sums({ by, range }: { by: By; range: { from: string; to: string } }) {
  const agents = useAgents();
  const names = new Map(agents.list.map(({ id, name }) => [id, name]));
  const { query, list } = useList<Row>(["usage", by, range], (cursor, signal) =>
    take(api.GET("/v3/usage", { params: { query: { ...range, by, limit: 100, cursor } }, signal })),
  );
  const nameOf = (row: Row) => row.day ?? row.model ?? names.get(row.agent_id ?? "") ?? row.agent_id ?? "none";
  return (
    <>
      <Trouble error={query.error} />
      <div className="table-wrap" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">{{ day: "Day", agent: "Agent", model: "Model" }[by]}</th>
              {["Model calls", "Tool calls", "Input", "Cache read", "Output", "Cost"].map((heading) => (
                <th key={heading} scope="col" className="number">
                  {heading}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {list.map((row) => (
              <Line key={nameOf(row)} name={nameOf(row)} usage={row.usage} />
            ))}
          </tbody>
        </table>
      </div>
      <More query={query} />
    </>
  );
}

function Line({ name, usage }: { name: string; usage: Row["usage"] }) {
  const total = usage.cost?.total_micros;
  const cells = [
    ["Model calls", count(usage.steps ?? 0)],
    ["Tool calls", count(usage.tool_calls ?? 0)],
    ["Input", short((usage.input_tokens ?? 0) + (usage.cache_write_tokens ?? 0))],
    ["Cache read", short(usage.cache_read_tokens ?? 0)],
    ["Output", short(usage.output_tokens ?? 0)],
    ["Cost", total == null ? "price unknown" : dollars(total)],
  ] as const;
  return (
    <tr>
      <td className="mono">{name}</td>
      {cells.map(([label, text]) => (
        <td key={label} data-label={label} className="number">
          {text}
        </td>
      ))}
    </tr>
  );
}
