// Where the time of a job or task went: a row for each party and pod on one axis, the reason for every gap, and below, on the
// same axis, what it used. Everything can be reached by keyboard.
import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { JobView, TimelineData } from "./jobview";
import { AskPartners } from "./partners";
import { Mark } from "./parts";
import { address, setQuery } from "./router";
import { glyphs, stateOf, words, type State } from "./states";
import { locale, t, type Key } from "./text";
import { chosenRows, duration, extent, longestGap, moved, placed, shares, tickLabel, ticks, zoomed, type AttemptWindow, type Placed, type Range, type Span, type TimelineRow } from "./timelayout";
import type { PlotsProps } from "./usageplots";

export const kinds: Record<string, Key> = {
  check: "stageCheck",
  agree: "stageAgree",
  queue: "stageQueue",
  prepare: "stagePrepare",
  wait: "stageWait",
  reserve: "stageReserve",
  pull: "stagePull",
  start: "stageStart",
  run: "stageRun",
  end: "stageEnd",
  pause: "stagePause",
};
/** Why it did not go on, where nothing was recorded about it. */
const reasons: Record<string, Key> = {
  check: "whyCheck",
  agree: "whyAgree",
  queue: "whyQueue",
  prepare: "whyPrepare",
  wait: "whyWait",
  reserve: "whyReserve",
  pull: "whyPull",
  start: "whyStart",
  end: "whyEnd",
  pause: "whyPause",
};
const shareWords: Record<string, Key> = { waited: "sumWaited", started: "sumStarted", ran: "sumRan", ended: "sumEnded" };
const HEIGHTS: Record<TimelineRow["kind"], number> = { job: 26, task: 32, party: 34, pod: 26 };
const BARS: Record<TimelineRow["kind"], number> = { job: 8, task: 16, party: 20, pod: 12 };
const SENTENCE = 18;
const MARK = 24;
const LETTER = 6.3;
/** Tasks of a job beyond which their parties are shown on demand. */
const OPEN_TASKS = 6;

/** The moment under the pointer, for all rows and plots. */
export const pointed = signal<number | null>(null);

interface Chosen {
  row: TimelineRow;
  span: Span;
}

