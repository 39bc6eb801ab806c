package main

const (
	kubeFile    = "internal/verdict/kube.go"
	kubeWitness = "internal/sys/kube/witness.go"
	kubeParse   = "internal/sys/kube/parse.go"
	kubeClient  = "internal/sys/kube/client.go"
)

// kubeMutations are those of the API server's word: what it keeps, and the one thing that
// follows from a Pod that is gone.
func kubeMutations() []mutation {
	return []mutation{
		one("kube", "the API server may be silent where it must answer", sceneFile, "case t.State != claim.StateComplete:\n		why = \"gave no reason\"", "case t.State != claim.StateComplete && t.Witness != claim.WitnessKube:\n		why = \"gave no reason\"").
			and(sceneFile, "	case t.Witness == claim.WitnessKube && t.Kube != nil:\n", "	case t.Witness == claim.WitnessKube:\n").by("verdict", "TestKube"),
		one("kube", "a list without any Pod of the Ready sandboxes is believed", kubeFile, "	if n > 0 {\n		s.mute", "	if false {\n		s.mute").by("verdict", "TestKube|TestKubeNotReady"),
		one("kube", "what a Pod has is free", wordsFile, "case kube == Alive:", "case kube == Alive && false:").by("verdict", "TestKube"),
		one("kube", "what a Pod has is free once somebody has reserved it elsewhere", kubeFile, `(b.Pod.UID == p.UID || b.Pod.UID == p.ConfigHash) &&`, "true &&").by("verdict", "TestKube").blind(),
		one("kube", "a static Pod can be gone in the API", kubeFile, "case len(pods) == 0 && b.FromAPI:", "case len(pods) == 0:").by("verdict", "TestKubeNotReady"),
		one("kube", "a NotReady sandbox of a Pod that lives may go", kubeFile, "}) && s.newest(b):", "}) && false:").by("verdict", "TestKubeNotReady").blind(),
		one("kube", "that a Pod is gone is no evidence of its own", wordsFile, "			others = append(others, \"kube~gone\")\n", "").by("verdict", "TestKubeGoneBeginsAnew").blind(),
		one("kube", "with a stamp a Pod need be gone only once", judgeFile, " || a.odd != nil && a.odd.podGone {", " {").by("verdict", "TestKubeNotReady").blind(),
		one("kube", "a sighting without the API server counts where it must answer", sceneFile, "if s.kube != nil && slices.Contains(s.c.Policy.Required, claim.WitnessKube) {", "if false {").by("verdict", "TestKubeInTheWitnessSet").blind(),
		one("kube", "its word stands for ever", "internal/sweep/sweep.go", "!ok || d > lateFor {", "false && (ok || d > lateFor) {").by("sweep", "TestLateWitnessAtTheConfirmation").blind(),
		one("kube", "any Node object is this machine's", kubeWitness, "got != now.Boot {", "false && got != now.Boot {").by("sys/kube", "TestLies|TestAsk").blind(),
		one("kube", "an empty list is believed whosever it is", kubeWitness, "if len(facts.Pods) == 0 {", "if false {").by("sys/kube", "TestEmptyList").blind(),
		one("kube", "an old list is believed", kubeWitness, "if older(list.ResourceVersion, before) {", "if false {").by("sys/kube", "TestOldList").blind(),
		one("kube", "a list older than the revision is believed", kubeClient, "if err == nil && older(list.ResourceVersion, revision) {", "if false {").by("sys/kube", "TestLies").blind(),
		one("kube", "a list of any age is asked for", kubeClient, `(list.ResourceVersion == "" || list.ResourceVersion == "0")`, `list.ResourceVersion == ""`).by("sys/kube", "TestLies").blind(),
		one("kube", "a page is believed", kubeParse, `case list.Continue != "" || list.RemainingItemCount != nil:`, "case false:").by("sys/kube", "TestLies").blind(),
		one("kube", "what has no resourceVersion is a list", kubeParse, `case list.ResourceVersion == "":`, "case false:").by("sys/kube", "TestLies").blind(),
		one("kube", "a Pod of another node is passed over", kubeParse, "n := list.Items[i].Spec.NodeName; n != node {", "n := list.Items[i].Spec.NodeName; false && n != node {").by("sys/kube", "TestLies").blind(),
	}
}
