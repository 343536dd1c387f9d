// Lines of logs: as text, with a search in what is shown, followed by asking again.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { t } from "./text";

export interface Line {
  at: string;
  label: string;
  text: string;
  level?: string;
}

const MOST = 5000;

// Colours, cursor movements and titles of terminals, then everything else that is no character.
const ESCAPES = /\x1b(?:\[[0-9;:?<=>]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\^_()#%][\x20-\x7e]?)/g;
const CONTROLS = /[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb]/g;

export function plainLine(text: string): string {
  return text
    .slice(0, 16384)
    .replace(ESCAPES, "")
    .replace(CONTROLS, (found) => `\\x${found.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

/** A line that begins with its time, as the Kubernetes API gives it. */
export function stamped(line: string, label = ""): Line {
  const space = line.indexOf(" ");
  return space > 0 && /^\d{4}-\d\d-\d\dT/.test(line) ? { at: line.slice(0, space), label, text: plainLine(line.slice(space + 1)) } : { at: "", label, text: plainLine(line) };
}

/** Adds the lines that are not there yet; the newest stay when there are too many. */
export function joined(before: Line[], more: Line[]): Line[] {
  const seen = new Set(before.map(key));
  const fresh = more.filter((line) => {
    const one = key(line);
    return seen.has(one) ? false : (seen.add(one), true);
  });
  if (fresh.length === 0) return before;
  const all = [...before, ...fresh];
  const last = before[before.length - 1]?.at ?? "";
  if (fresh.some((line) => line.at !== "" && line.at < last)) all.sort((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : 0));
  return all.slice(-MOST);
}

function key(line: Line): string {
  return `${line.at}\u0000${line.label}\u0000${line.text}`;
}

/** `columns`: labels whose lines stand side by side, each in a column of its own. */
export function LogLines({ lines, follow, tools, columns }: { lines: Line[]; follow: boolean; tools?: ComponentChildren; columns?: string[] }) {
  const [find, setFind] = useState("");
  const [current, setCurrent] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  const wanted = find.toLowerCase();
  const hits = useMemo(() => (wanted ? lines.flatMap((line, index) => (line.text.toLowerCase().includes(wanted) ? [index] : [])) : []), [lines, wanted]);
  const chosen = hits.length ? (hits[Math.min(current, hits.length - 1)] ?? -1) : -1;
  useEffect(() => {
    if (!follow || wanted) return;
    for (const element of box.current?.querySelectorAll(".log") ?? []) element.scrollTop = element.scrollHeight;
  }, [lines, follow, wanted, columns?.join()]);
  useEffect(() => {
    if (chosen >= 0) box.current?.querySelector(`[data-line="${chosen}"]`)?.scrollIntoView({ block: "center" });
  }, [chosen, wanted]);
  const step = (by: number): void => setCurrent((at) => (hits.length ? (Math.min(at, hits.length - 1) + by + hits.length) % hits.length : 0));
  return (
    <>
      <div class="tools">
        {tools}
        <label>
          <span class="visually-hidden">{t("find")}</span>
          <input
            class="filter"
            type="search"
            data-key="/"
            placeholder={t("find")}
            value={find}
            onInput={(event) => {
              setFind(event.currentTarget.value);
              setCurrent(0);
            }}
            onKeyDown={(event) => {
              if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
            }}
          />
        </label>
        {wanted ? (
          <span class="dim" role="status">
            {t("shown", { n: hits.length ? Math.min(current, hits.length - 1) + 1 : 0, all: hits.length })}
          </span>
        ) : null}
      </div>
      <div class={columns ? "log-columns" : "column grow-log"} ref={box}>
        {(columns ?? [null]).map((label) => (
          <section>
            {label === null ? null : <h3 class="mono">{label}</h3>}
            <div class="log" tabIndex={0} role="log" data-empty={t("noLines")} aria-label={label ?? t("logs")}>
              {lines.map((line, index) =>
                label === null || line.label === label ? (
                  <div class="line" data-line={index} data-chosen={index === chosen} data-level={(line.level ?? "").toLowerCase()}>
                    <time title={line.at}>{clock(line.at)}</time>
                    {line.label && label === null ? <span class="label">{line.label}</span> : null}
                    <span class="content">{wanted ? marked(line.text, wanted) : line.text}</span>
                  </div>
                ) : null,
              )}
            </div>
          </section>
        ))}
      </div>
    </>
  );
}

/** Text in pieces, never markup. */
function marked(text: string, wanted: string): ComponentChildren {
  const lower = text.toLowerCase();
  const out: ComponentChildren[] = [];
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0 && out.length < 200; at = lower.indexOf(wanted, from)) {
    out.push(text.slice(from, at), <mark>{text.slice(at, at + wanted.length)}</mark>);
    from = at + wanted.length;
  }
  out.push(text.slice(from));
  return out;
}

function clock(at: string): string {
  return at.length >= 23 ? at.slice(11, 23) : at.slice(11);
}
