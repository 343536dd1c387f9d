// Whose tables may be used by whom: the grants, each use of them, and how to give and revoke one.
import { useState } from "preact/hooks";
import { coterie, grantCommand } from "../commands";
import { ActionButton, AsCommand, Empty, Icon, Party, Phase, Screen, Share, Time, useRows } from "../parts";
import type { Row } from "../live";
import { KUSCIA as GROUP, obstacle } from "../rights";
import { address, setQuery } from "../router";
import { send, session } from "../session";
import { t } from "../text";
import { daysUntil } from "../time";

export interface DataRow extends Row {
  title: string;
  kind: string;
  source: string;
  vendor: string;
  author: string;
  columns: { name: string; type: string }[];
}

interface UseRecord {
  at: string;
  by: string;
  component: string;
  task: string;
  job: string;
}

interface GrantRow extends Row {
  data: string;
  partner: string;
  author: string;
  phase: string;
  message: string;
  columns: string[];
  components: string[];
  until: string;
  uses: number;
  used: number;
  records: UseRecord[];
}

interface DomainRow extends Row {
  role: string;
}

const KUSCIA = { group: GROUP, version: "v1alpha1" };

export function Data() {
  const data = useRows<DataRow>({ resource: "domaindatas", ...KUSCIA });
  const grants = useRows<GrantRow>({ resource: "domaindatagrants", ...KUSCIA });
  const domains = useRows<DomainRow>({ resource: "domains", ...KUSCIA });
  const chosen = address.value.searchParams.get("table") ?? "";
  const own = grants.list.value.filter((grant) => grant.namespace === grant.author);
  const partners = [...new Set([...own.map((grant) => grant.partner), ...domains.list.value.filter((domain) => domain.role === "partner").map((domain) => domain.name)])].sort();
  const tables = data.list.value.filter((table) => !table.author || table.author === table.namespace);
  const table = tables.find((each) => each.id === chosen);
  // What we grant lies in the namespace of the partner, too.
  const ours = new Set(domains.list.value.filter((domain) => domain.role !== "partner").map((domain) => domain.name));
  const given = grants.list.value.filter((grant) => grant.author && grant.namespace !== grant.author && !ours.has(grant.author));
  return (
    <Screen title={t("data")} command={table ? coterie(["data", "show", table.name], table.namespace) : coterie(["data", "ls"])}>
      <div class="body">
        {data.problem.value ? <p class="bad message">{data.problem.value}</p> : null}
        {data.ready.value && tables.length === 0 ? <Empty icon="data" title={t("noDataTitle")} text={t("noData")} command={coterie(["data", "add", "people.csv"])} /> : null}
        {tables.length ? (
          <div class="scroll section">
            <table class="plain matrix">
              <thead>
                <tr>
                  <th>{t("table")}</th>
                  {partners.map((partner) => (
                    <th>
                      <Party name={partner} />
                    </th>
                  ))}
                  {partners.length ? null : <th>{t("partner")}</th>}
                </tr>
              </thead>
              <tbody>
                {tables.map((each) => (
                  <tr aria-selected={each.id === chosen}>
                    <td class="name">
                      <a class="mono" href={`/data?table=${encodeURIComponent(each.id)}`}>
                        {each.name}
                      </a>
                      <div class="dim">
                        {each.namespace} · {t("columnsOf", { n: each.columns.length })}
                      </div>
                    </td>
                    {partners.map((partner) => (
                      <Cell grants={own.filter((grant) => grant.data === each.name && grant.namespace === each.namespace && grant.partner === partner)} />
                    ))}
                    {partners.length ? null : <td class="dim">{t("noPartners")}</td>}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        ) : null}
        {table ? <TablePanel key={table.id} table={table} grants={own.filter((grant) => grant.data === table.name && grant.namespace === table.namespace)} partners={partners.filter((each) => each !== table.namespace)} /> : null}
        {given.length ? <Given grants={given} /> : null}
      </div>
    </Screen>
  );
}

function Cell({ grants }: { grants: GrantRow[] }) {
  return (
    <td>
      {grants.length ? (
        grants.map((grant) => <Limits grant={grant} />)
      ) : (
        <span class="dim" title={t("notGranted")}>
          –<span class="visually-hidden">{t("notGranted")}</span>
        </span>
      )}
    </td>
  );
}

const COLUMNS_SHOWN = 4;

/** Which columns, how many uses are left, until when; and whether it still counts. */
function Limits({ grant }: { grant: GrantRow }) {
  const shown = grant.columns.slice(0, COLUMNS_SHOWN);
  const more = grant.columns.length - shown.length;
  const over = grant.phase === "Unavailable" || (grant.until !== "" && daysUntil(grant.until) < 0);
  return (
    <div class="grant" title={grant.message}>
      <div>
        {grant.columns.length ? (
          shown.map((name) => (
            <span class="column-name" data-granted={!over}>
              {name}
            </span>
          ))
        ) : (
          <span class={over ? "dim" : ""}>{t("allColumns")}</span>
        )}
        {more > 0 ? (
          <span class="dim" title={grant.columns.join(", ")}>
            +{more}
          </span>
        ) : null}
      </div>
      {over ? (
        <span class="state" data-state="failed">
          <span aria-hidden="true">✘</span>
          {grant.uses && grant.used >= grant.uses ? t("usedUp", { n: grant.uses }) : t("grantOver")}
        </span>
      ) : grant.uses ? (
        <Share done={grant.used} all={grant.uses} state="waiting" shown={t("usesLeft", { n: grant.uses - grant.used, all: grant.uses })} />
      ) : (
        <span class="dim">{t("usesMade", { n: grant.used })}</span>
      )}
      {grant.until ? (
        <span class="dim">
          {t("until")} <time title={grant.until}>{grant.until.slice(0, 10)}</time>
          {over ? "" : ` · ${t("daysLeft", { n: daysUntil(grant.until) })}`}
        </span>
      ) : null}
    </div>
  );
}

/** What partners let us use. */
function Given({ grants }: { grants: GrantRow[] }) {
  return (
    <section class="section">
      <h2>{t("grantedToUs")}</h2>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th>{t("table")}</th>
              <th>{t("partner")}</th>
              <th>{t("grant")}</th>
            </tr>
          </thead>
          <tbody>
            {grants.map((grant) => (
              <tr>
                <td class="mono">{grant.data}</td>
                <td>
                  <Party name={grant.author} />
                </td>
                <td>
                  <Limits grant={grant} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function TablePanel({ table, grants, partners }: { table: DataRow; grants: GrantRow[]; partners: string[] }) {
  const [problem, setProblem] = useState("");
  const uses = grants.flatMap((grant) => grant.records.map((use) => ({ ...use, grant: grant.name, columns: grant.columns }))).sort((a, b) => (a.at < b.at ? 1 : -1));
  const revoke = (grant: GrantRow): void => {
    send("POST", `/actions/grants/${encodeURIComponent(grant.namespace)}/${encodeURIComponent(grant.name)}/revoke`)
      .then(() => setProblem(""))
      .catch((error: Error) => setProblem(error.message));
  };
  return (
    <section class="card section">
      <div class="tools">
        <h2 class="mono">{table.id}</h2>
        <button type="button" class="small" title={t("close")} aria-label={t("close")} onClick={() => setQuery("table", "")}>
          <Icon name="close" />
        </button>
      </div>
      <p>
        {table.columns.map((column) => (
          <span class="column-name" title={column.type}>
            {column.name}
          </span>
        ))}
      </p>
      {problem ? (
        <p class="bad message" role="alert">
          {problem}
        </p>
      ) : null}
      <h3>{t("grants")}</h3>
      {grants.length === 0 ? <p class="dim">{t("noGrants")}</p> : null}
      {grants.length ? (
        <div class="scroll">
          <table class="plain">
            <thead>
              <tr>
                <th>{t("partner")}</th>
                <th>{t("name")}</th>
                <th>{t("state")}</th>
                <th>{t("limits")}</th>
                <th>
                  <span class="visually-hidden">{t("revoke")}</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {grants.map((grant) => (
                <tr>
                  <td>
                    <Party name={grant.partner} />
                  </td>
                  <td class="mono">{grant.name}</td>
                  <td>
                    <Phase phase={grant.phase || "Pending"} />
                  </td>
                  <td>
                    <Limits grant={grant} />
                    {grant.message ? <div class="dim message">{grant.message}</div> : null}
                  </td>
                  <td>
                    <ActionButton need={{ verb: "delete", group: GROUP, resource: "domaindatagrants", namespace: grant.namespace }} label={t("revoke")} again act={() => revoke(grant)} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      <NewGrant table={table} partners={partners} failed={setProblem} />
      <h3>{t("eachUse")}</h3>
      {uses.length === 0 ? <p class="dim">{t("notUsed")}</p> : null}
      {uses.length ? (
        <div class="scroll">
          <table class="plain">
            <thead>
              <tr>
                <th>{t("when")}</th>
                <th>{t("partner")}</th>
                <th>{t("job")}</th>
                <th>{t("task")}</th>
                <th>{t("component")}</th>
                <th>{t("columns")}</th>
                <th>{t("grant")}</th>
              </tr>
            </thead>
            <tbody>
              {uses.slice(0, 200).map((use) => (
                <tr>
                  <td>
                    <Time at={use.at} />
                  </td>
                  <td>{use.by}</td>
                  <td class="mono">{use.job ? <a href={`/jobs/${encodeURIComponent(use.job)}`}>{use.job}</a> : null}</td>
                  <td class="mono">{use.task}</td>
                  <td class="mono">{use.component}</td>
                  <td title={use.columns.join(", ")}>{use.columns.length ? t("atMost", { names: use.columns.slice(0, COLUMNS_SHOWN).join(", ") + (use.columns.length > COLUMNS_SHOWN ? " …" : "") }) : t("allColumns")}</td>
                  <td class="mono dim">{use.grant}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      <AsCommand command={coterie(["data", "uses", table.name], table.namespace)} />
    </section>
  );
}

const TIMES: [string, number][] = [["1 h", 3600], ["1 d", 86400], ["7 d", 604800], ["30 d", 2592000]];

function NewGrant({ table, partners, failed }: { table: DataRow; partners: string[]; failed(problem: string): void }) {
  const [partner, setPartner] = useState("");
  const [columns, setColumns] = useState<string[]>([]);
  const [uses, setUses] = useState("");
  const [seconds, setSeconds] = useState(0);
  const need = { verb: "create", group: GROUP, resource: "domaindatagrants", namespace: table.namespace };
  const why = obstacle(need) || session.value?.readOnly;
  const whom = partner || partners[0] || "";
  const command = grantCommand(table.name, whom || "DOMAIN", columns, uses, seconds, table.namespace);
  const grant = (): void => {
    send("POST", `/actions/data/${encodeURIComponent(table.namespace)}/${encodeURIComponent(table.name)}/grant`, { partner: whom, columns, uses: Number(uses) || 0, seconds })
      .then(() => {
        failed("");
        setColumns([]);
      })
      .catch((error: Error) => failed(error.message));
  };
  if (partners.length === 0) return <p class="dim">{t("noPartners")}</p>;
  return (
    <details class="form" open={!why}>
      <summary>{t("newGrant")}</summary>
      <div class="fields">
        <label>
          <span>{t("partner")}</span>
          <select value={whom} onChange={(event) => setPartner(event.currentTarget.value)}>
            {partners.map((each) => (
              <option value={each}>{each}</option>
            ))}
          </select>
        </label>
        <label>
          <span>{t("uses")}</span>
          <input type="number" min={0} value={uses} placeholder={t("unlimited")} onInput={(event) => setUses(event.currentTarget.value)} />
        </label>
        <label>
          <span>{t("validFor")}</span>
          <select value={String(seconds)} onChange={(event) => setSeconds(Number(event.currentTarget.value))}>
            <option value="0">{t("unlimited")}</option>
            {TIMES.map(([label, value]) => (
              <option value={String(value)}>{label}</option>
            ))}
          </select>
        </label>
        <fieldset class="full">
          <legend>{columns.length ? t("columnsOf", { n: columns.length }) : t("allColumns")}</legend>
          {table.columns.map((column) => (
            <label class="check">
              <input type="checkbox" checked={columns.includes(column.name)} onChange={(event) => setColumns(event.currentTarget.checked ? [...columns, column.name] : columns.filter((each) => each !== column.name))} /> {column.name}
            </label>
          ))}
        </fieldset>
      </div>
      <p class="tools">
        <ActionButton need={need} label={t("grant")} first act={grant} />
        <AsCommand command={command} />
      </p>
    </details>
  );
}
