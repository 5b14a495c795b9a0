{{- /* The environment: FlexInfer's variables for what has one. They are defaults, so that the Caddyfile may still say otherwise. */}}
{{- define "gateway.env" -}}
{{- with .Values.proxy -}}
- name: XDG_DATA_HOME
  value: /data
- name: XDG_CONFIG_HOME
  value: /config
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: PROXY_SHUTDOWN_DRAIN_DELAY
  value: {{ toString .gracefulShutdown.drainDelay | quote }}
- name: PROXY_GRACEFUL_SHUTDOWN_TIMEOUT
  value: {{ toString .gracefulShutdown.timeout | quote }}
- name: PROXY_MAX_TOKENS_CLAMP_ENABLED
  value: {{ toString .maxTokensClamp.enabled | quote }}
{{- $named := list
  (list "PROXY_MAX_TOKENS_CLAMP_PROMPT_RESERVE_TOKENS" .maxTokensClamp.promptReserveTokens)
  (list "PROXY_QUEUE_TIMEOUT" .timeouts.queue)
  (list "PROXY_COLD_START_TIMEOUT" .timeouts.coldStart)
  (list "PROXY_ROUTING_EXPLICIT_KEY_MAX_LENGTH" .routing.explicitKeyMaxLength)
  (list "PROXY_ROUTING_SYSTEM_SEGMENT_MAX_LENGTH" .routing.systemSegmentMaxLength)
  (list "PROXY_ROUTING_DOCUMENT_SEGMENT_MAX_LENGTH" .routing.documentSegmentMaxLength)
  (list "FLEXINFER_PROXY_LABEL_GROUP_ROUTING" .routing.labelGroupMode) }}
{{- range $named }}
{{- $name := first . }}
{{- with last . }}
- name: {{ $name }}
  value: {{ (kindIs "string" .) | ternary . (int64 . | toString) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.observability.tracing }}
{{- if .enabled }}
- name: OTEL_SERVICE_NAME
  value: flexinfer-proxy
{{- with .otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .serviceNamespace }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: {{ printf "service.namespace=%s" . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.proxy.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
