// Bar chart with one value a day.
export interface Bar {
  day: string;
  value: number;
}

const HEIGHT = 160;
const WIDTH = 900;
const LEFT = 64;
const BOTTOM = 22;

/** Rounds up to 1, 2 or 5 times a power of ten. */
function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= value) ?? value;
}

export function DayChart({ bars, title, said }: { bars: Bar[]; title: string; said: (value: number) => string }) {
  const top = roundUp(Math.max(...bars.map(({ value }) => value)));
  const step = (WIDTH - LEFT) / bars.length;
  const sum = bars.reduce((sum, { value }) => sum + value, 0);
  const most = bars.reduce((most, bar) => (bar.value > most.value ? bar : most));
  const inWords = `${title}, ${bars.length} days: ${said(sum)} in all, most on ${most.day} with ${said(most.value)}`;
  const every = Math.ceil(bars.length / 8);
  return (
    <figure className="chart days">
      {/* A narrow page shows the newest days first. */}
      <div
        className="strip"
        tabIndex={0}
        role="group"
        aria-label="Chart"
        ref={(strip) => strip?.scrollTo({ left: strip.scrollWidth })}
      >
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT + BOTTOM}`} role="img" aria-label={inWords}>
          {[0, 0.5, 1].map((part) => (
            <g key={part}>
              <line x1={LEFT} x2={WIDTH} y1={HEIGHT * (1 - part) + 8} y2={HEIGHT * (1 - part) + 8} />
              <text x={LEFT - 8} y={HEIGHT * (1 - part) + 12} textAnchor="end">
                {said(top * part)}
              </text>
            </g>
          ))}
          {bars.map(({ day, value }, at) => {
            const height = (value / top) * HEIGHT;
            return (
              <g key={day}>
                <title>{`${day}: ${said(value)}`}</title>
                {/* The whole column reacts to the pointer, however small its value. */}
                <rect className="hit" x={LEFT + at * step} y={8} width={step} height={HEIGHT} />
                <rect x={LEFT + at * step + step * 0.12} y={HEIGHT + 8 - height} width={step * 0.76} height={height} />
                {at % every === 0 && (
                  <text x={LEFT + (at + 0.5) * step} y={HEIGHT + BOTTOM} textAnchor="middle">
                    {day.slice(5)}
                  </text>
                )}
              </g>
            );
          })}
        </svg>
      </div>
      <figcaption>{inWords}</figcaption>
    </figure>
  );
}
