// A job from the page: engine, parties, tables and columns; tried by a dry run before it is sent.
import { useState } from "preact/hooks";
import { runCommand } from "../commands";
import { ActionButton, Callout, Empty, Party, Screen, useRows } from "../parts";
import { type JobPlan, PlanView } from "../planview";
import type { Row } from "../live";
import { KUSCIA as GROUP } from "../rights";
import { go } from "../router";
import { send, session } from "../session";
import { t } from "../text";
import { yaml } from "../yaml";
import type { DataRow } from "./data";

interface ImageRow extends Row {
  image: string;
}

interface Chosen {
  role: string;
  cpu: string;
  memory: string;
  table: string;
  columns: string[];
}

interface Answer {
  job: { metadata: { name: string } };
  problems: string[];
  created: boolean;
}

interface PlanAnswer {
  problems: string[];
  plan: JobPlan | null;
}

const KUSCIA = { group: GROUP, version: "v1alpha1" };
const NEED = { verb: "create", group: GROUP, resource: "kusciajobs", namespace: "cross-domain" };

export function Compose() {
  const images = useRows<ImageRow>({ resource: "appimages", ...KUSCIA });
  const domains = useRows<Row>({ resource: "domains", ...KUSCIA });
  const data = useRows<DataRow>({ resource: "domaindatas", ...KUSCIA });
  const [engine, setEngine] = useState("");
  const [name, setName] = useState("");
  const [parties, setParties] = useState<Record<string, Chosen>>(session.value?.domain ? { [session.value.domain]: EMPTY } : {});
  const [written, setWritten] = useState<string | null>(null);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [planned, setPlanned] = useState<PlanAnswer | null>(null);
  const [planning, setPlanning] = useState(false);
  const [problem, setProblem] = useState("");
  const names = domains.list.value.map((domain) => domain.name).sort();
  const engines = images.list.value.map((image) => image.name).sort();
  const picked = engine || engines[0] || "";
  const chosen = Object.keys(parties).filter((each) => names.includes(each));
  const input = written ?? inputOf(parties, chosen);
  const badInput = input.trim() !== "" && !isJson(input);
  const body = {
    engine: picked,
    name,
    input,
    initiator: chosen.includes(session.value?.domain ?? "") ? session.value?.domain : "",
    parties: chosen.map((domain) => ({ domain, role: parties[domain]?.role ?? "", cpu: parties[domain]?.cpu ?? "", memory: parties[domain]?.memory ?? "" })),
  };
  const changed = (): void => {
    setAnswer(null);
    setPlanned(null);
  };
  const change = (domain: string, some: Partial<Chosen>): void => {
    setParties({ ...parties, [domain]: { ...(parties[domain] ?? EMPTY), ...some } });
    changed();
  };
  const askAll = (): void => {
    setPlanning(true);
    setPlanned(null);
    send("POST", "/actions/jobs/plan", { ...body, name: answer?.job.metadata.name ?? body.name })
      .then((found) => {
        setPlanned(found as PlanAnswer);
        setProblem("");
      })
      .catch((error: Error) => setProblem(error.message))
      .finally(() => setPlanning(false));
  };
  const ask = (action: "check" | "create"): void => {
    send("POST", `/actions/jobs/${action}`, body)
      .then((found) => {
        const got = found as Answer;
        setAnswer(got);
        setProblem("");
        if (got.created) go(`/jobs/${encodeURIComponent(got.job.metadata.name)}`);
      })
      .catch((error: Error) => setProblem(error.message));
  };
  return (
    <Screen title={t("newJob")} parent={{ href: "/jobs", label: t("jobs") }} command={runCommand({ ...body, initiator: body.initiator ?? "" })}>
      <div class="body">
        {images.ready.value && engines.length === 0 ? <Empty title={t("noEnginesTitle")} text={t("noEngines")} command="coterie engine add psi" /> : null}
        <div class="compose">
          <form
          class="fields"
          onSubmit={(event) => {
            event.preventDefault();
            ask("check");
          }}
        >
          <label>
            <span>{t("engine")}</span>
            <select
              value={picked}
              onChange={(event) => {
                setEngine(event.currentTarget.value);
                changed();
              }}
            >
              {engines.map((each) => (
                <option value={each}>{each}</option>
              ))}
            </select>
          </label>
          <label class="double">
            <span>{t("name")}</span>
            <input
              value={name}
              placeholder={t("nameMade")}
              onInput={(event) => {
                setName(event.currentTarget.value);
                changed();
              }}
            />
          </label>
          <fieldset class="full">
            <legend>{t("parties")}</legend>
            {names.map((domain) => (
              <PartyFields
                domain={domain}
                chosen={parties[domain]}
                tables={data.list.value.filter((table) => (table.author || table.namespace) === domain)}
                toggle={(on) => {
                  const { [domain]: _, ...rest } = parties;
                  setParties(on ? { ...parties, [domain]: EMPTY } : rest);
                  changed();
                }}
                change={(some) => change(domain, some)}
              />
            ))}
          </fieldset>
          <label class="full">
            <span>
              {t("input")} {badInput ? <span class="bad">{t("notJson")}</span> : null}
            </span>
            <textarea
              rows={6}
              class="mono"
              value={input}
              onInput={(event) => {
                setWritten(event.currentTarget.value);
                changed();
              }}
            />
          </label>
          {written !== null ? (
            <p class="full">
              <button type="button" onClick={() => setWritten(null)}>
                {t("inputFromTables")}
              </button>
            </p>
          ) : null}
          <p class="full tools">
            <button type="submit" disabled={chosen.length === 0 || picked === ""}>
              {t("check")}
            </button>
            {answer && answer.problems.length === 0 ? (
              <>
                <ActionButton need={planNeed(body.initiator || chosen[0] || "")} label={t("dryRun")} act={askAll} />
                <ActionButton need={NEED} label={t("run")} first act={() => ask("create")} />
              </>
            ) : (
              <span class="dim">{t("checkFirst")}</span>
            )}
          </p>
        </form>
        <div class="preview" aria-live="polite">
          <h2>{t("whatIsSent")}</h2>
          {answer || problem ? null : <p class="dim">{t("whatIsSentHint")}</p>}
          {problem ? <Callout text={problem} state="failed" /> : null}
          {answer ? (
            answer.problems.length ? (
              answer.problems.map((each) => <Callout text={each} state="failed" />)
            ) : (
              <>
                {planning ? <p class="dim">{t("planAsking")}</p> : null}
                {planned?.problems.map((each) => <Callout text={each} state="failed" />)}
                {planned?.plan ? <PlanView plan={planned.plan} /> : null}
                <p class="good">✔ {t("checksPassed")}</p>
                <pre class="text" tabIndex={0}>
                  {yaml(answer.job)}
                </pre>
              </>
            )
          ) : null}
        </div>
        </div>
      </div>
    </Screen>
  );
}

