# Every target installs what it needs when it runs as root, and otherwise names the one command that
# would.
CARGO ?= cargo
export CARGO
.DEFAULT_GOAL := help
.PHONY: help demo demo-hosts two-vms static packages try-package test bench bench-short \
	bench-compare bench-switch bench-peers bench-guests bench-kvm bench-instructions soak

# What `make bench` runs: BENCHES="raw latency" for some of it.
BENCHES ?= ladder peers paper slides raw latency livelock fairness kvm-analysis attacks

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## a switch and two guests; the same frames over a NIC driven in each way, slow to fast
	@scripts/setup.sh build
	$(CARGO) build --release -p vmlan
	target/release/vmlan demo

demo-hosts: ## two hosts in namespaces, joined by VXLAN (with FRR by EVPN); guests move between them
	@scripts/setup.sh build
	@[ "$$(id -u)" != 0 ] || scripts/setup.sh hosts || true
	$(CARGO) build --release -p vmlan
	target/release/vmlan demo --hosts auto

two-vms: ## a switch and two Linux VMs in QEMU that ping each other
	@scripts/setup.sh build vms
	$(CARGO) build --release -p vmlan
	@scripts/two-vms.sh

# A target of its own, so that build scripts and proc macros, which are loaded, are not made static.
STATIC_TARGET ?= $(shell uname -m)-unknown-linux-gnu
static: ## vmlan as one file without libraries, to copy into a guest
	@scripts/setup.sh build
	RUSTFLAGS="-C target-feature=+crt-static" \
	  $(CARGO) build --release -p vmlan --target $(STATIC_TARGET)
	@mkdir -p target/static
	@strip -o target/static/vmlan target/$(STATIC_TARGET)/release/vmlan
	@if ldd target/static/vmlan 2>&1 | grep -q '=>'; then \
	  echo "target/static/vmlan is not static" >&2; exit 1; fi
	@ls -lh target/static/vmlan

packages: ## .deb, .rpm, .tar.gz and an OCI image, of one static program without its laboratory
	@scripts/packages.sh

try-package: packages ## the .deb in bare Debian 12 and 13, and under systemd (root, 15 minutes)
	@for suite in bookworm trixie; do scripts/try-package.sh $$suite || exit 1; done
	@scripts/try-systemd.sh

test: ## everything CI checks: format, lints, unit, socket and boot tests, bounded fuzzing
	@scripts/test.sh

bench: ## the paper's tables, peers and more, native guests (2 hours), into docs/results.md
	@scripts/setup.sh build
	$(CARGO) build --release -p vmlan
	@$(RUN_BENCHES)

bench-short: ## the same, fewer and shorter cells, 5 rounds at least (40 minutes; peers: root)
	@scripts/setup.sh build
	$(CARGO) build --release -p vmlan
	@short=--short limit=600; $(RUN_BENCHES)

# Each writes its section; what has failed is named at the end. Budgets end them; `limit` is for one
# that hangs.
define RUN_BENCHES
mkdir -p target/bench; failed=; \
case " $(BENCHES) " in *" peers "*) \
  [ "$$(id -u)" != 0 ] || scripts/setup.sh peers || true ;; esac; \
for name in $(BENCHES); do \
  echo "vmlan bench $$name $$short, from $$(date -u +%H:%M:%S)"; code=0; \
  timeout --foreground -s INT -k 30 $${limit:-3600} \
    target/release/vmlan bench $$name $$short --json target/bench/$$name.json \
    --svg docs/plots/$$name.svg --results docs/results.md --ratios docs/results.json || code=$$?; \
  [ $$code -eq 0 ] || failed="$$failed $$name"; case $$code in 2|130|143) exit $$code ;; esac; \
done; echo "done at $$(date -u +%H:%M:%S)"; \
[ -z "$$failed" ] || { echo "not everything was measured:$$failed" >&2; exit 1; }
endef

bench-compare: ## whether two runs' ratios agree: OLD=FILE [NEW=docs/results.json]
	$(CARGO) build --release -p vmlan-lab --bin compare-results
	target/release/compare-results $(OLD) $(or $(NEW),docs/results.json)

bench-switch: ## micro-benchmarks of the switch with in-process ports
	@scripts/setup.sh build
	$(CARGO) bench -p vmlan-lab --bench switch

bench-instructions: ## instructions of a frame to a flooded receiver, by callgrind (5 minutes)
	@scripts/setup.sh build instructions
	@scripts/instructions.sh

bench-peers: ## vmlan beside OVS-DPDK and others, testpmd as the guest (root: hugepages, namespaces)
	@$(MAKE) --no-print-directory bench BENCHES=peers

# Where a host with KVM keeps what it measured: see docs/measuring-with-kvm.md.
GUESTS := target/bench/guests
bench-guests: ## the paper's tables with Linux guests' sockets (KVM, or TCG: hours); SHORT=--short
	@scripts/setup.sh build test
	$(CARGO) build --release -p vmlan
	@rm -rf $(GUESTS) && mkdir -p $(GUESTS)
	@target/release/vmlan probe --json > $(GUESTS)/probe.json || true
	@{ git rev-parse HEAD; uname -a; grep -m 1 'model name' /proc/cpuinfo; \
	  qemu-system-x86_64 --version | head -n 1; } > $(GUESTS)/machine.txt 2>&1 || true
	@code=0; target/release/vmlan bench guests $(SHORT) --json $(GUESTS)/guests.json \
	  --svg $(GUESTS)/guests.svg --results $(GUESTS)/guests.md --ratios $(GUESTS)/ratios.json \
	  || code=$$?; tar -C target/bench -czf $(GUESTS).tar.gz guests; \
	  echo "all of it is in $(GUESTS).tar.gz"; exit $$code

bench-kvm: ## the KVM analysis with Linux guests (TCG): TCP windows, register accesses (10 minutes)
	@scripts/setup.sh build test
	$(CARGO) build --release -p vmlan -p vmlan-lab
	VMLAN_BIN="$(CURDIR)/target/release/vmlan" target/release/kvm-tcp-window

# Each fuzz target runs for so long in `make soak`.
SOAK_SECONDS ?= 3600
soak: ## long runs: property tests, 1,000 times kill -9, 40 moves, hours of fuzzing (SOAK_SECONDS)
	@scripts/setup.sh build test kernels
	PROPTEST_CASES=20000 $(CARGO) test --release --workspace --exclude vmlan-tests --lib --quiet
	$(CARGO) build --release -p vmlan
	VMLAN_BIN="$(CURDIR)/target/release/vmlan" \
	  $(CARGO) test -p vmlan-tests -- --ignored --nocapture --test-threads=1
	for kernel in trixie trixie-backports; do \
	  VMLAN_KERNEL=kernels/$$kernel VMLAN_BIN="$(CURDIR)/target/release/vmlan" \
	  $(CARGO) test -p vmlan-tests --test boot_e1000 --test boot_e1000e --test boot_vmxnet3 \
	    -- --nocapture --test-threads=1 || exit 1; done
	scripts/fuzz.sh $(SOAK_SECONDS)
	@for folder in fuzz/corpus/*/; do \
	  fuzz/run.sh $$(basename $$folder) 0 -merge=1 || exit 1; done
	@git status --short fuzz/corpus | tail -n 5; echo "new inputs are in fuzz/corpus: commit them"
