"""What can be asked, by subject. Each operation is a path, what goes there, and what comes back.

Domains that are not named are the one whose API it is.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.sdk import models
from coterie.sdk.errors import JobEnded, Missing, Refused, TimedOut, Unreachable, refused
from coterie.sdk.models import Data, Domain, Grant, Image, Job, JobEvent, Party, Route, Serving, Source, Task, read
from coterie.sdk.wire import Wire

_EVENTS = ("ADDED", "MODIFIED", "DELETED", "ERROR", "HEARTBEAT")
_SILENCE = 60.0
"""Watches say something every 10 seconds, even if it is nothing."""
_AT_ONCE = 1
"""Seconds in which the API has told of all jobs there are."""
_PAUSE = 0.5
_PASSING = (11101, 11103)
"""What a watch that broke off ends with: something failed inside, or the master cannot be asked."""
_ATTEMPTS = 60
"""How often a watch is begun anew, with a pause before each, while the node is away."""
_PAGE = 100
_GONE = "the answer is empty"


class ResourceClient:
    base = ""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def _ask(self, verb: str, **request: Any) -> Any:
        """What is in `data`, where there is such a thing."""
        answer = await self._wire.ask(f"{self.base}/{verb}" if verb else self.base, request)
        return (answer["data"] or {}) if "data" in answer else answer

    def _own(self, domain: str) -> str:
        return domain or self._wire.address.domain


class Jobs(ResourceClient):
    base = "/api/v1/job"

    async def run(
        self,
        work: str | Task | Sequence[Task],
        parties: Sequence[str | Party] = (),
        input: object = "",
        *,
        job_id: str = "",
        initiator: str = "",
        max_parallelism: int = 1,
        custom_fields: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_change: Callable[[JobEvent], None] | None = None,
    ) -> Job:
        """Create a job, follow it, and give it back as it ended: `run("sample", ["alice", "bob"])`.

        `work`: the name of an engine, with its parties and input, or tasks. See `Job.check` for what did not succeed.
        """
        made = await self.create(
            work,
            parties,
            input,
            job_id=job_id,
            initiator=initiator,
            max_parallelism=max_parallelism,
            custom_fields=custom_fields,
        )
        return await self.wait(made, timeout=timeout, on_change=on_change)

    async def create(
        self,
        work: str | Task | Sequence[Task],
        parties: Sequence[str | Party] = (),
        input: object = "",
        *,
        job_id: str = "",
        initiator: str = "",
        max_parallelism: int = 1,
        custom_fields: Mapping[str, str] | None = None,
    ) -> str:
        """The name of the new job."""
        tasks = _tasks(work, parties, input)
        name = job_id or _new_name(tasks)
        answer = await self._ask(
            "create",
            job_id=name,
            initiator=self._own(initiator),
            max_parallelism=max_parallelism,
            tasks=tasks,
            custom_fields=custom_fields or {},
        )
        return str(answer.get("job_id") or name)

    async def plan(
        self,
        work: str | Task | Sequence[Task],
        parties: Sequence[str | Party] = (),
        input: object = "",
        *,
        job_id: str = "",
        initiator: str = "",
        max_parallelism: int = 1,
        wait_seconds: int = 0,
    ) -> models.JobPlan:
        """What would become of such a job, as all its parties say. Nothing is started, reserved or counted.

        `wait_seconds`: for how long a party that does not answer is waited for; 10 when it is not given."""
        tasks = _tasks(work, parties, input)
        answer = await self._ask(
            "plan",
            job_id=job_id or _new_name(tasks),
            initiator=self._own(initiator),
            max_parallelism=max_parallelism,
            tasks=tasks,
            wait_seconds=wait_seconds,
        )
        return read(models.JobPlan, answer)

    async def wait(
        self, job_id: str, *, timeout: float | None = None, on_change: Callable[[JobEvent], None] | None = None
    ) -> Job:
        """The job as it ended. Raises TimedOut when it did not in time; it goes on then."""
        try:
            async with asyncio.timeout(timeout):
                return await self._ended(job_id, on_change)
        except TimeoutError as problem:
            raise TimedOut(f"job {job_id} has not ended within {timeout:g} seconds; it goes on") from problem

    async def _ended(self, job_id: str, on_change: Callable[[JobEvent], None] | None) -> Job:
        away = 0
        while True:
            seen = False
            # A watch begins with how all jobs are, so one that ended between two watches is seen as well.
            try:
                async with contextlib.aclosing(self._events(0)) as events:
                    async for event in events:
                        away = 0
                        if event is None and not seen:
                            await self.get(job_id)  # all have been told, and it was not there
                        if event is None or event.job_id != job_id:
                            continue
                        seen = True
                        if on_change is not None:
                            on_change(event)
                        if event.type == "DELETED":
                            gone = Job(job_id, status=replace(event.status, state="Deleted"))
                            raise JobEnded(f"job {job_id} was deleted", gone)
                        if event.status.state in models.ENDED:
                            return await self.get(job_id)
                if not seen:
                    await self.get(job_id)
            except (Unreachable, Refused) as problem:
                # A node that starts anew, or a lite's master, is away for some seconds, and jobs go on.
                away += 1
                if away > _ATTEMPTS or (isinstance(problem, Refused) and problem.code not in _PASSING):
                    raise
            await asyncio.sleep(_PAUSE)

    async def get(self, job_id: str) -> Job:
        return read(Job, _present(await self._ask("query", job_id=job_id)))

    async def statuses(self, job_ids: Sequence[str]) -> dict[str, models.JobStatus]:
        answer = await self._ask("status/batchQuery", job_ids=list(job_ids))
        return {each["job_id"]: read(models.JobStatus, each.get("status") or {}) for each in answer.get("jobs") or ()}

    async def list(self) -> dict[str, models.JobStatus]:
        """All jobs that may be seen, with how they are. The API lists jobs only by watching, so this takes a second."""
        found = {}
        async with contextlib.aclosing(self.watch(timeout_seconds=_AT_ONCE)) as events:
            async for event in events:
                found[event.job_id] = event.status
                if event.type == "DELETED":
                    del found[event.job_id]
        return found

    async def watch(self, *, timeout_seconds: int = 0) -> AsyncGenerator[JobEvent, None]:
        """All jobs there are, and then each change; without end when `timeout_seconds` is 0."""
        async with contextlib.aclosing(self._events(timeout_seconds)) as events:
            async for event in events:
                if event is not None:
                    yield event

    async def _events(self, timeout_seconds: int) -> AsyncGenerator[JobEvent | None, None]:
        """None: nothing happened for a while."""
        request = {"timeout_seconds": timeout_seconds}
        async with contextlib.aclosing(self._wire.pieces(f"{self.base}/watch", request, _SILENCE)) as pieces:
            async for piece in pieces:
                yield event_of(piece)

    async def stop(self, job_id: str, reason: str = "") -> None:
        await self._ask("stop", job_id=job_id, reason=reason)

    async def restart(self, job_id: str, reason: str = "") -> None:
        await self._ask("restart", job_id=job_id, reason=reason)

    async def suspend(self, job_id: str, reason: str = "") -> None:
        await self._ask("suspend", job_id=job_id, reason=reason)

    async def cancel(self, job_id: str, reason: str = "") -> None:
        await self._ask("cancel", job_id=job_id, reason=reason)

    async def approve(self, job_id: str, *, accept: bool = True, reason: str = "") -> None:
        result = "APPROVE_RESULT_ACCEPT" if accept else "APPROVE_RESULT_REJECT"
        await self._ask("approve", job_id=job_id, result=result, reason=reason)

    async def delete(self, job_id: str) -> None:
        await self._ask("delete", job_id=job_id)


def _tasks(work: str | Task | Sequence[Task], parties: Sequence[str | Party], input: object) -> list[Task]:
    tasks = [Task.of(work, parties, input)] if isinstance(work, str) else work
    return [tasks] if isinstance(tasks, Task) else list(tasks)


def _new_name(tasks: Sequence[Task]) -> str:
    return f"{tasks[0].alias or tasks[0].app_image}-{secrets.token_hex(4)}"


def event_of(piece: Mapping[str, Any]) -> JobEvent | None:
    """One piece of a watch; None for one that only says that the API is still there. Raises what an answer refuses."""
    if (piece.get("status") or {}).get("code"):
        raise refused(int(piece["status"]["code"]), str(piece["status"].get("message", "")))
    kind = piece.get("type", 0)
    name = _EVENTS[kind] if isinstance(kind, int) and kind < len(_EVENTS) else str(kind)
    if name == "HEARTBEAT":
        return None
    job = piece.get("object") or {}
    return JobEvent(name, str(job.get("job_id", "")), read(models.JobStatus, job.get("status") or {}))


class Domains(ResourceClient):
    base = "/api/v1/domain"

    async def create(self, domain_id: str, *, role: str = "", cert: str = "", master_domain_id: str = "") -> None:
        """`role`: "partner" for a domain of another control plane, whose certificate must be given."""
        await self._ask("create", domain_id=domain_id, role=role, cert=cert, master_domain_id=master_domain_id)

    async def update(self, domain_id: str, *, role: str = "", cert: str = "", master_domain_id: str = "") -> None:
        await self._ask("update", domain_id=domain_id, role=role, cert=cert, master_domain_id=master_domain_id)

    async def get(self, domain_id: str = "") -> Domain:
        return read(Domain, _present(await self._ask("query", domain_id=self._own(domain_id))))

    async def get_many(self, domain_ids: Sequence[str]) -> Sequence[Domain]:
        return _all(Domain, await self._ask("batchQuery", domain_ids=list(domain_ids)), "domains")

    async def delete(self, domain_id: str) -> None:
        await self._ask("delete", domain_id=domain_id)


class Routes(ResourceClient):
    base = "/api/v1/route"

    async def create(self, route: Route) -> None:
        await self._wire.ask(f"{self.base}/create", models.to_request(route))

    async def get(self, source: str, destination: str) -> Route:
        return read(Route, _present(await self._ask("query", source=source, destination=destination)))

    async def statuses(self, routes: Sequence[tuple[str, str]]) -> Sequence[Route]:
        """Of (source, destination); only names and status are filled in."""
        keys = [{"source": source, "destination": destination} for source, destination in routes]
        return _all(Route, await self._ask("status/batchQuery", route_keys=keys), "routes")

    async def delete(self, source: str, destination: str) -> None:
        await self._ask("delete", source=source, destination=destination)


class DataSets(ResourceClient):
    base = "/api/v1/domaindata"

    async def create(self, data: Data) -> str:
        """Its name."""
        answer = await self._ask("create", **models.to_request(replace(data, domain_id=self._own(data.domain_id))))
        return str(answer["domaindata_id"])

    async def update(self, data: Data) -> None:
        await self._ask("update", **models.to_request(replace(data, domain_id=self._own(data.domain_id))))

    async def get(self, domaindata_id: str, domain_id: str = "") -> Data:
        key = {"domain_id": self._own(domain_id), "domaindata_id": domaindata_id}
        return read(Data, _present(await self._ask("query", data=key)))

    async def get_many(self, domaindata_ids: Sequence[str], domain_id: str = "") -> Sequence[Data]:
        """What is not there is left out."""
        keys = [{"domain_id": self._own(domain_id), "domaindata_id": each} for each in domaindata_ids]
        return _all(Data, await self._ask("batchQuery", data=keys), "domaindata_list")

    async def list(self, domain_id: str = "", *, type: str = "", vendor: str = "") -> Sequence[Data]:
        wanted = {"domain_id": self._own(domain_id), "domaindata_type": type, "domaindata_vendor": vendor}
        return _all(Data, await self._ask("list", data=wanted), "domaindata_list")

    async def delete(self, domaindata_id: str, domain_id: str = "", *, with_file: bool = False) -> None:
        """`with_file`: also what it describes (a file, an object, a database's table)."""
        verb = "deleteDataAndRaw" if with_file else "delete"
        await self._ask(verb, domain_id=self._own(domain_id), domaindata_id=domaindata_id)


class Sources(ResourceClient):
    base = "/api/v1/domaindatasource"

    async def create(self, source: Source) -> str:
        """Its name."""
        answer = await self._ask("create", **models.to_request(replace(source, domain_id=self._own(source.domain_id))))
        return str(answer["datasource_id"])

    async def update(self, source: Source) -> None:
        await self._ask("update", **models.to_request(replace(source, domain_id=self._own(source.domain_id))))

    async def get(self, datasource_id: str, domain_id: str = "") -> Source:
        return read(
            Source,
            _present(await self._ask("query", domain_id=self._own(domain_id), datasource_id=datasource_id)),
        )

    async def get_many(self, datasource_ids: Sequence[str], domain_id: str = "") -> Sequence[Source]:
        keys = [{"domain_id": self._own(domain_id), "datasource_id": each} for each in datasource_ids]
        return _all(Source, await self._ask("batchQuery", data=keys), "datasource_list")

    async def list(self, domain_id: str = "") -> Sequence[Source]:
        return _all(Source, await self._ask("list", domain_id=self._own(domain_id)), "datasource_list")

    async def delete(self, datasource_id: str, domain_id: str = "") -> None:
        await self._ask("delete", domain_id=self._own(domain_id), datasource_id=datasource_id)


class Grants(ResourceClient):
    base = "/api/v1/domaindatagrant"

    async def create(self, grant: Grant) -> str:
        """Its name."""
        answer = await self._ask("create", **models.to_request(replace(grant, domain_id=self._own(grant.domain_id))))
        return str((answer.get("data") or answer)["domaindatagrant_id"])

    async def update(self, grant: Grant) -> None:
        await self._ask("update", **models.to_request(replace(grant, domain_id=self._own(grant.domain_id))))

    async def get(self, domaindatagrant_id: str, domain_id: str = "") -> Grant:
        name = domaindatagrant_id
        return _grant(_present(await self._ask("query", domain_id=self._own(domain_id), domaindatagrant_id=name)))

    async def get_many(self, domaindatagrant_ids: Sequence[str], domain_id: str = "") -> Sequence[Grant]:
        keys = [{"domain_id": self._own(domain_id), "domaindatagrant_id": each} for each in domaindatagrant_ids]
        answer = await self._ask("batchQuery", data=keys)
        return [_grant(each) for each in (answer if isinstance(answer, list) else ())]

    async def list(self, domain_id: str = "", *, grant_domain: str = "", vendor: str = "") -> Sequence[Grant]:
        wanted = {"domain_id": self._own(domain_id), "grant_domain": grant_domain, "domaindata_vendor": vendor}
        answer = await self._ask("list", data=wanted)
        return [_grant(each) for each in answer.get("domaindatagrant_list") or ()]

    async def delete(self, domaindatagrant_id: str, domain_id: str = "") -> None:
        await self._ask("delete", domain_id=self._own(domain_id), domaindatagrant_id=domaindatagrant_id)


def _grant(answer: Mapping[str, Any]) -> Grant:
    """The API has what was asked for and how it is apart."""
    return read(Grant, {**(answer.get("data") or {}), "status": answer.get("status")})


class Servings(ResourceClient):
    base = "/api/v1/serving"

    async def create(self, serving: Serving) -> str:
        """Its name."""
        filled = replace(serving, initiator=self._own(serving.initiator))
        answer = await self._wire.ask(f"{self.base}/create", _request(filled))
        return str((answer.get("data") or {}).get("serving_id") or serving.serving_id)

    async def update(self, serving: Serving) -> None:
        await self._wire.ask(f"{self.base}/update", _request(serving))

    async def get(self, serving_id: str) -> Serving:
        found = _present(await self._ask("query", serving_id=serving_id))
        return replace(read(Serving, found), serving_id=serving_id)

    async def statuses(self, serving_ids: Sequence[str]) -> dict[str, models.ServingStatus]:
        answer = await self._ask("status/batchQuery", serving_ids=list(serving_ids))
        found = answer.get("servings") or ()
        return {each["serving_id"]: read(models.ServingStatus, each.get("status") or {}) for each in found}

    async def delete(self, serving_id: str) -> None:
        await self._ask("delete", serving_id=serving_id)


class Images(ResourceClient):
    base = "/api/v1/appimage"

    async def create(self, image: Image) -> None:
        await self._ask("create", **_request(image))

    async def update(self, image: Image) -> None:
        await self._ask("update", **_request(image))

    async def get(self, name: str) -> Image:
        return read(Image, _present(await self._ask("query", name=name)))

    async def get_many(self, names: Sequence[str]) -> Sequence[Image]:
        answer = await self._ask("batchQuery", names=list(names))
        return [read(Image, each) for each in (answer if isinstance(answer, list) else ())]

    async def list(self) -> Sequence[Image]:
        found: list[Image] = []
        token = ""
        while True:
            answer = await self._ask("list", page_size=_PAGE, page_token=token)
            found += _all(Image, answer, "appimage_list")
            token = answer.get("next_page_token") or ""
            if not token:
                return found

    async def delete(self, name: str) -> None:
        await self._ask("delete", name=name)


class Config(ResourceClient):
    """Keys and values that only the node itself can read."""

    base = "/api/v1/config"

    async def create(self, values: Mapping[str, str]) -> None:
        await self._ask("create", data=_pairs(values))

    async def update(self, values: Mapping[str, str]) -> None:
        await self._ask("update", data=_pairs(values))

    async def get(self, key: str) -> str:
        """Empty when there is none."""
        return str((await self._ask("query", key=key)).get("value", ""))

    async def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        found = await self._ask("batchQuery", keys=list(keys))
        return {each["key"]: each.get("value", "") for each in (found if isinstance(found, list) else ())}

    async def delete(self, keys: Sequence[str]) -> None:
        await self._ask("delete", keys=list(keys))


class Certificates(ResourceClient):
    base = "/api/v1/certificate"

    async def generate(
        self,
        common_name: str,
        *,
        country: str = "",
        organization: str = "",
        organization_unit: str = "",
        locality: str = "",
        province: str = "",
        street_address: str = "",
        duration_sec: int = 0,
        key_type: str = "",
    ) -> models.KeyAndCertificates:
        """A key with a certificate that this domain signed. `key_type`: "PKCS#1" or "PKCS#8"."""
        answer = await self._ask(
            "generate",
            common_name=common_name,
            country=country,
            organization=organization,
            organization_unit=organization_unit,
            locality=locality,
            province=province,
            street_address=street_address,
            duration_sec=duration_sec,
            key_type=key_type,
        )
        return models.KeyAndCertificates(_pem(answer["key"]), tuple(_pem(each) for each in answer["cert_chain"]))


class Bandwidth(ResourceClient):
    base = "/api/v1/bandwidth"

    async def get(self, domain_id: str = "") -> models.BandwidthFigures:
        """Capacity, reservations and measured use of nodes, links and running tasks."""
        return read(models.BandwidthFigures, await self._ask("query", domain_id=self._own(domain_id)))

    async def set_capacity(self, capacity: str, *, node_name: str = "", peer_id: str = "", domain_id: str = "") -> None:
        """Of a node, or of the link to a peer: `100Mbps`; empty: as configured, and for links none."""
        request = {"domain_id": self._own(domain_id), "node_name": node_name, "peer_id": peer_id, "capacity": capacity}
        await self._ask("capacity/set", **request)

    async def limit(
        self, job_id: str, destination_id: str, limit_kbps: int, *, domain_id: str = "", tasks: Sequence[str] = ()
    ) -> Sequence[str]:
        """What running tasks of a job may send to a partner, in KiB a second, 0 for no limit. The ids of the tasks."""
        answer = await self._ask(
            "limit/set",
            job_id=job_id,
            domain_id=self._own(domain_id),
            destination_id=destination_id,
            limit_kbps=limit_kbps,
            tasks=list(tasks),
        )
        return [str(each) for each in answer.get("task_ids") or ()]


class PartnerLogs(ResourceClient):
    """Log lines of partners, with their consent."""

    base = "/api/v1/partnerlog"

    async def ask(
        self,
        owner_id: str,
        job_id: str,
        reason: str,
        *,
        domain_id: str = "",
        task_alias: str = "",
        sources: Sequence[str] = (),
        since: str = "",
        until: str = "",
        grep: str = "",
        max_lines: int = 0,
        expires_seconds: int = 0,
        keep_seconds: int = 0,
    ) -> str:
        """The id of the request; its owner decides, or it expires."""
        answer = await self._ask(
            "ask",
            domain_id=self._own(domain_id),
            owner_id=owner_id,
            job_id=job_id,
            reason=reason,
            task_alias=task_alias,
            sources=list(sources),
            since=since,
            until=until,
            grep=grep,
            max_lines=max_lines,
            expires_seconds=expires_seconds,
            keep_seconds=keep_seconds,
        )
        return str(answer["request_id"])

    async def get(self, request_id: str, *, domain_id: str = "") -> models.PartnerLog:
        """With the answer, or, at the owner and before its decision, the preview."""
        return read(models.PartnerLog, await self._ask("query", domain_id=self._own(domain_id), request_id=request_id))

    async def list(self, *, domain_id: str = "") -> Sequence[models.PartnerLog]:
        """Of the domain and to it, without their text."""
        answer = await self._ask("list", domain_id=self._own(domain_id))
        return [read(models.PartnerLog, each) for each in answer.get("requests") or ()]

    async def review(
        self, request_id: str, decision: str, *, digest: str = "", reason: str = "", domain_id: str = ""
    ) -> None:
        """`Approve` (with the digest of the preview that was looked at), `Reject` or `Revoke`."""
        await self._ask(
            "review",
            domain_id=self._own(domain_id),
            request_id=request_id,
            decision=decision,
            digest=digest,
            reason=reason,
        )

    async def delete(self, request_id: str, *, domain_id: str = "") -> None:
        await self._ask("delete", domain_id=self._own(domain_id), request_id=request_id)


class Evidence(ResourceClient):
    """The evidence log of the node's domain. For the operator alone. `log`: its number, 0 for the newest."""

    base = "/api/v1/evidence"

    async def list(
        self,
        *,
        job_id: str = "",
        kind: str = "",
        partner_id: str = "",
        since: str = "",
        until: str = "",
        before: int = 0,
        limit: int = 0,
        log: int = 0,
    ) -> models.EvidencePage:
        """One page, the newest first; `before`: the smallest index of the page before. `kind`: or the beginning of kinds, `grant.`."""
        chosen = _chosen_events(job_id, kind, partner_id, since, until)
        return read(models.EvidencePage, await self._ask("list", filter=chosen, before=before, limit=limit, log=log))

    async def get(self, index: int, *, log: int = 0) -> models.RecordedEvent:
        return read(models.RecordedEvent, await self._ask("query", index=index, log=log))

    async def prove(
        self, index: int, *, format: str = "evidence", disclose: Sequence[str] = (), log: int = 0
    ) -> models.EvidenceText:
        """One event with its proof. `format`: `evidence` or `tlog-proof`; `disclose`: of `person`, `table`, `object`."""
        answer = await self._ask("prove", index=index, format=format, disclose=[*disclose], log=log)
        return read(models.EvidenceText, answer)

    async def export(
        self,
        *,
        job_id: str = "",
        kind: str = "",
        partner_id: str = "",
        since: str = "",
        until: str = "",
        format: str = "evidence",
        disclose: Sequence[str] = (),
        log: int = 0,
    ) -> models.EvidenceText:
        """The log, or the events that are chosen, of at most 3 MiB. `format`: `evidence`, `json`, `csv` or `otlp`."""
        chosen = _chosen_events(job_id, kind, partner_id, since, until)
        answer = await self._ask("export", filter=chosen, format=format, disclose=[*disclose], log=log)
        return read(models.EvidenceText, answer)

    async def state(self, *, verify: bool = False, log: int = 0) -> models.EvidenceState:
        """`verify`: all hashes are computed anew."""
        return read(models.EvidenceState, await self._ask("state/query", verify=verify, log=log))


def _chosen_events(job_id: str, kind: str, partner_id: str, since: str, until: str) -> dict[str, str]:
    return {"job_id": job_id, "kind": kind, "partner_id": partner_id, "since": since, "until": until}


class Logs(ResourceClient):
    base = "/api/v1/log"

    async def read(
        self, task_id: str, *, replica: int = 0, container: str = "", follow: bool = False, local: bool = False
    ) -> AsyncGenerator[str, None]:
        """What a task printed at this domain, in pieces of whole lines. `follow`: until it ends."""
        request = {
            "task_id": task_id,
            "replica_idx": replica,
            "container": container,
            "follow": follow,
            "local": local,
        }
        async with contextlib.aclosing(self._wire.pieces(f"{self.base}/task/query", request, None)) as pieces:
            async for piece in pieces:
                status = piece.get("status") or {}
                if status.get("code"):
                    raise refused(int(status["code"]), str(status.get("message", "")))
                if piece.get("log"):
                    yield str(piece["log"])

    async def search(
        self,
        job_id: str,
        *,
        task_id: str = "",
        since: str = "",
        until: str = "",
        grep: str = "",
        sources: Sequence[str] = (),
        limit: int = 0,
        cursor: str = "",
        domain: str = "",
    ) -> models.LoggedLines:
        """One page, the newest lines first asked for: what engines, gateway, scheduler, data mesh and controllers wrote about a
        job. `since`, `until`: `10m`, `2h` or RFC 3339."""
        answer = await self._ask(
            "search",
            job_id=job_id,
            task_id=task_id,
            domain_id=self._own(domain),
            since=since,
            until=until,
            grep=grep,
            sources=list(sources),
            limit=limit,
            cursor=cursor,
        )
        return read(models.LoggedLines, answer)

    async def node(self, task_id: str, *, domain: str = "", replica: int = 0) -> models.PodNode:
        """Which machine it runs on."""
        answer = await self._ask("node/query", task_id=task_id, domain=self._own(domain), replica_idx=replica)
        return read(models.PodNode, answer)


class Health(ResourceClient):
    base = "/healthZ"

    async def ready(self) -> bool:
        return bool((await self._ask("")).get("ready"))


def _present(data: Any) -> Any:
    """A query that says nothing at all found nothing."""
    if not data:
        raise Missing(0, _GONE)
    return data


def _all(kind: type[models.T], answer: Any, name: str) -> Sequence[models.T]:
    return [read(kind, each) for each in answer.get(name) or ()]


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _request(of: Any) -> dict[str, Any]:
    request: dict[str, Any] = models.to_request(of)
    request.pop("status", None)
    return request


def _pem(text: str) -> str:
    return base64.b64decode(text).decode()
