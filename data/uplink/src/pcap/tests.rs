//! The file as others read it.
use std::fs;
use std::process::Command;

use vmlan_frame::Offload;
use vmlan_ram::Slice;

use super::*;
use crate::tests::{frame, required, wait};

fn capture(mirror: &dyn Mirror, id: u32, out: bool, bytes: &[u8], dropped: Option<Reason>) {
    let mut batch = Batch::new();
    batch.add(&[Slice::from_bytes(bytes)], Offload::NONE).unwrap();
    mirror.capture(id, out, &batch.frame(0).unwrap(), dropped);
}

/// An ARP request, so that dissectors have something to say.
fn arp(last: u8) -> Vec<u8> {
    let mut f = vec![0xff; 6];
    f.extend([0x52, 0x54, 0, 0, 0, last, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0, 0, last]);
    f.extend([10, 0, 0, last, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
    f
}

/// One line for each frame, or none without tshark.
fn tshark(path: &std::path::Path, fields: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path).args(["-T", "fields"]);
    for f in fields {
        command.args(["-e", f]);
    }
    match command.output() {
        Err(e) => {
            assert!(!required("VMLAN_REQUIRE_PEERS"), "tshark: {e}");
            println!("skipped: no tshark: {e}");
            None
        }
        Ok(o) => {
            assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
            Some(String::from_utf8(o.stdout).unwrap().lines().map(str::to_owned).collect())
        }
    }
}

#[test]
fn tshark_reads_names_directions_reasons_while_we_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.pcapng");
    let pcap = open(Config::new(&path)).unwrap();
    let mirror = pcap.mirror();
    let (a, b) = (pcap.add_interface("vm-a"), pcap.add_interface("vm-b"));
    assert_eq!((a, b, pcap.add_interface("vm-a")), (0, 1, 0));
    capture(&*mirror, a, false, &arp(1), None);
    capture(&*mirror, b, true, &arp(1), None);
    capture(&*mirror, b, false, &frame(2, 1514), Some(Reason::NotAllowed));
    // All three: it may have flushed by now.
    wait("flush", || fs::metadata(&path).unwrap().len() > 2 * 42 + 1514);
    let fields = ["frame.interface_name", "frame.packet_flags_direction", "frame.len"];
    let more = ["frame.comment", "arp.src.proto_ipv4", "frame.time_epoch"];
    let Some(lines) = tshark(&path, &[fields, more].concat()) else { return };
    let rows: Vec<Vec<&str>> = lines.iter().map(|l| l.split('\t').collect()).collect();
    assert_eq!(rows[0][..5], ["vm-a", "0x00000001", "42", "", "10.0.0.1"]);
    assert_eq!(rows[1][..5], ["vm-b", "0x00000002", "42", "", "10.0.0.1"]);
    assert_eq!(rows[2][..4], ["vm-b", "0x00000001", "1514", "dropped: not-allowed"]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let time: f64 = rows[0][5].parse().unwrap();
    assert!((now - time).abs() < 60.0, "{time} is about now, {now}");
}

#[test]
fn overflow_is_counted_and_told_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.pcapng");
    let mut pcap = open(Config::new(&path)).unwrap();
    let mirror = pcap.mirror();
    let id = pcap.add_interface("vm");
    // The writer cannot swap while the test holds its lock, and nobody waits for that either.
    {
        let _queue = lock(&pcap.shared.queue);
        capture(&*mirror, id, false, &arp(1), None);
        assert_eq!(pcap.lost(), 1);
    }
    let big = frame(1, 9000);
    let mut n = 0;
    // The writer keeps up where it has more of the machine than who captures.
    for _ in 0..20 {
        let burst = 8 * QUEUE / 9000;
        (0..burst).for_each(|_| capture(&*mirror, id, false, &big, None));
        n += burst;
        if pcap.lost() > 1 {
            break;
        }
    }
    let lost = pcap.lost();
    assert!(lost > 1, "eight times the queue in one burst does not fit");
    assert!(lock(&pcap.shared.queue).bytes.capacity() < 2 * QUEUE, "and did not grow it");
    pcap.close();
    let captured = pcap.shared.frames.load(Ordering::Relaxed);
    assert_eq!(captured + lost, n as u64 + 1);
    assert_eq!(pcap.details()[4], ("lost", lost.to_string()));
    let bytes = fs::read(&path).unwrap();
    let tail = &bytes[bytes.len() - 40..];
    assert_eq!(tail[..4], 5u32.to_ne_bytes(), "statistics come last");
    assert_eq!(tail[20..24], [5, 0, 8, 0].map(|b: u8| b), "isb_ifdrop");
    assert_eq!(tail[24..32], lost.to_ne_bytes());
    if let Some(lines) = tshark(&path, &["frame.len"]) {
        assert_eq!(lines.len() as u64, captured);
    }
}

