#!/bin/bash
# The gateway of a `nat:` port with clients that others wrote: DHCP by udhcpc, dhclient and dhcpcd,
# router advertisements by the kernel and rdisc6, DHCPv6 by dhclient, DNS by dig and delv (the
# servers outside are slow, lie and truncate), TCP and UDP by iperf3 and curl. Says what each got,
# and fails if one of them got something wrong. Needs root for namespaces and to install the
# clients; traffic stays on this machine. Two minutes.
#
#   scripts/gateway-clients.sh           VMLAN=path of vmlan
#
# A client is Linux' own stack in a network namespace, behind a TAP device.
set -euo pipefail
packages=(busybox-static isc-dhcp-client dhcpcd-base ndisc6 bind9-dnsutils iperf3 curl python3)
dpkg -s "${packages[@]}" > /dev/null 2>&1 || {
  echo "gateway-clients: installing ${packages[*]}"
  apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null
}
. "$(dirname "$0")/gateway-lan.sh"
failed=0
# NAME EXPRESSION TEXT: the text of a client matches, or not.
check() {
  if grep -qE -- "$2" <<< "$3"; then
    printf 'ok      %-44s %s\n' "$1" "$(grep -m1 -oE -- "$2" <<< "$3" | head -c 60)"
  else
    printf 'FAILED  %s: not /%s/ in:\n%s\n' "$1" "$2" "$3" | head -n 20
    failed=1
  fi
}
inside() { nsenter --net --target "$guest" "$@"; }

# What `dns=` asks: a server outside with moods.
cat > "$dir/names.py" <<'PY'
import socket, struct, threading, time
def answer(q, tcp):
    end = q.index(0, 12) + 5
    name, labels, at = q[12:end - 4], [], 12
    while q[at]:
        labels.append(q[at + 1:at + 1 + q[at]].decode().lower()); at += 1 + q[at]
    kind, = struct.unpack(">H", q[end - 4:end - 2])
    first, ident = labels[0], q[:2]
    if first == "slow": time.sleep(1.5)
    if first == "liar": ident = bytes([ident[0] ^ 255, ident[1]])
    count, flags = (40 if first == "long" else 1), 0x8180
    if kind != 1: count = 0
    if first == "long" and not tcp: count, flags = 0, flags | 0x200
    one = lambda n: b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes([203, 0, 113, n])
    head = ident + struct.pack(">HHHHH", flags, 1, count, 0, 0)
    return head + name + q[end - 4:end] + b"".join(one(n) for n in range(count))
def udp(s, q, peer): s.sendto(answer(q, False), peer)
def tcp(c):
    while len(head := c.recv(2)) == 2:
        a = answer(c.recv(struct.unpack(">H", head)[0]), True)
        c.sendall(struct.pack(">H", len(a)) + a)
def streams(l):
    while True: threading.Thread(target=tcp, args=(l.accept()[0],), daemon=True).start()
threading.Thread(target=streams, args=(socket.create_server(("198.51.100.1", 53)),)).start()
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("198.51.100.1", 53))
while True: threading.Thread(target=udp, args=(s, *s.recvfrom(4096)), daemon=True).start()
PY
start python3 "$dir/names.py" &
ended+=($!)
mkdir "$dir/www"
head -c 1G /dev/urandom > "$dir/www/file"
start busybox httpd -f -p $server:80 -h "$dir/www" &
ended+=($!)

names=(udhcpc dhclient dhcpcd clone1 clone2 kernel6)
start "$vmlan" switch --api "$dir/api.sock" \
  "net=nat:10.77.0.0/24,dns=$server,allow=$server/32,flows=2000,flow_rate=2000" \
  $(for name in "${names[@]}"; do echo "$name=tap:t-$name"; done) > "$dir/log" 2>&1 &
switch=$!
ended+=("$switch")
declare -A guests
for name in "${names[@]}"; do
  namespace
  guests[$name]=$holder
  await "t-$name"
  in_host ip link set "t-$name" netns "$holder"
  guest=$holder inside ip link set "t-$name" up
