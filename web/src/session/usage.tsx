// Bar chart of usage by turn: tokens by kind, or cost.
import { useState } from "react";
import { count, dollars, tokens } from "../parts/format";
import type { Tally } from "../timeline/rows";

const KINDS = [
  ["cache_read_tokens", "Cache read"],
  ["cache_write_tokens", "Cache write"],
  ["input_tokens", "Input"],
  ["output_tokens", "Output"],
] as const;

const HEIGHT = 72;
const WIDTH = 14;
const GAP = 4;
/** Number of newest turns that are drawn; the log has all numbers. */
const TURNS_MAX = 24;

type Measure = "tokens" | "cost";
type Turn = Tally["usage"][number];

const whole = (measure: Measure, turn: Turn) => (measure === "cost" ? turn.cost_micros : tokens(turn.usage));
const said = (measure: Measure, turn: Turn) =>
  measure === "cost" ? dollars(turn.cost_micros) : `${count(tokens(turn.usage))} tokens`;

export function UsageChart({ turns }: { turns: Tally["usage"] }) {
  const [measure, setMeasure] = useState<Measure>("tokens");
  const drawn = turns.slice(-TURNS_MAX);
  const highest = Math.max(1, ...drawn.map((turn) => whole(measure, turn)));
  if (drawn.length === 0) return null;
  const all = drawn.map((turn) => `turn ${turn.turn}: ${said(measure, turn)}`).join(", ");
  const width = drawn.length * (WIDTH + GAP);
  return (
    <figure className="chart">
      <div className="choice" role="group" aria-label="Measure of the chart">
        {(["tokens", "cost"] as const).map((one) => (
          <button key={one} type="button" className="plain small" aria-pressed={one === measure} onClick={() => setMeasure(one)}>
            {one === "tokens" ? "Tokens by turn" : "Cost by turn"}
          </button>
        ))}
      </div>
      <svg viewBox={`0 0 ${width} ${HEIGHT}`} width={width} height={HEIGHT} role="img" aria-label={all}>
        {drawn.map((turn, at) => (
          <Column key={turn.turn} turn={turn} measure={measure} x={at * (WIDTH + GAP)} highest={highest} />
        ))}
      </svg>
      {measure === "tokens" && (
        <figcaption>
          {KINDS.map(([kind, label]) => (
            <span key={kind} data-kind={kind}>
              <i aria-hidden />
              {label}
            </span>
          ))}
        </figcaption>
      )}
    </figure>
  );
}

function Column(props: { turn: Turn; measure: Measure; x: number; highest: number }) {
  const { turn, measure } = props;
  const parts: [string, number][] =
    measure === "cost" ? [["cost", turn.cost_micros]] : KINDS.map(([kind]) => [kind, turn.usage[kind] ?? 0]);
  let top = HEIGHT;
  return (
    <g>
      <title>{`Turn ${turn.turn}: ${said(measure, turn)}`}</title>
      {parts.map(([kind, value]) => {
        const height = (value / props.highest) * HEIGHT;
        top -= height;
        return <rect key={kind} data-kind={kind} x={props.x} y={top} width={WIDTH} height={height} />;
      })}
    </g>
  );
}
