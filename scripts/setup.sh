#!/usr/bin/env bash
# setup.sh GROUP...: what vmlan's targets need from Debian 12 or 13, nothing more.
#   build   make, a linker for cargo, and cargo itself if there is none (Debian 13 packages rustup)
#   test    QEMU, busybox, iperf3, ethtool, tshark, DPDK's testpmd, Python; a guest kernel and its
#           headers, unpacked and not installed; where QEMU is older than 10.1.1, whose vfio-user
#           has faults, also the one of Debian 13's backports, unpacked in the same way
#   vms     QEMU, busybox and a guest kernel, for `make two-vms`
#   kernels the guest kernels of Debian 13 and of its backports, unpacked and not installed, for the
#           boot tests that `make soak` runs on them
#   hosts   FRR, and what sets namespaces up, for `make demo-hosts`
#   peers   what `make bench-peers` measures beside vmlan: OVS-DPDK, DPDK, VDE; and Debian 13's
#           OVS-DPDK, unpacked and not installed
#   instructions  valgrind, for `make bench-instructions`
# As root it installs what is missing and says so. Otherwise it prints the commands that would, all
# of them at once, and exits 1. A toolchain that somebody has chosen is never changed.
# The guest kernel and the newer QEMU go to $VMLAN_CACHE (default: $XDG_CACHE_HOME/vmlan or
# ~/.cache/vmlan) and need no root.
set -euo pipefail

cache=${VMLAN_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/vmlan}
tree=$(cd "$(dirname "$0")/.." && pwd)
groups="build test vms kernels hosts peers instructions"
lists_fresh=no

# What is removed when this ends, by an interrupt as well: a folder in which something is unpacked,
# and what keeps Debian from starting daemons.
work=
policy=

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

clean() { rm -rf ${work:+"$work"} ${policy:+"$policy"}; }
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Makes $work anew, where `mv` to the cache's other folders is one step. What others left that were
# killed is old.
new_work() {
  rm -rf ${work:+"$work"}
  mkdir -p "$cache"
  find "$cache" -maxdepth 1 -name 'new.*' -mmin +1440 -exec rm -rf '{}' + || true
  work=$(mktemp -d "$cache/new.XXXXXX")
}

packages() {
  case $1 in
    build) echo make gcc libc6-dev ;;
    test)
      echo qemu-system-x86 busybox-static iperf3 ethtool tshark iproute2 util-linux procps dpdk-dev
      echo u-boot-qemu xz-utils zstd python3
      ;;
    vms) echo qemu-system-x86 busybox-static cpio xz-utils zstd ;;
    kernels) echo xz-utils zstd ;;
    hosts) echo frr iproute2 util-linux ;;
    peers) echo openvswitch-switch-dpdk dpdk-dev vde2 iproute2 procps ;;
    instructions) echo valgrind ;;
    *)
      printf 'setup: no group "%s"; groups: %s\n' "$1" "$groups" >&2
      exit 2
      ;;
  esac
}

why() {
  case $1 in
    build) echo "what cargo needs to link" ;;
    test) echo "real guests, their tools, and an independent virtio-user peer for the tests" ;;
    vms) echo "two VMs to look at" ;;
    kernels) echo "guests with newer kernels" ;;
    hosts) echo "BGP between hosts" ;;
    peers) echo "the switches that bench-peers measures beside vmlan" ;;
    instructions) echo "what counts instructions" ;;
  esac
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

fresh_lists() {
  [ "$lists_fresh" = no ] || return 0
  [ "$(id -u)" = 0 ] || return 0
  apt-get update -qq -o DPkg::Lock::Timeout=300 ||
    say "apt-get update failed; going on with the lists at hand"
  lists_fresh=yes
}

# Debian starts every daemon it installs; a measuring machine must not get a second Open vSwitch
# from us.
hold_daemons() {
  [ -e /usr/sbin/policy-rc.d ] && return
  policy=/usr/sbin/policy-rc.d
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
}

# Sets `missing` to the packages that are not there, of all groups, and `reasons` to what they are
# for.
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

