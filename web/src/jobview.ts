// One job as its page shows it: asked again while it changes.
import { useEffect, useRef, useState } from "preact/hooks";
import { send } from "./session";
import type { AttemptWindow, TimelineRow } from "./timelayout";

export interface Note {
  at: number;
  until: number;
  about: string;
  sentence: string;
  count: number;
  task: string;
  by: string;
}

export interface PartnerShare {
  party: string;
  /** Empty: the whole job. */
  task: string;
  level: "state" | "asked" | "shared";
  request: string;
  phase: string;
  message: string;
  until: string;
  lines: number;
  sources: string[];
}

export interface TimelineData {
  name: string;
  begin: number;
  end: number;
  rows: TimelineRow[];
  attempts: AttemptWindow[];
  restarted: number | null;
  notes: Note[];
  trace: string;
  chain: string[];
  own: string[];
  partners: PartnerShare[];
  unread: string[];
}

export type Point = [number, number, number];

export interface TaskUsage {
  task: string;
  pods: { party: string; pod: string; reason: string; points: Point[] }[];
  links: { party: string; peer: string; sent: number; received: number; points: Point[] }[];
}

export interface TaskView {
  alias: string;
  phase: string;
  progress: number;
  progressText: string;
  parties: { domain: string; role: string; phase: string }[];
  message: string;
  began: number | null;
  ended: number | null;
}

export interface JobView {
  now: number;
  state: { phase: string; progress: number; progressText: string; done: number; tasks: TaskView[]; initiator: string };
  timeline: TimelineData;
  usage: TaskUsage[];
  /** What nodes recorded is still being read. */
  partial: boolean;
}

/** `changed`: anything that is another value when the job has changed. */
export function useJobView(name: string, changed: string, running: boolean): { view: JobView | null; problem: string } {
  const [view, setView] = useState<JobView | null>(null);
  const [problem, setProblem] = useState("");
  const shown = useRef("");
  useEffect(() => {
    let current = true;
    let timer = 0;
    const load = async (): Promise<void> => {
      try {
        // What nodes recorded takes a moment to find: the rest is shown before.
        const first = shown.current !== name;
        const found = (await send("GET", `/views/jobs/${encodeURIComponent(name)}${first ? "?recorded=false" : ""}`)) as Omit<JobView, "partial">;
        if (!current) return;
        shown.current = name;
        setView({ ...found, partial: first });
        setProblem("");
        if (first) return await load();
      } catch (error) {
        if (current) setProblem((error as Error).message);
      }
      if (current && running) timer = window.setTimeout(load, document.hidden ? 15000 : 3000);
    };
    void load();
    // The last lines of what a task used are written a moment after its end.
    const late = running ? 0 : window.setTimeout(load, 2500);
    return () => {
      current = false;
      clearTimeout(timer);
      clearTimeout(late);
    };
  }, [name, changed, running]);
  return { view, problem };
}
