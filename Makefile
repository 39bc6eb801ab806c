# Holdfast. GNU make, POSIX sh, Go; everything else is fetched or built.
# `make help` lists the targets.

SHELL = /bin/sh
.DEFAULT_GOAL := help

GO ?= go
# Neither git nor a work tree is needed to build; without them the commit is unknown.
COMMIT ?= $(shell c=$$(git rev-parse HEAD 2>/dev/null) && { [ -z "$$(git status --porcelain 2>/dev/null)" ] && echo "$$c" || echo "$$c-dirty"; } || echo unknown)
VERSION ?= $(shell git describe --tags --match 'v*' 2>/dev/null || echo v0.0.0-dev)
LDFLAGS = -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# Packages whose tests start real runtimes or measure time: one at a time, so that
# they have the machine for themselves.
SERIAL = /(bench|e2e|testenv|cmd)(/|$$)

# What a test run as root on Linux must not skip. REQUIRE= switches that off.
REQUIRE ?= $(shell [ "$$(id -u)" = 0 ] && [ "$$(uname)" = Linux ] && echo root,netns,mount,nobody,iptables,nft,cri,kube,podman,chromium,promtool)

FUZZTIME ?= 1m
SOAK ?= 10m
INTERLEAVED ?= 100000
BENCH ?= node,shell,large,locks,ipam,heal,agent,api

CHECKS = -check gofmt='$(MAKE) -s fmt' -check vet='$(MAKE) -s vet' -check lint='$(MAKE) -s lint'
TESTSUM = $(GO) run ./hack/testsum

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: build
build: ## bin/holdfast and bin/holdfast-ipam, static binaries
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/ ./cmd/holdfast ./cmd/holdfast-ipam

.PHONY: kubectl-holdfast
kubectl-holdfast: ## bin/kubectl-holdfast, the plugin of kubectl
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/ ./cmd/kubectl-holdfast

# What runs on a node for Linux, what runs on a desk for macOS too.
.PHONY: dist
dist: image ## dist: the image, and the programs for both architectures
	@set -e; for arch in amd64 arm64; do \
		for p in linux/holdfast linux/holdfast-ipam linux/kubectl-holdfast darwin/kubectl-holdfast; do \
			os=$${p%/*}; name=$${p#*/}; \
			CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o dist/$$name-$$os-$$arch ./cmd/$$name; \
		done; \
	done

# The date of the commit, so that the same commit gives the same bytes.
.PHONY: image
image: ## dist/holdfast-image.tar, the container image for amd64 and arm64; needs no Docker
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 0)} \
		$(GO) run ./hack/image -version '$(VERSION)' -commit '$(COMMIT)' -o dist/holdfast-image.tar

.PHONY: check
check: ## gofmt, vet, lint and the unit tests; no root, under two minutes
	@$(TESTSUM) $(CHECKS) -- -short $$($(GO) list ./... | grep -Ev '$(SERIAL)')

# Lint first, then everything that shares the machine well, then the rest one package
# at a time, then each fuzz target for some seconds. testsum prints the count last.
# The soak plays the same seeds everywhere, so that it finds what a change broke; fresh
# ones are for `make soak`.
.PHONY: test
test: ## installs and builds what the tests need and runs all of them
	@export REQUIRE='$(REQUIRE)'; \
	packages=$$($(GO) list ./...) || exit 1; \
	serial=$$(echo "$$packages" | grep -E '$(SERIAL)' || true); \
	$(TESTSUM) $(CHECKS) -check deps='$(MAKE) -s deps' -check soak='$(GO) run ./hack/soak -seed 30000 -seeds 3000 -for 60s -quiet' -fuzz 3s -fuzz-total 30s \
		-- -count=1 -timeout 5m $$(echo "$$packages" | grep -Ev '$(SERIAL)') \
		$${serial:+-- -count=1 -timeout 12m -p 1 $$serial}

# Debian packages (hack/apt.sh) and programs built from pinned modules (hack/testbin),
# cached outside of the clone. Without root nothing is installed.
.PHONY: deps
deps:
	@sh hack/apt.sh
	@$(GO) run ./hack/testbin containerd cniplugins pause kubernetes helm >/dev/null

.PHONY: fmt
fmt:
	@files=$$(gofmt -l .) && { [ -z "$$files" ] || { echo "not formatted by gofmt:"; echo "$$files"; exit 1; }; }

.PHONY: vet
vet:
	@$(GO) vet ./...

.PHONY: lint
lint: ## staticcheck and depguard, pinned in hack/tools
	@tools=$$(hack/tools/install) && "$$tools/staticcheck" ./... && "$$tools/depguard" ./...

.PHONY: demo
demo: ## loses three DELs in a private namespace and gets the addresses back; needs root
	@$(GO) run ./hack/demo

.PHONY: bench
bench: build deps ## the figures of docs/benchmarks.md; needs root; BENCH=node,shell,large,locks,ipam,heal,agent,api selects
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o bin/floor ./bench/floor
	$(GO) run ./bench -commit '$(COMMIT)' -parts '$(BENCH)'

.PHONY: soak
soak: ## INTERLEAVED (100000) calls of host-local and holdfast-ipam, then the simulated node with fresh seeds for SOAK (10m)
	$(GO) test ./e2e/ipam -run 'TestInterleaved$$' -count=1 -timeout 24h -v -seed $$(date +%s) -interleaved $$(($(INTERLEAVED) / 3 + 1))
	@$(GO) run ./hack/soak -for $(SOAK)

.PHONY: mutate
mutate: ## takes each gate of a release out and asks who notices; the table is for docs/proof.md
	@$(GO) run ./hack/mutate

.PHONY: e2e-long
e2e-long: deps ## the scenes in real Kubernetes with outages and churn that last for minutes; needs root and most of an hour
	REQUIRE='$(REQUIRE)' $(GO) test ./e2e/kube -count=1 -timeout 60m -v -args -long

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (1m)
	@$(TESTSUM) -fuzz $(FUZZTIME) -fuzz-total 24h

.PHONY: clean
clean: ## removes what was built here; the caches outside of the clone stay
	rm -rf bin dist