done
until [ -n "${gateway:-}" ]; do
  sleep 0.1
  starter=$(named vmlan-starter $(children "$switch"))
  gateway=$(children "${starter:-1}" | tr -d ' ')
done
be() { name=$1 guest=${guests[$1]} device=t-$1; }

# What scripts of udhcpc and dhclient are told goes to $dir/got. dhclient's has no environment.
cat > "$dir/told" <<SH
#!/bin/sh
env | grep -E '^((new_)?(ip|router|dns|domain|lease|dhcp)|new_(host|interface_mtu))' >> $dir/got
[ -z "\${ip:=\$new_ip_address}" ] || {
  ip addr replace "\$ip/24" dev "\$interface"
  ip route replace default via 10.77.0.1
}
SH
chmod +x "$dir/told"
dhclient() { inside dhclient "$@" -sf "$dir/told" -lf "$dir/$name.leases" -pf "$dir/$name.pid"; }
got() { cat "$dir/got" 2>&1 || true; rm -f "$dir/got"; }

be udhcpc
inside busybox udhcpc -q -n -i "$device" -s "$dir/told" > /dev/null 2>&1 || true
all=$(got)
check "udhcpc: address" 'ip=10\.77\.0\.1[0-9]+' "$all"
check "udhcpc: router, names, domain" 'router=10\.77\.0\.1$' "$all"
check "udhcpc: domain" '^domain=lan$' "$all"

be dhclient
dhclient -4 -1 -q "$device" > /dev/null 2>&1 || true
all=$(got)
check "dhclient: address" 'new_ip_address=10\.77\.0\.1[0-9]+' "$all"
check "dhclient: server of names" 'new_domain_name_servers=10\.77\.0\.1$' "$all"
check "dhclient: time" 'new_dhcp_lease_time=3600' "$all"
first=$(grep -m1 new_ip_address <<< "$all")
kill "$(cat "$dir/$name.pid")"
dhclient -4 -1 -q "$device" > /dev/null 2>&1 || true
check "dhclient, started again: the same address" "^$first\$" "$(got)"
kill "$(cat "$dir/$name.pid")"

be dhcpcd
inside unshare --mount --pid --fork --kill-child sh -c "mount -t proc none /proc
  mount -t tmpfs none /run; mount -t tmpfs none /var/lib/dhcpcd
  timeout 20 dhcpcd -1 -4 -B --script $dir/told $device" \
  > "$dir/dhcpcd.log" 2>&1 < /dev/null || true
all=$(got)
check "dhcpcd: address" 'new_ip_address=10\.77\.0\.1[0-9]+' "$all"
check "dhcpcd: domain" 'new_domain_name=lan' "$all"
check "dhcpcd: MTU" 'new_interface_mtu=1500' "$all"

# Two clones, which call themselves the same: a client identifier of one machine.
echo 'send dhcp-client-identifier 00:01:02:03:04:05;' > "$dir/clone.conf"
for name in clone1 clone2; do
  be $name
  dhclient -4 -1 -q -cf "$dir/clone.conf" "$device" > /dev/null 2>&1 || true
  kill "$(cat "$dir/$name.pid")"
done
check "dhclient, two with one identifier: two addresses" '^2$' \
  "$(got | grep new_ip_address | sort -u | wc -l)"

be kernel6
inside sysctl -q -w "net.ipv6.conf.$device.accept_ra=2"
all=$(inside rdisc6 -1 -w 5000 "$device" 2>&1 || true)
check "rdisc6: prefix" 'Prefix +: fd[0-9a-f:]+/64' "$all"
check "rdisc6: MTU, servers, domain" 'Recursive DNS server' "$all"
check "rdisc6: search" 'lan' "$(grep -i -A1 'search' <<< "$all")"
for _ in $(seq 100); do
  all=$(inside ip -6 addr show dev "$device" scope global)
  if grep 'inet6 fd' <<< "$all" | grep -qv tentative; then break; fi
  sleep 0.1
