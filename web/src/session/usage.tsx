// Tokens of each turn as stacked columns: what was read, what the cache gave, what
// was written.
import { count, tokens } from "../parts/format";
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
/** The newest ones; a chart is for the shape, the log has the numbers. */
const TURNS_MAX = 24;

export function UsageChart({ turns }: { turns: Tally["usage"] }) {
  const shown = turns.slice(-TURNS_MAX);
  const highest = Math.max(1, ...shown.map(({ usage }) => tokens(usage)));
  if (shown.length === 0) return null;
  const said = shown.map(({ turn, usage }) => `turn ${turn}: ${count(tokens(usage))}`).join(", ");
  const width = shown.length * (WIDTH + GAP);
  return (
    <figure className="chart">
      <svg viewBox={`0 0 ${width} ${HEIGHT}`} width={width} height={HEIGHT} role="img" aria-label={`Tokens by turn: ${said}`}>
        {shown.map(({ turn, usage }, at) => (
          <Column key={turn} turn={turn} usage={usage} x={at * (WIDTH + GAP)} highest={highest} />
        ))}
      </svg>
      <figcaption>
        {KINDS.map(([kind, label]) => (
          <span key={kind} data-kind={kind}>
            <i aria-hidden />
            {label}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}

function Column(props: { turn: number; usage: Record<string, number>; x: number; highest: number }) {
  let top = HEIGHT;
  return (
    <g>
      <title>{`Turn ${props.turn}: ${count(tokens(props.usage))} tokens`}</title>
      {KINDS.map(([kind]) => {
        const height = ((props.usage[kind] ?? 0) / props.highest) * HEIGHT;
        top -= height;
        return <rect key={kind} data-kind={kind} x={props.x} y={top} width={WIDTH} height={height} />;
      })}
    </g>
  );
}
