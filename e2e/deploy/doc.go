// Package deploy proves what deploy/ says: that the kustomize base and the Helm chart are
// the same objects, that a real API server takes them, and that each permission, mount and
// capability in them is needed, by taking it away.
package deploy
