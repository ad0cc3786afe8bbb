//! What any emulated NIC has to show in a Linux guest, chapter by chapter: a guest with it, one
//! with virtio-net, and a third host, on one switch. Throughputs are printed and never judged.

use crate::{
    Guest, LanHost, NetNs, Result, Switch, connectivity, guest_tools,
    linux_nic::{self, Filter, Groups, LinuxNic},
};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// Who takes part. Ports are called as their guests.
pub struct LinuxNicSuite<'a> {
    /// The NIC.
    pub card: &'static LinuxNic,
    /// The guest with it.
    pub guest: &'a mut Guest,
    /// The guest with virtio-net.
    pub virtio: &'a mut Guest,
    /// The host, with the interface `vmlan0`.
    pub host: &'a mut NetNs,
    /// A guest with an e1000; if there is none the host takes its part.
    pub e1000: Option<&'a mut Guest>,
    /// The switch.
    pub switch: &'a Switch,
}

/// Runs one chapter and says how long it took.
pub fn chapter(name: &str, what: impl FnOnce() -> Result<()>) -> Result<()> {
    let since = Instant::now();
    let end = what();
    let verdict = if end.is_ok() { "passed" } else { "FAILED" };
    println!("  {name}: {verdict} in {:.1?}", since.elapsed());
    end
}

/// What the driver should never have to say.
const TROUBLES: &str = "Tx Unit Hang|Call Trace|NETDEV WATCHDOG|e1000.*(hang|fail)|PCI error|[Tt]x \
    timeout|rtl_.*_cond|rx resets|BUG|Oops|vmxnet3.*(hang|activate|resetting)";

