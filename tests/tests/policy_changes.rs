//! A thousand configuration changes a second under traffic: ports that are not changed lose
//! nothing. Over the real API, on one connection that is kept open.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vmlan_driver::virtio::queues::NetHeader;
use vmlan_driver::wait::Interest;
use vmlan_tests::numbered::{STALL, mac, settles};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch};

/// Changes a second.
const RATE: u32 = 1000;
/// Every so many changes is a whole file.
const APPLY: usize = 10;
const FRAME: usize = 60;
const NUMBER: usize = 14;
/// Frames between two looks at the clock: a stream that leaves time for the others on two cores.
const BURST: u64 = 32;

/// What is changed at the third port, one after the other, and taken back.
const KEYS: [(&str, &str); 13] = [
    ("to_rate", "10Mbit"),
    ("from_rate", "2.5Gbit"),
    ("to_frames", "24k"),
    ("from_frames", "10k"),
    ("weight", "7"),
    ("ips", "10.0.0.3+fd00::/64"),
    ("macs", "52:54:00:00:03:00"),
    ("reach", "none"),
    ("member", "red"),
    ("vlan", "10"),
    ("broadcast_frames", "100"),
    ("dhcp_guard", "on"),
    ("irq_rate_max", "5000"),
];

/// One connection to the API that is kept open. The switch ends it after a minute: then there is
/// another one.
struct Api {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    connections: u32,
}

impl Api {
    fn connect(path: &Path) -> Self {
        let stream = BufReader::new(UnixStream::connect(path).expect("the API"));
        Self { path: path.into(), stream, connections: 1 }
    }

    /// Sends a request; its answer must be a success.
    fn ask(&mut self, method: &str, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let answer = self.try_ask(method, path, &body).unwrap_or_else(|| {
            self.stream = BufReader::new(UnixStream::connect(&self.path).expect("the API"));
            self.connections += 1;
            self.try_ask(method, path, &body).expect("an answer on a new connection")
        });
        assert_eq!(answer.0, 200, "{method} {path} {body}: {}", answer.1);
        answer.1
    }

    /// Status and body; `None` if the connection is closed.
    fn try_ask(&mut self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: vmlan\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        self.stream.get_mut().write_all((head + body).as_bytes()).ok()?;
        let mut line = String::new();
        let mut read = |line: &mut String| {
            line.clear();
            self.stream.read_line(line).ok().filter(|n| *n > 0)
        };
        read(&mut line)?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut length = 0;
        while line.trim() != "" {
            if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = n.trim().parse().ok()?;
            }
            read(&mut line)?;
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).ok()?;
        Some((status, serde_json::from_slice(&body).ok()?))
    }
}

