// The logs of a job at all parties that may be seen: engines, and what the other components say about it.
import { useEffect, useRef, useState } from "preact/hooks";
import { coterie, logsCommand } from "../commands";
import { AsCommand, Loading } from "../parts";
import { address, setQuery } from "../router";
import { send } from "../session";
import { t } from "../text";
import { joined, LogLines, type Line } from "../logs";

interface Page {
  lines: { at: string; source: string; party: string; task: string; pod: string; text: string; level: string }[];
  cursor: string;
  notes: string[];
  parties: string[];
  visible: string[];
  tasks: string[];
}

const SOURCES = ["engine", "gateway", "scheduler", "datamesh", "controller"];
const OVERLAP = 15000;
const MOST_COLUMNS = 6;

/** What the address asks for, as a command. */
export function shownLogs(job: string): string {
  const of = (name: string): string => address.value.searchParams.get(name) ?? "";
  return logsCommand({ job, party: of("party"), task: of("logtask"), source: of("source") || "engine", since: of("since"), grep: of("grep"), follow: false });
}

export function JobLogs({ name, running }: { name: string; running: boolean }) {
  const params = address.value.searchParams;
  const party = params.get("party") ?? "";
  const task = params.get("logtask") ?? "";
  const source = params.get("source") ?? "engine";
  const since = params.get("since") ?? "";
  const grep = params.get("grep") ?? "";
  const [pattern, setPattern] = useState(grep);
  const [lines, setLines] = useState<Line[]>([]);
  const [page, setPage] = useState<Page | null>(null);
  const [older, setOlder] = useState("");
  const [problem, setProblem] = useState("");
  const [follow, setFollow] = useState(running);
  const newest = useRef("");
  const asked = [name, party, task, source, since, grep].join("\u0000");
  const where = (more: Record<string, string>): string => {
    const query = new URLSearchParams();
    if (party) query.set("party", party);
    if (task) query.set("task", task);
    if (source !== "all") query.set("source", source);
    if (since) query.set("since", since);
    if (grep) query.set("grep", grep);
    for (const [key, value] of Object.entries(more)) if (value) query.set(key, value);
    return `/logs/jobs/${encodeURIComponent(name)}?${query.toString()}`;
  };
  const take = (found: Page): Line[] => {
    const last = found.lines[found.lines.length - 1]?.at ?? "";
    if (last > newest.current) newest.current = last;
    return found.lines.map((line) => ({ at: line.at, label: [line.party, line.task, line.source === "engine" ? "" : line.source].filter(Boolean).join("/"), text: line.text, level: line.level }));
  };
  useEffect(() => {
    let current = true;
    newest.current = "";
    setLines([]);
    send("GET", where({}))
      .then((found) => {
        if (!current) return;
        const first = found as Page;
        setPage(first);
        setOlder(first.cursor);
        setLines(joined([], take(first)));
        setProblem("");
      })
      .catch((error: Error) => current && setProblem(error.message));
    return () => {
      current = false;
    };
  }, [asked]);
  useEffect(() => {
    if (!follow) return;
    let current = true;
    let busy = false;
    const timer = setInterval(() => {
      if (document.hidden || busy) return;
      busy = true;
      const from = newest.current ? new Date(Date.parse(newest.current) - OVERLAP).toISOString() : "";
      send("GET", where(from ? { since: from } : {}))
        .then((found) => {
          if (!current) return;
          setLines((before) => joined(before, take(found as Page)));
          setProblem("");
        })
        .catch((error: Error) => current && setProblem(error.message))
        .finally(() => {
          busy = false;
        });
    }, 2000);
    return () => {
      current = false;
      clearInterval(timer);
    };
  }, [asked, follow]);
  const more = (): void => {
    send("GET", where({ cursor: older }))
      .then((found) => {
        const before = found as Page;
        setOlder(before.cursor);
        setLines((now) => joined(take(before), now));
      })
      .catch((error: Error) => setProblem(error.message));
  };
  const hidden = page ? page.parties.filter((each) => !page.visible.includes(each)) : [];
  const [absent = ""] = hidden;
  const split = params.get("split") === "1";
  const labels = [...new Set(lines.map((line) => line.label))].sort().slice(0, MOST_COLUMNS);
  return (
    <div class="column">
      {problem ? (
        <p class="bad message" role="alert">
          {problem}
        </p>
      ) : null}
      {page?.notes.map((note) => <p class="dim message">{note}</p>)}
      {hidden.length ? (
        <p class="dim">
          {t("partnersLogs", { who: hidden.join(", ") })} <AsCommand command={coterie(["job", "logs", name, "--party", absent, "--ask", "why did it fail?"])} />
        </p>
      ) : null}
      {page === null && !problem ? <Loading /> : null}
      <LogLines
        lines={lines}
        follow={follow}
        tools={
          <>
            <Choice label={t("party")} value={party} options={page?.visible ?? []} every choose={(value) => setQuery("party", value)} />
            <Choice label={t("task")} value={task} options={page?.tasks ?? []} every choose={(value) => setQuery("logtask", value)} />
            <Choice label={t("source")} value={source} options={[...SOURCES, "all"]} choose={(value) => setQuery("source", value)} />
            <Choice label={t("since")} value={since} options={["10m", "1h", "1d"]} every choose={(value) => setQuery("since", value)} />
            <form
              onSubmit={(event) => {
                event.preventDefault();
                setQuery("grep", pattern);
              }}
            >
              <label>
                <span class="visually-hidden">{t("grep")}</span>
                <input class="filter short" placeholder={t("grep")} value={pattern} onInput={(event) => setPattern(event.currentTarget.value)} />
              </label>
            </form>
            <label class="check">
              <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> {t("follow")}
            </label>
            <label class="check">
              <input type="checkbox" checked={split} onChange={(event) => setQuery("split", event.currentTarget.checked ? "1" : "")} /> {t("sideBySide")}
            </label>
            {older ? <button onClick={more}>{t("older")}</button> : null}
          </>
        }
        {...(split && labels.length > 1 ? { columns: labels } : {})}
      />
    </div>
  );
}

export function Choice({ label, value, options, every, choose }: { label: string; value: string; options: string[]; every?: boolean; choose(value: string): void }) {
  return (
    <label class="choice">
      <span>{label}</span>
      <select value={value} onChange={(event) => choose(event.currentTarget.value)}>
        {every ? <option value="">{t("all")}</option> : null}
        {options.map((each) => (
          <option value={each}>{each}</option>
        ))}
      </select>
    </label>
  );
}
