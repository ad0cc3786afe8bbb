#!/bin/bash
# What a guest on a `nat:` LAN notices of a neighbour that floods the gateway: request and
# response of one TCP connection through the gateway, median and p99, and a lease for a NIC that is
# new, beside each flood, and beside a process that does nothing but spin (`busy`), for a flood
# costs the sender a core, too.
#
#   scripts/gateway-floods.sh [ROUNDS [RATE]]       VMLAN=path of vmlan; RATE 0: as fast as it can
#   KEYS=broadcast_frames=1000 scripts/gateway-floods.sh   with a policy at the hostile port
#
# Needs root for namespaces; traffic stays on this machine.
set -euo pipefail

rounds=${1:-5} rate=${2:-0}
. "$(dirname "$0")/gateway-lan.sh"

own_lan "hostile=vhost-user:$dir/hostile.sock${KEYS:+,$KEYS}" new=tap:vmlan3
namespace; newcomer=$holder
until in_host ip link set vmlan3 netns "$newcomer" 2> /dev/null; do sleep 0.05; done
mac=$(nsenter --net --target "$ours" ip neigh show 10.77.0.1 | sed 's/.*lladdr \([^ ]*\).*/\1/')
python3 - "$mac" "$server" "$dir" <<'END'
import random, socket, struct, sys
gateway = bytes.fromhex(sys.argv[1].replace(":", ""))
server, dir = socket.inet_aton(sys.argv[2]), sys.argv[3]
router, own = socket.inet_aton("10.77.0.1"), socket.inet_aton("10.77.0.66")
random.seed(1)

def total(data):
    data += b"\0" * (len(data) % 2)
    sum = 0
    for word in struct.unpack(f"!{len(data) // 2}H", data): sum += word
    while sum >> 16: sum = (sum & 0xffff) + (sum >> 16)
    return ~sum & 0xffff

def ip(protocol, to, body, source=own):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 0, 0, 64, protocol, 0, source, to)
    return head[:10] + struct.pack("!H", total(head)) + head[12:] + body

def summed(protocol, to, body, at, source=own):
    pseudo = source + to + struct.pack("!HH", protocol, len(body))
    sum = struct.pack("!H", total(pseudo + body))
    return ip(protocol, to, body[:at] + sum + body[at + 2:], source)

def ether(packet, to=gateway, by=b"\x52\x54\0\0\0\x66", kind=0x0800):
    return (to + by + struct.pack("!H", kind) + packet).ljust(60, b"\0")

def udp(to, source_port, port, body):
    head = struct.pack("!HHHH", source_port, port, 8 + len(body), 0)
    return ether(summed(17, to, head + body, 6))

def syn(port):
    number = random.getrandbits(32)
    head = struct.pack("!HHIIBBHHH", 1024 + port, 7, number, 0, 0x50, 2, 65535, 0, 0)
    return ether(summed(6, server, head, 16))

def name(i):
    return struct.pack("!HHHHHH", i & 0xffff, 0x100, 1, 0, 0, 0) + b"\x08" + \
        b"%08x" % random.getrandbits(32) + b"\x03lan\0" + struct.pack("!HH", 1, 1)

def discover(i):
    own = b"\x52\x54" + random.randbytes(4)
    body = struct.pack("!BBBBIHHIIII", 1, 1, 6, 0, i, 0, 0x8000, 0, 0, 0, 0) + own.ljust(16, b"\0")
    body += bytes(192) + bytes.fromhex("63825363" "350101" "ff")
    head = struct.pack("!HHHH", 68, 67, 8 + len(body), 0)
    packet = ip(17, b"\xff" * 4, head + body, bytes(4))
    return ether(packet, b"\xff" * 6, own)

def echo(i):
    body = struct.pack("!BBHHH", 8, 0, 0, i & 0xffff, 0)
    return ether(ip(1, router, body[:2] + struct.pack("!H", total(body)) + body[4:]))

def who_has(i):
    sender = b"\x52\x54\0\0\0\x66" + own
    head = struct.pack("!HHBBH", 1, 0x800, 6, 4, 1)
    return ether(head + sender + bytes(6) + router, b"\xff" * 6, kind=0x806)

floods = {
    "udp-flows": lambda i: udp(server, 1024 + i, 9, b"x" * 18),
    "syn": syn, "names": lambda i: udp(router, 5000, 53, name(i)), "discover": discover,
    "echo": echo, "arp": who_has,
    "noise": lambda i: ether(random.randbytes(random.randrange(46, 1400))),
}
for name_of, frame in floods.items():
    with open(f"{dir}/{name_of}.pcap", "wb") as out:
        out.write(struct.pack("<IHHIIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        for i in range(8192):
            data = frame(i)
            out.write(struct.pack("<IIII", 0, i, len(data), len(data)) + data)
END

# A NIC that nobody knows asks for an address. How long that took, in milliseconds.
lease() { # the NIC's number, one digit: a port has 16 at most
  nsenter --net --target "$newcomer" sh -c '
    ip link set vmlan3 down
    ip link set vmlan3 address 52:55:00:00:00:0$1 up
    start=$(date +%s%N)
    busybox udhcpc -f -n -q -t 5 -T 1 -i vmlan3 -s /bin/true >/dev/null 2>&1 || exit 1
    echo $((($(date +%s%N) - start) / 1000000))' - "$1" || echo none
}

flood() { # file
  "$vmlan" pkt-gen -i "vhost-user:$dir/hostile.sock" -f tx -P "$dir/$1.pcap" -R "$rate" \
    > "$dir/flood.log" 2>&1 &
}

echo "$(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), $(uname -r), rate $rate"
cells=0
for round in $(seq "$rounds"); do
  for cell in ${CELLS:-none busy udp-flows syn names discover echo arp noise}; do
    case $cell in
      none) other= ;;
      busy) sh -c 'while :; do :; done' & other=$! ;;
      *) flood $cell; other=$! ;;
    esac
    ended+=($other)
    sleep 0.5
    read -r median p99 < <(nsenter --net --target "$ours" python3 -c "$echo" $server) ||
      median=0 p99=0
    took=$(lease $((cells++ % 9)))
    [ -z "$other" ] || { kill "$other"; wait "$other" 2>/dev/null || true; }
    sent=
    case $cell in none | busy) ;; *) sent=$(tail -n 1 "$dir/flood.log") ;; esac
    printf '%d %-10s %6d us median %6d us p99   lease %s ms   %s\n' "$round" "$cell" "$median" \
      "$p99" "$took" "$sent"
  done
done
"$vmlan" stats --api "$dir/vmlan0.sock" --json | python3 -c '
import json, sys
for port in json.load(sys.stdin)["ports"]:
    if port["name"] == "net": print("refused:", port["gateway"]["refused"])'
