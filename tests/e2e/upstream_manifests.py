"""Manifests as people who know Kuscia write them: nothing in them is ours. Images that this machine lacks are named too."""

from __future__ import annotations

PSI_IMAGE = """
apiVersion: kuscia.secretflow/v1alpha1
kind: AppImage
metadata:
  name: psi-image
spec:
  configTemplates:
    task-config.conf: |
      {
        "task_id": "{{.TASK_ID}}",
        "task_input_config": "{{.TASK_INPUT_CONFIG}}",
        "task_input_cluster_def": "{{.TASK_CLUSTER_DEFINE}}",
        "allocated_ports": "{{.ALLOCATED_PORTS}}"
      }
  deployTemplates:
  - name: psi
    replicas: 1
    spec:
      containers:
      - name: psi
        command: [sh]
        args: ["-c", "./main --kuscia /root/kuscia/task-config.conf"]
        configVolumeMounts:
        - {mountPath: /root/kuscia/task-config.conf, subPath: task-config.conf}
        ports:
        - {name: psi, protocol: HTTP, scope: Cluster}
        workingDir: /root
      restartPolicy: Never
  image:
    id: abc
    name: nobody-has/psi-anolis8
    sign: abc
    tag: 0.6.0.dev250507
"""

SECRETFLOW_IMAGE = """
apiVersion: kuscia.secretflow/v1alpha1
kind: AppImage
metadata:
  name: secretflow-like
spec:
  configTemplates:
    task-config.conf: |
      {
        "task_id": "{{.TASK_ID}}",
        "task_input_config": "{{.TASK_INPUT_CONFIG}}",
        "task_cluster_def": "{{.TASK_CLUSTER_DEFINE}}",
        "allocated_ports": "{{.ALLOCATED_PORTS}}"
      }
  deployTemplates:
  - name: secretflow
    replicas: 1
    networkPolicy:
      ingresses:
      - from: {roles: [client]}
        ports: [{port: spu}]
    role: server
    spec:
      containers:
      - &engine
        name: secretflow
        command: [sh, -c, 'grep -q "selfPartyIdx" kuscia/task-config.conf && test -n "$KUSCIA_PORT_SPU_NUMBER"']
        args: []
        configVolumeMounts:
        - {mountPath: /tmp/kuscia/task-config.conf, subPath: task-config.conf}
        imagePullPolicy: IfNotPresent
        env: [{name: SPU, value: "1"}]
        ports:
        - {name: spu, protocol: GRPC, scope: Cluster}
        - {name: fed, protocol: GRPC, scope: Cluster}
        - {name: global, protocol: GRPC, scope: Domain}
        - {name: node-manager, protocol: GRPC, scope: Local}
        resources: {limits: {cpu: 100m, memory: 100Mi}, requests: {cpu: 100m, memory: 100Mi}}
        workingDir: /tmp
      restartPolicy: Never
  - name: secretflow-client
    replicas: 1
    role: client
    spec:
      containers: [*engine]
      restartPolicy: Never
  image: {name: coterie/host, tag: latest}
"""

TASK = """
apiVersion: kuscia.secretflow/v1alpha1
kind: KusciaTask
metadata:
  name: {name}
  namespace: cross-domain
spec:
  initiator: alice
  parties:
  - {{appImageRef: secretflow-like, domainID: alice, role: client, minReservedPods: 1}}
  - appImageRef: secretflow-like
    domainID: bob
    role: server
    template:
      replicas: 1
      spec:
        containers:
        - name: secretflow
          workingDir: /tmp
          env: [{{name: EXTRA, value: "yes"}}]
  scheduleConfig:
    lifecycleSeconds: 600
    minReservedMembers: 2
    resourceReservedSeconds: 30
    retryIntervalSeconds: 15
  taskInputConfig: '{{"sf_datasource_config":{{"alice":{{"id":"default-data-source"}}}},"sf_cluster_desc":{{"parties":["alice","bob"]}}}}'
"""

JOB = """
apiVersion: kuscia.secretflow/v1alpha1
kind: KusciaJob
metadata:
  name: {name}
  namespace: cross-domain
spec:
  initiator: alice
  scheduleMode: BestEffort
  maxParallelism: 2
  tasks:
  - alias: first
    taskID: {name}-first
    priority: 100
    taskInputConfig: '{{"sf_storage_config": {{}}}}'
    appImage: {image}
    parties:
    - {{domainID: alice, role: client, resources: {{requests: {{cpu: 200m, memory: 128Mi}}, limits: {{cpu: 200m, memory: 128Mi}}}}}}
    - {{domainID: bob, role: server, bandwidthLimits: [{{destinationID: alice, limitKBps: 1000}}]}}
  - alias: second
    taskID: {name}-second
    dependencies: [first]
    tolerable: false
    priority: 50
    taskInputConfig: '{{}}'
    appImage: {image}
    parties:
    - {{domainID: alice, role: client}}
    - {{domainID: bob, role: server}}
"""
