// Triggers, functions and what they call, as a graph: also functions of partners, and partners who call ours.
import dagre from "@dagrejs/dagre";
import { useMemo } from "preact/hooks";
import { clip, linesOf, type Box, type GraphLine } from "./graph";
import { glyphs, type State } from "./states";
import { t } from "./text";

export interface GraphCard {
  id: string;
  /** trigger, function, or what is at a partner. */
  kind: "trigger" | "function" | "partner";
  name: string;
  about: string;
  state: State;
  /** Of a function: what happens now. */
  figures: string;
  problem: string;
  /** Read aloud, and shown on hover. */
  title: string;
  /** Nothing comes from here at present. */
  off?: boolean;
  /** The function whose panel it opens. */
  opens: string;
  after: string[];
}

const WIDTH = 224;
const TALL = 76;
const LOW = 44;
const MOST = 200;
/** Wider ones are scrolled instead of made smaller. */
const WIDEST = 1500;

export function FunctionGraph({ cards, chosen, open }: { cards: GraphCard[]; chosen: string; open(id: string): void }) {
  const shown = cards.slice(0, MOST);
  const down = matchMedia("(max-width: 720px)").matches;
  const shape = JSON.stringify([down, shown.map((card) => [card.id, card.kind, card.after])]);
  const { at, lines, width, height } = useMemo(() => layout(shown, down), [shape]);
  return (
    <>
      <svg class={width <= WIDEST && !down ? "graph fit" : "graph"} role="group" aria-label={t("graph")} width={width} height={height} viewBox={`0 0 ${width} ${height}`}>
        {lines.map((line) => (
          <g data-off={shown.find((each) => each.id === line.from)?.off}>
            <path class="edge" d={line.path} />
            <polygon class="arrow" points={line.arrow} />
          </g>
        ))}
        {shown.map((card) => (
          <Card card={card} box={at.get(card.id) ?? { x: 0, y: 0, width: WIDTH, height: TALL }} chosen={card.kind === "function" && card.id === chosen} open={open} />
        ))}
      </svg>
      {shown.length < cards.length ? <p class="dim">{t("shown", { n: shown.length, all: cards.length })}</p> : null}
    </>
  );
}

function layout(cards: GraphCard[], down: boolean): { at: Map<string, Box>; lines: GraphLine[]; width: number; height: number } {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: down ? "TB" : "LR", nodesep: 16, ranksep: down ? 32 : 52, marginx: 4, marginy: 4 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const card of cards) graph.setNode(card.id, { width: WIDTH, height: card.kind === "function" ? TALL : LOW });
  for (const card of cards) for (const before of card.after) if (graph.hasNode(before)) graph.setEdge(before, card.id);
  dagre.layout(graph);
  const size = graph.graph();
  const at = new Map(cards.map((card): [string, Box] => [card.id, graph.node(card.id) as Box]));
  return { at, lines: linesOf(graph, down), width: size.width ?? WIDTH, height: size.height ?? TALL };
}

function Card({ card, box, chosen, open }: { card: GraphCard; box: Box; chosen: boolean; open(id: string): void }) {
  const { width, height } = box;
  const place = { class: "node", "data-kind": card.kind, "data-state": card.state, "data-off": card.off ?? false, transform: `translate(${box.x - width / 2} ${box.y - height / 2})` };
  const content = (
    <>
      <title>{card.title}</title>
      <rect class="box" x={0.5} y={0.5} width={width - 1} height={height - 1} rx={card.kind === "trigger" ? height / 2 : 6} />
      <text x={card.kind === "trigger" ? 18 : 12} y={card.kind === "function" ? 21 : 18} class="name">
        {clip(card.name, card.kind === "function" ? 25 : 27)}
      </text>
      <text x={card.kind === "trigger" ? 18 : 12} y={card.kind === "function" ? 42 : 34} class="about">
        {clip(card.about, 32)}
      </text>
      {card.kind === "function" ? (
        <>
          <text aria-hidden="true" x={width - 12} y={21} class="glyph" text-anchor="end">
            {glyphs[card.state]}
          </text>
          <text x={12} y={62} class={card.problem ? "about problem" : "about"}>
            {clip(card.problem || card.figures, 32)}
          </text>
        </>
      ) : null}
    </>
  );
  if (!card.opens)
    return (
      <g {...place} role="img" aria-label={card.title}>
        {content}
      </g>
    );
  return (
    <g
      {...place}
      tabindex={0}
      role="button"
      aria-label={card.title}
      aria-pressed={chosen}
      onClick={() => open(card.opens)}
      onKeyDown={(event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          open(card.opens);
        }
      }}
    >
      {content}
    </g>
  );
}
