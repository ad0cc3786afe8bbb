# gateway-lan.sh: for the scripts gateway-*.sh beside it, which read it. A namespace with
# servers that stands for the host, and functions that make guests: Linux' own stack in a namespace,
# behind a TAP device. `own_lan` starts a switch with a gateway and such a guest.
# shellcheck shell=bash
vmlan=$(realpath "${VMLAN:-target/release/vmlan}")
[ -x "$vmlan" ] || { echo "no $vmlan: run: cargo build --release -p vmlan" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "namespaces and TAP devices: run it as root" >&2; exit 1; }
server=198.51.100.1
dir=$(mktemp -d)
ended=()
finish() {
  for pid in "${ended[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$dir"
}
trap finish EXIT

# A namespace that lives as long as its holder, whose process is $holder.
namespace() {
  unshare --net sleep infinity &
  holder=$!
  ended+=("$holder")
  until [ "$(readlink /proc/$holder/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do
    sleep 0.05
  done
  nsenter --net --target "$holder" ip link set lo up
}

# Jiffies that processes have used.
ticks() {
  local sum=0 pid
  for pid in "$@"; do
    sum=$((sum + $(sed 's/.*) //' "/proc/$pid/stat" | awk '{ print $12 + $13 }')))
  done
  echo "$sum"
}

# Those of these processes that have this name.
named() {
  local name=$1 pid
  shift
  for pid in "$@"; do
    if [ "$(cat "/proc/$pid/comm")" = "$name" ]; then echo "$pid"; fi
  done
}

children() { cat "/proc/$1/task/"*/children 2>/dev/null; }

namespace
host=$holder
in_host() { nsenter --net --target "$host" "$@"; }
# In the background it is the process itself whose id is known.
start() { exec nsenter --net --target "$host" "$@"; }
in_host ip link add up0 type veth peer name up1
in_host ip addr add $server/32 dev lo
in_host ip addr add 192.0.2.1/24 dev up0
in_host ip addr add 192.0.2.2/24 dev up0
in_host ip link set up0 up
in_host ip link set up1 up
in_host ip route add default via 192.0.2.254
start iperf3 -s > /dev/null &
ended+=($!)
start python3 -c '
import socket, threading
def serve(c):
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while (data := c.recv(64)): c.sendall(data)
listener = socket.create_server(("198.51.100.1", 7), backlog=64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()' &
ended+=($!)

echo='
import socket, sys, time
c = socket.create_connection((sys.argv[1], 7)); c.setsockopt(socket.IPPROTO_TCP, 1, 1)
times = []
for _ in range(2000):
    t = time.perf_counter(); c.sendall(b"x"); c.recv(1); times.append(time.perf_counter() - t)
times.sort(); print("%.0f %.0f" % (times[1000] * 1e6, times[1980] * 1e6))'

prepare() { # address, gateway, device
  nsenter --net --target "$guest" ip addr add "$1" dev "$3"
  nsenter --net --target "$guest" ip link set "$3" mtu 1500 up
  nsenter --net --target "$guest" ip route add default via "$2"
}

# The last switch makes this TAP device.
await() {
  until in_host ip link show "$1" > /dev/null 2>&1; do
    kill -0 "$switch" 2> /dev/null || { cat "$dir"/*log >&2; exit 1; }
    sleep 0.05
  done
}

# A switch with a TAP device for the guest, and something beside it.
switch() { # device, ports beside it
  start "$vmlan" switch --api "$dir/$1.sock" "guest=tap:$1" "${@:2}" > "$dir/$1.log" 2>&1 &
  switch=$!
  ended+=("$switch")
  await "$1"
  in_host ip link set "$1" netns "$guest"
}

# Our switch, its guest `ours` and its gateway; other ports may be said.
own_lan() {
  namespace; guest=$holder; ours=$guest
  switch vmlan0 "net=nat:10.77.0.0/24,allow=$server/32" "$@"
  prepare 10.77.0.50/24 10.77.0.1 vmlan0
  for _ in $(seq 50); do
    nsenter --net --target "$guest" busybox ping -c 1 -W 1 10.77.0.1 > /dev/null && break
  done
  starter=$(named vmlan-starter $(children "$switch"))
  gateway=$(children "$starter" | tr -d ' ')
  own_switch=$switch
}
