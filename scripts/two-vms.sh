#!/usr/bin/env bash
# two-vms.sh: `make two-vms`. A switch and two Linux VMs in QEMU that ping each other. Prints each
# command that it runs, so that it can be repeated by hand with other guests.
# Needs target/release/vmlan, and what `scripts/setup.sh build vms` provides. No root.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${VMLAN_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/vmlan}
vmlan=$PWD/target/release/vmlan
work=$(mktemp -d /tmp/vmlan.XXXXXX)
api=$work/api.sock
started=()
# In the order in which they depend on each other.
modules="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover"
modules="$modules net_failover virtio_net"

finish() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

die() { printf 'two-vms: %s\n' "$*" >&2; exit 1; }
show() { printf '$ %s\n' "$*"; }

[ -x "$vmlan" ] || die "there is no $vmlan; run: cargo build --release -p vmlan"
kernel=$(ls "$cache"/kernel/boot/vmlinu[xz]* 2>/dev/null | head -n 1) || true
[ -n "$kernel" ] || die "there is no guest kernel in $cache/kernel; run: scripts/setup.sh vms"

# An initramfs of busybox and the modules of virtio-net. Its init takes its name and address from
# the kernel's command line and pings the other VM.
initramfs() {
  local root=$work/root module file
  mkdir -p "$root"/{bin,lib,proc,sys,dev}
  cp "$(command -v busybox || echo /bin/busybox)" "$root/bin/busybox"
  for module in $modules; do
    file=$(find "$cache/kernel" -name "$module.ko*" | head -n 1)
    case $file in
      *.xz) busybox unxz -c "$file" > "$root/lib/$module.ko" ;;
      ?*) cp "$file" "$root/lib/$module.ko" ;;
    esac
  done
  cat > "$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
for word in $(cat /proc/cmdline); do case $word in me=*|peer=*) eval "$word" ;; esac; done
for module in @modules@; do
  [ ! -e /lib/$module.ko ] || insmod /lib/$module.ko
done
until [ -e /sys/class/net/eth0 ]; do sleep 1; done
ip addr add "$me/24" dev eth0 && ip link set eth0 up
until ping -c 1 -W 1 "$peer" >/dev/null 2>&1; do sleep 1; done
ping -c 5 "$peer"
echo DONE
while :; do sleep 60; done
INIT
  sed -i "s/@modules@/$modules/" "$root/init"
  chmod +x "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) > "$work/initramfs.gz"
}

vm() {
  local name=$1 address=$2 peer=$3 arguments
  arguments=$("$vmlan" vm-args "$name" --api "$api" --memory 256M "${tcg[@]}")
  show "qemu-system-x86_64 $arguments -nographic -kernel ... -initrd ..."
  # The arguments are words without quotes.
  # shellcheck disable=SC2086
  qemu-system-x86_64 $arguments "${accel[@]}" -nographic -no-reboot \
    -kernel "$kernel" -initrd "$work/initramfs.gz" \
    -append "console=ttyS0 quiet me=$address peer=$peer" > "$work/$name.log" 2>&1 </dev/null &
  started+=($!)
}

# A /dev/kvm without hardware behind it opens too, and is slower than no KVM at all.
if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accel=(-enable-kvm -cpu host); tcg=()
else accel=(); tcg=(--tcg); fi

initramfs
show "vmlan switch vm1=vhost-user:$work/vm1.sock vm2=vhost-user:$work/vm2.sock"
"$vmlan" switch --api "$api" "vm1=vhost-user:$work/vm1.sock" \
  "vm2=vhost-user:$work/vm2.sock" > "$work/switch.log" 2>&1 &
started+=($!)
for _ in $(seq 100); do [ -S "$api" ] && break; sleep 0.1; done
[ -S "$api" ] || { cat "$work/switch.log" >&2; die "the switch did not start"; }

vm vm1 10.77.0.1 10.77.0.2
vm vm2 10.77.0.2 10.77.0.1
for _ in $(seq 180); do
  grep -q '^DONE' "$work/vm1.log" 2>/dev/null && break
  kill -0 "${started[1]}" 2>/dev/null || break
  sleep 1
done
tr -d '\r' < "$work/vm1.log" | sed -n 's/.*PING/PING/; /^PING/,/round-trip/p'
show "vmlan stats"
"$vmlan" stats --api "$api"
tr -d '\r' < "$work/vm1.log" | grep -q '^DONE' \
  || { tail -n 20 "$work/vm1.log" >&2; die "the VMs did not reach each other"; }
