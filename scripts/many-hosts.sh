#!/usr/bin/env bash
# many-hosts.sh [HOSTS]: a LAN of so many hosts (9 if not told), each a network namespace, made by
# `vmlan host-link`, with two route reflectors and FRR on each. The guest of each is a namespace of
# its own behind a veth pair in place of the switch's TAP device. Prints when all routes are there,
# when all guests reach each other, and what a host costs. As root, with FRR.
set -euo pipefail
cd "$(dirname "$0")/.."
vmlan=${VMLAN_BIN:-$PWD/target/release/vmlan}
hosts=${1:-9}
frr=/usr/lib/frr
name=vmlan$$
ping=$(command -v ping || echo busybox ping)
started=()

die() { printf 'many-hosts: %s\n' "$*" >&2; exit 1; }
at() { ip netns exec "$name-$1" "${@:2}"; }

finish() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  for n in wire $(seq "$hosts"); do
    ip netns del "$name-$n" 2>/dev/null || true
    ip netns del "$name-g$n" 2>/dev/null || true
  done
  rm -rf "$work"
}

[ "$(id -u)" = 0 ] || die "it makes network namespaces: run it as root"
[ -x "$frr/bgpd" ] || die "FRR is not installed: apt-get install frr"
[ -x "$vmlan" ] || die "there is no $vmlan; run: cargo build --release -p vmlan"
[ "$hosts" -ge 3 ] && [ "$hosts" -le 200 ] || die "give a number of hosts from 3 to 200"
work=$(mktemp -d /tmp/vmlan.XXXXXX)
chmod 711 "$work"
trap finish EXIT

# The network between hosts: one bridge.
ip netns add "$name-wire"
at wire ip link add wire type bridge
at wire ip link set wire up

# 1 and 2 are the reflectors, and hosts as well.
link() {
  local n=$1 peers=192.0.2.1,192.0.2.2 more=()
  [ "$n" != 1 ] || peers=192.0.2.2
  [ "$n" != 2 ] || peers=192.0.2.1
  [ "$n" -gt 2 ] || more=(--reflector 192.0.2.0/24)
  "$vmlan" host-link lan0 --vni 100 --local "192.0.2.$n" --peer "$peers" --evpn "${more[@]}" \
    "${@:2}"
}

host() {
  local n=$1 dir=$work/$1
  ip netns add "$name-$n"
  ip netns add "$name-g$n"
  ip link add "up$n" netns "$name-$n" type veth peer name "w$n" netns "$name-wire"
  at wire ip link set "w$n" master wire up
  at "$n" ip link set lo up
  at "$n" ip addr add "192.0.2.$n/24" dev "up$n"
  at "$n" ip link set "up$n" up
  at "$n" ip link add lan0 type veth peer name eth0 netns "$name-g$n"
  ip netns exec "$name-$n" sh -ec "$(declare_link "$n")" >/dev/null
  at "g$n" ip addr add "10.0.0.$n/24" dev eth0
  at "g$n" ip link set eth0 mtu 1450 up
  mkdir "$dir"
  link "$n" --frr > "$dir/frr.conf"
  chown -R frr:frr "$dir"
  speaks "$n" zebra
  until [ -S "$dir/z.sock" ]; do sleep 0.05; done
  speaks "$n" bgpd
}

# Starts one of FRR's daemons.
speaks() {
  local dir=$work/$1
  ip netns exec "$name-$1" "$frr/$2" -f "$dir/frr.conf" -u frr -g frr --vty_socket "$dir" \
    -z "$dir/z.sock" -i "$dir/$2.pid" -A 127.0.0.1 -P 0 </dev/null >>"$dir/$2.log" 2>&1 &
  started+=($!)
}

# The lines that the command prints, but for comments.
declare_link() { link "$1" | grep -v '^#'; }

now() { date +%s%N; }
since() { echo "$(( ($(now) - $1) / 1000000 )) ms"; }

for n in $(seq "$hosts"); do host "$n"; done
begin=$(now)
echo "$hosts hosts are set up, 1 and 2 are route reflectors"

# A host knows each other one by a type 3 route, which is an entry for frames to many.
known() { at "$1" bridge fdb show dev vx100 | grep -c '^00:00:00:00:00:00 dst' || true; }
for n in $(seq "$hosts"); do
  until [ "$(known "$n")" = $((hosts - 1)) ]; do sleep 0.2; done
done
echo "each knows all others: after $(since "$begin")"

begin=$(now)
lost=0
for n in $(seq "$hosts"); do
  for to in $(seq "$hosts"); do
    # shellcheck disable=SC2086 # it may be two words
    [ "$n" = "$to" ] || at "g$n" $ping -q -c 1 -W 5 "10.0.0.$to" >/dev/null || lost=$((lost + 1))
  done
done
echo "$((hosts * (hosts - 1))) pairs of guests, $lost without an answer: after $(since "$begin")"
begin=$(now)
told() { at "$1" bridge fdb show dev vx100 | grep -c 'dst.*extern_learn' || true; }
for n in $(seq "$hosts"); do
  until [ "$(told "$n")" -ge $((hosts - 1)) ]; do sleep 0.2; done
done
echo "each knows the guests of all others by BGP: after another $(since "$begin")"
awk '/^Pss:/ {sum += $2} END {printf "FRR on a host: %.0f MB of memory\n", sum / 1024}' \
  "/proc/${started[-1]}/smaps_rollup" "/proc/${started[-2]}/smaps_rollup"

# The last host's bgpd is killed, and started again.
begin=$(now)
{ kill -9 "${started[-1]}" && wait "${started[-1]}"; } 2>/dev/null || true
until [ "$(known 1)" = $((hosts - 2)) ]; do sleep 0.05; done
echo "the last host's bgpd is killed: host 1 sends nothing there after $(since "$begin")"
begin=$(now)
speaks "$hosts" bgpd
until [ "$(known 1)" = $((hosts - 1)) ] && [ "$(told 1)" -ge $((hosts - 1)) ]; do sleep 0.05; done
echo "it is started again: host 1 knows it and its guest after $(since "$begin")"
[ "$lost" = 0 ]
