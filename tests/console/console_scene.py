"""A hospital and its partners on a Monday morning: every screen of the console has something to show, always the same.

st-mary (ours)  ──  heart-center, gene-lab (partners)
stroke-risk-w46 runs; af-screening waits for us; nightly jobs have ended, some of them badly
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from coterie.base.clock import SystemClock
from coterie.base.paths import DomainPaths
from coterie.http.messages import UserInfo
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent
from coterie.kuscia.api.functions.types import ACTION_GRANTS, ACTION_LABEL, ACTIONS, DEAD_LETTERS, TRIGGERS
from coterie.kuscia.api.log_query import LogLine, LogPage, LogQuery
from coterie.kuscia.api.task_usage import usage_line
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAINS, GATEWAYS
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS
from coterie.kuscia.api.types.log_request import LOG_REQUESTS
from coterie.kuscia.control.task_logs import ApiTaskLogs
from coterie.kuscia.evidence.service import open_domain_log
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.identity import domain_identity

Object = dict[str, Any]
NOW = datetime(2026, 11, 16, 9, 41, tzinfo=UTC)
OWN, HEART, GENE, CLINIC = "st-mary", "heart-center", "gene-lab", "rehab-clinic"
JOB = "stroke-risk-w46"
FAILED_JOB = "readmission-model-w45"
POD = f"{JOB}-train-0"
NODES, PODS = Kind.dynamic(builtin("nodes")), Kind.dynamic(builtin("pods"))
EVENTS, NAMESPACES = Kind.dynamic(builtin("events")), Kind.dynamic(builtin("namespaces"))
JOBS, TASKS = KUSCIA_JOBS.as_dynamic, KUSCIA_TASKS.as_dynamic
_BAND = "kuscia.io/bandwidth"
_GPU = "nvidia.com/gpu"
_WAITED = (
    f"Waiting for party {HEART}: 0/2 nodes are available: 2 Insufficient memory, the task asks for 24Gi; party {GENE}: no room "
    f"is held while {HEART} has none"
)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class SceneClock(SystemClock):
    """Stands still, except while the scene is made."""

    __slots__ = ("moment",)

    def __init__(self) -> None:
        self.moment = NOW

    def now(self) -> datetime:
        return self.moment


class Scene:
    def __init__(self, client: Client, controllers: Client, clock: SceneClock) -> None:
        self.client = client
        self.clock = clock
        self._controllers = controllers
        """Write what a control plane finds out; what `client` answers to a job is recorded as the answer of a person."""

    async def add(
        self, kind: Kind[Object], obj: Object, status: Object | None = None, made: float = 7 * 86400
    ) -> Object:
        """`made`: seconds before now."""
        self.clock.moment = NOW - timedelta(seconds=made)
        created = await self.client.create(kind, obj)
        if status is not None:
            meta = obj["metadata"]
            created = await self._controllers.patch_status(
                kind, meta["name"], meta.get("namespace"), {"status": status}
            )
        self.clock.moment = NOW
        return created

    async def everything(self) -> None:
        await self._domains()
        await self._data()
        await self._machines()
        await self._jobs()
        await self._functions()
        await self._asked_for_logs()

    async def _functions(self) -> None:
        """A chain whose last step is at a partner, a nightly one that fails, and one that a partner may call."""
        code = "def action(request):\n    return request.body\n"
        old, new = "v1c5d02a9be", "v93b1f7740d"
        shares = [{"name": new, "created": ago(5_400), "percent": 10, "replicas": 1}]
        shares.append({"name": old, "created": ago(900_000), "percent": 90, "replicas": 2})
        alone = [{"name": new, "created": ago(400_000), "percent": 100, "replicas": 0}]
        busy: Object = {"desiredReplicas": 3, "replicas": 3, "readyReplicas": 3, "coldStarts": 41}
        for name, targets, status in (
            ("notify-ward", (), {"versions": alone, "version": new, "coldStarts": 7}),
            ("score", (f"{HEART}/ecg-risk", "notify-ward"), busy | {"callsPerMinute": 214, "errorsPerMinute": 3, "deadLetters": 2, "version": new, "versions": shares}),
            ("triage", ("score",), {"desiredReplicas": 2, "replicas": 2, "readyReplicas": 1, "callsPerMinute": 212, "coldStarts": 12, "version": new, "versions": alone}),
            ("bed-forecast", ("notify-ward",), {"versions": alone, "version": new, "coldStarts": 31}),
            ("reference-values", (), {"version": new, "versions": alone, "conditions": [{"type": "Ready", "status": "False", "reason": "ImageMissing", "message": "image r-stats:4.4 is on no node of this domain", "lastTransitionTime": ago(3_000)}]}),
        ):  # fmt: skip
            spec: Object = {"script": code, "next": list(targets), "concurrency": 4, "timeoutSeconds": 20}
            scaled = {"lastScaleTime": ago(130)}
            await self.add(
                ACTIONS.as_dynamic, {"metadata": {"name": name, "namespace": OWN}, "spec": spec}, scaled | status
            )
        traffic = [{"version": new, "percent": 10}, {"version": old, "percent": 90}]
        await self.client.patch(ACTIONS.as_dynamic, "score", OWN, {"spec": {"traffic": traffic}})
        for name, trigger in (
            ("triage-http", {"action": "triage", "http": {"path": "/triage", "methods": ["POST"]}}),
            ("forecast-nightly", {"action": "bed-forecast", "schedule": "0 4 * * *"}),
            ("new-blood-panel", {"action": "reference-values", "domainData": {"name": "blood-panel"}}),
            ("lab-results", {"action": "score", "topic": "lab-results", "suspend": True}),
        ):
            meta = {"name": name, "namespace": OWN}
            await self.add(TRIGGERS.as_dynamic, {"metadata": meta, "spec": trigger}, {"lastCallTime": ago(2)})
        until = (NOW + timedelta(days=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
        grant: Object = {"action": "score", "grantDomain": HEART, "tables": ["blood-panel"]}
        grant["limit"] = {"calls": 50_000, "callsPerMinute": 120, "expirationTime": until}
        used = {"phase": "Ready", "uses": 18_204, "lastUseTime": ago(4)}
        await self.add(
            ACTION_GRANTS.as_dynamic, {"metadata": {"name": f"score-{HEART}", "namespace": OWN}, "spec": grant}, used
        )
        for number, reason in enumerate(("the actor ran out of memory (256 MiB)", "no answer within 20 s")):
            letter = {
                "action": "score",
                "request": f"6f1c{number}e2a-77b0-4c1e-9a53-0d8e2b9f4a1{number}",
                "reason": reason,
            }
            letter |= {
                "attempts": 4,
                "size": 1840 + 377 * number,
                "contentType": "application/json",
                "time": ago(600 + 900 * number),
            }
            await self.add(
                DEAD_LETTERS.as_dynamic,
                {"metadata": {"name": f"score-{number}", "namespace": OWN}, "spec": letter},
                made=600 + 900 * number,
            )
        for number in range(2):
            meta = {"name": f"score-{new}-{number}", "namespace": OWN, "labels": {ACTION_LABEL: "score"}}
            container = {"name": "actor", "image": "coterie-actor"}
            state = {"name": "actor", "ready": True, "restartCount": 0, "image": "", "imageID": "", "state": {"running": {"startedAt": ago(120)}}}  # fmt: skip
            pod = {"metadata": meta, "spec": {"containers": [container], "nodeName": "ward-2"}}
            await self.add(PODS, pod, {"phase": "Running", "containerStatuses": [state]}, 130)

    async def _domains(self) -> None:
        for name in (OWN, HEART, GENE, CLINIC):
            await self.add(NAMESPACES, {"metadata": {"name": name}})
            spec = {"cert": ""} if name == OWN else {"cert": "", "role": "partner"}
            await self.add(DOMAINS.as_dynamic, {"metadata": {"name": name}, "spec": spec})
        template = {"name": "t", "spec": {"containers": [{"name": "engine", "workingDir": "/"}]}}
        for name, tag in (("psi", "1.2"), ("secretflow", "1.11")):
            image = {
                "name": f"registry.st-mary.example/{name}",
                "tag": tag,
                "id": hashlib.sha256(name.encode()).hexdigest(),
            }
            spec = {"image": image, "deployTemplates": [template]}
            await self.add(APP_IMAGES.as_dynamic, {"metadata": {"name": name}, "spec": spec})
        reason = "EndpointUnreachable"
        broken = f"no gateway of {OWN} can connect to gateway.rehab-clinic.example:1080: connection timed out"
        for source, destination in itertools.permutations((OWN, HEART, GENE, CLINIC), 2):
            if OWN not in (source, destination):
                continue
            problem = broken if destination == CLINIC else ""
            ready = {"type": "Ready", "status": "False" if problem else "True", "message": problem}
            ready |= {"reason": reason if problem else "", "lastTransitionTime": ago(190 if problem else 86400)}
            token = {"isReady": True, "revision": 12, "revisionTime": ago(7300), "token": ""}
            status = {"conditions": [ready], "tokenStatus": {"revision": 12, "sourceTokens": [token]}}
            await self.add(CLUSTER_DOMAIN_ROUTES.as_dynamic, a_route(source, destination), status)
        links = [
            {"peer": HEART, "sentBitsPerSecond": 46_000_000, "receivedBitsPerSecond": 31_000_000},
            {"peer": GENE, "sentBitsPerSecond": 210_000, "receivedBitsPerSecond": 95_000},
        ]
        gateway = {"address": "10.20.0.4", "heartbeatTime": ago(4), "publicKey": "", "version": "1", "links": links}
        meta = {"name": "gateway-1", "namespace": OWN}
        await self.add(GATEWAYS.as_dynamic, {"metadata": meta}, gateway | {"uptime": ago(900_000)})

    async def _data(self) -> None:
        tables = {
            "patients": ("patient_id", "birth_year", "sex", "postcode"),
            "admissions-2026": ("patient_id", "ward", "admitted", "discharged", "diagnosis"),
            "blood-panel": ("patient_id", "taken", "ldl", "hdl", "crp", "hba1c"),
        }
        for name, columns in tables.items():
            await self.add(DOMAIN_DATAS.as_dynamic, a_table(OWN, name, *columns))
        used = [
            {"use_time": ago(540 + 604800 * week), "grant_domain": HEART, "component": "psi"}
            | {"output": f"task stroke-risk-w{46 - week}-intersect of job stroke-risk-w{46 - week}"}
            for week in range(4)
        ]
        for table, partner, columns, uses, days, records in (
            ("patients", HEART, ["patient_id", "birth_year", "sex"], 12, 45, used),
            ("blood-panel", HEART, ["patient_id", "ldl", "hdl", "crp"], 0, 45, used[:2]),
            ("admissions-2026", GENE, ["patient_id", "diagnosis"], 3, 10, []),
        ):
            until = (NOW + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
            limit: Object = {"expirationTime": until, "inputConfig": json.dumps({"columns": columns})}
            if uses:
                limit["useCount"] = uses
            spec = {"author": OWN, "domainDataID": table, "grantDomain": partner, "signature": "", "limit": limit}
            meta = {"name": f"{table}-{partner}", "namespace": OWN}
            status = {"phase": "Ready", "message": "", "use_records": records}
            await self.add(DOMAIN_DATA_GRANTS.as_dynamic, {"metadata": meta, "spec": spec}, status)

    async def _machines(self) -> None:
        for name, cpu, memory, gpus in (("ward-1", "32", "128Gi", "2"), ("ward-2", "16", "64Gi", "")):
            room = {"cpu": cpu, "memory": memory, _BAND: "1000", **({_GPU: gpus} if gpus else {})}
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": ago(86400)}  # fmt: skip
            names = ("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "machineID", "operatingSystem", "osImage", "systemUUID")  # fmt: skip
            info = {**dict.fromkeys(names, ""), "kubeletVersion": "v1.36.0+coterie"}
            status = {"allocatable": room, "capacity": room, "nodeInfo": info, "conditions": [ready]}
            await self.add(NODES, {"metadata": {"name": name}}, status)
        for name, node, phase, cpu, memory, gpus, made in (
            (POD, "ward-1", "Running", "12", "48Gi", "1", 424),
            (f"{JOB}-intersect-0", "ward-2", "Succeeded", "4", "8Gi", "", 534),
            (f"{FAILED_JOB}-train-0", "ward-2", "Failed", "2", "2Gi", "", 30_000),
            ("triage-scoring-0", "ward-2", "Running", "6", "12Gi", "", 400_000),
        ):
            wanted = {"cpu": cpu, "memory": memory, _BAND: "250", **({_GPU: gpus} if gpus else {})}
            fixed = {key: value for key, value in wanted.items() if key in (_BAND, _GPU)}
            container = {
                "name": "engine",
                "image": "secretflow:1.11",
                "resources": {"requests": wanted, "limits": fixed},
            }
            state: Object = {"running": {"startedAt": ago(made - 70)}} if phase == "Running" else {}
            status = {"phase": phase, "containerStatuses": [{"name": "engine", "ready": phase == "Running", "restartCount": 0, "image": "", "imageID": "", "state": state}]}  # fmt: skip
            if phase == "Failed":
                status |= {"reason": "OOMKilled", "message": "the container used 2.1 GiB of 2 GiB"}
            pod = {"metadata": {"name": name, "namespace": OWN}, "spec": {"containers": [container], "nodeName": node}}
            await self.add(PODS, pod, status, made)
        for number, (reason, message, when) in enumerate(
            (
                ("Scheduled", f"Successfully assigned {OWN}/{POD} to ward-1", 356),
                ("Pulled", "Image secretflow:1.11 is on the node already", 355),
                ("Started", "Started container engine", 352),
            )
        ):
            await self._event("Pod", POD, OWN, f"pod-{number}", reason, message, when)

    async def _event(
        self, kind: str, name: str, namespace: str, own: str, reason: str, message: str, when: float, until: float = 0
    ) -> None:
        about = {"kind": kind, "name": name, "namespace": namespace}
        times = {"firstTimestamp": ago(when), "lastTimestamp": ago(until or when), "count": 1}
        event = {"metadata": {"name": own, "namespace": namespace}, "involvedObject": about, "type": "Normal"}
        await self.add(EVENTS, event | {"reason": reason, "message": message} | times, made=when)

    async def _jobs(self) -> None:
        for number in range(28):
            await self._nightly(number)
        parties = (OWN, HEART, GENE)
        chain = (
            ("intersect", "psi", (), "Succeeded", (535, 534, 528, 525, 468)),
            ("split", "secretflow", ("intersect",), "Succeeded", (467, 466, 456, 452, 426)),
            ("train", "secretflow", ("split",), "Running", (425, 424, 356, 352, None)),
            ("evaluate", "secretflow", ("train",), "", None),
            ("report", "secretflow", ("train", "evaluate"), "", None),
        )
        tasks = [a_task(JOB, alias, image, parties, after) for alias, image, after, _, _ in chain]
        accepted = {HEART: "JobAccepted", GENE: "JobAccepted"}
        status: Object = {"phase": "Running", "startTime": ago(540), "approveStatus": accepted}
        status["taskStatus"] = {f"{JOB}-{alias}": phase for alias, _, _, phase, _ in chain if phase}
        status["conditions"] = [{"type": "JobValidated", "status": "True", "lastTransitionTime": ago(539)}]
        job = await self.add(JOBS, a_job(JOB, OWN, tasks), status, 540)
        for alias, image, _, phase, times in chain:
            if times is not None:
                await self._task(job, alias, image, parties, phase, times)
        await self._event("KusciaTask", f"{JOB}-train", CROSS_DOMAIN, "train-waits", "Waiting", f"{_WAITED} (since {ago(424)}). Ask {HEART} to free memory, or give the task less.", 420, 360)  # fmt: skip
        await self._event(
            "KusciaJob", JOB, CROSS_DOMAIN, "job-1", "JobStarted", f"{HEART} and {GENE} accepted the job", 536
        )
        await self._partner_usage()
        message = (
            f"{OWN}: pod {FAILED_JOB}-train-0 was killed: it used 2.1 GiB of 2 GiB (OOMKilled); give it more memory"
        )
        await self._ended(FAILED_JOB, OWN, "Failed", 30_000, 29_400, message)
        await self._ended("common-patients-w46", OWN, "Succeeded", 3_900, 3_846)
        for name, initiator, phase, made in (
            ("sepsis-alerts-1116", HEART, "Running", 48),
            ("bed-forecast-1116", OWN, "Pending", 9),
        ):
            task = a_task(name, "score", "secretflow", (OWN, HEART))
            status = {"phase": phase, "startTime": ago(made), "taskStatus": {f"{name}-score": phase}}
            await self.add(JOBS, a_job(name, initiator, [task]), status, made)
        asks = {"inputs": {OWN: "patients", HEART: "ecg-readings"}, "keys": {OWN: ["patient_id"], HEART: ["person"]}}
        for name, initiator, wanted, made in (
            ("af-screening-cohort", HEART, asks, 95),
            ("variant-frequency-2026", GENE, {"inputs": {OWN: "admissions-2026", GENE: "variants"}}, 2_400),
        ):
            task = a_task(name, "intersect", "psi", (OWN, initiator), (), json.dumps(wanted))
            await self.add(JOBS, a_job(name, initiator, [task]), {"phase": "AwaitingApproval"}, made)

    async def _nightly(self, number: int) -> None:
        kinds = ("bed-forecast", "common-patients", "sepsis-alerts", "blood-reference")
        name = f"{kinds[number % 4]}-{1115 - number // 4:04d}"
        began = 3600 * (2 + number * 1.7)
        failed = number in (5, 17)
        message = f"{GENE} did not answer within 60 s; `coterie route check {OWN} {GENE}`" if failed else ""
        phase = "Failed" if failed else "Succeeded"
        await self._ended(name, HEART if number % 7 == 3 else OWN, phase, began, began - 40 - number * 9 % 200, message)

    async def _ended(
        self, name: str, initiator: str, phase: str, began: float, ended: float, message: str = ""
    ) -> None:
        task = a_task(name, "intersect", "psi", (OWN, HEART))
        status = {"phase": phase, "startTime": ago(began), "completionTime": ago(ended), "message": message}
        status |= {"taskStatus": {f"{name}-intersect": phase}}
        await self.add(JOBS, a_job(name, initiator, [task]), status, began + 1)

    async def _task(
        self, job: Object, alias: str, image: str, parties: Sequence[str], phase: str, times: Sequence[float | None]
    ) -> None:
        created, made, scheduled, running, ended = times
        assert created is not None and made is not None and scheduled is not None and running is not None
        name = f"{JOB}-{alias}"
        pod_phase = "Running" if ended is None else "Succeeded"
        pod = {"podName": f"{name}-0", "podPhase": pod_phase, "namespace": OWN, "nodeName": "ward-1"}
        pod |= {"createTime": ago(made), "scheduleTime": ago(scheduled), "readyTime": ago(running)}
        conditions = [("ResourceCreated", made), ("Running", running), *([("Success", ended)] if ended else [])]
        status: Object = {
            "phase": phase,
            "progress": 0.62 if ended is None else 1.0,
            "startTime": ago(created),
            "podStatuses": {f"{OWN}/{name}-0": pod},
            "partyTaskStatus": [{"domainID": party, "phase": phase} for party in parties],
            "conditions": [
                {"type": type_, "status": "True", "lastTransitionTime": ago(when)} for type_, when in conditions
            ],
        }
        if ended is not None:
            status["completionTime"] = ago(ended - 1)
        meta = {
            "name": name,
            "namespace": CROSS_DOMAIN,
            "labels": {"kuscia.secretflow/job-uid": job["metadata"]["uid"]},
        }
        meta["annotations"] = {"kuscia.secretflow/job-id": JOB, "kuscia.secretflow/task-alias": alias}
        listed = [{"domainID": party, "appImageRef": image} for party in parties]
        spec = {"initiator": OWN, "taskInputConfig": "{}", "parties": listed}
        await self.add(TASKS, {"metadata": meta, "spec": spec}, status, created)

    async def _partner_usage(self) -> None:
        """What the heart center agreed to show of its part."""
        text = "\n".join(f"{line.at} usage/{HEART} {line.text}" for line in usage_lines(HEART))
        sources = ["usage", "scheduler"]
        spec = {
            "requester": OWN,
            "owner": HEART,
            "job": JOB,
            "reason": "why does training take long?",
            "sources": sources,
        }
        until = (NOW + timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"phase": "Answered", "expireTime": until, "decidedBy": "dr.keller"}
        status |= {"answer": {"text": text, "lines": text.count("\n") + 1, "time": ago(30)}}
        meta = {"name": f"{JOB}-heart", "namespace": OWN}
        await self.add(LOG_REQUESTS.as_dynamic, {"metadata": meta, "spec": spec}, status, 60)

    async def _asked_for_logs(self) -> None:
        lines = tuple(f"{line.at} engine/{OWN} {line.text}" for line in engine_lines())[-5:]
        text = "\n".join((*lines, f"{ago(8)} engine/{OWN} token=[redacted:names] renewed"))
        spec = {"requester": HEART, "owner": OWN, "job": FAILED_JOB, "task": "train", "requestedBy": "dr.keller"}
        spec |= {"reason": "training ended on your side; was it the memory again?", "sources": ["engine", "scheduler"]}
        status = {"phase": "AwaitingApproval", "expireTime": (NOW + timedelta(hours=20)).strftime("%Y-%m-%dT%H:%M:%SZ")}
        preview = {"text": text, "lines": 6, "redactions": 1, "digest": hashlib.sha256(text.encode()).hexdigest()}
        meta = {"name": f"{FAILED_JOB}-k7x2m", "namespace": OWN}
        await self.add(LOG_REQUESTS.as_dynamic, {"metadata": meta, "spec": spec}, status | {"preview": preview}, 4_000)


# The evidence log.

_EVENTS = (
    (90_000, "policy.changed", {"partner": HEART, "verb": "update"}, {"person": "dr.weiss", "object_name": HEART}),
    (88_000, "grant.made", {"partner": HEART, "grant": ("patients-heart-center", "5d")}, {"person": "dr.weiss", "tables": ("patients",)}),
    (36_000, "checkpoint.cosigned", {"partner": HEART, "checkpoint": ("log", "3", "00")}, {}),
    (30_010, "job.created", {"job": FAILED_JOB, "parties": (OWN, HEART)}, {"person": "scheduler"}),
    (30_005, "job.approved", {"job": FAILED_JOB, "partner": HEART}, {}),
    (30_000, "task.started", {"job": FAILED_JOB, "parties": (OWN, HEART)}, {"tables": ("patients",)}),
    (29_400, "task.ended", {"job": FAILED_JOB, "parties": (OWN, HEART), "outcome": "Failed"}, {}),
    (4_000, "logs.asked", {"job": FAILED_JOB, "partner": HEART}, {}),
    (3_900, "grant.used", {"job": "common-patients-w46", "partner": HEART, "grant": ("patients-heart-center", "5d")}, {"tables": ("patients",)}),
    (3_846, "task.ended", {"job": "common-patients-w46", "parties": (OWN, HEART), "outcome": "Succeeded"}, {}),
    (540, "job.created", {"job": JOB, "parties": (OWN, HEART, GENE)}, {"person": "dr.weiss"}),
    (538, "job.approved", {"job": JOB, "partner": HEART}, {}),
    (537, "job.approved", {"job": JOB, "partner": GENE}, {}),
    (534, "task.started", {"job": JOB, "parties": (OWN, HEART, GENE)}, {"tables": ("patients",)}),
    (533, "grant.used", {"job": JOB, "partner": HEART, "grant": ("patients-heart-center", "5d")}, {"tables": ("patients",)}),
    (470, "checkpoint.cosigned", {"partner": GENE, "checkpoint": ("log", "14", "00")}, {}),
    (95, "grant.refused", {"job": "variant-frequency-2026", "partner": GENE, "reason": "columns"}, {"tables": ("admissions-2026",)}),
)  # fmt: skip


async def write_evidence(home: Path) -> DomainPaths:
    """Keys and salts are new each time; what the screen shows of it is not."""
    paths = DomainPaths.of(home, OWN).prepare()
    domain_identity.ensure(paths, OWN, None, NOW)
    clock = SceneClock()
    clock.moment = NOW - timedelta(days=2)
    log = await open_domain_log(paths, OWN, clock)
    for seconds, kind, fields, values in _EVENTS:
        clock.moment = NOW - timedelta(seconds=seconds)
        await log.record_requests([EventRequest(event=EvidenceEvent(kind=kind, **fields), **values)])
    await log.checkpoint()
    await log.file.close()
    return paths


# Plain objects.


def a_route(source: str, destination: str) -> Object:
    ports = [{"name": "http", "port": 1080, "protocol": "HTTP", "isTLS": True}]
    spec = {"source": source, "destination": destination, "authenticationType": "Token"}
    spec |= {"endpoint": {"host": f"gateway.{destination}.example", "ports": ports}}
    spec |= {"tokenConfig": {"tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": 86400}}
    return {"metadata": {"name": f"{source}-{destination}"}, "spec": spec}


def a_table(owner: str, name: str, *columns: str) -> Object:
    spec = {"name": name, "type": "table", "relativeURI": f"{name}.csv", "dataSource": "default", "author": owner}
    listed = [{"name": each, "type": "str"} for each in columns]
    return {"metadata": {"name": name, "namespace": owner}, "spec": spec | {"columns": listed}}


def a_task(
    job: str, alias: str, image: str, parties: Sequence[str], after: Sequence[str] = (), wanted: str = "{}"
) -> Object:
    made = {"alias": alias, "taskID": f"{job}-{alias}", "appImage": image, "taskInputConfig": wanted}
    made["parties"] = [{"domainID": party} for party in parties]
    return made | ({"dependencies": list(after)} if after else {})


def a_job(name: str, initiator: str, tasks: Sequence[Object]) -> Object:
    marks = {
        "kuscia.secretflow/self-cluster-as-initiator": str(initiator == OWN).lower(),
        "kuscia.secretflow/interconn-self-parties": OWN,
    }
    meta = {"name": name, "namespace": CROSS_DOMAIN, "annotations": marks}
    return {"metadata": meta, "spec": {"initiator": initiator, "maxParallelism": 2, "tasks": list(tasks)}}


# Logs.

_RUNS = (("intersect", 534, 528, 525, 468), ("split", 466, 456, 452, 426), ("train", 424, 356, 352, 0))
_ENGINE = (
    (350, "secretflow 1.11: 3 parties, protocol SEMI2K, ring FM64"),
    (349, "route to heart-center: 18 ms, 940 Mbit/s; route to gene-lab: 31 ms, 310 Mbit/s"),
    (347, "vertical table: 41,288 rows, 23 features (st-mary 6, heart-center 11, gene-lab 6)"),
    (345, "split: 33,030 rows to train, 8,258 to test"),
    (320, "xgb tree 1/20: loss 0.6931 -> 0.5402, 14.2 s"),
    (306, "xgb tree 2/20: loss 0.5402 -> 0.4717, 13.8 s"),
    (292, "xgb tree 3/20: loss 0.4717 -> 0.4266, 13.9 s"),
    (277, "heart-center answers late: 2.4 s for one round, 0.3 s is usual"),
    (262, "xgb tree 4/20: loss 0.4266 -> 0.3954, 29.6 s"),
    (248, "xgb tree 5/20: loss 0.3954 -> 0.3731, 13.7 s"),
    (119, "xgb tree 12/20: loss 0.2987 -> 0.2911, 13.8 s; auc 0.871"),
    (12, "xgb tree 13/20: 62 % done"),
)


def usage_lines(party: str) -> Iterator[LogLine]:
    """CPU, memory and bytes of each task of the running job, every four seconds."""
    for alias, made, scheduled, began, ended in _RUNS:
        task, pod = f"{JOB}-{alias}", f"{JOB}-{alias}-0"
        base = {"job": JOB, "task": task, "pod": pod}
        yield _usage(began + 3, party, task, "starting", {**base, "made": ago(made), "scheduled": ago(scheduled)})
        sent = received = 0.0
        for step, when in enumerate(range(began, ended, -4)):
            wave = math.sin(step / 2.2) + math.sin(step / 5.1 + len(party))
            cpu = {"intersect": 2.6, "split": 1.1, "train": 8.4}[alias] * (1 + wave / 4)
            memory = (
                {"intersect": 3.1, "split": 4.0, "train": 22.0}[alias]
                * (1 - math.exp(-(step + 1) / 9))
                * 2**30
                * (0.6 if party == HEART else 1)
            )
            late = 0.15 if alias == "train" and 285 > when > 262 else 1.0
            sent, received = sent + 4e6 * (2 + wave) * late, received + 3e6 * (2 - wave / 2) * late
            started = {"began": ago(began)} if step == 0 else {}
            yield _usage(when, party, task, "sample", {**base, "cpu": cpu * late, "memory": int(memory), **started})
            if party == OWN:
                for peer, share in ((HEART, 1.0), (GENE, 0.3)):
                    amounts = {"sent": int(sent * share), "received": int(received * share)}
                    yield _usage(when, party, task, "link", {"task": task, "peer": peer, **amounts})
        if ended:
            facts = {**base, "began": ago(began), "reason": "Completed", "code": 0, "finished": ago(ended)}
            yield _usage(ended, party, task, "ended", facts)


def _usage(when: float, party: str, task: str, what: str, facts: Object) -> LogLine:
    moment = NOW - timedelta(seconds=when)
    stamp = moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
    text = usage_line(moment, what, facts).partition(" ")[2]
    return LogLine(stamp, "usage", party, task, facts.get("pod", ""), text)


def engine_lines() -> Iterator[LogLine]:
    for when, text in _ENGINE:
        stamp = (NOW - timedelta(seconds=when)).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
        yield LogLine(stamp, "engine", OWN, f"{JOB}-train", POD, text)


@contextmanager
def scene_logs() -> Iterator[None]:
    """No machine is behind the scene: lines of logs come from here."""

    async def query(_: ApiTaskLogs, asked: LogQuery) -> LogPage:
        if asked.job != JOB:
            return LogPage(())
        lines = usage_lines(OWN) if "usage" in asked.sources else engine_lines()
        return LogPage(tuple(sorted(lines, key=lambda line: line.at)))

    with mock.patch.object(ApiTaskLogs, "query", query):
        yield


def pod_log() -> str:
    return "".join(f"{line.at} {line.text}\n" for line in engine_lines())


def actor_log(url: str) -> str:
    """Of one of the two actors: every other call."""
    dice = random.Random(url.partition("/pods/")[2].partition("/")[0])
    lines = []
    for step in range(12):
        stamp = (NOW - timedelta(seconds=48 - 4 * step + dice.random() * 3)).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
        lines.append(
            f"{stamp} scored {dice.randrange(1, 9)} panels in {dice.uniform(4, 19):.1f} ms, highest risk {dice.random():.2f}"
        )
    return "\n".join([*lines, ""])


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    clock = SceneClock()
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), clock)
    await server.start()
    client = Client(InProcessTransport(server.handle, UserInfo("admin", ("system:masters",))))
    controllers = Client(InProcessTransport(server.handle, UserInfo("system:coterie-controllers", ("system:masters",))))
    made = Scene(client, controllers, clock)
    await made.everything()
    with scene_logs():
        yield made
    await client.close()
    await controllers.close()
    await server.stop()
    await store.close()
