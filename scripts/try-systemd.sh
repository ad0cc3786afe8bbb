#!/usr/bin/env bash
# try-systemd.sh: the package under a real systemd. Boots the bare root that try-package.sh has made
# in QEMU (TCG), where systemd is process 1: the first command starts the switch by its socket;
# native guests pass frames while it is restarted, killed and restarted again; a gateway answers.
#
#   scripts/try-systemd.sh [ROOT]      ROOT: default /var/tmp/vmlan-trixie
#
# Needs root (mkfs.ext4 -d reads files of others), QEMU and 3 GB of disk; a few minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
root=${1:-${TMPDIR:-/var/tmp}/vmlan-trixie}
[ -x "$root/usr/bin/vmlan" ] || { echo "run first: scripts/try-package.sh trixie $root" >&2; exit 1; }
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
address = "vhost-user:/run/vmlan/v1.sock"
[port.v2]
address = "vhost-user:/run/vmlan/v2.sock"
[port.e1]
address = "vfio-user:/run/vmlan/e1.sock"
[port.e2]
address = "vfio-user:/run/vmlan/e2.sock"
TOML
pid() { systemctl show vmlan -p MainPID --value; }
say "process 1 is $(cat /proc/1/comm), $(systemctl --version | head -n 1)"
systemctl enable --now vmlan.socket
say "before: $(systemctl is-active vmlan)"
vmlan port list
say "after the first command: $(systemctl is-active vmlan), as $(stat -c %U "/proc/$(pid)")"
say "$(systemd-analyze security vmlan --no-pager | tail -n 1)"
vmlan stats | grep -i sandbox
for kind in "v vhost" "e vfio"; do
  set -- $kind
  vmlan pkt-gen -i $2-user:/run/vmlan/$12.sock -f rxseq -S 52:54:00:00:00:$([ $1 = v ] && echo 02 || echo 12) \
    --idle-exit 20 > /tmp/$1.rx 2>&1 &
done
sleep 3
for kind in "v vhost" "e vfio"; do
  set -- $kind
  vmlan pkt-gen -i $2-user:/run/vmlan/$11.sock -f txseq -R 500 -n 20000 \
    -D 52:54:00:00:00:$([ $1 = v ] && echo 02 || echo 12) > /tmp/$1.tx 2>&1 &
done
sleep 8
for how in restart kill restart kill; do
  old=$(pid)
  case $how in
    restart) systemctl restart vmlan ;;
    kill) kill -9 "$old" ;;
  esac
  sleep 5
  say "$how: $(systemctl is-active vmlan), another process: $([ "$old" != "$(pid)" ] && echo yes || echo no)," \
    "descriptors in the store: $(systemctl show vmlan -p NFileDescriptorStore --value)"
done
wait
for log in v.tx v.rx e.tx e.rx; do say "$log: $(tail -n 3 /tmp/$log | tr '\n' ' ')"; done
vmlan port list
journalctl -u vmlan --no-pager -o cat | tail -n 40
systemctl stop vmlan vmlan.socket
say "stopped: $(systemctl is-active vmlan), left in the store: $(systemctl show vmlan -p NFileDescriptorStore --value)"
say END
TRY

truncate -s 3G "$work/disk"
mkfs.ext4 -q -d "$root" "$work/disk"
if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accel=(-enable-kvm -cpu host)
else accel=(-cpu max); fi
qemu-system-x86_64 "${accel[@]}" -smp 2 -m 2G -nographic -no-reboot \
  -drive "file=$work/disk,format=raw,if=virtio" \
  -kernel "$(ls "$root"/boot/vmlinuz-*)" -initrd "$(ls "$root"/boot/initrd.img-*)" \
  -append "root=/dev/vda rw console=ttyS0 init=/lib/systemd/systemd systemd.unit=multi-user.target \
systemd.wants=try.service systemd.mask=serial-getty@ttyS0.service quiet" < /dev/null | tr -d '\r' | tee "$work/log"
grep -q '^TRY END' "$work/log"