export function TimelineChart({ view, task = "" }: { view: JobView; task?: string }) {
  const data = view.timeline;
  const attempts = task ? data.attempts.filter((each) => data.rows.some((row) => row.task === task && row.attempt === each.number)) : data.attempts;
  const asked = address.value.searchParams.get("attempt") ?? "";
  const window = asked === "all" || attempts.length < 2 ? null : (attempts.find((each) => String(each.number) === asked) ?? attempts[attempts.length - 1] ?? null);
  const [closed, setClosed] = useState<Record<string, boolean>>({});
  const all = useMemo(() => chosenRows(data.rows, task, window), [data, task, window?.number]);
  const many = new Set(all.map((row) => row.task)).size > OPEN_TASKS + 1;
  const isClosed = (alias: string): boolean => !task && (closed[alias] ?? many);
  const begun = new Set(all.filter((row) => row.party && row.spans.length).map((row) => row.task));
  const rows = all.filter((row) => (row.kind === "job" ? !task : row.kind === "task" || (!isClosed(row.task) && (task || begun.has(row.task)))));
  const [width, track] = useWidth();
  const whole = wholeOf(data, all, task, window, width);
  const [zoom, setZoom] = useState<Range | null>(null);
  const range = zoom ?? whole;
  const origin = whole.from;
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const [place, setPlace] = useState<[number, number]>([0, 0]);
  const frame = useRef<HTMLDivElement>(null);
  const parties = useMemo(() => [...new Set(data.rows.filter((row) => row.party).map((row) => row.party))], [data]);
  useEffect(() => setZoom(null), [window?.number, task]);
  const step = (factor: number): void => setZoom(zoomed(range, whole, factor, pointed.value ?? (chosen ? (chosen.span.begin + chosen.span.end) / 2 : (range.from + range.to) / 2)));
  const focusSpan = (row: number, index: number): void => {
    const spans = rows[row]?.spans ?? [];
    const next = Math.min(Math.max(index, 0), spans.length - 1);
    if (next < 0) return;
    setPlace([row, next]);
    requestAnimationFrame(() => frame.current?.querySelector<SVGElement>(`[data-place="${row}-${next}"]`)?.focus());
  };
  const keys = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey || (event.target as Element).closest("button, a, input, select")) return;
    const [row, index] = place;
    const actions: Record<string, () => void> = {
      "+": () => step(2),
      "=": () => step(2),
      "-": () => step(0.5),
      "0": () => setZoom(null),
      ArrowRight: () => (event.shiftKey ? setZoom(moved(range, whole, 0.25)) : focusSpan(row, index + 1)),
      ArrowLeft: () => (event.shiftKey ? setZoom(moved(range, whole, -0.25)) : focusSpan(row, index - 1)),
      ArrowDown: () => focusSpan(nextRow(rows, row, 1), index),
      ArrowUp: () => focusSpan(nextRow(rows, row, -1), index),
      Escape: () => setZoom(null),
    };
    const act = actions[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  };
  const head = rows.filter((row) => row.kind === (task ? "task" : "job")).pop();
  const inline = rows.map((row) => sentenceOf(row, rows, range));
  return (
    <section class="tl">
      <div class="tl-tools">
        <p class="tl-sum">{head ? summary(head, all) : null}</p>
        {attempts.length > 1 ? <Attempts attempts={attempts} chosen={window} /> : null}
        <div class="tl-zoom" role="group" aria-label={t("zoom")}>
          <button type="button" title={t("zoomOut")} aria-label={t("zoomOut")} disabled={zoom === null} onClick={() => step(0.5)}>
            −
          </button>
          <button type="button" title={t("zoomIn")} aria-label={t("zoomIn")} onClick={() => step(2)}>
            +
          </button>
          <button type="button" disabled={zoom === null} onClick={() => setZoom(null)}>
            {t("zoomFit")}
          </button>
        </div>
      </div>
      {window?.reason ? (
        <p class="tl-failed">
          <span class="bad">✘ {t("attemptFailed", { n: window.number })}</span> <span class="message">{window.reason}</span>
        </p>
      ) : null}
      <div class="tl-frame" ref={frame} onKeyDown={keys}>
        <div class="tl-rows" role="group" aria-label={t("timeline")} aria-describedby="tl-keys" onPointerMove={(event) => point(event, range)} onPointerLeave={() => (pointed.value = null)}>
          <div class="tl-row tl-axis">
            <div class="tl-label dim">{clock(origin)}</div>
            <div class="tl-track" ref={track}>
              <Axis range={range} origin={origin} width={width} />
            </div>
          </div>
          {rows.map((row, index) => (
            <Row
              key={`${row.kind} ${row.task} ${row.party} ${row.pod} ${row.attempt}`}
              row={row}
              index={index}
              place={place}
              range={range}
              origin={origin}
              width={width}
              sentence={inline[index] ?? null}
              partner={row.kind === "party" && row.reported ? data.partners.find((each) => each.party === row.party && each.task === row.task)?.level : undefined}
              href={task ? "" : `/jobs/${encodeURIComponent(data.name)}/tasks/${encodeURIComponent(row.task)}`}
              closed={row.kind === "task" && !task && begun.has(row.task) ? isClosed(row.task) : null}
              toggle={() => setClosed({ ...closed, [row.task]: !isClosed(row.task) })}
              choose={(span, at) => {
                setChosen(span ? { row, span } : null);
                if (span) setPlace([index, at]);
              }}
            />
          ))}
          <Drag range={range} zoomTo={setZoom} />
        </div>
        <Inspector chosen={chosen} origin={origin} />
        <Plots view={view} task={task} range={range} origin={origin} parties={parties} zoomTo={setZoom} />
      </div>
      <p class="visually-hidden" id="tl-keys">
        {t("timelineKeys")}
      </p>
      <Legend rows={rows} />
      <AskPartners data={data} task={task} />
      <Waits data={data} task={task} origin={data.begin} />
      <p class="dim tl-foot">
        {t("traceId")} <code>{data.trace}</code>
      </p>
    </section>
  );
}