# True if version $2 is there, and not older than version $1.
is_new_enough() {
  [ -n "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
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
  ! is_new_enough "$wanted" "$found" || return 0
  cargo_found=${found:-none}
  cargo_wanted=$wanted
  if command -v rustup >/dev/null; then
    toolchain="rustup update stable && rustup default stable"
  elif has_rustup_package; then
    missing+=(rustup ca-certificates)
    toolchain="rustup default stable"
  else
    missing+=(curl ca-certificates)
    toolchain="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y &&"
    toolchain+=" . \"\$HOME/.cargo/env\""
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
    [ ${#missing[@]} = 0 ] ||
      echo "  (as root)  apt-get update &&" \
        "apt-get install -y --no-install-recommends ${missing[*]}"
    [ -z "$toolchain" ] || echo "  (as the user who builds)  $toolchain"
  } >&2
  exit 1
}

install_missing() {
  local log what_for="${reasons[*]}"
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}: ${what_for%;}"
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
  rustup default stable >/dev/null 2>&1 ||
    die "rustup could not install a toolchain; run:  rustup default stable"
}

# The newest kernel that Debian's meta package names, unpacked beside the harness: guests boot it,
# the host does not.
guest_kernel() {
  [ -e "$cache/kernel/ready" ] && return 0
  local name
  fresh_lists
  name=$(kernel_name)
  [ -n "$name" ] || die "apt knows no linux-image-amd64; as root run:  apt-get update"
  say "downloading $name into $cache/kernel: the test guests' kernel (unpacked, not installed)"
  new_work
  if ! (cd "$work" && apt-get download -qq "$name" 2>err && dpkg-deb -x "$name"_*.deb kernel); then
    cat "$work/err" >&2
    die "could not fetch $name; as root run:  apt-get update"
  fi
  touch "$work/kernel/ready"
  rm -rf "$cache/kernel"
  mv "$work/kernel" "$cache/kernel"
}

# kernel_name OPTION...: that package, as apt with these options knows it.
kernel_name() {
  apt-cache "$@" depends linux-image-amd64 | awk '/Depends: linux-image-/{print $2; exit}'
}

# unpacked_kernel DIR: the kernel within that file, which QEMU boots as well: under TCG a guest
# needs longer to unpack it than for the rest of its boot. Where it lies is in the header of the
# file (Linux' boot protocol, setup_sects, payload_offset, payload_length); behind it are four bytes
# of its length. Guests boot the packed one where this is neither xz nor (Debian 13) zstd.
unpacked_kernel() {
  local packed sectors offset length new=$1/boot/new inner=$1/boot/inner
  [ ! -e "$1/boot/vmlinux" ] || return 0
  packed=$(find "$1/boot" -name 'vmlinuz-*' | head -n 1)
  sectors=$(od -An -tu1 -j 497 -N 1 "$packed")
  offset=$(od -An -tu4 -j 584 -N 4 "$packed")
  length=$(($(od -An -tu4 -j 588 -N 4 "$packed") - 4))
  head -c $(((sectors + 1) * 512 + offset + length)) "$packed" | tail -c "$length" >"$inner"
  { xz -dc <"$inner" >"$new" || zstd -dc <"$inner" >"$new"; } 2>/dev/null &&
    mv "$new" "$1/boot/vmlinux"
  rm -f "$new" "$inner"
}

# The kernels of Debian 13 and its backports, each laid out as that of guest_kernel: VMLAN_KERNEL
# names one to the boot tests.
newer_kernels() {
  [ ! -e "$cache/kernels/ready" ] || return 0
  say "downloading the kernels of Debian 13 and its backports into $cache/kernels (unpacked, not" \
    "installed)"
  new_work
  if ! unpack_kernels "$work" >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    die "could not unpack kernels of Debian 13 (the last lines are above); it needs the suites" \
      "trixie and trixie-backports of the mirror that apt uses here"
  fi
  rm -rf "$cache/kernels"
  mv "$work/kernels" "$cache/kernels"
}

unpack_kernels() (
  cd "$1" && apt_of_13 none && mkdir kernels || exit
  for suite in trixie trixie-backports; do
    from=("${own[@]}" -o "APT::Default-Release=$suite")
    name=$(kernel_name "${from[@]}")
    [ -n "$name" ] || { echo "$suite has no linux-image-amd64"; exit 1; }
    # In later ones the kernel and its modules are packages of their own, and it lies beside them.
    parts=$(apt-cache "${from[@]}" depends "$name" |
      awk '/Depends: linux-(binary|modules)-/{print $2}')
    # shellcheck disable=SC2086 # any number of names
    apt-get "${from[@]}" download "$name" $parts || exit
    for package in *.deb; do dpkg-deb -x "$package" "kernels/$suite" || exit; done
    rm -f ./*.deb && mkdir -p "kernels/$suite/boot" || exit
    find "kernels/$suite" -path '*/modules/*/vmlinuz' \
      -exec mv {} "kernels/$suite/boot/vmlinuz-${name#linux-image-}" ';' &&
      unpacked_kernel "kernels/$suite"
  done
  touch kernels/ready
)

# What modules for that kernel are built with (guest/linux). The headers' one absolute path is made
# ours.
kernel_headers() {
  local version name names=()
  version=$(find "$cache"/kernel -path '*lib/modules/*' -prune -printf '%f\n' | head -n 1)
  [ "$(cat "$cache/headers/ready" 2>/dev/null)" != "$version" ] || return 0
  fresh_lists
  name=linux-headers-$version
  # Not the compiler, which `build` installs, nor the kernel.
  mapfile -t names < <(echo "$name"
    apt-cache depends "$name" | awk '/Depends: linux-(headers|kbuild)/{print $2}')
  if [ ${#names[@]} = 1 ]; then
    say "no $name in apt's lists: the tests of the kernel module will be skipped"
    return 0
  fi
  say "downloading ${names[*]} into $cache/headers: what the tests build a module with"
  new_work
  unpack_headers "$work" "${names[@]}" 2>"$work/err" || {
    cat "$work/err" >&2
    die "could not fetch ${names[*]}; as root run:  apt-get update"
  }
  sed -i "s,/usr/src,$cache/headers/usr/src," "$work/headers/usr/src/$name/Makefile"
  ln -s "usr/src/$name" "$work/headers/build"
  echo "$version" > "$work/headers/ready"
  rm -rf "$cache/headers"
  mv "$work/headers" "$cache/headers"
}

unpack_headers() (
  # Called in a condition, where bash ignores -e.
  cd "$1" && shift && mkdir headers && apt-get download -qq "$@" || exit
  for package in *.deb; do dpkg-deb -x "$package" headers || exit; done
)

# Debian 12's QEMU is too old for vfio-user, and 13's own too. The backport is unpacked with every
# library it needs and run by its own loader: no chroot, no root, nothing installed. Apt resolves
# and verifies, in a state of its own.
new_qemu() {
  [ ! -e "$cache/qemu/ready" ] || return 0
  local found wanted=10.1.1
  found=$(qemu-system-x86_64 --version 2>/dev/null |
    sed -n 's/.*version \([0-9.]*\).*/\1/p') || true
  ! is_new_enough "$wanted" "$found" || return 0
  say "downloading QEMU of Debian 13's backports into $cache/qemu: the tests' vfio-user client" \
    "(70 MB to fetch, 160 MB unpacked, not installed)"
  new_work
  if ! unpack_qemu "$work" >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    die "could not unpack QEMU (the last lines are above); it needs the suites trixie and" \
      "trixie-backports of the mirror that apt uses here"
  fi
  rm -rf "$cache/qemu"
  mv "$work/qemu" "$cache/qemu"
}

unpack_qemu() (
  unpack_13 "$1" qemu 'qemu* ipxe* seabios*' qemu-system-x86 && cd "$1/qemu" \
    && wrap . qemu-system-x86_64 usr/bin/qemu-system-x86_64 \
      '-L "$here/usr/share/qemu" -L "$here/usr/share/seabios"' \
    && ./qemu-system-x86_64 --version && touch ready
)

# The newest that Debian has of what bench-peers measures beside vmlan, beside the installed one.
new_peers() {
  [ ! -e "$cache/peers/ready" ] || return 0
  say "downloading Open vSwitch and DPDK of Debian 13 into $cache/peers (unpacked, not installed)"
  new_work
  if ! unpack_peers "$work" >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    die "could not unpack Open vSwitch of Debian 13 (the last lines are above); it needs the" \
      "suites trixie and trixie-backports of the mirror that apt uses here"
  fi
  rm -rf "$cache/peers"
  mv "$work/peers" "$cache/peers"
}

unpack_peers() (
  unpack_13 "$1" peers 'openvswitch* python3-openvswitch dpdk* librte* libdpdk*' \
      openvswitch-switch-dpdk openvswitch-switch openvswitch-common '^librte-mempool-ring[0-9]+$' \
    && cd "$1/peers" && mkdir -p bin || exit
  for program in usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk usr/sbin/ovsdb-server \
      usr/bin/ovsdb-tool usr/bin/ovs-vsctl usr/bin/ovs-appctl; do
    [ -e "$program" ] && wrap .. "bin/${program##*/}" "$program" '' || exit
  done
  # DPDK looks for this driver where it would be installed; bench-peers names it.
  ln -s usr/lib/*/librte_mempool_ring.so.*.* mempool.so && [ -e mempool.so ] \
    && bin/ovs-vswitchd-dpdk --version && touch ready
)

# unpack_13 DIR NAME NEWER PACKAGE...: packages of Debian 13 with every library they need, into
# DIR/NAME; those that match NEWER from its backports, if they are there. Called in a condition,
# where bash ignores -e: so each step says what follows its failure.
unpack_13() (
  cd "$1" || exit
  name=$2 newer=$3
  shift 3
  apt_of_13 "$newer" && mkdir -p "$name" || exit
  apt-get "${own[@]}" --yes --no-install-recommends --download-only install "$@" || exit
  for package in cache/archives/*.deb; do dpkg-deb -x "$package" "$name" || exit; done
  rm -rf "$name"/usr/share/{doc,man,locale} "$name"/var "$name"/etc
)

# apt_of_13 NEWER: makes apt a state of its own in the current folder, which knows Debian 13 and,
# for packages that match NEWER, its backports; sets `own` to the options that select it.
apt_of_13() {
  local mirror keys signed
  fresh_lists
  # The mirror as apt has it, whichever way its sources are written.
  mirror=$(apt-get indextargets --format '$(SITE)' 'Label: Debian' 'Created-By: Packages' |
    head -n 1)
  [ -n "$mirror" ] ||
    { echo "apt knows no mirror of Debian; as root run:  apt-get update"; exit 1; }
  mkdir -p lists/partial cache/archives/partial || exit
  keys=/usr/share/keyrings/debian-archive-keyring.gpg
  signed=; [ ! -e $keys ] || signed="[signed-by=$keys] "
  printf "deb $signed$mirror %s main\n" trixie trixie-backports > sources.list
  printf 'Package: %s\nPin: release n=trixie-backports\nPin-Priority: 900\n' "$1" > preferences
  : > status
  own=(-q -o "Dir::State::Lists=$PWD/lists" -o "Dir::State::status=$PWD/status"
    -o "Dir::Cache=$PWD/cache" -o "Dir::Etc::sourcelist=$PWD/sources.list"
    -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::Etc::preferences=$PWD/preferences" -o Dir::Etc::preferencesparts=/dev/null
    -o APT::Sandbox::User=root -o Acquire::Languages=none -o Debug::NoLocking=1)
  apt-get "${own[@]}" update
}

# wrap UP SCRIPT PROGRAM OPTIONS: a script that runs the program with the loader and the libraries
# it was built for, wherever the unpacked tree (UP from the script) lies.
wrap() {
  local loader
  loader=$(echo usr/lib/*/ld-linux*.so.*)
  {
    echo '#!/bin/sh'
    echo '# A program of Debian 13 with its own loader and libraries.'
    echo "here=\${0%/*}/$1"
    echo "exec \"\$here/$loader\" --library-path \"\$here/${loader%/*}\" \"\$here/$3\" $4 \"\$@\""
  } > "$2" && chmod 755 "$2"
}

if [ $# = 0 ]; then
  echo "usage: scripts/setup.sh GROUP...; groups: $groups" >&2
  exit 2
fi
for group in "$@"; do packages "$group" >/dev/null; done
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  all=$(for group in "$@"; do packages "$group"; done | tr '\n' ' ')
  die "this script knows Debian's apt only; provide the tools of '$*' yourself: $all"
fi
find_missing "$@"
toolchain=
case " $* " in *" build "*) find_cargo ;; esac
if [ "$(id -u)" = 0 ]; then
  install_missing
  install_toolchain
elif [ ${#missing[@]} -gt 0 ] || [ -n "$toolchain" ]; then
  name_what_is_missing
fi
case " $* " in *" test "* | *" vms "*) guest_kernel; unpacked_kernel "$cache/kernel" ;; esac
case " $* " in *" kernels "*) newer_kernels ;; esac
case " $* " in *" test "*) kernel_headers; new_qemu ;; esac
case " $* " in *" peers "*) new_peers ;; esac
