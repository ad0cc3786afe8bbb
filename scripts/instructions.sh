#!/usr/bin/env bash
# Instructions for each frame to receivers that are flooded (the fairness paper's figure 10), as
# callgrind counts them: the same numbers in each run, whatever else the machine does. A Markdown
# table; takes some minutes.
#   scripts/instructions.sh            all sizes and queues
#   scripts/instructions.sh 60         frames of 60 bytes only
# data/switch/benches/flooded.rs is what runs. CARGO and PROFILE (default: bench) choose the build.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
command -v valgrind >/dev/null ||
  { echo "instructions: valgrind is missing; run: scripts/setup.sh instructions" >&2; exit 1; }
sizes=${*:-60 512 1514}

built=$(${CARGO:-cargo} bench --profile "${PROFILE:-bench}" -p vmlan-switch --bench flooded \
  --no-run 2>&1) || { echo "$built" >&2; exit 1; }
program=$(sed -n 's/.*Executable.*(\(.*\))$/\1/p' <<<"$built")

# run NIC BYTES QUEUES LIMIT: sets offered, delivered and instructions.
run() {
  local said
  said=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null \
    --toggle-collect='*measured_*' "$program" "$@" 2>&1) || { echo "$said" >&2; exit 1; }
  read -r offered delivered < <(sed -n 's/^offered \([0-9]*\) delivered \([0-9]*\)$/\1 \2/p' \
    <<<"$said")
  instructions=$(sed -n 's/.*Collected *: *\([0-9]*\).*/\1/p' <<<"$said")
}

echo "Commit $(git rev-parse --short=7 HEAD); $(rustc --version)."
echo
echo "| receiver | bytes | queues | offered/s | no limit: a frame offered | 24k: passed/s |" \
  "a frame offered | times fewer |"
echo "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
for nic in e1000 virtio; do
  for bytes in $sizes; do
    for queues in 1 4; do
      run "$nic" "$bytes" "$queues" none
      open=$instructions
      run "$nic" "$bytes" "$queues" 24k
      awk -v nic=$nic -v bytes="$bytes" -v queues=$queues -v open="$open" \
        -v some="$instructions" -v offered="$offered" -v passed="$delivered" 'BEGIN {
          printf "| %s | %d | %d | %d | %.0f | %d | %.0f | %.1f |\n", nic, bytes, queues,
            10 * offered, open / offered, 10 * passed, some / offered, open / some }'
    done
  done
done
