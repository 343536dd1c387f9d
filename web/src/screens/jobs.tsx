// All jobs: a list of any length, with filter and order in the address; several can be stopped at once.
import { useState } from "preact/hooks";
import { listCommand, stopCommand } from "../commands";
import { AsCommand, Empty, Parties, Phase, Screen, Share, Time, useRows, VirtualList, type Column } from "../parts";
import type { Row } from "../live";
import { KUSCIA, obstacle } from "../rights";
import { address, setQuery } from "../router";
import { send } from "../session";
import { glyphs, stateOf, words, type State } from "../states";
import { coterie } from "../commands";
import { t } from "../text";
import { now, span } from "../time";

export interface JobRow extends Row {
  phase: string;
  initiator: string;
  /** It was started at this control plane. */
  ours: boolean;
  parties: string[];
  tasks: number;
  done: number;
  /** Without what running tasks report. */
  progress: number;
  began: string;
  ended: string;
  reason: string;
  message: string;
  /** What our parties and partners answered, who here, and when. */
  answers?: Record<string, string>;
  decidedBy?: string;
  decidedAt?: string;
}

export const JOBS = { resource: "kusciajobs", group: "kuscia.secretflow", version: "v1alpha1", namespace: "cross-domain" };
const STATES: State[] = ["approval", "running", "preparing", "waiting", "failed", "succeeded"];
const ENDED = ["Succeeded", "Failed", "Cancelled", "ApprovalReject"];

/** `phase:Failed state:running party:bob words`: every part must match. Read once for a whole list. */
export function matching(filter: string): (job: JobRow) => boolean {
  const tests = filter
    .split(/\s+/)
    .filter((part) => part)
    .map((part): ((job: JobRow) => boolean) => {
      const colon = part.indexOf(":");
      const [key, value] = colon < 0 ? ["", part] : [part.slice(0, colon), part.slice(colon + 1)];
      const low = value.toLowerCase();
      const text = part.toLowerCase();
      if (key === "phase") return (job) => job.phase.toLowerCase() === low;
      if (key === "state") return (job) => stateOf(job.phase) === low;
      if (key === "party") return (job) => job.parties.includes(value);
      return (job) => `${job.name} ${job.reason} ${job.message} ${job.initiator}`.toLowerCase().includes(text);
    });
  return (job) => tests.every((test) => test(job));
}

/** The filter with another state, or without one. */
export function withState(filter: string, state: string): string {
  const rest = filter.split(/\s+/).filter((part) => part && !part.startsWith("state:") && !part.startsWith("phase:"));
  return [...(state ? [`state:${state}`] : []), ...rest].join(" ");
}

const KEYS: Record<string, (job: JobRow) => string | number> = {
  name: (job) => job.name,
  state: (job) => STATES.indexOf(stateOf(job.phase)),
  took: (job) => (job.began ? (job.ended ? Date.parse(job.ended) : now.peek()) - Date.parse(job.began) : -1),
  created: (job) => job.at,
};

/** `-took`: from the greatest on. Rows come with the newest first. */
export function sorted(jobs: JobRow[], by: string): JobRow[] {
  const down = by.startsWith("-");
  const key = KEYS[down ? by.slice(1) : by];
  if (!key) return jobs;
  const sign = down ? -1 : 1;
  return [...jobs].sort((a, b) => {
    const [one, two] = [key(a), key(b)];
    return one < two ? -sign : one > two ? sign : 0;
  });
}

interface TaskReport extends Row {
  job: string;
  progress: number;
}

/** `reports`: by job, what its running tasks have done together. As `coterie job ls` counts it. */
export function share(job: Pick<JobRow, "name" | "tasks" | "progress">, reports: Map<string, number>): number {
  return job.tasks ? Math.min(1, job.progress + (job.progress < 1 ? (reports.get(job.name) ?? 0) / job.tasks : 0)) : job.progress;
}

/** What is not all done is never shown as 100. */
export function percent(part: number): string {
  return `${Math.floor(part * 100 + 1e-9)}%`;
}

