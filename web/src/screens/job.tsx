// One job: its graph, what each task does or waits for, events, the object itself; and what can be done about it.
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { GraphTask } from "../graph";
import type { Row } from "../live";
import { useJobView, type JobView } from "../jobview";
import { coterie } from "../commands";
import { ActionButton, Callout, Empty, Loading, Party, Phase, Progress, Screen, Time, useRows } from "../parts";
import { stateOf } from "../states";
import { KUSCIA } from "../rights";
import { address, setQuery, word } from "../router";
import { kube, send } from "../session";
import { t, type Key } from "../text";
import { span } from "../time";
import { TimelineChart } from "../timeline";
import { yaml } from "../yaml";
import { Decision } from "./approvals";
import { JobLogs, shownLogs } from "./joblogs";
import { JOBS, type JobRow } from "./jobs";
import { JobData } from "./request";

interface TaskTemplate {
  alias: string;
  taskID?: string;
  appImage?: string;
  dependencies?: string[];
  parties?: { domainID: string; role?: string }[];
}

interface Job {
  metadata: { name: string; creationTimestamp?: string; annotations?: Record<string, string> };
  spec: { initiator?: string; tasks?: TaskTemplate[] };
  status?: { phase?: string; reason?: string; message?: string; startTime?: string; completionTime?: string; taskStatus?: Record<string, string>; approveStatus?: Record<string, string>; approvalRecords?: Record<string, { by?: string; at?: string }> };
}

interface TaskRow extends Row {
  phase: string;
  began: string;
  ended: string;
  reason: string;
  message: string;
  progress: number;
  states: { party: string; phase: string; message: string }[];
}

interface EventRow extends Row {
  type: string;
  reason: string;
  message: string;
  kind: string;
  about: string;
  count: number;
  last: string;
}

const PATH = "/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciajobs";
const COMMANDS: Record<string, (name: string) => string[]> = {
  timeline: (name) => ["job", "show", name, "--timeline"],
  graph: (name) => ["job", "graph", name],
  data: (name) => ["job", "show", name],
  events: (name) => ["job", "show", name],
  yaml: (name) => ["job", "show", name, "-o", "yaml"],
};
const TABS: Key[] = ["timeline", "graph", "data", "logs", "events", "yaml"];

export function JobScreen() {
  const name = word(2);
  const row = useRows<JobRow>({ ...JOBS, fields: `metadata.name=${name}` });
  const changed = JSON.stringify(row.list.value[0] ?? null);
  const [job, setJob] = useState<Job | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let current = true;
    kube("GET", `${PATH}/${encodeURIComponent(name)}`)
      .then((found) => current && (setJob(found as Job), setProblem("")))
      .catch((error: Error) => current && setProblem(error.message));
    return () => {
      current = false;
    };
  }, [name, changed]);
  const { view, problem: unseen } = useJobView(name, changed, job !== null && !job.status?.completionTime);
  const tab = address.value.searchParams.get("tab") ?? "timeline";
  const phase = job?.status?.phase ?? "Pending";
  return (
    <Screen
      title={<span class="mono">{name}</span>}
      parent={{ href: "/jobs", label: t("jobs") }}
      tools={job ? <Phase phase={phase} /> : null}
      actions={job ? <Actions name={name} phase={phase} ours={row.list.value[0]?.ours ?? true} /> : null}
      command={tab === "logs" ? shownLogs(name) : coterie((COMMANDS[tab] ?? COMMANDS.events)?.(name) ?? [])}
    >
      {problem || unseen ? <div class="banner">{problem || unseen}</div> : null}
      {job ? <Strip job={job} view={view} /> : null}
      <div class="under-head">
        {job?.status?.message && phase !== "Succeeded" ? <Callout text={job.status.message} state={stateOf(phase)} /> : null}
      </div>
      <div role="tablist">
        {TABS.map((each) => (
          <button role="tab" type="button" aria-selected={tab === each} tabIndex={tab === each ? 0 : -1} onKeyDown={(event) => moveTab(event, each)} onClick={() => setQuery("tab", each)}>
            {t(each)}
          </button>
        ))}
      </div>
      <div class="body">
        <div role="tabpanel" aria-label={t(TABS.find((each) => each === tab) ?? "timeline")} class="panel">
          {job === null ? problem ? null : <Loading /> : tab === "yaml" ? (
            <pre class="text" tabIndex={0}>
              {yaml(job)}
            </pre>
          ) : tab === "events" ? (
            <Events job={job} />
          ) : tab === "graph" ? (
            <Tasks job={job} view={view} />
          ) : tab === "data" ? (
            <JobData name={name} changed={changed} />
          ) : tab === "logs" ? (
            <JobLogs name={name} running={!job.status?.completionTime} />
          ) : (
            view ? <TimelineChart view={view} /> : <Loading />
          )}
        </div>
      </div>
    </Screen>
  );
}

