// Functions: what triggers them, what they call, how they do now; and of one, its versions, given up calls, logs and grants.
import { useEffect, useRef, useState } from "preact/hooks";
import { bytes } from "../amounts";
import { coterie, invokeCommand, versionsCommand } from "../commands";
import { FunctionGraph, type GraphCard } from "../functiongraph";
import { joined, LogLines, stamped, type Line } from "../logs";
import { ActionButton, AsCommand, Callout, Empty, Icon, Party, Phase, Screen, Share, Time, useRows } from "../parts";
import type { Row } from "../live";
import { address, setQuery } from "../router";
import { kube, kubeText } from "../session";
import { glyphs, type State } from "../states";
import { t, type Key } from "../text";

interface Version {
  name: string;
  created: string;
  percent: number;
  replicas: number;
}

export interface ActionRow extends Row {
  phase: string;
  message: string;
  /** Why new code was not taken over. */
  reload: string;
  next: string[];
  image: string;
  timeout: number;
  concurrency: number;
  policy: string;
  least: number;
  most: number;
  version: string;
  split: boolean;
  versions: Version[];
  desired: number;
  replicas: number;
  ready: number;
  calls: number;
  errors: number;
  cold: number;
  dead: number;
  scaled: string;
}

export interface TriggerRow extends Row {
  phase: string;
  message: string;
  action: string;
  by: "http" | "schedule" | "topic" | "table";
  what: string;
  methods: string[];
  suspended: boolean;
  last: string;
}

export interface ActionGrantRow extends Row {
  phase: string;
  message: string;
  action: string;
  partner: string;
  tables: string[];
  uses: number;
  used: number;
  perMinute: number;
  until: string;
  last: string;
}

interface LetterRow extends Row {
  action: string;
  request: string;
  reason: string;
  attempts: number;
  size: number;
  type: string;
  time: string;
  replay: boolean;
}

interface ActorRow extends Row {
  phase: string;
  names: string[];
}

const GROUP = "coterie.io";
const KIND = { group: GROUP, version: "v1alpha1" };
const MERGE = "application/merge-patch+json";
const BY: Record<TriggerRow["by"], Key> = { http: "byHttp", schedule: "bySchedule", topic: "byTopic", table: "byTable" };

export function Functions() {
  const actions = useRows<ActionRow>({ resource: "actions", ...KIND });
  const triggers = useRows<TriggerRow>({ resource: "triggers", ...KIND });
  const grants = useRows<ActionGrantRow>({ resource: "actiongrants", ...KIND });
  const letters = useRows<LetterRow>({ resource: "deadletters", ...KIND });
  const chosen = address.value.searchParams.get("function") ?? "";
  const all = [...actions.list.value].sort((a, b) => (a.id < b.id ? -1 : 1));
  const one = all.find((each) => each.id === chosen);
  const several = new Set(all.map((each) => each.namespace)).size > 1;
  const open = (id: string): void => setQuery("function", id);
  return (
    <Screen title={t("functions")} command={one ? coterie(["action", "show", one.name], one.namespace) : coterie(["action", "graph"])}>
      <div class="body">
        {actions.problem.value ? <p class="bad message">{actions.problem.value}</p> : null}
        {actions.ready.value && all.length === 0 && !actions.problem.value ? (
          <Empty icon="functions" title={t("functionsTitle")} text={t("functionsEmpty")} command={coterie(["action", "create", "hello", "--script", "hello.py", "--http", "/hello"])} />
        ) : null}
        {all.length ? (
          <>
            <div class="scroll">
              <FunctionGraph cards={cards(all, triggers.list.value, grants.list.value, several)} chosen={chosen} open={open} />
            </div>
            <Legend />
            <div class="split above">
              <div>
                <div class="scroll">
                  <Figures actions={all} chosen={chosen} several={several} />
                </div>
                {one ? <Letters action={one} letters={letters.list.value.filter((each) => each.namespace === one.namespace && each.action === one.name)} /> : null}
                {one ? <Logs key={one.id} action={one} /> : null}
              </div>
              {one ? (
                <Panel key={one.id} action={one} known={new Set(all.map((each) => each.id))} triggers={triggers.list.value.filter((each) => each.namespace === one.namespace && each.action === one.name)} grants={grants.list.value.filter((each) => each.namespace === one.namespace && each.action === one.name)} />
              ) : (
                <Empty icon="functions" text={t("chooseFunction")} />
              )}
            </div>
          </>
        ) : null}
      </div>
    </Screen>
  );
}

