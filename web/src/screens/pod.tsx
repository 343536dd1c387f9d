// One pod: its containers' logs, its events, and a terminal in it.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Row } from "../live";
import { joined, LogLines, stamped, type Line } from "../logs";
import { coterie } from "../commands";
import { Callout, Empty, Phase, Screen, Time, useRows } from "../parts";
import { obstacle } from "../rights";
import { address, setQuery, word } from "../router";
import { kubeText, session } from "../session";
import { t } from "../text";
import { Choice } from "./joblogs";
import type { PodRow } from "./nodes";

interface EventRow extends Row {
  type: string;
  reason: string;
  message: string;
  about: string;
  kind: string;
  count: number;
  last: string;
}

const TAIL = 1000;

export function PodScreen() {
  const [namespace, name] = [word(2), word(3)];
  const rows = useRows<PodRow>({ resource: "pods", version: "v1", namespace, fields: `metadata.name=${name}` });
  const events = useRows<EventRow>({ resource: "events", version: "v1", namespace, fields: `involvedObject.name=${name}` });
  const pod = rows.list.value[0];
  const container = address.value.searchParams.get("container") || pod?.names[0] || "";
  const about = events.list.value.filter((event) => event.about === name && event.kind === "Pod");
  return (
    <Screen
      title={<span class="mono">{name}</span>}
      parent={{ href: "/nodes", label: t("nodes") }}
      tools={pod ? <Phase phase={pod.phase} /> : null}
      actions={pod ? <Terminal pod={pod} container={container} /> : null}
      command={coterie(["logs", name, "-n", namespace, ...(container ? ["-c", container] : [])])}
    >
      {rows.problem.value ? <div class="banner">{rows.problem.value}</div> : null}
      <div class="body column">
        {rows.ready.value && !pod ? <Empty icon="nodes" text={t("podGone")} command={coterie(["get", "pods", "-A"])} /> : null}
        {pod?.reason ? <Callout text={`${pod.reason} ${pod.message}`} state="failed" /> : null}
        {pod ? (
          <dl class="strip flush">
            <div>
              <dt>{t("namespace")}</dt>
              <dd class="mono">{pod.namespace}</dd>
            </div>
            <div>
              <dt>{t("machine")}</dt>
              <dd class="mono">{pod.node || "–"}</dd>
            </div>
            <div>
              <dt>{t("created")}</dt>
              <dd>
                <Time at={pod.at} />
              </dd>
            </div>
            <div>
              <dt>{t("restarts")}</dt>
              <dd>{pod.restarts}</dd>
            </div>
            {pod.task ? (
              <div>
                <dt>{t("task")}</dt>
                <dd class="mono">{pod.task}</dd>
              </div>
            ) : null}
          </dl>
        ) : null}
        <h2 class="above">{t("logs")}</h2>
        {pod && container ? <PodLogs key={container} pod={pod} container={container} /> : null}
        <h2 class="above">{t("events")}</h2>
        {events.ready.value && about.length === 0 ? <p class="dim">{t("noEvents")}</p> : null}
        <table class="plain">
          {about.length ? (
            <thead>
              <tr>
                <th>{t("when")}</th>
                <th>{t("event")}</th>
                <th>{t("message")}</th>
              </tr>
            </thead>
          ) : null}
          <tbody>
            {about.map((event) => (
              <tr>
                <td>
                  <Time at={event.last || event.at} />
                </td>
                <td class={event.type === "Warning" ? "warn" : ""}>{event.type === "Warning" ? `! ${event.reason}` : event.reason}</td>
                <td class="message">
                  {event.message}
                  {event.count > 1 ? ` (${event.count}×)` : ""}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Screen>
  );
}

/** The page of the terminal asks again before it opens one. */
function Terminal({ pod, container }: { pod: PodRow; container: string }) {
  const off = session.value?.exec ? obstacle({ verb: "get", group: "", resource: "pods/exec", namespace: pod.namespace }) : t("noExec");
  const why = off || (pod.phase === "Running" ? "" : t("notRunning"));
  if (why)
    return (
      <span class="off">
        <small>{why}</small>
        <button type="button" disabled title={why}>
          {t("terminal")}
        </button>
      </span>
    );
  const query = new URLSearchParams({ namespace: pod.namespace, pod: pod.name, container });
  return (
    <a class="button" href={`/terminal?${query.toString()}`} target="_blank" rel="noopener">
      {t("terminal")}
    </a>
  );
}

function PodLogs({ pod, container }: { pod: PodRow; container: string }) {
  const [lines, setLines] = useState<Line[]>([]);
  const [problem, setProblem] = useState("");
  const [follow, setFollow] = useState(pod.phase === "Running");
  const newest = useRef("");
  const path = `/api/v1/namespaces/${encodeURIComponent(pod.namespace)}/pods/${encodeURIComponent(pod.name)}/log`;
  const load = async (): Promise<void> => {
    const query = new URLSearchParams({ container, timestamps: "true", tailLines: String(TAIL) });
    if (newest.current) query.set("sinceTime", `${newest.current.slice(0, 19)}Z`);
    const found = (await kubeText(`${path}?${query.toString()}`)).split("\n").filter(Boolean).map((line) => stamped(line));
    const last = found[found.length - 1]?.at ?? "";
    if (last > newest.current) newest.current = last;
    setLines((before) => joined(before, found));
    setProblem("");
  };
  useEffect(() => {
    void load().catch((error: Error) => setProblem(error.message));
  }, [path, container]);
  useEffect(() => {
    if (!follow) return;
    let busy = false;
    const timer = setInterval(() => {
      if (busy || document.hidden) return;
      busy = true;
      load()
        .catch((error: Error) => setProblem(error.message))
        .finally(() => {
          busy = false;
        });
    }, 1000);
    return () => clearInterval(timer);
  }, [path, container, follow]);
  return (
    <>
      {problem ? (
        <p class="bad message" role="alert">
          {problem}
        </p>
      ) : null}
      <LogLines
        lines={lines}
        follow={follow}
        tools={
          <>
            <Choice label={t("container")} value={container} options={pod.names} choose={(value) => setQuery("container", value)} />
            <label class="check">
              <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> {t("follow")}
            </label>
          </>
        }
      />
    </>
  );
}
