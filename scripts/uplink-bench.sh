#!/bin/bash
# Measures uplinks beside each other in one run: `tap:`, and on a veth pair `tap:` with a bridge
# (bridge), `packet:` and `xdp:`.
# Frames of 60 and 1514 bytes to and from the uplink, in thousands per CPU second of the switch and
# per second that its worker spent on them, and TCP of a guest with all offloads in Gbit/s and Gbit
# per CPU second, also over a TAP without any. Needs root for namespaces; traffic stays on this
# machine.
#
#   scripts/uplink-bench.sh [ROUNDS [SECONDS]]          VMLAN=path of vmlan
#
# Frames come from a guest of `pkt-gen`: to the uplink through the switch that is measured; from the
# uplink through another switch with packet: on the interface's far end, whose CPU time does not
# count. Neither does what the kernel does for a frame before a socket has it. Where that switch is
# the slower one, CPU seconds are mostly those of going to sleep and waking up. Frames to a TAP
# device end in the host's stack; those to a veth pair cross it first, in the worker's time. The
# guest of TCP is Linux' own stack behind a TAP device.
set -euo pipefail

rounds=${1:-3} seconds=${2:-3}
vmlan=$(realpath "${VMLAN:-target/release/vmlan}")
dir=$(mktemp -d)
ended=()
end_all() {
  for pid in "${ended[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${ended[@]}"; do wait "$pid" 2>/dev/null || true; done
  ended=()
}
trap 'end_all; rm -rf "$dir"' EXIT

# A namespace that lives as long as its holder, whose process is $holder.
namespace() {
  unshare --net sleep infinity &
  holder=$!
  ended+=("$holder")
  until [ "$(readlink /proc/$holder/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do
    sleep 0.05
  done
  nsenter --net --target "$holder" sysctl -qw net.ipv6.conf.default.disable_ipv6=1 || true
}

in_ns() {
  local ns=$1
  shift
  nsenter --net --target "$ns" "$@"
}

# A switch in namespace $ns, called $1, whose process is $switch.
switch() {
  local name=$1
  shift
  rm -f "$dir/$name.log"
  (exec nsenter --net --target "$ns" "$vmlan" switch --api "$dir/$name.api" "$@") \
    > "$dir/$name.log" 2>&1 &
  switch=$!
  ended+=("$switch")
  until grep -q '^api ' "$dir/$name.log" 2>/dev/null; do
    kill -0 "$switch" || { cat "$dir/$name.log"; exit 1; }
    sleep 0.05
  done
}

# Jiffies that the measured switch has used.
ticks() { sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'; }

# Frames that have passed port u, in or out, and nanoseconds that the worker spent on ports.
passed() {
  "$vmlan" stats --api "$dir/one.api" --json \
    | python3 -c "import json,sys
ports = json.load(sys.stdin)['ports']
print(next(p['$1']['frames'] for p in ports if p['name'] == 'u'), sum(p['work_ns'] for p in ports))"
}

hz=$(getconf CLK_TCK)
thousands() { # number, time, its units in a second
  awk -v n="$1" -v t="$2" -v units="$3" 'BEGIN { printf "%.0f", t ? n * units / t / 1000 : 0 }'
}

# The interface of uplink $1, and its far end $far.
interface() {
  local nic=near
  case $1 in
    tap | bridge) in_ns "$ns" ip tuntap add near mode tap vnet_hdr; nic=nic far=near ;;
  esac
  if [ "$1" != tap ]; then
    in_ns "$ns" ip link add $nic type veth peer name far
    far=far
    in_ns "$ns" ip link set far up
  fi
  case $1 in
    bridge)
      in_ns "$ns" ip link add br0 type bridge
      in_ns "$ns" ip link set near master br0
      in_ns "$ns" ip link set $nic master br0 up
      in_ns "$ns" ip link set br0 up
      ;;
    xdp)
      in_ns "$ns" ethtool -K near rxvlan off > /dev/null
      in_ns "$ns" ethtool -K far tx off txvlan off > /dev/null
      ;;
  esac
  in_ns "$ns" ip link set near up
}

