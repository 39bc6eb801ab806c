{{- define "holdfast.labels" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/part-of: holdfast
{{- end }}

{{- define "holdfast.helmLabels" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "holdfast.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* What the Pod asks of the configuration. The kubelet's file is seen through PID 1, so that
its directory, with the volumes of all Pods, is not mounted. */}}
{{- define "holdfast.config" -}}
http:
  address: 127.0.0.1:{{ .Values.httpPort }}
paths:
  kubeletConfig: /proc/1/root/var/lib/kubelet/config.yaml
{{- end }}
