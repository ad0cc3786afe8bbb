#!/usr/bin/env bash
# test.sh: `make test`. One stage after the other, each with its time; the first failure ends it.
# Only the fuzz targets are compiled beside the tests.
# With KEEP_GOING=1 the others run all the same, and it fails at the end. What tests have skipped is
# listed there.
# Aims: below 25 minutes on 2 cores from a fresh clone, compiling included.
set -euo pipefail
cd -P "$(dirname "$0")/.."
FUZZ_SECONDS=${FUZZ_SECONDS:-3}
# The same cases in every run: whether a change passes is not a matter of luck. `make soak` throws
# the dice.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20130226}
export FUZZ_SEED=${FUZZ_SEED:-20130226}
begin=$SECONDS
failed=
jobs=$(( $(nproc) < 2 ? 2 : 3 ))
list=$(mktemp)
fuzz_build=
end() {
  [ -z "$fuzz_build" ] || kill "$fuzz_build" 2>/dev/null || true
  rm -f "$list" "$list".*
}
trap end EXIT

say() { printf '[%s +%4ds] %s\n' "$(date -u +%H:%M:%S)" $((SECONDS - begin)) "$*"; }

stage() {
  local name=$1 from=$SECONDS
  shift
  say "$name"
  if "$@"; then
    say "ok: $name ($((SECONDS - from)) s)"
  else
    say "FAILED: $name: $*" >&2
    failed="$failed, $name"
    [ -n "${KEEP_GOING:-}" ] || exit 1
  fi
}

# Builds every test program and lists them: the folder of its package, a tab, its file. Everything
# is selected at once: with fewer packages cargo selects other features of what they depend on, and
# builds that once more.
build() {
  cargo test --workspace --no-run --quiet \
    --message-format=json-render-diagnostics >"$list.json" &&
    programs <"$list.json" >"$list" && complete
}

# What `build` lists, from cargo's messages.
programs() {
  python3 -c '
import json, os, sys
for made in map(json.loads, sys.stdin):
    if made.get("executable") and made["profile"]["test"]:
        print(os.path.relpath(os.path.dirname(made["manifest_path"])), made["executable"], sep="\t")
'
}

# Each file in tests/ of a package is a program: fails if one is not listed.
complete() {
  local file folder missing=
  for file in */tests/*.rs */*/tests/*.rs; do
    folder=${file%/tests/*}
    [ -e "$folder/Cargo.toml" ] || continue
    grep -q "^$folder"$'\t'".*/$(basename "$file" .rs)-[0-9a-f]*$" "$list" ||
      missing="$missing $file"
  done
  [ -z "$missing" ] || { echo "cargo has built no program of$missing" >&2; return 1; }
}

# What the tests did not try, from a program's output. A test says why in a line that begins with
# "skipped: "; with --nocapture the line may stand behind the test's name.
skips() {
  awk -v program="$1" '
    /^---- .* stdout ----$/ || /^test / { test = $2 }
    /^(test [^ ]+ \.\.\. )? *skipped: / {
      sub(/^.*skipped: /, ""); print "  " program " " test ": " $0
    }'
}

