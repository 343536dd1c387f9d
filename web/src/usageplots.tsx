// CPU, memory and bytes of links of a task, on the axis of its timeline. Loaded when there is something to plot.
import type { Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { byteRate, bytes } from "./amounts";
import type { Point, TaskUsage } from "./jobview";
import { hueOf, Mark } from "./parts";
import { t, type Key } from "./text";
import { theme } from "./theme";
import { duration, ticks, valueAt, type Range } from "./timelayout";

export interface PlotsProps {
  usage: TaskUsage[];
  range: Range;
  origin: number;
  parties: string[];
  zoomTo(range: Range): void;
  pointed: Signal<number | null>;
  point(event: PointerEvent, range: Range): void;
}

export interface Curve {
  label: string;
  party: string;
  /** To whom, of a link. */
  peer: string;
  points: [number, number][];
}

interface Plot {
  title: Key;
  /** The line that is drawn: a round amount that is not above the highest. */
  round(most: number): number;
  curves: Curve[];
  shown(value: number): string;
}

const HEIGHT = 72;
/** A figure is that of its moment for so long; nodes write the next one a minute later at most. */
const OLDEST = 65;

export default function Plots({ usage, range, origin, parties, pointed, point }: PlotsProps) {
  const scheme = useScheme();
  const inOrder = (curves: Curve[]): Curve[] => [...curves].sort((a, b) => parties.indexOf(a.party) - parties.indexOf(b.party));
  const plots: Plot[] = [
    { title: "cpu", round: niceTop, curves: inOrder(podCurves(usage, 1)), shown: (value) => `${value.toFixed(value < 0.01 ? 3 : value < 0.995 ? 2 : 1)} CPU` },
    { title: "memory", round: powerOfTwo, curves: inOrder(podCurves(usage, 2)), shown: bytes },
    { title: "linkBytes", round: powerOfTwo, curves: inOrder(linkCurves(usage)), shown: byteRate },
  ];
  return (
    <div class="tl-plots" role="group" aria-label={t("usage")} onPointerMove={(event) => point(event, range)} onPointerLeave={() => (pointed.value = null)}>
      {plots
        .filter((plot) => plot.curves.length)
        .map((plot) => (
          <div class="tl-row tl-plot">
            <div class="tl-label tl-plot-label">
              <span>
                <b>{t(plot.title)}</b> <Highest pointed={pointed} />
              </span>
              {grouped(plot.curves)
                .slice(0, 6)
                .map((curves) => (
                  <Value curves={curves} plot={plot} parties={parties} pointed={pointed} />
                ))}
            </div>
            <div class="tl-track">
              <Canvas key={`${plot.title} ${scheme}`} plot={plot} range={range} origin={origin} parties={parties} />
            </div>
          </div>
        ))}
      <UsageTable usage={usage} />
    </div>
  );
}

/** Of a party, or a direction of a link: at the moment under the pointer all of it together, else the highest. */
function Value({ curves, plot, parties, pointed }: { curves: Curve[]; plot: Plot; parties: string[]; pointed: Signal<number | null> }) {
  const at = pointed.value;
  const { party = "", peer = "" } = curves[0] ?? {};
  const now = at === null ? [] : curves.map((curve) => valueAt(curve.points, at, OLDEST)).filter((value) => value !== null);
  const value = at === null ? Math.max(0, ...curves.flatMap((curve) => curve.points.map((each) => each[1]))) : now.length ? now.reduce((sum, each) => sum + each, 0) : null;
  return (
    <span class="tl-value">
      <Mark name={party} />
      {peer ? (
        <>
          <span class="dim">→</span>
          <Mark name={peer} />
        </>
      ) : null}
      <svg class="key-line" data-hue={hueOf(party)} viewBox="0 0 28 10" aria-hidden="true">
        <path d="M0 5H28" stroke-width={1.75} stroke-dasharray={dashes({ party, peer }, parties).join(" ")} />
      </svg>
      <span>{value === null ? "–" : plot.shown(value)}</span>
    </span>
  );
}

/** What the figures are while the pointer is elsewhere. */
function Highest({ pointed }: { pointed: Signal<number | null> }) {
  return pointed.value === null ? <span class="dim">{t("highest")}</span> : null;
}

/** By party and peer. */
export function grouped(curves: Curve[]): Curve[][] {
  const found = new Map<string, Curve[]>();
  for (const curve of curves) {
    const key = `${curve.party} ${curve.peer}`;
    found.set(key, [...(found.get(key) ?? []), curve]);
  }
  return [...found.values()];
}

export function podCurves(usage: TaskUsage[], which: 1 | 2): Curve[] {
  return usage.flatMap((task) => task.pods.filter((pod) => pod.points.length).map((pod) => ({ label: pod.pod, party: pod.party, peer: "", points: pod.points.map((each): [number, number] => [each[0], each[which]]) })));
}

/** Both ways of each link, once: where both ends measured it, the first of them counts. */
export function linkCurves(usage: TaskUsage[]): Curve[] {
  const out: Curve[] = [];
  for (const task of usage) {
    const seen = new Set<string>();
    for (const link of task.links) {
      if (seen.has(`${link.peer} ${link.party}`) || link.points.length === 0) continue;
      seen.add(`${link.party} ${link.peer}`);
      out.push({ label: task.task, party: link.party, peer: link.peer, points: link.points.map((each) => [each[0], each[1]]) });
      out.push({ label: task.task, party: link.peer, peer: link.party, points: link.points.map((each) => [each[0], each[2]]) });
    }
  }
  return out;
}

/** Changes when colours do. */
function useScheme(): string {
  const [dark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const changed = (): void => setDark(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return `${theme.value} ${dark}`;
}

/** A colour of the style sheet as a canvas understands it. */
function colour(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function Canvas({ plot, range, origin, parties }: { plot: Plot; range: Range; origin: number; parties: string[] }) {
  const box = useRef<HTMLDivElement>(null);
  const made = useRef<uPlot | null>(null);
  const drawn = useRef({ range, origin, plot });
  drawn.current = { range, origin, plot };
  const count = plot.curves.length;
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const [line, dim] = [colour("--line"), colour("--dim")];
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const chart: uPlot = new uPlot(
      {
        width: Math.max(200, element.clientWidth),
        height: HEIGHT,
        padding: [0, 0, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        select: { show: false, left: 0, top: 0, width: 0, height: 0 },
        scales: {
          x: { time: false, range: () => [drawn.current.range.from, drawn.current.range.to] },
          y: { range: (_u, _min, max) => [0, Math.max(max || 0, 1e-6) * 1.25] },
        },
        axes: [{ show: false }, { show: false }],
        series: [
          {},
          ...plot.curves.map((curve) => {
            const stroke = colour(`--party-${hueOf(curve.party)}`);
            return { stroke, width: 1.75, fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.10)"), spanGaps: true, points: { show: false }, dash: dashes(curve, parties) };
          }),
        ],
        hooks: { drawClear: [(u) => grid(u, line, dim, font, drawn.current)] },
      },
      dataOf(plot.curves),
      element,
    );
    made.current = chart;
    const observer = new ResizeObserver(() => chart.setSize({ width: Math.max(200, element.clientWidth), height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
      made.current = null;
    };
  }, [count]);
  useEffect(() => {
    made.current?.setData(dataOf(plot.curves), true);
  }, [plot.curves.map((curve) => curve.points.length).join(), range.from, range.to]);
  return <div ref={box} class="tl-canvas" role="img" aria-label={`${t(plot.title)}: ${t("seeTable")}`} />;
}

/** Colours tell who uses or sends; of a link, dashes tell to whom. */
export function dashes(curve: Pick<Curve, "party" | "peer">, parties: string[]): number[] {
  return [[], [6, 4], [2, 3], [10, 4], [6, 3, 2, 3], [1, 4]][Math.max(0, parties.indexOf(curve.peer || curve.party)) % 6] ?? [];
}

function dataOf(curves: Curve[]): uPlot.AlignedData {
  return uPlot.join(curves.map((curve): uPlot.AlignedData => [curve.points.map((each) => each[0]), curve.points.map((each) => each[1])]));
}

function grid(u: uPlot, line: string, dim: string, font: string, now: { range: Range; origin: number; plot: Plot }): void {
  const { ctx } = u;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.setLineDash([]);
  ctx.strokeStyle = line;
  ctx.lineWidth = ratio;
  const path = (x1: number, y1: number, x2: number, y2: number): void => {
    ctx.beginPath();
    ctx.moveTo(x1, y1);
    ctx.lineTo(x2, y2);
    ctx.stroke();
  };
  for (const mark of ticks(now.range, now.origin, u.bbox.width / ratio)) {
    const x = Math.round(u.valToPos(mark + now.origin, "x", true) / ratio) * ratio + ratio / 2;
    path(x, u.bbox.top, x, u.bbox.top + u.bbox.height);
  }
  const top = now.plot.round((u.scales["y"]?.max ?? 1) / 1.25);
  const y = Math.round(u.valToPos(top, "y", true)) + ratio / 2;
  path(u.bbox.left, y, u.bbox.left + u.bbox.width, y);
  path(u.bbox.left, u.bbox.top + u.bbox.height - ratio / 2, u.bbox.left + u.bbox.width, u.bbox.top + u.bbox.height - ratio / 2);
  ctx.fillStyle = dim;
  ctx.font = font.replace("11px", `${11 * ratio}px`);
  ctx.textAlign = "right";
  ctx.fillText(now.plot.shown(top), u.bbox.left + u.bbox.width - 4 * ratio, y - 3 * ratio);
  ctx.restore();
}

/** The largest of 1, 2, 5 × 10ⁿ that is not above. */
export function niceTop(most: number): number {
  if (!(most > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(most));
  return ([5, 2, 1].find((each) => each * ten <= most) ?? 1) * ten;
}

/** Bytes are counted in binary units. */
export function powerOfTwo(most: number): number {
  return most >= 1 ? 2 ** Math.floor(Math.log2(most)) : 1;
}

/** The same in figures: a canvas is a picture to who cannot see it. */
function UsageTable({ usage }: { usage: TaskUsage[] }) {
  const most = (points: Point[], which: 1 | 2): number => Math.max(0, ...points.map((each) => each[which]));
  const mean = (points: Point[]): number => (points.length ? points.reduce((sum, each) => sum + each[1], 0) / points.length : 0);
  const seconds = (points: Point[]): number => (points.length ? (points[points.length - 1]?.[0] ?? 0) - (points[0]?.[0] ?? 0) : 0);
  return (
    <details class="tl-table">
      <summary>{t("asTable")}</summary>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th scope="col">{t("party")}</th>
              <th scope="col">{t("podOrLink")}</th>
              <th scope="col">{t("measuredFor")}</th>
              <th scope="col">{t("cpuMean")}</th>
              <th scope="col">{t("cpuHighest")}</th>
              <th scope="col">{t("memoryHighest")}</th>
              <th scope="col">{t("bytesSent")}</th>
              <th scope="col">{t("bytesReceived")}</th>
            </tr>
          </thead>
          <tbody>
            {usage.flatMap((task) => [
              ...task.pods.map((pod) => (
                <tr>
                  <td>{pod.party}</td>
                  <td class="mono">{pod.pod}</td>
                  <td>{duration(seconds(pod.points))}</td>
                  <td>{mean(pod.points).toFixed(2)}</td>
                  <td>{most(pod.points, 1).toFixed(2)}</td>
                  <td>{bytes(most(pod.points, 2))}</td>
                  <td />
                  <td />
                </tr>
              )),
              ...task.links.map((link) => (
                <tr>
                  <td>{link.party}</td>
                  <td class="mono">
                    {link.party} ↔ {link.peer}
                  </td>
                  <td>{duration(seconds(link.points))}</td>
                  <td />
                  <td />
                  <td />
                  <td>{bytes(link.sent)}</td>
                  <td>{bytes(link.received)}</td>
                </tr>
              )),
            ])}
          </tbody>
        </table>
      </div>
    </details>
  );
}
