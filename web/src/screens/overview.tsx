// What needs me, what runs, and how much of it.
import { useEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { bytes, cores } from "../amounts";
import { coterie } from "../commands";
import { AsCommand, Empty, Parties, Phase, Screen, Share, Sparkline, Time, useRows } from "../parts";
import type { Row } from "../live";
import { useLogRequests } from "../logrequests";
import { JOBS, type JobRow } from "./jobs";
import { send } from "../session";
import { stateOf } from "../states";
import { t, type Key } from "../text";
import { minute } from "../time";

interface RouteRow extends Row {
  source: string;
  destination: string;
  ready: boolean;
  unreachable: boolean;
  message: string;
  since: string;
}

type Point = [number, number, number | null];
const FAILED_SHOWN = 6;
const RUNNING_SHOWN = 12;

export function Overview() {
  const jobs = useRows<JobRow>(JOBS);
  const routes = useRows<RouteRow>({ resource: "clusterdomainroutes", group: "kuscia.secretflow", version: "v1alpha1" });
  const points = useActivity();
  const asked = useLogRequests();
  const all = jobs.list.value;
  const waiting = all.filter((job) => job.phase === "AwaitingApproval" && !job.ours);
  const failed = all.filter((job) => job.phase === "Failed" && recent(job.ended || job.at));
  const running = all.filter((job) => ["Running", "Pending", "Initialized"].includes(job.phase) || (job.phase === "AwaitingApproval" && job.ours));
  const down = routes.list.value.filter((route) => route.unreachable || !route.ready);
  const begun = perHour(all.map((job) => job.at));
  const ended = perHour(all.filter((job) => job.phase === "Failed").map((job) => job.ended || job.at));
  const last = points[points.length - 1];
  const sent = last ? bytes(last[1] / 8).split(" ") : ["–"];
  return (
    <Screen
      title={t("overview")}
      actions={
        <a class="button first" href="/compose">
          {t("newJob")}
        </a>
      }
      command={coterie(["status"])}
    >
      <div class="body">
        {jobs.problem.value ? <p class="bad message">{jobs.problem.value}</p> : null}
        <div class="overview">
          <div>
            <section class="section">
              <h2>{t("needsMe")}</h2>
              {jobs.ready.value && waiting.length + asked.length + failed.length + down.length === 0 ? (
                <p class="dim">✔ {t("nothingNeedsMe")}</p>
              ) : (
                <div class="items">
                  {waiting.map((job) => (
                    <Item href="/approvals" phase={job.phase} name={job.name} about={t("asksYou", { who: job.initiator })} parties={job.parties} last={<Time at={job.at} />} />
                  ))}
                  {asked.map((request) => (
                    <Item href="/approvals" phase={request.phase} name={request.job} about={t("asksForLines", { who: request.requester, reason: request.reason })} parties={[request.requester]} last={<Time at={request.at} />} />
                  ))}
                  {down.map((route) => (
                    <Item href={`/network?route=${encodeURIComponent(route.name)}`} phase="RouteDown" name={`${route.source} → ${route.destination}`} about={route.message} parties={[]} last={<Time at={route.since} />} />
                  ))}
                  {failed.slice(0, FAILED_SHOWN).map((job) => (
                    <Item href={`/jobs/${encodeURIComponent(job.name)}`} phase={job.phase} name={job.name} about={job.message} parties={job.parties} last={<Time at={job.ended || job.at} />} />
                  ))}
                </div>
              )}
              {failed.length > FAILED_SHOWN ? (
                <p>
                  <a href="/jobs?q=state%3Afailed">{t("allFailed", { n: failed.length })}</a>
                </p>
              ) : null}
            </section>
            <section class="section">
              <h2>{t("runsNow")}</h2>
              {jobs.ready.value && all.length === 0 ? (
                <FirstSteps />
              ) : running.length ? (
                <div class="items">
                  {running.slice(0, RUNNING_SHOWN).map((job) => (
                    <Item href={`/jobs/${encodeURIComponent(job.name)}`} phase={job.phase} name={job.name} about={job.phase === "AwaitingApproval" ? t("waitsForOthers", { who: job.parties.filter((each) => each !== job.initiator).join(", ") }) : ""} parties={job.parties} last={<Share done={job.done} all={job.tasks} state={stateOf(job.phase)} />} />
                  ))}
                </div>
              ) : (
                <p class="dim">{t("nothingRuns")}</p>
              )}
              {running.length > RUNNING_SHOWN ? (
                <p>
                  <a href="/jobs?q=state%3Arunning">{t("allRunning", { n: running.length })}</a>
                </p>
              ) : null}
            </section>
          </div>
          <div class="sparks">
            <Sparkline label={t("jobsPerHour")} values={begun} figure={String(begun[begun.length - 1] ?? 0)} unit={t("lastHour")} covers={t("lastDay")} />
            <Sparkline label={t("failuresPerHour")} values={ended} figure={String(ended[ended.length - 1] ?? 0)} unit={t("lastHour")} covers={t("lastDay")} />
            <Sparkline label={t("linkUse")} values={points.map((point) => point[1])} figure={sent[0] ?? "–"} unit={sent[1] ? `${sent[1]}/s` : ""} covers={t("sinceOpened")} />
            <Sparkline label={t("cpuUse")} values={points.map((point) => point[2])} figure={last && last[2] !== null ? cores(Math.round(last[2] * 100) / 100) : "–"} unit={last && last[2] === null ? t("notMeasured") : t("cores")} covers={t("sinceOpened")} />
          </div>
        </div>
      </div>
    </Screen>
  );
}

function Item({ href, phase, name, about, parties, last }: { href: string; phase: string; name: string; about: string; parties: string[]; last: ComponentChildren }) {
  return (
    <a class="item" href={href}>
      <Phase phase={phase} />
      <span class="what">
        <span class="mono">{name}</span>
        {about ? (
          <span class="dim" title={about}>
            {about}
          </span>
        ) : null}
      </span>
      <span class="parties">{parties.length ? <Parties names={parties} /> : null}</span>
      <span class="last">{last}</span>
    </a>
  );
}

const STEPS: [Key, string[]][] = [
  ["stepData", ["data", "add", "people.csv"]],
  ["stepRoute", ["route", "add", "alice", "bob", "--endpoint", "https://10.0.0.2:1080", "--both"]],
  ["stepJob", ["job", "run", "--engine", "sample", "--parties", "alice,bob"]],
];

/** Of a control plane that has run nothing yet. */
function FirstSteps() {
  return (
    <Empty title={t("firstSteps")}>
      <ol class="steps">
        {STEPS.map(([key, words]) => (
          <li>
            {t(key)}
            <AsCommand command={coterie(words)} boxed />
          </li>
        ))}
      </ol>
    </Empty>
  );
}

const HOURS = 24;

function recent(moment: string): boolean {
  return minute.value * 60000 - Date.parse(moment) < HOURS * 3600000;
}
/** How many of these moments fell into each of the last hours, the newest last. */
export function perHour(moments: string[]): number[] {
  const out = new Array<number>(HOURS).fill(0);
  const end = (minute.value + 1) * 60000;
  for (const moment of moments) {
    const at = HOURS - 1 - Math.floor((end - Date.parse(moment)) / 3600000);
    if (at >= 0 && at < HOURS) out[at] = (out[at] ?? 0) + 1;
    else if (at === HOURS) out[HOURS - 1] = (out[HOURS - 1] ?? 0) + 1;
  }
  return out;
}

const KEPT = 3600;

/** The server measures while this asks. */
function useActivity(): Point[] {
  const [points, setPoints] = useState<Point[]>([]);
  const since = useRef(0);
  useEffect(() => {
    let current = true;
    const load = (): void => {
      if (document.hidden) return;
      void send("GET", `/views/activity?since=${since.current}`)
        .then((found) => {
          if (!current) return;
          const fresh = (found as { points: Point[] }).points;
          since.current = fresh[fresh.length - 1]?.[0] ?? since.current;
          if (fresh.length) setPoints((before) => [...before, ...fresh].slice(-KEPT));
        })
        .catch(() => undefined);
    };
    load();
    const soon = setTimeout(load, 400);
    const timer = setInterval(load, 2000);
    return () => {
      current = false;
      clearTimeout(soon);
      clearInterval(timer);
    };
  }, []);
  return points;
}