function wholeOf(data: TimelineData, rows: TimelineRow[], task: string, window: AttemptWindow | null, width: number): Range {
  const range = window ? { from: window.begin, to: window.end } : task ? extent(rows.filter((row) => row.kind !== "job"), { from: data.begin, to: data.end }) : { from: data.begin, to: data.end };
  const seconds = Math.max(range.to - range.from, 0.5);
  // Room for the mark behind the last bar.
  return { from: range.from, to: range.from + (seconds * width) / (width - MARK) };
}

function nextRow(rows: TimelineRow[], from: number, step: number): number {
  for (let at = from + step; at >= 0 && at < rows.length; at += step) if (rows[at]?.spans.length) return at;
  return from;
}

function useWidth(): [number, preact.RefObject<HTMLDivElement>] {
  const [width, setWidth] = useState(800);
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = (): void => setWidth(Math.max(200, Math.floor(element.clientWidth)));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [width, box];
}

function trackAt(event: PointerEvent): DOMRect | null {
  return (event.target as Element).closest(".tl-track")?.getBoundingClientRect() ?? null;
}

export function point(event: PointerEvent, range: Range): void {
  const box = trackAt(event);
  pointed.value = box ? range.from + ((event.clientX - box.left) / box.width) * (range.to - range.from) : null;
}

/** A part of the axis that is dragged over with a mouse fills it. */
function Drag({ range, zoomTo }: { range: Range; zoomTo(range: Range): void }) {
  const mark = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = mark.current;
    const frame = element?.closest<HTMLElement>(".tl-frame");
    if (!element || !frame) return;
    let begin: { x: number; box: DOMRect } | null = null;
    const down = (event: PointerEvent): void => {
      const box = trackAt(event);
      if (event.button !== 0 || event.pointerType !== "mouse" || box === null) return;
      begin = { x: event.clientX, box };
    };
    const move = (event: PointerEvent): void => {
      if (begin === null || Math.abs(event.clientX - begin.x) < 6) return;
      const whole = frame.getBoundingClientRect();
      const [from, to] = [Math.max(Math.min(begin.x, event.clientX), begin.box.left), Math.min(Math.max(begin.x, event.clientX), begin.box.right)];
      element.style.left = `${from - whole.left}px`;
      element.style.width = `${to - from}px`;
      element.hidden = false;
    };
    const up = (event: PointerEvent): void => {
      if (begin !== null && !element.hidden) {
        const { box, x } = begin;
        const at = (pixel: number): number => range.from + (Math.min(Math.max(pixel - box.left, 0), box.width) / box.width) * (range.to - range.from);
        const [one, two] = [at(x), at(event.clientX)];
        if (Math.abs(one - two) > 0.05) zoomTo({ from: Math.min(one, two), to: Math.max(one, two) });
      }
      element.hidden = true;
      begin = null;
    };
    frame.addEventListener("pointerdown", down);
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
    return () => {
      frame.removeEventListener("pointerdown", down);
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
    };
  }, [range.from, range.to]);
  return (
    <>
      <div class="tl-drag" ref={mark} hidden />
      <Pointer range={range} />
    </>
  );
}

