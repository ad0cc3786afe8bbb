//! The same guest with its stock e1000 driver: QEMU's own NIC on a TAP, ours trapped, ours mapped; each with the driver's usual
//! interrupt moderation and without any. A measurement, no test: `make bench-guests`.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use vmlan_tests::{Boot, Guest, Image, NetNs, Result, Switch, check, nic, usage};

const HOST: &str = "10.77.0.101";
const SECONDS: u32 = 4;

/// The driver's parameters: no delays and no throttle, or what it takes by itself (dynamic throttling).
const MODERATION: [(&str, &str); 2] = [
    ("none", "InterruptThrottleRate=0 TxIntDelay=0 TxAbsIntDelay=0 RxIntDelay=0 RxAbsIntDelay=0"),
    ("driver's", ""),
];

/// One guest and the host; without a switch the NIC is QEMU's.
struct Pair {
    name: &'static str,
    guest: Guest,
    switch: Option<Switch>,
    host: NetNs,
    _dir: tempfile::TempDir,
}

/// Sums at one moment.
struct Sums {
    at: Instant,
    frames: u64,
    interrupts: u64,
    accesses: u64,
    ticks: u64,
}

impl Pair {
    fn start(name: &'static str, doorbell: Option<&str>) -> Result<Pair> {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let dir = temporary.path();
        let image = Image::build(dir)?;
        let mut host = NetNs::new(dir, "host", 101)?;
        let boot = Boot::new("e1", 1).newer();
        let (switch, boot) = match doorbell {
            None => (None, boot.tap(&host, "vmlan0", "e1000")),
            Some(doorbell) => {
                let (socket, mac) = (dir.join("e1"), Boot::mac(1));
                let place = socket.display();
                let nic = format!("e1=vfio-user:{place},model=e1000,mac={mac},doorbell={doorbell}");
                let switch = Switch::start(dir, Some(&host), &[nic, "host=tap:vmlan0".into()])?;
                (Some(switch), boot.vfio_user(&socket))
            }
        };
        let [guest] = Guest::boot(&image, dir, [boot])?;
        host.adopt("vmlan0")?;
        check::serve(&mut host)?;
        Ok(Pair { name, guest, switch, host, _dir: temporary })
    }

    /// Frames by the guest's count, where a large TCP frame is as many as the wire would carry; its interrupts; accesses to
    /// registers; CPU of QEMU and switch.
    fn sums(&mut self) -> Result<Sums> {
        let counted = nic::statistics(&mut self.guest)?;
        let frames = counted["rx_packets"] + counted["tx_packets"];
        let mut ticks = usage::cpu(self.guest.pid()).ticks;
        let mut accesses = 0;
        if let Some(switch) = &self.switch {
            ticks += usage::cpu(switch.pid()).ticks;
            let port = switch.port("e1")?;
            let registers = port["device"]["registers"].as_object().into_iter().flatten();
            accesses = registers
                .map(|(_, n)| n["reads"].as_u64().unwrap_or(0) + n["writes"].as_u64().unwrap_or(0))
                .sum();
        }
        let interrupts = nic::interrupts(&mut self.guest)?;
        Ok(Sums { at: Instant::now(), frames, interrupts, accesses, ticks })
    }

    /// Prints one row for what `work` sends.
    #[allow(clippy::cast_precision_loss)]
    fn row(
        &mut self,
        moderation: &str,
        what: &str,
        work: impl FnOnce(&mut Pair) -> Result<f64>,
    ) -> Result<()> {
        let before = self.sums()?;
        let megabits = work(self)?;
        let after = self.sums()?;
        let seconds = (after.at - before.at).as_secs_f64();
        let frames = (after.frames - before.frames) as f64;
        let per_thousand = |n: u64| 1000.0 * n as f64 / frames.max(1.0);
        let accesses = match &self.switch {
            Some(_) => format!("{:.0}", per_thousand(after.accesses - before.accesses)),
            None => "?".into(),
        };
        println!(
            "| {} | {moderation} | {what} | {:.0} | {} | {:.0} | {accesses} | {:.0} |",
            self.name,
            frames / seconds,
            if megabits > 0.0 { format!("{megabits:.0}") } else { "-".into() },
            per_thousand(after.interrupts - before.interrupts),
            (after.ticks - before.ticks) as f64 / seconds
        );
        Ok(())
    }

    fn measure(&mut self) -> Result<()> {
        let mac = nic::mac(&mut self.host, "vmlan0")?;
        for (moderation, options) in MODERATION {
            nic::reload(&mut self.guest, options)?;
            check::reaches(&mut self.guest, HOST)?;
            for size in [60, 1500] {
                self.row(moderation, &format!("pktgen {size}"), |pair| {
                    nic::generate(&mut pair.guest, &mac, HOST, size, Duration::ZERO)?;
                    sleep(Duration::from_secs(SECONDS.into()));
                    nic::stop_generator(&mut pair.guest).map(|()| 0.0)
                })?;
            }
            for (what, option) in [("TCP out", ""), ("TCP in", "-R")] {
                self.row(moderation, what, |pair| {
                    Ok(check::iperf(&mut pair.guest, HOST, SECONDS, option)?.bits_per_second / 1e6)
                })?;
            }
        }
        Ok(())
    }
}

#[test]
#[ignore = "a measurement: make bench-guests"]
fn the_same_guest_on_every_nic() -> Result<()> {
    println!(
        "A guest's e1000 under TCG; frames of both directions as on a wire; CPU of QEMU and switch"
    );
    println!(
        "| NIC | moderation | load | frames/s | Mbit/s | interrupts per 1,000 frames | register accesses per 1,000 | CPU % |"
    );
    println!("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |");
    // 2,000 interrupts a second at most, whatever the driver asks for.
    let nics = [
        ("QEMU's own, TAP", None),
        ("ours, trapped", Some("trapped")),
        ("ours, trapped, irq_rate_max=2000", Some("trapped,irq_rate_max=2000")),
        ("ours, mapped", Some("mapped")),
        ("ours, mapped, irq_rate_max=2000", Some("mapped,irq_rate_max=2000")),
    ];
    for (name, doorbell) in nics {
        Pair::start(name, doorbell)?.measure()?;
    }
    Ok(())
}
