"""`coterie init`: a first configuration, short and with the rest as comments. The options are Kuscia's.

The domain's key is made here and stands in the file, as in Kuscia: whoever has the file can start the same domain again
on another machine. It is written where only its owner can read it, and printed only when nobody named a file.
"""

from __future__ import annotations

import argparse
import base64
import getpass
import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from coterie.base import pki
from coterie.base.files import create_exclusive, is_private, write_atomic
from coterie.base.secret import SecretValue
from coterie.cli import terminal
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.arguments import Parser
from coterie.cli.commands import init_template as template
from coterie.kuscia.identity import domain_identity
from coterie.node import config

HELP = """
Write the configuration of one node: mode, domain and domain key, with all other keys as comments that show the
defaults. A `master` is a control plane, a `lite` is a node that joins one, an `autonomy` node is both. The options are
those of `kuscia init`. Without -o the configuration is printed.

Examples:
  coterie init --mode master --domain alice -o coterie.yaml
  coterie init --mode autonomy --domain bob --domain-key-file bob.key -o bob.yaml
  coterie init --mode lite --domain bob -m https://10.0.0.1:1080 -t - -o bob.yaml   # asks for the token
  coterie init --mode lite --domain bob --join bob.join -o bob.yaml   # a file from `coterie node add`
"""
_LONGEST_TOKEN = 4096
_OPTIONS = {
    "domainID": "--domain",
    "join": "--join",
    "runtime": "--runtime",
    "masterEndpoint": "--master-endpoint",
    "datastoreEndpoint": "--datastore-endpoint",
    "protocol": "--protocol",
    "logLevel": "--log-level",
}
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


@dataclass(frozen=True, slots=True)
class InitOptions:
    mode: str
    domain: str
    key: SecretValue | None = None
    """PEM; None: none is written, and the node makes one when it first starts."""
    log_level: str = "INFO"
    protocol: str = ""
    runtime: str = "runp"
    join: str = ""
    master_endpoint: str = ""
    deploy_token: SecretValue | None = None
    datastore_endpoint: str = ""
    workload_approve: bool = False


def arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--mode", type=str.lower, choices=config.MODES, default="", metavar="MODE", help="master, lite or autonomy")
    add("-d", "--domain", metavar="ID", default=argparse.SUPPRESS, help="domain of the node")
    add("-o", "--output", metavar="FILE", default="-", help="file to write, with mode 0600 (default: print)")
    add("--force", action="store_true", help="overwrite an existing file")
    add("-f", "--domain-key-file", metavar="FILE", default="", help="RSA key of the domain in PEM (default: a new key)")
    add("-p", "--protocol", metavar="NAME", default="", help="protocol of the gateway: MTLS (default), TLS or NOTLS")
    add(
        "-r",
        "--runtime",
        metavar="NAME",
        default="runp",
        help="what runs pods: runp (processes, the default), runc (containers) or runk (pods of another cluster)",
    )
    add("-l", "--log-level", metavar="LEVEL", default="INFO", help="DEBUG, INFO (default), WARN or ERROR")
    add(
        "-m", "--master-endpoint", metavar="URL", default="", help="lite: gateway of the master, e.g. https://host:1080"
    )
    add(
        "-t",
        "--lite-deploy-token-file",
        metavar="FILE",
        default="",
        help="lite: file with the one-time deploy token from the master; - reads it from standard input",
    )
    add("--join", metavar="FILE", default="", help="lite: join file from `coterie node add`, instead of the two above")
    add(
        "-e",
        "--datastore-endpoint",
        metavar="DSN",
        default="",
        help="database for the objects (default: a file below the root)",
    )
    add("--enable-workload-approve", action="store_true", help="jobs of partners need approval here")
    parser.complete(
        protocol=("MTLS", "TLS", "NOTLS"),
        runtime=("runp", "runc", "runk"),
        log_level=("DEBUG", "INFO", "WARN", "ERROR"),
    )


