"""`coterie init`: what it makes is what `coterie start` reads; keys are seen by their owner only."""

from __future__ import annotations

import base64

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import pki
from coterie.node import config

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
LITE = ("--mode", "lite", "--domain", "alice")
MASTER = ("--mode", "master", "--domain", "alice")


def test_what_is_printed_is_read_again(cli):
    told = cli(
        "init",
        "--mode",
        "Autonomy",
        "-d",
        "alice",
        "-r",
        "runp",
        "-l",
        "DEBUG",
        "-p",
        "tls",
        "--enable-workload-approve",
    )
    assert (told.code, told.err) == (0, "")
    settings = config.parse(yaml.safe_load(told.out), cli.folder)
    assert (settings.mode, settings.domain, settings.log_level) == ("autonomy", "alice", "DEBUG")
    assert (settings.gateway.protocol, settings.workload_approve) == ("TLS", True)
    assert settings.domain_key is not None
    key = pki.load_key(settings.domain_key.reveal().encode())
    assert isinstance(key, rsa.RSAPrivateKey) and key.key_size == 2048
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("mode", config.MODES)
def test_what_is_written_is_read_again(cli, mode):
    (cli.folder / "token").write_text("one-time:token\n")
    (cli.folder / "token").chmod(0o600)
    more = ("-m", "https://10.0.0.1:1080/prefix", "-t", "token") if mode == "lite" else ()
    told = cli("init", "--mode", mode, "--domain", "alice", "-o", "c.yaml", *more)
    holds = "which holds the domain's key: keep it safe"
    assert (told.code, told.out) == (0, f"Wrote c.yaml, {holds}. Next: coterie start -c c.yaml\n")
    file = cli.folder / "c.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    settings = config.load(file, root=cli.folder)
    assert (settings.mode, settings.domain, settings.agent is not None) == (mode, "alice", mode != "master")
    master, token = settings.gateway.master, settings.gateway.deploy_token
    assert (str(master and master.host), token and token.reveal()) == (
        ("10.0.0.1", "one-time:token") if mode == "lite" else ("None", None)
    )
    assert [notice for notice in settings.notices if "port below" not in notice.sentence] == []


def test_two_domains_have_two_keys(cli):
    first, second = (yaml.safe_load(cli("init", *MASTER).out)["domainKeyData"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize("pkcs1", [True, False], ids=["PKCS#1", "PKCS#8"])
def test_the_organisations_own_key(cli, pkcs1):
    file = cli.folder / "alice.key"
    pki.save_key(file, KEY, pkcs1=pkcs1)
    told = cli("init", *MASTER, "-f", "alice.key")
    assert (told.code, told.err) == (0, "")
    taken = base64.b64decode(yaml.safe_load(told.out)["domainKeyData"])
    assert taken == pki.key_pem(KEY, pkcs1=True)
    file.chmod(0o644)
    assert "others can read alice.key" in cli("init", *MASTER, "-f", "alice.key").err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(None, "Error: my.key cannot be read: No such file or directory", id="missing"),
        pytest.param(b"secret-nonsense", "Error: my.key is not a private key in PEM", id="nonsense"),
        pytest.param(pki.key_pem(pki.new_key("ec")), "Error: my.key is not an RSA key", id="EC"),
    ],
)
def test_keys_that_cannot_be_taken(cli, content, said):
    if content is not None:
        (cli.folder / "my.key").write_bytes(content)
    told = cli("init", *MASTER, "--domain-key-file", "my.key")
    assert told.code == 1
    assert said in told.err
    assert "secret-nonsense" not in told.err


def test_a_deploy_token_is_read_from_a_file_or_standard_input(cli):
    words = ("init", *LITE, "-m", "https://10.0.0.1:1080", "--force", "-o", "c.yaml", "-t")
    file = cli.folder / "token"
    file.write_text("from-a-file\n")
    file.chmod(0o600)
    assert cli(*words, "token").code == 0
    assert config.load(cli.folder / "c.yaml", root=cli.folder).gateway.deploy_token.reveal() == "from-a-file"
    assert cli(*words, "-", stdin="from-a-pipe\n").code == 0
    assert config.load(cli.folder / "c.yaml", root=cli.folder).gateway.deploy_token.reveal() == "from-a-pipe"
    file.chmod(0o644)
    assert "others can read token" in cli(*words, "token").err


