// The evidence log: what happened, one event with its proof, who cosigned, and the file for an auditor.
import { useEffect, useState } from "preact/hooks";
import { coterie, eventsCommand, verifyCommand } from "../commands";
import { AsCommand, Callout, Empty, Loading, Parties, Screen, Time } from "../parts";
import { address, setQuery } from "../router";
import { send } from "../session";
import { t, type Key } from "../text";

interface EventRow {
  index: number;
  at: string;
  kind: string;
  job?: string;
  parties?: string[];
  who?: string;
  about?: string;
  removed: boolean;
}

interface EventPage {
  origin: string;
  size: number;
  events: EventRow[];
}

interface LogState {
  origin: string;
  size: number;
  signedSize: number;
  checkpoint: string;
  cosigners: { witness: string; size: number; at: string }[];
  partners: { partner: string; policy: string; ours: number; at: string; theirs: number; problem: string }[];
}

interface Verified {
  valid: boolean;
  fault: string;
  events: number;
  removed: number;
  size: number;
  cosigned: string[];
}

interface ProvenEvent extends EventRow {
  content: unknown;
  proof: string;
  key: string;
}

const FIELDS = ["kind", "job", "partner", "since"] as const;
const LABELS: Record<(typeof FIELDS)[number], Key> = { kind: "kindOfEvent", job: "job", partner: "partner", since: "since" };
const EVERY = 3000;

/** The filter in the address, as a query of the view. */
export function chosen(params: URLSearchParams): string {
  const out = new URLSearchParams();
  for (const name of FIELDS) {
    const value = params.get(name);
    if (value) out.set(name, value);
  }
  return out.toString();
}

/** Asked again while somebody looks. What was found before is shown until the answer is there: who types a filter keeps it. */
function useView<V>(path: string): { view: V | null; problem: string } {
  const [found, setFound] = useState<{ view: V | null; problem: string }>({ view: null, problem: "" });
  useEffect(() => {
    let alive = true;
    const ask = (): void => {
      if (document.hidden) return;
      send("GET", path)
        .then((view) => alive && setFound({ view: view as V, problem: "" }))
        .catch((problem: Error) => alive && setFound((before) => ({ view: before.view, problem: problem.message })));
    };
    ask();
    const timer = setInterval(ask, EVERY);
    return () => {
      alive = false;
      clearInterval(timer);
    };
  }, [path]);
  return found;
}

