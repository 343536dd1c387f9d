"""The configuration file of a task for MPyC, read into plain data. `task_input_config` says:

{"program": "column_sums", "inputs": {"alice": "<domaindata id>", "bob": ...}, "columns": {"alice": ["age"], ...},
 "arguments": ["age"]}

program     one that comes along; left out where the image brings its own program
inputs      the table of each party, which its program finds in `rows.csv`; left out: the program reads none
columns     by party, the columns that are read; left out: all that are granted
arguments   words for the program, the same at all parties; none begins with "-"
"""

from __future__ import annotations

from typing import NamedTuple

from coterie.engines.launching.configuration import BadConfig, read, texts

PORT, LOCAL_PORT = "mpc", "program"
FEWEST = 3
"""MPyC's secrets are safe from fewer than half of the parties: of two, each alone would see all."""


class Task(NamedTuple):
    id: str
    parties: tuple[str, ...]
    """By name: the order is the index of each."""
    rank: int
    endpoints: dict[str, str]
    port: int
    local_port: int
    """Where the program listens."""
    program: str
    table: str
    columns: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def own(self) -> str:
        return self.parties[self.rank]

    @property
    def threshold(self) -> int:
        return (len(self.parties) - 1) // 2


def parse(text: str) -> Task:
    config = read(text, (PORT, LOCAL_PORT))
    names, own = config.parties, config.own
    if len(names) < FEWEST or len(set(names)) < len(names):
        raise BadConfig(f"MPyC keeps secrets among {FEWEST} or more parties; this task has {len(set(names))}")
    config.only({"program", "inputs", "columns", "arguments"})
    program, arguments = config.options.get("program", ""), config.options.get("arguments", [])
    table = config.by_party("inputs").get(own, "")
    if not isinstance(program, str) or not isinstance(table, str):
        raise BadConfig("task_input_config: program and the values of inputs are texts")
    columns = config.columns()
    if not texts(arguments):
        raise BadConfig("task_input_config: arguments and the values of columns are lists of texts")
    for word in arguments:
        # Partners choose the arguments. As an option of MPyC one of them could lower its threshold.
        if word.startswith("-") or "\0" in word:
            raise BadConfig(f'task_input_config: the argument "{word}" is refused: options are not for partners to set')
    others = {name: config.endpoints[PORT][name] for name in names if name != own}
    ports = config.ports
    return Task(
        config.task,
        names,
        names.index(own),
        others,
        ports[PORT],
        ports[LOCAL_PORT],
        program,
        table,
        columns,
        tuple(arguments),
    )