/** A line through all rows and plots at the moment under the pointer. */
function Pointer({ range }: { range: Range }) {
  const line = useRef<HTMLDivElement>(null);
  useEffect(
    () =>
      pointed.subscribe((at) => {
        const element = line.current;
        const frame = element?.closest(".tl-frame");
        const box = frame?.querySelector(".tl-track")?.getBoundingClientRect();
        if (!element || !frame || !box) return;
        element.hidden = at === null;
        if (at !== null) element.style.left = `${box.left - frame.getBoundingClientRect().left + ((at - range.from) / (range.to - range.from)) * box.width}px`;
      }),
    [range.from, range.to],
  );
  return <div class="tl-pointer" ref={line} hidden />;
}

function Axis({ range, origin, width }: { range: Range; origin: number; width: number }) {
  const marks = ticks(range, origin, width);
  const step = (marks[1] ?? 1) - (marks[0] ?? 0);
  const x = (at: number): number => ((at + origin - range.from) / (range.to - range.from)) * width;
  return (
    <svg class="timeline" width={width} height={20} aria-hidden="true">
      {marks.map((mark) => (
        <text class="about" x={x(mark)} y={14} text-anchor={x(mark) < 14 ? "start" : x(mark) > width - 18 ? "end" : "middle"}>
          {tickLabel(mark, step)}
        </text>
      ))}
    </svg>
  );
}

interface RowProps {
  row: TimelineRow;
  index: number;
  place: [number, number];
  range: Range;
  origin: number;
  width: number;
  sentence: Span | null;
  partner: string | undefined;
  href: string;
  closed: boolean | null;
  toggle(): void;
  choose(span: Span | null, at: number): void;
}

function Row({ row, index, place, range, origin, width, sentence, partner, href, closed, toggle, choose }: RowProps) {
  const bars = placed(row.spans, range, width);
  const height = HEIGHTS[row.kind] + (sentence ? SENTENCE : 0);
  const marks = ticks(range, origin, width);
  const x = (at: number): number => ((at + origin - range.from) / (range.to - range.from)) * width;
  const last = bars[bars.length - 1];
  const state = rowState(row);
  const top = (HEIGHTS[row.kind] - BARS[row.kind]) / 2;
  return (
    <div class={`tl-row tl-${row.kind}`}>
      <div class="tl-label">
        {closed !== null ? (
          <button class="plain tl-toggle" type="button" aria-expanded={!closed} aria-label={t("partiesOf", { task: row.label })} onClick={toggle}>
            {closed ? "▸" : "▾"}
          </button>
        ) : null}
        {row.kind === "party" ? <Mark name={row.party} /> : null}
        <span class="tl-name">
          {row.kind === "task" && href ? (
            <a href={href} class="mono">
              {row.label}
            </a>
          ) : (
            <span class={row.kind === "party" ? "" : "mono"}>{row.label}</span>
          )}
          {row.kind === "task" && row.attempt > 1 ? <small>{t("attemptNumber", { n: row.attempt })}</small> : null}
          {partner ? (
            <small class="tl-tag" title={t(partner === "shared" ? "partnerShared" : "partnerStateOnly", { who: row.party })}>
              {t(partner === "shared" ? "tagReported" : "tagStateOnly")}
            </small>
          ) : row.kind === "party" && row.pod ? (
            <small class="mono tl-pod-name">{shortPod(row)}</small>
          ) : null}
        </span>
      </div>
      <div class="tl-track">
        <svg class="timeline" width={width} height={height} role="group" aria-label={`${row.label}: ${t(words[state])}`}>
          {marks.map((mark) => (
            <line class="tick" x1={Math.round(x(mark)) + 0.5} x2={Math.round(x(mark)) + 0.5} y1={0} y2={height} />
          ))}
          {bars.map((bar) => (
            <BarMark
              bar={bar}
              row={row}
              state={state}
              top={top}
              origin={origin}
              place={`${index}-${row.spans.indexOf(bar.span)}`}
              current={place[0] === index ? row.spans.indexOf(bar.span) === place[1] : false}
              first={place[0] === index && place[1] >= row.spans.length && bar === bars[0]}
              choose={(on) => choose(on ? bar.span : null, row.spans.indexOf(bar.span))}
            />
          ))}
          {last && row.kind !== "job" && last.x + last.width < width - 4 && !last.span.going_on && last.span.kind !== "pause" && isOver(row.phase) ? (
            <text class="end" data-state={state} x={last.x + last.width + 5} y={HEIGHTS[row.kind] / 2 + 4} aria-hidden="true">
              {glyphs[state]}
            </text>
          ) : null}
          {sentence ? <Sentence span={sentence} bars={bars} width={width} y={HEIGHTS[row.kind] + 8} /> : null}
        </svg>
      </div>
    </div>
  );
}

