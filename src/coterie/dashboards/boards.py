"""The dashboards: what an operator looks at, from the machine up to the jobs."""

from __future__ import annotations

from typing import Final

from coterie.dashboards.grafana import Board, PanelQuery, PanelThreshold, Section, graph, stat, states, table

_WARN_AT_80: Final = (PanelThreshold(0.8, "orange"), PanelThreshold(0.9, "red"))
_ANY_IS_BAD: Final = (PanelThreshold(1, "red"),)
_PER: Final = "[$__rate_interval]"

NODE = Board(
    "node",
    "Coterie: node",
    "The machines: CPU, memory, disk, network, sockets, and the node's own process.",
    [
        Section(
            "Now",
            [
                stat(
                    "CPU",
                    f'1 - avg(rate(node_cpu_seconds_total{{@,mode="idle"}}{_PER}))',
                    unit="percentunit",
                    thresholds=_WARN_AT_80,
                ),
                stat(
                    "Memory",
                    "1 - sum(node_memory_MemAvailable_bytes{@}) / sum(node_memory_MemTotal_bytes{@})",
                    unit="percentunit",
                    thresholds=_WARN_AT_80,
                ),
                stat(
                    "Fullest disk",
                    "max(1 - node_filesystem_avail_bytes{@} / node_filesystem_size_bytes{@})",
                    unit="percentunit",
                    thresholds=_WARN_AT_80,
                ),
                stat("Load, 5 min", "sum(node_load5{@})"),
                stat("Up since", "time() - max(node_boot_time_seconds{@})", unit="s"),
                stat(
                    "Open files",
                    "max(process_open_fds{@} / process_max_fds{@})",
                    unit="percentunit",
                    thresholds=_WARN_AT_80,
                ),
            ],
        ),
        Section(
            "Machine",
            [
                graph(
                    "CPU by mode",
                    PanelQuery(f"sum by (mode) (rate(node_cpu_seconds_total{{@}}{_PER}))", "{{mode}}"),
                    stacked=True,
                ),
                graph(
                    "Load",
                    PanelQuery("node_load1{@}", "{{instance}} 1 min"),
                    PanelQuery("node_load5{@}", "{{instance}} 5 min"),
                    PanelQuery("node_load15{@}", "{{instance}} 15 min"),
                ),
                graph(
                    "Memory",
                    PanelQuery("node_memory_MemTotal_bytes{@}", "{{instance}} total"),
                    PanelQuery("node_memory_MemAvailable_bytes{@}", "{{instance}} available"),
                    PanelQuery("node_memory_Cached_bytes{@}", "{{instance}} cached"),
                    PanelQuery("node_memory_Buffers_bytes{@}", "{{instance}} buffers"),
                    PanelQuery("node_memory_MemFree_bytes{@}", "{{instance}} free"),
                    unit="bytes",
                ),
                graph(
                    "Disk space in use",
                    PanelQuery(
                        "1 - node_filesystem_avail_bytes{@} / node_filesystem_size_bytes{@}",
                        "{{instance}} {{mountpoint}}",
                    ),
                    unit="percentunit",
                    thresholds=_WARN_AT_80,
                    highest=1,
                ),
                graph(
                    "Inodes in use",
                    PanelQuery(
                        "1 - node_filesystem_files_free{@} / node_filesystem_files{@}", "{{instance}} {{mountpoint}}"
                    ),
                    unit="percentunit",
                    highest=1,
                ),
                graph(
                    "Disk throughput",
                    PanelQuery(f"rate(node_disk_read_bytes_total{{@}}{_PER})", "{{instance}} {{device}} read"),
                    PanelQuery(f"rate(node_disk_written_bytes_total{{@}}{_PER})", "{{instance}} {{device}} written"),
                    unit="Bps",
                ),
                graph(
                    "Disk operations",
                    PanelQuery(f"rate(node_disk_reads_completed_total{{@}}{_PER})", "{{instance}} {{device}} reads"),
                    PanelQuery(f"rate(node_disk_writes_completed_total{{@}}{_PER})", "{{instance}} {{device}} writes"),
                    unit="ops",
                ),
                graph(
                    "Disk busy",
                    PanelQuery(f"rate(node_disk_io_time_seconds_total{{@}}{_PER})", "{{instance}} {{device}} busy"),
                    PanelQuery("node_disk_io_now{@}", "{{instance}} {{device}} in flight"),
                    about="Share of time in which the device had work to do, and requests in flight.",
                ),
                graph(
                    "Time of a disk operation",
                    PanelQuery(
                        f"rate(node_disk_read_time_seconds_total{{@}}{_PER}) / (rate(node_disk_reads_completed_total{{@}}{_PER}) > 0)",
                        "{{instance}} {{device}} read",
                    ),
                    PanelQuery(
                        f"rate(node_disk_write_time_seconds_total{{@}}{_PER}) / (rate(node_disk_writes_completed_total{{@}}{_PER}) > 0)",
                        "{{instance}} {{device}} write",
                    ),
                    unit="s",
                ),
                graph(
                    "Network",
                    PanelQuery(
                        f"rate(node_network_receive_bytes_total{{@}}{_PER}) * 8", "{{instance}} {{device}} received"
                    ),
                    PanelQuery(
                        f"rate(node_network_transmit_bytes_total{{@}}{_PER}) * 8", "{{instance}} {{device}} sent"
                    ),
                    unit="bps",
                ),
                graph(
                    "Packets",
                    PanelQuery(
                        f"rate(node_network_receive_packets_total{{@}}{_PER})", "{{instance}} {{device}} received"
                    ),
                    PanelQuery(f"rate(node_network_transmit_packets_total{{@}}{_PER})", "{{instance}} {{device}} sent"),
                    unit="pps",
                ),
                graph(
                    "TCP",
                    PanelQuery("node_netstat_Tcp_CurrEstab{@}", "{{instance}} established"),
                    PanelQuery("node_sockstat_TCP_tw{@}", "{{instance}} time-wait"),
                    PanelQuery("node_sockstat_TCP_inuse{@}", "{{instance}} in use"),
                    PanelQuery("node_sockstat_TCP_alloc{@}", "{{instance}} allocated"),
                ),
                graph(
                    "New TCP connections",
                    PanelQuery(f"rate(node_netstat_Tcp_ActiveOpens{{@}}{_PER})", "{{instance}} made"),
                    PanelQuery(f"rate(node_netstat_Tcp_PassiveOpens{{@}}{_PER})", "{{instance}} accepted"),
                    unit="cps",
                ),
                graph(
                    "Open files",
                    PanelQuery("process_open_fds{@}", "{{instance}} process"),
                    PanelQuery("node_filefd_allocated{@}", "{{instance}} machine"),
                ),
            ],
        ),
        Section(
            "Pods",
            [
                graph(
                    "CPU of pods",
                    PanelQuery(
                        f"topk(20, sum by (namespace, pod) (rate(container_cpu_usage_seconds_total{{@}}{_PER})))",
                        "{{namespace}}/{{pod}}",
                    ),
                    unit="cores",
                ),
                graph(
                    "Memory of pods",
                    PanelQuery(
                        "topk(20, sum by (namespace, pod) (container_memory_working_set_bytes{@}))",
                        "{{namespace}}/{{pod}}",
                    ),
                    unit="bytes",
                ),
                graph(
                    "Network of pods",
                    PanelQuery(
                        f"topk(20, sum by (namespace, pod) (rate(container_network_transmit_bytes_total{{@}}{_PER}))) * 8",
                        "{{namespace}}/{{pod}} sent",
                    ),
                    PanelQuery(
                        f"topk(20, sum by (namespace, pod) (rate(container_network_receive_bytes_total{{@}}{_PER}))) * 8",
                        "{{namespace}}/{{pod}} received",
                    ),
                    unit="bps",
                ),
                graph(
                    "Restarts",
                    PanelQuery("sum by (namespace, pod) (coterie_container_restarts{@}) > 0", "{{namespace}}/{{pod}}"),
                ),
            ],
        ),
    ],
)

