// Numbers, times and words, formatted for display.

// No "tomorrow": a day and a half from a Saturday evening is a Monday.
const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });
const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
  ["second", 1],
];

/** "3 min ago". */
export function ago(ts: string, now: number): string {
  const seconds = Math.round((Date.parse(ts) - now) / 1000);
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  // Clocks differ by a second or two, and the clock of this page ticks once a second.
  return Math.abs(seconds) < 3 ? "now" : relative.format(Math.round(seconds / size), unit);
}

export function clock(ts: string): string {
  return new Date(ts).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** "840 ms", "3.2 s", "4 min 5 s", "2 h 3 min". */
export function span(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1_000);
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3_600)} h ${Math.floor((seconds % 3_600) / 60)} min`;
}

export const count = (value: number): string => value.toLocaleString("en");

/** "12.3k". */
export function short(value: number): string {
  return Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

/** "840 bytes", "3.2 KiB". */
export function bytes(value: number): string {
  if (value < 1_024) return value === 1 ? "1 byte" : `${value} bytes`;
  const power = Math.min(4, Math.floor(Math.log2(value) / 10));
  const scaled = value / 1_024 ** power;
  return `${scaled.toFixed(scaled < 10 ? 1 : 0)} ${["KiB", "MiB", "GiB", "TiB"][power - 1]}`;
}

export const words = (name: string): string => name.replaceAll("_", " ");

const KINDS = ["input_tokens", "cache_write_tokens", "cache_read_tokens", "output_tokens"] as const;

/** Sum of all tokens, as the `tokens` limit counts them. */
export function tokens(usage: { [kind in (typeof KINDS)[number]]?: number }): number {
  return KINDS.reduce((sum, kind) => sum + (usage[kind] ?? 0), 0);
}

/** Micro-dollars as dollars: in cents, with four digits below one dollar where cents are too coarse. */
export function dollars(micros: number): string {
  if (micros > 0 && micros < 50) return "<$0.0001";
  const digits = micros % 10_000 === 0 || Math.abs(micros) >= 1_000_000 ? 2 : 4;
  return (micros / 1_000_000).toLocaleString("en", {
    style: "currency",
    currency: "USD",
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}