#[allow(clippy::missing_errors_doc, clippy::missing_panics_doc)] // Failed checks, all of them.
impl LinuxNicSuite<'_> {
    /// The guest, and the third host with its interface.
    fn pair(&mut self) -> (&mut Guest, &mut dyn LanHost, &'static str) {
        match &mut self.e1000 {
            Some(e1000) => (self.guest, &mut **e1000, "eth0"),
            None => (self.guest, self.host, "vmlan0"),
        }
    }

    fn no_checksum_errors(&mut self) -> Result<()> {
        connectivity::no_checksum_errors(self.guest)?;
        connectivity::no_checksum_errors(self.virtio)?;
        connectivity::no_checksum_errors(self.pair().1)
    }

    fn offloads(&mut self, on: bool) -> Result<()> {
        connectivity::some_offloads(self.guest, on, self.card.offloads)
    }

    /// Every host serves once; the guest exchanges echoes of all sizes and checksummed files
    /// with both others.
    pub fn every_pair(&mut self) -> Result<()> {
        let third: &mut dyn LanHost = match &mut self.e1000 {
            Some(e1000) => &mut **e1000,
            None => self.host,
        };
        let hosts: [&mut dyn LanHost; 3] = [self.guest, self.virtio, third];
        for host in hosts {
            let served = "busybox netstat -ltn | grep -q ':80 '";
            if host.run(served, Duration::from_secs(60))?.code != 0 {
                connectivity::serve(host)?;
            }
        }
        let own = self.guest.ip().to_owned();
        connectivity::meet(self.guest, self.virtio.ip())?;
        let (guest, third, _) = self.pair();
        connectivity::meet(guest, third.ip())?;
        connectivity::fetch(third, &own)?;
        connectivity::fetch(self.virtio, &own)?;
        self.no_checksum_errors()
    }

    /// What the driver read from the chip's statistics is what the switch counted, frame by frame
    /// and, where the chip counts them, byte by byte; `vmlan stats` shows the chip's statistics,
    /// and register accesses by name.
    pub fn statistics(&mut self) -> Result<()> {
        self.offloads(false)?;
        // No frame but the ones meant: none asks for addresses, and none is shorter than 60 bytes,
        // to which the chip pads.
        let (guest, third, interface) = self.pair();
        guest_tools::neighbour(guest, "eth0", third, interface)?;
        guest_tools::neighbour(third, interface, guest, "eth0")?;
        let mut seen = [const { Vec::new() }; 3];
        // Others may still speak by themselves (IPv6 is young): a second and a third try see less
        // of that.
        for _ in 0..8 {
            seen = self.counted()?;
            if seen[0] == seen[1] && (seen[2].is_empty() || seen[2] == seen[0]) {
                break;
            }
        }
        let [driver, ours, chip] = seen;
        println!(
            "  received, sent, bytes of each: the driver {driver:?}, vmlan stats {ours:?}, the \
                chip {chip:?}"
        );
        assert_eq!(driver, ours, "frames or bytes");
        assert!(chip.is_empty() || chip == driver, "the chip counts otherwise");
        Ok(())
    }

    /// By how much the driver's sums, the switch's and the chip's grow by the same traffic.
    fn counted(&mut self) -> Result<[Vec<u64>; 3]> {
        let before = [self.own()?, self.ours()?, self.chip()?];
        let (guest, third, _) = self.pair();
        for size in [100, 1000, 1472, 2000] {
            guest.sh(&format!("busybox ping -c 20 -i 0.01 -s {size} {}", third.ip()))?;
        }
        sleep(Duration::from_millis(200));
        let after = [self.own()?, self.ours()?, self.chip()?];
        let growth = |at: usize| {
            let pairs = after[at].iter().zip(&before[at]);
            pairs.map(|(after, before)| after.wrapping_sub(*before)).collect()
        };
        Ok([growth(0), growth(1), growth(2)])
    }

    fn own(&mut self) -> Result<Vec<u64>> {
        let sums = self.card.sums.iter().map(|sum| sum.read(self.guest));
        let sums = sums.collect::<Result<Vec<_>>>()?;
        Ok(self.card.untrailed(sums))
    }

    fn chip(&self) -> Result<Vec<u64>> {
        Ok(self.card.counted(&self.switch.port(self.guest.name())?))
    }

    fn ours(&self) -> Result<Vec<u64>> {
        let port = self.switch.port(self.guest.name())?;
        let all = [("out", "frames"), ("in", "frames"), ("out", "bytes"), ("in", "bytes")];
        let sums = all.map(|(way, what)| port[way][what].as_u64().expect("a counter"));
        Ok(sums[..self.card.sums.len()].to_vec())
    }

    /// TCP and UDP both ways against the virtio guest, or against `both` others; printed, not
    /// judged, but all of it has to arrive.
    pub fn traffic(&mut self, offloads: bool, both: bool) -> Result<()> {
        self.offloads(offloads)?;
        self.flows("", both)?;
        let own = self.guest.ip().to_owned();
        connectivity::fetch(self.guest, self.virtio.ip())?;
        connectivity::fetch(self.virtio, &own)?;
        self.no_checksum_errors()
    }

    fn flows(&mut self, what: &str, both: bool) -> Result<()> {
        let (own, name) = (self.guest.ip().to_owned(), self.card.name);
        let (virtio, amount) = (self.virtio.ip().to_owned(), self.card.amount);
        connectivity::flows(&format!("{what}{name} -> virtio"), self.guest, &virtio, amount)?;
        connectivity::flows(&format!("{what}virtio -> {name}"), self.virtio, &own, amount)?;
        if !both {
            return Ok(());
        }
        let (guest, third, _) = self.pair();
        let (ip, who) = (third.ip().to_owned(), third.name().to_owned());
        connectivity::flows(&format!("{what}{name} -> {who}"), guest, &ip, amount)?;
        connectivity::flows(&format!("{what}{who} -> {name}"), third, &own, amount)
    }

    /// TCP by the size of its window, printed.
    pub fn windows(&mut self) -> Result<()> {
        let mut said = String::new();
        for window in ["4K", "16K", "64K", "256K"] {
            let options = format!("-n 2M -w {window}");
            let flow = connectivity::iperf(self.guest, self.virtio.ip(), &options)?;
            said += &format!(", {window}: {:.0}", flow.bits_per_second / 1e6);
        }
        println!("  TCP {} -> virtio by window, Mbit/s{said}", self.card.name);
        Ok(())
    }

    /// A TSO frame crosses the switch whole, and a large one of the virtio guest is cut for the
    /// NIC.
    pub fn unsegmented(&mut self) -> Result<()> {
        self.offloads(true)?;
        let (own, virtio, name) =
            (self.guest.ip().to_owned(), self.virtio.ip().to_owned(), self.card.name);
        let (from, to) = self.means(|scene| {
            connectivity::iperf(scene.guest, &virtio, scene.card.amount).map(drop)
        })?;
        println!("  TCP {name} -> virtio: {from} bytes a frame from the NIC, {to} to the guest");
        assert!(to > 1514, "segmented on the way to a guest that takes large frames");
        let (to, from) = self
            .means(|scene| connectivity::iperf(scene.virtio, &own, scene.card.amount).map(drop))?;
        println!("  TCP virtio -> {name}: {from} bytes a frame from the guest, {to} to the NIC");
        assert!(from > 1514, "the virtio guest cut its frames itself");
        Ok(())
    }

    /// Bytes a frame at the NIC's port and at the virtio guest's, of the larger of both directions,
    /// while `during` runs.
    fn means(&mut self, during: impl FnOnce(&mut Self) -> Result<()>) -> Result<(u64, u64)> {
        let read = |scene: &Self| -> Result<[[u64; 4]; 2]> {
            let read = |name: &str| -> Result<[u64; 4]> {
                let port = scene.switch.port(name)?;
                let all = [("in", "bytes"), ("in", "frames"), ("out", "bytes"), ("out", "frames")];
                Ok(all.map(|(way, what)| port[way][what].as_u64().unwrap_or(0)))
            };
            Ok([read(scene.guest.name())?, read(scene.virtio.name())?])
        };
        let before = read(self)?;
        during(self)?;
        let after = read(self)?;
        let [nic, virtio] = [0, 1].map(|port| {
            let grown: [u64; 4] = std::array::from_fn(|at| after[port][at] - before[port][at]);
            let way = if grown[0] > grown[2] { 0 } else { 2 };
            grown[way] / grown[way + 1].max(1)
        });
        Ok((nic, virtio))
    }

    /// Register, EEPROM, interrupt, loopback and link test of Intel's drivers, with those of
    /// `excused` allowed to fail.
    pub fn self_test(&mut self, excused: &[&str]) -> Result<()> {
        let Self { guest, host, .. } = self;
        let mut failed = Vec::new();
        // The driver waits 10 ms for an interrupt, and gives up what has come back when its clock
        // has moved by two jiffies meanwhile (14). So it does when the host takes the CPU away, but
        // not each time.
        for _ in 0..4 {
            let verdicts = guest_tools::self_test(guest)?;
            println!("  ethtool -t offline: {verdicts:?}");
            failed = verdicts.into_iter().collect();
            failed.retain(|(name, code)| *code != 0 && !excused.contains(&name.as_str()));
            if failed.is_empty() {
                break;
            }
        }
        let dmesg = guest.sh("dmesg | tail -n 12")?;
        assert!(failed.is_empty(), "self-tests failed: {failed:?}\n{dmesg}");
        // What the driver says from here on is trouble.
        guest.sh("dmesg -c > /dev/null")?;
        guest_tools::carrier(guest, true)?;
        connectivity::reaches(*guest, host.ip())
    }

    /// `vmlan port set` pulls the cable and plugs it in again.
    pub fn link(&mut self, times: u32) -> Result<()> {
        let (name, own) = (self.guest.name().to_owned(), self.guest.ip().to_owned());
        for _ in 0..times {
            self.switch.ask(&["port", "set", &name, "link=down"])?;
            let down = guest_tools::carrier(self.guest, false)?;
            assert_eq!(guest_tools::pings(self.host, &own, 3)?, 0, "frames pass without a link");
            self.switch.ask(&["port", "set", &name, "link=up"])?;
            let up = guest_tools::carrier(self.guest, true)?;
            println!("  link down seen after {down:.1?}, up after {up:.1?}");
            connectivity::reaches(self.host, &own)?;
        }
        Ok(())
    }

    /// By how much the NIC's count of frames to groups grows while `count` datagrams are sent to
    /// one, all of which are to arrive.
    fn heard_of(&mut self, group: &str, count: u32) -> Result<u64> {
        let Self { card, guest, host, .. } = self;
        guest_tools::grown_to(guest, card.groups, count.into(), || {
            guest_tools::calls(host, group, count)
        })
    }

    /// The same for a group of which nothing is to arrive; a few frames may be others'.
    fn overheard_of(&mut self, group: &str) -> Result<u64> {
        let Self { card, guest, host, .. } = self;
        guest_tools::hardly_grown(guest, card.groups, 9, || guest_tools::calls(host, group, 20))
    }

    /// Groups the guest joined arrive, others do not, as far as the chip can tell them apart.
    pub fn multicast(&mut self) -> Result<()> {
        self.host.sh("ip route replace 239.0.0.0/8 dev vmlan0")?;
        self.guest.sh("echo 0 > /proc/sys/net/ipv4/icmp_echo_ignore_broadcasts")?;
        let Groups { joined, stray } = Groups::choose(self.guest, self.card.filter)?;
        let (one, stray) = (format!("239.2.2.{}", joined[0]), format!("239.2.2.{stray}"));
        // Nobody answers, and the chip lets none through.
        let heard = self.overheard_of(&one)?;
        assert!(heard < 10, "{heard} frames of a group that nobody joined");
        self.guest.sh(&format!("/bin/ip addr add {one}/32 dev eth0 autojoin"))?;
        let Self { card, guest, host, .. } = self;
        let heard = guest_tools::grown_to(guest, card.groups, 20, || {
            assert_eq!(guest_tools::all_pings(*host, &one, 20)?, 20, "echoes of a joined group");
            Ok(())
        })?;
        assert!(heard >= 20, "{heard} of 20 frames of a joined group counted");
        self.guest.sh(&format!("ip addr del {one}/32 dev eth0"))?;
        let groups = |verb: &str, all: &[u8]| {
            // In a batch `ip maddr` obeys the first line alone. The writes that set the filter are
            // posted: they have arrived when a register has been read.
            let all = all.iter().map(|n| linux_nic::mac(*n)).collect::<Vec<_>>().join(" ");
            format!(
                "for n in {all}; do /bin/ip maddr {verb} $n dev eth0 || exit 1; done
                 ethtool -d eth0 > /dev/null 2>&1; true"
            )
        };
        self.guest.sh(&groups("add", &joined))?;
        for at in [0, joined.len() / 2, joined.len() - 1] {
            let n = joined[at];
            let heard = self.heard_of(&format!("239.2.2.{n}"), 5)?;
            let of = joined.len();
            assert!(
                (5..12).contains(&heard),
                "{heard} of 5 frames to group {n}, one of {of} joined"
            );
        }
        let heard = self.overheard_of(&stray)?;
        assert!(heard < 10, "{heard} frames of a group outside the hash table");
        if self.card.filter == Filter::Bits64 {
            self.too_many_groups(&stray, &groups)?;
        }
        self.guest.sh(&groups("del", &joined))?;
        let heard = self.overheard_of(&one)?;
        assert!(heard < 10, "{heard} frames of a group that was left");
        self.guest.sh("/bin/ip link set eth0 allmulticast on")?;
        let heard = self.heard_of(&one, 20)?;
        assert!(heard >= 20, "{heard} of 20 frames though all multicast is wanted");
        self.guest.sh("/bin/ip link set eth0 allmulticast off").map(drop)
    }

    /// More groups than most drivers sort out: of 33 and more they take all, or go on sorting
    /// (Linux 6.12). Those that are joined are heard in any case.
    fn too_many_groups(
        &mut self,
        stray: &str,
        groups: &dyn Fn(&str, &[u8]) -> String,
    ) -> Result<()> {
        let stray_number: u8 = stray.rsplit('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        let more: Vec<u8> = (200..).filter(|n| *n != stray_number).take(21).collect();
        self.guest.sh(&groups("add", &more))?;
        for n in [more[0], more[20]] {
            let heard = self.heard_of(&format!("239.2.2.{n}"), 20)?;
            assert!(heard >= 20, "{heard} of 20 frames to group {n}, one of very many joined");
        }
        self.guest.sh(&groups("del", &more)).map(drop)
    }

    /// Frames for somebody else arrive only in promiscuous mode.
    pub fn promiscuous(&mut self) -> Result<()> {
        let LinuxNicSuite { card, guest, host, .. } = self;
        // Nobody has this address, so the switch floods.
        host.sh(
            "/bin/ip neigh replace 10.77.0.77 lladdr 02:00:00:00:00:77 dev vmlan0 nud permanent",
        )?;
        for (promiscuous, least, most) in [(false, 0, 10), (true, 20, 60), (false, 0, 10)] {
            let mode = if promiscuous { "on" } else { "off" };
            guest.sh(&format!("ip link set eth0 promisc {mode}"))?;
            let calls = || guest_tools::calls(host, "10.77.0.77", 20);
            let heard = match least {
                0 => guest_tools::hardly_grown(guest, card.heard, most, calls)?,
                _ => guest_tools::grown_to(guest, card.heard, least, calls)?,
            };
            assert!(
                (least..=most).contains(&heard),
                "{heard} of 20 strangers' frames, promiscuous {mode}"
            );
        }
        Ok(())
    }

    /// Tagged frames of full length, with the tag set and stripped by the chip (if it can) and by
    /// the kernel; other VLANs stay out. Between the guests, whose kernel is ours: the host's need
    /// not have VLANs.
    pub fn vlan(&mut self) -> Result<()> {
        let LinuxNicSuite { card, guest, virtio, .. } = self;
        guest_tools::vlan(*guest, "eth0", 5)?;
        guest_tools::vlan(*virtio, "eth0", 5)?;
        guest_tools::vlan(*virtio, "eth0", 6)?;
        let there_ip = format!("10.78.5.{}", last(virtio.ip()));
        let back_ip = format!("10.78.5.{}", last(guest.ip()));
        let ways: &[&str] = if card.tags { &["off", "on"] } else { &["off"] };
        for by_chip in ways {
            if card.tags {
                guest.sh(&format!("ethtool -K eth0 rxvlan {by_chip} txvlan {by_chip}"))?;
            }
            guest_tools::carrier(guest, true)?;
            connectivity::reaches(*guest, &there_ip)?;
            for size in [0, 56, 1468, 1472, 4000] {
                guest.sh(&format!("busybox ping -c 3 -i 0.02 -W 2 -s {size} {there_ip}"))?;
            }
            let there = connectivity::iperf(*guest, &there_ip, card.amount)?;
            let back = connectivity::iperf(*virtio, &back_ip, card.amount)?;
            let [there, back] = [there, back].map(|flow| flow.bits_per_second / 1e6);
            println!(
                "  VLAN 5, tags by the chip {by_chip}: TCP {there:.0} and back {back:.0} Mbit/s"
            );
        }
        let nobody = format!("10.78.6.{}", last(guest.ip()));
        // To the NIC, or nothing but questions who has that address would come: too few to tell
        // from what others say meanwhile.
        let own = guest.sh("cat /sys/class/net/eth0/address")?;
        let at = format!("{nobody} lladdr {} dev lan6 nud permanent", own.trim());
        virtio.sh(&format!("/bin/ip neigh replace {at}"))?;
        let mut call = || {
            let answered = guest_tools::pings(*virtio, &nobody, 20)?;
            assert_eq!(answered, 0, "a VLAN that the guest is not in");
            Ok(())
        };
        if card.sorts_tags {
            let stray = guest_tools::hardly_grown(guest, card.heard, 9, call)?;
            assert!(stray < 10, "{stray} frames of a VLAN that it is not in");
        } else {
            call()?;
        }
        connectivity::no_checksum_errors(*guest)?;
        guest.sh("ip link del lan5")?;
        virtio.sh("ip link del lan5; ip link del lan6").map(drop)
    }

    /// Frames as long as the driver takes them.
    pub fn jumbo(&mut self, flows: bool) -> Result<()> {
        self.set_mtu(self.card.mtu)?;
        guest_tools::carrier(self.guest, true)?;
        let own = self.guest.ip().to_owned();
        let most = self.card.mtu - 28;
        let others = [self.virtio.ip().to_owned(), self.pair().1.ip().to_owned()];
        for other in others {
            connectivity::reaches(self.guest, &other)?;
            let sizes = [56, 2020, 4055, most - 1, most, 20_000];
            for size in sizes.iter().filter(|size| **size <= most || **size == 20_000) {
                self.guest.sh(&format!("busybox ping -c 3 -i 0.02 -W 2 -s {size} {other}"))?;
            }
            connectivity::fetch(self.guest, &other)?;
        }
        if flows {
            self.flows("jumbo, ", true)?;
        }
        connectivity::fetch(self.virtio, &own)?;
        connectivity::no_checksum_errors(self.guest)?;
        connectivity::no_checksum_errors(self.virtio)?;
        self.set_mtu(1500)?;
        guest_tools::carrier(self.guest, true).map(drop)
    }

    fn set_mtu(&mut self, mtu: u32) -> Result<()> {
        guest_tools::mtu(self.virtio, "eth0", mtu)?;
        let (guest, third, interface) = self.pair();
        guest_tools::mtu(third, interface, mtu)?;
        guest_tools::mtu(guest, "eth0", mtu)
    }

    /// The driver has not complained since its log was last looked at.
    pub fn no_complaints(&mut self) -> Result<()> {
        let troubles = format!("dmesg | grep -E -B20 -A20 '{TROUBLES}' | tail -n 80");
        let troubles = self.guest.sh(&troubles)?;
        assert!(troubles.is_empty(), "the driver complained: {troubles}");
        Ok(())
    }
}

fn last(ip: &str) -> &str {
    ip.rsplit('.').next().unwrap_or_default()
}
