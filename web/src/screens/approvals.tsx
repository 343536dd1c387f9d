// Jobs that partners want to run here: who, which engine, which of our tables and columns.
import { useState } from "preact/hooks";
import { coterie } from "../commands";
import { ActionButton, AsCommand, Callout, Empty, Screen, Time, useRows } from "../parts";
import { LogRequestCard, useLogRequests } from "../logrequests";
import { KUSCIA } from "../rights";
import { send } from "../session";
import { t } from "../text";
import { JOBS, type JobRow } from "./jobs";
import { RequestFacts, useRequest, Verdict } from "./request";

export const WAITING = { ...JOBS, phase: "AwaitingApproval" };
const DECIDED_SHOWN = 50;

export function Approvals() {
  const jobs = useRows<JobRow>(JOBS);
  const all = jobs.list.value;
  const waiting = all.filter((job) => job.phase === "AwaitingApproval" && !job.ours);
  const theirs = all.filter((job) => job.phase === "AwaitingApproval" && job.ours);
  const decided = all
    .filter((job) => !job.ours && job.answers && job.phase !== "AwaitingApproval")
    .sort((a, b) => ((a.decidedAt ?? a.at) < (b.decidedAt ?? b.at) ? 1 : -1))
    .slice(0, DECIDED_SHOWN);
  const first = waiting[0];
  const asked = useLogRequests();
  return (
    <Screen title={t("approvals")} command={first ? coterie(["policy", "explain", `job/${first.name}`]) : coterie(asked.length ? ["logrequest", "ls"] : ["job", "ls", "--phase", "AwaitingApproval"])}>
      <div class="body">
        {jobs.problem.value ? <p class="bad message">{jobs.problem.value}</p> : null}
        <section class="section inbox">
          {jobs.ready.value && waiting.length + asked.length === 0 ? <Empty icon="approvals" title={t("nothingToApprove")} text={t("policyDecides")} command={coterie(["policy", "ls"])} /> : null}
          {waiting.map((job) => (
            <Request key={job.id} job={job} />
          ))}
          {asked.map((request) => (
            <LogRequestCard key={request.id} request={request} />
          ))}
        </section>
        {theirs.length ? (
          <section class="section inbox">
            <h2>{t("askedOthers")}</h2>
            <div class="items">
              {theirs.map((job) => (
                <a class="item" href={`/jobs/${encodeURIComponent(job.name)}`}>
                  <span class="state" data-state="approval">
                    <span aria-hidden="true">◆</span>
                    {t("waiting")}
                  </span>
                  <span class="what">
                    <span class="mono">{job.name}</span>
                    <span class="dim">{t("waitsForOthers", { who: open(job).join(", ") })}</span>
                  </span>
                  <span class="parties" />
                  <span class="last">
                    <Time at={job.at} />
                  </span>
                </a>
              ))}
            </div>
          </section>
        ) : null}
        {decided.length ? (
          <section class="section inbox">
            <h2>{t("decided")}</h2>
            <div class="items">
              {decided.map((job) => (
                <Decided job={job} />
              ))}
            </div>
          </section>
        ) : null}
      </div>
    </Screen>
  );
}

function open(job: JobRow): string[] {
  return job.parties.filter((party) => party !== job.initiator && job.answers?.[party] !== "JobAccepted");
}

function Decided({ job }: { job: JobRow }) {
  const refused = Object.values(job.answers ?? {}).some((answer) => answer !== "JobAccepted");
  return (
    <a class="item" href={`/jobs/${encodeURIComponent(job.name)}?tab=data`}>
      <span class="state" data-state={refused ? "failed" : "succeeded"}>
        <span aria-hidden="true">{refused ? "✘" : "✔"}</span>
        {t(refused ? "rejected" : "accepted")}
      </span>
      <span class="what">
        <span class="mono">{job.name}</span>
        <span class="dim">{t("asksYou", { who: job.initiator })}</span>
      </span>
      <span class="dim parties">{job.decidedBy || t("byPolicy")}</span>
      <span class="last">
        <Time at={job.decidedAt ?? job.at} />
      </span>
    </a>
  );
}

function Request({ job }: { job: JobRow }) {
  const { request, problem } = useRequest(job.name, job.phase);
  const engines = [...new Set((request?.tasks ?? []).map((task) => (task.version ? `${task.engine}:${task.version}` : task.engine)))];
  const tables = [...new Set((request?.tasks ?? []).flatMap((task) => task.tables.map((table) => table.table)))];
  const refusals = [...new Set((request?.tasks ?? []).flatMap((task) => task.tables.filter((table) => table.needsGrant && !table.grant).map((table) => table.refusal)))];
  return (
    <section class="card">
      <h2>
        <strong>{t(tables.length ? "wantsTables" : "wantsRun", { who: job.initiator, engine: engines.join(", "), tables: tables.join(", ") })}</strong>
      </h2>
      <p class="dim">
        <a class="mono" href={`/jobs/${encodeURIComponent(job.name)}`}>
          {job.name}
        </a>{" "}
        · <Time at={job.at} />
      </p>
      {problem ? <p class="bad message">{problem}</p> : null}
      {request ? (
        <>
          {refusals.map((refusal) => (
            <Callout text={`${t("wouldFail")} ${refusal}`} state="failed" />
          ))}
          <RequestFacts request={request} />
          <Verdict request={request} />
          <Decision name={job.name} />
          <p>
            <AsCommand command={coterie(["job", "approve", job.name])} />
          </p>
        </>
      ) : null}
    </section>
  );
}

export function Decision({ name }: { name: string }) {
  const [reason, setReason] = useState("");
  const [rejecting, setRejecting] = useState(false);
  const [problem, setProblem] = useState("");
  const need = { verb: "patch", group: KUSCIA, resource: "kusciajobs/status", namespace: "cross-domain" };
  const act = (action: string): void => {
    send("POST", `/actions/jobs/${encodeURIComponent(name)}/${action}`, action === "reject" ? { reason } : undefined)
      .then(() => setProblem(""))
      .catch((error: Error) => setProblem(error.message));
  };
  return (
    <div class="decision">
      {rejecting ? (
        <>
          <label class="grow">
            <span>{t("rejectReason")}</span>
            <input value={reason} maxLength={1000} onInput={(event) => setReason(event.currentTarget.value)} />
          </label>
          <ActionButton need={need} label={t("rejectNow")} danger act={() => act("reject")} />
          <button type="button" onClick={() => setRejecting(false)}>
            {t("cancel")}
          </button>
          <p class="dim">{t("reasonTravels")}</p>
        </>
      ) : (
        <>
          <ActionButton need={need} label={t("reject")} quiet act={() => setRejecting(true)} />
          <ActionButton need={need} label={t("approve")} first act={() => act("approve")} />
        </>
      )}
      {problem ? (
        <span class="bad message" role="alert">
          {problem}
        </span>
      ) : null}
    </div>
  );
}