LINKS = Board(
    "links",
    "Coterie: gateways and links",
    "Routes to partners: are they up, how fast, how much, how healthy.",
    [
        Section(
            "Now",
            [
                stat("Routes down", "count(coterie_route_up{@} == 0) or vector(0)", thresholds=_ANY_IS_BAD),
                stat("Slowest round trip", "max(coterie_route_rtt_seconds{@})", unit="s"),
                stat("Sent", f"sum(rate(coterie_route_sent_bytes_total{{@}}{_PER})) * 8", unit="bps"),
                stat("Received", f"sum(rate(coterie_route_received_bytes_total{{@}}{_PER})) * 8", unit="bps"),
                stat(
                    "First certificate ends in",
                    "min(coterie_certificate_expiry_timestamp_seconds{@}) - time()",
                    unit="s",
                ),
                stat("First token ends in", "min(coterie_token_expiry_timestamp_seconds{@}) - time()", unit="s"),
            ],
        ),
        Section(
            "Routes",
            [
                states(
                    "Up",
                    PanelQuery("coterie_route_up{@}", "{{source}} to {{destination}}"),
                    width=24,
                    thresholds=[PanelThreshold(0, "red"), PanelThreshold(1, "green")],
                ),
                graph(
                    "Round trip", PanelQuery("coterie_route_rtt_seconds{@}", "{{source}} to {{destination}}"), unit="s"
                ),
                graph(
                    "Retransmits per second",
                    PanelQuery(f"rate(coterie_route_retransmits_total{{@}}{_PER})", "{{source}} to {{destination}}"),
                ),
                graph(
                    "Sent",
                    PanelQuery(f"rate(coterie_route_sent_bytes_total{{@}}{_PER}) * 8", "{{source}} to {{destination}}"),
                    unit="bps",
                ),
                graph(
                    "Received",
                    PanelQuery(
                        f"rate(coterie_route_received_bytes_total{{@}}{_PER}) * 8", "{{source}} to {{destination}}"
                    ),
                    unit="bps",
                ),
            ],
        ),
        Section(
            "Gateway (Envoy)",
            [
                graph(
                    "Requests to partners",
                    PanelQuery(f"rate(envoy_cluster_upstream_rq_total{{@}}{_PER})", "{{envoy_cluster_name}}"),
                    unit="reqps",
                ),
                graph(
                    "Bytes to and from partners",
                    PanelQuery(
                        f"rate(envoy_cluster_upstream_cx_tx_bytes_total{{@}}{_PER})", "{{envoy_cluster_name}} sent"
                    ),
                    PanelQuery(
                        f"rate(envoy_cluster_upstream_cx_rx_bytes_total{{@}}{_PER})", "{{envoy_cluster_name}} received"
                    ),
                    unit="Bps",
                ),
                graph(
                    "New connections",
                    PanelQuery(f"rate(envoy_cluster_upstream_cx_total{{@}}{_PER})", "{{envoy_cluster_name}}"),
                    unit="cps",
                ),
                graph(
                    "Failures",
                    PanelQuery(
                        f"rate(envoy_cluster_upstream_cx_connect_fail{{@}}{_PER})", "{{envoy_cluster_name}} connect"
                    ),
                    PanelQuery(
                        f"rate(envoy_cluster_upstream_cx_connect_timeout{{@}}{_PER})",
                        "{{envoy_cluster_name}} connect time-out",
                    ),
                    PanelQuery(
                        f"rate(envoy_cluster_upstream_rq_timeout{{@}}{_PER})", "{{envoy_cluster_name}} request time-out"
                    ),
                ),
                graph(
                    "Members",
                    PanelQuery("envoy_cluster_membership_total{@}", "{{envoy_cluster_name}} all"),
                    PanelQuery("envoy_cluster_membership_healthy{@}", "{{envoy_cluster_name}} healthy"),
                ),
                graph(
                    "Sockets per partner",
                    PanelQuery("ss_total_connections{@}", "{{remote_domain}}"),
                    about="As Kuscia's exporter names them.",
                ),
                graph("Round trip of sockets", PanelQuery("ss_rtt{@}", "{{remote_domain}}"), unit="ms"),
                graph(
                    "Retransmits of sockets",
                    PanelQuery("ss_retrans{@}", "{{remote_domain}}"),
                    PanelQuery("ss_retran_rate{@}", "{{remote_domain}} per connection"),
                ),
            ],
        ),
    ],
)

