{{- define "quiver.name" -}}
{{- if contains "quiver" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-quiver" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "quiver.nodes" -}}
{{ include "quiver.name" . }}-nodes
{{- end }}

{{- define "quiver.selector" -}}
app.kubernetes.io/name: quiver
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "quiver.labels" -}}
{{ include "quiver.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* URLs of etcd; empty for a node that is alone. */}}
{{- define "quiver.endpoints" -}}
{{- if .Values.metadata.endpoints -}}
{{ .Values.metadata.endpoints }}
{{- else if .Values.etcd.enabled -}}
{{- range $member := until (int (default 3 .Values.etcd.members)) -}}
{{- if $member }},{{ end -}}
http://{{ $.Release.Name }}-etcd-{{ $member }}.{{ $.Release.Name }}-etcd.{{ $.Release.Namespace }}.svc.{{ $.Values.global.clusterDomain }}:2379
{{- end -}}
{{- else if gt (int .Values.replicas) 1 -}}
{{ fail "more than one replica needs etcd: set metadata.endpoints, or etcd.enabled" }}
{{- end -}}
{{- end }}

{{/* One probe: .path is asked by the kubelet, or from inside, as where clients need a certificate. */}}
{{- define "quiver.probe" -}}
{{- if or .inside .root.Values.tls.clientsRequired -}}
exec:
  command: [python, -I, -S, /opt/quiver/probe.py, {{ .path }}]
{{- else -}}
httpGet:
  path: /{{ .path }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (ne .root.Values.tls.secret "") }}
{{- end }}
timeoutSeconds: 5
{{- end }}

{{/* Variables of a node, with Kubernetes' own fields first: later ones refer to them. */}}
{{- define "quiver.environment" -}}
- name: QUIVER_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: QUIVER_ADVERTISE
  value: $(QUIVER_NAME).{{ include "quiver.nodes" . }}.{{ .Release.Namespace }}.svc.{{ .Values.global.clusterDomain }}:7401
{{- if .Values.zone.value }}
- {name: QUIVER_ZONE, value: {{ .Values.zone.value | quote }}}
{{- else if .Values.zone.fromLabel }}
- name: QUIVER_ZONE
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
{{- end }}
- {name: QUIVER_DATA, value: /data/quiver}
- {name: QUIVER_SECURITY_AUTHENTICATION, value: {{ .Values.authentication | quote }}}
- {name: QUIVER_SECURITY_INSECURE, value: {{ not .Values.authentication | quote }}}
{{- if and .Values.admins (not (and .Values.tls.secret (or .Values.tls.clients .Values.tls.clientsRequired))) }}
{{- fail "admins are names in client certificates: set tls.secret and tls.clients too" }}
{{- end }}
{{- with .Values.admins }}
- {name: QUIVER_SECURITY_ADMINS, value: {{ . | quote }}}
{{- end }}
{{- if .Values.tls.secret }}
- {name: QUIVER_SECURITY_TLS_CERTIFICATE, value: /etc/quiver/tls/tls.crt}
- {name: QUIVER_SECURITY_TLS_KEY, value: /etc/quiver/tls/tls.key}
- {name: QUIVER_SECURITY_TLS_CA, value: /etc/quiver/tls/ca.crt}
{{- if or .Values.tls.clients .Values.tls.clientsRequired }}
- {name: QUIVER_SECURITY_TLS_CLIENT_CA, value: /etc/quiver/tls/ca.crt}
- {name: QUIVER_SECURITY_TLS_CLIENT_REQUIRED, value: {{ .Values.tls.clientsRequired | quote }}}
{{- end }}
{{- end }}
{{- with include "quiver.endpoints" . }}
- {name: QUIVER_METADATA_STORE, value: etcd}
- {name: QUIVER_METADATA_ENDPOINTS, value: {{ . | quote }}}
- {name: QUIVER_METADATA_PREFIX, value: {{ $.Values.metadata.prefix | quote }}}
{{- if $.Values.metadata.username }}
- {name: QUIVER_METADATA_USERNAME, value: {{ $.Values.metadata.username | quote }}}
- {name: QUIVER_METADATA_PASSWORD_FILE, value: /etc/quiver/etcd-password/password}
{{- end }}
{{- if $.Values.metadata.tlsSecret }}
- {name: QUIVER_METADATA_CA_FILE, value: /etc/quiver/etcd-tls/ca.crt}
{{- if $.Values.metadata.clientCertificate }}
- {name: QUIVER_METADATA_CERT_FILE, value: /etc/quiver/etcd-tls/tls.crt}
- {name: QUIVER_METADATA_KEY_FILE, value: /etc/quiver/etcd-tls/tls.key}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.keySecret }}
- {name: QUIVER_SECURITY_KEY_FILE, value: /etc/quiver/key/key}
{{- end }}
{{- if .Values.webhookSecret }}
- {name: QUIVER_WEB_WEBHOOK_SECRETS, value: /etc/quiver/webhooks}
{{- end }}
{{- if .Values.config }}
- {name: QUIVER_CONFIG, value: /etc/quiver/config/quiver.toml}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: QUIVER_{{ $name | replace "." "_" | upper }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end }}

{{/* Folders with secrets and settings: by name, the volume's source. */}}
{{- define "quiver.folders" -}}
{{- with .Values.tls.secret }}
tls: {secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- if .Values.metadata.username }}
etcd-password: {secret: {secretName: {{ required "metadata.username needs metadata.passwordSecret" .Values.metadata.passwordSecret | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.metadata.tlsSecret }}
etcd-tls: {secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.keySecret }}
key: {secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.webhookSecret }}
webhooks: {secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- if .Values.config }}
config: {configMap: {name: {{ include "quiver.name" . }}-config}}
{{- end }}
{{- end }}
