"""Back-off, identifiers, secrets, files and paths."""

import copy
import json
import os
import pickle
import re
import uuid
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base import files, ids
from coterie.base.backoff import Backoff, Policy, base_delay, delay
from coterie.base.paths import DomainPaths, default_root
from coterie.base.secret import SecretValue


def test_backoff_grows_to_its_limit_and_starts_anew():
    backoff = Backoff(Policy(first=1, factor=2, limit=5, jitter=0))
    assert [backoff.failed() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.succeeded()
    assert backoff.failed() == 1


def test_backoff_is_repeatable_with_a_seed():
    policy = Policy(first=1, factor=2, limit=60, jitter=0.5)
    one, two = Backoff(policy, Random(7)), Backoff(policy, Random(7))
    waits = [one.failed() for _ in range(6)]
    assert waits == [two.failed() for _ in range(6)]
    assert len(set(waits)) == 6


@given(attempt=st.integers(0, 10**6), seed=st.integers(0, 100), jitter=st.floats(0, 1))
def test_backoff_stays_within_its_band(attempt, seed, jitter):
    policy = Policy(first=0.1, factor=3, limit=20, jitter=jitter)
    base = base_delay(policy, attempt)
    wait = delay(policy, attempt, Random(seed))
    assert base * (1 - jitter) - 1e-9 <= wait <= min(20, base * (1 + jitter) + 1e-9)


@pytest.mark.parametrize("bad", [{"first": -1}, {"limit": 0.01}, {"factor": 0.5}, {"jitter": 2}])
def test_policy_refuses_nonsense(bad):
    with pytest.raises(ValueError):
        Policy(**bad)


def test_uid4_is_a_version_4_uuid_and_unique():
    made = [ids.uid4() for _ in range(5000)]
    assert len(set(made)) == 5000
    for text in made[:500]:
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert parsed.version == 4 and parsed.variant == uuid.RFC_4122


def test_suffix_uses_the_safe_alphabet_evenly():
    text = "".join(ids.suffix() for _ in range(20_000))
    assert re.fullmatch(f"[{ids.SAFE_ALPHABET}]+", text)
    expected = len(text) / len(ids.SAFE_ALPHABET)
    assert all(abs(text.count(letter) - expected) < expected * 0.1 for letter in ids.SAFE_ALPHABET)
    assert [len(ids.suffix(n)) for n in (1, 8, 63, 10_000)] == [1, 8, 63, 10_000]


def test_identifiers_differ_after_a_fork():
    ids.uid4(), ids.suffix()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps([ids.uid4(), ids.suffix(12)]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    told = json.loads(os.read(reader, 1000))
    os.close(reader), os.close(writer)
    assert told[0] != ids.uid4()
    assert told[1] != ids.suffix(12)


def test_secret_text_length_and_alphabet():
    assert re.fullmatch("[ab]{64}", ids.secret_text(64, "ab"))
    assert ids.secret_text(16) != ids.secret_text(16)


def test_secret_never_shows():
    secret = SecretValue("hunter2")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", "%s %r" % (secret, secret), str([secret])]  # noqa: UP031
    assert not any("hunter2" in text for text in shown)
    assert secret.reveal() == "hunter2"
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError):
        json.dumps(secret)
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert copy.deepcopy(secret) is secret


def test_secret_compares():
    assert SecretValue("a").matches("a") and SecretValue(b"a") == SecretValue("a")
    assert not SecretValue("a").matches(b"b") and SecretValue("a") != "a"
    assert SecretValue("x") and not SecretValue("")
    assert len({SecretValue("a"), SecretValue("a")}) == 1


def test_write_atomic_replaces_and_keeps_mode(tmp_path):
    target = tmp_path / "key.pem"
    files.write_atomic(target, "one")
    files.write_atomic(target, b"two")
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o600
    assert files.is_private(target)
    files.write_atomic(target, "three", mode=0o644)
    assert target.stat().st_mode & 0o777 == 0o644
    assert not files.is_private(target)
    assert os.listdir(tmp_path) == ["key.pem"]


def test_write_atomic_leaves_the_old_content_when_it_fails(tmp_path, monkeypatch):
    target = tmp_path / "f"
    files.write_atomic(target, "old")

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        files.write_atomic(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_create_exclusive_has_one_winner(tmp_path):
    target = tmp_path / "ca.key"
    assert files.create_exclusive(target, "first")
    assert not files.create_exclusive(target, "second")
    assert target.read_text() == "first"
    assert os.listdir(tmp_path) == ["ca.key"]


def test_private_directory_tightens(tmp_path):
    open_one = tmp_path / "open"
    open_one.mkdir(mode=0o755)
    assert files.private_directory(open_one).stat().st_mode & 0o777 == 0o700
    assert files.private_directory(tmp_path / "a" / "b").is_dir()


def test_read_bytes_or_none(tmp_path):
    assert files.read_bytes_or_none(tmp_path / "none") is None
    files.write_atomic(tmp_path / "some", "x")
    assert files.read_bytes_or_none(tmp_path / "some") == b"x"


def test_paths_follow_the_documented_layout(tmp_path):
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    home = tmp_path / "alice"
    assert paths.kubeconfig == home / "kubeconfig"
    assert paths.api_token == home / "var/certs/token"
    assert paths.ca_certificate == home / "var/certs/ca.crt"
    assert paths.certificate("kusciaapi-client") == home / "var/certs/kusciaapi-client.crt"
    assert paths.key("kusciaapi-client") == home / "var/certs/kusciaapi-client.key"
    assert paths.data == home / "var/storage/data"
    assert paths.log("envoy") == home / "var/logs/envoy.log"
    assert paths.pod_stdout("alice", "p", "u") == home / "var/stdout/pods/alice_p_u"
    for made in (paths.data, paths.logs, paths.stdout, paths.pki, paths.run):
        assert made.is_dir()
        assert made.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0"])
def test_paths_refuse_names_that_escape(tmp_path, name):
    with pytest.raises(ValueError):
        DomainPaths.of(tmp_path, name)


def test_default_root_listens_to_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_ROOT", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("COTERIE_ROOT")
    assert default_root().name == ".coterie"
