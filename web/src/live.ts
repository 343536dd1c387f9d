// One WebSocket for the tab. Lists that a page shows are followed; rows are applied once for each frame that is drawn.
import { signal, type Signal } from "@preact/signals";
import { resume, session } from "./session";

export interface Row {
  id: string;
  name: string;
  namespace: string;
  at: string;
  [field: string]: unknown;
}

export interface Query {
  resource: string;
  group?: string;
  version?: string;
  namespace?: string;
  labels?: string;
  fields?: string;
  /** Only rows of this phase. */
  phase?: string;
}

export interface Rows<R extends Row> {
  /** Newest first. */
  list: Signal<R[]>;
  ready: Signal<boolean>;
  problem: Signal<string>;
  end(): void;
}

interface Followed {
  query: Query;
  rows: Map<string, Row>;
  list: Signal<Row[]>;
  ready: Signal<boolean>;
  problem: Signal<string>;
  dirty: boolean;
  /** Changed rows that stay where they are in the list; null: the list has to be sorted anew. */
  replaced: Map<Row, Row> | null;
}

interface Message {
  id?: number;
  rows?: Row[];
  gone?: string[];
  reset?: boolean;
  /** The list is not whole yet. */
  more?: boolean;
  problem?: string;
  ended?: boolean;
}

export const connected = signal(true);

const followed = new Map<number, Followed>();
let socket: WebSocket | null = null;
let last = 0;
let pause = 250;
let drawing = 0;

export function follow<R extends Row>(query: Query): Rows<R> {
  const number = ++last;
  const one: Followed = {
    query,
    rows: new Map(),
    list: signal<Row[]>([]),
    ready: signal(false),
    problem: signal(""),
    dirty: false,
    replaced: null,
  };
  followed.set(number, one);
  if (socket?.readyState === WebSocket.OPEN) ask(number, query);
  else connect();
  return {
    list: one.list as unknown as Signal<R[]>,
    ready: one.ready,
    problem: one.problem,
    end() {
      followed.delete(number);
      if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ unsubscribe: number }));
    },
  };
}

function connect(): void {
  if (socket !== null) return;
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const made = new WebSocket(`${scheme}://${location.host}/live`);
  socket = made;
  made.onopen = () => {
    pause = 250;
    connected.value = true;
    for (const [number, one] of followed) ask(number, one.query);
  };
  made.onmessage = (event) => receive(JSON.parse(event.data as string) as Message);
  made.onclose = () => {
    socket = null;
    if (session.value === null || followed.size === 0) return;
    connected.value = false;
    later();
  };
}

function later(): void {
  setTimeout(() => void reconnect(), pause);
  pause = Math.min(pause * 2, 5000);
}

/** A WebSocket that is refused does not say why: the session may be over, or the server be away. */
async function reconnect(): Promise<void> {
  try {
    await resume();
  } catch {
    return later();
  }
  if (session.value !== null) connect();
}

function ask(number: number, query: Query): void {
  socket?.send(JSON.stringify({ subscribe: number, ...query }));
}

function receive(message: Message): void {
  if (message.ended) session.value = null;
  const one = message.id === undefined ? undefined : followed.get(message.id);
  if (one === undefined) return;
  if (message.problem !== undefined) {
    one.problem.value = message.problem;
    if (message.problem === "") return; // the rows say whether there are any
  }
  if (message.reset) {
    one.rows.clear();
    one.replaced = null;
  }
  for (const row of message.rows ?? []) apply(one, named(row));
  for (const id of message.gone ?? []) {
    if (one.rows.delete(id)) one.replaced = null;
  }
  one.dirty = true;
  // The beginning of a long list is drawn at once, and then the whole.
  if (message.more && one.ready.value) return;
  if (drawing === 0) drawing = requestAnimationFrame(draw);
}

/** Rows whose id is made of namespace and name come without these. */
export function named(row: Row): Row {
  if (row.name !== undefined) return row;
  const slash = row.id.indexOf("/");
  row.namespace = row.id.slice(0, slash);
  row.name = row.id.slice(slash + 1);
  return row;
}

function apply(one: Followed, row: Row): void {
  const before = one.rows.get(row.id);
  one.rows.set(row.id, row);
  if (before === undefined || before.at !== row.at) one.replaced = null;
  else one.replaced?.set(before, row);
}

function draw(): void {
  drawing = 0;
  for (const one of followed.values()) {
    if (!one.dirty) continue;
    one.dirty = false;
    const { replaced } = one;
    one.list.value = replaced === null ? [...one.rows.values()].sort(newestFirst) : one.list.value.map((row) => latest(replaced, row));
    one.replaced = new Map();
    one.ready.value = true;
  }
}

function newestFirst(a: Row, b: Row): number {
  return a.at < b.at ? 1 : a.at > b.at ? -1 : a.id < b.id ? -1 : 1;
}

/** A row may change several times before it is drawn. */
function latest(replaced: Map<Row, Row>, row: Row): Row {
  let found = row;
  for (let next = replaced.get(found); next !== undefined; next = replaced.get(found)) found = next;
  return found;
}