function planNeed(initiator: string) {
  return { verb: "create", group: GROUP, resource: "jobplanrequests", namespace: initiator };
}

const EMPTY: Chosen = { role: "", cpu: "", memory: "", table: "", columns: [] };

function PartyFields({ domain, chosen, tables, toggle, change }: { domain: string; chosen: Chosen | undefined; tables: DataRow[]; toggle(on: boolean): void; change(some: Partial<Chosen>): void }) {
  const table = tables.find((each) => each.name === chosen?.table);
  return (
    <div class="party">
      <label class="check">
        <input type="checkbox" checked={chosen !== undefined} onChange={(event) => toggle(event.currentTarget.checked)} /> <Party name={domain} />
      </label>
      {chosen ? (
        <div class="fields">
          <label>
            <span>{t("table")}</span>
            <select value={chosen.table} onChange={(event) => change({ table: event.currentTarget.value, columns: [] })}>
              <option value="">{t("none")}</option>
              {tables.map((each) => (
                <option value={each.name}>{each.name}</option>
              ))}
            </select>
          </label>
          <label>
            <span>{t("role")}</span>
            <input value={chosen.role} onInput={(event) => change({ role: event.currentTarget.value })} />
          </label>
          <label>
            <span>{t("cpu")}</span>
            <input value={chosen.cpu} placeholder={t("byEngine")} onInput={(event) => change({ cpu: event.currentTarget.value })} />
          </label>
          <label>
            <span>{t("memory")}</span>
            <input value={chosen.memory} placeholder={t("byEngine")} onInput={(event) => change({ memory: event.currentTarget.value })} />
          </label>
          {table ? (
            <fieldset class="full">
              <legend>{t("keyColumns")}</legend>
              {table.columns.map((column) => (
                <label class="check">
                  <input
                    type="checkbox"
                    checked={chosen.columns.includes(column.name)}
                    onChange={(event) => change({ columns: event.currentTarget.checked ? [...chosen.columns, column.name] : chosen.columns.filter((each) => each !== column.name) })}
                  />{" "}
                  {column.name}
                </label>
              ))}
            </fieldset>
          ) : null}
        </div>
      ) : null}
    </div>
  );
}

/** As the engines of this project read it: tables and columns by party. */
export function inputOf(parties: Record<string, Chosen>, chosen: string[]): string {
  const withTable = chosen.filter((each) => parties[each]?.table);
  if (withTable.length === 0) return "{}";
  const inputs = Object.fromEntries(withTable.map((each) => [each, parties[each]?.table ?? ""]));
  const keys = Object.fromEntries(withTable.filter((each) => parties[each]?.columns.length).map((each) => [each, parties[each]?.columns ?? []]));
  return JSON.stringify({ inputs, ...(Object.keys(keys).length ? { keys } : {}) }, null, 2);
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