function isOver(phase: string): boolean {
  return ["Succeeded", "Failed", "Cancelled"].includes(phase);
}

function rowState(row: TimelineRow): State {
  return row.phase === "Not run" ? "waiting" : stateOf(row.phase);
}

function BarMark({ bar, row, state, top, origin, place, current, first, choose }: { bar: Placed; row: TimelineRow; state: State; top: number; origin: number; place: string; current: boolean; first: boolean; choose(on: boolean): void }) {
  const { span, x, width } = bar;
  const height = BARS[row.kind];
  const thin = span.kind === "end" || span.kind === "queue" || span.kind === "pause";
  const label = `${duration(span.end - span.begin)}`;
  return (
    <g
      class="bar"
      data-kind={span.kind}
      data-state={span.kind === "run" && row.kind !== "job" ? state : ""}
      data-going={span.going_on}
      data-reported={row.reported}
      data-place={place}
      role="button"
      tabIndex={current || first ? 0 : -1}
      aria-label={`${row.label}: ${spoken(span, origin)}`}
      onFocus={() => choose(true)}
      onPointerEnter={() => choose(true)}
      onClick={(event) => (event.currentTarget as SVGElement).focus()}
    >
      <rect class="hit" x={x} y={0} width={width} height={top * 2 + height} />
      <rect class="span" x={x + 0.5} y={thin ? top + height / 2 - 3 : top} width={Math.max(LEAST_DRAWN, width - 1)} height={thin ? 6 : height} rx={thin ? 3 : 3} />
      {height >= 16 && !thin && width > label.length * LETTER + 12 ? (
        <text class="inside" x={x + 7} y={top + height / 2 + 4}>
          {width > (label.length + t(kinds[span.kind] ?? "stageRun").length + 3) * LETTER + 14 ? `${t(kinds[span.kind] ?? "stageRun")} ${label}` : label}
        </text>
      ) : null}
    </g>
  );
}

const LEAST_DRAWN = 3.5;

/** What was waited for, below the bar that waits. */
function Sentence({ span, bars, width, y }: { span: Span; bars: Placed[]; width: number; y: number }) {
  const bar = bars.find((each) => each.span === span);
  if (!bar) return null;
  const text = `${span.sentence}${span.count > 1 ? ` (${span.count}×)` : ""}`;
  const needed = text.length * LETTER + 16;
  const x = Math.max(0, Math.min(bar.x, width - Math.min(needed, width)));
  const most = Math.floor((width - x - 14) / LETTER);
  return (
    <g aria-hidden="true">
      <path class="leader" d={`M${Math.max(bar.x, x) + 3.5} ${y - 7} v5 h6`} />
      <text class="why" x={Math.max(bar.x, x) === bar.x ? x + 13 : bar.x + 13} y={y + 2}>
        {text.length > most ? `${text.slice(0, Math.max(8, most - 1))}…` : text}
      </text>
    </g>
  );
}

