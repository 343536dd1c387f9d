// The page: who is logged in, the rail, and the screen of the address.
import { render, type ComponentType } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Help, helpShown, pressed } from "./help";
import { AsCommand, hueOf, Icon, Loading, Screen, useRows, type IconName } from "./parts";
import { connected } from "./live";
import { useLogRequests } from "./logrequests";
import { address } from "./router";
import { Approvals, WAITING } from "./screens/approvals";
import { Jobs, type JobRow } from "./screens/jobs";
import { Overview } from "./screens/overview";
import { begin, end, loginProblem, resumeByLink, session } from "./session";
import { choose, language, t, type Key } from "./text";
import { applyTheme, nextTheme, theme, type Theme } from "./theme";

/** Screens that are not the first are brought by their first use. */
function lazy(load: () => Promise<ComponentType>): ComponentType {
  let found: ComponentType | null = null;
  return function Lazy() {
    const [, drawn] = useState(0);
    useEffect(() => {
      if (found === null)
        void load().then((screen) => {
          found = screen;
          drawn(1);
        });
    }, []);
    useLayoutEffect(() => {
      loading = found === null;
      if (!loading) {
        focusTitle();
        typeEarly();
      }
      return () => {
        loading = false;
      };
    });
    const Shown = found;
    return Shown ? <Shown /> : <Loading />;
  };
}

const Compose = lazy(() => import("./screens/compose").then((module) => module.Compose));
const Data = lazy(() => import("./screens/data").then((module) => module.Data));
const Evidence = lazy(() => import("./screens/evidence").then((module) => module.Evidence));
const Functions = lazy(() => import("./screens/functions").then((module) => module.Functions));
const JobScreen = lazy(() => import("./screens/job").then((module) => module.JobScreen));
const Network = lazy(() => import("./screens/network").then((module) => module.Network));
const Nodes = lazy(() => import("./screens/nodes").then((module) => module.Nodes));
const PodScreen = lazy(() => import("./screens/pod").then((module) => module.PodScreen));
const TaskScreen = lazy(() => import("./screens/task").then((module) => module.TaskScreen));

interface View {
  key: Key & IconName;
  path: string;
  screen: ComponentType;
}

const views: View[] = [
  { key: "overview", path: "/", screen: Overview },
  { key: "jobs", path: "/jobs", screen: Jobs },
  { key: "network", path: "/network", screen: Network },
  { key: "data", path: "/data", screen: Data },
  { key: "approvals", path: "/approvals", screen: Approvals },
  { key: "nodes", path: "/nodes", screen: Nodes },
  { key: "functions", path: "/functions", screen: Functions },
  { key: "evidence", path: "/evidence", screen: Evidence },
];

/** Screens of one thing, with the entry of the rail that they belong to. */
const inner: { path: RegExp; rail: string; screen: ComponentType }[] = [
  { path: /^\/jobs\/[^/]+$/, rail: "/jobs", screen: JobScreen },
  { path: /^\/jobs\/[^/]+\/tasks\/[^/]+$/, rail: "/jobs", screen: TaskScreen },
  { path: /^\/compose$/, rail: "/jobs", screen: Compose },
  { path: /^\/pods\/[^/]+\/[^/]+$/, rail: "/nodes", screen: PodScreen },
];

const THEMES: Record<Theme, Key> = { system: "themeSystem", light: "themeLight", dark: "themeDark" };

function App() {
  if (session.value === null) return <Login />;
  hueOf(session.value.domain); // the first tint, whoever is shown first
  const path = address.value.pathname;
  const one = inner.find((each) => each.path.test(path));
  const view = views.find((each) => each.path === (one?.rail ?? path));
  const Shown = one?.screen ?? view?.screen;
  return (
    <div class="shell">
      <a class="skip" href="#content" onClick={skip}>
        {t("skip")}
      </a>
      <nav class="rail" aria-label={t("screens")}>
        <div class="brand">
          <Logo />
          <span>
            <strong>Coterie</strong>
            <small title={session.value.domain}>{session.value.domain}</small>
          </span>
        </div>
        {views.map((each) => (
          <a href={each.path} title={t(each.key)} {...(each === view ? { "aria-current": "page" as const } : {})}>
            <Icon name={each.key} />
            <span>{t(each.key)}</span>
            {each.key === "approvals" ? <Waiting /> : null}
          </a>
        ))}
        <div class="foot">
          <span class="mono who" title={session.value.account}>
            {session.value.account}
          </span>
          <button class="plain" title={t("theme")} onClick={nextTheme}>
            <Icon name="theme" />
            <span>
              {t("theme")}: {t(THEMES[theme.value])}
            </span>
          </button>
          <button class="plain" title={t("language")} onClick={() => choose(language.value === "en" ? "zh" : "en")}>
            <Icon name="language" />
            <span>{t("language")}</span>
          </button>
          <button
            class="plain"
            title={t("keys")}
            onClick={() => {
              helpShown.value = true;
            }}
          >
            <Icon name="keys" />
            <span>{t("keys")}</span>
            <kbd>?</kbd>
          </button>
          <button class="plain" title={t("logOut")} onClick={() => void end()}>
            <Icon name="leave" />
            <span>{t("logOut")}</span>
          </button>
        </div>
      </nav>
      <main class="main" id="content" tabIndex={-1}>
        {connected.value ? null : (
          <div class="banner" role="status">
            {t("lost")}
          </div>
        )}
        <Focused path={path}>{Shown ? <Shown key={path} /> : <NotFound />}</Focused>
      </main>
      <Help />
    </div>
  );
}