/** How a function does now. */
export function conditionOf(action: Pick<ActionRow, "phase" | "ready" | "replicas" | "desired">): { state: State; key: Key } {
  if (action.phase === "NotReady") return { state: "failed", key: "notReady" };
  if (action.ready < Math.max(action.replicas, action.desired)) return { state: "preparing", key: "preparing" };
  return action.ready > 0 ? { state: "running", key: "running" } : { state: "waiting", key: "idle" };
}

/** `domain/name` for what `next` of a function names. */
export function targetOf(action: Pick<ActionRow, "namespace">, next: string): string {
  return next.includes("/") ? next : `${action.namespace}/${next}`;
}

/** Everything that the graph shows; `several`: functions of several domains, so each says whose it is. */
export function cards(actions: ActionRow[], triggers: TriggerRow[], grants: ActionGrantRow[], several: boolean): GraphCard[] {
  const out = new Map<string, GraphCard>();
  for (const action of actions) {
    const { state, key } = conditionOf(action);
    const figures = t("actorsAndStarts", { n: action.ready, all: Math.max(action.desired, action.replicas), cold: action.cold });
    const wrong = [action.phase === "NotReady" ? action.message : "", action.errors ? t("errorsAMinute", { n: action.errors }) : "", action.dead ? t("deadCount", { n: action.dead }) : ""].filter(Boolean).join(" · ");
    const problem = wrong ? `✘ ${wrong}` : "";
    const about = t("callsAMinute", { n: action.calls });
    const name = several ? action.id : action.name;
    out.set(action.id, { id: action.id, kind: "function", name, about, state, figures, problem, title: [`${name}: ${t(key)}`, about, figures, problem].filter(Boolean).join(", "), opens: action.id, after: [] });
  }
  for (const trigger of triggers) {
    const to = out.get(`${trigger.namespace}/${trigger.action}`);
    if (!to) continue;
    const id = `trigger ${trigger.id}`;
    const what = trigger.by === "table" && !trigger.what ? t("allTables") : trigger.what;
    const about = trigger.suspended ? t("suspended") : trigger.phase === "NotReady" ? `✘ ${trigger.message}` : [t(BY[trigger.by]), ...trigger.methods].join(" ");
    out.set(id, { id, kind: "trigger", name: what, about, state: trigger.phase === "NotReady" ? "failed" : "waiting", figures: "", problem: "", title: `${t("trigger")} ${trigger.name}: ${what}, ${about} → ${trigger.action}`, off: trigger.suspended, opens: to.id, after: [] });
    to.after.push(id);
  }
  for (const grant of grants) {
    const to = out.get(`${grant.namespace}/${grant.action}`);
    if (!to) continue;
    const id = `caller ${grant.namespace} ${grant.partner}`;
    if (!out.has(id)) out.set(id, partner(id, grant.partner, t("mayCall"), `${grant.partner}: ${t("mayCall")}`));
    if (!to.after.includes(id)) to.after.push(id);
  }
  for (const action of actions) {
    for (const next of action.next) {
      const target = targetOf(action, next);
      const id = out.has(target) ? target : `partner ${target}`;
      if (!out.has(id)) out.set(id, partner(id, next.slice(next.indexOf("/") + 1), t("atPartner", { who: next.slice(0, Math.max(0, next.indexOf("/"))) }), target));
      const to = out.get(id);
      if (to && !to.after.includes(action.id)) to.after.push(action.id);
    }
  }
  return [...out.values()];
}

function partner(id: string, name: string, about: string, title: string): GraphCard {
  return { id, kind: "partner", name, about, state: "waiting", figures: "", problem: "", title, opens: "", after: [] };
}

function Condition({ action }: { action: ActionRow }) {
  const { state, key } = conditionOf(action);
  return (
    <span class="state" data-state={state} title={action.message}>
      <span aria-hidden="true">{glyphs[state]}</span>
      {t(key)}
    </span>
  );
}

function Legend() {
  const words: [State, Key][] = [["running", "running"], ["preparing", "preparing"], ["waiting", "idle"], ["failed", "notReady"]];
  return (
    <div class="legend">
      {words.map(([state, key]) => (
        <span class="state" data-state={state}>
          <span aria-hidden="true">{glyphs[state]}</span>
          {t(key)}
        </span>
      ))}
    </div>
  );
}

