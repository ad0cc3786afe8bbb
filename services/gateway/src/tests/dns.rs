use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use smoltcp::wire::DnsPacket;
use vmlan_config::gateway::{Dns, Lease, Setup};

use super::guest::{GATEWAY, Lan};

const SERVER: SocketAddrV4 = SocketAddrV4::new(GATEWAY, 53);

/// A question about a name: kind 1 is A, 28 AAAA, 12 PTR.
fn query(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut out = Vec::new();
    [id, 0x0100, 1, 0, 0, 0].iter().for_each(|word| out.extend(word.to_be_bytes()));
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.bytes());
    }
    out.extend([0]);
    [kind, 1].iter().for_each(|word| out.extend(word.to_be_bytes()));
    out
}

fn lan(servers: Vec<SocketAddr>) -> Lan {
    let lease = |ip: [u8; 4], port: &str, n: u8| Lease {
        ip: ip.into(),
        mac: format!("02:00:00:00:02:{n:02x}"),
        port: port.into(),
        hostname: None,
        expires: 2000,
    };
    let leases = vec![lease([10, 77, 0, 101], "vm1", 1), lease([10, 77, 0, 102], "VM2", 2)];
    Lan::new(Setup { leases, now: 1000, dns: Dns::Ask(servers), ..Setup::default() })
}

/// The answer's code, and its last four bytes.
fn ask(lan: &mut Lan, name: &str, kind: u16) -> (u16, Vec<u8>) {
    let query = query(7, name, kind);
    lan.udp(5353, SERVER, &query);
    let (from, to, answer) = lan.datagrams().pop().expect("an answer");
    assert_eq!((from, to), (SERVER, 5353));
    let packet = DnsPacket::new_checked(answer.as_slice()).unwrap();
    assert_eq!(packet.transaction_id(), 7);
    assert_eq!(answer[12..query.len()], query[12..], "the question is repeated");
    let code = u16::from_be_bytes([answer[2], answer[3]]) & 15;
    let data = if packet.answer_record_count() > 0 {
        answer[answer.len() - 4..].to_vec()
    } else {
        Vec::new()
    };
    (code, data)
}

#[test]
fn names_of_ports_are_known_and_no_server_is_asked_for_others() {
    let mut lan = lan(Vec::new());
    for name in ["vm1.lan", "vm1", "VM1.Lan", "vm2.lan"] {
        let last = if name.contains('2') { 102 } else { 101 };
        assert_eq!(ask(&mut lan, name, 1), (0, vec![10, 77, 0, last]), "{name}");
    }
    assert_eq!(ask(&mut lan, "gateway.lan", 1), (0, vec![10, 77, 0, 1]));
    assert_eq!(ask(&mut lan, "vm1.lan", 28), (0, vec![]), "no address of that kind");
    for name in ["vm3.lan", "vm3", "host.lan"] {
        assert_eq!(ask(&mut lan, name, 1), (3, vec![]), "{name}");
    }
    assert_eq!(ask(&mut lan, "101.0.77.10.in-addr.arpa", 12), (0, b"lan\0".to_vec()));
    assert_eq!(ask(&mut lan, "9.0.77.10.in-addr.arpa", 12).0, 3);
    // The lease ends.
    lan.now = 1_500_000;
    assert_eq!(ask(&mut lan, "vm1.lan", 1).0, 3);
}

#[test]
fn other_questions_go_to_the_hosts_servers_under_another_number() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut lan = lan(vec![server.local_addr().unwrap()]);
    let question = query(7, "example.org", 1);
    lan.udp(5353, SERVER, &question);
    let mut room = [0; 512];
    let (len, gateway) = server.recv_from(&mut room).unwrap();
    assert_eq!(room[2..len], question[2..]);
    // Liars first: another number, another name, a question instead of an answer.
    let mut answer = room[..len].to_vec();
    let right = answer.clone();
    answer[2] |= 0x80;
    let (mut number, mut name) = (answer.clone(), answer.clone());
    number[1] ^= 1;
    name[13] ^= 1;
    for lie in [number, name, right] {
        server.send_to(&lie, gateway).unwrap();
    }
    lan.turn();
    assert_eq!(lan.datagrams(), []);
    assert_eq!(lan.refused("dns-foreign-answer"), 3);
    server.send_to(&answer, gateway).unwrap();
    lan.turn();
    let (_, port, got) = lan.datagrams().pop().unwrap();
    assert_eq!((port, &got[..2]), (5353, &[0, 7][..]));
    assert_eq!(got[2..], answer[2..]);
}

#[test]
fn an_answer_that_is_too_long_is_cut_and_no_answer_is_said_so() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut lan = lan(vec![server.local_addr().unwrap()]);
    lan.udp(5353, SERVER, &query(7, "example.org", 16));
    let mut room = vec![0; 512];
    let (len, gateway) = server.recv_from(&mut room).unwrap();
    room.truncate(len);
    room[2] |= 0x80;
    room.resize(3000, 0);
    server.send_to(&room, gateway).unwrap();
    lan.turn();
    let (_, _, cut) = lan.datagrams().pop().unwrap();
    assert!(cut[2] & 2 != 0 && cut.len() < 100, "ask again by TCP");
    lan.udp(5354, SERVER, &query(8, "example.net", 1));
    for _ in 0..4 {
        lan.now += 3001;
        lan.turn();
    }
    let (_, port, failed) = lan.datagrams().pop().unwrap();
    assert_eq!((port, failed[3] & 15), (5354, 2));
    assert_eq!(lan.refused("dns-unanswered"), 1);
}

#[test]
fn a_guest_that_asks_too_much_is_refused() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut lan = lan(vec![silent.local_addr().unwrap()]);
    for n in 0..100 {
        lan.udp(5353, SERVER, &query(n, "example.org", 1));
    }
    assert_eq!(lan.refused("dns-rate"), 36);
    let own: Ipv4Addr = GATEWAY;
    lan.udp(5353, SocketAddrV4::new(own, 53), b"no question");
    assert_eq!(lan.refused("dns-malformed"), 1);
}