/** The sentence that a row shows. Short gaps have theirs when one points at them; a task leaves it to its parties. */
function sentenceOf(row: TimelineRow, rows: TimelineRow[], range: Range): Span | null {
  const least = Math.min(10, Math.max(1.5, (range.to - range.from) * 0.03));
  const gap = longestGap(row.spans, least);
  if (gap === null || row.kind === "pod" || row.kind === "job") return null;
  const others = rows.filter((each) => each.kind === "party" && each.task === row.task && each.attempt === row.attempt);
  const shown = others.map((each) => longestGap(each.spans, least)?.sentence).filter((text) => text);
  if (row.kind === "task" && gap.kind !== "queue") return shown.length ? null : gap;
  // Parties that wait for the same say it once.
  const first = others.find((each) => longestGap(each.spans, least)?.sentence === gap.sentence);
  return row.kind === "party" && first !== row ? null : gap;
}

function spoken(span: Span, origin: number): string {
  const why = span.sentence || (span.kind === "run" ? "" : t(reasons[span.kind] ?? "whyWait"));
  return [`${t(kinds[span.kind] ?? "stageRun")} ${duration(span.end - span.begin)}`, `${duration(span.begin - origin)} – ${duration(span.end - origin)}`, why, span.next_step].filter((part) => part).join(". ");
}

function shortPod(row: TimelineRow): string {
  return row.pod.length > 26 ? `…${row.pod.slice(-24)}` : row.pod;
}

