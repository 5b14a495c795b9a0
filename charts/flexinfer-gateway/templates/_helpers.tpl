{{- define "gateway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 57 | trimSuffix "-" }}
{{- end }}

{{- /* Leaves room for "-proxy" in the 63 characters of a name. */}}
{{- define "gateway.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 57 | trimSuffix "-" }}
{{- else }}
{{- $name := include "gateway.name" . }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 57 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gateway.object" -}}
{{ include "gateway.fullname" . }}-proxy
{{- end }}

{{- define "gateway.selectorLabels" -}}
app: flexinfer-proxy
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gateway.labels" -}}
{{ include "gateway.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "gateway.serviceAccount" -}}
{{- with .Values.serviceAccounts.proxy }}
{{- default (ternary (include "gateway.object" $) "default" .create) .name }}
{{- end }}
{{- end }}

{{- define "gateway.image" -}}
{{- with .Values.proxy.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The namespaces to watch, as JSON: {"all": true}, or {"names": [...]}. */}}
{{- define "gateway.namespaces" -}}
{{- $names := .Values.kubernetes.namespaces | default (list .Release.Namespace) | uniq }}
{{- if has "*" $names }}
{{- if gt (len $names) 1 }}
{{- fail "kubernetes.namespaces: \"*\" is all namespaces; write it alone, or name them without it" }}
{{- end }}
{{- dict "all" true "names" (list) | toJson }}
{{- else }}
{{- dict "all" false "names" $names | toJson }}
{{- end }}
{{- end }}

{{- /* The seconds of a duration as Go writes it. Takes a dict: name, value. */}}
{{- define "gateway.seconds" -}}
{{- $value := toString .value }}
{{- if eq $value "0" }}0
{{- else }}
{{- if not (regexMatch "^(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|ms|s|m|h))+$" $value) }}
{{- fail (printf "%s: %q is no duration; write one such as 90s, 1h30m or 1500ms" .name $value) }}
{{- end }}
{{- $unit := dict "ns" 1e-9 "us" 1e-6 "µs" 1e-6 "ms" 1e-3 "s" 1.0 "m" 60.0 "h" 3600.0 }}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+(ns|us|µs|ms|s|m|h)" $value -1 }}
{{- $number := regexFind "^[0-9.]+" . }}
{{- $sum = addf $sum (mulf (float64 $number) (get $unit (trimPrefix $number .))) }}
{{- end }}
{{- $sum }}
{{- end }}
{{- end }}
