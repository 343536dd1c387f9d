// What would become of a job, party by party, as its control planes say.
import { Callout, Party } from "./parts";
import { glyphs, type State } from "./states";
import { type Key, t } from "./text";

interface Row {
  task?: string;
  problem?: string;
}

interface PartyPlan {
  outlook?: string;
  detail?: string;
  approval?: { verdict?: string; by?: string; rules?: string[]; message?: string };
  tables?: (Row & { table: string; columns?: string[]; grant?: string; uses?: number; usesLeft?: number })[];
  engines?: (Row & { appImage: string; version?: string })[];
  placements?: (Row & { pods?: number; fits?: boolean; nodes?: string[] })[];
  links?: (Row & { peer: string; ready?: boolean; requested?: string; capacity?: string })[];
  notes?: string[];
}

export interface JobPlan {
  outlook?: string;
  message?: string;
  answers?: { domain: string; phase: string; message?: string; plan?: PartyPlan }[];
}

interface Fact {
  label: Key;
  text: string;
  bad: boolean;
}

const STATES: Record<string, State> = { Runs: "succeeded", Waits: "waiting", Fails: "failed" };
const OUTLOOKS: Record<string, Key> = {
  Runs: "wouldRun",
  Waits: "wouldWait",
  Fails: "wouldNotRun",
  Unknown: "planUnknown",
};

export function PlanView({ plan }: { plan: JobPlan }) {
  return (
    <>
      <Callout text={plan.message ?? ""} state={stateOf(plan.outlook)} />
      {(plan.answers ?? []).map((answer) => (
        <section class="plan" aria-label={answer.domain}>
          <h3>
            <Party name={answer.domain} />{" "}
            <span class="state" data-state={stateOf(answer.plan?.outlook)}>
              <span aria-hidden="true">{glyphs[stateOf(answer.plan?.outlook)]}</span>
              {t(OUTLOOKS[answer.plan?.outlook ?? ""] ?? "noPlan")}
            </span>
            {answer.plan?.detail === "summary" ? <small class="dim"> {t("planSummary")}</small> : null}
          </h3>
          {answer.plan ? (
            <dl class="facts">
              {factsOf(answer.plan).map((fact) => (
                <>
                  <dt>{t(fact.label)}</dt>
                  <dd class={fact.bad ? "bad" : ""}>{fact.text}</dd>
                </>
              ))}
            </dl>
          ) : (
            <p class="dim">{answer.message}</p>
          )}
        </section>
      ))}
    </>
  );
}

function stateOf(outlook: string | undefined): State {
  return STATES[outlook ?? ""] ?? "preparing";
}

function factsOf(plan: PartyPlan): Fact[] {
  const facts: Fact[] = [];
  const add = (label: Key, row: Row, text: string, bad = false): void => {
    const words = [row.task ? `${row.task}: ${text}` : text, row.problem ?? ""].filter(Boolean).join(": ");
    facts.push({ label, text: words, bad: bad || Boolean(row.problem) });
  };
  const approval = plan.approval;
  if (approval) add("planApproval", {}, approvalText(approval), approval.verdict === "Refuse");
  for (const row of plan.tables ?? []) {
    const columns = row.columns?.length ? ` (${row.columns.join(", ")})` : "";
    const left = row.usesLeft === undefined ? "" : ` ${t("planUses", { n: row.uses ?? 0, left: row.usesLeft })}`;
    add("table", row, `${row.table}${columns}${row.grant ? `, ${row.grant}${left}` : ""}`);
  }
  for (const row of plan.engines ?? []) add("engine", row, [row.appImage, row.version ?? ""].join(" ").trim());
  for (const row of plan.placements ?? []) {
    const where = row.nodes?.length ? row.nodes.join(", ") : t(row.fits ? "planFits" : "planNoRoom");
    add("planPlacement", row, `${row.pods ?? 0} × ${where}`, !row.fits);
  }
  for (const row of plan.links ?? []) {
    const asked = [row.requested, row.capacity].filter(Boolean).join(" / ");
    add("planLink", row, [row.peer, t(row.ready ? "ready" : "notReady"), asked].filter(Boolean).join(", "), !row.ready);
  }
  for (const note of plan.notes ?? []) add("planNote", {}, note);
  return facts;
}

function approvalText(given: { verdict?: string; by?: string; rules?: string[]; message?: string }): string {
  const words: Record<string, Key> = { Allow: "planApproved", Ask: "planAsks", Refuse: "planRefuses" };
  const text = t(words[given.verdict ?? ""] ?? "planNoApproval");
  const rules = given.rules?.length ? ` (${given.rules.join(", ")})` : "";
  return `${text}${rules}${given.message ? `: ${given.message}` : ""}`;
}
