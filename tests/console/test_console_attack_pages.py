"""A page on another port of the same machine, in a real browser in which somebody is logged in: it has the cookie, and gets nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from console_browser import TIMEOUT, new_page, running_browser
from console_world import JOBS, a_job, control_plane

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.console.__main__ import web_server
from coterie.console.server import ConsoleServer
from coterie.console.sessions import Login
from coterie.console.settings import ConsoleSettings
from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer
from coterie.kuscia.api.types.job import CROSS_DOMAIN

ATTACKS = """
async (url) => {
  const out = {};
  const tried = (name, work) => work.then((found) => { out[name] = found; }, () => { out[name] = "refused"; });
  const send = (path, more) => fetch(url + path, { credentials: "include", ...more }).then((r) => r.text());
  const text = { method: "POST", mode: "no-cors", headers: { "Content-Type": "text/plain" }, body: "{}" };
  const socket = (path) => new Promise((done, fail) => {
    const made = new WebSocket(url.replace("http", "ws") + path);
    made.onopen = () => done("opened");
    made.onerror = () => fail(new Error());
  });
  const loaded = (tag, path) => new Promise((done, fail) => {
    const made = document.createElement(tag);
    made.onload = () => done("loaded");
    made.onerror = () => fail(new Error());
    made.src = url + path;
    document.body.append(made);
  });
  await tried("read", send("/session"));
  await tried("api", send("/kube/api/v1/namespaces"));
  await tried("stop", send("/actions/jobs/mine/stop", { method: "POST" }));
  await tried("live", socket("/live"));
  await tried("exec", socket("/exec"));
  await tried("script", loaded("script", "/session"));
  await tried("image", loaded("img", "/session"));
  await send("/actions/jobs/mine/stop", text).catch(() => undefined);
  await send("/logout", text).catch(() => undefined);
  return out;
}
"""


@TIMEOUT
async def test_a_page_on_another_port_has_the_cookie_and_gets_nothing() -> None:
    seen: list[tuple[str, bool, int]] = []
    bound, other = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    settings = ConsoleSettings("alice", "autonomy", "127.0.0.1", bound.getsockname()[1], Path("/nowhere/kubeconfig"))
    async with control_plane() as client, TaskOwner("console") as owner, running_browser() as browser:
        await client.create(JOBS, a_job("mine", "alice"))
        await client.patch_status(JOBS, "mine", CROSS_DOMAIN, {"status": {"phase": "Running"}})
        before = await client.get(JOBS, "mine", CROSS_DOMAIN)
        console = ConsoleServer(settings, client.transport, SYSTEM_CLOCK, owner, open_terminal=_never)
        handle = console.handle

        async def recorded(request: Request) -> Response:
            answer = await handle(request)
            seen.append((request.path, "__Host-coterie" in request.headers.get("cookie", ""), answer.status))
            return answer

        console.handle = recorded  # type: ignore[method-assign]
        web = web_server(console)
        evil = HttpServer(_page)
        await web.serve(bound)
        await evil.serve(other)
        context = await browser.new_context()
        page = await new_page(context)
        await page.goto(f"{settings.url}/#login={console.sessions.new_code(Login('anna', SecretValue('t')))}")
        await page.wait_for_selector(".shell")
        seen.clear()
        attacker = await new_page(context)
        await attacker.goto(f"http://127.0.0.1:{other.getsockname()[1]}/")
        out: dict[str, str] = await attacker.evaluate(ATTACKS, settings.url)
        attempts = [each for each in seen if each[0] in ("/live", "/exec", "/actions/jobs/mine/stop", "/logout")]
        seen.clear()
        await attacker.evaluate(_FRAMED, settings.url)
        await context.close()
        await web.stop(0.1)
        await evil.stop(0.1)
        assert set(out.values()) == {"refused"}, out
        assert any(cookie for _, cookie, _ in attempts), "the browser sends the cookie: Origin is what protects"
        assert {status for _, _, status in attempts} <= {403, 405}
        assert [status for path, _, status in seen if path == "/"] == [403], "and it is in no frame"
        assert await client.get(JOBS, "mine", CROSS_DOMAIN) == before
        assert console.sessions.in_use, "nobody was logged out"


_FRAMED = """
(url) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.onload = () => done(null);
  frame.src = url + "/";
  document.body.append(frame);
})
"""


async def _page(request: Request) -> Response:
    return Response(200, b"<!doctype html><body>a pod's page</body>", "text/html")


def _never(*_: Any) -> Any:
    raise AssertionError("no terminal was asked for")
