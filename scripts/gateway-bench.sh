#!/bin/bash
# Measures the gateway of a `nat:` port beside a TAP device of the host as the way out, and beside
# passt's pasta, slirp4netns and gvproxy, those that are installed, in one run: TCP up and down at
# MTU 1500, in Gbit per CPU second of the service, and request-response. Needs root for namespaces,
# and what `scripts/setup.sh test` installs; traffic stays on this machine.
#
#   scripts/gateway-bench.sh [ROUNDS [SECONDS]]       VMLAN=path of vmlan, GVPROXY=path of gvproxy
#
# The guest is Linux' own stack in a network namespace, behind a TAP device with offloads; the
# server is iperf3 in the namespace of the service. For vmlan `all` counts the switch's CPU time as
# well.
set -euo pipefail

rounds=${1:-5} seconds=${2:-3}
. "$(dirname "$0")/gateway-lan.sh"

# One service, already running: name, its guest's namespace, its processes, and the others that work
# for it.
measure() {
  local name=$1 guest=$2 pids=$3 others=${4:-} way before after all bits
  for way in up down; do
    local option=""
    [ $way = down ] && option=-R
    before=$(ticks $pids) all=$(ticks $pids $others)
    bits=$(nsenter --net --target "$guest" iperf3 -J -c $server -t "$seconds" $option |
      python3 -c '
import json, sys
print(json.load(sys.stdin)["end"]["sum_received"]["bytes"] * 8)')
    after=$(ticks $pids) all=$(($(ticks $pids $others) - all))
    awk -v n="$name" -v w=$way -v b="$bits" -v t=$((after - before)) -v a=$all -v s="$seconds" \
      -v hz="$(getconf CLK_TCK)" 'BEGIN {
        printf "%-12s %-5s %6.2f Gbit/s %7.2f Gbit/CPU s %7.2f all\n", n, w, b / s / 1e9,
          b / 1e9 / (t > 0 ? t / hz : 1e9), b / 1e9 / (a > 0 ? a / hz : 1e9) }'
  done
  read -r median p99 < <(nsenter --net --target "$guest" python3 -c "$echo" $server)
  printf '%-12s rr    %6d us median %4d us p99\n' "$name" "$median" "$p99"
}

own_lan
services=("vmlan $ours $gateway $own_switch")

# What a guest has whose way out is a TAP device of the host: our switch, and no gateway.
namespace; guest=$holder
switch vmlan2 "host=tap:vmlan2h"
await vmlan2h
in_host ip addr add 10.78.0.1/24 dev vmlan2h
in_host ip link set vmlan2h up
prepare 10.78.0.50/24 10.78.0.1 vmlan2
services+=("tap $guest $switch")

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