JOBS = Board(
    "jobs",
    "Coterie: jobs",
    "Jobs and tasks: how many, what they wait for, where the time goes, what fails.",
    [
        Section(
            "Now",
            [
                stat("Running", 'sum(coterie_jobs{@,phase="Running"}) or vector(0)'),
                stat("Waiting", "sum(coterie_pending{@}) or vector(0)", thresholds=[PanelThreshold(1, "orange")]),
                stat(
                    "Failed, 1 h",
                    'sum(increase(kuscia_job_result_stats{@,result="failed"}[1h])) or vector(0)',
                    thresholds=_ANY_IS_BAD,
                ),
                stat("Succeeded, 1 h", 'sum(increase(kuscia_job_result_stats{@,result="succeeded"}[1h])) or vector(0)'),
                stat(
                    "Stalled, 1 h",
                    "sum(increase(coterie_task_stalls_total{@}[1h])) or vector(0)",
                    thresholds=_ANY_IS_BAD,
                ),
                stat("Longest wait", 'max(coterie_job_oldest_seconds{@,phase!="Running"}) or vector(0)', unit="s"),
            ],
        ),
        Section(
            "Jobs and tasks",
            [
                graph("Jobs by phase", PanelQuery("sum by (phase) (coterie_jobs{@})", "{{phase}}"), stacked=True),
                graph("Tasks by phase", PanelQuery("sum by (phase) (coterie_tasks{@})", "{{phase}}"), stacked=True),
                graph(
                    "Waiting, by reason", PanelQuery("sum by (reason) (coterie_pending{@})", "{{reason}}"), stacked=True
                ),
                graph(
                    "Results per hour",
                    PanelQuery("sum by (result) (increase(kuscia_job_result_stats{@}[1h]))", "jobs {{result}}"),
                    PanelQuery("sum by (result) (increase(kuscia_task_result_stats{@}[1h]))", "tasks {{result}}"),
                ),
                graph(
                    "Where tasks spend their time, median",
                    PanelQuery(
                        f"histogram_quantile(0.5, sum by (le, stage) (rate(coterie_task_stage_seconds_bucket{{@}}{_PER})))",
                        "{{stage}}",
                    ),
                    unit="s",
                    stacked=True,
                ),
                graph(
                    "Where tasks spend their time, slowest of a hundred",
                    PanelQuery(
                        f"histogram_quantile(0.99, sum by (le, stage) (rate(coterie_task_stage_seconds_bucket{{@}}{_PER})))",
                        "{{stage}}",
                    ),
                    unit="s",
                ),
            ],
        ),
        Section(
            "Tasks on these nodes",
            [
                graph(
                    "CPU by task",
                    PanelQuery(
                        f"sum by (task, party) (sum by (namespace, pod) (rate(container_cpu_usage_seconds_total{{@}}{_PER})) "
                        '* on (namespace, pod) group_left (task, party) max by (namespace, pod, task, party) (coterie_pod_info{@,task!=""}))',
                        "{{task}} {{party}}",
                    ),
                    unit="cores",
                ),
                graph(
                    "Memory by task",
                    PanelQuery(
                        "sum by (task, party) (sum by (namespace, pod) (container_memory_working_set_bytes{@}) "
                        '* on (namespace, pod) group_left (task, party) max by (namespace, pod, task, party) (coterie_pod_info{@,task!=""}))',
                        "{{task}} {{party}}",
                    ),
                    unit="bytes",
                ),
                table("Engine pods", 'coterie_pod_info{@,task!=""}', width=24),
            ],
        ),
    ],
)

