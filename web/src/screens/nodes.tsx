// Machines: how much of each is asked for, and what runs on them.
import { bytes, cores } from "../amounts";
import { coterie } from "../commands";
import { Callout, Empty, Meter, Phase, Screen, Time, useRows } from "../parts";
import type { Row } from "../live";
import { address, setQuery } from "../router";
import { t, type Key } from "../text";

interface NodeRow extends Row {
  phase: string;
  allocatable: Record<string, number>;
  version: string;
  message: string;
  unschedulable: boolean;
}

export interface PodRow extends Row {
  phase: string;
  node: string;
  ready: number;
  containers: number;
  names: string[];
  requests: Record<string, number>;
  restarts: number;
  reason: string;
  message: string;
  task: string;
}

const BARS: { name: string; label: Key; shown(amount: number): string }[] = [
  { name: "cpu", label: "cpu", shown: cores },
  { name: "memory", label: "memory", shown: bytes },
  { name: "kuscia.io/bandwidth", label: "bandwidth", shown: (amount) => `${amount} Mbit/s` },
  { name: "gpu", label: "gpu", shown: cores },
];

export function Nodes() {
  const nodes = useRows<NodeRow>({ resource: "nodes", version: "v1" });
  const pods = useRows<PodRow>({ resource: "pods", version: "v1" });
  const filter = address.value.searchParams.get("q") ?? "";
  const asked = (node: string, name: string): number =>
    pods.list.value.filter((pod) => pod.node === node && pod.phase !== "Succeeded" && pod.phase !== "Failed").reduce((sum, pod) => sum + (pod.requests[name] ?? 0), 0);
  const shown = pods.list.value.filter((pod) => !filter || `${pod.namespace}/${pod.name} ${pod.node} ${pod.phase} ${pod.task}`.toLowerCase().includes(filter.toLowerCase()));
  return (
    <Screen title={t("nodes")} command={coterie(["get", "nodes,pods", "-A"])}>
      <div class="body">
        {nodes.problem.value ? <p class="bad message">{nodes.problem.value}</p> : null}
        {nodes.ready.value && nodes.list.value.length === 0 ? <Empty icon="nodes" title={t("noNodesTitle")} text={t("noNodes")} command={coterie(["node", "add", "node-2", "--address", "10.0.0.2"])} /> : null}
        <div class="cards">
          {nodes.list.value.map((node) => (
            <section class="card">
              <div class="tools">
                <h2 class="mono">{node.name}</h2>
                <Phase phase={node.phase} />
                {node.unschedulable ? <span class="dim">{t("unschedulable")}</span> : null}
                <span class="dim spread">{node.version}</span>
              </div>
              {BARS.filter((bar) => node.allocatable[bar.name]).map((bar) => (
                <Meter label={t(bar.label)} used={asked(node.name, bar.name)} all={node.allocatable[bar.name] ?? 0} shown={bar.shown} />
              ))}
              {node.phase === "NotReady" && node.message ? <Callout text={node.message} state="failed" /> : null}
            </section>
          ))}
        </div>
        <div class="tools above">
          <h2>{t("pods")}</h2>
          <label>
            <span class="visually-hidden">{t("filter")}</span>
            <input class="filter" type="search" data-key="/" placeholder={t("filter")} value={filter} onInput={(event) => setQuery("q", event.currentTarget.value)} />
          </label>
          <span class="dim">{t("shown", { n: Math.min(500, shown.length), all: pods.list.value.length })}</span>
        </div>
        {pods.ready.value && pods.list.value.length === 0 ? <p class="dim">{t("noPods")}</p> : null}
        <div class="scroll" hidden={pods.list.value.length === 0}>
          <table class="plain">
            <thead>
              <tr>
                <th>{t("name")}</th>
                <th>{t("state")}</th>
                <th class="wide">{t("containers")}</th>
                <th class="wide">{t("machine")}</th>
                <th>{t("created")}</th>
                <th>{t("reason")}</th>
              </tr>
            </thead>
            <tbody>
              {shown.slice(0, 500).map((pod) => (
                <tr>
                  <td class="mono name">
                    <a href={`/pods/${encodeURIComponent(pod.namespace)}/${encodeURIComponent(pod.name)}`}>
                      {pod.namespace}/{pod.name}
                    </a>
                  </td>
                  <td>
                    <Phase phase={pod.phase} />
                  </td>
                  <td class="wide name">
                    {t("readyOf", { n: pod.ready, all: pod.containers })}
                  </td>
                  <td class="wide name">{pod.node}</td>
                  <td>
                    <Time at={pod.at} />
                  </td>
                  <td class="message">
                    {pod.reason ? <span class="bad">✘ {pod.reason} </span> : null}
                    <span class="dim">{pod.reason ? pod.message : ""}</span>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </div>
    </Screen>
  );
}
