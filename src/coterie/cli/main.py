"""`coterie`: find the command, load its module, run it, turn failures into one sentence and an exit status."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from coterie import __version__
from coterie.base.lazy_import import lazy_import
from coterie.cli.app import App, UsageError, exit_status
from coterie.cli.arguments import CONNECTION, VALUED, HelpAsked, Parser, connection_options, namespace_option
from coterie.kube.network.rootless.platforms import platform_problem

if TYPE_CHECKING:
    import difflib
else:
    difflib = lazy_import("difflib")


class CommandModule(Protocol):
    """The shape of every module in `commands/`."""

    HELP: str
    """What the command does, then a blank line, then examples."""
    arguments: Callable[[Any], None]
    run: Callable[[argparse.Namespace, App], int]


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    summary: str
    group: str
    usage: str
    hands_on: bool = False
    """All words after the name belong to another program and are not ours to understand."""
    actions: tuple[Command, ...] = ()
    """What the command can do, where that is more than one thing; their names are `<command> <action>`."""
    also: tuple[str, ...] = ()
    """Other words for an action."""
    module: str = ""
    """Where it is, when not under its name."""

    def load(self) -> CommandModule:
        # The one place that imports by name: each command brings its own weight (HTTP, YAML, the whole server), and
        # `coterie --help` or a typing error should not wait for any of it.
        name = self.module or self.name.replace("-", "_").replace(" ", "_")
        return cast(CommandModule, importlib.import_module(f"coterie.cli.commands.{name}"))

    @property
    def action(self) -> str:
        return self.name.rpartition(" ")[2]


_SEE, _NODE, _OBJECTS = "Local network", "Nodes, domains and routes", "Objects (same syntax as kubectl)"
_JOBS = "Jobs, data and engines"
_JOB_ACTIONS = (
    Command(
        "job run", "start a job and follow it until it ends", _JOBS, "FILE | --engine NAME --parties A,B [options]"
    ),
    Command("job ls", "list jobs", _JOBS, "[options]", also=("list",)),
    Command("job show", "show a job in detail, or its timeline", _JOBS, "NAME [options]", also=("describe",)),
    Command("job watch", "show the progress of a job until it ends", _JOBS, "NAME [--timeout TIME]"),
    Command("job logs", "print the logs of the tasks", _JOBS, "NAME [-f] [options]"),
    Command(
        "job bundle", "write all about a job into an archive without secrets", _JOBS, "NAME [-o FILE] [--ask TEXT]"
    ),
    Command("job graph", "draw the task dependencies", _JOBS, "NAME | -f FILE [-o FORMAT]"),
    Command(
        "job stop", "stop a job; it becomes Failed and can be restarted", _JOBS, "NAME [options]", module="job_stage"
    ),
    Command(
        "job suspend", "stop the tasks of a job until it is restarted", _JOBS, "NAME [options]", module="job_stage"
    ),
    Command("job restart", "continue a failed or suspended job", _JOBS, "NAME [options]", module="job_stage"),
    Command("job cancel", "stop a job; it cannot be restarted", _JOBS, "NAME [options]", module="job_stage"),
    Command("job limit", "limit the bandwidth of running tasks", _JOBS, "NAME AMOUNT --to ID [options]"),
    Command("job approve", "accept or reject a job of a partner", _JOBS, "NAME [--reject] [options]"),
    Command("job rm", "delete jobs", _JOBS, "NAME... [--force]", also=("delete",)),
)
_GPU_JOB_ACTIONS = (
    Command("gpujob run", "run a program on GPUs and follow it until it ends", _JOBS, "NAME [options] [-- COMMAND...]"),
    Command("gpujob ls", "list GPU jobs", _JOBS, "[options]", also=("list",)),
    Command("gpujob logs", "print the output of a GPU job", _JOBS, "NAME [-f]"),
    Command("gpujob get", "download the files that a GPU job made", _JOBS, "NAME [--to DIR]"),
    Command("gpujob cancel", "end GPU jobs", _JOBS, "NAME..."),
)
_FUNCTION_ACTIONS = (
    Command(
        "action create", "create or update functions", _JOBS, "NAME --script FILE|--archive FILE | -f FILE [options]"
    ),
    Command("action ls", "list functions", _JOBS, "[options]", also=("list",)),
    Command(
        "action show", "show a function, its versions and what calls it", _JOBS, "NAME [-o FORMAT]", also=("describe",)
    ),
    Command(
        "action invoke",
        "call a function and print its answer",
        _JOBS,
        "NAME [--param K=V] [--body TEXT|@FILE] [options]",
    ),
    Command("action result", "print the answer of an asynchronous call", _JOBS, "ID [--wait]"),
    Command(
        "action publish", "write a record to a topic that Triggers read", _JOBS, "TOPIC [--body TEXT|@FILE] [--key K]"
    ),
    Command("action logs", "print what functions print", _JOBS, "NAME [--call ID] [-f]"),
    Command("action graph", "draw which function calls which, with their load", _JOBS, "[NAME] [-o FORMAT]"),
    Command("action versions", "list the versions of a function", _JOBS, "NAME [-o FORMAT]"),
    Command("action traffic", "split calls between versions", _JOBS, "NAME VERSION=PERCENT,...|latest"),
    Command("action rollback", "send all calls to an earlier version", _JOBS, "NAME [--to VERSION]"),
    Command(
        "action trigger", "call a function by HTTP, a schedule, a topic or a table", _JOBS, "add|ls|rm [NAME] [options]"
    ),
    Command("action dlq", "list, repeat and drop calls that were given up", _JOBS, "ls|replay|rm [NAME...] [options]"),
    Command("action grant", "let a partner call a function", _JOBS, "NAME --to PARTNER [options]"),
    Command("action grants", "list which partners may call which functions", _JOBS, "[NAME] [-o FORMAT]"),
    Command("action revoke", "take a grant back", _JOBS, "NAME --to PARTNER"),
    Command("action rm", "delete functions with their triggers and grants", _JOBS, "NAME...", also=("delete",)),
)
_AUDIT_ACTIONS = (
    Command("audit ls", "list events", _JOBS, "[options]", also=("list",)),
    Command("audit show", "show one event", _JOBS, "INDEX [options]"),
    Command("audit export", "write the log, or some events with proofs, into a file", _JOBS, "--file FILE [options]"),
    Command("audit verify", "check exported files, offline", _JOBS, "FILE... [options]"),
    Command("audit compare", "check that the logs of two domains tell the same story", _JOBS, "FILE FILE [-o FORMAT]"),
    Command("audit witness", "show who cosigned our log, and what partners' logs showed", _JOBS, "[PARTNER] [options]"),
    Command("audit prove", "write one event with its proof", _JOBS, "INDEX --file FILE [options]"),
    Command("audit erase", "destroy the salt of a person's name", _JOBS, "PERSON"),
    Command("audit retain", "remove the content of older events; their hashes stay", _JOBS, "DAYS"),
    Command("audit rotate", "close the log and begin the next one", _JOBS, "", module="audit_rotate"),
    Command("audit rotate-key", "the same, with a new key", _JOBS, "", module="audit_rotate"),
    Command("audit reopen", "begin a new log after an older backup was restored", _JOBS, "", module="audit_rotate"),
)
_STORE_ACTIONS = (
    Command("store check", "read all objects and check them", _NODE, "STORE [-o FORMAT]"),
    Command("store backup", "write all objects into a file", _NODE, "STORE --file FILE"),
    Command("store restore", "put a backup into a store", _NODE, "FILE STORE [--replace]"),
    Command("store migrate", "copy all objects into another store", _NODE, "FROM TO [--replace]"),
)
_INSTALL_ACTIONS = (
    Command(
        "install kubernetes",
        "prepare a Kubernetes cluster for a control plane",
        _NODE,
        "--print|--apply|--delete [options]",
    ),
)
_SERVICE_ACTIONS = (
    Command("service install", "run a node as a service that starts with the machine", _NODE, "-c FILE [options]"),
    Command("service upgrade", "use another version, and the old one if it fails", _NODE, "[--python FILE] [options]"),
    Command("service uninstall", "stop a node and remove its service", _NODE, "[--keep-pods] [--purge] [options]"),
    Command("service status", "list the services of nodes", _NODE, "[-o FORMAT]"),
)
_NODE_ACTIONS = (
    Command("node add", "register a machine and write its join file", _NODE, "NAME --address IP [-o FILE] [options]"),
    Command("node join", "make this machine a node", _NODE, "[FILE|-] [options]"),
    Command("node describe", "show what runs its containers, and which walls are missing", _NODE, "NODE [-o FORMAT]"),
    Command("node drain", "move the pods of a node to other nodes", _NODE, "NODE [options]"),
    Command("node delete", "give up a machine that will not come back", _NODE, "NODE [--force]"),
    Command("node leave", "drain and stop the node of this machine", _NODE, "[options]"),
    Command("node reset", "remove everything of the node from this machine", _NODE, "[--force] [options]"),
)
_DIAGNOSE_ACTIONS = (
    Command("diagnose network", "measure every link between domains", _NODE, "DOMAIN DOMAIN... [options]"),
    Command("diagnose job", "check links, engines and capacity for a job", _NODE, "FILE|JOB [options]"),
    Command("diagnose log", "explain failed and slow calls in the gateway's logs", _NODE, "[TASK] [options]"),
    Command("diagnose bundle", "collect what helps to support a node, without secrets", _NODE, "[-o FILE] [options]"),
)
COMMANDS = (
    Command("demo", "start a temporary node, use it, clean up", _SEE, "[psi [--rows N]] [--keep]"),
    Command("up", "start a network of domains on this machine", _SEE, "[--topology p2p|center] [--domains IDS]"),
    Command("down", "stop that network", _SEE, "[--purge] [--keep-pods]"),
    Command("init", "write a configuration file", _NODE, "--mode MODE --domain ID [-o FILE]"),
    Command("start", "run a node in the foreground", _NODE, "-c FILE [--root DIR]"),
    Command(
        "node", "let machines join this control plane and leave it", _NODE, "ACTION [options]", actions=_NODE_ACTIONS
    ),
    Command("image", "manage the images on this machine", _NODE, "ls|add|load|pull|save|tag|rm|gc [NAME...] [options]"),
    Command("domain", "manage domains and their deploy tokens", _NODE, "ls|add|token|cert|rm [NAME] [options]"),
    Command(
        "route", "manage and check routes between domains", _NODE, "add|ls|rm|check [SOURCE DESTINATION] [options]"
    ),
    Command(
        "policy",
        "decide what partners may begin here",
        _NODE,
        "ls|show|allow|deny|set|rm|explain|approve [NAME] [options]",
    ),
    Command("console", "open the console in a browser", _SEE, "[--role admin|view] [--account NAMESPACE/NAME]"),
    Command(
        "diagnose",
        "find out what keeps parties apart",
        _NODE,
        "network|job|log|bundle [options]",
        actions=_DIAGNOSE_ACTIONS,
    ),
    Command(
        "logrequest",
        "ask partners for logs, and decide what they may read",
        _JOBS,
        "create|ls|show|preview|approve|reject|revoke|rm [NAME] [options]",
    ),
    Command(
        "audit",
        "show, check and hand out the evidence of what happened",
        _JOBS,
        "ACTION [options]",
        actions=_AUDIT_ACTIONS,
    ),
    Command("service", "run a node under systemd", _NODE, "ACTION [options]", actions=_SERVICE_ACTIONS),
    Command(
        "store", "move, back up and check the objects of a node", _NODE, "ACTION [options]", actions=_STORE_ACTIONS
    ),
    Command("install", "prepare somebody's cluster", _NODE, "ACTION [options]", actions=_INSTALL_ACTIONS),
    Command("bandwidth", "show and set the bandwidth of nodes and links", _NODE, "[AMOUNT --node NAME | --link A,B]"),
    Command("status", "show whether nodes, gateways and routes are ready", _NODE, "[-o FORMAT]"),
    Command(
        "metrics",
        "write dashboards and alert rules for Grafana and Prometheus",
        _NODE,
        "dashboards|rules|scrape-config [NAME...] [options]",
    ),
    Command("completion", "print a completion script for a shell", _SEE, "bash|zsh|fish"),
    Command("version", "show the client and server version", _NODE, "[--client] [-o FORMAT]"),
    Command("api", "print the OpenAPI document of KusciaAPI", _NODE, "openapi [-o FORMAT] [--file FILE]"),
    Command("job", "run, watch and control jobs", _JOBS, "ACTION [options]", actions=_JOB_ACTIONS),
    Command("gpujob", "run programs on GPUs, as pods or on Slurm", _JOBS, "ACTION [options]", actions=_GPU_JOB_ACTIONS),
    Command("action", "serverless functions", _JOBS, "ACTION [options]", actions=_FUNCTION_ACTIONS),
    Command("data", "register tables and grant access to them", _JOBS, "ls|add|show|head|grant|revoke|uses [options]"),
    Command(
        "engine",
        "manage the engines that tasks can use",
        _JOBS,
        "ls|add|new|rm|versions|upgrade|pin [FILE|NAME...] [options]",
    ),
    Command("get", "list objects", _OBJECTS, "TYPE[,TYPE...] [NAME...] | TYPE/NAME... [options]"),
    Command(
        "describe", "show objects in detail, with their events", _OBJECTS, "TYPE [NAME...] | TYPE/NAME... [options]"
    ),
    Command("apply", "create or update objects from files", _OBJECTS, "-f FILE [options]"),
    Command("delete", "delete objects", _OBJECTS, "TYPE NAME... | TYPE/NAME... | TYPE -l SELECTOR | -f FILE [options]"),
    Command("logs", "print the logs of a container", _OBJECTS, "POD|TYPE/NAME [-c CONTAINER] [-f] [options]"),
    Command("exec", "run a command in a container", _OBJECTS, "[-it] POD [-c CONTAINER] -- COMMAND..."),
    Command("top", "show CPU and memory usage of nodes or pods", _OBJECTS, "node|pod [NAME] [options]"),
    Command("api-resources", "list the resource types of the server", _OBJECTS, "[options]"),
    Command("kubectl", "run kubectl with the kubeconfig of this control plane", _OBJECTS, "ARGUMENT...", hands_on=True),
)
BY_NAME = {command.name: command for command in COMMANDS}

_INTRODUCTION = """\
Coterie runs multi-party computation: organisations compute together without sharing their data.

