#!/bin/sh
# Fuzzes one target for a while: fuzz/run.sh TARGET [SECONDS [OPTION-OF-LIBFUZZER...]]
# Compiles them and no more: fuzz/run.sh --build
# With FUZZ_QUICK=1 what it compiles is hardly optimised, and only our own crates are instrumented.
# Needs the nightly toolchain and a C++ compiler, but not cargo-fuzz: the flags are those it would
# set with --strip-dead-code, which saves a third of the build. What it finds goes to
# fuzz/artifacts/TARGET, new inputs to fuzz/target/corpus/TARGET; keep them with
#   fuzz/run.sh TARGET 0 -merge=1
set -eu
cd "$(dirname "$0")"
target=${1:?usage: run.sh TARGET [SECONDS [OPTION...]]}
seconds=${2:-60}
shift
[ $# -eq 0 ] || shift
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
FUZZ_FLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Zsanitizer=address \
-Cforce-frame-pointers=yes"
if [ -n "${FUZZ_QUICK:-}" ]; then
  export FUZZ_FLAGS RUSTC_WRAPPER="$PWD/rustc-of-ours.sh"
  export RUSTFLAGS="--cfg fuzzing"
  profile=quick
else
  export RUSTFLAGS="$FUZZ_FLAGS -Ccodegen-units=1"
  profile=release
fi
# `--target` keeps these flags away from build scripts.
[ "$target" != --build ] || exec cargo +nightly build --profile "$profile" --target "$host"
cargo +nightly build --profile "$profile" --target "$host"
export FUZZ_TARGET="$target"
program=target/$host/$profile/vmlan-fuzz
new=target/corpus/$target
mkdir -p "$new" "artifacts/$target" "corpus/$target"
case " $* " in
*" -merge=1 "*) set -- "$@" "corpus/$target" "$new" ;;
*) set -- "$@" "$new" "corpus/$target" ;;
esac
exec "$program" -max_total_time="$seconds" -max_len=4096 \
    -artifact_prefix="artifacts/$target/" "$@"