/** The job in one line: who, whom with, when, how far, and who allowed it. */
function Strip({ job, view }: { job: Job; view: JobView | null }) {
  const tasks = job.spec.tasks ?? [];
  const parties = [...new Set(tasks.flatMap((task) => (task.parties ?? []).map((party) => party.domainID)))].sort();
  const answers = Object.entries(job.status?.approveStatus ?? {});
  const records = job.status?.approvalRecords ?? {};
  const began = job.status?.startTime ?? "";
  return (
    <dl class="strip">
      <div>
        <dt>{t("parties")}</dt>
        <dd>
          {parties.map((party) => (
            <Party name={party} />
          ))}
        </dd>
      </div>
      <div>
        <dt>{t("initiator")}</dt>
        <dd>{job.spec.initiator}</dd>
      </div>
      {view ? (
        <div>
          <dt>{t("progress")}</dt>
          <dd>
            <Progress share={view.state.progress} text={view.state.progressText} label={job.metadata.name} />
            <span class="dim">{t("tasksDone", { n: view.state.done, all: view.state.tasks.length })}</span>
          </dd>
        </div>
      ) : null}
      <div>
        <dt>{t("created")}</dt>
        <dd>
          <Time at={job.metadata.creationTimestamp ?? ""} />
        </dd>
      </div>
      {began ? (
        <div>
          <dt>{t("took")}</dt>
          <dd>{span(began, job.status?.completionTime ?? "")}</dd>
        </div>
      ) : null}
      {answers.length ? (
        <div>
          <dt>{t("approvals")}</dt>
          <dd>
            {answers.map(([party, answer]) => (
              <span>
                {answer === "JobAccepted" ? "✔" : "✘"} {party}
                {records[party]?.by ? (
                  <span class="dim">
                    {" "}
                    {t("decidedHere", { who: records[party]?.by ?? "" })} <Time at={records[party]?.at ?? ""} />
                  </span>
                ) : null}
              </span>
            ))}
          </dd>
        </div>
      ) : null}
    </dl>
  );
}

/** Arrows go from tab to tab, as in every tab list. */
function moveTab(event: KeyboardEvent, from: Key): void {
  const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
  if (step === 0) return;
  event.preventDefault();
  const next = (TABS.indexOf(from) + step + TABS.length) % TABS.length;
  setQuery("tab", TABS[next] ?? "timeline");
  const list = (event.currentTarget as HTMLElement).parentElement;
  (list?.children[next] as HTMLElement | undefined)?.focus();
}

