// Domains and the routes between them: which are up, how much they carry, and what is wrong with one.
import { useEffect, useState } from "preact/hooks";
import { byteRate, rate } from "../amounts";
import { coterie } from "../commands";
import { Callout, Empty, Icon, Screen, Time, useRows } from "../parts";
import type { Row } from "../live";
import { obstacle } from "../rights";
import { address, setQuery } from "../router";
import { send, session } from "../session";
import { t, type Key } from "../text";
import { daysUntil, left } from "../time";

interface RouteRow extends Row {
  source: string;
  destination: string;
  host: string;
  authentication: string;
  ready: boolean;
  reason: string;
  message: string;
  since: string;
  tokenSince: string;
  tokenUntil: string;
}

interface GatewayRow extends Row {
  links: { peer: string; sent: number; received: number }[];
}

/** What a route answered just now, asked while the page is watched. */
interface Health {
  answers: boolean;
  milliseconds: number;
  message: string;
}

const HEALTH_PAUSE = 400;

const KUSCIA = { group: "kuscia.secretflow", version: "v1alpha1" };

export function Network() {
  const routes = useRows<RouteRow>({ resource: "clusterdomainroutes", ...KUSCIA });
  const gateways = useRows<GatewayRow>({ resource: "gateways", ...KUSCIA });
  const chosen = address.value.searchParams.get("route") ?? "";
  const health = useHealth();
  const all = routes.list.value.map((each) => observed(each, health[each.name]));
  const route = all.find((each) => each.name === chosen);
  const carried = (each: RouteRow): number => {
    const links = gateways.list.value.flatMap((gateway) => gateway.links.map((link) => ({ ...link, own: gateway.namespace })));
    const sent = links.filter((link) => link.own === each.source && link.peer === each.destination).reduce((sum, link) => sum + link.sent, 0);
    const received = links.filter((link) => link.own === each.destination && link.peer === each.source).reduce((sum, link) => sum + link.received, 0);
    return sent || received;
  };
  return (
    <Screen title={t("network")} command={coterie(route ? ["route", "check", route.source, route.destination] : ["route", "ls"])}>
      <div class="body">
        {routes.problem.value ? <p class="bad message">{routes.problem.value}</p> : null}
        {routes.ready.value && all.length === 0 ? (
          <Empty icon="network" title={t("noRoutesTitle")} text={t("noRoutes")} command={coterie(["route", "add", session.value?.domain ?? "alice", "bob", "--endpoint", "https://10.0.0.2:1080", "--both"])} />
        ) : null}
        {all.length ? (
          <div class="split">
            <div>
              <div class="scroll">
                <Picture routes={all} carried={carried} chosen={chosen} />
              </div>
              <Legend />
              <div class="scroll above">
                <table class="plain">
                  <thead>
                    <tr>
                      <th>{t("route")}</th>
                      <th>{t("state")}</th>
                      <th>{t("carries")}</th>
                      <th class="wide">{t("since")}</th>
                      <th class="wide">{t("tokenAge")}</th>
                    </tr>
                  </thead>
                  <tbody>
                    {all.map((each) => (
                      <tr aria-selected={each.name === chosen}>
                        <td>
                          <a href={`/network?route=${encodeURIComponent(each.name)}`}>
                            {each.source} → {each.destination}
                          </a>
                        </td>
                        <td>
                          <Up ready={each.ready} />
                        </td>
                        <td class="num">{byteRate(carried(each))}</td>
                        <td class="wide dim">
                          <Time at={each.since} />
                        </td>
                        <td class="wide dim">
                          <Time at={each.tokenSince} />
                        </td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            </div>
            {route ? <Panel key={route.name} route={route} bits={carried(route)} health={health[route.name]} /> : <Empty icon="network" text={t("chooseRoute")} />}
          </div>
        ) : null}
      </div>
    </Screen>
  );
}

function Up({ ready }: { ready: boolean }) {
  return (
    <span class="state" data-state={ready ? "succeeded" : "failed"}>
      <span aria-hidden="true">{ready ? "✔" : "✘"}</span>
      {t(ready ? "up" : "down")}
    </span>
  );
}

/** What the lines of the picture mean. */
function Legend() {
  return (
    <div class="legend">
      <span class="state">
        <svg class="key-line" data-up="true" viewBox="0 0 28 10" aria-hidden="true">
          <path d="M0 5H28" stroke-width={2} />
        </svg>
        ✔ {t("up")}
      </span>
      <span class="state">
        <svg class="key-line" data-up="false" viewBox="0 0 28 10" aria-hidden="true">
          <path d="M0 5H28" stroke-width={2} />
        </svg>
        ✘ {t("down")}
      </span>
      <span class="state">
        <svg class="key-line" data-neutral="true" viewBox="0 0 28 10" aria-hidden="true">
          <path d="M0 5H12" stroke-width={lineWidth(0)} />
          <path d="M14 5H28" stroke-width={lineWidth(80e6)} />
        </svg>
        {t("widthIs", { least: byteRate(0), most: byteRate(80e6) })}
      </span>
    </div>
  );
}

interface Checked {
  sound: boolean;
  connectSeconds: number | null;
  certificateEnds: string;
  findings: { step: string; verdict: string; message: string; advice: string }[];
}

const MARKS: Record<string, string> = { ok: "✔", warning: "!", wrong: "✘", skipped: "–", unknown: "?" };

/** A partner that does not answer now is down, whatever was found some seconds ago. */
function observed(route: RouteRow, health: Health | undefined): RouteRow {
  return health && !health.answers && route.ready ? { ...route, ready: false, reason: "NoAnswer", message: health.message, since: "" } : route;
}

function useHealth(): Record<string, Health> {
  const [health, setHealth] = useState<Record<string, Health>>({});
  useEffect(() => {
    let timer = 0;
    let current = true;
    const later = (pause: number): void => {
      if (current) timer = window.setTimeout(load, pause);
    };
    const load = (): void => {
      if (document.hidden) return later(HEALTH_PAUSE);
      send("GET", "/views/routes").then(
        (found) => {
          if (current) setHealth((found as { routes: Record<string, Health> }).routes);
          later(HEALTH_PAUSE);
        },
        () => {
          if (current) setHealth({});
          later(5 * HEALTH_PAUSE);
        },
      );
    };
    load();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, []);
  return health;
}

function Panel({ route, bits, health }: { route: RouteRow; bits: number; health: Health | undefined }) {
  const [checked, setChecked] = useState<Checked | null>(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const why = obstacle({ verb: "get", group: KUSCIA.group, resource: "clusterdomainroutes", namespace: "cross-domain" });
  const check = (): void => {
    if (why) return;
    setBusy(true);
    send("POST", `/actions/routes/${encodeURIComponent(route.source)}/${encodeURIComponent(route.destination)}/check`)
      .then((found) => (setChecked(found as Checked), setProblem("")))
      .catch((error: Error) => setProblem(error.message))
      .finally(() => setBusy(false));
  };
  useEffect(check, [route.ready]);
  const days = checked?.certificateEnds ? daysUntil(checked.certificateEnds) : null;
  const unknown = <span class="dim">{busy ? t("checking") : "–"}</span>;
  return (
    <section class="card" aria-live="polite">
      <div class="tools whole">
        <h2>
          {route.source} → {route.destination}
        </h2>
        <button type="button" class="small spread" title={t("close")} aria-label={t("close")} onClick={() => setQuery("route", "")}>
          <Icon name="close" />
        </button>
      </div>
      {route.message && !route.ready ? <Callout text={route.message} state="failed" /> : null}
      <dl class="facts">
        <dt>{t("state")}</dt>
        <dd>
          <Up ready={route.ready} />
        </dd>
        {route.since ? (
          <>
            <dt>{t("since")}</dt>
            <dd>
              <Time at={route.since} />
            </dd>
          </>
        ) : null}
        <dt>{t("carries")}</dt>
        <dd>
          {byteRate(bits)} <span class="dim">{rate(bits)}</span>
        </dd>
        <dt>{t("roundTrip")}</dt>
        <dd>{checked && checked.connectSeconds !== null ? `${(checked.connectSeconds * 1000).toFixed(1)} ms` : unknown}</dd>
        {health?.answers ? (
          <>
            <dt>{t("answersWithin")}</dt>
            <dd>{health.milliseconds.toFixed(health.milliseconds < 10 ? 1 : 0)} ms</dd>
          </>
        ) : null}
        <dt>{t("tokenAge")}</dt>
        <dd>
          {route.tokenSince ? <Time at={route.tokenSince} /> : <span class="dim">–</span>}
          {route.tokenUntil && daysUntil(route.tokenUntil) < 3650 ? <span class="dim"> {t("goodFor", { time: left(route.tokenUntil) })}</span> : null}
        </dd>
        <dt>{t("certificate")}</dt>
        <dd>{days === null ? unknown : <span title={checked?.certificateEnds}>{days >= 0 ? t("daysLeft", { n: days }) : `✘ ${t("ended")}`}</span>}</dd>
        <dt>{t("authentication")}</dt>
        <dd>{route.authentication}</dd>
        <dt>{t("address")}</dt>
        <dd class="mono">{route.host}</dd>
      </dl>
      <p>
        <button type="button" onClick={check} disabled={busy || why !== ""} title={why}>
          {busy ? t("checking") : t("checkRoute")}
        </button>
      </p>
      {problem ? (
        <p class="bad message" role="alert">
          {problem}
        </p>
      ) : null}
      {checked ? (
        <>
          <p class={checked.sound ? "good" : "bad"}>
            {checked.sound ? "✔" : "✘"} {t(checked.sound ? "routeSound" : "routeUnsound")}
          </p>
          <ol class="findings">
            {checked.findings.map((finding) => (
              <li data-verdict={finding.verdict}>
                <span class="mark" aria-hidden="true">
                  {MARKS[finding.verdict] ?? "?"}
                </span>
                <span>
                  <strong>{finding.step}</strong> <span class="visually-hidden">{finding.verdict}</span> {finding.message}
                  {finding.advice ? <div class="dim message">{finding.advice}</div> : null}
                </span>
              </li>
            ))}
          </ol>
        </>
      ) : null}
    </section>
  );
}

const WIDTH = 760;
const HEIGHT = 420;
/** Two domains need less. */
const LOW = 200;
const BOX = { width: 148, height: 40 };
const LONGEST = 14;

interface Point {
  x: number;
  y: number;
}

/** Thicker for each tenfold load. */
function lineWidth(bits: number): number {
  return 1.5 + Math.min(5, Math.max(0, Math.log10(1 + bits / 8000)));
}

/** Our domain in the middle, the partners around it; two domains stand side by side. */
export function places(names: string[], own: string, height: number): Map<string, Point> {
  const around = names.filter((name) => name !== own);
  const out = new Map<string, Point>();
  if (names.includes(own)) out.set(own, around.length === 1 ? { x: BOX.width / 2 + 40, y: height / 2 } : { x: WIDTH / 2, y: height / 2 });
  around.forEach((name, index) => {
    if (around.length === 1 && out.size) out.set(name, { x: WIDTH - BOX.width / 2 - 40, y: height / 2 });
    else {
      const angle = (index / around.length) * 2 * Math.PI - Math.PI / 2 - (around.length === 2 ? Math.PI / 2 : Math.PI / around.length / 2);
      out.set(name, { x: WIDTH / 2 + Math.cos(angle) * (WIDTH / 2 - BOX.width / 2 - 8), y: height / 2 + Math.sin(angle) * (height / 2 - BOX.height / 2 - 8) });
    }
  });
  return out;
}

function Picture({ routes, carried, chosen }: { routes: RouteRow[]; carried(route: RouteRow): number; chosen: string }) {
  const names = [...new Set(routes.flatMap((route) => [route.source, route.destination]))].sort();
  const own = session.value?.domain ?? "";
  const height = names.length > 2 ? HEIGHT : LOW;
  const at = places(names, own, height);
  const place = (name: string): Point => at.get(name) ?? { x: 0, y: 0 };
  return (
    <svg class="network" role="group" aria-label={t("network")} viewBox={`0 0 ${WIDTH} ${height}`}>
      {routes.map((route) => {
        const bits = carried(route);
        const width = lineWidth(bits);
        const line = curve(place(route.source), place(route.destination), 6 + width * 1.6);
        const state: Key = route.ready ? "up" : "down";
        const label = byteRate(bits);
        return (
          <g
            class="edge"
            data-up={route.ready}
            data-chosen={route.name === chosen}
            tabindex={0}
            role="button"
            aria-label={`${route.source} → ${route.destination}: ${t(state)}, ${label}`}
            onClick={() => setQuery("route", route.name)}
            onKeyDown={(event) => {
              if (event.key === "Enter" || event.key === " ") {
                event.preventDefault();
                setQuery("route", route.name);
              }
            }}
          >
            <title>{`${route.source} → ${route.destination}: ${t(state)}, ${label}`}</title>
            <path class="hit" d={line.path} />
            <path class="route" stroke-width={width} d={line.path} />
            <polygon class="head" points={line.head} />
            <g class="rate" transform={`translate(${line.middle.x} ${line.middle.y})`}>
              <rect x={-40} y={-11} width={80} height={22} rx={4} />
              <text text-anchor="middle" y={4}>
                {route.ready ? label : `✘ ${t("down")}`}
              </text>
            </g>
          </g>
        );
      })}
      {names.map((name) => (
        <g class="domain" data-own={name === own} transform={`translate(${place(name).x - BOX.width / 2} ${place(name).y - BOX.height / 2})`}>
          <title>{name}</title>
          <rect width={BOX.width} height={BOX.height} rx={6} />
          <text text-anchor="middle" x={BOX.width / 2} y={name === own ? 18 : 24}>
            {name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name}
          </text>
          {name === own ? (
            <text class="about" text-anchor="middle" x={BOX.width / 2} y={33}>
              {t("ourDomain")}
            </text>
          ) : null}
        </g>
      ))}
    </svg>
  );
}

/** From the edge of one box to that of the other, bent to its right, with an arrowhead where it arrives. */
function curve(from: Point, to: Point, size: number): { path: string; head: string; middle: Point } {
  const bend = { x: (from.x + to.x) / 2 + (to.y - from.y) * 0.14, y: (from.y + to.y) / 2 - (to.x - from.x) * 0.14 };
  const begin = leaving(from, bend);
  const tip = leaving(to, bend);
  const angle = Math.atan2(tip.y - bend.y, tip.x - bend.x);
  const back = { x: tip.x - Math.cos(angle) * size, y: tip.y - Math.sin(angle) * size };
  const side = { x: (Math.sin(angle) * size) / 2, y: (-Math.cos(angle) * size) / 2 };
  const middle = { x: begin.x / 4 + bend.x / 2 + tip.x / 4, y: begin.y / 4 + bend.y / 2 + tip.y / 4 };
  return {
    path: `M${begin.x.toFixed(1)} ${begin.y.toFixed(1)} Q ${bend.x.toFixed(1)} ${bend.y.toFixed(1)} ${back.x.toFixed(1)} ${back.y.toFixed(1)}`,
    head: [tip, { x: back.x + side.x, y: back.y + side.y }, { x: back.x - side.x, y: back.y - side.y }].map((point) => `${point.x.toFixed(1)},${point.y.toFixed(1)}`).join(" "),
    middle,
  };
}

/** Where a line from the middle of a box towards a point leaves it, and three pixels more. */
function leaving(from: Point, to: Point): Point {
  const [x, y] = [to.x - from.x, to.y - from.y];
  const scale = 1 / Math.max(Math.abs(x) / (BOX.width / 2), Math.abs(y) / (BOX.height / 2), 1e-9);
  const length = Math.hypot(x, y) || 1;
  return { x: from.x + x * scale + (x / length) * 3, y: from.y + y * scale + (y / length) * 3 };
}
