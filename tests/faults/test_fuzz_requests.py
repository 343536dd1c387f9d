"""Bad requests: every method on every path, parameters, headers and paths that nobody in his right mind would send."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from pathlib import Path
from random import Random
from urllib.parse import quote
from zlib import crc32

import orjson
import pytest
from fuzz_objects import STORED, VIRTUAL, Maker, good, name_of, path_of
from fuzz_server import ADMIN, LONG, FuzzServer, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.http.messages import Request
from coterie.kube.api.resources import Resource

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "LOCK", "PROPFIND")
VALUES = (
    "", "0", "1", "-1", "+1", " 1", "1_0", "1.5", "1e5", "true", "True", "yes", "٣", "9" * 19, "9" * 20, "9" * 5000, "18446744073709551616", "abc", "%00", "%ff", "%zz", "%", "é", "a=b", "a in (b", "a in (b,c)", "a in ()", "a notin (b)", "!a", "!",
    "a,,b", ",", "=", "==", "!=", "a==b=c", "(", ")", "a>1", "a<x", "a>" + "9" * 400, "metadata.name=x", "metadata.name=x,metadata.name!=x", "spec.nodeName!=y", "foo=bar", "metadata.name=a\\", "metadata.name=a\\,b", "x" * 3000, "a" + ",a" * 2000, "a in (" + "b," * 2000 + "b)",
    "All", "None", "Exact", "NotOlderThan", "Foreground", "Background", "Orphan", "Strict", "Warn", "Ignore", "Metadata", "Object", "eyJ2IjoxfQ", "!!!", "e30", "bnVsbA", "W10", "eyJydiI6MSwic3RhcnQiOiJhIn0", "eyJydiI6LTEsInN0YXJ0IjoiYSJ9", "eyJydiI6MSwic3RhcnQiOjF9",
    "eyJydiI6dHJ1ZSwic3RhcnQiOiJhIn0", "eyJydiI6MSwic3RhcnQiOiJcdTAwMDAvLi4vIn0", "AAAA" * 1000, "2020-01-01T00:00:00Z", "2020-13-01T00:00:00Z",
)  # fmt: skip
PARAMETERS = (
    "limit", "continue", "resourceVersion", "resourceVersionMatch", "labelSelector", "fieldSelector", "watch", "allowWatchBookmarks", "sendInitialEvents", "timeoutSeconds", "fieldManager", "fieldValidation", "dryRun", "force", "gracePeriodSeconds", "propagationPolicy",
    "orphanDependents", "pretty", "includeObject", "container", "follow", "tailLines", "sinceSeconds", "sinceTime", "limitBytes", "previous", "command", "stdin", "tty", "timeout",
)  # fmt: skip
ACCEPTS = (
    "", "*/*", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/html", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json;as=Foo", "application/json;as=Table;g=x", "application/json;q=nan", "application/json;q=1e999,*/*;q=-1", "a;b;c=d;;=,,;q=", ";" * 100, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "\xff", "," * 5000,
)  # fmt: skip
HEADERS = (
    ("Authorization", "Bearer x"), ("Authorization", "Bearer " + "x." * 5000), ("Authorization", "Bearer \xff"), ("Authorization", "Basic YTpi"), ("Authorization", ""), ("Authorization", "Bearer a.b.c"), ("Authorization", "Bearer eyJhbGciOiJub25lIn0.e30."), ("Authorization", "Bearer bnVsbA.bnVsbA.bnVsbA"),
    ("Impersonate-User", "x"), ("Impersonate-User", ""), ("Impersonate-User", "\xff"), ("Impersonate-Group", "g"), ("Impersonate-Uid", "u"), ("Impersonate-Extra-%zz", "v"), ("Impersonate-Extra-", "v"), ("Impersonate-User", "system:serviceaccount:a"), ("Impersonate-User", "system:serviceaccount:a:b:c"),
    ("User-Agent", "\xff\x01"), ("User-Agent", "x" * 9000), ("Content-Encoding", "gzip"), ("Accept-Encoding", "gzip;q=x"), ("If-None-Match", '"x'), ("Expect", "100-continue"), ("Expect", "x"), ("Host", ""), ("X-Stream-Protocol-Version", "v9"), ("Sec-WebSocket-Protocol", "\xff"),
)  # fmt: skip
PATHS = (
    "/", "//", "///", "/api", "/api/", "/apis/", "/api//", "/api/v1", "/api/v1/", "/api/v1//pods", "/api/v2/pods", "/apis//v1/pods", "/apis/apps", "/apis/apps/", "/apis/apps/v1", "/apis/apps/v1/", "/apis/apps/v9/x", "/api/v1/namespaces//pods", "/api/v1/namespaces/default/", "/api/v1/namespaces/default//",
    "/api/v1/namespaces/default/pods/", "/api/v1/namespaces/default/pods//log", "/api/v1/namespaces/default/pods/x/log/y/z", "/api/v1/namespaces/default/status", "/api/v1/namespaces/default/finalize", "/api/v1/namespaces/default/finalize/x", "/api/v1/namespaces/status/status/status", "/api/v1/watch/pods",
    "/api/v1/proxy/x", "/api/v1/namespaces/%2e%2e/pods", "/api/v1/namespaces/a%2Fb/pods", "/api/v1/namespaces/default/pods/%00", "/api/v1/namespaces/default/pods/%ff", "/api/v1/namespaces/default/pods/%zz", "/api/v1/namespaces/default/pods/%", "/api/v1/namespaces/default/pods/%F0%9F%98%80", "/api/v1/../../etc/passwd",
    "/api/v1/namespaces/" + "a" * 9000 + "/pods", "/api/v1/" + "/a" * 3000, "/version/", "/version/x", "/metrics/x", "/healthz/x/y", "/livez/../x", "/openapi", "/openapi/", "/openapi/v2/", "/openapi/v3/", "/openapi/v3/x", "/openapi/v3/apis/x/y", "/openapi/v3/api/v9", "/openid/v1/jwks", "/.well-known/openid-configuration",
    "*", "x", "http://", "http://x", "http://x/api", "https://h/api/v1/pods?limit=x", "?", "#", "/#", "/?a", "/api?%", "/apis?x=%ff", "\\", "/\xff", "/api/v1/pods?\xff", "/api/v1/pods#x",
)  # fmt: skip
RECORDED = Path(__file__).parent.parent / "kube" / "api" / "kubectl_protobuf_bodies.jsonl"
BODIES = (b"", b"{}", b"[]", b"{", b'{"kind":"DeleteOptions"}', b'{"kind":"Status"}', b'{"metadata":{}}')


def ask(server: FuzzServer, maker: Maker, resource: Resource, method: str, name: str, sub: str, query: str) -> None:
    dry = "&dryRun=All" if method in ("DELETE", "POST", "PUT", "PATCH") else ""
    path = f"{path_of(resource, name, sub)}?{query}{dry}"
    body = maker.random.choice(BODIES) if maker.random.random() < 0.5 else orjson.dumps(good(resource))
    media = "application/merge-patch+json" if method == "PATCH" else "application/json"
    server.ask(method, path, body if method not in ("GET", "HEAD") else b"", content_type=media)


@pytest.mark.parametrize("resource", [*STORED, *VIRTUAL], ids=lambda resource: resource.schema_name)
def test_every_method_on_every_path(server: FuzzServer, resource: Resource) -> None:
    """With a query of up to four bad parameters; nothing here may change anything."""
    maker = Maker(crc32(resource.schema_name.encode()))
    draw = maker.random
    if "create" in resource.verbs:
        server.ask("POST", path_of(resource), orjson.dumps(good(resource)))
    subs = ("", "status", "scale", "bogus", "proxy", "log/x", *(sub.name for sub in resource.subresources))
    places = [("", ""), *((name, sub) for name in (name_of(resource), "absent") for sub in subs)]
    before = server.store.revision
    for method in METHODS:
        for name, sub in places:
            for _ in range(examples(1)):
                chosen = draw.choices(PARAMETERS, k=draw.choice((0, 1, 1, 2, 4)))
                query = "&".join(f"{each}={quote(draw.choice(VALUES), safe='%')}" for each in chosen)
                ask(server, maker, resource, method, name, sub, query)
    assert server.store.revision == before


@pytest.mark.parametrize("plural", ["pods", "events", "customresourcedefinitions", "horizontalpodautoscalers"])
def test_every_parameter_with_every_value(server: FuzzServer, plural: str) -> None:
    resource = next(each for each in STORED if each.plural == plural)
    maker = Maker(crc32(plural.encode()))
    server.ask("POST", path_of(resource), orjson.dumps(good(resource)))
    for parameter in PARAMETERS:
        for value in VALUES:
            for method, name in (("GET", ""), ("GET", name_of(resource)), ("DELETE", ""), ("PATCH", name_of(resource))):
                if LONG or maker.random.random() < 0.12:
                    ask(server, maker, resource, method, name, "", f"{parameter}={quote(value, safe='%')}")


@pytest.mark.parametrize("method", METHODS)
def test_paths_that_are_none(server: FuzzServer, method: str) -> None:
    for path in PATHS:
        server.ask(method, path, b"{}" if method in ("POST", "PUT", "PATCH") else b"")


@pytest.mark.parametrize("path", ["/", "/version", "/version/", "/metrics", "/openapi/v2", "/api", "/apis/apps/v1"])
def test_documents_can_only_be_read(server: FuzzServer, path: str) -> None:
    for method in METHODS:
        assert (server.ask(method, path).status == 405) == (method not in ("GET", "HEAD")), method


def test_headers_of_any_kind(server: FuzzServer) -> None:
    paths = ("/api/v1/pods", "/api/v1/namespaces/default", "/apis", "/openapi/v3", "/api/v1/pods?watch=1")
    for accept in ACCEPTS:
        for path in paths:
            server.ask("GET", path, headers=(("Accept", accept),))
    for header in HEADERS:
        for other in ((), (("Impersonate-User", "y"),)):
            for path in paths:
                server.ask("GET", path, headers=(header, *other))
            server.ask("POST", "/api/v1/namespaces", b"{}", headers=(header, *other))


text = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF), max_size=40)
words = st.sampled_from([*VALUES, *PATHS, "pods", "default", "v1", "api", "apis", "namespaces", "status", "..", "."])
anything = st.one_of(text, words)


def test_paths_and_queries_of_any_text(server: FuzzServer) -> None:
    @settings(settings.get_profile("fuzz"), max_examples=examples(300))
    @given(
        st.sampled_from(METHODS),
        st.lists(anything, max_size=7),
        st.dictionaries(st.one_of(st.sampled_from(PARAMETERS), text), anything, max_size=4),
        st.booleans(),
    )
    def check(method: str, parts: list[str], query: dict[str, str], quoted: bool) -> None:
        path = "/" + "/".join(quote(part, safe="") if quoted else part.replace("\r", "").replace("\n", "").replace(" ", "") for part in parts)  # fmt: skip
        told = "&".join(f"{quote(key)}={quote(value)}" for key, value in query.items())
        server.ask(method, f"{path}?{told}" if told else path, b"{}" if method in ("POST", "PUT", "PATCH") else b"")

    check()


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False), text),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(text, inner, max_size=4)),
    max_leaves=20,
)  # fmt: skip
media_types = st.sampled_from([
    "application/json", "application/yaml", "application/merge-patch+json", "application/json-patch+json",
    "application/strategic-merge-patch+json", "application/apply-patch+yaml", "application/vnd.kubernetes.protobuf",
])  # fmt: skip


def test_bodies_of_any_json_and_of_any_bytes(server: FuzzServer) -> None:
    pods = next(each for each in STORED if each.plural == "pods")
    server.ask("POST", path_of(pods), orjson.dumps(good(pods)))
    fields = st.sampled_from(
        ["metadata", "spec", "status", "kind", "apiVersion", "data", "op", "path", "value", "from"]
    )
    objects = st.dictionaries(st.one_of(fields, text), json_values, max_size=5)
    bodies = st.one_of(
        st.builds(orjson.dumps, json_values),
        st.builds(orjson.dumps, objects),
        st.builds(orjson.dumps, st.lists(objects, max_size=3)),
        st.binary(max_size=60),
        st.builds(lambda data: b"k8s\0" + data, st.binary(max_size=60)),
    )

    @settings(settings.get_profile("fuzz"), max_examples=examples(400))
    @given(st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]), media_types, bodies)
    def check(method: str, media: str, body: bytes) -> None:
        place = path_of(pods, "" if method == "POST" else "fuzz")
        server.ask(method, place + "?dryRun=All&fieldManager=f&force=" + str(media.endswith("yaml")), body, content_type=media)  # fmt: skip

    check()


def test_callers_inside_the_process_get_the_same(server: FuzzServer) -> None:
    """`ApiServer.call` never raises, whatever is asked: controllers and the client kit stand on it."""

    async def call(method: str, path: str, query: str, body: bytes) -> int:
        headers = {"content-type": "application/json"}
        response = await asyncio.wait_for(server.api.call(Request(method, path, query, headers, body, user=ADMIN)), 5)
        if response.stream is not None:
            response.stream.closed()
        return response.status

    for method in METHODS:
        for path in PATHS:
            for query in ("", "watch=1", "limit=x", "%", "a=%ff"):
                status = server.run(call(method, path, query, b"{}"))
                assert status < 500 or status == 504, (method, path, query)


def test_protobuf_of_every_recorded_body_spoiled(server: FuzzServer) -> None:
    """Bodies as kubectl sends them, with bytes changed, cut and repeated."""
    draw = Random(7)
    places = {(each.api_version, each.kind): path_of(each) for each in (*STORED, *VIRTUAL)}
    for line in RECORDED.read_text().splitlines():
        recorded = orjson.loads(line)
        place = places.get((recorded["json"]["apiVersion"], recorded["json"]["kind"]), path_of(STORED[0]))
        whole = b64decode(recorded["body"])
        for _ in range(examples(25)):
            server.ask("POST", place + "?dryRun=All", cut_up(whole, draw), content_type="application/vnd.kubernetes.protobuf")  # fmt: skip


def cut_up(whole: bytes, draw: Random) -> bytes:
    body = bytearray(whole)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(4, max(5, len(body)))
        match draw.choice(("change", "cut", "repeat", "insert")):
            case "change":
                body[at : at + 1] = bytes([draw.randrange(256)])
            case "cut":
                del body[at : at + draw.randrange(1, 5)]
            case "repeat":
                body[at:at] = body[at : at + 8]
            case "insert":
                body[at:at] = b"\xff" * draw.randrange(1, 12)
    return bytes(body)