export function Jobs() {
  const rows = useRows<JobRow>(JOBS);
  const tasks = useRows<TaskReport>({ ...JOBS, resource: "kusciatasks", phase: "Running" });
  const reports = new Map<string, number>();
  for (const task of tasks.list.value) reports.set(task.job, (reports.get(task.job) ?? 0) + task.progress);
  const filter = address.value.searchParams.get("q") ?? "";
  const by = address.value.searchParams.get("sort") ?? "";
  const [ids, setIds] = useState<Set<string>>(new Set());
  const all = rows.list.value;
  const shown = sorted(filter ? all.filter(matching(filter)) : all, by);
  const picked = all.filter((job) => ids.has(job.id));
  const columns: Column<JobRow>[] = [
    { title: t("name"), key: "name", width: "clamp(112px, 19vw, 480px)", small: "minmax(0, 1fr)", cell: (job) => <span class="mono" title={job.name}>{job.name}</span> },
    { title: t("state"), key: "state", width: "120px", small: "112px", cell: (job) => <Phase phase={job.phase} /> },
    { title: t("progress"), width: "100px", wide: true, cell: (job) => <Share done={share(job, reports)} all={1} state={stateOf(job.phase)} shown={percent(share(job, reports))} hint={t("tasksDone", { n: job.done, all: job.tasks })} /> },
    { title: t("parties"), width: "80px", wide: true, cell: (job) => <Parties names={job.parties} /> },
    { title: t("took"), key: "took", width: "92px", wide: true, end: true, cell: (job) => (job.began ? span(job.began, job.ended) : "") },
    { title: t("created"), key: "created", width: "84px", small: "72px", end: true, cell: (job) => <Time at={job.at} /> },
    { title: t("reason"), width: "minmax(0, 1fr)", wide: true, cell: (job) => (ENDED.includes(job.phase) && job.phase !== "Succeeded" ? <span class="dim" title={job.message}>{job.message}</span> : "") },
  ];
  return (
    <Screen
      title={t("jobs")}
      actions={
        <a class="button first" href="/compose">
          {t("newJob")}
        </a>
      }
      command={listCommand(filter)}
    >
      {rows.problem.value ? <div class="banner">{rows.problem.value}</div> : null}
      {rows.ready.value && all.length === 0 && !filter && !rows.problem.value ? (
        <div class="body">
          <NoJobs />
        </div>
      ) : (
        <>
          <div class="filters">
            <label>
              <span class="visually-hidden">{t("filter")}</span>
              <input class="filter" type="search" data-key="/" value={filter} placeholder={t("filterHint")} onInput={(event) => setQuery("q", event.currentTarget.value)} />
            </label>
            <Facets jobs={all} filter={filter} />
            <span class="dim" role="status">
              {filter ? t("shown", { n: shown.length, all: all.length }) : ""}
            </span>
          </div>
          {rows.ready.value && shown.length === 0 ? (
            <div class="body">
              <Empty text={t("noMatch")}>
                <button type="button" onClick={() => setQuery("q", "")}>
                  {t("clearFilter")}
                </button>
              </Empty>
            </div>
          ) : (
            <VirtualList rows={shown} columns={columns} open={(job) => `/jobs/${encodeURIComponent(job.name)}`} label={t("jobs")} picked={{ ids, change: setIds }} sorting={{ by, change: (next) => setQuery("sort", next) }} />
          )}
          {picked.length ? <Bulk jobs={picked} clear={() => setIds(new Set())} /> : null}
        </>
      )}
    </Screen>
  );
}

export function NoJobs() {
  return <Empty icon="jobs" title={t("noJobsTitle")} text={t("noJobs")} command={coterie(["job", "run", "--engine", "sample", "--parties", "alice,bob"])} />;
}

function Facets({ jobs, filter }: { jobs: JobRow[]; filter: string }) {
  const counts: Record<string, number> = {};
  for (const job of jobs) counts[stateOf(job.phase)] = (counts[stateOf(job.phase)] ?? 0) + 1;
  return (
    <div class="facets" role="group" aria-label={t("state")}>
      <button type="button" aria-pressed={!/(?:^|\s)(?:state|phase):/.test(filter)} onClick={() => setQuery("q", withState(filter, ""))}>
        {t("all")}
        <span class="n">{jobs.length}</span>
      </button>
      {STATES.filter((state) => counts[state]).map((state) => {
        const on = filter.split(/\s+/).includes(`state:${state}`);
        return (
          <button type="button" aria-pressed={on} onClick={() => setQuery("q", withState(filter, on ? "" : state))}>
            <span class="state" data-state={state}>
              <span aria-hidden="true">{glyphs[state]}</span>
              {t(words[state])}
            </span>
            <span class="n">{counts[state]}</span>
          </button>
        );
      })}
    </div>
  );
}

const AT_ONCE = 4;

/** What can be done with all that are picked; it asks before, and says what was refused. */
function Bulk({ jobs, clear }: { jobs: JobRow[]; clear(): void }) {
  const [asked, setAsked] = useState(false);
  const [busy, setBusy] = useState(false);
  const [problems, setProblems] = useState<string[]>([]);
  const stoppable = jobs.filter((job) => !ENDED.includes(job.phase));
  const why = obstacle({ verb: "patch", group: KUSCIA, resource: "kusciajobs", namespace: "cross-domain" });
  const names = stoppable.map((job) => job.name);
  const stop = async (): Promise<void> => {
    setBusy(true);
    const left = [...names];
    const failed: string[] = [];
    const work = async (): Promise<void> => {
      for (let name = left.shift(); name !== undefined; name = left.shift()) {
        await send("POST", `/actions/jobs/${encodeURIComponent(name)}/stop`).catch((error: Error) => failed.push(`${name}: ${error.message}`));
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    setBusy(false);
    setAsked(false);
    setProblems(failed);
    if (failed.length === 0) clear();
  };
  return (
    <div class="bulk" role="region" aria-label={t("picked", { n: jobs.length })}>
      <strong>{t("picked", { n: jobs.length })}</strong>
      {asked ? (
        <>
          <span class="message">{t("stopAsk", { n: names.length, names: names.slice(0, 20).join(", ") + (names.length > 20 ? " …" : "") })}</span>
          <button type="button" class="danger" disabled={busy} onClick={() => void stop()}>
            {busy ? t("stopping") : t("stopNow", { n: names.length })}
          </button>
          <button type="button" disabled={busy} onClick={() => setAsked(false)}>
            {t("cancel")}
          </button>
        </>
      ) : (
        <>
          <button type="button" disabled={why !== "" || names.length === 0} title={why || (names.length === 0 ? t("noneStoppable") : "")} onClick={() => setAsked(true)}>
            {t("stopMany", { n: names.length })}
          </button>
          <button type="button" class="plain" onClick={clear}>
            {t("clearPicked")}
          </button>
          <span class="dim">{why || (names.length === 0 ? t("noneStoppable") : names.length < jobs.length ? t("someEnded", { n: jobs.length - names.length }) : "")}</span>
          {names.length ? <AsCommand command={stopCommand(names)} /> : null}
        </>
      )}
      {problems.length ? (
        <span class="message bad" role="alert">
          {problems.join("\n")}
        </span>
      ) : null}
    </div>
  );
}
