//! What a gateway has leased outlives the switch, if that has `--hold-for`: a guest's address is
//! not given to another one. Without that it is.

use std::path::Path;
use std::time::Duration;

use etherparse::PacketBuilder;
use serde_json::Value;
use vmlan_driver::virtio::queues::NetHeader;
use vmlan_tests::numbered::settles;
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch};

/// Asks for an address, as the NIC whose MAC address ends in `nic`; the one it was given.
fn lease(guest: &mut VirtioGuest, nic: u8) -> [u8; 4] {
    let mac = [0x52, 0x54, 0, 0x77, 0, nic];
    let mut offer: Option<[u8; 4]> = None;
    // DISCOVER is offered something, which a REQUEST asks for and ACK gives (RFC 2131).
    for (kind, answer) in [(1, 2), (3, 5)] {
        let mut ask = [&[1, 1, 6, 0][..], &[0, 0, 0, nic], &[0; 20], &mac, &[0; 202]].concat();
        ask.extend([99, 130, 83, 99, 53, 1, kind]);
        if let Some([a, b, c, d]) = offer {
            ask.extend([50, 4, a, b, c, d, 54, 4, 10, 77, 0, 1]);
        }
        ask.push(255);
        let frame = PacketBuilder::ethernet2(mac, [0xff; 6]).ipv4([0; 4], [0xff; 4], 64);
        let (frame, mut bytes) = (frame.udp(68, 67), Vec::new());
        frame.write(&mut bytes, &ask).expect("a frame");
        let mut asked = 0;
        let mut given = None;
        assert!(
            settles(|| {
                // The gateway may not be there yet.
                if asked % 2000 == 0 {
                    guest.send(0, NetHeader::default(), &bytes);
                    guest.flush();
                }
                asked += 1;
                guest.receive(|_, frame| {
                    let dhcp = frame.get(42..).filter(|_| frame[23] == 17 && frame[37] == 68);
                    let Some(dhcp) = dhcp.filter(|dhcp| dhcp[4..8] == [0, 0, 0, nic]) else {
                        return;
                    };
                    let is = dhcp.windows(3).any(|option| option == [53, 1, answer]);
                    given = given.or(is.then(|| dhcp[16..20].try_into().expect("an address")));
                });
                std::thread::sleep(Duration::from_millis(1));
                given.is_some()
            }),
            "guest {nic} gets no address"
        );
        offer = given;
    }
    offer.expect("an address")
}

fn ports(dir: &Path, options: &[&str]) -> Vec<String> {
    let vm = format!("vm=vhost-user:{}", dir.join("vm").display());
    let words = [options, &["net=nat:10.77.0.0/24"]].concat();
    words.into_iter().map(str::to_owned).chain([vm]).collect()
}

fn leases(switch: &Switch) -> Result<Vec<(String, String)>> {
    let list: Value = serde_json::from_str(&switch.ask(&["lease", "list", "--json"])?).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = list["leases"].as_array().expect("a list");
    Ok(list.iter().map(|lease| (text(&lease["ip"]), text(&lease["mac"]))).collect())
}

#[test]
fn an_address_is_not_given_twice() -> Result<()> {
    for held in [true, false] {
        let options: &[&str] = if held { &["--hold-for", "60"] } else { &[] };
        let dir = tempfile::tempdir().expect("a directory");
        let mut switch = Switch::start(dir.path(), None, &ports(dir.path(), options))?;
        let mut guest = VirtioGuest::connect(&dir.path().join("vm"), 1, "");
        let mut given = vec![lease(&mut guest, 1)];
        let mut known = leases(&switch)?;
        assert_eq!(known.len(), 1, "{known:?}");
        for round in 2..=4 {
            match round {
                2 | 4 => {
                    // What has changed in the last second may be lost.
                    std::thread::sleep(Duration::from_secs(2));
                    switch.kill9();
                }
                _ => assert_eq!(switch.terminate()?, Some(0)),
            }
            drop(guest);
            switch.restart()?;
            switch.answering()?;
            assert_eq!(leases(&switch)?, if held { known } else { vec![] }, "{}", switch.log());
            guest = VirtioGuest::connect(&dir.path().join("vm"), 1, "");
            let next = lease(&mut guest, round);
            assert_eq!(given.contains(&next), !held, "{next:?} of {given:?}");
            given.push(next);
            assert!(settles(
                || leases(&switch).is_ok_and(|l| l.len() == usize::from(round) || !held)
            ));
            known = leases(&switch)?;
        }
        if held {
            // Removed here, it is not there for the next one either.
            switch.ask(&["lease", "remove", &known[0].0])?;
            switch.kill9();
            switch.restart()?;
            switch.answering()?;
            assert_eq!(leases(&switch)?, known[1..]);
            switch.ask(&["stop", "--for-good"])?;
        }
    }
    Ok(())
}
