{{/* Name of the operator's objects. */}}
{{- define "stream2llm.name" -}}
{{- if contains "stream2llm" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-stream2llm" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "stream2llm.labels" -}}
app.kubernetes.io/name: stream2llm
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "stream2llm.selector" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* An image's reference, from a list of the root and the image's values and what is appended to an empty tag. */}}
{{- define "stream2llm.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 }}{{ $suffix := index . 2 -}}
{{- with $root.Values.images.registry }}{{ . }}/{{ end }}{{ $image.repository }}:{{ $image.tag | default (printf "%s%s" $root.Chart.AppVersion $suffix) }}
{{- end }}

{{- define "stream2llm.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "stream2llm.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What the operator may do to resources and their children. */}}
{{- define "stream2llm.rules" -}}
- apiGroups: [stream2llm.io]
  resources: [streamingprefills]
  verbs: [list, watch]
- apiGroups: [stream2llm.io]
  resources: [streamingprefills/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch, get, create, patch]
- apiGroups: [""]
  resources: [services, serviceaccounts, configmaps]
  verbs: [list, watch, get, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch, get, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, get, create, patch]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, create, patch, delete]
{{- if .Values.monitoring.podMonitor.enabled }}
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, create, patch]
{{- end }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}
