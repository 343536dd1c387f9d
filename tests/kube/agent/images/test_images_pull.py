"""Images from registries: right ones, interrupted ones, and registries that lie."""

from __future__ import annotations

import base64
import gzip
import json
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from image_kit import entry, sha, tar
from registry_kit import Content, Registry, push, send

from coterie.base.secret import STARS
from coterie.kube.agent.images import export
from coterie.kube.agent.images import pull as pulling
from coterie.kube.agent.images import registry as registries
from coterie.kube.agent.images.model import ImageError, StoredImage
from coterie.kube.agent.images.references import RegistryEndpoint
from coterie.kube.agent.images.registry import RegistryUnavailable
from coterie.kube.agent.images.store import ImageStore

BASE = tar([entry("etc/name", b"base"), entry("etc/gone", b"x")])
TOP = tar([entry("etc/name", b"top"), entry("etc/.wh.gone")])
BIG = tar([entry("big", bytes(range(256)) * 8192)])


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry(Content()).serving() as running:
        yield running


def take(
    store: ImageStore, registry: Registry, reference: str = ":1", *more: RegistryEndpoint, **who: str
) -> StoredImage:
    wanted = pulling.parse(f"{registry.host}/team/app{reference}")
    return pulling.pull(store, wanted, [*more, RegistryEndpoint.of(registry.host, **who)])


def files(store: ImageStore) -> set[str]:
    """What lies in the store, without what lies in layers."""
    return {path.name for path in (*store.directory.glob("downloads/*"), *store.directory.glob("layers/*"))}


# ----- names


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("registry.example/team/app:1", ("registry.example", "team/app", "1")),
        ("registry.example:5000/app", ("registry.example:5000", "app", "latest")),
        ("localhost/app", ("localhost", "app", "latest")),
        ("team/app:2", ("", "team/app", "2")),
        ("app@sha256:" + "a" * 64, ("", "app", "sha256:" + "a" * 64)),
    ],
)
def test_names_are_taken_apart(name: str, found: tuple[str, str, str]) -> None:
    wanted = pulling.parse(name)
    assert (wanted.registry, wanted.repository, wanted.reference) == found


@pytest.mark.parametrize("text", ["ftp://r.example", "r.example:port", "https://u:p@r.example", "", "a b"])
def test_places_that_are_no_registries(text: str) -> None:
    with pytest.raises(ImageError, match="is not a registry"):
        RegistryEndpoint.of(text)


def test_tls_is_left_out_for_this_machine_only_and_passwords_are_not_shown() -> None:
    assert RegistryEndpoint.of("127.0.0.1:5000").scheme == RegistryEndpoint.of("localhost").scheme == "http"
    assert RegistryEndpoint.of("10.0.0.1:5000").scheme == "https"
    assert "secret" not in repr(RegistryEndpoint.of("r.example", username="u", password="secret"))
    assert STARS in repr(RegistryEndpoint.of("r.example", username="u", password="secret"))


# ----- what works


def test_an_image_is_pulled_once(store: ImageStore, registry: Registry) -> None:
    digest = registry.content.add([BASE, TOP], "1", Entrypoint=["/bin/app"], Env=["A=b=c"])
    image = take(store, registry)
    top, base = store.layer_paths(image)
    assert (base / "etc/name").read_bytes() == b"base" and (top / "etc/name").read_bytes() == b"top"
    assert (image.entrypoint, image.env, image.manifest) == (("/bin/app",), (("A", "b=c"),), digest)
    assert store.find(f"{registry.host}/team/app:1@{digest}") == image
    assert store.find(f"{registry.host}/team/app:1@{sha(b'other')}") is None
    assert not list(store.directory.glob("downloads/*"))
    registry.asked.clear()
    take(store, registry)
    assert [path for path in registry.asked if "/blobs/" in path] == [f"/v2/team/app/blobs/{image.id}"]


def test_an_index_is_followed_to_this_machines_image(store: ImageStore, registry: Registry) -> None:
    digest = registry.content.index(registry.content.add([BASE]), "1")
    assert take(store, registry, f"@{digest}").manifest == digest == take(store, registry).manifest


def test_progress_is_told_and_ends_at_the_size(store: ImageStore, registry: Registry) -> None:
    registry.content.add([BIG], "1")
    seen: list[tuple[str, int, int]] = []
    wanted = pulling.parse(f"{registry.host}/team/app:1")
    endpoint = RegistryEndpoint.of(registry.host)
    pulling.pull(store, wanted, [endpoint], progress=lambda *step: seen.append(step))
    size = len(gzip.compress(BIG, 1, mtime=0))
    assert seen[-1] == (sha(gzip.compress(BIG, 1, mtime=0)), size, size) and [s[1] for s in seen] == sorted(
        s[1] for s in seen
    )


