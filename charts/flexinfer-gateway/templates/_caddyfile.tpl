{{- define "gateway.caddyfile" -}}
{{- if .Values.caddyfile }}
{{- .Values.caddyfile | trim }}
{{- else }}
{{- $namespaces := include "gateway.namespaces" . | fromJson -}}
{
	admin localhost:2019
	persist_config off
	shutdown_delay {$PROXY_SHUTDOWN_DRAIN_DELAY:5s}
	grace_period {$PROXY_GRACEFUL_SHUTDOWN_TIMEOUT:10m}
	{{- include "gateway.indented" (dict "text" .Values.extraGlobal "tabs" "\t") }}

	flexinfer {
		kubernetes {
			namespace {{ $namespaces.all | ternary "*" (join " " $namespaces.names) }}
			{{- with .Values.kubernetes.apiGroup }}
			api_group {{ . }}
			{{- end }}
			gpu_groups {{ ternary "on" "off" .Values.kubernetes.gpuGroups }}
			{{- with .Values.kubernetes.syncTimeout }}
			sync_timeout {{ . }}
			{{- end }}
		}
		{{- include "gateway.indented" (dict "text" .Values.extraFlexinfer "tabs" "\t\t") }}
	}
}

:8080 {
	{{- if .Values.observability.tracing.enabled }}
	tracing
	{{- end }}
	{{- include "gateway.indented" (dict "text" .Values.extraSite "tabs" "\t") }}
	flexinfer
	{{- if trim .Values.extraProxy }} {
	{{- include "gateway.indented" (dict "text" .Values.extraProxy "tabs" "\t\t") }}
	}
	{{- end }}
}
{{- end }}
{{- end }}

{{- /* A text of values.yaml, each line after a line break and tabs. Takes a dict: text, tabs. */}}
{{- define "gateway.indented" -}}
{{- with trim .text }}
{{- range splitList "\n" . }}
{{ with . }}{{ $.tabs }}{{ . }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