usage: coterie COMMAND [options]
"""
_OUTRO = """\
First steps:
  coterie demo                                    # a temporary control plane; removes everything at the end
  coterie up                                      # a network of two domains in the background
  coterie init --mode master -d alice -o c.yaml   # or a single node: write its configuration
  coterie start -c c.yaml                         # run it in the foreground; continue in another terminal
  coterie status                                  # is everything ready?
  coterie job run job.yaml                        # submit a job and follow it

`coterie COMMAND --help` shows options and examples; `coterie --version` prints the version.
Control plane: --kubeconfig FILE, else $KUBECONFIG, else the domain under --root (--domain ID if there are several),
else ~/.kube/config. These options may be placed before or after the command.
"""


def main(argv: Sequence[str] | None = None, app: App | None = None, platform: str = sys.platform) -> int:
    app = app or App.standard()
    if problem := platform_problem(platform):
        app.warn(problem)
        return 1
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_status(app, lambda: _run_or_help(words, app))


def _run_or_help(words: list[str], app: App) -> int:
    try:
        return _run(words, app)
    except HelpAsked as asked:
        app.write(asked.args[0])
        return 0


def _run(words: list[str], app: App) -> int:
    before, name, after = split(words)
    chosen = _RootParser().parse_args(before)
    if chosen.version:
        app.say(f"coterie {__version__}")
        return 0
    if name == "help":
        name, after = (after[0], [*after[1:], "--help"]) if after else ("", [])
    if not name:
        raise HelpAsked(top_help())
    command, after = into_action(find(name), after)
    module = command.load()
    parser = command_parser(command, module)
    if command.hands_on and after and after[0] not in ("-h", "--help"):
        chosen.rest = after
    else:
        chosen = parser.parse(after, chosen)
    for option in CONNECTION:
        setattr(chosen, option, getattr(chosen, option, None) or "")
    chosen.called = command.action
    return module.run(chosen, app)


def into_action(command: Command, words: list[str]) -> tuple[Command, list[str]]:
    """The action that the words begin with, of a command that has several, and the words without it."""
    if not command.actions:
        return command, words
    before, word, after = split(words)
    if not word:
        raise HelpAsked(actions_help(command))
    by_name = {name: action for action in command.actions for name in (action.action, *action.also)}
    if word not in by_name:
        near = difflib.get_close_matches(word, by_name, 1)
        meant = f"did you mean `coterie {command.name} {near[0]}`?" if near else f"see `coterie {command.name} --help`"
        raise UsageError(f'`coterie {command.name}` cannot "{word}"; {meant}')
    return by_name[word], before + after


def find(name: str) -> Command:
    command = BY_NAME.get(name)
    if command is None:
        near = difflib.get_close_matches(name, BY_NAME, 1)
        meant = f"did you mean `coterie {near[0]}`?" if near else "`coterie --help` lists the commands"
        raise UsageError(f'there is no command "{name}"; {meant}')
    return command


def split(words: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """The words before the command's name, the name, and those after it."""
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            return list(words[:at]), word, list(words[at + 1 :])
        at += 2 if word in VALUED else 1
    return list(words), "", []


