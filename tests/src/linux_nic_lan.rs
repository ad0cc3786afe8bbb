//! Guests with emulated NICs and their stock Linux drivers, on one LAN with a virtio guest, an
//! e1000 guest and the host. One boot of each for everything: chapters, then the violent ones, to
//! all of them at the same time.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    Boot, Guest, Image, LanHost, NetNs, Result, Switch, connectivity, guest_tools,
    linux_nic::{self, LinuxNic},
    linux_nic_suite::{LinuxNicSuite, chapter},
};

/// How a guest comes by its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The switch.
    Switch,
    /// QEMU, on a stream port: the control experiment.
    Qemu(&'static str),
}

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// What `make test` has time for: each chapter once, and drivers are reloaded under some
    /// traffic until each of their options had its turn.
    Short,
    /// What `make soak` adds: flows between all, TCP by the size of its window, and so many reloads
    /// under all the traffic that there can be.
    Long(u32),
}

/// All of it. It ends when this is dropped.
pub struct LinuxNicLan {
    /// Those that it is about.
    pub guests: Vec<(Guest, &'static LinuxNic)>,
    /// How they come by their NICs.
    pub from: From,
    /// How much is done with them.
    effort: Effort,
    /// With virtio-net.
    pub virtio: Guest,
    /// With an e1000.
    pub e1000: Guest,
    /// The switch.
    pub switch: Switch,
    /// The host, with the interface `vmlan0`.
    pub host: NetNs,
    /// Where sockets and logs lie.
    _dir: TempDir,
}

/// Names of the guests and of their ports.
const NAMES: [&str; 3] = ["nic1", "nic2", "nic3"];

impl LinuxNicLan {
    /// Starts all of it, at most three guests with these cards.
    ///
    /// # Panics
    /// Without a temporary directory.
    pub fn start(cards: &[&'static LinuxNic], from: From, effort: Effort) -> Result<LinuxNicLan> {
        let temporary = tempfile::Builder::new().prefix("vmlan-nics.").tempdir();
        let temporary = temporary.expect("a temporary directory");
        let dir = temporary.path();
        let image = Image::build(dir)?;
        let mut host = NetNs::new(dir, "host", 101)?;
        let mut ports = vec![
            address(dir, "e1", 1, linux_nic::E1000.keys),
            format!("vm2=vhost-user:{}", dir.join("vm2").display()),
            "host=tap:vmlan0".into(),
        ];
        let mut boots = vec![
            Boot::new("e1", 1).vfio_user(&dir.join("e1")),
            Boot::new("vm2", 2).newer().vhost_user(&dir.join("vm2")),
        ];
        for ((name, card), number) in NAMES.iter().zip(cards).zip(3..) {
            let boot = Boot::new(name, number).newer().reboots();
            let boot = boot.cpus(card.cpus).append(card.append);
            let (port, boot) = match from {
                From::Switch => {
                    (address(dir, name, number, card.keys), boot.vfio_user(&dir.join(name)))
                }
                From::Qemu(model) => (
                    format!("{name}=stream:{}", dir.join(name).display()),
                    boot.stream(&dir.join(name), model),
                ),
            };
            ports.push(port);
            boots.push(boot);
        }
        let switch = Switch::start(dir, Some(&host), &ports)?;
        host.adopt("vmlan0")?;
        let mut booted = Guest::boot_all(&image, dir, boots)?.into_iter();
        let mut next = || booted.next().expect("as many as were booted");
        let (e1000, virtio) = (next(), next());
        let guests = cards.iter().map(|card| (next(), *card)).collect();
        Ok(LinuxNicLan { guests, from, effort, virtio, e1000, switch, host, _dir: temporary })
    }

    /// Everybody, for the chapters about one of the guests.
    pub fn scene(&mut self, at: usize) -> LinuxNicSuite<'_> {
        let (guest, card) = &mut self.guests[at];
        LinuxNicSuite {
            card,
            guest,
            virtio: &mut self.virtio,
            host: &mut self.host,
            e1000: Some(&mut self.e1000),
            switch: &self.switch,
        }
    }

