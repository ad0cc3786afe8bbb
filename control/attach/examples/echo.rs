//! Two vhost-user ports joined by a wire: what the guest of one sends, the guest of the other gets.
//!
//! `echo SOCKET_A SOCKET_B [SECONDS]`. A tool to try VMMs on the vhost-user back end without a
//! switch: one thread pulls from either port and pushes to the other, naps when nothing moves, and
//! prints counters each second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlan_attach::vhost_user::{Config, attach};
use vmlan_frame::{Batch, Port, Sink};

/// Pushes all frames to the other port and lets the sender keep those that find no room.
struct Wire<'p>(&'p dyn Port);

impl Sink for Wire<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        if !self.0.is_up() || !self.0.offloads().covers(batch.needs()) {
            return;
        }
        let mut list: Vec<u16> = (0..batch.len()).filter_map(|i| u16::try_from(i).ok()).collect();
        let done = self.0.push(batch, &mut list);
        for i in list.iter().skip(done) {
            batch.hold(usize::from(*i));
        }
    }
}

struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        eprintln!("{}: {}", record.level(), record.args());
    }
    fn flush(&self) {}
}

fn report(name: &str, port: &dyn Port, details: &[(&'static str, String)]) {
    let (input, output) = port.counters().snapshot();
    let faults = port.counters().faults.get();
    println!("{name}: in {} out {} faults {faults} {details:?}", input.frames, output.frames);
    for (reason, n) in port.counters().drops() {
        println!("{name}: dropped {n} {}", reason.name());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    log::set_logger(&Log).map_err(|e| e.to_string())?;
    log::set_max_level(log::LevelFilter::Info);
    let args: Vec<String> = std::env::args().collect();
    let [_, a, b, rest @ ..] = args.as_slice() else {
        return Err("usage: echo SOCKET_A SOCKET_B [SECONDS]".into());
    };
    vmlan_ram::sigbus::install()?;
    let seconds = rest.first().map_or(Ok(u64::MAX), |s| s.parse())?;
    let open = |path: &String| {
        attach(Config { path: path.into(), queues: 4, ..Config::default() }, Arc::new(|| {}))
    };
    let (a, b) = (open(a)?, open(b)?);
    let (pa, pb) = (a.port(), b.port());
    let mut batch = Batch::new();
    let start = Instant::now();
    let mut next = Duration::from_secs(1);
    while start.elapsed().as_secs() < seconds {
        let mut moved = 0;
        for lane in 0..pa.lanes() {
            moved += pa.pull(lane, &mut batch, 256, &mut Wire(&*pb));
            moved += pb.pull(lane, &mut batch, 256, &mut Wire(&*pa));
        }
        if moved == 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
        if start.elapsed() >= next {
            next += Duration::from_secs(1);
            report("a", &*pa, &a.details());
            report("b", &*pb, &b.details());
        }
    }
    Ok(())
}
