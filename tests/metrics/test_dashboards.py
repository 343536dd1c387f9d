"""Dashboards and alert rules: what Grafana and Prometheus would say of them, asked of real programs where there are any."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_kit import PROMTOOL, check_rules, needs_prometheus

from coterie.cli.main import BY_NAME
from coterie.dashboards import alerts, grafana, scraping
from coterie.dashboards.boards import BOARDS

DOCUMENTS = {board.name: grafana.document(board) for board in BOARDS}
ALERTS = {alert.name: alert for group in alerts.GROUPS for alert in group.alerts}


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_what_current_grafana_reads(name: str) -> None:
    document = DOCUMENTS[name]
    assert json.loads(json.dumps(document)) == document
    assert document["uid"] == f"coterie-{name}" and len(document["uid"]) <= 40 and 39 <= document["schemaVersion"] <= 41
    ids = [panel["id"] for panel in document["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels(document):
        assert panel["type"] in {"timeseries", "stat", "table", "state-timeline"}, "Grafana has removed the others"
        assert panel["datasource"]["uid"] == "${datasource}"
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert all("@" not in target["expr"] and "$instance" in target["expr"] for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_panels_do_not_lie_over_each_other(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DOCUMENTS[name]["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_each_board_that_was_promised_is_there() -> None:
    assert {"node", "links", "jobs", "bandwidth", "data", "gpus"} <= DOCUMENTS.keys()


@needs_prometheus
def test_each_expression_is_one_that_prometheus_reads(tmp_path: Path) -> None:
    expressions = [
        target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
        for document in DOCUMENTS.values()
        for panel in panels(document)
        for target in panel["targets"]
    ]
    rules = [{"record": f"expression:{number}", "expr": each} for number, each in enumerate(expressions)]
    check_rules(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), tmp_path)


@needs_prometheus
def test_prometheus_reads_the_rules(tmp_path: Path) -> None:
    check_rules(alerts.text(), tmp_path)


def test_each_runbook_line_says_what_to_do() -> None:
    for alert in ALERTS.values():
        for command in re.findall(r"`coterie (\w+)", alert.runbook):
            assert command in BY_NAME, f"{alert.name} names `coterie {command}`"
        assert alert.runbook.endswith(".") and alert.summary.endswith(".")


_ROUTE = '{source="alice", destination="bob", instance="a"}'
_DISK = '{mountpoint="/", instance="a"}'
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "CoterieRouteDown": ({f"coterie_route_up{_ROUTE}": "0x30"}, {f"coterie_route_up{_ROUTE}": "1x30"}),
    "CoterieRouteSlow": (
        {f"coterie_route_rtt_seconds{_ROUTE}": "0.01x1400 0.5x60"},
        {f"coterie_route_rtt_seconds{_ROUTE}": "0.01x1400 0.012x60"},
    ),
    "CoterieRetransmits": (
        {
            f"coterie_route_retransmits_total{_ROUTE}": "0+600x60",
            f"coterie_route_sent_bytes_total{_ROUTE}": "0+6000000x60",
        },
        {
            f"coterie_route_retransmits_total{_ROUTE}": "0+6x60",
            f"coterie_route_sent_bytes_total{_ROUTE}": "0+6000000x60",
        },
    ),
    "CoterieLinkNearlyFull": (
        {'coterie_link_used_bits{peer="bob"}': "95x60", 'coterie_link_capacity_bits{peer="bob"}': "100x60"},
        {'coterie_link_used_bits{peer="bob"}': "50x60", 'coterie_link_capacity_bits{peer="bob"}': "100x60"},
    ),
    "CoterieCertificateExpires": (
        {'coterie_certificate_expiry_timestamp_seconds{name="domain"}': "86400x120"},
        {'coterie_certificate_expiry_timestamp_seconds{name="domain"}': "9000000x120"},
    ),
    "CoterieTokenNotRenewed": (
        {f"coterie_token_expiry_timestamp_seconds{_ROUTE}": "0x60"},
        {f"coterie_token_expiry_timestamp_seconds{_ROUTE}": "900000x60"},
    ),
    "CoterieJobsWait": (
        {'coterie_pending{reason="NoNode"}': "1x60"},
        {'coterie_pending{reason="NoNode"}': "1 0 1 0 0 1x3 0x60"},
    ),
    "CoterieJobsFail": (
        {'kuscia_job_result_stats{result="failed"}': "0+1x60", 'kuscia_job_result_stats{result="succeeded"}': "0+1x60"},
        {
            'kuscia_job_result_stats{result="failed"}': "0x55 1x60",
            'kuscia_job_result_stats{result="succeeded"}': "0x60",
        },
    ),
    "CoterieTaskStalled": ({"coterie_task_stalls_total": "0x55 1x4"}, {"coterie_task_stalls_total": "3x60"}),
    "CoterieGrantRefusals": (
        {'coterie_grant_refusals_total{partner="bob"}': "0+5x60"},
        {'coterie_grant_refusals_total{partner="bob"}': "0+0.1x60"},
    ),
    "CoterieNodeDown": ({'up{job="coterie"}': "0x60"}, {'up{job="coterie"}': "1x60"}),
    "CoterieQueueStuck": (
        {'coterie_queue_depth{controller="x"}': "3x60"},
        {'coterie_queue_depth{controller="x"}': "3 0x60"},
    ),
    "CoterieReconcileErrors": (
        {'coterie_reconcile_errors_total{controller="x"}': "0+60x60"},
        {'coterie_reconcile_errors_total{controller="x"}': "7x60"},
    ),
    "CoterieLoopLag": (
        {
            'coterie_loop_lag_seconds_bucket{le="0.1"}': "0+10x60",
            'coterie_loop_lag_seconds_bucket{le="1"}': "0+600x60",
            'coterie_loop_lag_seconds_bucket{le="+Inf"}': "0+600x60",
        },
        {
            'coterie_loop_lag_seconds_bucket{le="0.1"}': "0+600x60",
            'coterie_loop_lag_seconds_bucket{le="1"}': "0+600x60",
            'coterie_loop_lag_seconds_bucket{le="+Inf"}': "0+600x60",
        },
    ),
    "CoterieSourceDown": ({'coterie_source_up{source="envoy"}': "0x60"}, {'coterie_source_up{source="envoy"}': "1x60"}),
    "CoterieSeriesDropped": (
        {'coterie_series_dropped_total{family="x"}': "0+5x60"},
        {'coterie_series_dropped_total{family="x"}': "7x60"},
    ),
    "CoterieDiskNearlyFull": (
        {f"node_filesystem_avail_bytes{_DISK}": "5x60", f"node_filesystem_size_bytes{_DISK}": "100x60"},
        {f"node_filesystem_avail_bytes{_DISK}": "50x60", f"node_filesystem_size_bytes{_DISK}": "100x60"},
    ),
    "CoterieInodesNearlyUsed": (
        {f"node_filesystem_files_free{_DISK}": "5x60", f"node_filesystem_files{_DISK}": "100x60"},
        # Some file systems have no inodes to count.
        {f"node_filesystem_files_free{_DISK}": "0x60", f"node_filesystem_files{_DISK}": "0x60"},
    ),
    "CoterieOomKills": ({"node_vmstat_oom_kill": "0x55 1x4"}, {"node_vmstat_oom_kill": "7x60"}),
    "CoterieFilesNearlyUsed": (
        {"process_open_fds": "90x60", "process_max_fds": "100x60"},
        {"process_open_fds": "9x60", "process_max_fds": "100x60"},
    ),
    "CoterieGpuError": ({'DCGM_FI_DEV_XID_ERRORS{gpu="0"}': "79x60"}, {'DCGM_FI_DEV_XID_ERRORS{gpu="0"}': "0x60"}),
}
"""By alert: series that must fire it, and series that must not. One value a minute."""


def test_each_alert_has_a_case() -> None:
    assert CASES.keys() == ALERTS.keys()


@needs_prometheus
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(alerts.text())
    tests = []
    for name, (bad, good) in CASES.items():
        for series, fires in ((bad, True), (good, False)):
            minutes = max(_length(values) for values in series.values()) - 2
            # ALERTS has a row for each alert that is firing: its labels do not matter here.
            tests.append(
                {
                    "name": f"{name} {'fires' if fires else 'is silent'}",
                    "interval": "1m",
                    "input_series": [{"series": which, "values": values} for which, values in series.items()],
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                            "eval_time": f"{minutes}m",
                            "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                        }
                    ],
                }
            )
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _length(values: str) -> int:
    return sum(int(part.partition("x")[2] or 0) + 1 for part in values.split())


@needs_prometheus
def test_prometheus_reads_the_scrape_configuration(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(alerts.text())
    (tmp_path / "token").write_text("a-token")
    text = scraping.text(["10.0.0.5:9091"], str(tmp_path / "token"), "rules.yml")
    (tmp_path / "prometheus.yml").write_text(text)
    done = subprocess.run(
        [PROMTOOL, "check", "config", "prometheus.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
