#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: runs each fuzz target for SECONDS (default 15), starting from its kept inputs.
# Needs the nightly toolchain and a C++ compiler; cargo-fuzz is not needed, its flags are these. What is found on the way stays in a
# temporary directory; an input that fails is kept in fuzz/artifacts/TARGET and named.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-15}
shift $(( $# > 0 ? 1 : 0 ))
triple=$(rustc +nightly -vV | awk '/^host:/{print $2}')
export RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
cargo +nightly build --quiet --release --target "$triple" --target-dir target
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for file in fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
for target in "${targets[@]}"; do
  kept=corpus/$target
  mkdir -p "$found/$target" "artifacts/$target"
  dirs=("$found/$target")
  [ -d "$kept" ] && dirs+=("$kept")
  if ! "target/$triple/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
      -artifact_prefix="artifacts/$target/" "${dirs[@]}" >"$found/log" 2>&1; then
    tail -n 40 "$found/log"
    printf 'fuzz: %s failed; its input is in fuzz/artifacts/%s\n' "$target" "$target" >&2
    exit 1
  fi
  rmdir --ignore-fail-on-non-empty "artifacts/$target"
  printf '  fuzz: %s for %d s, %d new inputs\n' "$target" "$seconds" "$(find "$found/$target" -type f | wc -l)"
done
rmdir --ignore-fail-on-non-empty artifacts
