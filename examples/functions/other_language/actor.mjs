// An actor in JavaScript (Node.js 18 or newer, nothing to install). It speaks the protocol of actors (docs/designs/functions.md).
//
//   GET  /healthz   200 when it takes calls
//   POST /invoke    one line of JSON, a newline, the body; the answer has the same form
//   PUT  /code      501: new code comes with new pods

import { timingSafeEqual, createHash } from "node:crypto";
import { createServer } from "node:http";

const MOST_BODY = 32 << 20;
const digest = (text) => createHash("sha256").update(text).digest();
const expected = digest(`Bearer ${process.env.COTERIE_ACTOR_TOKEN}`);
const next = new Set((process.env.COTERIE_ACTION_NEXT ?? "").split(",").filter(Boolean));

// What this action does: counts the words of a text, or passes a long one on.
async function action(call, body) {
  const words = body.toString("utf8").split(/\s+/).filter(Boolean);
  if (call.params.fail) throw new Error("as asked");
  if (words.length > 1000) return invoke("archive", { words: words.length }, body);
  return respond({ words: words.length, longest: words.reduce((a, b) => (b.length > a.length ? b : a), "") });
}

function respond(value, status = 200) {
  return [{ response: { status, contentType: "application/json" } }, JSON.stringify(value)];
}

function invoke(target, params, body) {
  if (!next.has(target)) return failure(`NotAllowed: "${target}" is not declared in next`);
  return [{ invoke: { action: target, params, path: "", contentType: "text/plain" } }, body];
}

function failure(error) {
  const head = { response: { status: 500, contentType: "text/plain", error } };
  return [head, `action "${process.env.COTERIE_ACTION}" failed: ${error}\n`];
}

async function read(request) {
  const pieces = [];
  let size = 0;
  for await (const piece of request) {
    size += piece.length;
    if (size > MOST_BODY) return null;
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}

async function answer(request) {
  if (request.url === "/healthz") return [200, "ok\n"];
  if (!timingSafeEqual(digest(request.headers.authorization ?? ""), expected)) return [401, "wrong token\n"];
  if (request.method === "PUT" && request.url.startsWith("/code")) return [501, "new code needs a new pod\n"];
  if (request.method !== "POST" || request.url !== "/invoke") return [404, "there are /healthz and /invoke\n"];
  const whole = await read(request);
  if (whole === null) return [413, "the call is too large\n"];
  const end = whole.indexOf(10);
  let call;
  try {
    call = JSON.parse(whole.subarray(0, end < 0 ? whole.length : end));
  } catch {
    return [400, "the first line is not JSON\n"];
  }
  let head, body;
  try {
    [head, body] = await action({ params: {}, ...call }, end < 0 ? Buffer.alloc(0) : whole.subarray(end + 1));
  } catch (error) {
    console.error(`call=${call.id} ${error.stack}`);
    [head, body] = failure(`${error.name}: ${error.message}`);
  }
  return [200, Buffer.concat([Buffer.from(`${JSON.stringify(head)}\n`), Buffer.from(body)])];
}

const server = createServer(async (request, response) => {
  const [status, body] = await answer(request);
  // What was not read of the request must not be taken for the next one.
  const close = request.complete ? {} : { connection: "close" };
  response.writeHead(status, { "content-length": Buffer.byteLength(body), ...close });
  response.end(body);
});
server.keepAliveTimeout = 0;
server.listen(Number(process.env.COTERIE_ACTOR_PORT ?? 6811), process.env.COTERIE_ACTOR_HOST ?? "0.0.0.0", () =>
  console.error(`actor: listens on port ${server.address().port}`),
);
process.on("SIGTERM", () => {
  server.close(() => process.exit(0));
  server.closeIdleConnections();
});
