// The lint tools, pinned. A module of its own, so that what they need is never
// part of what Holdfast links. hack/tools/install builds them.
module github.com/holdfast-cni/holdfast/hack/tools

go 1.26.8

tool (
	github.com/OpenPeeDeeP/depguard/v2/cmd/depguard
	honnef.co/go/tools/cmd/staticcheck
)

require (
	github.com/BurntSushi/toml v1.6.0 // indirect
	github.com/OpenPeeDeeP/depguard/v2 v2.3.0 // indirect
	github.com/gobwas/glob v1.0.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/exp/typeparams v0.0.0-20231108232855-2478ac86f678 // indirect
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/tools v0.52.0 // indirect
	honnef.co/go/tools v0.8.2 // indirect
)