function clock(at: number): string {
  return new Date(at * 1000).toLocaleString(locale(), { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

function time(at: number): string {
  return new Date(at * 1000).toLocaleTimeString(locale(), { hourCycle: "h23" });
}

function summary(head: TimelineRow, rows: TimelineRow[]): string {
  const spans = head.kind === "task" ? head.spans : [...head.spans.filter((span) => span.kind !== "run"), ...rows.filter((row) => row.kind === "task").flatMap((row) => row.spans)];
  const all = head.spans.length ? Math.max(...head.spans.map((span) => span.end)) - Math.min(...head.spans.map((span) => span.begin)) : 0;
  const text = shares(spans.length ? spans : head.spans)
    .map((each) => t(shareWords[each.share] ?? "sumRan", { time: duration(each.seconds) }))
    .join(", ");
  return `${t(head.spans.some((span) => span.going_on) ? "sumSoFar" : "sumAll", { time: duration(all) })} ${text}`;
}

function Attempts({ attempts, chosen }: { attempts: AttemptWindow[]; chosen: AttemptWindow | null }) {
  return (
    <div class="tl-attempts" role="group" aria-label={t("attempts")}>
      <span class="dim">{t("attempts")}</span>
      {attempts.map((each) => (
        <button type="button" aria-pressed={chosen?.number === each.number} onClick={() => setQuery("attempt", String(each.number))}>
          {each.reason ? <span class="bad">✘ </span> : null}
          {each.number}
        </button>
      ))}
      <button type="button" aria-pressed={chosen === null} onClick={() => setQuery("attempt", "all")}>
        {t("all")}
      </button>
    </div>
  );
}

/** What the chosen bar is: the same place for pointer and keyboard, so nothing moves. */
function Inspector({ chosen, origin }: { chosen: Chosen | null; origin: number }) {
  if (chosen === null) return <div class="tl-inspector dim">{t("timelineHint")}</div>;
  const { row, span } = chosen;
  const why = span.sentence || (span.kind === "run" ? row.message : t(reasons[span.kind] ?? "whyWait"));
  return (
    <div class="tl-inspector" aria-live="polite">
      <div>
        <b>{row.label}</b>
        {row.kind === "party" || row.kind === "pod" ? <span class="dim"> · {row.task}</span> : null} · {t(kinds[span.kind] ?? "stageRun")} <b>{duration(span.end - span.begin)}</b>
        <span class="dim">
          {" "}
          · {duration(span.begin - origin)} – {span.going_on ? t("stillGoing") : duration(span.end - origin)} ({time(span.begin)} – {span.going_on ? "" : time(span.end)})
        </span>
        {row.reported ? <span class="dim"> · {t("reportedBy", { who: row.party })}</span> : null}
      </div>
      {why ? (
        <div class="message">
          {span.by ? <span class="dim">{t("saidBy", { who: span.by })} </span> : null}
          {why}
          {span.count > 1 ? ` (${span.count}×)` : ""}
          {span.next_step ? (
            <>
              {" "}
              <span class="tl-next">→ </span>
              <Marked text={span.next_step} />
            </>
          ) : null}
        </div>
      ) : null}
    </div>
  );
}

/** Commands in sentences stand between backticks. */
export function Marked({ text }: { text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 ? <code>{part}</code> : part))}</>;
}

function Legend({ rows }: { rows: TimelineRow[] }) {
  const used = new Set(rows.filter((row) => row.kind !== "job").flatMap((row) => row.spans.map((span) => span.kind)));
  const states = [...new Set(rows.filter((row) => row.kind !== "job" && row.spans.some((span) => span.kind === "run")).map(rowState))];
  const entries = Object.entries(kinds).filter(([kind]) => used.has(kind) && kind !== "run");
  return (
    <p class="legend">
      {entries.map(([kind, key]) => (
        <Sample kind={kind} state="" reported={false} text={t(key)} />
      ))}
      {states.map((state) => (
        <Sample kind="run" state={state} reported={false} text={state === "running" ? t("stageRun") : `${t("stageRan")}, ${t(words[state])}`} />
      ))}
      {rows.some((row) => row.reported) ? <Sample kind="run" state="" reported={true} text={t("reported")} /> : null}
    </p>
  );
}

function Sample({ kind, state, reported, text }: { kind: string; state: string; reported: boolean; text: string }) {
  const thin = ["end", "queue", "pause"].includes(kind);
  return (
    <span class="state">
      <svg width={16} height={12} class="timeline" aria-hidden="true">
        <g class="bar" data-kind={kind} data-state={state} data-going="false" data-reported={reported}>
          <rect class="span" x={0.5} y={thin ? 3.5 : 1} width={15} height={thin ? 5 : 10} rx={2} />
        </g>
      </svg>
      {text}
    </span>
  );
}

function Waits({ data, task, origin }: { data: TimelineData; task: string; origin: number }) {
  const notes = data.notes.filter((note) => !task || note.task === task);
  if (notes.length === 0) return null;
  return (
    <>
      <h2>{t("waits")}</h2>
      <div class="scroll">
        <table class="plain tl-waits">
          <thead>
            <tr>
              <th scope="col">{t("since")}</th>
              <th scope="col">{t("who")}</th>
              <th scope="col">{t("reason")}</th>
            </tr>
          </thead>
          <tbody>
            {notes.map((note) => (
              <tr>
                <td class="dim">
                  {duration(note.at - origin)}
                  {note.until - note.at >= 1 ? ` – ${duration(note.until - origin)}` : ""}
                </td>
                <td class="mono">
                  {note.about}
                  {note.by ? " *" : ""}
                </td>
                <td class="message">
                  <Marked text={note.sentence} />
                  {note.count > 1 ? ` (${note.count}×)` : ""}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** Plots are loaded when there is something to plot. */
function Plots({ view, task, range, origin, parties, zoomTo }: Omit<PlotsProps, "usage" | "pointed" | "point"> & { view: JobView; task: string }) {
  const usage = task ? view.usage.filter((each) => each.task === task) : view.usage;
  const any = usage.some((each) => each.pods.some((pod) => pod.points.length) || each.links.length);
  const [Shown, setShown] = useState<ComponentType<PlotsProps> | null>(null);
  useEffect(() => {
    if (any && Shown === null) void import("./usageplots").then((module) => setShown(() => module.default));
  }, [any]);
  if (!any) {
    return (
      <p class="dim tl-none">
        {view.partial ? t("loading") : [t("noUsage"), view.timeline.unread.join("; ")].join(" ")}
      </p>
    );
  }
  return Shown ? <Shown usage={usage} range={range} origin={origin} parties={parties} zoomTo={zoomTo} pointed={pointed} point={point} /> : null;
}