/** What had the focus when the view changed; undefined: its title has been reached, or need not be. */
let left: Element | null | undefined;

/** After a change of the view, reading goes on at its title, once there is one; unless the person has gone elsewhere meanwhile. */
function focusTitle(): void {
  const title = document.querySelector<HTMLElement>("main h1");
  if (left === undefined || !title) return;
  const at = document.activeElement;
  if (at === left || at === document.body || at === null) title.focus();
  left = undefined;
}

/** In the same step that draws the view: whatever is typed next goes where it belongs. */
function Focused({ path, children }: { path: string; children: preact.ComponentChildren }) {
  const before = useRef(path);
  useLayoutEffect(() => {
    if (before.current === path) return;
    before.current = path;
    document.querySelector<HTMLDialogElement>("dialog[open]")?.close();
    left = document.activeElement;
    early = "";
    focusTitle();
  }, [path]);
  return <>{children}</>;
}

/** A screen is being brought; `early`: `/` and what was typed after it, for the filter that the screen will have. */
let loading = false;
let early = "";

function typeEarly(): void {
  const typed = early;
  early = "";
  const field = typed ? document.querySelector<HTMLInputElement>('input[data-key="/"]') : null;
  if (!field) return;
  field.focus();
  if (typed === "/") return;
  field.value += typed.slice(1);
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

function skip(event: Event): void {
  event.preventDefault();
  event.stopPropagation();
  document.getElementById("content")?.focus();
}

function Waiting() {
  const rows = useRows<JobRow>(WAITING);
  const n = rows.list.value.filter((job) => !job.ours).length + useLogRequests().length;
  return n ? (
    <span class="count" aria-label={t("waitingCount", { n })}>
      {n}
    </span>
  ) : null;
}

function Logo() {
  return (
    <svg width={28} height={28} viewBox="0 0 32 32" aria-hidden="true" fill="none" stroke="var(--accent)" stroke-width={3}>
      <circle cx={16} cy={8} r={5} />
      <circle cx={8} cy={23} r={5} />
      <circle cx={24} cy={23} r={5} />
    </svg>
  );
}

function NotFound() {
  return (
    <Screen title={t("notFound")}>
      <div class="body">
        <p>
          <a href="/">{t("back")}</a>
        </p>
      </div>
    </Screen>
  );
}

function Login() {
  return (
    <main class="login">
      <Logo />
      <h1>{loginProblem.value ? t("loginFailed") : t("loggedOut")}</h1>
      {loginProblem.value ? <p class="message">{loginProblem.value}</p> : null}
      <p class="dim">{t("loginHint")}</p>
      <AsCommand command="coterie console" boxed />
    </main>
  );
}

/** `/` goes to the filter of the screen, `?` shows the other keys. */
addEventListener("keydown", (event) => {
  const target = event.target as HTMLElement;
  if (target.closest("input, textarea, select") || event.metaKey || event.ctrlKey || event.altKey) return;
  const field = document.querySelector<HTMLElement>(`[data-key="${CSS.escape(event.key)}"]`);
  if (field) {
    event.preventDefault();
    field.focus();
  } else if (loading && (early || event.key === "/") && event.key.length === 1) {
    event.preventDefault();
    early += event.key;
  } else if (session.value !== null && pressed(event.key)) event.preventDefault();
});

choose(language.value);
applyTheme();
resumeByLink();
void begin().then(() => render(<App />, document.getElementById("app") as HTMLElement));
