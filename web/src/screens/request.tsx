// What a job asks for: for each task the engine, and which tables and columns of ours, for whom.
import { useEffect, useState } from "preact/hooks";
import { bytes } from "../amounts";
import { Party, Time } from "../parts";
import { send } from "../session";
import { t, type Key } from "../text";
import { yaml } from "../yaml";

export interface RequestedTable {
  table: string;
  owner: string;
  columns: { name: string; named: boolean; granted: boolean }[];
  grant: string;
  needsGrant: boolean;
  refusal: string;
}

export interface RequestedTask {
  alias: string;
  engine: string;
  version: string;
  digest: string;
  components: string[];
  parties: { domain: string; role: string }[];
  input: string;
  usage: Record<string, number>;
  tables: RequestedTable[];
}

export interface JobRequest {
  job: string;
  initiator: string;
  foreign: boolean;
  approvers: string[];
  answers: Record<string, string>;
  answeredBy: Record<string, { by: string; at: string }>;
  rejectReason: string;
  tasks: RequestedTask[];
  policy?: string;
  verdict?: string;
  reasons?: string[];
  recorded?: string;
  recordedAt?: string;
}

export function useRequest(name: string, changed: string): { request: JobRequest | null; problem: string } {
  const [request, setRequest] = useState<JobRequest | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let current = true;
    send("GET", `/views/jobs/${encodeURIComponent(name)}/request`)
      .then((found) => current && (setRequest(found as JobRequest), setProblem("")))
      .catch((error: Error) => current && setProblem(error.message));
    return () => {
      current = false;
    };
  }, [name, changed]);
  return { request, problem };
}

export function RequestFacts({ request }: { request: JobRequest }) {
  return (
    <>
      {request.tasks.map((task) => (
        <section class="asked">
          <h3 class="mono">{task.alias}</h3>
          <dl class="facts">
            <dt>{t("engine")}</dt>
            <dd>
              <span class="mono">
                {task.engine}
                {task.version ? `:${task.version}` : ""}
              </span>
              {task.digest ? <span class="dim mono"> {task.digest.slice(0, 19)}</span> : null}
              {task.components.length ? <span class="mono"> {task.components[0]}</span> : null}
            </dd>
            <dt>{t("forWhom")}</dt>
            <dd class="tools-line">
              {task.parties.map((party) => (
                <span>
                  <Party name={party.domain} />
                  {party.domain === request.initiator ? <span class="dim"> {t("initiatorMark")}</span> : null}
                  {party.role ? <span class="dim"> {party.role}</span> : null}
                </span>
              ))}
            </dd>
            {Object.keys(task.usage).length ? (
              <>
                <dt>{t("asksFor")}</dt>
                <dd>{Object.entries(task.usage).map(([name, amount]) => t(USAGE[name] ?? "usageOther", { name, n: name === "memory" ? bytes(amount) : amount })).join(", ")}</dd>
              </>
            ) : null}
            <dt>{t("ourTables")}</dt>
            <dd>{task.tables.length ? task.tables.map((table) => <Table table={table} />) : <span class="dim">{t("noTables")}</span>}</dd>
          </dl>
          <details>
            <summary>{t("input")}</summary>
            <pre class="text">{shown(task.input)}</pre>
          </details>
        </section>
      ))}
    </>
  );
}

const USAGE: Record<string, Key> = { cpu: "usageCpu", memory: "usageMemory", bandwidth: "usageBandwidth", gpus: "usageGpus", pods: "usagePods" };

function Table({ table }: { table: RequestedTable }) {
  const named = table.columns.filter((column) => column.named);
  return (
    <div class="below-small">
      <a class="mono" href={`/data?table=${encodeURIComponent(`${table.owner}/${table.table}`)}`}>
        {table.owner}/{table.table}
      </a>{" "}
      {table.columns.map((column) => (
        <span class="column-name" data-named={column.named} data-granted={column.granted} title={t(column.named ? "columnNamed" : column.granted ? "columnGranted" : "columnNotGranted")}>
          {column.name}
        </span>
      ))}
      {table.needsGrant ? (
        <div class={table.grant ? "dim" : "bad"}>
          {table.grant ? `✔ ${t("coveredBy", { grant: table.grant })}` : `✘ ${t("noGrantCovers")}`}
          {named.length === 0 ? ` ${t("columnsUnknown")}` : ""}
        </div>
      ) : (
        <div class="dim">{t("ownUse")}</div>
      )}
    </div>
  );
}

const VERDICTS: Record<string, Key> = { allow: "verdictAllow", ask: "verdictAsk", refuse: "verdictRefuse" };

export function Verdict({ request }: { request: JobRequest }) {
  if (!request.foreign) return null;
  if (!request.policy) return <p class="dim">{t("noPolicy", { who: request.initiator })}</p>;
  return (
    <p>
      <span class="dim">{t("policyOf", { who: request.policy })} </span>
      {t(VERDICTS[(request.verdict ?? "").toLowerCase()] ?? "verdictAsk")}
      {(request.reasons ?? []).length ? <span class="message">: {(request.reasons ?? []).join("; ")}</span> : null}
    </p>
  );
}

export function JobData({ name, changed }: { name: string; changed: string }) {
  const { request, problem } = useRequest(name, changed);
  if (problem) return <p class="bad message">{problem}</p>;
  if (request === null) return null;
  return (
    <div class="narrow">
      <h2 class="visually-hidden">{t("data")}</h2>
      {Object.entries(request.answeredBy).map(([party, record]) => (
        <p>
          {t("answeredBy", { who: party, answer: request.answers[party] === "JobAccepted" ? t("accepted") : t("rejected"), by: record.by })} <Time at={record.at} />
        </p>
      ))}
      {Object.keys(request.answeredBy).length === 0 && request.recorded ? (
        <p>
          {t("byPolicy")}: <span class="message">{request.recorded}</span> <Time at={request.recordedAt ?? ""} />
        </p>
      ) : null}
      {request.rejectReason ? (
        <p>
          {t("rejectedBecause")}: <span class="message">{request.rejectReason}</span>
        </p>
      ) : null}
      <RequestFacts request={request} />
    </div>
  );
}

function shown(text: string): string {
  try {
    return yaml(JSON.parse(text));
  } catch {
    return text;
  }
}
