// Parts that several screens use.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ComponentChildren, JSX } from "preact";
import { follow, type Query, type Row, type Rows } from "./live";
import { go } from "./router";
import { obstacle, type Need } from "./rights";
import { glyphs, nodeWords, stateOf, words, type State } from "./states";
import { t } from "./text";
import { ago, exact } from "./time";

const PATHS = {
  overview: "M2.5 2.5H7V7H2.5zM9 2.5h4.5V7H9zM2.5 9H7v4.5H2.5zM9 9h4.5v4.5H9z",
  jobs: "M6 4h7.5M6 8h7.5M6 12h7.5M2.5 4h.6M2.5 8h.6M2.5 12h.6",
  network: "M9.75 3.5a1.75 1.75 0 1 1-3.5 0a1.75 1.75 0 0 1 3.5 0zM5.25 12a1.75 1.75 0 1 1-3.5 0a1.75 1.75 0 0 1 3.5 0zM14.25 12a1.75 1.75 0 1 1-3.5 0a1.75 1.75 0 0 1 3.5 0zM7.1 5.1L4.4 10.4M8.9 5.1l2.7 5.3M5.3 12h5.4",
  data: "M2.5 3h11v10h-11zM2.5 6.5h11M2.5 9.75h11M6.5 6.5V13",
  approvals: "M8 1.8L14.2 8L8 14.2L1.8 8zM5.6 8.2l1.6 1.6l3.2-3.4",
  nodes: "M2.5 2.8h11v4.4h-11zM2.5 8.8h11v4.4h-11zM5 5h.6M5 11h.6",
  functions: "M4.2 2.8h1.2c1.8 0 2 1.6 2.6 3.4l1.4 4.4c.5 1.6.9 2.6 2.4 2.6h.4M7.6 6.6L4 13.2",
  evidence: "M8 1.8l5 1.9v4c0 3.2-2 5.3-5 6.5c-3-1.2-5-3.3-5-6.5v-4zM5.7 8l1.6 1.6l3-3.2",
  copy: "M6 6h7.5v7.5H6zM3.5 10H2.5V2.5H10v1",
  done: "M3 8.5l3.2 3.2L13 4.8",
  theme: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  language: "M1.8 3.6h7M5.3 2v1.6c0 3-1.5 5-3.3 6.2M3.4 5.6c.8 1.8 2.4 3 4.2 3.6M8.2 14l2.9-7l2.9 7M9.2 11.8h3.8",
  keys: "M1.8 4h12.4v8H1.8zM4.4 6.6h.4M7.8 6.6h.4M11.2 6.6h.4M5 9.6h6",
  leave: "M6 2.8H2.8v10.4H6M10 5l3 3l-3 3M13 8H6.2",
  close: "M4 4l8 8M12 4l-8 8",
};

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Phase({ phase }: { phase: string }) {
  const state = stateOf(phase);
  return (
    <span class="state" data-state={state} title={phase}>
      <span aria-hidden="true">{glyphs[state]}</span>
      {t(nodeWords[phase] ?? words[state])}
    </span>
  );
}

/** As many as the style sheet has (`--party-0` and on). */
const HUES = 5;
const hues = keptHues();

function keptHues(): Map<string, number> {
  try {
    const kept = JSON.parse(localStorage.getItem("hues") ?? "[]") as unknown;
    return new Map(Array.isArray(kept) ? kept.slice(0, HUES).map((name, hue): [string, number] => [String(name), hue]) : []);
  } catch {
    return new Map();
  }
}

/** The first domains that this browser shows have a tint each, and keep it; others share these. */
export function hueOf(party: string): number {
  const found = hues.get(party);
  if (found !== undefined) return found;
  if (hues.size >= HUES) return [...party].reduce((sum, letter) => sum + (letter.codePointAt(0) ?? 0), 0) % HUES;
  hues.set(party, hues.size);
  localStorage.setItem("hues", JSON.stringify([...hues.keys()]));
  return hues.size - 1;
}

/** A letter for a domain, always with the same tint; no tint is the colour of a state. */
export function Mark({ name }: { name: string }) {
  return (
    <span class="party-mark" data-hue={hueOf(name)} aria-hidden="true">
      {name.slice(0, 1).toUpperCase()}
    </span>
  );
}

export function Party({ name }: { name: string }) {
  return (
    <span class="party-name" title={name}>
      <Mark name={name} />
      <span>{name}</span>
    </span>
  );
}