def test_a_deploy_token_on_the_command_line_is_refused_and_not_repeated(cli):
    shown = cli("init", *LITE, "-m", "https://10.0.0.1:1080", "-o", "c.yaml", "-t", "s3cret-token")
    assert shown.code == 1
    assert "other users can read command lines" in shown.err and "s3cret" not in shown.err + shown.out
    assert not (cli.folder / "c.yaml").exists()
    empty = cli("init", *LITE, "-m", "https://10.0.0.1:1080", "-t", "-", stdin="\n")
    assert "there is no deploy token" in empty.err


def test_a_node_that_joins_with_a_file_brings_no_key(cli):
    told = cli("init", *LITE, "--join", "a.join", "-o", "c.yaml")
    assert (told.code, told.out) == (0, "Wrote c.yaml. Next: coterie start -c c.yaml\n")
    settings = config.load(cli.folder / "c.yaml", root=cli.folder)
    assert settings.join is not None and settings.domain_key is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(LITE, "--master-endpoint URL and --lite-deploy-token-file FILE", id="lite-alone"),
        pytest.param((*LITE, "-m", "10.0.0.1:1080"), "--master-endpoint: must look like", id="endpoint"),
        pytest.param((*LITE, "-m", "https://m", "--join", "x"), "--join: stands beside masterEndpoint", id="two-ways"),
        pytest.param((*MASTER, "--join", "x"), "--join: is only for mode lite", id="join-of-a-master"),
        pytest.param(
            (*MASTER, "-e", "mysql://u:pw@tcp(h)/d?colour=red"),
            "--datastore-endpoint: unknown options: colour",
            id="datastore",
        ),
        pytest.param((*MASTER, "-p", "SSL"), "--protocol: must be one of", id="protocol"),
        pytest.param((*MASTER, "-l", "LOUD"), "--log-level: must be one of", id="log-level"),
        pytest.param(
            ("--mode", "autonomy", "-d", "a", "-r", "nspawn"),
            "--runtime: must be one of runp, runc, runk",
            id="runtime",
        ),
        pytest.param(("--mode", "master"), "both --mode and --domain are needed", id="no-domain"),
    ],
)
def test_what_cannot_be_done_is_said_in_the_words_of_the_command(cli, words, said):
    told = cli("init", *words)
    assert (told.code, told.out) == (2, "")
    assert said in told.err
    assert "pw" not in told.err


@pytest.mark.parametrize("domain", ["Alice", "a_b", "master", "-x", "cross-domain", "a.b", "x" * 64])
def test_names_that_cannot_be_domains(cli, domain):
    told = cli("init", "--mode", "master", f"--domain={domain}", "-o", "c.yaml")
    assert told.code == 2
    assert f'--domain: "{domain}" cannot be used' in told.err
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("domain", ["no", "on", "123", "1e3", "x" * 63])
def test_names_that_only_look_odd(cli, domain):
    told = cli("init", "--mode", "master", "--domain", domain)
    assert config.parse(yaml.safe_load(told.out), cli.folder).domain == domain


@pytest.mark.parametrize(
    ("mode", "blocks"),
    [("master", {"gateway", "dns", "apiServer"}), ("autonomy", {"gateway", "dns", "apiServer", "agent"})],
)
def test_the_comments_are_the_defaults(cli, mode, blocks):
    """Every line that shows a default can be uncommented, and nothing changes."""
    text = cli("init", "--mode", mode, "--domain", "alice").out
    keys = tuple(f"{block}:" for block in ("root", "logLevel", "logFormat", "protocol", *blocks))
    lines = [
        line[2:] if line.startswith("# ") and (line[2:].startswith(keys) or line.startswith("#   ")) else line
        for line in text.splitlines()
    ]
    everything, minimal = yaml.safe_load("\n".join(lines)), yaml.safe_load(text)
    assert everything.keys() - minimal.keys() == {"root", "logLevel", "logFormat", "protocol", *blocks}
    everything.pop("root")
    assert config.parse(everything, cli.folder, lowest_port=0) == config.parse(minimal, cli.folder, lowest_port=0)


def test_a_file_that_is_there_stays(cli):
    target = cli.folder / "mine.yaml"
    target.write_text("precious")
    target.chmod(0o644)
    words = ("init", *MASTER, "-o", "mine.yaml")
    told = cli(*words)
    assert told.code == 1
    assert "mine.yaml exists" in told.err
    assert target.read_text() == "precious"
    assert cli(*words, "--force").code == 0
    assert "domainID: alice" in target.read_text()
    assert target.stat().st_mode & 0o777 == 0o600


def test_into_a_missing_directory(cli):
    told = cli("init", *MASTER, "-o", "no/such/file.yaml")
    assert (told.code, told.err) == (1, "Error: no/such/file.yaml cannot be written: No such file or directory\n")
