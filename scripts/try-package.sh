#!/usr/bin/env bash
# try-package.sh: what `make try-package` runs for one release of Debian. Installs target/packages'
# .deb in a bare root, and has an ordinary user without /dev/net/tun and /dev/kvm do what README
# promises: a switch with `nat:`, QEMU guests (TCG) with a stock DHCP client that get an address, a
# name and a file from a server outside, meet by name, and are reached by a forward of the host;
# then the same by `vmlan run`. Each guest says when its driver was up and when it had the file.
#
#   scripts/try-package.sh bookworm|trixie [ROOT]      ROOT is made by mmdebstrap if it is not there
#
# Needs root for namespaces and the new root; traffic stays on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${1:?bookworm or trixie} root=${2:-${TMPDIR:-/var/tmp}/vmlan-$1}
deb=$(ls target/packages/vmlan_*.deb 2>/dev/null | head -n 1) || true

die() { printf 'try-package: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "run it as root"
[ -n "$deb" ] || die "there is no target/packages/vmlan_*.deb; run: make packages"
if [ ! -x "$root/usr/bin/qemu-system-x86_64" ]; then
  command -v mmdebstrap >/dev/null || die "run: apt-get install mmdebstrap"
  mirror=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources)
  mmdebstrap --variant=minbase --quiet \
    --include=qemu-system-x86,busybox-static,linux-image-amd64,cpio,iproute2 \
    "$suite" "$root" "deb $mirror $suite main"
fi
mkdir -p "$root/srv/try"
cp "$deb" "$root/srv/try/vmlan.deb"
cp scripts/try-package-user.sh "$root/srv/try/user.sh"
chroot "$root" sh -c 'apt-get update -qq &&
  apt-get install -qq -y --reinstall --no-install-recommends /srv/try/vmlan.deb' \
  >"$root/srv/try/apt.log" 2>&1 ||
  die "apt-get cannot install the package: see $root/srv/try/apt.log"

# What is mounted and started within ends with it.
exec unshare --mount --pid --fork --kill-child --net --mount-proc \
  bash -euo pipefail -s "$root" <<'END'
root=$1
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 dev "$root/dev"
for name in null zero full random urandom tty; do
  touch "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs shm "$root/dev/shm"

# The host has a way to a namespace that stands for the Internet, with a server.
ip link set lo up
unshare --net sleep infinity &
outside=$!
until [ "$(readlink /proc/$outside/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do
  sleep 0.05
done
out() { nsenter --net --target $outside "$@"; }
ip link add up0 type veth peer name up1 netns $outside
ip addr add 192.0.2.1/24 dev up0
ip link set up0 up
ip route add default via 192.0.2.2
out ip addr add 192.0.2.2/24 dev up1
out ip addr add 203.0.113.2/32 dev lo
out ip link set lo up
out ip link set up1 up
mkdir -p "$root/srv/www"
head -c 1000000 /dev/urandom > "$root/srv/www/file"
out chroot "$root" busybox httpd -f -p 203.0.113.2:80 -h /srv/www &

chroot "$root" sh -c '
  set -e
  . /etc/os-release; echo "$PRETTY_NAME, $(qemu-system-x86_64 --version | head -n 1)"
  dpkg -s vmlan | grep ^Version
  id me >/dev/null 2>&1 || useradd -m me 2>/dev/null || adduser --disabled-password --gecos "" me
  chmod 644 /boot/vmlinuz-*
  ls /dev/net/tun /dev/kvm 2>/dev/null && exit 1
  exec setpriv --reuid=me --regid=me --clear-groups --no-new-privs \
    env -i HOME=/home/me PATH=/usr/bin:/bin bash /srv/try/user.sh'
END