def test_tokens_are_asked_for_with_the_password_and_only_there(store: ImageStore, registry: Registry) -> None:
    registry.content.add([BASE], "1")
    registry.token, registry.credentials = "abc", "Basic " + base64.b64encode(b"me:pass").decode()
    take(store, registry, username="me", password="pass")
    sent = {headers["Authorization"] for headers in registry.headers if "Authorization" in headers}
    assert sent == {registry.credentials, "Bearer abc"}
    with pytest.raises(ImageError, match="refuses the user name or password"):
        take(ImageStore(store.directory / "other"), registry, username="me", password="wrong")


def test_a_mirror_is_asked_first_and_its_lack_is_no_failure(store: ImageStore, registry: Registry) -> None:
    registry.content.add([BASE], "1")
    with Registry(Content()).serving() as empty, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = RegistryEndpoint.of(f"127.0.0.1:{closed.getsockname()[1]}")
        take(store, registry, ":1", nobody, RegistryEndpoint.of(f"{empty.host}/mirror"))
        assert empty.asked == ["/v2/mirror/team/app/manifests/1"]


class Proxy(BaseHTTPRequestHandler):
    """Connects where CONNECT asks it to, if `allowed`."""

    allowed = True
    asked: ClassVar[list[str]] = []

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        if not self.allowed:
            self.send_error(403)
            return
        host, port = self.path.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 5) as there:
            self.send_response(200)
            self.end_headers()
            here = self.connection
            while True:
                ready, _, _ = select.select([here, there], [], [], 5)
                for one, other in ((here, there), (there, here)):
                    if one in ready:
                        data = one.recv(65536)
                        if not data:
                            return
                        other.sendall(data)
                if not ready:
                    return

    def log_message(self, *_: object) -> None:
        pass


