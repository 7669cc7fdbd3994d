# Two of these need no preparation at all: make quickstart, make test. Each target is a script in ci/ that runs by hand, too.
.PHONY: help quickstart test test-cluster soak bench bench-tti engine test-engines lint fmt generate figures api

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: ## set up what is missing, then run examples/quickstart
	@ci/go
	@ci/engine
	@ci/image
	go run ./examples/quickstart

test: ## set up what is missing, then run every test but the soaks
	@ci/test

test-cluster: ## the tests of test/cluster on three nodes
	@ci/engine
	@ci/image
	@ci/cluster go test -count=1 -timeout 30m ./test/cluster

soak: ## the long-running tests; RACE=1 and SHARD=1/4 are for those who have more machines
	@ci/engine
	@ci/image
	@ci/clients
	@ci/soak

bench: ## the benchmarks
	@ci/engine
	@ci/image
	@ci/bench

bench-tti: ## time from a request to the first command, as vendors compare it; SVG=file draws it, SCALE=0.1 tries it
	@ci/engine
	@ci/image
	@ci/bench tti

engine: ## run tests on another engine: NAME=docker-28-containerd TEST=./test/fork
	@ci/other-engine $(NAME) go test -count=1 -timeout 60m $(TEST)

test-engines: ## check what every kind of engine does, and write docs/engines.md
	@ci/engines

api: ## write the exported API to testdata/api, after a change that was meant
	@go test -count=1 -run TestExportedAPI . -update-api

lint: ## formatting, go vet, staticcheck
	@ci/lint

fmt: ## format the Go files in place
	@ci/fmt -w

figures: ## sizes of packages, and lengths of functions
	@ci/figures

generate: ## rebuild the guest, the binary inside every sandbox, and the schemas of the HTTP API
	@ci/generate
