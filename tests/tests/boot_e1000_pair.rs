//! Two Linux guests with their stock e1000 driver, one on trapped and one on mapped doorbells: what
//! either sends unsegmented or without a checksum is finished for the other, all statistics
//! registers agree, and the host's interrupt floor holds.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use vmlan_tests::{Boot, Guest, Image, Result, Switch, connectivity, guest_tools};

const TRAPPED: &str = "10.77.0.1";
const MAPPED: &str = "10.77.0.2";

/// The trapped one's `irq_rate_max`.
const IRQ_RATE_MAX: u32 = 2000;

/// The driver's names in `ethtool -S`, and the datasheet's.
const STATISTICS: [(&str, &str); 11] = [
    ("rx_packets", "GPRC"),
    ("tx_packets", "GPTC"),
    ("rx_bytes", "GORC"),
    ("tx_bytes", "GOTC"),
    ("rx_broadcast", "BPRC"),
    ("tx_broadcast", "BPTC"),
    ("rx_multicast", "MPRC"),
    ("tx_multicast", "MPTC"),
    ("tx_tcp_seg_good", "TSCTC"),
    ("rx_no_buffer_count", "RNBC"),
    ("rx_missed_errors", "MPC"),
];

#[test]
fn trapped_and_mapped() -> Result<()> {
    let temporary = tempfile::Builder::new().prefix("vmlan-pair.").tempdir();
    let temporary = temporary.expect("a temporary directory");
    let dir = temporary.path();
    let image = Image::build(dir)?;
    let nic = |name: &str, number: u8, keys: &str| {
        let (place, mac) = (dir.join(name), Boot::mac(number));
        format!("{name}=vfio-user:{},model=e1000,mac={mac},{keys}", place.display())
    };
    let ports = [
        nic("e1", 1, &format!("doorbell=trapped,irq_rate_max={IRQ_RATE_MAX}")),
        nic("e2", 2, "doorbell=mapped"),
    ];
    let mut switch = Switch::start(dir, None, &ports)?;
    let boots =
        [("e1", 1), ("e2", 2)].map(|(name, n)| Boot::new(name, n).vfio_user(&dir.join(name)));
    let [mut one, mut two] = Guest::boot(&image, dir, boots)?;
    for guest in [&mut one, &mut two] {
        connectivity::serve(guest)?;
    }
    for (first, second) in [(true, true), (true, false), (false, true), (false, false)] {
        connectivity::offloads(&mut one, first)?;
        connectivity::offloads(&mut two, second)?;
        guest_tools::carrier(&mut one, true)?;
        guest_tools::carrier(&mut two, true)?;
        exchange(&switch, &mut one, &mut two)?;
        println!("  offloads {first}/{second}");
    }
    connectivity::offloads(&mut one, true)?;
    connectivity::reaches(&mut one, MAPPED)?;
    agrees(&switch, &mut one, &mut two)?;
    assert_eq!(switch.terminate()?, Some(0), "{}", switch.log());
    Ok(())
}

/// Echoes, files and flows both ways, and never more interrupts than allowed.
fn exchange(switch: &Switch, one: &mut Guest, two: &mut Guest) -> Result<()> {
    connectivity::reaches(one, MAPPED)?;
    connectivity::reaches(two, TRAPPED)?;
    connectivity::ping_sizes(one, MAPPED)?;
    connectivity::fetch(one, MAPPED)?;
    connectivity::fetch(two, TRAPPED)?;
    let delivered =
        || switch.port("e1").map(|port| port["device"]["delivered"].as_u64().unwrap_or(0));
    let (since, before) = (Instant::now(), delivered()?);
    let there = connectivity::iperf(one, MAPPED, "-n 4M")?;
    let back = connectivity::iperf(two, TRAPPED, "-n 4M")?;
    let (count, seconds) = (delivered()? - before, since.elapsed().as_secs_f64());
    let [there, back] = [there, back].map(|flow| flow.bits_per_second / 1e6);
    println!(
        "  trapped -> mapped {there:.0} Mbit/s, back {back:.0}; {count} interrupts of the \
         trapped one in {seconds:.1} s"
    );
    // A hundredth and a few more: link changes are never held back.
    let most = seconds * f64::from(IRQ_RATE_MAX) * 1.01 + 10.0;
    assert!(
        u32::try_from(count).is_ok_and(|count| f64::from(count) <= most),
        "more than {most:.0}"
    );
    connectivity::no_checksum_errors(one)?;
    connectivity::no_checksum_errors(two)
}

/// What both statistics grew by while files, echoes and large TCP frames passed. Totals would not
/// do: a reset of the chip, as with each change of the offloads, clears what the driver has not
/// read yet.
fn agrees(switch: &Switch, one: &mut Guest, two: &mut Guest) -> Result<()> {
    let mut differences = String::new();
    for _ in 0..4 {
        let before = [sums(switch, "e1", one)?, sums(switch, "e2", two)?];
        connectivity::fetch(one, MAPPED)?;
        connectivity::ping_sizes(two, TRAPPED)?;
        connectivity::iperf(one, MAPPED, "-n 4M")?;
        sleep(Duration::from_millis(500));
        let after = [sums(switch, "e1", one)?, sums(switch, "e2", two)?];
        let grown = |guest: usize, side: usize| -> [u64; 11] {
            std::array::from_fn(|at| after[guest][side][at] - before[guest][side][at])
        };
        differences.clear();
        for guest in [0, 1] {
            let (driver, chip) = (grown(guest, 0), grown(guest, 1));
            println!("  {:?} by ethtool -S: {driver:?}", STATISTICS.map(|(_, register)| register));
            if driver != chip {
                differences +=
                    &format!("guest {}: ethtool -S {driver:?}, vmlan stats {chip:?}\n", guest + 1);
            }
        }
        // A frame that somebody sends by himself between the two reads is in one of them only.
        if differences.is_empty() {
            return Ok(());
        }
    }
    panic!("{differences}");
}

/// By the driver's and by the chip's count.
fn sums(switch: &Switch, name: &str, guest: &mut Guest) -> Result<[[u64; 11]; 2]> {
    let driver = guest_tools::statistics(guest)?;
    let port = switch.port(name)?;
    let chip = &port["device"]["statistics"];
    Ok([
        STATISTICS.map(|(own, _)| driver[own]),
        STATISTICS.map(|(_, register)| chip[register].as_u64().unwrap_or(0)),
    ])
}
