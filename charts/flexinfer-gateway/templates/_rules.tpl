{{- /* What the gateway may do in each namespace: read where models and their endpoints are, and say which it needs. */}}
{{- define "gateway.rules" -}}
{{- with .Values.kubernetes -}}
{{- $groups := ternary (list .apiGroup) (list "ai.flexinfer" "inference.flexinfer.ai") (ne .apiGroup "") | toJson -}}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch]
{{- if .pods }}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- end }}
- apiGroups: {{ $groups }}
  resources: [loraadapters]
  verbs: [list, watch]
- apiGroups: {{ $groups }}
  resources: [models]
  verbs: [get, list, watch]
# status.lastActiveTime wakes a Model and keeps it awake
- apiGroups: {{ $groups }}
  resources: [models/status]
  verbs: [patch]
# spec.replicas wakes a ModelDeployment, status.lastAccessTime keeps it awake
- apiGroups: {{ $groups }}
  resources: [modeldeployments]
  verbs: [get, list, watch, patch]
- apiGroups: {{ $groups }}
  resources: [modeldeployments/status]
  verbs: [patch]
{{- if .gpuGroups }}
# annotations tell a GPUGroup how many calls wait
- apiGroups: {{ $groups }}
  resources: [gpugroups]
  verbs: [get, list, watch, patch]
{{- end }}
{{- end }}
{{- end }}
