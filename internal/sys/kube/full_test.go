package kube

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// fullPod is a Pod of a Deployment as a real API server stores it: two containers with
// probes, a sidecar, managed fields of controller and kubelet.
func fullPod(i int) *corev1.Pod {
	name := fmt.Sprintf("checkout-service-7c9d8b6f4-%05d", i)
	p := aPod(name, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1))
	p.GenerateName = "checkout-service-7c9d8b6f4-"
	p.CreationTimestamp = metav1.NewTime(time.Unix(1_770_000_000, 0))
	p.Labels = map[string]string{
		"app.kubernetes.io/name": "checkout-service", "app.kubernetes.io/instance": "production", "app.kubernetes.io/version": "1.42.7",
		"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "checkout-service-3.1.0", "pod-template-hash": "7c9d8b6f4",
	}
	p.Annotations = map[string]string{
		"checksum/config": strings.Repeat("0123456789abcdef", 4), "prometheus.io/scrape": "true", "prometheus.io/port": "9090",
		"kubectl.kubernetes.io/restartedAt": "2026-11-01T08:00:00Z",
	}
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "checkout-service-7c9d8b6f4", UID: bootA, Controller: &yes, BlockOwnerDeletion: &yes}}
	fields := func(n int) *metav1.FieldsV1 {
		var b strings.Builder
		b.WriteString(`{"f:metadata":{"f:labels":{".":{}`)
		for k := range n {
			fmt.Fprintf(&b, `,"f:app.kubernetes.io/field-%d":{}`, k)
		}
		b.WriteString(`}},"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:env":{},"f:image":{},"f:ports":{},"f:resources":{}}}}}`)
		return metav1.NewFieldsV1(b.String())
	}
	p.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: fields(30)},
		{Manager: "kubelet", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: fields(15), Subresource: "status"},
	}
	for _, n := range []string{"app", "proxy"} {
		c := corev1.Container{
			Name: n, Image: "registry.example.com/team/checkout-service@sha256:" + strings.Repeat("0123456789abcdef", 4), ImagePullPolicy: "IfNotPresent",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}, {Name: "metrics", ContainerPort: 9090, Protocol: "TCP"}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("256Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("512Mi")},
			},
			VolumeMounts:           []corev1.VolumeMount{{Name: "config", MountPath: "/etc/app", ReadOnly: true}, {Name: "kube-api-access-abcde", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File",
		}
		probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http"), Scheme: "HTTP"}}, PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3}
		c.LivenessProbe, c.ReadinessProbe = probe, probe
		for k := range 12 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("CHECKOUT_SETTING_%d", k), Value: "https://backend.production.svc.cluster.local:8443/v1"})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: n, Ready: true, Image: c.Image, ImageID: c.Image, ContainerID: "containerd://" + strings.Repeat("0123456789abcdef", 4),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: p.CreationTimestamp}},
		})
	}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "checkout-service"}}}},
		{Name: "kube-api-access-abcde", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
		}}}},
	}
	p.Spec.ServiceAccountName, p.Spec.DeprecatedServiceAccount, p.Spec.SchedulerName, p.Spec.DNSPolicy = "checkout", "checkout", "default-scheduler", "ClusterFirst"
	for _, k := range []corev1.PodConditionType{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: k, Status: "True", LastTransitionTime: p.CreationTimestamp})
	}
	p.Status.HostIP, p.Status.HostIPs, p.Status.StartTime, p.Status.QOSClass = "192.0.2.1", []corev1.HostIP{{IP: "192.0.2.1"}}, &p.CreationTimestamp, "Burstable"
	return p
}
