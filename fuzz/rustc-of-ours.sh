#!/bin/sh
# As RUSTC_WRAPPER of run.sh: instruments our own crates, what is attacked, and not those that they
# depend on, which are most of a build.
crate=
previous=
for word in "$@"; do
  [ "$previous" != --crate-name ] || crate=$word
  previous=$word
done
# shellcheck disable=SC2086 # several flags
case $crate in vmlan*) exec "$@" $FUZZ_FLAGS ;; *) exec "$@" ;; esac
