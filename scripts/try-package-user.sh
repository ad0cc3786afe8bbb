#!/usr/bin/env bash
# try-package-user.sh: what the ordinary user does whom try-package.sh starts in a bare root.
set -euo pipefail
cd "$(mktemp -d)"
# As a login makes it.
export XDG_RUNTIME_DIR=$PWD/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
modules="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover"
modules="$modules net_failover virtio_net"

die() { printf 'FAILED: %s\n' "$*" >&2; tail -n 15 ./*.log >&2; exit 1; }
show() { printf '$ %s\n' "$*"; }

mkdir -p root/{bin,lib,proc,sys,dev,etc,tmp}
cp /bin/busybox root/bin/busybox
for module in $modules; do
  file=$(find /lib/modules -name "$module.ko*" | head -n 1)
  case $file in
    *.xz) busybox unxz -c "$file" > "root/lib/$module.ko" ;;
    ?*) cp "$file" "root/lib/$module.ko" ;;
  esac
done
cat > root/bound <<'BOUND'
#!/bin/busybox sh
[ "$1" = bound ] || exit 0
ip addr add $ip/$mask dev $interface
ip route replace default via $router
echo nameserver $dns > /etc/resolv.conf
echo "LEASE $ip, $domain, $dns"
BOUND
cat > root/init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for word in $(cat /proc/cmdline); do case $word in peer=*) eval "$word" ;; esac; done
for module in @modules@; do
  [ ! -e /lib/$module.ko ] || insmod /lib/$module.ko
done
until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done
now() { read up rest < /proc/uptime; echo "$1 at $up"; }
now DRIVER
ip link set eth0 up
udhcpc -f -n -q -t 8 -T 1 -i eth0 -s /bound
now ADDRESS
wget -q -O /file http://203.0.113.2/file
now FILE
echo "BYTES $(wc -c < /file)"
(while :; do echo hello | nc -l -p 22; done) &
if [ -n "$peer" ]; then
  until at=$(nslookup "$peer.lan" | sed -n '/^Name/,$s/^Address[^:]*: *\([0-9.]*\)$/\1/p') &&
    [ -n "$at" ]; do sleep 0.2; done
  until ping -c 1 -W 1 "$at" >/dev/null; do sleep 0.2; done
  echo "MET $peer at $at"
fi
echo DONE
while :; do sleep 60; done
INIT
sed -i "s/@modules@/$modules/" root/init
chmod +x root/init root/bound
(cd root && find . | cpio -o -H newc --quiet | gzip -1) > initramfs.gz
boot=(-nographic -no-reboot -kernel "$(echo /boot/vmlinuz-*)" -initrd initramfs.gz)

vm() {
  local name=$1 peer=$2 arguments
  arguments=$(vmlan vm-args "$name" --memory 256M --tcg)
  show "qemu-system-x86_64 $arguments ..."
  # The arguments are words without quotes.
  # shellcheck disable=SC2086
  qemu-system-x86_64 $arguments "${boot[@]}" -append "console=ttyS0 quiet peer=$peer" \
    > "$name.log" 2>&1 < /dev/null &
}

# Waits until this guest has done everything, and judges it.
judge() {
  local name=$1
  for _ in $(seq 1800); do ! grep -q ^DONE "$name.log" || break; sleep 0.1; done
  tr -d '\r' < "$name.log" | grep -oE '(DRIVER|LEASE|ADDRESS|FILE|BYTES|MET) .*' |
    sed "s/^/  $name: /"
  grep -q '^BYTES 1000000' "$name.log" || die "$name has not got the file"
}

# A forward of the host is answered by what listens in the guest.
call() {
  for _ in $(seq 50); do
    [ "$(busybox nc -w 5 127.0.0.1 2222 < /dev/null || true)" != hello ] || { echo "  $1"; return; }
    sleep 0.2
  done
  die "nobody answers behind the forward"
}

show "vmlan switch vm1=vhost-user:vm1.sock vm2=vhost-user:vm2.sock net=nat:10.77.0.0/24,forward=..."
vmlan switch vm1=vhost-user:"$PWD"/vm1.sock vm2=vhost-user:"$PWD"/vm2.sock \
  net=nat:10.77.0.0/24,forward=2222:vm1:22 > switch.log 2>&1 &
for _ in $(seq 100); do vmlan port list >/dev/null 2>&1 && break; sleep 0.1; done
vm vm1 vm2
vm vm2 vm1
judge vm1
judge vm2
grep -q ^MET vm1.log && grep -q ^MET vm2.log || die "the guests have not met"
call "127.0.0.1:2222 is answered by vm1"
vmlan lease list
kill $(jobs -p)
wait || true

show "vmlan run --name vm3 -- qemu-system-x86_64 ..."
vmlan run --name vm3 -- qemu-system-x86_64 -m 256M "${boot[@]}" \
  -append "console=ttyS0 quiet peer=" > vm3.log 2>&1 < /dev/null &
judge vm3
vmlan forward add 2222:vm3:22
call "127.0.0.1:2222 is answered by vm3"
vmlan lease list
kill $(jobs -p)
wait || true
echo "all of it works"