done
check "the kernel's SLAAC" 'inet6 fd[0-9a-f:]+/64' "$all"
prefix=$(grep -oE 'inet6 fd[0-9a-f]+:[0-9a-f]+:[0-9a-f]+:' <<< "$all" | head -n 1 | cut -c7-)
timeout 20 nsenter --net --target "$guest" dhclient -6 -S -1 -q -sf "$dir/told" \
  -lf "$dir/6.leases" -pf "$dir/6.pid" "$device" > /dev/null 2>&1 || true
check "dhclient -6 -S: server of names" 'dhcp6_name_servers=fd' "$(got)"
check "ping of the gateway by IPv6" '1 packets received' \
  "$(inside busybox ping -6 -c 1 "${prefix}:1" 2>&1 || true)"

be udhcpc
dig() { inside dig "@10.77.0.1" +tries=1 +time=4 "$@" 2>&1 || true; }
check "dig: a port" '^dhclient\.lan\..*A\s+10\.77\.0' "$(dig dhclient.lan)"
check "dig +tcp" '^dhclient\.lan\..*A\s+10\.77\.0' "$(dig +tcp dhclient.lan)"
check "dig: capital letters" '^DhCLient\.LAN\..*A\s+10\.77\.0' "$(dig DhCLient.LAN)"
check "dig -x" 'PTR\s+dhclient\.lan\.' \
  "$(dig -x "$(dig +short dhclient.lan | head -n 1)")"
check "dig: outside" 'A\s+203\.0\.113\.0' "$(dig one.example)"
check "dig +norecurse +bufsize=512" 'status: NOERROR' \
  "$(dig +norecurse +bufsize=512 dhclient.lan)"
check "dig: a label of 63" 'A\s+203\.0\.113\.0' "$(dig "$(printf 'a%.0s' {1..63}).example")"
check "dig: no such port" 'status: NXDOMAIN' "$(dig nobody.lan)"
check "dig: a slow server" 'A\s+203\.0\.113\.0' "$(dig slow.example)"
check "dig: a server that lies about ids" 'status: SERVFAIL|timed out|no servers' \
  "$(dig liar.example)"
check "dig: 40 addresses, cut, again by TCP" 'ANSWER: 40' "$(dig long.example)"
check "delv" 'A\s+203\.0\.113\.0' \
  "$(inside delv @10.77.0.1 -i +noroot two.example A 2>&1 || true)"

check "iperf3: both ways at once" 'receiver' "$(inside iperf3 -c $server -t 2 --bidir 2>&1)"
check "iperf3 -u: loss" '\(0(\.[0-9]+)?%\)' "$(inside iperf3 -c $server -t 2 -u -b 20M 2>&1)"
sum=$(inside curl -s "http://$server/file" | sha256sum)
check "curl of 1 GiB: the same hash" "^${sum%% *}" "$(sha256sum < "$dir/www/file")"
check "curl: refused at once" 'after [0-9]{1,3} ms' \
  "$(inside curl -sS -m 5 "http://$server:81/" 2>&1 || true)"
check "curl: the host's loopback is closed" 'after [0-9]{1,3} ms' \
  "$(inside curl -sS -m 5 http://10.77.0.1:80/ 2>&1 || true)"
for own in 192.0.2.1 192.0.2.2; do
  check "curl: $own, the host's, is closed" 'after [0-9]{1,3} ms' \
    "$(inside curl -sS -m 5 http://$own:5201/ 2>&1 || true)"
done

# 1,000 connections that say nothing cost nothing.
inside python3 -c '
import socket, time
all = [socket.create_connection(("198.51.100.1", 7)) for _ in range(1000)]
print("open", flush=True)
time.sleep(60)' > "$dir/idle" &
idle=$!
ended+=("$idle")
until grep -q open "$dir/idle"; do kill -0 "$idle"; sleep 0.1; done
sleep 5
wakes() { cat "/proc/$gateway/task/"*/status | awk '/^voluntary/ { n += $2 } END { print n }'; }
before=$(wakes) used=$(ticks "$gateway")
sleep 10
echo "with 1,000 idle connections, in 10 s: $(($(wakes) - before)) wake-ups of the gateway," \
  "$(($(ticks "$gateway") - used)) ticks of CPU time"
[ $failed = 0 ] && echo "all of it works"
exit $failed
