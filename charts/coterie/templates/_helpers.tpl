{{- define "coterie.name" -}}
{{- printf "%s" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "coterie.labels" -}}
app.kubernetes.io/name: coterie
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "coterie.selector" -}}
app.kubernetes.io/name: coterie
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "coterie.installed" -}}
{{- if and (ne .Values.mode "lite") (eq .Values.controlPlane "kubernetes") }}true{{ end -}}
{{- end -}}

{{- define "coterie.account" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}
{{- else if include "coterie.installed" . }}coterie
{{- else }}{{ include "coterie.name" . }}{{ end -}}
{{- end -}}

{{- define "coterie.runs-pods" -}}
{{- if and (ne .Values.mode "master") (eq .Values.runtime "runk") }}true{{ end -}}
{{- end -}}

{{- define "coterie.secret" -}}
{{- .Values.existingSecret | default (printf "%s-config" (include "coterie.name" .)) -}}
{{- end -}}

{{- /* What cannot work is refused before anything is rendered. */ -}}
{{- define "coterie.check" -}}
{{- if not (has .Values.mode (list "master" "lite" "autonomy")) }}{{ fail "mode must be master, lite or autonomy" }}{{ end -}}
{{- if not (has .Values.controlPlane (list "embedded" "kubernetes")) }}{{ fail "controlPlane must be embedded or kubernetes" }}{{ end -}}
{{- if not (has .Values.runtime (list "runk" "runp")) }}{{ fail "runtime must be runk or runp: containers (runc) cannot be started by a pod without root" }}{{ end -}}
{{- if not .Values.image.repository }}{{ fail "image.repository is missing: docs/guide/kubernetes.md says how to build an image" }}{{ end -}}
{{- if not .Values.existingSecret -}}
{{- if not .Values.domainID }}{{ fail "domainID is missing" }}{{ end -}}
{{- if and (eq .Values.mode "lite") (or (not .Values.lite.masterEndpoint) (not .Values.lite.deployToken)) }}{{ fail "lite.masterEndpoint and lite.deployToken are missing: `coterie domain add` at the master prints the token" }}{{ end -}}
{{- if and .Values.store (include "coterie.installed" .) }}{{ fail "store: the cluster has its own store when controlPlane is kubernetes" }}{{ end -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.domainKey) }}{{ fail "domainKey is missing: with 2 replicas or more all of them need the same key" }}{{ end -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.store) }}{{ fail "store is missing: 2 replicas or more need a shared store such as PostgreSQL" }}{{ end -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) (or (ne .Values.mode "master") (include "coterie.installed" .)) }}{{ fail "replicas: only a master with an API server of its own can have 2 or more; lite and autonomy have a node, and evidence, in their volume" }}{{ end -}}
{{- if and (include "coterie.runs-pods" .) (has .Values.runk.namespace (list "" .Release.Namespace)) }}{{ fail "runk.namespace must be a namespace of its own: pods of tasks do not belong where the domain's key is" }}{{ end -}}
{{- end -}}

{{- define "coterie.config" -}}
{{- $made := dict "mode" .Values.mode "domainID" .Values.domainID "protocol" .Values.protocol "root" "/var/lib/coterie" "logFormat" "json" -}}
{{- $_ := set $made "gateway" (dict "external" (dict "host" "0.0.0.0" "port" 1080)) -}}
{{- $_ := set $made "kusciaAPI" (dict "host" "0.0.0.0" "HTTPPort" 8082 "GRPCPort" 8083) -}}
{{- $_ := set $made "kusciaAPISans" (list (include "coterie.name" .) (printf "%s.%s.svc" (include "coterie.name" .) .Release.Namespace)) -}}
{{- if .Values.domainKey }}{{ $_ := set $made "domainKeyData" .Values.domainKey }}{{ end -}}
{{- if .Values.store }}{{ $_ := set $made "store" .Values.store }}{{ end -}}
{{- if include "coterie.installed" . }}{{ $_ := set $made "apiServer" (dict "kubeconfig" "in-cluster") }}{{ end -}}
{{- if eq .Values.mode "lite" }}{{ $_ := set $made "masterEndpoint" .Values.lite.masterEndpoint }}{{ $_ := set $made "liteDeployToken" .Values.lite.deployToken }}{{ end -}}
{{- if ne .Values.mode "master" }}
{{- /* The name of its Node stays the same when the pod moves. */ -}}
{{- $_ := set $made "agent" (dict "nodeName" (include "coterie.name" .)) }}
{{- $_ := set $made "runtime" .Values.runtime }}{{ $_ := set $made "capacity" .Values.capacity }}
{{- if eq .Values.runtime "runk" }}{{ $_ := set $made "runk" .Values.runk }}{{ end -}}
{{- end -}}
{{- mergeOverwrite $made (deepCopy .Values.config) | toYaml -}}
{{- end -}}
