//! What those are told who listen.

use super::*;

/// Events that a listener has been told, as `event port reason-or-address count`.
pub(super) fn heard(listener: &mut crate::events::Listener) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        match listener.try_recv().map(|e| (*e).clone()) {
            Ok(Event { event, port, reason, mac, count, .. }) => {
                let count = count.map(|n| n.to_string());
                let words = [Some(event), port, reason.or(mac), count];
                all.push(words.into_iter().flatten().collect::<Vec<_>>().join(" "));
            }
            Err(tokio::sync::broadcast::error::TryRecvError::Lagged(n)) => {
                all.push(format!("lagged {n}"));
            }
            Err(_) => return all,
        }
    }
}

#[test]
fn listeners_are_told_what_happens() {
    let mut rig = rig();
    rig.apply("a stream:@/a\nb stream:@/b").unwrap();
    rig.port("a").counters().input.drop(vmlan_frame::Reason::Storm, 7);
    assert!(rig.ports.look().is_none(), "nobody listens");
    let (mut listener, hello) = rig.ports.listen().unwrap();
    assert_eq!((hello.event.as_str(), hello.generation), ("listening", Some(1)));
    assert!(rig.ports.look().is_some());
    assert_eq!(heard(&mut listener), [""; 0], "what was before is not told");
    let peer = std::os::unix::net::UnixStream::connect(rig.dir.path().join("a")).unwrap();
    while !rig.port("a").is_up() {
        std::thread::yield_now();
    }
    let counters = rig.port("a");
    counters.counters().input.drop(vmlan_frame::Reason::Storm, 2);
    counters.counters().faults.add(1);
    let _ = rig.ports.look();
    assert_eq!(heard(&mut listener), ["port-up a", "dropped a storm 2", "fault a 1"]);
    counters.counters().input.drop(vmlan_frame::Reason::Storm, 5);
    let _ = rig.ports.look();
    assert_eq!(heard(&mut listener), [""; 0], "once a second");
    rig.set("b", &[("weight", "3")]).unwrap();
    rig.set("b", &[("weight", "3")]).unwrap();
    assert_eq!((heard(&mut listener), rig.ports.generation()), (vec!["port-changed b".into()], 2));
    let same = rig.apply("a stream:@/a\nb stream:@/b,weight=3").unwrap();
    assert_eq!((same.generation, heard(&mut listener)), (2, vec![]), "nothing has changed");
    drop(peer);
    while rig.port("a").is_up() {
        std::thread::yield_now();
    }
    let _ = rig.ports.look();
    rig.ports.remove(&"a".parse().unwrap()).unwrap();
    assert_eq!(heard(&mut listener), ["port-down a", "port-removed a"]);
    for i in 0..2000 {
        rig.set("b", &[("weight", ["1", "2"][i % 2])]).unwrap();
    }
    let all = heard(&mut listener);
    assert_eq!((all[0].as_str(), all.len()), ("lagged 976", 1025), "and told so");
    let more: Vec<_> = (0..63).map(|_| rig.ports.listen().unwrap()).collect();
    assert!(rig.ports.listen().unwrap_err().message.contains("64 listen already"));
    drop((listener, more));
    assert!(rig.ports.look().is_none() && rig.ports.listen().is_ok());
}

#[test]
fn a_port_that_is_opened_again_is_heard_of_as_before() {
    let mut rig = rig();
    let rate = ("from_rate", "1Mbit");
    rig.apply("a stream:@/a,from_rate=1Mbit\nb stream:@/b").unwrap();
    let (mut listener, _) = rig.ports.listen().unwrap();
    let count = |rig: &Rig, storm, faults, held| {
        let port = rig.port("a");
        port.counters().input.drop(vmlan_frame::Reason::Storm, storm);
        port.counters().faults.add(faults);
        rig.policy("a").from.own.as_ref().unwrap().counters.held.add(held);
    };
    // Far apart: each time it may be told.
    let mut told = |rig: &mut Rig| {
        rig.ports.observer.tell_again();
        let _ = rig.ports.look();
        heard(&mut listener)
    };
    count(&rig, 7, 3, 4);
    assert_eq!(told(&mut rig), ["dropped a storm 7", "fault a 3", "held a 4"]);
    for (storm, faults) in [(2, 1), (9, 5)] {
        rig.set("a", &[("connect", if storm == 2 { "on" } else { "" })]).unwrap();
        assert_eq!(told(&mut rig), ["port-changed a"], "its limiter counts on");
        count(&rig, storm, faults, 1);
        let drops = format!("dropped a storm {storm}");
        assert_eq!(told(&mut rig), [drops, format!("fault a {faults}"), "held a 1".into()]);
    }
    // A limiter that is made anew begins at 0, and so does a port of the same name.
    rig.set("a", &[("from_rate", "")]).unwrap();
    rig.set("a", &[rate]).unwrap();
    count(&rig, 0, 0, 2);
    assert_eq!(told(&mut rig), ["port-changed a", "port-changed a", "held a 2"]);
    rig.ports.remove(&"a".parse().unwrap()).unwrap();
    rig.apply("a stream:@/a,from_rate=1Mbit\nb stream:@/b").unwrap();
    count(&rig, 100, 100, 100);
    let all = ["port-removed a", "applied", "dropped a storm 100", "fault a 100", "held a 100"];
    assert_eq!(told(&mut rig), all);
}
