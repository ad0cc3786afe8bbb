#!/usr/bin/env bash
# lint.sh: format and lints. What a newer rustfmt or clippy thinks of this code is not known when it
# is written, so only the toolchain named in scripts/lint-toolchain judges: if it is installed, a
# finding is a failure. With any other one the findings are shown, and nothing fails.
set -euo pipefail
cd "$(dirname "$0")/.."
locked=$(cat scripts/lint-toolchain)
cargo=${CARGO:-cargo}

# Unquoted $cargo, here and below: it may be two words, like "cargo +stable".
version() { $1 "${@:2}" --version 2>/dev/null | cut -d' ' -f2; }
has() { $1 "$2" --version >/dev/null 2>&1; }

found=$(version "$cargo") || true
judged=yes
if [ "$found" != "$locked" ]; then
  if [ "$(version cargo "+$locked")" = "$locked" ]; then cargo="cargo +$locked"; else judged=no; fi
fi

if [ $judged = no ]; then
  echo "  format and lints are shown and not judged: this is Rust ${found:-(none)}," \
    "they are judged by $locked (rustup toolchain install $locked --component clippy,rustfmt)"
fi
if has "$cargo" fmt; then
  $cargo fmt --all --check || [ $judged = no ]
else
  echo "  format: skipped, there is no rustfmt (rustup component add rustfmt)"
fi
if has "$cargo" clippy; then
  if [ $judged = yes ]; then
    $cargo clippy --workspace --all-targets --quiet -- -D warnings
  else
    $cargo clippy --workspace --all-targets --quiet -- --cap-lints warn
  fi
else
  echo "  lints: skipped, there is no clippy (rustup component add clippy)"
fi