/// Numbered frames, until told to stop; how many.
fn send(guest: &mut VirtioGuest, to: u8, stop: &AtomicBool) -> u64 {
    let mut bytes = [0; FRAME];
    bytes[..6].copy_from_slice(&mac(to, 0));
    bytes[6..12].copy_from_slice(&mac(guest.id, 0));
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) || !n.is_multiple_of(BURST) {
        bytes[NUMBER..NUMBER + 8].copy_from_slice(&n.to_le_bytes());
        if guest.send(0, NetHeader::default(), &bytes) {
            n += 1;
        } else {
            guest.flush();
            guest.nic.wait(Interest { rx: false, tx: true }, STALL).unwrap();
        }
        if n.is_multiple_of(BURST) {
            guest.flush();
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    guest.flush();
    n
}

/// Takes numbered frames in order until as many have come as were sent; `frames` tells how many.
fn receive(guest: &mut VirtioGuest, frames: &AtomicU64, sent: &dyn Fn() -> Option<u64>) -> u64 {
    let (own, mut n, mut moved) = (mac(guest.id, 0), 0, Instant::now());
    while sent().is_none_or(|sent| n < sent) {
        let before = n;
        guest.receive(|_, bytes| {
            if bytes[..6] == own {
                let number = bytes[NUMBER..NUMBER + 8].try_into().expect("eight bytes");
                assert_eq!(u64::from_le_bytes(number), n, "frame {n} is the next");
                n += 1;
            }
        });
        if n > before {
            frames.store(n, Ordering::Relaxed);
            moved = Instant::now();
        } else {
            assert!(moved.elapsed() < STALL, "frame {n} does not come");
            let nap = Duration::from_millis(20);
            guest.nic.wait(Interest { rx: true, tx: false }, nap).unwrap();
        }
    }
    n
}

/// The configuration as a file, with the third port's keys.
fn file(dir: &Path, keys: &str) -> String {
    let port = |name: &str, keys: &str| {
        let place = dir.join(format!("{name}.sock"));
        format!("[port.{name}]\nkind = \"vhost-user\"\nplace = \"{}\"\n{keys}", place.display())
    };
    format!("[group.red]\n{}{}{}", port("a", ""), port("b", ""), port("c", keys))
}

/// The `n`th change.
fn change(api: &mut Api, dir: &Path, n: usize) {
    if n.is_multiple_of(APPLY) {
        let keys =
            if n.is_multiple_of(2 * APPLY) { "to_rate = \"1Gbit\"\nweight = 3\n" } else { "" };
        let body = json!({ "path": "test.toml", "text": file(dir, keys) });
        let done = api.ask("POST", "/v1/apply", &body);
        let same = done["unchanged"].as_array().expect("a list");
        assert!(same.contains(&"a".into()) && same.contains(&"b".into()), "{done}");
        return;
    }
    let (key, value) = KEYS[n / 2 % KEYS.len()];
    let value = if n.is_multiple_of(2) { value } else { "" };
    api.ask("PATCH", "/v1/ports/c", &json!({ key: value }));
}

/// Changes for so long; how many in what time.
fn run(seconds: u32) -> Result<(u32, Duration)> {
    let dir = tempfile::tempdir().unwrap();
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let config = dir.path().join("vmlan.toml");
    std::fs::write(&config, file(dir.path(), "")).unwrap();
    let words = ["--full-wait", "10000000", "--config", config.to_str().unwrap()];
    let mut switch = Switch::start(dir.path(), None, &words.map(str::to_owned))?;
    let [mut a, mut b, mut c] = [("a", 1), ("b", 2), ("c", 3)]
        .map(|(name, id)| VirtioGuest::connect(&socket(name), id, ",size=256"));
    [&mut a, &mut b, &mut c].into_iter().for_each(VirtioGuest::introduce);
    let mut api = Api::connect(&dir.path().join("api.sock"));
    let (stop, frames) = (AtomicBool::new(false), AtomicU64::new(0));
    let all = std::sync::OnceLock::new();
    let (count, began) = (RATE * seconds, Instant::now());
    let (received, time) = std::thread::scope(|scope| {
        scope.spawn(|| all.set(send(&mut a, 2, &stop)).expect("once"));
        let receiver = scope.spawn(|| receive(&mut b, &frames, &|| all.get().copied()));
        for n in 0..count {
            change(&mut api, dir.path(), usize::try_from(n).expect("64 bits"));
            let due = began + Duration::from_secs(1) * (n + 1) / RATE;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let time = began.elapsed();
        // However slow the machine is, there was traffic meanwhile.
        assert!(
            settles(|| frames.load(Ordering::Relaxed) > u64::from(count)),
            "hardly any traffic"
        );
        stop.store(true, Ordering::Relaxed);
        (receiver.join().expect("the receiver"), time)
    });
    [&a, &b].into_iter().for_each(VirtioGuest::assert_sound);
    for name in ["a", "b"] {
        let port = switch.port(name)?;
        assert_eq!(port["drops"].as_object().map(serde_json::Map::len), Some(0), "{port}");
    }
    let connections = api.connections;
    println!(
        "{count} changes in {time:.1?}, {received} frames, none lost, {connections} connection(s)"
    );
    switch.alive()?;
    Ok((count, time))
}

#[test]
fn changes_of_one_port_cost_the_others_nothing() -> Result<()> {
    run(2).map(|_| ())
}

#[test]
#[ignore = "soak: a minute"]
fn a_thousand_changes_a_second_for_a_minute() -> Result<()> {
    let (count, time) = run(60)?;
    assert!(time < Duration::from_secs(62), "{count} changes took {time:?}");
    Ok(())
}
