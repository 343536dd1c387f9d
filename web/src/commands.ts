// What the page shows, as commands that can be pasted into a shell on a machine of the domain.
import { session } from "./session";
import { quoted } from "./shell";

/** `coterie …` for the control plane of this console, or for another domain of this machine. Empty words are left out. */
export function coterie(words: string[], domain = session.value?.domain ?? ""): string {
  const all = [...words.filter(Boolean), ...(domain ? ["--domain", domain] : [])];
  return ["coterie", ...all.map(quoted)].join(" ");
}

export function option(name: string, value: string): string[] {
  return value ? [name, value] : [];
}

/** `audit ls` with the filters that are set. */
export function eventsCommand(filters: [string, string][]): string {
  return coterie(["audit", "ls"].concat(filters.flatMap(([name, value]) => option(`--${name}`, value))));
}

export interface RunWords {
  engine: string;
  name: string;
  input: string;
  initiator: string;
  parties: { domain: string; role: string; cpu: string; memory: string }[];
}

/** `job run` with all that was chosen in the page. */
export function runCommand(job: RunWords, domain?: string): string {
  const each = (field: "role" | "cpu" | "memory"): string =>
    job.parties
      .filter((party) => party[field])
      .map((party) => `${party.domain}=${party[field]}`)
      .join(",");
  const input = job.input.trim() === "{}" ? "" : compact(job.input);
  return coterie(
    [
      ...["job", "run", "--engine", job.engine || "sample", "--parties", job.parties.map((party) => party.domain).join(",") || "alice,bob"],
      ...[...option("--name", job.name), ...option("--initiator", job.initiator), ...option("--input", input)],
      ...[...option("--role", each("role")), ...option("--cpu", each("cpu")), ...option("--memory", each("memory"))],
    ],
    domain,
  );
}

/** `job stop` for several: the command takes one. */
export function stopCommand(names: string[], domain?: string): string {
  if (names.length === 1) return coterie(["job", "stop", names[0] ?? ""], domain);
  return `for job in ${names.map(quoted).join(" ")}; do ${coterie(["job", "stop"], domain)} "$job"; done`;
}

export function grantCommand(table: string, partner: string, columns: string[], uses: string, seconds: number, owner: string): string {
  return coterie(["data", "grant", table, partner, ...option("--columns", columns.join(",")), ...option("--count", uses), ...option("--for", seconds ? `${seconds}s` : "")], owner);
}

/** `job ls`, with what of a filter the command knows too. */
export function listCommand(filter: string, domain?: string): string {
  const phase = /(?:^|\s)phase:(\S+)/.exec(filter)?.[1] ?? "";
  return coterie(["job", "ls", ...option("--phase", phase)], domain);
}

export interface LogWords {
  job: string;
  party: string;
  task: string;
  source: string;
  since: string;
  grep: string;
  follow: boolean;
}

export function logsCommand(logs: LogWords, domain?: string): string {
  const words = [...option("--party", logs.party), ...option("--task", logs.task), ...option("--source", logs.source === "engine" ? "" : logs.source), ...option("--since", logs.since), ...option("--grep", logs.grep)];
  return coterie(["job", "logs", logs.job, ...words, logs.follow ? "-f" : ""], domain);
}

/** All of the evidence log as a file, checked as an auditor does. */
export function verifyCommand(domain = session.value?.domain ?? ""): string {
  const file = `${domain || "log"}.evidence`;
  return `${coterie(["audit", "export", "--file", file], domain)} && coterie audit verify ${quoted(file)}`;
}

/** What a terminal in a container is. */
export function execCommand(namespace: string, pod: string, container: string, command: string, domain?: string): string {
  const words = command.split(/\s+/).filter(Boolean);
  return [coterie(["exec", "-it", pod, "-n", namespace, ...option("-c", container)], domain), "--", ...words.map(quoted)].join(" ");
}

/** `action invoke`, with a body where one was written. */
export function invokeCommand(action: string, body: string, domain?: string): string {
  return coterie(["action", "invoke", action, ...option("--body", body)], domain);
}

/** The shares that the versions of a function have now, or how to go back to an older one. */
export function versionsCommand(action: string, newest: string, versions: { name: string; percent: number }[], domain?: string): string {
  const shares = versions.filter((each) => each.percent > 0);
  const older = versions.find((each) => each.name !== newest);
  if (shares.length > 1) return coterie(["action", "traffic", action, shares.map((each) => `${each.name}=${each.percent}`).join(",")], domain);
  if (shares[0] && shares[0].name !== newest) return coterie(["action", "traffic", action, "latest"], domain);
  return older ? coterie(["action", "rollback", action, "--to", older.name], domain) : coterie(["action", "versions", action], domain);
}

function compact(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text));
  } catch {
    return text;
  }
}
