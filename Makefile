SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help generate
help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

generate: ## Write manifests/crds and manifests/install.yaml from their sources
	cargo run --quiet -- crds --output manifests/crds
	@for file in manifests/base/10-*.yaml manifests/crds/*.yaml manifests/base/[2-9]*.yaml; do echo ---; cat $$file; done > manifests/install.yaml
