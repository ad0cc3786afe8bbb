#!/usr/bin/env bash
# try-systemd.sh: the package under a real systemd. Boots the bare root that try-package.sh has made
# in QEMU (TCG), where systemd is process 1: the first command starts the switch by its socket;
# native guests pass frames while it is restarted and killed, and the gateway comes up again.
#
#   scripts/try-systemd.sh [ROOT]      ROOT: default /var/tmp/vmlan-trixie
#
# Needs root (mkfs.ext4 -d reads files of others), QEMU, 3 GB of disk, and a core of its own for
# a few minutes: a driver gives its NIC up after 5 s, and under TCG a restart takes 3.
set -euo pipefail
cd "$(dirname "$0")/.."
root=${1:-${TMPDIR:-/var/tmp}/vmlan-trixie}
die() { printf 'try-systemd: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "run it as root"
for need in qemu-system-x86_64:qemu-system-x86 mkfs.ext4:e2fsprogs; do
  command -v "${need%:*}" > /dev/null || die "run: apt-get install ${need#*:}"
done
[ -x "$root/usr/bin/vmlan" ] || die "run first: scripts/try-package.sh trixie $root"
work=$(mktemp -d)
trap 'rm -rf "$work" "$root/etc/systemd/system/try.service"' EXIT

mkdir -p "$root/srv/try"
cat > "$root/etc/systemd/system/try.service" <<'UNIT'
[Unit]
After=basic.target
[Service]
Type=oneshot
StandardOutput=file:/dev/ttyS0
StandardError=inherit
ExecStart=/bin/bash /srv/try/systemd.sh
ExecStopPost=/bin/systemctl poweroff --force
TimeoutStartSec=infinity
UNIT
cat > "$root/srv/try/systemd.sh" <<'TRY'
set -u
say() { echo "TRY $*"; }
cat > /etc/vmlan/vmlan.toml <<'TOML'
[switch]
workers = 1
hold-for = 60
[port.net]
address = "nat:10.77.0.0/24"
[port.v1]
address = "vhost-user:/run/vmlan/vhost-1.sock"
[port.v2]
address = "vhost-user:/run/vmlan/vhost-2.sock"
[port.e1]
address = "vfio-user:/run/vmlan/vfio-1.sock"
[port.e2]
address = "vfio-user:/run/vmlan/vfio-2.sock"
TOML
pid() { systemctl show vmlan -p MainPID --value; }
stored() { systemctl show vmlan -p NFileDescriptorStore --value; }
receiver() { [ "$1" = vhost ] && echo 52:54:00:00:00:02 || echo 52:54:00:00:00:12; }
say "process 1 is $(cat /proc/1/comm), $(systemctl --version | head -n 1)"
systemctl enable --now vmlan.socket
say "before: $(systemctl is-active vmlan)"
vmlan port list
say "after the first command: $(systemctl is-active vmlan), as $(stat -c %U "/proc/$(pid)")"
say "$(systemd-analyze security vmlan --no-pager | tail -n 1)"
vmlan stats | grep -i sandbox
for kind in vhost vfio; do
  vmlan pkt-gen -i $kind-user:/run/vmlan/$kind-2.sock -f rxseq -S "$(receiver $kind)" \
    --idle-exit 60 > /tmp/$kind.rx 2>&1 &
done
sleep 3
for kind in vhost vfio; do
  vmlan pkt-gen -i $kind-user:/run/vmlan/$kind-1.sock -f txseq -R 500 -n 20000 \
    -D "$(receiver $kind)" > /tmp/$kind.tx 2>&1 &
done
sleep 8
for how in restart kill restart kill; do
  old=$(pid)
  case $how in
    restart) systemctl restart vmlan ;;
    kill) kill -9 "$old" ;;
  esac
  sleep 5
  [ "$old" != "$(pid)" ] || say "FAILED: $how started no other process"
  say "$how: $(systemctl is-active vmlan), descriptors in the store: $(stored)"
done
wait
for log in vhost.tx vhost.rx vfio.tx vfio.rx; do
  say "$log: $(tail -n 3 /tmp/$log | tr '\n' ' ')"
done
vmlan port list
journalctl -u vmlan --no-pager -o cat | tail -n 40
systemctl stop vmlan vmlan.socket
say "stopped: $(systemctl is-active vmlan), left in the store: $(stored)"
say END
TRY

truncate -s 3G "$work/disk"
mkfs.ext4 -q -d "$root" "$work/disk"
if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accel=(-enable-kvm -cpu host)
else accel=(-cpu max,erms=off,fsrm=off); fi
qemu-system-x86_64 "${accel[@]}" -smp 1 -m 2G -nographic -no-reboot \
  -drive "file=$work/disk,format=raw,if=virtio" \
  -kernel "$(ls "$root"/boot/vmlinuz-*)" -initrd "$(ls "$root"/boot/initrd.img-*)" \
  -append "root=/dev/vda rw console=ttyS0 init=/lib/systemd/systemd systemd.unit=multi-user.target \
systemd.wants=try.service systemd.mask=serial-getty@ttyS0.service quiet panic=-1" < /dev/null |
  stdbuf -o0 tr -d '\r' | tee "$work/log"
grep -q '^TRY END' "$work/log" || die "it has not come to its end"
! grep '^TRY FAILED' "$work/log" || die "see above"
[ "$(grep -c 'adopted 4 times' "$work/log")" = 2 ] || die "a NIC did not outlive every restart"
echo "all of it works"