function Tasks({ job, view }: { job: Job; view: JobView | null }) {
  const tasks = useRows<TaskRow>({ resource: "kusciatasks", group: "kuscia.secretflow", version: "v1alpha1", namespace: "cross-domain" });
  const [Graph, setGraph] = useState<ComponentType<{ tasks: GraphTask[]; chosen: string; open(alias: string): void }> | null>(null);
  useEffect(() => {
    void import("../graph").then((module) => setGraph(() => module.default));
  }, []);
  const states = job.status?.taskStatus ?? {};
  const templates = job.spec.tasks ?? [];
  const rows = new Map(tasks.list.value.map((task) => [task.name, task]));
  const graph: GraphTask[] = templates.map((task) => {
    const row = rows.get(task.taskID ?? "");
    const phase = states[task.taskID ?? ""] ?? "Pending";
    const of = (party: string): string => row?.states.find((each) => each.party === party)?.phase || phase;
    return {
      alias: task.alias,
      phase,
      engine: task.appImage ?? "",
      progress: view?.state.tasks.find((each) => each.alias === task.alias)?.progress ?? row?.progress ?? 0,
      parties: (task.parties ?? []).map((party) => ({ name: party.domainID, phase: of(party.domainID) })),
      after: task.dependencies ?? [],
    };
  });
  const now = (phases: string[]): string => graph.find((task) => phases.includes(task.phase))?.alias ?? "";
  const chosen = address.value.searchParams.get("task") || now(["Failed"]) || now(["Running"]) || templates[0]?.alias || "";
  const template = templates.find((task) => task.alias === chosen);
  const row = rows.get(template?.taskID ?? "");
  const shown = graph.find((task) => task.alias === chosen);
  return (
    <>
      <div class="picture">{Graph ? <Graph tasks={graph} chosen={chosen} open={(alias) => setQuery("task", alias)} /> : null}</div>
      {template && shown ? (
        <section class="section narrow">
          <h2>
            <a class="mono" href={`/jobs/${encodeURIComponent(job.metadata.name)}/tasks/${encodeURIComponent(template.alias)}`}>
              {template.alias}
            </a>{" "}
            <Phase phase={shown.phase} />
            <a class="more" href={`/jobs/${encodeURIComponent(job.metadata.name)}?tab=logs&logtask=${encodeURIComponent(template.alias)}`}>
              {t("logs")}
            </a>
          </h2>
          {row?.message && row.message !== job.status?.message && shown.phase !== "Succeeded" ? <Callout key={template.alias} text={row.message} state={stateOf(shown.phase)} /> : null}
          <dl class="facts">
            <dt>{t("engine")}</dt>
            <dd class="mono">{template.appImage}</dd>
            {template.taskID ? (
              <>
                <dt>{t("task")}</dt>
                <dd class="mono">{template.taskID}</dd>
              </>
            ) : null}
            {template.dependencies?.length ? (
              <>
                <dt>{t("after")}</dt>
                <dd class="mono">{template.dependencies.join(", ")}</dd>
              </>
            ) : null}
            {row?.began ? (
              <>
                <dt>{t("took")}</dt>
                <dd>{span(row.began, row.ended)}</dd>
              </>
            ) : null}
          </dl>
          <div class="scroll above">
            <table class="plain">
              <thead>
                <tr>
                  <th>{t("party")}</th>
                  <th>{t("role")}</th>
                  <th>{t("state")}</th>
                  <th>{t("reason")}</th>
                </tr>
              </thead>
              <tbody>
                {(template.parties ?? []).map((party) => (
                  <tr>
                    <td>
                      <Party name={party.domainID} />
                    </td>
                    <td>{party.role}</td>
                    <td>
                      <Phase phase={shown.parties.find((each) => each.name === party.domainID)?.phase ?? "Pending"} />
                    </td>
                    <td class="message">{row?.states.find((each) => each.party === party.domainID)?.message}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      ) : null}
    </>
  );
}

function Events({ job }: { job: Job }) {
  const events = useRows<EventRow>({ resource: "events", version: "v1", namespace: "cross-domain" });
  const names = new Set([job.metadata.name, ...(job.spec.tasks ?? []).map((task) => task.taskID ?? "")]);
  const shown = events.list.value.filter((event) => names.has(event.about));
  if (events.ready.value && shown.length === 0) return <Empty text={t("noEvents")} command={coterie(["get", "events", "-n", "cross-domain"])} />;
  return (
    <table class="plain">
      <thead>
        <tr>
          <th>{t("when")}</th>
          <th>{t("event")}</th>
          <th class="wide">{t("about")}</th>
          <th>{t("message")}</th>
        </tr>
      </thead>
      <tbody>
        {shown.map((event) => (
          <tr>
            <td>
              <Time at={event.last || event.at} />
            </td>
            <td class={event.type === "Warning" ? "warn" : ""}>
              {event.type === "Warning" ? "! " : ""}
              {event.reason}
            </td>
            <td class="mono wide">{event.about}</td>
            <td class="message">
              {event.message}
              {event.count > 1 ? ` (${event.count}×)` : ""}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

const OFFERED: Record<string, Key[]> = {
  Running: ["stop"],
  Pending: ["stop"],
  Initialized: ["stop"],
  AwaitingApproval: ["stop"],
  Failed: ["restart"],
  Suspended: ["restart"],
};

export function Actions({ name, phase, ours }: { name: string; phase: string; ours: boolean }) {
  const [problem, setProblem] = useState("");
  if (phase === "AwaitingApproval" && !ours) return <Decision name={name} />;
  const need = { verb: "patch", group: KUSCIA, resource: "kusciajobs", namespace: "cross-domain" };
  const act = (action: Key): void => {
    send("POST", `/actions/jobs/${encodeURIComponent(name)}/${action}`)
      .then(() => setProblem(""))
      .catch((error: Error) => setProblem(error.message));
  };
  return (
    <>
      {(OFFERED[phase] ?? []).map((action) => (
        <ActionButton need={need} label={t(action)} again act={() => act(action)} />
      ))}
      {problem ? (
        <span class="bad message" role="alert">
          {problem}
        </span>
      ) : null}
    </>
  );
}
