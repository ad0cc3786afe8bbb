use super::*;

#[test]
fn an_address_says_everything() {
    let text = "vhost-user:/run/a.sock,queues=2,size=256,server=on,event_idx=off,mrg=off,\
                csum=on,inflight=off";
    let address: VhostUser = text.parse().unwrap();
    assert_eq!(address.path, PathBuf::from("/run/a.sock"));
    assert!(address.listen);
    assert_eq!((address.queues, address.ring_size), (2, 256));
    let wanted = (feature::DEFAULT | feature::CSUM) & !(feature::EVENT_IDX | feature::MRG_RXBUF);
    assert_eq!(address.features, wanted);
    assert_eq!(address.protocol & protocol::INFLIGHT_SHMFD, 0);
    let words: VhostUser = "vhost-user:/a,server,csum".parse().unwrap();
    assert!(words.listen && words.features & feature::CSUM != 0);
}

#[test]
fn the_list_of_keys_is_whole() {
    for key in KEYS.split(", ") {
        let refused = format!("vhost-user:/a,{key}=?").parse::<VhostUser>().unwrap_err();
        assert!(matches!(refused, AddressError::Value { .. }), "{key}: {refused}");
    }
    for (key, _) in TOGGLES.iter().chain(PROTOCOL_TOGGLES) {
        assert!(KEYS.split(", ").any(|known| known == *key), "{key}");
    }
}

#[test]
fn a_wrong_address_says_what_to_do() {
    for (text, word) in [
        ("tap:x", "vhost-user:"),
        ("vhost-user:", "no path"),
        ("vhost-user:/a,colour=red", "colour"),
        ("vhost-user:/a,fast", "valid: server, queues"),
        ("vhost-user:/a,queues", "1 to 16"),
        ("vhost-user:/a,queues=17", "1 to 16"),
        ("vhost-user:/a,size=100", "power of two"),
        ("vhost-user:/a,size=65536", "32768"),
        ("vhost-user:/a,mrg=maybe", "on or off"),
        ("vhost-user:/a,segments=3", "1, 2, 4 or 8"),
        ("vhost-user:/a,size=2,segments=8", "ring's size"),
    ] {
        let error = text.parse::<VhostUser>().unwrap_err().to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
}
