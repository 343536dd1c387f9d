// Partners that ask for log lines of ours: who, which, why; and, before anything is sent, exactly what would be.
import { useState } from "preact/hooks";
import { coterie } from "./commands";
import { plainLine } from "./logs";
import { ActionButton, AsCommand, Time, useRows } from "./parts";
import type { Row } from "./live";
import { KUSCIA } from "./rights";
import { kube } from "./session";
import { t } from "./text";
import { left } from "./time";

export interface LogRequestRow extends Row {
  phase: string;
  message: string;
  requester: string;
  owner: string;
  job: string;
  task: string;
  sources: string[];
  reason: string;
  by: string;
  until: string;
  digest: string;
}

interface DomainRow extends Row {
  role: string;
}

/** `status.preview` of a LogRequest. */
interface Preview {
  text?: string;
  lines?: number;
  redactions?: number;
  truncated?: boolean;
  digest?: string;
  notes?: string[];
}

const KIND = { group: KUSCIA, version: "v1alpha1" };
const MERGE = "application/merge-patch+json";
const MOST_LINES = 5000;

/** Those that a person here has to decide about. In the namespace of a partner lies what was asked of it. */
export function useLogRequests(): LogRequestRow[] {
  const requests = useRows<LogRequestRow>({ resource: "logrequests", ...KIND, phase: "AwaitingApproval" });
  const domains = useRows<DomainRow>({ resource: "domains", ...KIND });
  const own = new Set(domains.list.value.filter((domain) => domain.role !== "partner").map((domain) => domain.name));
  return requests.list.value.filter((request) => request.namespace === request.owner && own.has(request.owner));
}

export function LogRequestCard({ request }: { request: LogRequestRow }) {
  const [preview, setPreview] = useState<Preview | null>(null);
  const [rejecting, setRejecting] = useState(false);
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState("");
  const need = { verb: "patch", group: KUSCIA, resource: "logrequests", namespace: request.namespace };
  const path = `/apis/${KUSCIA}/v1alpha1/namespaces/${encodeURIComponent(request.namespace)}/logrequests/${encodeURIComponent(request.name)}`;
  const done = (call: Promise<unknown>): void => {
    call.then(() => setProblem("")).catch((error: Error) => setProblem(error.message));
  };
  const look = (): void => done(kube("GET", path).then((found) => setPreview((found as { status?: { preview?: Preview } }).status?.preview ?? null)));
  const review = (words: object): void => done(kube("PATCH", path, { spec: { review: { reason: "", ...words } } }, MERGE));
  // What was made again since is not what somebody looked at.
  const current = preview !== null && preview.digest === request.digest ? preview : null;
  return (
    <section class="card">
      <h2>
        <strong>{t("asksForLogs", { who: request.requester, job: request.task ? `${request.job}/${request.task}` : request.job })}</strong>
      </h2>
      <p class="dim">
        <span class="mono">{request.name}</span> · <Time at={request.at} />
        {request.until ? ` · ${t("goodFor", { time: left(request.until) })}` : ""}
      </p>
      <dl class="facts">
        <dt>{t("reason")}</dt>
        <dd class="message">{request.reason}</dd>
        <dt>{t("source")}</dt>
        <dd>{request.sources.join(", ")}</dd>
        {request.by ? (
          <>
            <dt>{t("person")}</dt>
            <dd>{request.by}</dd>
          </>
        ) : null}
      </dl>
      {current ? (
        <>
          <p>{t("wouldBeSent", { n: current.lines ?? 0, cut: current.redactions ?? 0 })}</p>
          {(current.notes ?? []).map((note) => (
            <p class="dim message">{note}</p>
          ))}
          <pre class="text preview-lines" tabIndex={0} aria-label={t("logs")}>
            {(current.text ?? "").split("\n").slice(0, MOST_LINES).map(plainLine).join("\n")}
          </pre>
        </>
      ) : (
        <p class="dim">{request.digest ? t("lookFirst") : request.message || t("logsAreRead")}</p>
      )}
      <div class="decision">
        {rejecting ? (
          <>
            <label class="grow">
              <span>{t("rejectReason")}</span>
              <input value={reason} maxLength={500} onInput={(event) => setReason(event.currentTarget.value)} />
            </label>
            <ActionButton need={need} label={t("sendNothing")} danger act={() => review({ decision: "Reject", reason })} />
            <button type="button" onClick={() => setRejecting(false)}>
              {t("cancel")}
            </button>
          </>
        ) : (
          <>
            <ActionButton need={need} label={t("reject")} quiet act={() => setRejecting(true)} />
            {current ? (
              <ActionButton need={need} label={t("sendLines")} first act={() => review({ decision: "Approve", digest: current.digest ?? "" })} />
            ) : (
              <button type="button" disabled={!request.digest} onClick={look}>
                {t("look")}
              </button>
            )}
          </>
        )}
      </div>
      {problem ? (
        <p class="bad message" role="alert">
          {problem}
        </p>
      ) : null}
      <p>
        <AsCommand command={coterie(current ? ["logrequest", "approve", request.name] : ["logrequest", "preview", request.name])} />
      </p>
    </section>
  );
}