generate() { # socket, bytes
  "$vmlan" pkt-gen -i "vhost-user:$1" -f tx -D 02:00:00:00:00:09 -S 02:00:00:00:00:07 \
    -l "$2" -T "$seconds" > /dev/null 2>&1
}

frames() { # uplink, direction, bytes
  local from=one before after used
  namespace; ns=$holder
  interface "$1"
  switch one "g=vhost-user:$dir/one.sock" "u=${1/bridge/tap}:near"
  local measured=$switch
  if [ "$2" = in ]; then
    switch two "g=vhost-user:$dir/two.sock" "u=packet:$far"
    from=two
  fi
  before=($(passed "$2")) used=$(ticks "$measured")
  generate "$dir/$from.sock" "$3"
  used=$(($(ticks "$measured") - used))
  after=($(passed "$2"))
  local n=$((after[0] - before[0])) work=$((after[1] - before[1]))
  echo "frames $1 $2 $3 $(thousands $n $used "$hz") $(thousands $n $work 1000000000)"
  end_all
}

tcp() { # uplink, or tap-bare: without offloads at both ends; direction of the bytes
  local guest used measured kind=${1%-bare} end
  namespace; guest=$holder
  namespace; ns=$holder
  local server=$holder
  interface "$kind"
  switch one "g=tap:guest0" "u=${kind/bridge/tap}:near"
  measured=$switch
  if [ "$kind" = tap ]; then namespace; server=$holder; fi
  if [ "$far" = near ]; then in_ns "$ns" ip link set near netns "$server"; fi
  in_ns "$ns" ip link set guest0 netns "$guest"
  in_ns "$guest" ip addr add 10.9.8.1/24 dev guest0
  in_ns "$guest" ip link set guest0 up
  in_ns "$server" ip addr add 10.9.8.2/24 dev "$far"
  in_ns "$server" ip link set "$far" up
  if [ "$1" != "$kind" ]; then
    for end in "$guest guest0" "$server $far"; do
      # shellcheck disable=SC2086 # two words
      in_ns ${end% *} ethtool -K ${end#* } tx off tso off gso off gro off > /dev/null
    done
  fi
  in_ns "$server" iperf3 -s -1 > /dev/null 2>&1 &
  ended+=("$!")
  sleep 0.5
  used=$(ticks "$measured")
  local back=()
  if [ "$2" = in ]; then back=(-R); fi
  in_ns "$guest" iperf3 -c 10.9.8.2 -t "$seconds" -J "${back[@]}" > "$dir/iperf" || true
  used=$(($(ticks "$measured") - used))
  python3 -c "import json
e = json.load(open('$dir/iperf')).get('end', {}).get('sum_received', {})
b = e.get('bytes', 0) * 8 / 1e9
seconds = max(e.get('seconds', 1), 0.001)
print('tcp $1 $2', round(b / seconds, 2), round(b * $hz / max($used, 1), 2))"
  end_all
}

for round in $(seq "$rounds"); do
  for bytes in 60 1514; do
    for way in out in; do
      for uplink in tap bridge packet xdp; do frames "$uplink" "$way" "$bytes"; done
    done
  done
  for way in out in; do
    for uplink in tap tap-bare bridge packet xdp; do tcp "$uplink" "$way"; done
  done
done | tee "$dir/all"

echo
echo "medians of $rounds rounds: thousand frames per CPU second, and per second of the worker;"
echo "TCP: Gbit/s, and Gbit per CPU second"
python3 - "$dir/all" <<'PYTHON'
import statistics, sys
rows = {}
for line in open(sys.argv[1]):
    words = line.split()
    key = tuple(words[:4] if words[0] == "frames" else words[:3])
    rows.setdefault(key, []).append([float(w) for w in words[len(key):]])
for key, runs in rows.items():
    print(*key, *(f"{statistics.median(column):g}" for column in zip(*runs)))
PYTHON