BANDWIDTH = Board(
    "bandwidth",
    "Coterie: bandwidth",
    "What links and nodes can carry, what tasks have reserved, what they use.",
    [
        Section(
            "Now",
            [
                stat("Capacity of nodes", "sum(node_bandwidth_total_bits{@})", unit="bps", width=6),
                stat("Free on nodes", "sum(node_bandwidth_available_bits{@})", unit="bps", width=6),
                stat("Reserved on links", "sum(coterie_link_reserved_bits{@}) or vector(0)", unit="bps", width=6),
                stat("Used on links", "sum(coterie_link_used_bits{@}) or vector(0)", unit="bps", width=6),
            ],
        ),
        Section(
            "Nodes and links",
            [
                graph(
                    "Nodes",
                    PanelQuery("node_bandwidth_total_bits{@}", "{{node}} total"),
                    PanelQuery("node_bandwidth_available_bits{@}", "{{node}} free"),
                    unit="bps",
                ),
                graph(
                    "Links",
                    PanelQuery("coterie_link_capacity_bits{@}", "{{peer}} capacity"),
                    PanelQuery("coterie_link_reserved_bits{@}", "{{peer}} reserved"),
                    PanelQuery("coterie_link_used_bits{@}", "{{peer}} used"),
                    unit="bps",
                ),
            ],
        ),
        Section(
            "Tasks",
            [
                graph(
                    "Used by task", PanelQuery("coterie_task_bandwidth_used_bits{@}", "{{task}} {{peer}}"), unit="bps"
                ),
                graph(
                    "Reserved by task",
                    PanelQuery("coterie_task_bandwidth_reserved_bits{@}", "{{task}} {{peer}}"),
                    unit="bps",
                ),
            ],
        ),
    ],
)