def test_everything_goes_through_the_proxy(
    store: ImageStore, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.content.add([BASE], "1")
    monkeypatch.setattr(Proxy, "asked", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        endpoint = replace(RegistryEndpoint.of(registry.host), proxy=f"127.0.0.1:{server.server_port}")
        wanted = pulling.parse(f"{registry.host}/team/app:1")
        pulling.pull(store, wanted, [endpoint])
        assert Proxy.asked == [registry.host] * len(registry.asked) != []
        monkeypatch.setattr(Proxy, "allowed", False)
        with pytest.raises(RegistryUnavailable, match=r"the proxy .* refuses: HTTP/1.0 403"):
            pulling.pull(ImageStore(store.directory / "other"), wanted, [endpoint])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# ----- interruptions


def test_what_was_fetched_is_continued(store: ImageStore, registry: Registry) -> None:
    registry.content.add([BIG], "1")
    packed = gzip.compress(BIG, 1, mtime=0)
    half = len(packed) // 2
    cut: list[str] = []

    def cut_off(request: BaseHTTPRequestHandler) -> bool:
        if not request.path.endswith(sha(packed)) or len(cut) == 2:
            return False
        begin = int(request.headers.get("Range", "bytes=0-")[6:-1])
        cut.append(request.headers.get("Range", ""))
        request.send_response(206 if begin else 200)
        request.send_header("Content-Length", str(len(packed) - begin))
        request.end_headers()
        request.wfile.write(packed[begin : half if not begin else half + 10])
        return True

    registry.misbehave = cut_off
    pauses: list[int] = []
    wanted = pulling.parse(f"{registry.host}/team/app:1")
    image = pulling.pull(store, wanted, [RegistryEndpoint.of(registry.host)], pause=pauses.append)
    assert cut == ["", f"bytes={half}-"] and pauses == [1, 2]
    assert registry.headers[-1]["Range"] == f"bytes={half + 10}-"
    assert (store.layer_paths(image)[0] / "big").stat().st_size == 256 * 8192


def test_what_a_broken_download_left_is_not_trusted(store: ImageStore, registry: Registry) -> None:
    registry.content.add([BASE], "1")
    left = store.directory / "downloads" / sha(gzip.compress(BASE, 1, mtime=0)).removeprefix("sha256:")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"forged")
    with pytest.raises(ImageError, match="is not what its digest says"):
        take(store, registry)
    take(store, registry)


def test_a_registry_that_is_overloaded_is_asked_again(store: ImageStore, registry: Registry) -> None:
    registry.content.add([BASE], "1")
    answers = [503, 429, 502]

    def overloaded(request: BaseHTTPRequestHandler) -> bool:
        if answers:
            send(request, answers.pop(0), b"")
            return True
        return False

    registry.misbehave = overloaded
    take(store, registry)
    registry.misbehave = lambda request: send(request, 500, b"") is None
    with pytest.raises(RegistryUnavailable, match="answers 500"):
        take(store, registry)


# ----- lies


def _gzip_bomb() -> bytes:
    return tar([entry("zeros", bytes(1 << 20))])


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ("other manifest", "gives another manifest"),
        ("other layer", "is not what its digest says"),
        ("other config", "is not what its digest says"),
        ("endless layer", "larger than its manifest says"),
        ("short layer", "sent 2 of"),
        ("endless manifest", "too large to be what it should be"),
        ("garbage", "something that is not an image"),
        ("not an object", "something that is not an image"),
        ("redirects", "redirects without end"),
        ("redirect to a file", "not a web address"),
        ("no image", "not known here"),
        ("forbidden", "does not allow pulling"),
        ("password", "asks for a user name"),
        ("token server without TLS elsewhere", "names no token server"),
        ("token with line breaks", "gives no token"),
    ],
)
def test_lies_are_refused_and_leave_nothing(store: ImageStore, registry: Registry, lie: str, words: str) -> None:
    digest = registry.content.add([BASE], "1")
    config_digest = json.loads(registry.content.manifests["1"])["config"]["digest"]

    def answer(request: BaseHTTPRequestHandler) -> bool:
        manifest, blob = "/manifests/" in request.path, "/blobs/" in request.path
        layer = blob and not request.path.endswith(config_digest)
        match lie:
            case "other manifest" if manifest:
                send(request, 200, registry.content.manifests["1"] + b" ")
            case "other layer" if layer:
                send(request, 200, bytes(len(gzip.compress(BASE, 1, mtime=0))))
            case "other config" if blob and not layer:
                send(request, 200, b"{}")
            case "endless layer" if layer:
                send(request, 200, bytes(1 << 20))
            case "short layer" if layer:
                send(request, 200, b"ab")
            case "endless manifest" if manifest:
                send(request, 200, bytes(5 << 20))
            case "garbage" if manifest:
                send(request, 200, b"\xff<html>")
            case "not an object" if manifest:
                send(request, 200, b"[1]")
            case "redirects":
                send(request, 302, b"", {"Location": request.path + "/x"})
            case "redirect to a file":
                send(request, 302, b"", {"Location": "file:///etc/passwd"})
            case "no image" if manifest:
                send(request, 404, b'{"errors": [{"message": "not known here"}]}')
            case "forbidden":
                send(request, 403, b"")
            case "password":
                send(request, 401, b"", {"WWW-Authenticate": 'Basic realm="x"'})
            case "token server without TLS elsewhere":
                send(request, 401, b"", {"WWW-Authenticate": 'Bearer realm="gopher://x"'})
            case "token with line breaks" if request.path.startswith("/token"):
                send(request, 200, b'{"token": "a\\r\\nX: y"}')
            case "token with line breaks":
                send(request, 401, b"", {"WWW-Authenticate": f'Bearer realm="http://{registry.host}/token"'})
            case _:
                return False
        return True

    registry.misbehave = answer
    with pytest.raises(ImageError, match=words):
        take(store, registry, f"@{digest}" if lie == "other manifest" else ":1")
    assert store.find(f"{registry.host}/team/app:1") is None
    assert not [name for name in files(store) if name.startswith(".new")]
    assert all(path.stat().st_size <= 2 for path in store.directory.glob("downloads/*"))


def test_sizes_that_cannot_be_are_refused(
    store: ImageStore, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (-1, 1 << 60, True, "7"):
        registry.content.add([BASE], "1", sizes={0: size})  # type: ignore[dict-item]
        with pytest.raises(ImageError, match="impossible size"):
            take(store, registry)
    registry.content.add([BASE], "1", sizes={0: 200 << 30})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100 << 30))
    with pytest.raises(ImageError, match="are free"):
        take(store, registry)


@pytest.mark.parametrize(
    ("addresses", "registry", "chosen"),
    [
        (["93.184.215.14"], ["198.41.0.4"], "93.184.215.14"),
        (["10.1.2.3"], ["10.9.9.9"], "10.1.2.3"),
        (["127.0.0.1"], ["127.0.0.1"], "127.0.0.1"),
        (["127.0.0.1"], ["10.9.9.9"], None),
        (["10.1.2.3"], ["198.41.0.4"], None),
        (["169.254.169.254"], ["10.9.9.9"], None),
        (["169.254.169.254"], ["198.41.0.4"], None),
        (["::1"], ["198.41.0.4"], None),
        (["0.0.0.0"], ["198.41.0.4"], None),
        (["::ffff:127.0.0.1"], ["198.41.0.4"], None),
        (["10.1.2.3", "93.184.215.14"], ["198.41.0.4"], "93.184.215.14"),
    ],
)
def test_where_a_registry_may_lead_to(addresses: list[str], registry: list[str], chosen: str | None) -> None:
    within = min(registries._reach(address) for address in registry)
    if chosen is None:
        with pytest.raises(ImageError, match="nearer to this machine"):
            registries.permitted(addresses, within, "r", "h")
    else:
        assert registries.permitted(addresses, within, "r", "h") == chosen


