# Every target installs what it needs when it runs as root, and otherwise names the one command that would.
CARGO ?= cargo
export CARGO
.DEFAULT_GOAL := help
.PHONY: help demo test bench bench-peers bench-e1000 soak

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## a switch and two guests as separate processes, and what passes between them
	@scripts/setup.sh build
	$(CARGO) build --release -p vmlan
	target/release/vmlan demo

test: ## everything CI checks: format, lints, unit, socket and boot tests, bounded fuzzing
	@scripts/test.sh

bench: ## micro-benchmarks of the switch with in-process ports
	@scripts/setup.sh build
	$(CARGO) bench -p vmlan-bench

bench-peers: ## vmlan beside OVS-DPDK and others, with DPDK testpmd as the guest (root: hugepages, namespaces)
	@scripts/setup.sh build peers
	$(CARGO) build --release -p vmlan -p vmlan-bench
	target/release/peers

bench-e1000: ## e1000 guest to guest in each way of ringing, then a Linux guest beside QEMU's own e1000
	@scripts/setup.sh build test
	$(CARGO) build --release -p vmlan -p vmlan-bench
	target/release/e1000
	VMLAN_BIN=$(CURDIR)/target/release/vmlan target/release/e1000-guest

soak: ## the long runs: 100 times kill -9 of the switch and of a VM under traffic
	@scripts/setup.sh build test
	$(CARGO) build --release -p vmlan
	VMLAN_BIN=$(CURDIR)/target/release/vmlan $(CARGO) test -p vmlan-tests -- --ignored --nocapture --test-threads=1
