#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: runs each fuzz target for SECONDS (default 15), starting from its kept inputs. See fuzz/run.sh.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-15}
shift $(( $# > 0 ? 1 : 0 ))
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for file in fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for target in "${targets[@]}"; do
  if ! ./run.sh "$target" "$seconds" -timeout=10 -rss_limit_mb=2048 -verbosity=0 >"$log" 2>&1; then
    tail -n 40 "$log"
    printf 'fuzz: %s failed; if an input made it fail, it is in fuzz/artifacts/%s\n' "$target" "$target" >&2
    exit 1
  fi
  printf '  fuzz: %s for %d s\n' "$target" "$seconds"
done
