// Who is logged in, and calls with the person's rights.
import { signal } from "@preact/signals";

export interface Session {
  account: string;
  csrf: string;
  domain: string;
  mode: string;
  readOnly: boolean;
  exec: boolean;
}

export const session = signal<Session | null>(null);
export const loginProblem = signal("");

let channel: BroadcastChannel | null = null;

/** Tells the other tabs that somebody has logged in. */
function tabs(): BroadcastChannel {
  channel ??= new BroadcastChannel("session");
  return channel;
}

export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly reason: string,
    message: string,
  ) {
    super(message);
  }
}

/** The code of a link becomes a cookie; the fragment is never sent to a server by the browser itself. */
export async function begin(): Promise<void> {
  const code = new URLSearchParams(location.hash.slice(1)).get("login");
  if (code !== null) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      session.value = (await send("POST", "/login", { code })) as Session;
      loginProblem.value = "";
      tabs().postMessage("");
      return;
    } catch (problem) {
      loginProblem.value = problem instanceof Error ? problem.message : String(problem);
      return;
    }
  }
  await resume();
}

/** Whether somebody is logged in still, or again: in another tab, or after the server was away. */
export async function resume(): Promise<void> {
  try {
    session.value = (await send("GET", "/session")) as Session;
  } catch (problem) {
    if (!(problem instanceof Refused && problem.status === 401)) throw problem;
  }
}

/** A tab that was logged out goes on where it was when a link is opened, in it or in another tab. */
export function resumeByLink(): void {
  addEventListener("hashchange", () => {
    if (new URLSearchParams(location.hash.slice(1)).has("login")) void begin();
  });
  tabs().onmessage = () => {
    if (session.value === null) void resume().catch(() => undefined);
  };
}

export async function end(): Promise<void> {
  await send("POST", "/logout");
  session.value = null;
}

/** One call to the Kubernetes API, with the person's token. */
export function kube(method: string, path: string, body?: unknown, type = "application/json"): Promise<unknown> {
  return send(method, `/kube${path}`, body, type);
}

/** Text of the Kubernetes API, such as logs. */
export async function kubeText(path: string): Promise<string> {
  return String(await send("GET", `/kube${path}`, undefined, "application/json", "text/plain, */*"));
}

export async function send(method: string, path: string, body?: unknown, type = "application/json", accept = "application/json"): Promise<unknown> {
  const headers: Record<string, string> = { Accept: accept };
  if (session.value !== null) headers["X-Coterie-CSRF"] = session.value.csrf;
  const init: RequestInit = { method, headers, credentials: "same-origin" };
  if (body !== undefined) {
    headers["Content-Type"] = type;
    init.body = JSON.stringify(body);
  }
  const answer = await fetch(path, init);
  const text = await answer.text();
  const shown: unknown = (answer.headers.get("content-type") ?? "").startsWith("application/json") && text ? JSON.parse(text) : text;
  if (!answer.ok) {
    if (answer.status === 401 && path !== "/login") session.value = null;
    const about = shown as { reason?: string; message?: string };
    throw new Refused(answer.status, about.reason ?? "", about.message ?? String(shown));
  }
  return shown;
}
