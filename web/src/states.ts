// From the phases of objects to the six states that people see; glyphs are those of the command line.
import type { Key } from "./text";

export type State = "succeeded" | "running" | "preparing" | "failed" | "approval" | "waiting";

export const glyphs: Record<State, string> = {
  succeeded: "✔",
  running: "●",
  preparing: "◌",
  failed: "✘",
  approval: "◆",
  waiting: "○",
};

export const words: Record<State, Key> = {
  succeeded: "succeeded",
  running: "running",
  preparing: "preparing",
  failed: "failed",
  approval: "approval",
  waiting: "waiting",
};

const phases: Record<string, State> = {
  Succeeded: "succeeded",
  Ready: "succeeded",
  Running: "running",
  Failed: "failed",
  Cancelled: "failed",
  ApprovalReject: "failed",
  NotReady: "failed",
  RouteDown: "failed",
  Unavailable: "failed",
  AwaitingApproval: "approval",
  Initialized: "preparing",
  Creating: "preparing",
  Pending: "waiting",
  Suspended: "waiting",
};

/** Words for phases that are no phases of jobs: machines are ready, not successful. */
export const nodeWords: Record<string, Key> = {
  Ready: "ready",
  NotReady: "notReady",
  RouteDown: "routeDown",
  Cancelled: "cancelled",
  ApprovalReject: "rejected",
  Suspended: "suspended",
};

export function stateOf(phase: string): State {
  return phases[phase] ?? "waiting";
}