/** Several domains in little room: letters, the names on hover and for who listens. */
export function Parties({ names }: { names: string[] }) {
  return (
    <span class="party-marks" title={names.join(", ")}>
      {names.map((name) => (
        <Mark name={name} />
      ))}
      <span class="visually-hidden">{names.join(", ")}</span>
    </span>
  );
}

/** A button that is off, with the missing right beside it, when the person may not do it. Some ask again before they act. */
export function ActionButton({ need, label, act, first, danger, again, quiet }: { need: Need; label: string; act(): void; first?: boolean; danger?: boolean; again?: boolean; quiet?: boolean }) {
  const [asked, setAsked] = useState(false);
  const why = obstacle(need);
  const button = (
    <button
      type="button"
      class={asked || danger ? "danger" : first ? "first" : ""}
      disabled={why !== ""}
      title={why}
      onBlur={() => setAsked(false)}
      onClick={() => {
        if (again && !asked) {
          setAsked(true);
          return;
        }
        setAsked(false);
        act();
      }}
    >
      {asked ? t("really", { what: label }) : label}
    </button>
  );
  // `quiet`: the button before it says the same already.
  return why && !quiet ? (
    <span class="off">
      {button}
      <small>{why}</small>
    </span>
  ) : (
    button
  );
}

/** How much of something is taken. */
export function Meter({ label, used, all, shown }: { label: string; used: number; all: number; shown(amount: number): string }) {
  const part = all > 0 ? Math.min(1, used / all) : 0;
  return (
    <div class="meter">
      <div class="meter-text">
        <span>{label}</span>
        <span class="dim">
          {t("of", { n: shown(used), all: shown(all) })} · {Math.round(part * 100)} %
        </span>
      </div>
      <svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={`${label}: ${t("of", { n: shown(used), all: shown(all) })}`}>
        <rect class="room" width={100} height={6} />
        <rect class="taken" width={part * 100} height={6} />
      </svg>
    </div>
  );
}

/** How much of a job or task is done; the number is that of the command line. */
export function Progress({ share, text, label }: { share: number; text: string; label: string }) {
  return (
    <span class="progress">
      <svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={`${label}: ${text}`}>
        <rect class="room" width={100} height={6} />
        <rect class="taken" width={Math.min(1, Math.max(0, share)) * 100} height={6} />
      </svg>
      <span aria-hidden="true">{text}</span>
    </span>
  );
}

/** A small bar with its number: how far something is. */
export function Share({ done, all, state, shown, hint }: { done: number; all: number; state: State; shown?: string; hint?: string }) {
  return (
    <span class="share" title={hint}>
      <svg viewBox="0 0 44 4" preserveAspectRatio="none" aria-hidden="true">
        <rect class="room" width={44} height={4} />
        <rect class="taken" data-state={state} width={all > 0 ? 44 * Math.min(1, done / all) : 0} height={4} />
      </svg>
      <span class="dim">{shown ?? `${done}/${all}`}</span>
    </span>
  );
}

/** A line without axes; the newest number is above it, the time that it covers beside its name. */
export function Sparkline({ label, values, figure, unit, covers }: { label: string; values: (number | null)[]; figure: string; unit?: string; covers?: string }) {
  const numbers = values.map((value) => value ?? 0);
  const most = Math.max(...numbers, 1e-9);
  const step = numbers.length > 1 ? 200 / (numbers.length - 1) : 0;
  const points = numbers.map((value, index) => `${(index * step).toFixed(1)},${(34 - (value / most) * 30).toFixed(1)}`).join(" ");
  return (
    <section class="spark">
      <h2>
        {label}
        {covers ? <small>{covers}</small> : null}
      </h2>
      <p class="figure">
        {figure} {unit ? <small>{unit}</small> : null}
      </p>
      <svg viewBox="0 0 200 36" preserveAspectRatio="none" role="img" aria-label={`${label}: ${figure} ${unit ?? ""}`}>
        <line class="ground" x1={0} x2={200} y1={34.5} y2={34.5} />
        {numbers.length > 1 ? (
          <>
            <polygon class="below-curve" points={`0,34 ${points} 200,34`} />
            <polyline class="curve" points={points} />
          </>
        ) : null}
      </svg>
    </section>
  );
}

/** Relative; the exact time on hover. */
export function Time({ at }: { at: string }) {
  return at ? (
    <time dateTime={at} title={exact(at)}>
      {ago(at)}
    </time>
  ) : null;
}

