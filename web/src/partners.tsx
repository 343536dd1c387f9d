// What partners show of their part of a job, and how they are asked for more.
import { useState } from "preact/hooks";
import type { PartnerShare, TimelineData } from "./jobview";
import { ActionButton, AsCommand, Mark } from "./parts";
import { KUSCIA } from "./rights";
import { kube } from "./session";
import { coterie, option } from "./commands";
import { locale, t, type Key } from "./text";

const PATH = "/apis/kuscia.secretflow/v1alpha1/namespaces";
const SOURCES = ["usage", "scheduler", "engine"];
const LEVELS: Record<PartnerShare["level"], Key> = { state: "partnerStateOnly", asked: "partnerAsked", shared: "partnerShared" };

export function AskPartners({ data, task }: { data: TimelineData; task: string }) {
  const involved = data.partners.filter((each) => each.task === task);
  if (involved.length === 0) return null;
  return (
    <section class="tl-partners" aria-label={t("partners")}>
      {involved.map((share) => (
        <Partner key={share.party} share={share} data={data} task={task} />
      ))}
    </section>
  );
}

function Partner({ share, data, task }: { share: PartnerShare; data: TimelineData; task: string }) {
  const [asking, setAsking] = useState(false);
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState("");
  const [sent, setSent] = useState("");
  const requester = data.own[0] ?? "";
  const need = { verb: "create", group: KUSCIA, resource: "logrequests", namespace: requester };
  const ask = (): void => {
    const name = `${data.name.slice(0, 200)}-${crypto.getRandomValues(new Uint32Array(1))[0]?.toString(36).slice(0, 5) ?? "a"}`;
    const spec = { requester, owner: share.party, job: data.name, reason, sources: SOURCES, maxLines: 5000, ...(task ? { task } : {}) };
    kube("POST", `${PATH}/${encodeURIComponent(requester)}/logrequests`, { apiVersion: "kuscia.secretflow/v1alpha1", kind: "LogRequest", metadata: { name, namespace: requester }, spec })
      .then(() => {
        setProblem("");
        setAsking(false);
        setSent(name);
      })
      .catch((error: Error) => setProblem(error.message));
  };
  const command = coterie(["logrequest", "create", data.name, "--party", share.party, ...option("--task", task ?? ""), "--source", SOURCES.join(","), "--reason", "…"]);
  return (
    <div class="tl-partner">
      <Mark name={share.party} />
      <div>
        <div>
          {t(LEVELS[share.level], { who: share.party })} {share.level === "shared" ? t("sharedLines", { n: share.lines, until: share.until ? new Date(share.until).toLocaleString(locale(), { dateStyle: "medium", timeStyle: "short" }) : "" }) : ""}
          {share.level === "state" && sent ? ` ${t("partnerAsked", { who: share.party })}` : ""}
        </div>
        {share.message && share.level !== "shared" ? <div class="message dim">{share.message}</div> : null}
        {share.level === "state" ? (
          <>
            <AsCommand command={command} />
            {asking ? (
              <div class="decision">
                <label class="grow">
                  <span>{t("askReason", { who: share.party })}</span>
                  <input value={reason} maxLength={1000} onInput={(event) => setReason(event.currentTarget.value)} />
                </label>
                <button type="button" class="first" disabled={!reason.trim()} onClick={ask}>
                  {t("askNow")}
                </button>
                <button type="button" onClick={() => setAsking(false)}>
                  {t("cancel")}
                </button>
              </div>
            ) : null}
          </>
        ) : (
          <AsCommand command={coterie(["logrequest", "show", share.request])} />
        )}
        {problem ? (
          <p class="bad message" role="alert">
            {problem}
          </p>
        ) : null}
      </div>
      {share.level === "state" && !asking ? <ActionButton need={need} label={t("askPartner", { who: share.party })} act={() => setAsking(true)} /> : null}
    </div>
  );
}
