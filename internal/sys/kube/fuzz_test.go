package kube

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// FuzzPods: any bytes for a list, in protobuf or JSON, are facts that are whole and fit to
// print, or an error that is.
func FuzzPods(f *testing.F) {
	a := newAPI(f)
	f.Add(a.encode(a.pods))
	full := a.pods.DeepCopy()
	full.Items = []corev1.Pod{*fullPod(1)}
	f.Add(a.encode(full))
	f.Add([]byte(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[{"metadata":{"namespace":"a","name":"b","uid":"c","annotations":{"kubernetes.io/config.mirror":"d"}},"spec":{"nodeName":"n1"},"status":{"phase":"Running","podIPs":[{"ip":"::ffff:10.1.0.9"}]}}]}`))
	f.Add([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
	d := newCodecs().UniversalDeserializer()
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := decodeAs[*corev1.PodList](d, slices.Clone(b))
		if err != nil {
			if s := printable(err.Error(), 300); !tame(s) {
				t.Errorf("%q", s)
			}
			return
		}
		facts, err := podsOf("n1", list)
		if err != nil {
			if e := (&Error{"list", "pods", err}).Error(); facts != nil || !tame(e) {
				t.Errorf("%v, %q", facts, e)
			}
			return
		}
		if len(facts.Pods) != len(list.Items) || list.ResourceVersion == "" || list.Continue != "" {
			t.Errorf("%d of %d Pods of a list of version %q", len(facts.Pods), len(list.Items), list.ResourceVersion)
		}
		for _, p := range facts.Pods {
			for _, s := range []string{p.Namespace, p.Name, p.UID, p.ConfigHash, p.Phase} {
				if !sane(s) {
					t.Errorf("%q", s)
				}
			}
			if p.UID == "" || p.Ended() != (p.Phase == "Succeeded" || p.Phase == "Failed") {
				t.Errorf("%+v", p)
			}
			i := slices.IndexFunc(list.Items, func(x corev1.Pod) bool { return string(x.UID) == p.UID })
			if i < 0 || list.Items[i].Spec.NodeName != "n1" {
				t.Errorf("%+v is no Pod of n1", p)
			}
			for _, a := range p.Addrs {
				if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
					t.Errorf("%s has %s", p.UID, a)
				}
			}
		}
		slices.Reverse(list.Items)
		if again, err := podsOf("n1", list); err != nil || !cmp.Equal(facts, again, cmp.Comparer(func(a, b interface{ String() string }) bool { return a.String() == b.String() })) {
			t.Errorf("in another order: %v, %v", again, err)
		}
	})
}

// FuzzBlame: what a message is said to blame stands in it, and is fit to print.
func FuzzBlame(f *testing.F) {
	f.Add(`failed to setup network for sandbox "` + boxID + `": plugin type="bandwidth" name="net" failed (add): no`)
	f.Add(`x \"` + boxID + `\": plugin type=\"portmap\" failed (delete): y`)
	f.Fuzz(func(t *testing.T, message string) {
		id, plugin, op := blame(message)
		plain := strings.ReplaceAll(message, `\`, "")
		if id != "" && (len(id) != 64 || !strings.Contains(plain, id) || strings.ContainsFunc(id, func(r rune) bool { return !unicode.Is(unicode.ASCII_Hex_Digit, r) })) {
			t.Errorf("ID %q", id)
		}
		switch {
		case plugin == "" && op == "":
		case plugin == "" || !sane(plugin) || !strings.Contains(plain, `plugin type="`+plugin+`"`):
			t.Errorf("plugin %q", plugin)
		case op != "add" && op != "del":
			t.Errorf("op %q", op)
		}
		list := &corev1.EventList{Items: []corev1.Event{{
			InvolvedObject: corev1.ObjectReference{Kind: "Pod"}, Reason: "FailedKillPod", Message: message, Source: corev1.EventSource{Host: "n1"},
		}}}
		if got := failedOf("n1", list); len(got) != 1 || !tame(got[0].Message) {
			t.Errorf("%+v", got)
		}
	})
}