def command_parser(command: Command, module: CommandModule) -> Parser:
    description, _, examples = module.HELP.strip().partition("\n\nExamples:\n")
    prog = f"coterie {command.name}"
    parser = Parser(prog, description, f"Examples:\n{examples}", usage=f"{prog} {command.usage}")
    module.arguments(parser)
    return parser


def top_help() -> str:
    groups: dict[str, list[str]] = {}
    width = max(15, *(len(command.name) + 2 for command in COMMANDS))
    for command in COMMANDS:
        groups.setdefault(command.group, []).append(f"  {command.name:<{width}}{command.summary}")
    listed = "\n\n".join(f"{title}:\n" + "\n".join(lines) for title, lines in groups.items())
    return f"{_INTRODUCTION}\n{listed}\n\n{_OUTRO}"


def actions_help(command: Command) -> str:
    width = max(10, *(len(action.action) + 2 for action in command.actions))
    listed = "\n".join(f"  {action.action:<{width}}{action.summary}" for action in command.actions)
    description, _, examples = command.load().HELP.strip().partition("\n\nExamples:\n")
    return (
        f"usage: coterie {command.name} {command.usage}\n\n{description}\n\n{listed}\n\nExamples:\n{examples}\n\n"
        f"`coterie {command.name} ACTION --help` shows the options of an action.\n"
    )


def root_parser() -> Parser:
    return _RootParser()


class _RootParser(Parser):
    """Understands what stands before the command's name."""

    def __init__(self) -> None:
        super().__init__("coterie")
        self.add_argument("--version", action="store_true")
        connection_options(self)
        namespace_option(self)

    def format_help(self) -> str:
        return top_help()


if __name__ == "__main__":
    sys.exit(main())