#[test]
fn workers_capture_at_once_and_every_frame_is_in_the_file_or_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.pcapng");
    let mut pcap = open(Config { snaplen: 64, ..Config::new(path.clone()) }).unwrap();
    let mirror = pcap.mirror();
    let id = pcap.add_interface("vm");
    std::thread::scope(|s| {
        for last in 0..4 {
            let mirror = &mirror;
            s.spawn(move || {
                for _ in 0..5000 {
                    capture(&**mirror, id, false, &arp(last), None);
                }
            });
        }
    });
    pcap.close();
    let captured = pcap.shared.frames.load(Ordering::Relaxed);
    assert_eq!(captured + pcap.lost(), 20_000);
    assert!(captured > 1000, "{captured} captured");
    if let Some(lines) = tshark(&path, &["arp.src.proto_ipv4"]) {
        assert_eq!(lines.len() as u64, captured);
        assert!(lines.iter().all(|l| l.starts_with("10.0.0.")), "no torn record");
    }
}

#[test]
fn snaplen_cuts_data_and_not_the_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.pcapng");
    let mut pcap = open(Config { snaplen: 61, ..Config::new(path.clone()) }).unwrap();
    let id = pcap.add_interface("vm");
    capture(&*pcap.mirror(), id, false, &frame(1, 1514), None);
    pcap.close();
    if let Some(lines) = tshark(&path, &["frame.len", "frame.cap_len"]) {
        assert_eq!(lines, ["1514\t61"]);
    }
    assert!(matches!(
        open(Config { snaplen: 13, ..Config::new(path) }),
        Err(PcapError::BadSnaplen(13))
    ));
}

#[test]
fn the_file_is_private_and_nothing_else_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.pcapng");
    fs::write(&path, vec![1; 100_000]).unwrap();
    drop(open(Config::new(&path)).unwrap());
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    assert!(meta.len() < 1000, "the old content is gone");

    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    for bad in ["link", "pipe", "."] {
        let e = open(Config::new(dir.path().join(bad))).unwrap_err();
        assert!(matches!(e, PcapError::NotFile(_)), "{bad}: {e:?}");
    }
    assert!(matches!(open(Config::new("/dev/null")), Err(PcapError::NotFile(_))));
    let none = open(Config::new(dir.path().join("no/where"))).unwrap_err();
    assert!(matches!(none, PcapError::NoDirectory(..)), "{none:?}");
}

/// Neither the API nor the end of the switch waits for a writer that the file system keeps.
#[test]
fn a_file_that_hangs_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut pcap = open(Config::new(dir.path().join("out.pcapng"))).unwrap();
    let (file, hangs) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        let _ = hangs.recv_timeout(Duration::from_secs(20));
    });
    drop(pcap.thread.replace(writer));
    pcap.close();
    file.send(()).expect("the writer is there still");
}

#[test]
fn a_full_disk_ends_the_capture_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let pcap = open(Config::new(dir.path().join("out.pcapng"))).unwrap();
    pcap.shared.fail(&io::Error::from_raw_os_error(libc::ENOSPC));
    let id = pcap.add_interface("vm");
    capture(&*pcap.mirror(), id, false, &arp(1), None);
    assert_eq!(pcap.lost(), 1);
    assert!(pcap.details()[1].1.starts_with("failed: No space left"));
}