export function Evidence() {
  const params = address.value.searchParams;
  const index = params.get("event") ?? "";
  const query = chosen(params);
  const page = useView<EventPage>(`/views/evidence${query ? `?${query}` : ""}`);
  const [older, setOlder] = useState<{ query: string; events: EventRow[] }>({ query, events: [] });
  const [problem, setProblem] = useState("");
  const events = [...(page.view?.events ?? []), ...(older.query === query ? older.events : [])];
  const shown = events.filter((event, at) => events.findIndex((each) => each.index === event.index) === at);
  const last = shown[shown.length - 1];
  const more = (): void => {
    send("GET", `/views/evidence?${query ? `${query}&` : ""}before=${last?.index ?? 0}`)
      .then((found) => setOlder({ query, events: [...(older.query === query ? older.events : []), ...(found as EventPage).events] }))
      .catch((failure: Error) => setProblem(failure.message));
  };
  const download = (): void => {
    send("GET", `/views/evidence/export${query ? `?${query}` : ""}`)
      .then((made) => {
        const { file, content } = made as { file: string; content: string };
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([content], { type: "text/plain" }));
        link.download = file;
        link.click();
        URL.revokeObjectURL(link.href);
      })
      .catch((failure: Error) => setProblem(failure.message));
  };
  const actions = (
    <button type="button" onClick={download}>
      {t("download")}
    </button>
  );
  return (
    <Screen title={t("evidence")} actions={page.view?.size ? actions : undefined} command={index ? coterie(["audit", "show", index]) : eventsCommand(FIELDS.map((name) => [name, params.get(name) ?? ""]))}>
      <div class="body">
        {page.problem || problem ? <p class="bad message">{page.problem || problem}</p> : null}
        {page.view === null && !page.problem ? <Loading /> : null}
        {page.view && page.view.size === 0 ? <Empty icon="evidence" title={t("evidenceTitle")} text={t("evidenceEmpty")} command={coterie(["audit", "ls"])} /> : null}
        {index ? <OneEvent index={index} /> : null}
        {page.view?.size ? <Checkpoints /> : null}
        {page.view?.size || page.problem ? (
          <>
            <div class="tools above">
              {FIELDS.map((name, at) => (
                <label>
                  <span class="visually-hidden">{t(LABELS[name])}</span>
                  <input class="filter" type="search" {...(at === 0 ? { "data-key": "/" } : {})} placeholder={t(LABELS[name])} value={params.get(name) ?? ""} onInput={(event) => setQuery(name, event.currentTarget.value)} />
                </label>
              ))}
              <span class="dim">{t("shown", { n: shown.length, all: page.view?.size ?? 0 })}</span>
            </div>
            <div class="scroll">
              <table class="plain events">
                <thead>
                  <tr>
                    <th>#</th>
                    <th>{t("when")}</th>
                    <th>{t("kindOfEvent")}</th>
                    <th class="wide">{t("job")}</th>
                    <th class="wide">{t("parties")}</th>
                    <th>{t("person")}</th>
                    <th>{t("about")}</th>
                  </tr>
                </thead>
                <tbody>
                  {shown.map((event) => (
                    <tr key={event.index} aria-selected={String(event.index) === index}>
                      <td class="mono">
                        <a href={`/evidence?${query ? `${query}&` : ""}event=${event.index}`}>{event.index}</a>
                      </td>
                      <td>
                        <Time at={event.at} />
                      </td>
                      <td class="mono">{event.removed ? <span class="dim">{t("removedByRetention")}</span> : event.kind}</td>
                      <td class="wide name">{event.job ? <a href={`/jobs/${encodeURIComponent(event.job)}`}>{event.job}</a> : null}</td>
                      <td class="wide">{event.parties?.length ? <Parties names={event.parties} /> : null}</td>
                      <td class="person" title={event.who}>{accountOf(event.who ?? "")}</td>
                      <td class="message">{event.about}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
            {last && last.index > 0 && shown.length >= 100 ? (
              <p>
                <button type="button" onClick={more}>
                  {t("olderEvents")}
                </button>
              </p>
            ) : null}
          </>
        ) : null}
      </div>
    </Screen>
  );
}

/** An account as the page names it elsewhere; the whole name on hover. */
function accountOf(who: string): string {
  const parts = who.split(":");
  return parts.length === 4 && who.startsWith("system:serviceaccount:") ? `${parts[2]}/${parts[3]}` : who;
}

function Checkpoints() {
  const { view } = useView<LogState>("/views/evidence/state");
  if (!view) return null;
  return (
    <section class="section">
      <h2>{t("checkpoints")}</h2>
      <p class="dim">
        <span class="mono">{view.origin}</span> · {t("signedUpTo", { n: view.signedSize, all: view.size })}
      </p>
      <Verify />
      {view.partners.length ? (
        <div class="scroll">
          <table class="plain">
            <thead>
              <tr>
                <th>{t("partner")}</th>
                <th>{t("oursCosigned")}</th>
                <th>{t("when")}</th>
                <th>{t("theirsCosigned")}</th>
                <th>{t("reason")}</th>
              </tr>
            </thead>
            <tbody>
              {view.partners.map((each) => (
                <tr>
                  <td class="name">{each.partner}</td>
                  <td>{each.ours}</td>
                  <td>
                    <Time at={each.at} />
                  </td>
                  <td>{each.theirs}</td>
                  <td class="message">{each.problem ? <span class="bad">✘ {each.problem}</span> : null}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : view.cosigners.length ? (
        <p>{view.cosigners.map((each) => `${each.witness}: ${each.size}`).join(", ")}</p>
      ) : (
        <p class="dim">{t("oneSided")}</p>
      )}
    </section>
  );
}

/** Computes all hashes, signatures and certificates of the log anew. */
function Verify() {
  const [busy, setBusy] = useState(false);
  const [found, setFound] = useState<Verified | null>(null);
  const [problem, setProblem] = useState("");
  const verify = (): void => {
    setBusy(true);
    setFound(null);
    send("GET", "/views/evidence/verify")
      .then((answer) => (setFound(answer as Verified), setProblem("")))
      .catch((failure: Error) => setProblem(failure.message))
      .finally(() => setBusy(false));
  };
  return (
    <div class="tools" aria-live="polite">
      <button type="button" onClick={verify} disabled={busy}>
        {t(busy ? "verifying" : "verifyLog")}
      </button>
      {problem ? <span class="bad message">{problem}</span> : null}
      {found?.valid ? (
        <span class="good">
          ✔ {t("logIsValid", { n: found.events, size: found.size })} {found.removed ? t("removedCount", { n: found.removed }) : ""} {found.cosigned.length ? t("cosignedBy", { who: found.cosigned.join(", ") }) : ""}
        </span>
      ) : null}
      {found && !found.valid ? (
        <span class="bad message">
          ✘ {t("logIsNotValid")} {found.fault}
        </span>
      ) : null}
      <AsCommand command={verifyCommand()} />
    </div>
  );
}

function OneEvent({ index }: { index: string }) {
  const [event, setEvent] = useState<ProvenEvent | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    setEvent(null);
    setProblem("");
    send("GET", `/views/evidence/${encodeURIComponent(index)}`)
      .then((found) => setEvent(found as ProvenEvent))
      .catch((failure: Error) => setProblem(failure.message));
  }, [index]);
  if (problem) return <Callout text={problem} state="failed" />;
  if (!event) return null;
  return (
    <section class="section" aria-label={`${t("event")} ${index}`}>
      <div class="tools">
        <h2>
          {t("event")} {index}
        </h2>
        <button type="button" class="spread" onClick={() => setQuery("event", "")}>
          {t("close")}
        </button>
      </div>
      <pre class="text" tabIndex={0}>
        {JSON.stringify(event.content, null, 2)}
      </pre>
      {event.proof ? (
        <>
          <h3>{t("proof")}</h3>
          <pre class="text" tabIndex={0}>
            {event.proof}
          </pre>
        </>
      ) : null}
      <AsCommand command={coterie(["audit", "prove", index, "--file", "event.evidence"])} boxed />
    </section>
  );
}
