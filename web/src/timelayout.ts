// Where things stand on a time axis: ticks, bars that stay visible however short they are, zoom, and sums. No page is needed.
export interface Span {
  kind: string;
  begin: number;
  end: number;
  going_on: boolean;
  sentence: string;
  next_step: string;
  count: number;
  by: string;
}

export interface TimelineRow {
  kind: "job" | "task" | "party" | "pod";
  label: string;
  spans: Span[];
  task: string;
  party: string;
  pod: string;
  phase: string;
  message: string;
  attempt: number;
  reported: boolean;
}

export interface AttemptWindow {
  number: number;
  begin: number;
  end: number;
  reason: string;
}

export interface Range {
  from: number;
  to: number;
}

export interface Placed {
  span: Span;
  x: number;
  width: number;
}

const STEPS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
export const LEAST = 5;
/** Seconds that fill the axis at the strongest zoom. */
const NEAREST = 0.2;

/** Seconds after the beginning of the axis, in round steps: about one for each `room` pixels. */
export function ticks(range: Range, origin: number, width: number, room = 90): number[] {
  const seconds = range.to - range.from;
  const most = Math.max(2, Math.floor(width / room));
  const step = STEPS.find((each) => seconds / each <= most) ?? Math.ceil(seconds / most / 604800) * 604800;
  const first = Math.ceil((range.from - origin) / step - 1e-9);
  const out: number[] = [];
  for (let at = first; at * step <= range.to - origin + 1e-9; at++) out.push(Number((at * step).toFixed(3)));
  return out;
}

/** Bars of a row in pixels. Each has at least `LEAST` of them, taken from longer neighbours: a short step beside a long one is seen. */
export function placed(spans: Span[], range: Range, width: number): Placed[] {
  const scale = width / Math.max(range.to - range.from, 1e-6);
  const shown = spans.filter((span) => span.end >= range.from && span.begin <= range.to).sort((a, b) => a.begin - b.begin);
  const out: Placed[] = [];
  let at = 0;
  for (const span of shown) {
    const begin = Math.max(0, (Math.max(span.begin, range.from) - range.from) * scale);
    const end = Math.min(width, (Math.min(span.end, range.to) - range.from) * scale);
    const x = Math.max(begin, at);
    out.push({ span, x, width: Math.max(LEAST, end - x) });
    at = x + Math.max(LEAST, end - x);
  }
  // What was pushed over the right edge is given room by those before it.
  let limit = width;
  for (let index = out.length - 1; index >= 0; index--) {
    const one = out[index] as Placed;
    if (one.x + one.width <= limit + 1e-6) break;
    one.width = Math.max(LEAST, Math.min(one.width, limit - one.x));
    one.x = Math.min(one.x, limit - one.width);
    limit = one.x;
  }
  return out;
}

/** The axis `factor` times as near, around a moment, within the whole. */
export function zoomed(range: Range, whole: Range, factor: number, around: number): Range {
  const seconds = Math.min(whole.to - whole.from, Math.max(NEAREST, (range.to - range.from) / factor));
  const share = (around - range.from) / Math.max(range.to - range.from, 1e-9);
  return within({ from: around - share * seconds, to: around + (1 - share) * seconds }, whole);
}

export function moved(range: Range, whole: Range, share: number): Range {
  const by = (range.to - range.from) * share;
  return within({ from: range.from + by, to: range.to + by }, whole);
}

function within(range: Range, whole: Range): Range {
  const seconds = Math.min(range.to - range.from, whole.to - whole.from);
  const from = Math.min(Math.max(range.from, whole.from), whole.to - seconds);
  return { from, to: from + seconds };
}

/** `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`. */
export function duration(seconds: number): string {
  const all = Math.max(0, seconds);
  if (all < 9.95) return `${Number(all.toFixed(1))} s`;
  if (all < 99.5) return `${Math.round(all)} s`;
  const whole = Math.round(all);
  if (whole < 3600) return parts(whole, 60, "min", "s");
  if (whole < 86400) return parts(Math.round(whole / 60), 60, "h", "min");
  return parts(Math.round(whole / 3600), 24, "d", "h");
}

