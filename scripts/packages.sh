#!/usr/bin/env bash
# packages.sh: `make packages`. Builds one static program without its laboratory and puts it into
# target/packages: vmlan_*.deb, vmlan-*.rpm, vmlan-*.tar.gz, and an OCI image (vmlan-oci.tar).
# What makes the packages is installed into target/tools by cargo; umoci, if it is there, the image.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
arch=$(uname -m)
target=$arch-unknown-linux-gnu
out=target/packages
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

say() { printf 'packages: %s\n' "$*"; }

tool() {
  [ -x "target/tools/bin/$1" ] && return
  say "installing $1 $2 into target/tools"
  $cargo install --quiet --locked --root target/tools --version "$2" "$1"
}

scripts/setup.sh build
tool cargo-deb 3.8.0
tool cargo-generate-rpm 0.21.1
rm -rf "$out"
mkdir -p "$out"

say "building a static vmlan $version"
RUSTFLAGS="-C target-feature=+crt-static" \
  $cargo build --release -p vmlan --no-default-features --target "$target"
strip -o "$out/vmlan" "${CARGO_TARGET_DIR:-target}/$target/release/vmlan"
"$out/vmlan" man "$out/man"
gzip -9n "$out"/man/*.1

printf 'vmlan (%s) unstable; urgency=medium\n\n  * %s\n\n -- %s  %s\n' "$version" \
  "See /usr/share/doc/vmlan/CHANGELOG.md." \
  "The vmlan developers <vmlan@users.noreply.github.com>" \
  "$(LC_ALL=C date -uR -d "@$(git log -1 --format=%ct)")" > "$out/changelog"
target/tools/bin/cargo-deb --quiet -p vmlan --no-build --no-strip -o "$out/"
target/tools/bin/cargo-generate-rpm -p vmlan -o "$out/"

name=vmlan-$version-$arch
mkdir -p "$out/$name"
cp -r "$out/vmlan" "$out/man" packaging/completions README.md CHANGELOG.md LICENSE-* "$out/$name"
tar -C "$out" --owner=0 --group=0 --numeric-owner -czf "$out/$name.tar.gz" "$name"
rm -r "${out:?}/$name"

# From scratch: one file. `podman load` and `skopeo` read an OCI layout in a tar.
if command -v umoci > /dev/null; then
  image=$out/oci
  umoci init --layout "$image"
  umoci new --image "$image:$version"
  umoci insert --rootless --image "$image:$version" "$out/vmlan" /vmlan
  umoci config --image "$image:$version" --config.entrypoint /vmlan --config.cmd --help \
    --config.label org.opencontainers.image.licenses='Apache-2.0 OR MIT'
  tar -C "$image" -cf "$out/vmlan-oci.tar" .
  rm -r "$image"
else
  say "no OCI image: umoci is not installed (apt-get install umoci)"
fi
ls -lh "$out"/*.deb "$out"/*.rpm "$out"/*.tar*
