//! A vfio-user port whose NIC is looked at by nobody else: to try VMMs on the server without a
//! switch, and to measure what a register access costs.
//!
//! `vfio_nic SOCKET [SECONDS] [mapped]` serves SOCKET, sends back what the guest sends, and prints
//! how things stand each second. `vfio_nic bench [mapped]` measures round trips of register
//! accesses between two threads of its own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlan_attach::vfio_user::{Config, Doorbell, attach};
use vmlan_frame::{Batch, Mac, Port, Sink};

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

/// Pushes all frames back to where they came from.
struct Echo<'p>(&'p dyn Port);

impl Sink for Echo<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        let mut list: Vec<u16> = (0..batch.len()).filter_map(|i| u16::try_from(i).ok()).collect();
        let _ = self.0.push(batch, &mut list);
    }
}

fn serve(config: Config, seconds: u64) {
    let door = attach(config, Arc::new(|| {})).unwrap_or_else(|e| panic!("{e}"));
    let port = door.port();
    let mut batch = Batch::new();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut next = Instant::now();
    while Instant::now() < end {
        if port.pull(0, &mut batch, 256, &mut Echo(&*port)) == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        if next <= Instant::now() {
            next += Duration::from_secs(1);
            println!("{:?} {:?}", door.details(), port.counters().snapshot());
        }
    }
    println!("{:?}", port.device());
}

/// A message with `words` behind its header.
fn message(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut bytes = [1u16, command].into_iter().flat_map(u16::to_ne_bytes).collect::<Vec<_>>();
    bytes.extend([size, flags, 0].into_iter().flat_map(u32::to_ne_bytes));
    bytes.extend(body);
    bytes
}

fn access(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut body = offset.to_ne_bytes().to_vec();
    body.extend([0u32, 4].into_iter().flat_map(u32::to_ne_bytes));
    body.extend(data);
    body
}

/// STATUS and IMC: as cheap for the chip as any.
const STATUS: u64 = 8;
const IMC: u64 = 0xd8;

fn bench(config: Config) -> std::io::Result<()> {
    let path = config.path.clone();
    let door = attach(config, Arc::new(|| {})).unwrap_or_else(|e| panic!("{e}"));
    let mut sock = UnixStream::connect(path)?;
    sock.write_all(&message(1, 0, &[0, 0, 1, 0]))?;
    let mut reply = [0; 4096];
    let _ = sock.read(&mut reply)?;
    let read = message(9, 0, &access(STATUS, &[]));
    let write = message(10, 0, &access(IMC, &[0; 4]));
    let posted = message(10, 0x10, &access(IMC, &[0; 4]));
    for (name, request, answer) in [("read", &read, 36), ("waited write", &write, 32)] {
        const TIMES: u32 = 100_000;
        let start = Instant::now();
        for _ in 0..TIMES {
            sock.write_all(request)?;
            sock.read_exact(&mut reply[..answer])?;
        }
        println!("{name}: {:.2} us each", start.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES));
    }
    for pause in [0u64, 10, 50] {
        const TIMES: u32 = 20_000;
        let mut waited = Duration::ZERO;
        for _ in 0..TIMES {
            let start = Instant::now();
            sock.write_all(&read)?;
            sock.read_exact(&mut reply[..36])?;
            waited += start.elapsed();
            let end = Instant::now() + Duration::from_micros(pause);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        }
        let each = waited.as_secs_f64() * 1e6 / f64::from(TIMES);
        println!("read, {pause} us after the last: {each:.2} us each");
    }
    const TIMES: u32 = 300_000;
    let start = Instant::now();
    for _ in 0..TIMES {
        sock.write_all(&posted)?;
    }
    sock.write_all(&read)?;
    sock.read_exact(&mut reply[..36])?;
    println!("posted write: {:.2} us each", start.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES));
    drop(door);
    Ok(())
}

fn main() -> std::io::Result<()> {
    vmlan_ram::sigbus::install()?;
    let _ = log::set_logger(&Log);
    log::set_max_level(log::LevelFilter::Info);
    let args: Vec<String> = std::env::args().skip(1).collect();
    let first = args.first().map_or("bench", String::as_str);
    let path = if first == "bench" {
        std::env::temp_dir().join(format!("vfio-nic-{}", std::process::id()))
    } else {
        PathBuf::from(first)
    };
    let mut config = Config::new(path, Mac::new([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
    if args.iter().any(|arg| arg == "mapped") {
        config.doorbell = Doorbell::Mapped;
    }
    if first == "bench" {
        return bench(config);
    }
    serve(config, args.get(1).and_then(|s| s.parse().ok()).unwrap_or(60));
    Ok(())
}
