"""Alert rules for Prometheus. Each one says what is wrong and which command shows more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml

Severity = Literal["warning", "critical"]
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expression: str
    lasting: str
    """How long it must be true."""
    severity: Severity
    summary: str
    runbook: str
    """What to do, with the command that shows more."""


@dataclass(frozen=True, slots=True)
class AlertGroup:
    name: str
    alerts: tuple[Alert, ...]


NETWORK = AlertGroup(
    "coterie-network",
    (
        Alert(
            "CoterieRouteDown",
            "coterie_route_up == 0",
            "2m",
            "critical",
            "The route from {{ $labels.source }} to {{ $labels.destination }} is down.",
            "`coterie route check {{ $labels.source }} {{ $labels.destination }}` says which step fails and what to do.",
        ),
        Alert(
            "CoterieRouteSlow",
            "coterie_route_rtt_seconds > 3 * avg_over_time(coterie_route_rtt_seconds[1d]) and coterie_route_rtt_seconds > 0.02",
            "10m",
            "warning",
            "Round trips from {{ $labels.source }} to {{ $labels.destination }} take three times as long as on average today.",
            "`coterie diagnose network {{ $labels.source }} {{ $labels.destination }}` measures the path.",
        ),
        Alert(
            "CoterieRetransmits",
            "rate(coterie_route_retransmits_total[5m]) * 1448 > 0.02 * rate(coterie_route_sent_bytes_total[5m]) "
            "and rate(coterie_route_sent_bytes_total[5m]) > 10000",
            "10m",
            "warning",
            "More than 2 % of what {{ $labels.source }} sends to {{ $labels.destination }} is sent again.",
            "The path loses packets: `coterie diagnose network {{ $labels.source }} {{ $labels.destination }}`, then ask the network's operator.",
        ),
        Alert(
            "CoterieLinkNearlyFull",
            "coterie_link_used_bits > 0.9 * coterie_link_capacity_bits",
            "10m",
            "warning",
            "The link to {{ $labels.peer }} carries more than 90 % of its capacity.",
            "`coterie job ls` shows what runs; `coterie job limit` lowers the limit of a task.",
        ),
        Alert(
            "CoterieCertificateExpires",
            f"coterie_certificate_expiry_timestamp_seconds - time() < {14 * _DAY}",
            "1h",
            "warning",
            "The certificate {{ $labels.name }} ends within 14 days.",
            "`coterie status` shows certificates; restart the node to renew its own, `coterie domain cert` replaces a partner's.",
        ),
        Alert(
            "CoterieTokenNotRenewed",
            "coterie_token_expiry_timestamp_seconds - time() < 0",
            "5m",
            "critical",
            "The token of the route from {{ $labels.source }} to {{ $labels.destination }} has ended and was not renewed.",
            "`coterie route check {{ $labels.source }} {{ $labels.destination }}`: the handshake fails; check both clocks.",
        ),
    ),
)

JOBS = AlertGroup(
    "coterie-jobs",
    (
        Alert(
            "CoterieJobsWait",
            "coterie_pending > 0",
            "10m",
            "warning",
            "{{ $value }} tasks have been waiting for 10 minutes: {{ $labels.reason }}.",
            "`coterie job ls` names them; `coterie job show JOB` says what each waits for and what to do.",
        ),
        Alert(
            "CoterieJobsFail",
            'sum by (instance) (increase(kuscia_job_result_stats{result="failed"}[1h])) > 0.2 * '
            "sum by (instance) (increase(kuscia_job_result_stats[1h])) "
            "and sum by (instance) (increase(kuscia_job_result_stats[1h])) >= 5",
            "5m",
            "warning",
            "More than 20 % of the jobs of the last hour failed.",
            "`coterie job ls` lists them, `coterie job bundle JOB` gathers all that is known of one.",
        ),
        Alert(
            "CoterieTaskStalled",
            "increase(coterie_task_stalls_total[15m]) > 0",
            "0m",
            "warning",
            "A running task has neither computed nor sent anything for a while.",
            "`coterie job show JOB` names them; set `scheduleConfig.stallSeconds` to end or restart such tasks.",
        ),
        Alert(
            "CoterieGrantRefusals",
            "sum by (instance, partner) (increase(coterie_grant_refusals_total[15m])) > 10",
            "5m",
            "warning",
            "{{ $labels.partner }} was refused data {{ $value }} times in 15 minutes.",
            "`coterie data uses` shows which table and why; grant it, or ask the partner what it wants.",
        ),
    ),
)

CONTROL_PLANE = AlertGroup(
    "coterie-control-plane",
    (
        Alert(
            "CoterieNodeDown",
            'up{job="coterie"} == 0',
            "2m",
            "critical",
            "The node {{ $labels.instance }} does not answer.",
            "`coterie status` on its machine; the log of the node says why it stopped.",
        ),
        Alert(
            "CoterieQueueStuck",
            "min_over_time(coterie_queue_depth[10m]) > 0",
            "1m",
            "warning",
            "The queue of the controller {{ $labels.controller }} has not been empty for 10 minutes.",
            "`coterie get events` and the node's log show what it does over and over.",
        ),
        Alert(
            "CoterieReconcileErrors",
            "rate(coterie_reconcile_errors_total[10m]) > 0.1",
            "10m",
            "warning",
            "The controller {{ $labels.controller }} fails again and again.",
            "The node's log has the error: look for the controller's name at level error.",
        ),
        Alert(
            "CoterieLoopLag",
            "histogram_quantile(0.99, sum by (instance, le) (rate(coterie_loop_lag_seconds_bucket[5m]))) > 0.25",
            "5m",
            "warning",
            "The node {{ $labels.instance }} is late: one of a hundred steps waits {{ $value }} s.",
            "The machine has too little CPU, or a part computes for too long: `coterie top node`, `coterie diagnose bundle`.",
        ),
        Alert(
            "CoterieSourceDown",
            "coterie_source_up == 0",
            "10m",
            "warning",
            "The metrics of {{ $labels.source }} are missing.",
            "The node's log says why the source failed; other metrics are not affected.",
        ),
        Alert(
            "CoterieSeriesDropped",
            "increase(coterie_series_dropped_total[10m]) > 0",
            "10m",
            "warning",
            "The family {{ $labels.family }} has more rows than a page may have; some are missing.",
            "Remove finished jobs and pods, or take the numbers from the objects: `coterie get pods -A`.",
        ),
    ),
)

MACHINE = AlertGroup(
    "coterie-machine",
    (
        Alert(
            "CoterieDiskNearlyFull",
            "node_filesystem_avail_bytes < 0.1 * node_filesystem_size_bytes",
            "5m",
            "critical",
            "{{ $labels.mountpoint }} of {{ $labels.instance }} has less than 10 % left.",
            "`coterie image gc` frees images; then look for large logs below the domain's root.",
        ),
        Alert(
            "CoterieInodesNearlyUsed",
            "node_filesystem_files_free < 0.1 * node_filesystem_files",
            "5m",
            "warning",
            "{{ $labels.mountpoint }} of {{ $labels.instance }} has less than 10 % of its inodes left.",
            "`coterie image gc` frees images; many small files are elsewhere otherwise.",
        ),
        Alert(
            "CoterieOomKills",
            "increase(node_vmstat_oom_kill[10m]) > 0",
            "0m",
            "warning",
            "The kernel killed a process of {{ $labels.instance }} for want of memory.",
            "`coterie get pods -A` shows OOMKilled pods; give them more memory, or the machine.",
        ),
        Alert(
            "CoterieFilesNearlyUsed",
            "process_open_fds > 0.8 * process_max_fds",
            "5m",
            "warning",
            "The node {{ $labels.instance }} has more than 80 % of its files open.",
            "Raise LimitNOFILE of the service; `coterie diagnose bundle` shows which connections are open.",
        ),
        Alert(
            "CoterieGpuError",
            "DCGM_FI_DEV_XID_ERRORS > 0",
            "0m",
            "critical",
            "GPU {{ $labels.gpu }} of {{ $labels.instance }} reported error {{ $value }}.",
            "`coterie node describe NODE`: the device is taken out of use; reset it or restart the machine.",
        ),
    ),
)

GROUPS: Final = (NETWORK, JOBS, CONTROL_PLANE, MACHINE)


def document() -> dict[str, Any]:
    """As `rule_files` of Prometheus wants it."""
    return {"groups": [{"name": group.name, "rules": [_rule(alert) for alert in group.alerts]} for group in GROUPS]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook": alert.runbook},
    }


def text() -> str:
    head = "# Alert rules of Coterie, written by `coterie metrics rules`. Runbook lines name the command that shows more.\n"
    return head + yaml.safe_dump(document(), sort_keys=False, width=160)