function parts(amount: number, unit: number, big: string, small: string): string {
  const rest = amount % unit;
  return rest ? `${Math.floor(amount / unit)} ${big} ${rest} ${small}` : `${amount / unit} ${big}`;
}

/** As long as the axis needs it: `12.5 s`, `1:20`, `2:05:00`. */
export function tickLabel(seconds: number, step: number): string {
  if (seconds < 0) return "";
  if (step < 1) return `${seconds.toFixed(step < 0.1 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  const two = (number: number): string => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

export type Share = "waited" | "started" | "ran" | "ended";
const SHARES: Record<string, Share> = { run: "ran", start: "started", pull: "started", reserve: "waited", wait: "waited", queue: "waited", pause: "waited", check: "waited", agree: "waited", prepare: "started", end: "ended" };

const FIRST: Share[] = ["ran", "started", "ended", "waited"];

/** How long each kind of thing took; where several go on at once, work counts before waiting. What took no time is left out. */
export function shares(spans: Span[]): { share: Share; seconds: number }[] {
  const sums = new Map<Share, number>();
  const moments = [...new Set(spans.flatMap((span) => [span.begin, span.end]))].sort((a, b) => a - b);
  moments.slice(1).forEach((end, index) => {
    const begin = moments[index] as number;
    const found = new Set(spans.filter((span) => span.begin <= begin && span.end >= end).map((span) => SHARES[span.kind] ?? "ran"));
    const share = FIRST.find((each) => found.has(each)) ?? "waited";
    sums.set(share, (sums.get(share) ?? 0) + end - begin);
  });
  const order: Share[] = ["waited", "started", "ran", "ended"];
  return order.map((share) => ({ share, seconds: sums.get(share) ?? 0 })).filter((each) => each.seconds >= 0.05);
}

/** The rows of one task, or of the job; of an attempt, only what happened in its time. */
export function chosenRows(rows: TimelineRow[], task: string, window: AttemptWindow | null): TimelineRow[] {
  const mine = task ? rows.filter((row) => row.task === task) : rows;
  if (window === null) return mine;
  return mine
    .map((row) => ({ ...row, spans: clipped(row.spans, window) }))
    .filter((row) => row.kind === "job" || row.spans.some((span) => span.kind !== "pause" || row.attempt === window.number));
}

function clipped(spans: Span[], window: Range | AttemptWindow): Span[] {
  const [from, to] = "from" in window ? [window.from, window.to] : [window.begin, window.end];
  return spans
    .filter((span) => span.begin < to && span.end >= from)
    .map((span) => ({ ...span, begin: Math.max(span.begin, from), end: Math.min(span.end, to) }));
}

/** From the first to the last thing that the rows show. */
export function extent(rows: TimelineRow[], fallback: Range): Range {
  const spans = rows.flatMap((row) => row.spans);
  if (spans.length === 0) return fallback;
  const from = Math.min(...spans.map((span) => span.begin));
  const to = Math.max(...spans.map((span) => span.end));
  return { from, to: Math.max(to, from + 0.5) };
}

/** The longest time in which a row did not work, with what was said about it. */
export function longestGap(spans: Span[], least = 0): Span | null {
  const gaps = spans.filter((span) => span.kind !== "run" && span.kind !== "end" && span.sentence && span.end - span.begin >= least);
  return gaps.sort((a, b) => b.end - b.begin - (a.end - a.begin))[0] ?? null;
}

/** The value of a curve at a moment: that of the last point before it, unless that is too long ago or the curve has ended. */
export function valueAt(points: [number, number][], at: number, oldest: number): number | null {
  const after = points.findIndex((point) => point[0] > at);
  const last = points[points.length - 1];
  if (after === 0 || last === undefined) return null;
  const found = after < 0 ? last : (points[after - 1] as [number, number]);
  return at - found[0] <= (after < 0 ? 3 : oldest) ? found[1] : null;
}
