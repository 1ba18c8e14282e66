SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Tools that the tests need are kept beside the control plane, outside of target/.
CACHE ?= $(or $(PECKING_ORDER_CACHE),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME)/pecking-order,$(HOME)/.cache/pecking-order))
DENY_VERSION := 0.20.2
DENY := $(CACHE)/tools/$(DENY_VERSION)/bin/cargo-deny

.PHONY: help demo demo-cluster demo-headroom prove test lint unit cluster deny generate bench image clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  %-14s %s\n", $$1, $$2 }'

demo: ## Show the whole job without a cluster: reviews over TLS, the pecking order, refusals
	cargo build --quiet --bin pecking-order --example demo
	./target/debug/examples/demo

demo-cluster: ## Show the same job on a real control plane (builds it the first time)
	cargo build --quiet --bin pecking-order --example demo_cluster
	./target/debug/examples/demo_cluster

demo-headroom: ## Show on the real scheduler how long displaced pods wait for placeholders with a grace period of 0 and of 30 s
	cargo build --quiet --example demo_headroom
	./target/debug/examples/demo_headroom

prove: ## Scale down hundreds of times on a real control plane, also under load, and count the right victims (half an hour)
	cargo build --quiet --bin pecking-order --example prove
	./target/debug/examples/prove

test: lint deny unit cluster ## Run everything that CI runs

lint: ## Check format and clippy; warnings are errors
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- --deny warnings

unit: ## Run unit, golden, property, wire, image and drift tests
	cargo test --quiet --workspace --lib --test alerts --test architecture --test documentation --test image --test import --test check --test backends --test prometheus --test patches --test races --test wire

cluster: ## Run the tests on a real control plane (builds it the first time)
	cargo test --quiet --test cluster

deny: $(DENY) ## Check licences, sources and banned crates
	$(DENY) --log-level error check licenses bans sources

$(DENY):
	cargo install cargo-deny --quiet --locked --version $(DENY_VERSION) --root $(CACHE)/tools/$(DENY_VERSION)

generate: ## Write manifests/crds, manifests/native-policies and manifests/install.yaml from their sources
	cargo run --quiet -- crds --output manifests/crds
	cargo run --quiet -- native-policies --file manifests/native-policies/pool.yaml --output manifests/native-policies/general.yaml
	for file in manifests/base/10-*.yaml manifests/crds/*.yaml manifests/base/[2-9]*.yaml; do echo ---; cat $$file; done > manifests/install.yaml

bench: ## Measure and print: the pure core, polls, the server beside its floors, scale-downs on a real control plane
	cargo bench --quiet --bench core --bench poll --bench check --bench plan --bench wire --bench scale_down

image: ## Build the container image with the engine at hand
	docker build --tag pecking-order:0.1.0 .

clean: ## Remove what cargo has built; the control plane stays in its cache
	cargo clean
