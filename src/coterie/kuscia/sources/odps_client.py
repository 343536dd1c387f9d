"""The client library of ODPS (MaxCompute), PyODPS, as a source needs it. Needs the extra `odps`: import it lazily.

Its requests go over a session of ours. The library's own would follow redirects, use the proxies of the environment, wait two minutes for an answer, and
repeat without end what a busy server refused. Its options are set per thread, and it logs nothing below a warning: at lower levels it prints the signed headers.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import odps as pyodps
import requests
from odps import config as pyodps_config
from odps import rest as pyodps_rest
from odps import tunnel as pyodps_tunnel
from odps.tunnel.io import writer as pyodps_writer

from coterie.kuscia.sources.protocol import SourceError, SourceInfo, SourceUnreachable

TIMEOUTS = (10.0, 60.0)
"""For connecting, and for each piece of an answer."""
_STATEMENT_SECONDS = 600
_BLOCK_BYTES = 8 << 20
_TOO_BUSY = 429
_NOTHING = re.compile("")
"""Of what is called it tells the server nothing."""
_HINTS = {"odps.sql.type.system.odps2": "true"}

logging.getLogger("odps").setLevel(logging.WARNING)
if pyodps_writer.pd is None:
    pyodps_writer.pd = SimpleNamespace(DataFrame=())  # it asks whether a batch is a DataFrame, also without pandas


class OdpsSession:
    """What the library takes for a `requests.Session`: one server's answers or an error, never another server's."""

    def __init__(self, ca: str) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        self._streamed: Any = None
        self._stopped = False
        self._ca = ca
        self._file: Any = None

    def open(self) -> None:
        if self._ca:  # the library takes a file only
            self._file = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115
            self._file.write(self._ca)
            self._file.flush()

    def merge_environment_settings(self, _url: str, _proxies: Any, stream: bool, *_: Any) -> Mapping[str, Any]:
        """Nothing of the environment."""
        return {"stream": stream, "verify": True, "proxies": {}, "cert": None}

    def send(self, request: Any, *, stream: bool = False, **_: Any) -> Any:
        if self._stopped:
            raise SourceError("reading was stopped")
        response = self._session.send(
            request,
            stream=stream,
            timeout=TIMEOUTS,
            verify=self._file.name if self._file is not None else True,
            proxies={},
            allow_redirects=False,
        )
        host, status = urlsplit(request.url).hostname, response.status_code
        if 300 <= status < 400:
            raise SourceUnreachable(f"{host} redirects to another address ({status}); set the endpoint to that")
        if status == _TOO_BUSY or status >= 500:
            raise SourceUnreachable(f"{host} failed ({status})")
        if stream:
            self._streamed = response.raw
            if self._stopped:  # meanwhile
                response.close()
                raise SourceError("reading was stopped")
        return response

    def interrupt(self) -> None:
        """From any thread: what waits for a piece of a table ends with an error."""
        self._stopped = True
        if self._streamed is not None:
            with suppress(OSError, ValueError, RuntimeError):  # it may be over already
                self._streamed.shutdown()

    def close(self) -> None:
        self._session.close()
        if self._file is not None:
            self._file.close()


class _OdpsRest(pyodps_rest.RestClient):  # type: ignore[misc]
    def __init__(self, *args: Any, line: OdpsSession, **named: Any) -> None:
        self._line = line
        super().__init__(*args, **named)

    @property
    def session(self) -> OdpsSession:
        return self._line


class _OdpsTunnel(pyodps_tunnel.TableTunnel):  # type: ignore[misc]
    """As the library's, but its requests go over the source's session."""

    _ours: Any = None

    def __init__(self, entry: Any, line: OdpsSession, endpoint: str) -> None:
        super().__init__(odps=entry, endpoint=endpoint or None)
        self._line = line

    @property
    def tunnel_rest(self) -> Any:
        if self._ours is None:
            endpoint = self._endpoint or self._get_tunnel_server(self._project)
            self._ours = _OdpsRest(
                self._account, endpoint, self._client.project, tag="TUNNEL", retry_enabled=False, line=self._line
            )
        return self._ours


class OdpsClient:
    """Of one project. All of it blocks, in one thread, inside `used`."""

    def __init__(self, info: SourceInfo) -> None:
        self._info = info
        self._line = OdpsSession(info.extra.get("ca", ""))
        self._entry: Any = None

    @contextmanager
    def used(self) -> Iterator[None]:
        secret = self._info.access_key_secret
        with pyodps_config.option_context() as options:
            options.connect_timeout, options.read_timeout = int(TIMEOUTS[0]), int(TIMEOUTS[1])
            options.retry_times = 2
            options.local_timezone = False  # UTC, wherever this runs
            options.use_legacy_logview = True
            options.skipped_survey_regexes = [_NOTHING]
            try:
                self._line.open()
                self._entry = pyodps.ODPS(
                    self._info.access_key_id,
                    secret.reveal() if secret else "",
                    project=self._info.extra.get("project", ""),
                    endpoint=self._info.endpoint,
                    logview_host="none",  # else it asks for one
                    overwrite_global=False,
                    rest_client_cls=_OdpsRest,
                    rest_client_kwargs={"line": self._line},
                )
                yield
            finally:
                self._entry = None
                self._line.close()

    def interrupt(self) -> None:
        self._line.interrupt()

    def table(self, name: str) -> Any:
        """With its columns. Raises NoSuchObject of the library."""
        found = self._entry.get_table(name)
        found.reload()
        return found

    def execute(self, statement: str) -> None:
        run = self._entry.run_sql(statement, hints=_HINTS)
        run.wait_for_success(timeout=_STATEMENT_SECONDS)

    def download(self, table: str, partition: str) -> Any:
        """One version of the table or the partition."""
        return self._tunnel().create_download_session(table, partition_spec=partition or None, timeout=TIMEOUTS[1])

    def upload(self, table: str, partition: str) -> tuple[Any, Any]:
        """A session that replaces everything when it is committed, and its writer."""
        session = self._tunnel().create_upload_session(
            table, partition_spec=partition or None, overwrite=True, create_partition=bool(partition)
        )
        return session, session.open_arrow_writer(buffer_size=_BLOCK_BYTES)

    def _tunnel(self) -> _OdpsTunnel:
        return _OdpsTunnel(self._entry, self._line, self._info.extra.get("tunnel_endpoint", ""))