/** What belongs here, and the command that brings the first one. */
export function Empty({ text, title, command, icon, children }: { text?: string; title?: string; command?: string; icon?: IconName; children?: ComponentChildren }) {
  return (
    <div class="empty">
      {icon ? <Icon name={icon} /> : null}
      {title ? <strong>{title}</strong> : null}
      {text ? <div>{text}</div> : null}
      {children}
      {command ? <AsCommand command={command} boxed /> : null}
    </div>
  );
}

/** While something is asked for the first time. */
export function Loading() {
  return (
    <p class="dim loading" role="status">
      {t("loading")}
    </p>
  );
}

/** A sentence that must be seen. Long ones are cut to three lines until somebody wants all. */
export function Callout({ text, state, children }: { text: string; state: State; children?: ComponentChildren }) {
  const [whole, setWhole] = useState(false);
  const long = text.length > 280;
  return (
    <div class="callout" data-state={state}>
      <span aria-hidden="true">{glyphs[state]}</span>
      <div>
        <div class={long && !whole ? "message clamped" : "message"}>{text}</div>
        {long ? (
          <button type="button" class="plain" onClick={() => setWhole(!whole)}>
            {t(whole ? "showLess" : "showAll")}
          </button>
        ) : null}
        {children}
      </div>
    </div>
  );
}

/** What the view is on the command line. */
export function AsCommand({ command, boxed }: { command: string; boxed?: boolean }) {
  const [copied, setCopied] = useState("");
  const done = copied === command;
  return (
    <span class={boxed ? "command boxed" : "command"}>
      <code title={command}>{command}</code>
      <button
        type="button"
        class="small"
        title={t(done ? "copied" : "copyCommand")}
        aria-label={t(done ? "copied" : "copyCommand")}
        onClick={() => {
          void navigator.clipboard?.writeText(command).then(() => setCopied(command));
        }}
      >
        <Icon name={done ? "done" : "copy"} />
      </button>
    </span>
  );
}

/** `tools`: beside the title; `actions`: at the right; `command`: what the view is on the command line. */
export function Screen({ title, tools, actions, command, parent, children }: { title: ComponentChildren; tools?: ComponentChildren; actions?: ComponentChildren; command?: string; parent?: { href: string; label: string }; children: ComponentChildren }) {
  return (
    <>
      <div class="head">
        {parent ? (
          <p class="crumb">
            <a href={parent.href}>{parent.label}</a> /
          </p>
        ) : null}
        <div class="head-line">
          <h1 tabIndex={-1}>{title}</h1>
          {tools}
          {actions ? <span class="spread">{actions}</span> : null}
        </div>
        {command ? <AsCommand command={command} /> : null}
      </div>
      {children}
    </>
  );
}

/** Rows of a list while the part is shown. */
export function useRows<R extends Row>(query: Query): Rows<R> {
  const key = JSON.stringify(query);
  const rows = useMemo(() => follow<R>(query), [key]);
  useEffect(() => () => rows.end(), [rows]);
  return rows;
}

export interface Column<R> {
  title: string;
  width: string;
  /** In a window of a phone. */
  small?: string;
  wide?: boolean;
  end?: boolean;
  /** By this the list can be sorted. */
  key?: string;
  cell(row: R): ComponentChildren;
}

/** Rows that are chosen, to do something with all of them. */
export interface Picked {
  ids: ReadonlySet<string>;
  change(ids: Set<string>): void;
}

/** `-took`: the longest first. */
export interface Sorting {
  by: string;
  change(by: string): void;
}

const ROW = 32;