@pytest.mark.parametrize("target", ["127.0.0.1", "169.254.169.254", "10.0.0.5", "[::1]"])
@pytest.mark.parametrize("through", ["redirect", "token server"])
def test_a_public_registry_does_not_lead_into_this_network(
    store: ImageStore, registry: Registry, monkeypatch: pytest.MonkeyPatch, target: str, through: str
) -> None:
    """The registry's own name counts as a public address here, although it is served on loopback."""
    registry.content.add([BASE], "1")
    name, port = registry.host.split(":")
    resolve = registries._resolve
    public = f"registry.example:{port}"
    monkeypatch.setattr(
        registries, "_resolve", lambda host, port: ["198.41.0.4"] if host == "registry.example" else resolve(host, port)
    )
    connect = socket.create_connection
    reached: list[str] = []

    def connected(address: tuple[str, int], *rest: Any) -> socket.socket:
        reached.append(address[0])
        return connect((name, address[1]) if address[0] == "198.41.0.4" else address, *rest)

    monkeypatch.setattr(socket, "create_connection", connected)
    place = f"http://{target}:{port}/latest/meta-data"
    answers = {
        "redirect": (302, {"Location": place}),
        "token server": (401, {"WWW-Authenticate": f'Bearer realm="{place}"'}),
    }
    status, headers = answers[through]
    registry.misbehave = lambda request: send(request, status, b"", headers) is None
    endpoint = RegistryEndpoint.of(f"http://{public}")
    with pytest.raises(ImageError, match="nearer to this machine"):
        pulling.pull(store, pulling.parse(f"{public}/team/app:1"), [endpoint])
    assert set(reached) == {"198.41.0.4"}


# ----- a real registry


def _docker_registry() -> str:
    unpacked = Path(__file__).parents[4] / ".tools" / "servers" / "docker-registry" / "usr" / "bin" / "docker-registry"
    return shutil.which("docker-registry") or (str(unpacked) if unpacked.exists() else "")


@pytest.mark.skipif(not _docker_registry(), reason="no docker-registry: run `make setup`")
@pytest.mark.conformance
def test_a_real_registry(store: ImageStore, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    settings = tmp_path / "registry.yml"
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "registry")}}
    settings.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": host}}))
    server = subprocess.Popen([_docker_registry(), "serve", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        _wait_for(host)
        content = Content()
        digest = content.add([BASE, BIG], "1", Cmd=["/x"])
        push(host, "team/app", "1", content)
        image = pulling.pull(store, pulling.parse(f"{host}/team/app:1"), [RegistryEndpoint.of(host)])
        assert (image.manifest, image.cmd) == (digest, ("/x",))
        by_digest = pulling.parse(f"{host}/team/app:9@{digest}")
        assert pulling.pull(store, by_digest, [RegistryEndpoint.of(host)]).id == image.id
        with pytest.raises(ImageError, match="manifest unknown"):
            pulling.pull(store, pulling.parse(f"{host}/team/app:2"), [RegistryEndpoint.of(host)])
        if shutil.which("skopeo"):
            _push_with_skopeo(store, image, f"{host}/team/saved:1", tmp_path / "saved.tar")
            other = ImageStore(tmp_path / "other")
            again = pulling.pull(other, pulling.parse(f"{host}/team/saved:1"), [RegistryEndpoint.of(host)])
            assert (again.id, again.layers, again.cmd) == (image.id, image.layers, image.cmd)
    finally:
        server.terminate()
        server.wait(10)


def _push_with_skopeo(store: ImageStore, image: StoredImage, name: str, file: Path) -> None:
    with file.open("wb") as out:
        export.save(store, [image], out)
    words = ["--insecure-policy", "copy", "--dest-tls-verify=false", f"oci-archive:{file}", f"docker://{name}"]
    done = subprocess.run(["skopeo", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def _wait_for(host: str) -> None:
    name, port = host.split(":")
    for _ in range(200):
        try:
            socket.create_connection((name, int(port)), 0.1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the registry did not start")