# One test program, in its package's folder. Its output is shown when it ends, for several run at a
# time: all of it if it failed, or if it is one of tests/, which tell what they have measured. What
# it has skipped is kept for the end.
one() {
  local folder=${1%%$'\t'*} program=${1#*$'\t'} options='--quiet --show-output'
  local name log from=$SECONDS code=0 TIMEFORMAT='%U %S'
  # Another one has failed.
  [ ! -e "$list.failed" ] || return 0
  name=$(basename "$program")
  [ "$folder" != tests ] || options='--nocapture --test-threads=1'
  log=$(mktemp)
  # shellcheck disable=SC2046,SC2086 # two options; two times
  {
    time (
      cd "$folder" && CARGO_MANIFEST_DIR=$PWD "$program" $options >"$log" 2>&1 </dev/null
    )
  } 2>"$log.cpu" || code=$?
  # What the shell says of a program that a signal has ended comes before the two times.
  head -n -1 "$log.cpu" >>"$log"
  {
    flock 9
    if [ $code != 0 ] || [ "$folder" = tests ]; then cat "$log"; fi
    skips "$folder/${name%-*}" <"$log" >>"$list.skipped"
    echo "$name" >>"$list.ran"
    printf '[%s] %s %s: %s (%d s, %.0f + %.0f s of CPU)\n' "$(date -u +%H:%M:%S)" "$folder" \
      "${name%-*}" "$([ $code = 0 ] && echo ok || echo "FAILED with exit code $code")" \
      $((SECONDS - from)) $(tail -n 1 "$log.cpu")
  } 9>>"$list"
  rm -f "$log" "$log.cpu"
  [ $code = 0 ] || [ -n "${KEEP_GOING:-}" ] || touch "$list.failed"
  return $code
}

# The programs that standard input lists, so many at a time.
run() { xargs -d '\n' -P "$1" -I '{}' bash -c 'one "$1"' - '{}'; }

# Those of tests/ that boot guests, the longest ones first: the last one is not to run alone.
boots() {
  local name names="boot_realtek boot_vmxnet3 boot_e1000e boot_e1000 boot_linux_module"
  for name in $names; do grep "/$name-[0-9a-f]*$" "$list" || true; done
  grep ^tests$'\t' "$list" | grep '/boot[^/]*$' |
    grep -vE "/(${names// /|})-[0-9a-f]*$" || true
}

# Of the others each package's own come first: they say most about what is wrong.
others() {
  grep -v ^tests$'\t' "$list"
  grep ^tests$'\t' "$list" | grep -v '/boot[^/]*$' || true
}

# Boot tests run one more at a time than there are processors, three at most, for they wait for
# their guests. Beside them run three others, of which the longest mostly sleep; more threads than
# cores, for some of their tests wait for a time to pass. It is one pipeline, though nothing passes
# from the one half to the other, so that an interrupt of the terminal ends all of it.
tests() {
  { boots | run "$jobs" >&3 | others | RUST_TEST_THREADS=4 run 3; } 3>&1 && all_ran &&
    cargo test --workspace --doc --quiet
}

all_ran() {
  local ran
  ran=$(sort -u "$list.ran" | wc -l)
  [ "$ran" = "$(wc -l <"$list")" ] || { echo "only $ran test programs have run" >&2; return 1; }
}

export list
export -f one skips

can_fuzz() {
  [ -d fuzz/corpus ] && rustc +nightly --version >/dev/null 2>&1 && command -v c++ >/dev/null
}

# Compiles the fuzz targets beside the tests, which have most of the time. A few seconds a target
# are not worth a build as thorough as that of `make soak`. It is to be done before they are: its
# end is one crate after the other, for which one core is enough.
begin_fuzz_build() {
  FUZZ_QUICK=1 nice -n 5 fuzz/run.sh --build >/dev/null 2>&1 </dev/null &
  fuzz_build=$!
}

# If compiling has failed, it fails once more, and says why.
fuzz() {
  wait "$fuzz_build" || true
  fuzz_build=
  FUZZ_QUICK=1 scripts/fuzz.sh "$FUZZ_SECONDS"
}

stage "set-up" scripts/setup.sh build test
# What was installed is tried. Root has what the tests of devices take: without it, those of the
# program fail as well.
export VMLAN_REQUIRE_PEERS=1
[ "$(id -u)" != 0 ] || export VMLAN_REQUIRE_ROOT=1
# Without FRR, or without root, its test is skipped.
[ "$(id -u)" != 0 ] || scripts/setup.sh hosts || true
stage "format and lints" scripts/lint.sh
stage "vmlan as it is packaged, without its laboratory" \
  cargo check -p vmlan --no-default-features --quiet
stage "build the program and its tests" build
# The program is built as its tests are, where an overflow panics. VMLAN_BIN names another one:
# `make soak` takes a release.
export VMLAN_BIN=${VMLAN_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/debug/vmlan}
if can_fuzz; then begin_fuzz_build; fi
stage "all tests, $jobs with guests and 3 without at a time" tests
if [ -n "$fuzz_build" ]; then
  stage "fuzz" fuzz
else
  echo "  fuzz: skipped, it needs the nightly toolchain and a C++ compiler;" \
    "the kept inputs were replayed above"
fi
if [ -s "$list.skipped" ]; then
  say "$(wc -l <"$list.skipped") skipped:"
  cat "$list.skipped"
fi
[ -z "$failed" ] || { say "FAILED:${failed#,}" >&2; exit 1; }
say "all passed"
