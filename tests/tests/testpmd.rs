//! DPDK's virtio-user driver as the guest: somebody else's driver, through the real sockets,
//! counted frame by frame.

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};
use vmlan_tests::{
    Result, Switch,
    numbered::{Progress, STALL},
    testpmd::{BURST, BURSTS, Counted, Testpmd, Vdev},
};

/// Frames that have to pass in each run, over both ports.
const FRAMES: u64 = 2_000_000;

struct Run {
    options: &'static str,
    server: bool,
    queues: u16,
    length: u16,
}

const PLAIN: Run = Run { options: "", server: false, queues: 1, length: 60 };

/// Puts frames into circulation between two ports, lets millions pass, stops, and counts on both
/// sides.
fn bounce(run: &Run) -> Result<()> {
    let dir =
        tempfile::Builder::new().prefix("vmlan-testpmd.").tempdir().expect("a temporary directory");
    let dir = dir.path();
    let sockets = ["vu0", "vu1"].map(|name| dir.join(name));
    let connect = if run.server { ",connect" } else { "" };
    let ports = sockets.clone().map(|socket| {
        let name = socket.file_name().expect("a name").to_string_lossy().into_owned();
        format!("{name}=vhost-user:{},queues={}{connect}", socket.display(), run.queues)
    });
    let switch = Switch::start(dir, None, &ports)?;
    let vdevs = sockets.map(|socket| Vdev { socket, server: run.server, options: run.options });
    let mut testpmd = Testpmd::start(dir, &vdevs, run.queues)?;
    let begun = Instant::now();
    testpmd.bounce(run.length)?;
    let mut progress = Progress::default();
    let mut seen = 0;
    while seen < FRAMES {
        let now = total(testpmd.counted()?, |port| port.rx);
        progress.note(now - seen, || format!("{now} frames"));
        seen = now;
        sleep(Duration::from_millis(100));
    }
    let rate =
        total(testpmd.counted()?, |port| port.rx).checked_div(begun.elapsed().as_secs().max(1));
    testpmd.stop()?;
    println!(
        "  {} server={} queues={} {} bytes: {rate:?} frames/s",
        run.options, run.server, run.queues, run.length
    );
    audit(&switch, dir, run, testpmd.counted()?)
}

fn total(counted: [Counted; 2], field: impl Fn(Counted) -> u64) -> u64 {
    counted.into_iter().map(field).sum()
}

/// No frame lost, none invented, and the switch's own counters say the same.
fn audit(switch: &Switch, dir: &Path, run: &Run, counted: [Counted; 2]) -> Result<()> {
    assert_eq!(total(counted, |port| port.errors), 0, "{counted:?}");
    // What still lies in the receive rings is exactly what was put into circulation.
    let circulating = 2 * BURSTS * BURST;
    let (sent, received) = (total(counted, |port| port.tx), total(counted, |port| port.rx));
    assert_eq!(sent - received, circulating, "frames lost or doubled: {counted:?}");
    // The switch may need a moment to move the last ones.
    let settled = Instant::now() + STALL;
    loop {
        let (vu0, vu1) = (switch.port("vu0")?, switch.port("vu1")?);
        let want = [(&vu0, counted[0].tx, counted[1].tx), (&vu1, counted[1].tx, counted[0].tx)];
        let agrees = want.iter().all(|(port, inward, outward)| {
            port["in"]["frames"] == *inward
                && port["in"]["bytes"] == inward * u64::from(run.length)
                && port["out"]["frames"] == *outward
        });
        let dropped: u64 = [&vu0, &vu1]
            .iter()
            .flat_map(|port| port["drops"].as_object().expect("drops by reason").values())
            .filter_map(serde_json::Value::as_u64)
            .sum();
        assert_eq!(dropped, 0, "{vu0} {vu1}");
        if agrees {
            return Ok(());
        }
        assert!(
            Instant::now() < settled,
            "testpmd {counted:?}, vmlan {vu0} {vu1}, log in {}",
            dir.display()
        );
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn millions_of_frames_and_none_lost() -> Result<()> {
    bounce(&PLAIN)
}

#[test]
fn full_size_frames() -> Result<()> {
    bounce(&Run { length: 1514, ..PLAIN })
}

#[test]
fn the_switch_connects() -> Result<()> {
    bounce(&Run { server: true, ..PLAIN })
}

#[test]
fn without_mergeable_buffers() -> Result<()> {
    bounce(&Run { options: "mrg_rxbuf=0", ..PLAIN })
}

#[test]
fn without_in_order() -> Result<()> {
    bounce(&Run { options: "in_order=0", ..PLAIN })
}

#[test]
fn with_the_vectorised_driver() -> Result<()> {
    bounce(&Run { options: "mrg_rxbuf=0,in_order=1,vectorized=1", ..PLAIN })
}

#[test]
fn packed() -> Result<()> {
    bounce(&Run { options: "packed_vq=1,in_order=0", ..PLAIN })
}

#[test]
fn packed_in_order_without_mergeable_buffers() -> Result<()> {
    bounce(&Run { options: "packed_vq=1,mrg_rxbuf=0,in_order=1", ..PLAIN })
}

#[test]
fn packed_full_size_frames_of_the_vectorised_driver() -> Result<()> {
    let options = "packed_vq=1,mrg_rxbuf=0,in_order=1,vectorized=1";
    bounce(&Run { options, length: 1514, queues: 2, ..PLAIN })
}

#[test]
fn two_queue_pairs() -> Result<()> {
    bounce(&Run { queues: 2, ..PLAIN })
}