def run(args: argparse.Namespace, app: App) -> int:
    if not args.mode or not args.domain:
        raise UsageError("both --mode and --domain are needed, e.g. `coterie init --mode master --domain alice`")
    key = _read_key(app, args.domain_key_file) if args.domain_key_file else None
    options = InitOptions(
        mode=args.mode,
        domain=args.domain,
        key=key,
        log_level=args.log_level,
        protocol=args.protocol,
        runtime=args.runtime,
        join=args.join,
        master_endpoint=args.master_endpoint,
        deploy_token=_read_token(app, args.lite_deploy_token_file) if args.lite_deploy_token_file else None,
        datastore_endpoint=args.datastore_endpoint,
        workload_approve=args.enable_workload_approve,
    )
    text = render(options, args.output if args.output != "-" else "FILE")
    if args.output == "-":
        app.write(text)
        return 0
    path = app.cwd / Path(args.output).expanduser()
    try:
        if args.force:
            write_atomic(path, text)
        elif not create_exclusive(path, text):
            raise CliError(f"Error: {args.output} exists; choose another with -o, or write over it with --force")
    except OSError as error:
        raise CliError(f"Error: {args.output} cannot be written: {error.strerror}") from error
    held = "" if args.join and key is None else ", which holds the domain's key: keep it safe"
    app.say(f"Wrote {args.output}{held}. Next: coterie start -c {args.output}")
    return 0


def render(options: InitOptions, file: str) -> str:
    """The text of the file, checked by the reader that will read it."""
    if options.mode == "lite" and not (options.join or options.master_endpoint):
        raise UsageError(
            "a lite node joins a master: name it with --master-endpoint URL and --lite-deploy-token-file FILE, "
            "or the file made there by `coterie node add` with --join FILE"
        )
    # Checked before a key is made for it: that takes time, and most mistakes are in the words.
    _check(template.fill(_values(options), options.mode, file))
    if options.key is not None or options.join:
        # A further node of a domain has the domain's key or, having joined with a file, needs none to begin with.
        key = options.key
    else:
        key = SecretValue(pki.key_pem(pki.new_key("rsa"), pkcs1=True))
    values = _values(options)
    if key is not None:
        values["domainKeyData"] = base64.b64encode(key.reveal().encode()).decode()
    text = template.fill(values, options.mode, file)
    _check(text)
    return text


def _values(options: InitOptions) -> dict[str, str]:
    """What the file says without being a comment, as YAML has it."""
    given = {
        "domainID": options.domain,
        "join": options.join,
        "masterEndpoint": options.master_endpoint,
        "liteDeployToken": options.deploy_token.reveal() if options.deploy_token else "",
        "datastoreEndpoint": options.datastore_endpoint,
        "protocol": options.protocol.upper(),
        "logLevel": options.log_level if options.log_level.upper() != "INFO" else "",
        "runtime": options.runtime if options.mode != "master" else "",
    }
    values = {key: _scalar(value) for key, value in given.items() if value}
    if options.workload_approve:
        values["enableWorkloadApprove"] = "true"
    if options.mode != "master" and options.runtime.lower() == "runk":
        values |= template.RUNK
    return values


def _scalar(text: str) -> str:
    """Quoted (JSON's texts are YAML's) unless it is a word that nobody could take for something else, as `no` or
    `1e3`."""
    return text if _WORD.fullmatch(text) and yaml.safe_load(text) == text else json.dumps(text)


def _check(text: str) -> None:
    try:
        config.parse(yaml.safe_load(text))
    except config.ConfigError as error:
        key, colon, why = str(error).partition(":")
        raise UsageError(f"{_OPTIONS.get(key, key)}{colon}{why}") from error


def _read_token(app: App, name: str) -> SecretValue:
    """Never from the command line, which every user of the machine can read."""
    if name == "-":
        on_terminal = terminal.is_terminal(app.stdin)
        text = getpass.getpass("Deploy token: ") if on_terminal else app.stdin.read(_LONGEST_TOKEN)
    else:
        path = app.cwd / Path(name).expanduser()
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(_LONGEST_TOKEN)
            if not is_private(path):
                app.warn(f"Warning: others can read {name}, which holds a deploy token; run chmod 600 on it")
        except FileNotFoundError as error:
            # The word may be a token, so it is not repeated.
            raise CliError(
                "Error: -t names a file that does not exist. If it is the token itself: give it in a file, or with "
                "`-t -` on standard input; other users can read command lines, so get a new one with "
                "`coterie domain token` on the master"
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise CliError("Error: the file with the deploy token cannot be read") from error
    if not text.strip():
        raise CliError("Error: there is no deploy token in what -t names")
    return SecretValue(text.strip())


def _read_key(app: App, name: str) -> SecretValue:
    path = app.cwd / Path(name).expanduser()
    try:
        key = domain_identity.load_domain_key(path.read_bytes())
        if not is_private(path):
            app.warn(f"Warning: others can read {name}, which holds a key; run chmod 600 on it")
    except OSError as error:
        raise CliError(f"Error: {name} cannot be read: {error.strerror}") from error
    except pki.PkiError as error:
        raise CliError(f"Error: {name} is {error}") from error
    return SecretValue(pki.key_pem(key, pkcs1=True))