/** Draws only the rows that are visible, however many there are. Keys: j, k and arrows; Enter opens; x or the space bar picks. */
export function VirtualList<R extends Row>({ rows, columns, open, label, picked, sorting }: { rows: R[]; columns: Column<R>[]; open(row: R): string; label: string; picked?: Picked; sorting?: Sorting }) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [chosen, setChosen] = useState(-1);
  const last = useRef(-1);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const before = picked ? "16px " : "";
  const template = before + columns.map((column) => column.width).join(" ");
  const small = before + columns.filter((column) => !column.wide).map((column) => column.small ?? column.width).join(" ");
  const first = Math.max(0, Math.floor(top / ROW) - 4);
  const shown = rows.slice(first, first + Math.ceil(height / ROW) + 8);
  const grid = gridClass(template, small);
  const pick = (index: number, through: boolean): void => {
    if (!picked) return;
    const ids = new Set(picked.ids);
    const from = through && last.current >= 0 ? last.current : index;
    const on = !ids.has(rows[index]?.id ?? "");
    for (const row of rows.slice(Math.min(from, index), Math.max(from, index) + 1)) {
      if (on) ids.add(row.id);
      else ids.delete(row.id);
    }
    last.current = index;
    picked.change(ids);
  };
  const move = (event: JSX.TargetedKeyboardEvent<HTMLDivElement>): void => {
    const step = event.key === "j" || event.key === "ArrowDown" ? 1 : event.key === "k" || event.key === "ArrowUp" ? -1 : 0;
    const row = rows[chosen];
    if (event.key === "Enter" && row) go(open(row));
    if ((event.key === "x" || event.key === " ") && row && picked) {
      event.preventDefault();
      pick(chosen, event.shiftKey);
    }
    if (event.key === "Escape" && picked?.ids.size) picked.change(new Set());
    if (step === 0) return;
    event.preventDefault();
    const next = Math.min(rows.length - 1, Math.max(0, chosen + step));
    setChosen(next);
    const element = box.current;
    if (element && next * ROW < element.scrollTop) element.scrollTop = next * ROW;
    if (element && (next + 1) * ROW > element.scrollTop + element.clientHeight) element.scrollTop = (next + 1) * ROW - element.clientHeight;
  };
  return (
    <>
      <div class={`rows-head ${grid}`} role="group" aria-label={t("sortBy")}>
        {picked ? <span /> : null}
        {columns.map((column) => (
          <Heading column={column} {...(sorting ? { sorting } : {})} />
        ))}
      </div>
      <div
        class="rows"
        ref={box}
        role="listbox"
        aria-label={label}
        {...(picked ? { "aria-multiselectable": true } : {})}
        {...(chosen >= 0 ? { "aria-activedescendant": `option-${chosen}` } : {})}
        tabIndex={0}
        onKeyDown={move}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      >
        <Spacer height={rows.length * ROW} />
        {shown.map((row, index) => (
          <Placed key={row.id} id={`option-${first + index}`} top={(first + index) * ROW} class={`row ${grid}`} href={open(row)} active={first + index === chosen} selected={picked ? picked.ids.has(row.id) : first + index === chosen}>
            {picked ? (
              <span
                class="pick"
                title={t("pick")}
                onClick={(event) => {
                  event.preventDefault();
                  event.stopPropagation();
                  pick(first + index, event.shiftKey);
                }}
              />
            ) : null}
            {columns.map((column) => (
              <span class={[column.wide ? "wide" : "", column.end ? "end" : ""].join(" ")}>{column.cell(row)}</span>
            ))}
          </Placed>
        ))}
      </div>
    </>
  );
}

function Heading<R>({ column, sorting }: { column: Column<R>; sorting?: Sorting }) {
  const name = [column.wide ? "wide" : "", column.end ? "end" : ""].join(" ");
  if (!sorting || !column.key)
    return (
      <span class={name} aria-hidden="true">
        {column.title}
      </span>
    );
  const key = column.key;
  const on = sorting.by === key ? "↑" : sorting.by === "-" + key ? "↓" : "";
  return (
    <button type="button" class={name} aria-pressed={on !== ""} title={t("sortBy")} onClick={() => sorting.change(on === "↓" ? key : on === "↑" ? "" : "-" + key)}>
      {column.title} {on}
    </button>
  );
}

/** Styles are set by the object model: attributes are what the page's policy forbids. */
function Spacer({ height }: { height: number }) {
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (element.current) element.current.style.height = `${height}px`;
  }, [height]);
  return <div ref={element} role="presentation" />;
}

function Placed({ id, top, children, class: name, href, active, selected }: { id: string; top: number; children: ComponentChildren; class: string; href: string; active: boolean; selected: boolean }) {
  const set = (element: HTMLAnchorElement | null): void => {
    if (element) element.style.top = `${top}px`;
  };
  return (
    <a ref={set} id={id} class={name} href={href} role="option" data-active={active} aria-selected={selected} tabIndex={-1}>
      {children}
    </a>
  );
}

const grids = new Map<string, string>();
const sheet = new CSSStyleSheet();
document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];

/** `small`: for windows in which the wide columns are left out. */
function gridClass(template: string, small: string): string {
  let name = grids.get(template);
  if (name === undefined) {
    name = `grid-${grids.size}`;
    grids.set(template, name);
    sheet.insertRule(`.${name} { grid-template-columns: ${template}; }`);
    sheet.insertRule(`@media (max-width: 720px) { .${name} { grid-template-columns: ${small}; } }`, sheet.cssRules.length);
  }
  return name;
}
