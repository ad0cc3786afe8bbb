#!/usr/bin/env bash
# fuzz-coverage.sh [TARGET...]: how many lines of the code that a fuzz target is for its kept inputs
# reach, as rows of the table in docs/fuzzing.md, and the files that they reach least. Needs nightly
# with llvm-tools.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
tools=$(rustc +nightly --print sysroot)/lib/rustlib/$host/bin
out=target/coverage
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for file in fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi

# What each target is for.
code() {
  case $1 in
  api) echo control/api/src ;;
  capture) echo guest/tools/src/pktgen/capture.rs ;;
  chip_state) echo data/nic/src/chip/state.rs ;;
  claims) echo data/switch/src/policy/source_check.rs data/switch/src/policy/source_check ;;
  config) echo control/config/src ;;
  e1000) echo data/nic/src/e1000 data/nic/src/ring data/nic/src/chip ;;
  frame) echo data/frame/src ;;
  gateway_dhcp | gateway_dns) echo services/gateway/src/services ;;
  gateway_frames) echo services/gateway/src ;;
  r8169) echo data/nic/src/r8169 data/nic/src/realtek ;;
  rtl8139) echo data/nic/src/rtl8139 ;;
  stream) echo data/uplink/src/stream data/uplink/src/inbox.rs ;;
  switch) echo data/switch/src control/engine/src/ports ;;
  vfio_user) echo control/attach/src/vfio_user ;;
  vhost_user) echo control/attach/src/vhost_user ;;
  virtqueue) echo data/nic/src/virtio ;;
  vmxnet3) echo data/nic/src/vmxnet3 ;;
  esac
}

export RUSTFLAGS="-Cinstrument-coverage --cfg fuzzing"
cargo +nightly build --quiet --target "$host" --target-dir "$out" --bins
for target in "${targets[@]}"; do
  program=$out/$host/debug/$target
  rm -f "$out/$target".*
  find "corpus/$target" -type f -print0 |
    LLVM_PROFILE_FILE=$out/$target.%p.raw xargs -0 -n 2000 "$program" -rss_limit_mb=0 \
      >/dev/null 2>&1
  "$tools/llvm-profdata" merge -sparse -o "$out/$target.data" "$out/$target".*.raw
  read -ra paths < <(code "$target")
  "$tools/llvm-cov" report "$program" -instr-profile="$out/$target.data" \
    -show-region-summary=0 -show-branch-summary=0 \
    -ignore-filename-regex='fuzz(/.*)?\.rs$|/tests' "${paths[@]/#/../}" |
    awk -v target="$target" -v paths="${paths[*]}" '
      $NF ~ /%$/ && $1 != "TOTAL" {
        percent = $NF
        sub("%", "", percent)
        if (percent + 0 < 60) least = least " " $1 " " $NF
      }
      $1 == "TOTAL" {
        printf "| %s | `%s` | %s of %d | %s |\n", target, paths, $NF, $(NF - 2), least
      }'
done