DATA = Board(
    "data",
    "Coterie: data mesh",
    "Which partners used which data, how much, and what was refused.",
    [
        Section(
            "Grants",
            [
                stat("Uses, 1 h", "sum(increase(coterie_grant_uses_total{@}[1h])) or vector(0)", width=8),
                stat(
                    "Refusals, 1 h",
                    "sum(increase(coterie_grant_refusals_total{@}[1h])) or vector(0)",
                    width=8,
                    thresholds=_ANY_IS_BAD,
                ),
                stat("Rows read, 1 h", "sum(increase(coterie_datamesh_rows_total{@}[1h])) or vector(0)", width=8),
                graph(
                    "Uses by partner",
                    PanelQuery(f"sum by (partner) (rate(coterie_grant_uses_total{{@}}{_PER}))", "{{partner}}"),
                ),
                graph(
                    "Refusals by partner",
                    PanelQuery(f"sum by (partner) (rate(coterie_grant_refusals_total{{@}}{_PER}))", "{{partner}}"),
                ),
            ],
        ),
        Section(
            "Traffic",
            [
                graph(
                    "Rows",
                    PanelQuery(f"sum by (direction) (rate(coterie_datamesh_rows_total{{@}}{_PER}))", "{{direction}}"),
                ),
                graph(
                    "Bytes",
                    PanelQuery(f"sum by (direction) (rate(coterie_datamesh_bytes_total{{@}}{_PER}))", "{{direction}}"),
                    unit="Bps",
                ),
            ],
        ),
    ],
)

GPUS = Board(
    "gpus",
    "Coterie: GPUs",
    "GPUs and the pods that have them, by the names of NVIDIA's DCGM exporter.",
    [
        Section(
            "GPUs",
            [
                graph("Busy", PanelQuery("DCGM_FI_DEV_GPU_UTIL{@}", "{{gpu}} {{pod}}"), unit="percent", highest=100),
                graph("Memory in use", PanelQuery("DCGM_FI_DEV_FB_USED{@}", "{{gpu}} {{pod}}"), unit="decmbytes"),
                graph("Memory free", PanelQuery("DCGM_FI_DEV_FB_FREE{@}", "{{gpu}}"), unit="decmbytes"),
                graph("Power", PanelQuery("DCGM_FI_DEV_POWER_USAGE{@}", "{{gpu}}"), unit="watt"),
                graph("Temperature", PanelQuery("DCGM_FI_DEV_GPU_TEMP{@}", "{{gpu}}"), unit="celsius"),
                graph(
                    "Errors of the driver (Xid)",
                    PanelQuery("DCGM_FI_DEV_XID_ERRORS{@}", "{{gpu}}"),
                    thresholds=_ANY_IS_BAD,
                ),
            ],
        )
    ],
)

