// The tasks of a job and what they wait for, as a graph. Loaded when a graph is shown.
import dagre from "@dagrejs/dagre";
import { glyphs, stateOf, words } from "./states";
import { t } from "./text";

export interface GraphTask {
  alias: string;
  phase: string;
  engine: string;
  /** From 0 to 1. */
  progress: number;
  parties: { name: string; phase: string }[];
  after: string[];
}

const WIDTH = 208;
const HEIGHT = 72;
const MOST = 150;
const DOTS = 6;
/** Wider ones are scrolled instead of made smaller. */
const WIDEST = 1500;

export default function Graph({ tasks, chosen, open }: { tasks: GraphTask[]; chosen: string; open(alias: string): void }) {
  const shown = tasks.slice(0, MOST);
  const graph = new dagre.graphlib.Graph();
  const down = matchMedia("(max-width: 720px)").matches;
  graph.setGraph({ rankdir: down ? "TB" : "LR", nodesep: 20, ranksep: down ? 32 : 52, marginx: 4, marginy: 4 });
  graph.setDefaultEdgeLabel(() => ({}));
  const known = new Set(shown.map((task) => task.alias));
  for (const task of shown) graph.setNode(task.alias, { width: WIDTH, height: HEIGHT });
  for (const task of shown) for (const before of task.after) if (known.has(before)) graph.setEdge(before, task.alias);
  dagre.layout(graph);
  const size = graph.graph();
  const width = size.width ?? WIDTH;
  const height = size.height ?? HEIGHT;
  const place = (alias: string): { x: number; y: number } => graph.node(alias);
  return (
    <svg class={width <= WIDEST ? "graph fit" : "graph"} role="group" aria-label={t("graph")} width={width} height={height} viewBox={`0 0 ${width} ${height}`}>
      {linesOf(graph, down).map((line) => (
        <>
          <path class="edge" d={line.path} />
          <polygon class="arrow" points={line.arrow} />
        </>
      ))}
      {shown.map((task) => (
        <Node task={task} at={place(task.alias)} chosen={task.alias === chosen} open={open} />
      ))}
    </svg>
  );
}

function Node({ task, at, chosen, open }: { task: GraphTask; at: { x: number; y: number }; chosen: boolean; open(alias: string): void }) {
  const state = stateOf(task.phase);
  const part = state === "succeeded" ? 1 : task.progress;
  const dots = task.parties.slice(0, DOTS);
  const more = task.parties.length - dots.length;
  return (
    <g
      class="node"
      data-state={state}
      transform={`translate(${at.x - WIDTH / 2} ${at.y - HEIGHT / 2})`}
      tabindex={0}
      role="button"
      aria-pressed={chosen}
      onClick={() => open(task.alias)}
      onKeyDown={(event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          open(task.alias);
        }
      }}
    >
      <title>{`${task.alias}, ${task.engine}: ${t(words[state])}, ${Math.round(part * 100)} %; ${task.parties.map((party) => `${party.name}: ${t(words[stateOf(party.phase)])}`).join(", ")}`}</title>
      <rect class="box" x={0.5} y={0.5} width={WIDTH - 1} height={HEIGHT - 1} rx={6} />
      <text x={12} y={22} class="name">
        {clip(task.alias, 23)}
      </text>
      <text aria-hidden="true" x={WIDTH - 12} y={22} class="glyph" text-anchor="end">
        {glyphs[state]}
      </text>
      <text x={12} y={43} class="about">
        {clip(task.engine, 16)}
      </text>
      {dots.map((party, index) => (
        <g aria-hidden="true" data-state={stateOf(party.phase)} transform={`translate(${WIDTH - 19 - (dots.length - 1 - index) * 18 - (more > 0 ? 20 : 0)} 39)`}>
          <circle class="dot" r={7.5} />
          <text class="letter" y={3.2}>
            {letter(party.name)}
          </text>
        </g>
      ))}
      {more > 0 ? (
        <text aria-hidden="true" class="about" x={WIDTH - 12} y={43} text-anchor="end">
          +{more}
        </text>
      ) : null}
      <rect class="room" x={12} y={57} width={WIDTH - 24} height={4} rx={2} />
      {part > 0 ? <rect class="mark" x={12} y={57} width={(WIDTH - 24) * part} height={4} rx={2} /> : null}
    </g>
  );
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface GraphLine {
  from: string;
  to: string;
  path: string;
  arrow: string;
}

/** From the side of each card to that of the next, with an arrowhead; past the cards between them where the layout left room. */
export function linesOf(graph: dagre.graphlib.Graph, down: boolean): GraphLine[] {
  const columns = new Map<number, number>();
  for (const name of graph.nodes()) {
    const { x, y, width, height } = graph.node(name) as Box;
    const middle = Math.round(down ? y : x);
    columns.set(middle, Math.max(columns.get(middle) ?? 0, (down ? height : width) / 2));
  }
  return graph.edges().map((edge) => {
    const { points } = graph.edge(edge) as { points: { x: number; y: number }[] };
    const between = points.slice(1, -1).flatMap(({ x, y }) => {
      const [along, across] = down ? [y, x] : [x, y];
      const half = columns.get(Math.round(along));
      return half === undefined ? [] : [{ along, across, half }];
    });
    return { from: edge.v, to: edge.w, ...line(graph.node(edge.v) as Box, graph.node(edge.w) as Box, between, down) };
  });
}

const HEAD = 6;

/** `between`: columns of cards that it passes, in their middle. */
function line(from: Box, to: Box, between: { along: number; across: number; half: number }[], down: boolean): { path: string; arrow: string } {
  const at = (along: number, across: number): string => (down ? `${across} ${along}` : `${along} ${across}`);
  const [begin, end] = down ? [from.y + from.height / 2, to.y - to.height / 2 - HEAD] : [from.x + from.width / 2, to.x - to.width / 2 - HEAD];
  const aim = down ? to.x : to.y;
  let [along, across] = [begin, down ? from.x : from.y];
  let path = `M${at(along, across)}`;
  const bendTo = (next: number, side: number): void => {
    const bend = Math.max(down ? 0 : 16, (next - along) / 2);
    path += `C${at(along + bend, across)} ${at(next - bend, side)} ${at(next, side)}`;
    [along, across] = [next, side];
  };
  for (const each of between) {
    bendTo(each.along - each.half, each.across);
    along = each.along + each.half;
    path += `L${at(along, across)}`;
  }
  bendTo(end, aim);
  const corners = [at(end + HEAD, aim), at(end, aim - 4), at(end, aim + 4)];
  return { path, arrow: corners.map((corner) => corner.replace(" ", ",")).join(" ") };
}

function letter(name: string): string {
  return name.slice(0, 1).toUpperCase();
}

export function clip(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