/** The same figures for all, as a table. */
function Figures({ actions, chosen, several }: { actions: ActionRow[]; chosen: string; several: boolean }) {
  return (
    <table class="plain">
      <thead>
        <tr>
          <th>{t("function")}</th>
          <th>{t("state")}</th>
          <th class="num">{t("calls")}</th>
          <th class="num">{t("errors")}</th>
          <th class="num">{t("actors")}</th>
          <th class="num wide">{t("coldStarts")}</th>
          <th class="num wide">{t("deadLetters")}</th>
        </tr>
      </thead>
      <tbody>
        {actions.map((each) => (
          <tr aria-selected={each.id === chosen}>
            <td class="mono name">
              <a href={`/functions?function=${encodeURIComponent(each.id)}`}>{several ? each.id : each.name}</a>
            </td>
            <td>
              <Condition action={each} />
            </td>
            <td class="num">{each.calls}</td>
            <td class="num">{each.errors ? <span class="bad">✘ {each.errors}</span> : 0}</td>
            <td class="num">
              {each.ready}/{Math.max(each.desired, each.replicas)}
            </td>
            <td class="num wide">{each.cold}</td>
            <td class="num wide">{each.dead ? <span class="bad">✘ {each.dead}</span> : 0}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function pathOf(row: Row, resource: string): string {
  return `/apis/${GROUP}/v1alpha1/namespaces/${encodeURIComponent(row.namespace)}/${resource}/${encodeURIComponent(row.name)}`;
}

function Problem({ text }: { text: string }) {
  return text ? (
    <p class="bad message" role="alert">
      {text}
    </p>
  ) : null;
}

function Panel({ action, known, triggers, grants }: { action: ActionRow; known: Set<string>; triggers: TriggerRow[]; grants: ActionGrantRow[] }) {
  const [problem, setProblem] = useState("");
  const [body, setBody] = useState("");
  const done = (call: Promise<unknown>): void => {
    call.then(() => setProblem("")).catch((error: Error) => setProblem(error.message));
  };
  return (
    <section class="card">
      <div class="tools whole">
        <h2 class="mono">{action.name}</h2>
        <button type="button" class="small spread" title={t("close")} aria-label={t("close")} onClick={() => setQuery("function", "")}>
          <Icon name="close" />
        </button>
      </div>
      {action.message ? <Callout text={action.message} state="failed" /> : null}
      {action.reload ? <Callout text={`${t("reloadFailed")} ${action.reload}`} state="failed" /> : null}
      <Problem text={problem} />
      <dl class="facts">
        <dt>{t("state")}</dt>
        <dd>
          <Condition action={action} />
        </dd>
        <dt>{t("calls")}</dt>
        <dd>
          {action.calls} <span class={action.errors ? "bad" : "dim"}>{t("errorsAMinute", { n: action.errors })}</span>
        </dd>
        <dt>{t("actors")}</dt>
        <dd>
          {t("readyOf", { n: action.ready, all: Math.max(action.desired, action.replicas) })} <span class="dim">{t("scalesBetween", { least: action.least, most: action.most, policy: action.policy })}</span>
        </dd>
        {action.scaled ? (
          <>
            <dt>{t("lastScaled")}</dt>
            <dd>
              <Time at={action.scaled} />
            </dd>
          </>
        ) : null}
        <dt>{t("coldStarts")}</dt>
        <dd>{action.cold}</dd>
        <dt>{t("atATime")}</dt>
        <dd>{action.concurrency}</dd>
        <dt>{t("timeout")}</dt>
        <dd>{action.timeout} s</dd>
        <dt>{t("image")}</dt>
        <dd class="mono">{action.image}</dd>
        <dt>{t("next")}</dt>
        <dd>
          {action.next.length === 0 ? <span class="dim">{t("none")}</span> : null}
          {action.next.map((each) =>
            known.has(targetOf(action, each)) ? (
              <a class="mono block" href={`/functions?function=${encodeURIComponent(targetOf(action, each))}`}>
                {each}
              </a>
            ) : (
              <span class="mono block">{each}</span>
            ),
          )}
        </dd>
      </dl>
      <h3>{t("triggers")}</h3>
      {triggers.length === 0 ? <p class="dim">{t("noTriggers")}</p> : null}
      <ul class="entries">
        {triggers.map((each) => (
          <li>
            <span class="mono">{each.what || t("allTables")}</span> <span class="dim">{[t(BY[each.by]), ...each.methods].join(" ")}</span> {each.suspended ? <Phase phase="Suspended" /> : null}
            {each.phase === "NotReady" ? <div class="bad message">✘ {each.message}</div> : null}
            {each.last ? (
              <div class="dim">
                {t("lastCall")} <Time at={each.last} />
              </div>
            ) : null}
          </li>
        ))}
      </ul>
      <Versions action={action} done={done} />
      <Grants action={action} grants={grants} done={done} />
      <h3>{t("callIt")}</h3>
      <label class="block">
        <span class="dim">{t("body")}</span>
        <textarea rows={3} value={body} placeholder="{}" onInput={(event) => setBody(event.currentTarget.value)} />
      </label>
      <p class="dim">{t("callHint")}</p>
      <AsCommand command={invokeCommand(action.name, body, action.namespace)} boxed />
    </section>
  );
}

/** Which code gets which share of the calls; all can go back to an older one. */
function Versions({ action, done }: { action: ActionRow; done(call: Promise<unknown>): void }) {
  const newest = action.version;
  const need = { verb: "patch", group: GROUP, resource: "actions", namespace: action.namespace };
  return (
    <>
      <h3>{t("versions")}</h3>
      {action.versions.length === 0 ? <p class="dim">{t("noVersions")}</p> : null}
      <ul class="entries">
        {action.versions.map((each) => (
          <li>
            <div class="tools-line">
              <span class="mono">{each.name}</span>
              {each.name === newest ? <span class="dim">{t("newest")}</span> : null}
              <span class="dim">
                <Time at={each.created} />
              </span>
            </div>
            <div class="tools-line">
              <Share done={each.percent} all={100} state="running" shown={t("percentOfCalls", { n: each.percent })} />
              <span class="dim">{t("actorCount", { n: each.replicas })}</span>
              {each.percent < 100 && action.versions.length > 1 ? (
                <ActionButton need={need} label={t("allCallsHere")} again quiet={each.name !== action.versions.find((other) => other.percent < 100)?.name} act={() => done(kube("PATCH", pathOf(action, "actions"), { spec: { traffic: each.name === newest ? null : [{ version: each.name, percent: 100 }] } }, MERGE))} />
              ) : null}
            </div>
          </li>
        ))}
      </ul>
      <AsCommand command={versionsCommand(action.name, newest, action.versions, action.namespace)} />
    </>
  );
}

/** Who else may call it. */
function Grants({ action, grants, done }: { action: ActionRow; grants: ActionGrantRow[]; done(call: Promise<unknown>): void }) {
  const [first] = grants;
  return (
    <>
      <h3>{t("mayCallTitle")}</h3>
      {grants.length === 0 ? <p class="dim">{t("noActionGrants")}</p> : null}
      <ul class="entries">
        {grants.map((each, index) => (
          <li>
            <div class="tools-line">
              <Party name={each.partner} />
              <Phase phase={each.phase || "Pending"} />
              {each.uses ? <Share done={each.used} all={each.uses} state="waiting" shown={t("usesLeft", { n: Math.max(0, each.uses - each.used), all: each.uses })} /> : <span class="dim">{t("usesMade", { n: each.used })}</span>}
            </div>
            <div class="dim">{[each.perMinute ? t("perMinute", { n: each.perMinute }) : "", each.until ? `${t("until")} ${each.until.slice(0, 10)}` : "", each.tables.length ? t("onTables", { names: each.tables.join(", ") }) : ""].filter(Boolean).join(" · ")}</div>
            {each.message ? <div class="dim message">{each.message}</div> : null}
            <ActionButton need={{ verb: "delete", group: GROUP, resource: "actiongrants", namespace: each.namespace }} label={t("revoke")} again quiet={index > 0} act={() => done(kube("DELETE", pathOf(each, "actiongrants")))} />
          </li>
        ))}
      </ul>
      <AsCommand command={first ? coterie(["action", "revoke", first.action, "--to", first.partner], first.namespace) : coterie(["action", "grant", action.name, "--to", "PARTNER"], action.namespace)} />
    </>
  );
}

const MOST_LETTERS = 50;

/** Calls that were given up: they can be sent again, or removed for good. */
function Letters({ action, letters }: { action: ActionRow; letters: LetterRow[] }) {
  const [problem, setProblem] = useState("");
  const shown = letters.slice(0, MOST_LETTERS);
  const need = (verb: string) => ({ verb, group: GROUP, resource: "deadletters", namespace: action.namespace });
  const done = (call: Promise<unknown>): void => {
    call.then(() => setProblem("")).catch((error: Error) => setProblem(error.message));
  };
  return (
    <section class="section above">
      <div class="tools above">
        <h2>
          {t("deadLetters")} <span class="dim">{letters.length > shown.length ? t("shown", { n: shown.length, all: letters.length }) : letters.length}</span>
        </h2>
        <AsCommand command={coterie(["action", "dlq", "ls", action.name], action.namespace)} />
      </div>
      <Problem text={problem} />
      {letters.length === 0 ? <p class="dim">{t("noDeadLetters")}</p> : null}
      {shown.length ? (
        <div class="scroll">
          <table class="plain">
            <thead>
              <tr>
                <th>{t("when")}</th>
                <th>{t("reason")}</th>
                <th class="num">{t("attempts")}</th>
                <th class="num wide">{t("size")}</th>
                <th>
                  <span class="visually-hidden">{t("replay")}</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {shown.map((each, index) => (
                <tr>
                  <td>
                    <Time at={each.time || each.at} />
                  </td>
                  <td class="message">
                    {each.reason}
                    <div class="dim mono" title={t("request")}>
                      {each.request}
                    </div>
                  </td>
                  <td class="num">{each.attempts}</td>
                  <td class="num wide" title={each.type}>
                    {bytes(each.size)}
                  </td>
                  <td>
                    {each.replay ? (
                      <span class="dim">{t("replayed")}</span>
                    ) : (
                      <span class="tools-line">
                        <ActionButton need={need("patch")} label={t("replay")} quiet={index > 0} act={() => done(kube("PATCH", pathOf(each, "deadletters"), { spec: { replay: true } }, MERGE))} />
                        <ActionButton need={need("delete")} label={t("remove")} again quiet act={() => done(kube("DELETE", pathOf(each, "deadletters")))} />
                      </span>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      {shown[0] ? <AsCommand command={coterie(["action", "dlq", "replay", shown[0].name], action.namespace)} /> : null}
    </section>
  );
}

const TAIL = 200;
const MOST_PODS = 8;
const PAUSE = 2000;

/** What its actors print, together. */
function Logs({ action }: { action: ActionRow }) {
  const pods = useRows<ActorRow>({ resource: "pods", version: "v1", namespace: action.namespace, labels: `${GROUP}/action=${action.name}` });
  const [lines, setLines] = useState<Line[]>([]);
  const [problem, setProblem] = useState("");
  const [follow, setFollow] = useState(true);
  const newest = useRef(new Map<string, string>());
  const actors = pods.list.value.filter((pod) => pod.phase !== "Pending").slice(0, MOST_PODS);
  const names = actors.map((pod) => `${pod.name} ${pod.names[0] ?? ""}`).join("\n");
  useEffect(() => {
    let current = true;
    let timer = 0;
    const load = async (): Promise<void> => {
      if (!document.hidden) {
        const found = await Promise.allSettled(actors.map((pod) => read(pod, newest.current)));
        if (!current) return;
        const fresh = found.flatMap((each) => (each.status === "fulfilled" ? each.value : [])).sort((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : 0));
        const failed = found.find((each) => each.status === "rejected");
        setLines((before) => joined(before, fresh));
        setProblem(failed ? String((failed.reason as Error).message) : "");
      }
      if (follow) timer = window.setTimeout(() => void load(), PAUSE);
    };
    if (actors.length) void load();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [names, follow]);
  return (
    <section class="section">
      <div class="tools above">
        <h2>{t("actorLogs")}</h2>
        <AsCommand command={coterie(["action", "logs", action.name], action.namespace)} />
      </div>
      <Problem text={problem || pods.problem.value} />
      {pods.ready.value && actors.length === 0 && lines.length === 0 ? (
        <p class="dim">{t("noActors")}</p>
      ) : (
        <LogLines
          lines={lines}
          follow={follow}
          tools={
            <label class="check">
              <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> {t("follow")}
            </label>
          }
        />
      )}
    </section>
  );
}

async function read(pod: ActorRow, newest: Map<string, string>): Promise<Line[]> {
  const query = new URLSearchParams({ timestamps: "true", tailLines: String(TAIL), ...(pod.names[0] ? { container: pod.names[0] } : {}) });
  const since = newest.get(pod.name);
  if (since) query.set("sinceTime", `${since.slice(0, 19)}Z`);
  const text = await kubeText(`/api/v1/namespaces/${encodeURIComponent(pod.namespace)}/pods/${encodeURIComponent(pod.name)}/log?${query.toString()}`);
  const found = text.split("\n").filter(Boolean).map((line) => stamped(line, pod.name));
  const last = found[found.length - 1]?.at ?? "";
  if (last > (since ?? "")) newest.set(pod.name, last);
  return found;
}