CONTROL_PLANE = Board(
    "control-plane",
    "Coterie: control plane",
    "API server, store, controllers, scheduler, KusciaAPI, and the metrics page itself.",
    [
        Section(
            "API server and store",
            [
                graph(
                    "Requests",
                    PanelQuery(f"sum by (verb) (rate(apiserver_request_total{{@}}{_PER}))", "{{verb}}"),
                    unit="reqps",
                ),
                graph(
                    "Failed requests",
                    PanelQuery(f'sum by (code) (rate(apiserver_request_total{{@,code=~"[45].."}}{_PER}))', "{{code}}"),
                    unit="reqps",
                ),
                graph(
                    "Time of requests, slowest of a hundred",
                    PanelQuery(
                        f"histogram_quantile(0.99, sum by (le, verb) (rate(apiserver_request_duration_seconds_bucket{{@}}{_PER})))",
                        "{{verb}}",
                    ),
                    unit="s",
                ),
                graph(
                    "Lag of the event loop",
                    PanelQuery(
                        f"histogram_quantile(0.99, sum by (le, instance) (rate(coterie_loop_lag_seconds_bucket{{@}}{_PER})))",
                        "{{instance}}, slowest of a hundred",
                    ),
                    PanelQuery("coterie_loop_lag_max_seconds{@}", "{{instance}}, longest"),
                    unit="s",
                ),
            ],
        ),
        Section(
            "Controllers",
            [
                graph("Queues", PanelQuery("coterie_queue_depth{@}", "{{controller}}")),
                graph(
                    "Errors",
                    PanelQuery(
                        f"sum by (controller) (rate(coterie_reconcile_errors_total{{@}}{_PER}))", "{{controller}}"
                    ),
                    unit="eps",
                ),
                graph(
                    "Mean time of a reconcile",
                    PanelQuery(
                        f"sum by (controller) (rate(coterie_reconcile_seconds_sum{{@}}{_PER})) / "
                        f"(sum by (controller) (rate(coterie_reconcile_seconds_count{{@}}{_PER})) > 0)",
                        "{{controller}}",
                    ),
                    unit="s",
                ),
                graph(
                    "Queues, by Kuscia's names",
                    PanelQuery("kuscia_job_worker_queue_size{@}", "jobs"),
                    PanelQuery("kuscia_task_worker_queue_size{@}", "tasks"),
                    PanelQuery("domain_worker_queue_size{@}", "domains"),
                    PanelQuery("task_resource_group_worker_queue_size{@}", "task resource groups"),
                ),
            ],
        ),
        Section(
            "KusciaAPI",
            [
                graph(
                    "Requests",
                    PanelQuery(f"sum by (url, code) (rate(gin_requests_total{{@}}{_PER}))", "{{url}} {{code}}"),
                    unit="reqps",
                ),
                graph(
                    "Mean time",
                    PanelQuery(
                        f"sum by (url) (rate(gin_request_duration_seconds_sum{{@}}{_PER})) / "
                        f"(sum by (url) (rate(gin_request_duration_seconds_count{{@}}{_PER})) > 0)",
                        "{{url}}",
                    ),
                    unit="s",
                ),
            ],
        ),
        Section(
            "This page",
            [
                states(
                    "Sources",
                    PanelQuery("coterie_source_up{@}", "{{instance}} {{source}}"),
                    thresholds=[PanelThreshold(0, "red"), PanelThreshold(1, "green")],
                ),
                graph("Time of sources", PanelQuery("coterie_source_seconds{@}", "{{instance}} {{source}}"), unit="s"),
                table("Versions", "coterie_build_info{@}", width=24),
            ],
        ),
    ],
)

BOARDS: Final = (NODE, LINKS, JOBS, BANDWIDTH, DATA, GPUS, CONTROL_PLANE)
