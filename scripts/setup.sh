#!/usr/bin/env bash
# setup.sh GROUP...: what vmlan's targets need from Debian 12 or 13, nothing more.
#   build   make, a linker for cargo, and cargo itself if there is none (Debian 13 packages rustup)
#   test    QEMU, busybox, iperf3, ethtool, tshark, DPDK's testpmd; a guest kernel, unpacked and not
#           installed; where QEMU is older than 10.1.1, whose vfio-user has faults, also the one of
#           Debian 13's backports, unpacked in the same way
#   vms     QEMU, busybox and a guest kernel, for `make two-vms`
#   peers   what `make bench-peers` measures beside vmlan: OVS-DPDK, DPDK, VDE
# As root it installs what is missing and says so. Otherwise it prints the commands that would, all of
# them at once, and exits 1. A toolchain that somebody has chosen is never changed.
# The guest kernel and the newer QEMU go to $VMLAN_CACHE (default: $XDG_CACHE_HOME/vmlan or
# ~/.cache/vmlan) and need no root.
set -euo pipefail

cache=${VMLAN_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/vmlan}
tree=$(cd "$(dirname "$0")/.." && pwd)
lists_fresh=no

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

packages() {
  case $1 in
    build) echo make gcc libc6-dev ;;
    test) echo qemu-system-x86 busybox-static iperf3 ethtool tshark iproute2 util-linux procps dpdk-dev u-boot-qemu ;;
    vms) echo qemu-system-x86 busybox-static cpio ;;
    peers) echo openvswitch-switch-dpdk dpdk-dev vde2 iproute2 procps ;;
    *) printf 'setup: no group "%s"; groups: build test vms peers\n' "$1" >&2; exit 2 ;;
  esac
}

why() {
  case $1 in
    build) echo "what cargo needs to link" ;;
    test) echo "real guests, their tools, and an independent virtio-user peer for the tests" ;;
    vms) echo "two VMs to look at" ;;
    peers) echo "the switches that bench-peers measures beside vmlan" ;;
  esac
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

fresh_lists() {
  [ "$lists_fresh" = no ] || return 0
  [ "$(id -u)" = 0 ] || return 0
  apt-get update -qq -o DPkg::Lock::Timeout=300 || say "apt-get update failed; going on with the lists at hand"
  lists_fresh=yes
}

# Debian starts every daemon it installs; a measuring machine must not get a second Open vSwitch from us.
hold_daemons() {
  [ -e /usr/sbin/policy-rc.d ] && return
  printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
  chmod 755 /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
}

# Sets `missing` to the packages that are not there, of all groups, and `reasons` to what they are for.
find_missing() {
  local group p
  missing=()
  reasons=()
  for group in "$@"; do
    for p in $(packages "$group"); do
      ! installed "$p" || continue
      case " ${missing[*]} " in *" $p "*) continue ;; esac
      missing+=("$p")
      case "${reasons[*]}" in *"$(why "$group")"*) ;; *) reasons+=("$(why "$group");") ;; esac
    done
  done
}

# Sets `toolchain` to what the user must run for a cargo that is new enough, or to nothing, and
# adds to `missing` the packages that this takes.
find_cargo() {
  local wanted found
  toolchain=
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$tree/Cargo.toml")
  # Unquoted: it may be two words, like "cargo +stable".
  # shellcheck disable=SC2086
  found=$(cd "$tree" && ${CARGO:-cargo} --version 2>/dev/null | cut -d' ' -f2) || true
  if [ -n "$found" ] && [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ]; then return 0; fi
  cargo_found=${found:-none}
  cargo_wanted=$wanted
  if command -v rustup >/dev/null; then
    toolchain="rustup update stable && rustup default stable"
  elif has_rustup_package; then
    missing+=(rustup ca-certificates)
    toolchain="rustup default stable"
  else
    missing+=(curl ca-certificates)
    toolchain="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . \"\$HOME/.cargo/env\""
  fi
}

# Debian packages it since 13. The lists of apt may be empty here, so they are not asked.
has_rustup_package() {
  ! grep -qE '^VERSION_ID="?(11|12)"?$' /etc/os-release
}

