{{- /* What to write instead of values that have no option here. */}}

{{- define "gateway.instead.auth" -}}
proxy.auth: the gateway leaves API keys to Caddy's directives. Leave proxy.auth.enabled out and write:

proxy:
  extraEnv:
    - name: LLM_API_KEY
      valueFrom: {secretKeyRef: {name: {{ .Values.proxy.auth.tokenSecretName | default "<secret>" }}, key: {{ .Values.proxy.auth.tokenSecretKey | default "token" }}}}
extraSite: |
  @denied {
    expression `{env.LLM_API_KEY} == "" || {http.request.header.Authorization} != "Bearer " + {env.LLM_API_KEY}`
    not path /healthz /readyz /metrics
  }
  respond @denied 401
extraProxy: |
  header_up -Authorization
{{- end }}

{{- define "gateway.instead.rateLimit" -}}
proxy.rateLimit: the gateway leaves rate limits to a plugin of Caddy's. Leave proxy.rateLimit.enabled out, build an image
with --with github.com/mholt/caddy-ratelimit, and write:

extraGlobal: |
  order rate_limit before basic_auth
extraSite: |
  rate_limit {
    zone flexinfer {
      key    static
      events {{ .Values.proxy.rateLimit.globalRPS | default 1000 }}
      window 1s
    }
  }
{{- end }}

{{- define "gateway.instead.admission" -}}
proxy.admission: the gateway does not estimate prompts. Leave proxy.admission.enabled out and bound the bodies:

extraSite: |
  request_body {
    max_size 256KiB
  }
{{- end }}

{{- /* Takes a dict: name, path, address. */}}
{{- define "gateway.instead.sibling" -}}
proxy.{{ .name }}: the gateway passes on models only. Leave proxy.{{ .name }} out and write:

extraSite: |
  handle {{ .path }} {
    reverse_proxy {{ .address }}
  }
{{- end }}
