#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: runs each fuzz target for SECONDS (default 15), starting from its
# kept inputs, as many at a time as there are processors, two at most. See fuzz/run.sh. FUZZ_SEED:
# where the dice begin.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-15}
# An input that takes longer is a fault; not on a busy machine in a build that is slow anyway.
limit=10
[ -z "${FUZZ_QUICK:-}" ] || limit=60
shift $(( $# > 0 ? 1 : 0 ))
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for folder in corpus/*/; do targets+=("$(basename "$folder")"); done
fi
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# The end of the log of a target that failed is all that is said.
fuzz() {
  if ! ./run.sh "$1" "$seconds" -timeout="$limit" -rss_limit_mb=2048 -verbosity=0 \
    ${FUZZ_SEED:+-seed="$FUZZ_SEED"} >"$logs/$1" 2>&1; then
    tail -n 40 "$logs/$1"
    printf 'fuzz: %s failed; if an input made it fail, it is in fuzz/artifacts/%s\n' "$1" "$1" >&2
    return 1
  fi
  printf '  fuzz: %s for %d s\n' "$1" "$seconds"
}

jobs=$(nproc)
[ "$jobs" -le 2 ] || jobs=2
running=()
code=0
for target in "${targets[@]}"; do
  if [ ${#running[@]} -ge "$jobs" ]; then
    wait "${running[0]}" || code=1
    running=("${running[@]:1}")
  fi
  fuzz "$target" &
  running+=($!)
done
for one in "${running[@]}"; do wait "$one" || code=1; done
exit $code