# One message for everything.
name_what_is_missing() {
  {
    [ ${#missing[@]} = 0 ] || say "missing: ${missing[*]}"
    [ -z "$toolchain" ] || say "missing: cargo $cargo_wanted or later (found: $cargo_found)"
    say "please run:"
    [ ${#missing[@]} = 0 ] || echo "  (as root)  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    [ -z "$toolchain" ] || echo "  (as the user who builds)  $toolchain"
  } >&2
  exit 1
}

install_missing() {
  local log
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}: ${reasons[*]%;}"
  hold_daemons
  fresh_lists
  log=$(mktemp)
  if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      -o DPkg::Lock::Timeout=300 "${missing[@]}" >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    die "apt-get could not install ${missing[*]} (its last lines are above, the whole in $log)"
  fi
  rm -f "$log"
}

# Only where there is none at all: a toolchain belongs to the user who builds.
install_toolchain() {
  [ -n "$toolchain" ] || return 0
  if [ "$cargo_found" != none ] || ! command -v rustup >/dev/null; then
    die "needs cargo $cargo_wanted or later (found: $cargo_found); run:  $toolchain"
  fi
  say "installing the stable Rust toolchain with rustup, for root"
  rustup default stable >/dev/null 2>&1 || die "rustup could not install a toolchain; run:  rustup default stable"
}

# The newest kernel that Debian's meta package names, unpacked beside the harness: guests boot it, the host does not.
guest_kernel() {
  [ -e "$cache/kernel/ready" ] && return 0
  local name work
  fresh_lists
  name=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/{print $2; exit}')
  [ -n "$name" ] || die "apt knows no linux-image-amd64; as root run:  apt-get update"
  say "downloading $name into $cache/kernel: the kernel of the test guests (unpacked, not installed)"
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/new.XXXXXX")
  (cd "$work" && apt-get download -qq "$name" 2>err && dpkg-deb -x "$name"_*.deb kernel) \
    || { cat "$work/err" >&2; rm -rf "$work"; die "could not fetch $name; as root run:  apt-get update"; }
  touch "$work/kernel/ready"
  rm -rf "$cache/kernel"
  mv "$work/kernel" "$cache/kernel"
  rm -rf "$work"
}

# Debian 12's QEMU is too old for vfio-user, and 13's own too. The backport is unpacked with every library it needs and run by
# its own loader: no chroot, no root, nothing installed. Apt resolves and verifies, in a state of its own.
new_qemu() {
  [ ! -e "$cache/qemu/ready" ] || return 0
  local found wanted=10.1.1
  found=$(qemu-system-x86_64 --version 2>/dev/null | sed -n 's/.*version \([0-9.]*\).*/\1/p') || true
  if [ -n "$found" ] && [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ]; then return 0; fi
  say "downloading QEMU of Debian 13's backports into $cache/qemu: the tests' vfio-user client (70 MB to fetch, 160 MB unpacked, not installed)"
  mkdir -p "$cache"
  local work
  work=$(mktemp -d "$cache/new.XXXXXX")
  if ! unpack_qemu "$work" >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    rm -rf "$work"
    die "could not unpack QEMU (the last lines are above); it needs the suites trixie and trixie-backports of the mirror that apt uses here"
  fi
  rm -rf "$cache/qemu"
  mv "$work/qemu" "$cache/qemu"
  rm -rf "$work"
}

unpack_qemu() (
  # Called in a condition, where bash ignores -e: so each step says what follows its failure.
  cd "$1" || exit
  fresh_lists
  # The mirror as apt has it, whichever way its sources are written.
  mirror=$(apt-get indextargets --format '$(SITE)' 'Label: Debian' 'Created-By: Packages' | head -n 1)
  [ -n "$mirror" ] || { echo "apt knows no mirror of Debian; as root run:  apt-get update"; exit 1; }
  mkdir -p lists/partial cache/archives/partial qemu || exit
  keys=/usr/share/keyrings/debian-archive-keyring.gpg
  signed=; [ ! -e $keys ] || signed="[signed-by=$keys] "
  printf "deb $signed$mirror %s main\n" trixie trixie-backports > sources.list
  printf 'Package: qemu* ipxe* seabios*\nPin: release n=trixie-backports\nPin-Priority: 900\n' > preferences
  : > status
  own=(-q -o "Dir::State::Lists=$PWD/lists" -o "Dir::State::status=$PWD/status" -o "Dir::Cache=$PWD/cache"
    -o "Dir::Etc::sourcelist=$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::Etc::preferences=$PWD/preferences" -o Dir::Etc::preferencesparts=/dev/null
    -o APT::Sandbox::User=root -o Acquire::Languages=none -o Debug::NoLocking=1)
  apt-get "${own[@]}" update || exit
  apt-get "${own[@]}" --yes --no-install-recommends --download-only install qemu-system-x86 || exit
  for package in cache/archives/*.deb; do dpkg-deb -x "$package" qemu || exit; done
  rm -rf qemu/usr/share/doc qemu/usr/share/man qemu/usr/share/locale qemu/var qemu/etc
  loader=$(cd qemu && echo usr/lib/*/ld-linux*.so.*)
  {
    echo '#!/bin/sh'
    echo '# Debian'"'"'s QEMU with the loader and the libraries it was built for, wherever this directory lies.'
    echo 'here=${0%/*}'
    echo "exec \"\$here/$loader\" --library-path \"\$here/${loader%/*}\" \"\$here/usr/bin/qemu-system-x86_64\" \\"
    echo '  -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" "$@"'
  } > qemu/qemu-system-x86_64 || exit
  chmod 755 qemu/qemu-system-x86_64 && qemu/qemu-system-x86_64 --version && touch qemu/ready
)

[ $# -gt 0 ] || { echo "usage: scripts/setup.sh build|test|vms|peers ..." >&2; exit 2; }
for group in "$@"; do packages "$group" >/dev/null; done
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null \
  || die "this script knows Debian's apt only; provide the tools of '$*' yourself: $(for g in "$@"; do packages "$g"; done | tr '\n' ' ')"
find_missing "$@"
toolchain=
case " $* " in *" build "*) find_cargo ;; esac
if [ "$(id -u)" = 0 ]; then
  install_missing
  install_toolchain
elif [ ${#missing[@]} -gt 0 ] || [ -n "$toolchain" ]; then
  name_what_is_missing
fi
case " $* " in *" test "* | *" vms "*) guest_kernel ;; esac
case " $* " in *" test "*) new_qemu ;; esac