    /// What whoever has to find out why wants to see.
    fn last_lines(&mut self) {
        let stats = self.switch.ask(&["stats"]).unwrap_or_else(|fault| fault.to_string());
        println!("{stats}\n{}", self.switch.ask(&["port", "list"]).unwrap_or_default());
        for (guest, card) in &mut self.guests {
            let said = guest.run(
                "dmesg | tail -n 8; grep . /sys/class/net/eth0/statistics/rx_*",
                Duration::from_secs(9),
            );
            println!(
                "--- {}\n{}",
                card.name,
                said.map_or_else(|e| e.to_string(), |said| said.text)
            );
        }
        println!("--- switch.log\n{}", self.switch.log());
    }

    /// The same done by all three guests at once.
    fn all(&mut self, what: impl Fn(&mut Guest, &LinuxNic) -> Result<()> + Sync) -> Result<()> {
        let what = &what;
        thread::scope(|scope| {
            let all: Vec<_> = self
                .guests
                .iter_mut()
                .map(|(guest, card)| scope.spawn(move || what(guest, card)))
                .collect();
            all.into_iter().try_for_each(|one| one.join().expect("no panic"))
        })
    }
}

fn address(dir: &Path, name: &str, number: u8, keys: &str) -> String {
    let (place, mac) = (dir.join(name), Boot::mac(number));
    format!("{name}=vfio-user:{},{keys},mac={mac}", place.display())
}

/// All chapters, and `more` of them, for each of these cards; then drivers come and go, and the
/// guests reboot.
///
/// # Errors
/// As [`LanHost::sh`], and what the chapters find.
pub fn everything(
    cards: &[&'static LinuxNic],
    from: From,
    effort: Effort,
    more: fn(&mut LinuxNicSuite<'_>) -> Result<()>,
) -> Result<()> {
    let since = Instant::now();
    let mut lan = LinuxNicLan::start(cards, from, effort)?;
    println!("  guests booted in {:.1?}", since.elapsed());
    let each = |at| chapters(&mut lan, at, more);
    let end = (0..cards.len()).try_for_each(each).and_then(|()| {
        chapter("reload", || reload(&mut lan))?;
        chapter("reboot", || reboot(&mut lan))
    });
    if end.is_err() {
        lan.last_lines();
    }
    end
}

fn chapters(
    lan: &mut LinuxNicLan,
    at: usize,
    more: fn(&mut LinuxNicSuite<'_>) -> Result<()>,
) -> Result<()> {
    let (card, from) = (lan.guests[at].1, lan.from);
    let long = lan.effort != Effort::Short;
    println!(" {}", card.name);
    let mut scene = lan.scene(at);
    chapter("driver", || driver(&mut scene))?;
    chapter("every pair", || scene.every_pair())?;
    chapter("statistics", || scene.statistics())?;
    chapter("offloads on", || scene.traffic(true, long || !card.brief))?;
    if card.brief {
        more(&mut scene)?;
        scene.no_complaints()?;
        return lan.switch.alive();
    }
    if !card.offloads.is_empty() {
        chapter("offloads off", || scene.traffic(false, long))?;
    }
    if long {
        chapter("windows", || scene.windows())?;
    }
    if card.cuts {
        chapter("segmentation offload", || scene.unsegmented())?;
    }
    if from == From::Switch {
        chapter("link", || scene.link(1))?;
    }
    chapter("multicast", || scene.multicast())?;
    chapter("promiscuous mode", || scene.promiscuous())?;
    chapter("VLAN", || scene.vlan())?;
    chapter("jumbo frames", || scene.jumbo(false))?;
    more(&mut scene)?;
    scene.no_complaints()?;
    lan.switch.alive()
}

/// The driver that was meant has the NIC, sees the link, and reads its registers and EEPROM.
fn driver(scene: &mut LinuxNicSuite<'_>) -> Result<()> {
    let LinuxNicSuite { card, guest, .. } = scene;
    let said = guest.sh("ethtool -i eth0")?;
    assert!(said.contains(&format!("driver: {}\n", card.driver)), "{said}");
    guest_tools::carrier(guest, true)?;
    let said = guest.sh("ethtool eth0")?;
    for words in [&format!("Speed: {}Mb/s", card.speed), "Duplex: Full", "Link detected: yes"] {
        assert!(said.contains(words), "no {words}: {said}");
    }
    assert_eq!(guest_tools::mac(*guest, "eth0")?, Boot::mac(last(guest.ip())));
    guest.sh("ethtool -d eth0 raw on > /tmp/registers && test -s /tmp/registers")?;
    if card.driver == "8139cp" {
        let words = guest.sh("ethtool -e eth0 raw on | hexdump -n 4 -e '/1 \"%02x\"'")?;
        assert_eq!(words, "2981ec10", "the EEPROM's mark and the vendor");
    }
    for mode in ["g", "d"] {
        guest
            .sh(&format!("ethtool -s eth0 wol {mode} && ethtool eth0 | grep 'Wake-on: {mode}'"))?;
    }
    if card.driver != "vmxnet3" {
        guest.sh("ethtool -r eth0")?;
    }
    guest_tools::carrier(guest, true).map(drop)
}

fn last(ip: &str) -> u8 {
    ip.rsplit('.').next().and_then(|n| n.parse().ok()).expect("an address")
}

/// No driver has more options to try.
const SHORT_RELOADS: u32 = 3;

/// The drivers go and come while frames for everybody arrive, and while the guests themselves send
/// whenever they can.
fn reload(lan: &mut LinuxNicLan) -> Result<()> {
    // Each frame for everybody costs each guest an interrupt, which under TCG is most of the time.
    let (times, every, pause) = match lan.effort {
        Effort::Short => (None, Duration::from_millis(10), "0.02"),
        Effort::Long(times) => (Some(times), Duration::from_millis(2), "0.005"),
    };
    guest_tools::generate(&mut lan.virtio, "ff:ff:ff:ff:ff:ff", "10.77.0.255", 60, every)?;
    let other = lan.virtio.ip().to_owned();
    lan.all(|guest, card| {
        let times = times.unwrap_or(SHORT_RELOADS);
        let pings = format!("while :; do ping -q -i {pause} -c 100 {other}; usleep 10000; done");
        guest.background(&format!("sh -c '{pings}'"))?;
        let since = Instant::now();
        for time in 1..=times {
            let options = card.options[time as usize % card.options.len()];
            guest_tools::reload(guest, card.driver, options)?;
            // Mostly it goes again at once, at whatever the chip is about then.
            if time % 10 == 0 || time == times {
                connectivity::reaches(guest, &other)?;
            }
        }
        let each = since.elapsed() / times;
        println!("  {} reloaded {times} times under traffic, {each:.1?} each", card.driver);
        let heard = guest_tools::grown_to(guest, card.heard, 1, || {
            thread::sleep(Duration::from_millis(500));
            Ok(())
        })?;
        assert!(heard > 0, "nothing arrives any more");
        Ok(())
    })?;
    guest_tools::stop_generator(&mut lan.virtio)?;
    lan.switch.alive()
}

/// The guests reset their machines with their NICs in full use.
fn reboot(lan: &mut LinuxNicLan) -> Result<()> {
    let other = lan.virtio.ip().to_owned();
    lan.all(|guest, _| {
        guest.background(&format!("iperf3 -c {other} -u -b 20M -t 1000"))?;
        guest.reboot()?;
        connectivity::meet(guest, &other)
    })?;
    for at in 0..lan.guests.len() {
        lan.scene(at).no_complaints()?;
    }
    lan.switch.alive()
}
