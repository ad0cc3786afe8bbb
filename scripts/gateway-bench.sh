#!/bin/bash
# Measures the gateway of a `nat:` port beside passt's pasta, slirp4netns and gvproxy, those that are
# installed, in one run: TCP up and down at MTU 1500, in Gbit per CPU second of the service, and
# request-response. Needs root for namespaces; traffic stays on this machine.
#
#   scripts/gateway-bench.sh [ROUNDS [SECONDS]]       VMLAN=path of vmlan, GVPROXY=path of gvproxy
#
# The guest is Linux' own stack in a network namespace, behind a TAP device with offloads; the server
# is iperf3 in the namespace of the service. For vmlan `all` counts the switch's CPU time as well.
set -euo pipefail

rounds=${1:-5} seconds=${2:-3}
vmlan=$(realpath "${VMLAN:-target/release/vmlan}")
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
  until [ "$(readlink /proc/$holder/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
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

# One service, already running: name, its guest's namespace, its processes, and the others that work
# for it.
measure() {
  local name=$1 guest=$2 pids=$3 others=${4:-} way before after all bits
  for way in up down; do
    local option=""
    [ $way = down ] && option=-R
    before=$(ticks $pids) all=$(ticks $pids $others)
    bits=$(nsenter --net --target "$guest" iperf3 -J -c $server -t "$seconds" $option |
      python3 -c 'import json, sys; print(json.load(sys.stdin)["end"]["sum_received"]["bytes"] * 8)')
    after=$(ticks $pids) all=$(($(ticks $pids $others) - all))
    awk -v n="$name" -v w=$way -v b="$bits" -v t=$((after - before)) -v a=$all -v s="$seconds" \
      -v hz="$(getconf CLK_TCK)" 'BEGIN { printf "%-12s %-5s %6.2f Gbit/s %7.2f Gbit/CPU s %7.2f all\n",
        n, w, b / s / 1e9, b / 1e9 / (t > 0 ? t / hz : 1e9), b / 1e9 / (a > 0 ? a / hz : 1e9) }'
  done
  read -r median p99 < <(nsenter --net --target "$guest" python3 -c "$echo" $server)
  printf '%-12s rr    %6d us median %4d us p99\n' "$name" "$median" "$p99"
}

prepare() { # address, gateway, device
  nsenter --net --target "$guest" ip addr add "$1" dev "$3"
  nsenter --net --target "$guest" ip link set "$3" mtu 1500 up
  nsenter --net --target "$guest" ip route add default via "$2"
}

# A switch with a TAP device for the guest, and something beside it.
switch() { # device, port of the service
  start "$vmlan" switch --api "$dir/$1.sock" "guest=tap:$1" "$2" > "$dir/$1.log" 2>&1 &
  switch=$!
  ended+=("$switch")
  until in_host ip link show "$1" > /dev/null 2>&1; do sleep 0.05; done
  in_host ip link set "$1" netns "$guest"
}

namespace; guest=$holder; ours=$guest
switch vmlan0 "net=nat:10.77.0.0/24,allow=$server/32"
prepare 10.77.0.50/24 10.77.0.1 vmlan0
for _ in $(seq 50); do
  nsenter --net --target "$guest" busybox ping -c 1 -W 1 10.77.0.1 > /dev/null && break
done
starter=$(named vmlan-starter $(children "$switch"))
gateway=$(children "$starter" | tr -d ' ')
own_switch=$switch
services=("vmlan $ours $gateway $own_switch")

if command -v pasta > /dev/null; then
  start pasta --foreground --quiet --config-net --mtu 1500 --runas 0 -- sleep infinity \
    > "$dir/pasta.log" 2>&1 &
  pasta=$!
  ended+=("$pasta")
  for _ in $(seq 100); do
    guest=$(named sleep $(children "$pasta"))
    [ -n "$guest" ] && break
    sleep 0.1
  done
  if [ -n "$guest" ]; then services+=("pasta $guest $pasta"); else cat "$dir/pasta.log"; fi
fi
if command -v slirp4netns > /dev/null; then
  namespace; guest=$holder
  start slirp4netns --configure --mtu=1500 "$guest" tap0 > "$dir/slirp.log" 2>&1 &
  slirp=$!
  ended+=("$slirp")
  sleep 1
  services+=("slirp4netns $guest $slirp")
fi
if [ -x "${GVPROXY:-}" ]; then
  namespace; guest=$holder
  start "$GVPROXY" -listen-qemu "unix://$dir/gv.sock" > "$dir/gv.log" 2>&1 &
  gv=$!
  ended+=("$gv")
  until [ -S "$dir/gv.sock" ]; do sleep 0.05; done
  switch vmlan1 "net=stream:$dir/gv.sock,connect"
  prepare 192.168.127.50/24 192.168.127.1 vmlan1
  services+=("gvproxy $guest $gv")
fi

echo "$(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), $(uname -r)"
for round in $(seq "$rounds"); do
  echo "round $round"
  for service in "${services[@]}"; do
    measure $service || echo "$service: failed"
  done
done
echo "load at the end $(cut -d' ' -f1-3 /proc/loadavg)"
