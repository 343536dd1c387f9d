// What the person may do, asked once for each namespace: a button that would be refused is off and says why.
import { signal, type Signal } from "@preact/signals";
import { kube, session } from "./session";
import { t } from "./text";

export interface Need {
  verb: string;
  group: string;
  resource: string;
  namespace: string;
}

interface Rule {
  verbs: string[];
  apiGroups?: string[];
  resources?: string[];
  resourceNames?: string[];
}

const known = new Map<string, Signal<Rule[] | null>>();

export const KUSCIA = "kuscia.secretflow";

function rules(namespace: string): Rule[] | null {
  let found = known.get(namespace);
  if (found === undefined) {
    const made = signal<Rule[] | null>(null);
    known.set(namespace, made);
    kube("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {
      apiVersion: "authorization.k8s.io/v1",
      kind: "SelfSubjectRulesReview",
      spec: { namespace },
    })
      .then((review) => {
        made.value = (review as { status?: { resourceRules?: Rule[] } }).status?.resourceRules ?? [];
      })
      .catch(() => known.delete(namespace));
    found = made;
  }
  return found.value;
}

/** Why it cannot be done; empty: it can, as far as is known. The server decides in any case. */
export function obstacle(need: Need): string {
  const change = !["get", "list", "watch"].includes(need.verb) || need.resource === "pods/exec";
  if (change && session.value?.readOnly) return t("readOnly");
  const found = rules(need.namespace);
  if (found === null || found.some((rule) => allows(rule, need))) return "";
  return t("notAllowed", { verb: need.verb, resource: need.group ? `${need.resource}.${need.group}` : need.resource });
}

export function allows(rule: Rule, need: Need): boolean {
  const sub = need.resource.includes("/") ? `*/${need.resource.split("/")[1] ?? ""}` : need.resource;
  return (
    has(rule.verbs, need.verb) &&
    has(rule.apiGroups ?? [], need.group) &&
    (has(rule.resources ?? [], need.resource) || (rule.resources ?? []).includes(sub)) &&
    !(rule.resourceNames ?? []).length
  );
}

function has(list: string[], wanted: string): boolean {
  return list.includes("*") || list.includes(wanted);
}
