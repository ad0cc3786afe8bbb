//! `vmlan pkt-gen -i pci:...` in a Linux guest under QEMU with an IOMMU: the switch's e1000 with
//! its CSB, driven past the guest's kernel by each way that Debian's kernel has (VFIO, UIO, sysfs),
//! beside that kernel's own packet generator; and its r8169 and rtl8139. Frames a second are
//! printed and never judged.

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;
use vmlan_tests::numbered::STALL;
use vmlan_tests::{
    Boot, Extras, Guest, HarnessError, Image, LanHost, NetNs, Result, Switch, connectivity,
    guest_tools, output_of, vmlan_program,
};

const HOST: &str = "10.77.0.101";
/// Seconds of each measured run.
const SECONDS: u64 = 1;

/// A kind of NIC, in the order in which the guest's kernel loads their drivers: the first is eth0.
#[derive(Clone, Copy)]
struct Kind {
    /// Of the port too.
    model: &'static str,
    driver: &'static str,
    /// The guest's address: 10.77.0.1, 10.78.0.1, 10.79.0.1. The host's ends in 101.
    net: u8,
    /// The register that announces frames.
    doorbell: &'static str,
    /// Keys of our driver's address.
    keys: &'static str,
    /// Frames that the ring holds, in the least.
    ring: u64,
}

const KINDS: [Kind; 3] = [
    Kind { model: "e1000", driver: "e1000", net: 77, doorbell: "TDT", keys: "", ring: 256 },
    Kind {
        model: "rtl8139",
        driver: "8139cp",
        net: 78,
        doorbell: "TPPoll",
        keys: ",model=rtl8139",
        ring: 64,
    },
    Kind {
        model: "r8169",
        driver: "r8169",
        net: 79,
        doorbell: "TPPoll",
        keys: ",model=r8169",
        ring: 256,
    },
];

/// A NIC in the guest.
struct LinuxNic {
    kind: Kind,
    interface: String,
    /// Its MAC address.
    mac: String,
    /// Its PCI address.
    bdf: String,
}

impl LinuxNic {
    fn new(guest: &mut Guest, kind: Kind, n: u8) -> Result<Self> {
        let interface = format!("eth{n}");
        let bdf = guest.sh(&format!("basename $(readlink /sys/class/net/{interface}/device)"))?;
        Ok(Self { kind, interface, mac: Boot::mac(n + 1), bdf: bdf.trim().into() })
    }

    fn net(&self, last: u8) -> String {
        format!("10.{}.0.{last}", self.kind.net)
    }
}

/// A guest with the NICs, a port for what drives them from outside, and the host.
struct Lan {
    guest: Guest,
    host: NetNs,
    switch: Switch,
    /// The port whose guest is `vmlan pkt-gen` on the host's side.
    other: String,
    /// The NIC that a chapter is about.
    card: LinuxNic,
    dir: tempfile::TempDir,
}

impl Lan {
    fn start() -> Result<Self> {
        let temporary = tempfile::Builder::new().prefix("vmlan-pci.").tempdir();
        let temporary = temporary.expect("a temporary directory");
        let dir = temporary.path();
        let modules = &["vfio_iommu_type1", "vfio_pci", "uio_pci_generic"];
        let extras = Extras { programs: &[vmlan_program()], modules, ..Extras::default() };
        let image = Image::build_with(dir, extras)?;
        let mut host = NetNs::new(dir, "host", 101)?;
        let other = format!("vhost-user:{}", dir.join("other").display());
        let sockets = KINDS.map(|kind| dir.join(kind.model));
        let served =
            KINDS.iter().zip(&sockets).zip(1..).map(|((Kind { model, .. }, socket), n)| {
                let (socket, mac) = (socket.display(), Boot::mac(n));
                format!("{model}=vfio-user:{socket},model={model},csb=on,mac={mac}")
            });
        let rest = [format!("other={other}"), "host=tap:vmlan0".into()];
        let switch = Switch::start(dir, Some(&host), &served.chain(rest).collect::<Vec<_>>())?;
        host.adopt("vmlan0")?;
        let [first, second, third] = &sockets;
        let boot = Boot::new("e1", 1).vfio_user(first).beside(second).beside(third).iommu();
        let booted = Guest::boot(&image, dir, [boot]);
        if booted.is_err() {
            println!("{}", last_words(dir));
        }
        let [mut guest] = booted?;
        let card = LinuxNic::new(&mut guest, KINDS[0], 0)?;
        Ok(Self { guest, host, switch, other, card, dir: temporary })
    }

    /// Goes on with NIC `n`, which nobody has used yet.
    fn take(&mut self, n: u8) -> Result<()> {
        self.card = LinuxNic::new(&mut self.guest, KINDS[usize::from(n)], n)?;
        let (net, name) = (self.card.net(1), &self.card.interface);
        self.guest.sh(&format!("ip addr add {net}/24 dev {name} && ip link set {name} up"))?;
        self.host.sh(&format!("ip addr add {}/24 dev vmlan0", self.card.net(101)))?;
        self.is_given_back()
    }

    fn address(&self, keys: &str) -> String {
        format!("pci:{}{}{keys}", self.card.bdf, self.card.kind.keys)
    }

    /// Runs `vmlan pkt-gen` in the guest and returns its summary.
    fn generate(&mut self, keys: &str, options: &str) -> Result<Value> {
        let address = self.address(keys);
        // What people read goes to standard error with --json.
        let command = format!(
            "vmlan pkt-gen --json -i {address} {options} 2> /tmp/err || \
             {{ cat /tmp/err; dmesg | tail -n 5; }}"
        );
        let said = self.guest.sh(&command)?;
        json(&said)
    }

    /// What the command says when it fails.
    fn refusal(&mut self, address: &str) -> Result<String> {
        let said = self
            .guest
            .run(&format!("vmlan pkt-gen -i {address} -f tx -T 1"), Duration::from_secs(60))?;
        assert_eq!(said.code, 1, "{address}: {}", said.text);
        assert_eq!(said.text.trim().lines().count(), 1, "{address}: one line: {}", said.text);
        Ok(said.text)
    }

    fn load(&mut self, module: &str) -> Result<()> {
        let each =
            format!("while read -r m; do insmod /lib/m/$m || exit 1; done < /lib/m/{module}.order");
        self.guest.sh(&each).map(drop)
    }

    /// The kernel has its interface back as it was, and it works.
    fn is_given_back(&mut self) -> Result<()> {
        let LinuxNic { kind, interface, bdf, .. } = &self.card;
        let device = format!("/sys/bus/pci/devices/{bdf}");
        let driver = self.guest.sh(&format!("basename $(readlink {device}/driver)"))?;
        assert_eq!(driver.trim(), kind.driver);
        let there = self.guest.sh(&format!("/bin/ip -o -4 addr show dev {interface} up"))?;
        assert!(
            there.contains(&format!("{}/24", self.card.net(1))),
            "its address is gone: {there}"
        );
        let chosen = self.guest.sh(&format!("cat {device}/driver_override"))?;
        assert_eq!(chosen.trim(), "(null)");
        connectivity::reaches(&mut self.guest, &self.card.net(101))
    }
}

fn last_words(dir: &Path) -> String {
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap_or_default();
    let tail = |bytes: Vec<u8>| {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    };
    ["e1.serial", "switch.log"].map(|name| tail(read(name))).join("\n---\n")
}

fn json(text: &str) -> Result<Value> {
    let garbled =
        |_| HarnessError::Garbled { what: "vmlan pkt-gen --json".into(), heard: text.into() };
    serde_json::from_str(text).map_err(garbled)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Frames from and to the NIC, and writes of its doorbell, by the switch's count.
#[derive(Clone, Copy, Debug)]
struct Counted {
    from: u64,
    to: u64,
    rings: u64,
}

fn counted(lan: &Lan) -> Result<Counted> {
    let kind = lan.card.kind;
    let port = lan.switch.port(kind.model)?;
    Ok(Counted {
        from: number(&port["in"]["frames"]),
        to: number(&port["out"]["frames"]),
        rings: port["device"]["registers"][kind.doorbell]["writes"].as_u64().unwrap_or(0),
    })
}

/// Frames a second of the guest's kernel and its driver.
fn kernel(lan: &mut Lan) -> Result<f64> {
    let mac = guest_tools::mac(&mut lan.host, "vmlan0")?;
    guest_tools::generate(&mut lan.guest, &mac, HOST, 60, Duration::ZERO)?;
    let (before, since) = (counted(lan)?, Instant::now());
    let (frames, time) = loop {
        sleep(Duration::from_secs(SECONDS));
        let frames = counted(lan)?.from - before.from;
        if frames > 0 || since.elapsed() > STALL {
            break (frames, since.elapsed());
        }
    };
    guest_tools::stop_generator(&mut lan.guest)?;
    assert!(frames > 0, "the kernel's generator sends nothing");
    #[allow(clippy::cast_precision_loss)] // A figure for people.
    Ok(frames as f64 / time.as_secs_f64())
}

/// Sends for a while; every frame is counted by the switch too. Frames a second, and the rest of
/// the summary.
fn send(lan: &mut Lan, keys: &str, csb: bool) -> Result<f64> {
    let before = counted(lan)?;
    let summary = lan.generate(keys, &format!("-f tx -T {SECONDS}"))?;
    let after = counted(lan)?;
    let (frames, switched) = (number(&summary["frames"]), after.from - before.from);
    let (rings, Kind { model, doorbell, ring, .. }) = (after.rings - before.rings, lan.card.kind);
    println!(
        "  {model}{keys}: {frames} frames, {rings} writes of {doorbell}, {} interrupts",
        summary["interrupts"]
    );
    assert!(frames > 0, "{summary}");
    // The kernel greets its neighbours when it has its interface back.
    assert!((frames..frames + 30).contains(&switched), "{frames} sent, {switched} switched");
    assert_eq!(summary["rings_sound"], true, "{summary}");
    if csb {
        // One at most for each time that all of a ring was sent and the worker slept, or half of
        // it.
        assert!(rings < frames / (ring / 16), "{rings} kicks for {frames} frames with CSB");
    } else {
        assert!(rings >= frames, "{rings} kicks for {frames} frames without CSB");
    }
    lan.is_given_back()?;
    Ok(summary["frames_per_s"].as_f64().unwrap_or_default())
}

/// Receives what the other port sends: all of it arrives that the switch could deliver, in order
/// and unharmed.
fn receive(lan: &mut Lan, keys: &str, count: u64, rate: &str) -> Result<f64> {
    let (mac, address) = (lan.card.mac.clone(), lan.address(keys));
    let command =
        format!("vmlan pkt-gen --json -i {address} -f rxseq -n {count} --idle-exit 5 -T 50");
    lan.guest
        .background(&format!("sh -c '{command} > /tmp/rx 2> /tmp/rx.err; echo > /tmp/rx.end'"))?;
    lan.guest.sh(
        "for i in $(seq 300); do grep -q driven /tmp/rx.err && exit 0; sleep 0.1; done; exit 1",
    )?;
    let before = counted(lan)?;
    let number_of = count.to_string();
    let vmlan = vmlan_program().to_string_lossy();
    let words = [
        "pkt-gen", "--json", "-i", &lan.other, "-f", "txseq", "-D", &mac, "-n", &number_of, "-R",
        rate,
    ];
    let sent = number(&json(&output_of(&vmlan, &words)?)?["frames"]);
    lan.guest.sh("for i in $(seq 500); do [ -e /tmp/rx.end ] && exit 0; sleep 0.1; done; \
         cat /tmp/rx*; exit 1")?;
    let summary = json(&lan.guest.sh("cat /tmp/rx; rm /tmp/rx.end")?)?;
    let delivered = counted(lan)?.to - before.to;
    let frames = number(&summary["frames"]);
    let model = lan.card.kind.model;
    println!(
        "  {model}{keys}: {frames} of {sent} frames received, {delivered} delivered by the switch"
    );
    assert_eq!(sent, count);
    // Others may have spoken, to a driver that was not looked at yet as well, and the ring may have
    // been full; but what was put into it came out of it.
    let least = frames.saturating_sub(number(&summary["other_frames"]));
    assert!(least > 0 && (least..frames + 30).contains(&delivered), "{summary}");
    for fault in ["corrupt", "duplicated", "reordered", "malformed"] {
        assert_eq!(summary[fault], 0, "{fault}: {summary}");
    }
    lan.is_given_back()?;
    Ok(summary["frames_per_s"].as_f64().unwrap_or_default())
}

/// A script that waits until `pkt-gen` says that it drives the device.
const UNTIL_DRIVEN: &str = "for i in $(seq 300); do grep -q driven /tmp/tx && exit 0; sleep 0.1; \
                            done; cat /tmp/tx; exit 1";

/// What is wrong is said in one line with what to do, and nothing is touched.
fn refusals(lan: &mut Lan) -> Result<()> {
    let cases = [
        ("pci:0000:00:1d.7".into(), "no PCI device"),
        ("pci:0000:00:00.0".into(), "not e1000 (8086:100e)"),
        (lan.address(",via=vfio"), "modprobe vfio-pci"),
        (lan.address(",via=uio"), "modprobe uio_pci_generic"),
        (lan.address(",via=sysfs"), "receive=poll"),
        (lan.address(",via=sysfs,receive=poll"), "/proc/sys/vm/nr_hugepages"),
    ];
    for (address, words) in cases {
        let said = lan.refusal(&address)?;
        assert!(said.contains(words), "{address}: {said}");
    }
    lan.is_given_back()
}

/// A second process does not get the device; Ctrl-C ends the first one with its summary, and the
/// kernel has the device back.
fn interrupted(lan: &mut Lan, keys: &str) -> Result<()> {
    let address = lan.address(keys);
    lan.guest
        .sh(&format!("vmlan pkt-gen -i {address} -f tx > /tmp/tx 2>&1 & echo $! > /tmp/pid"))?;
    lan.guest.sh(UNTIL_DRIVEN)?;
    let said = lan.refusal(&address)?;
    assert!(said.contains("in use"), "{said}");
    let rest = "kill -INT $(cat /tmp/pid); \
                for i in $(seq 300); do [ -d /proc/$(cat /tmp/pid) ] || break; sleep 0.1; done";
    lan.guest.sh(rest)?;
    let said = lan.guest.sh("cat /tmp/tx")?;
    assert!(said.contains("Sent "), "no summary after Ctrl-C: {said}");
    lan.is_given_back()
}

/// A process that was killed leaves the device to the next one, which gives it back to the kernel
/// all the same.
fn killed(lan: &mut Lan, keys: &str) -> Result<()> {
    let address = lan.address(keys);
    lan.guest
        .sh(&format!("vmlan pkt-gen -i {address} -f tx > /tmp/tx 2>&1 & echo $! > /tmp/pid"))?;
    lan.guest.sh(UNTIL_DRIVEN)?;
    lan.guest.sh("kill -KILL $(cat /tmp/pid)")?;
    let name = &lan.card.interface;
    lan.guest.sh(&format!("! ls /sys/class/net/{name} 2> /dev/null"))?;
    lan.generate(keys, "-f tx -n 1000")?;
    lan.is_given_back()
}

/// A device that its owner has bound to VFIO stays there; while another program has its group open,
/// it is in use.
fn bound_by_hand(lan: &mut Lan) -> Result<()> {
    let (bdf, address) = (lan.card.bdf.clone(), lan.address(",csb=on"));
    let bind = format!(
        "cd /sys/bus/pci/devices/{bdf} && echo vfio-pci > driver_override &&
         echo {bdf} > driver/unbind &&
         echo {bdf} > /sys/bus/pci/drivers_probe && basename $(readlink iommu_group)"
    );
    let group = lan.guest.sh(&bind)?.trim().to_owned();
    let hold = format!("exec 3<> /dev/vfio/{group}; vmlan pkt-gen -i {address} -f tx -T 1");
    let said = lan.guest.run(&hold, Duration::from_secs(60))?;
    assert!(said.code == 1 && said.text.contains("in use"), "{}", said.text);
    lan.generate(",csb=on", "-f tx -n 1000")?;
    let back = format!(
        "cd /sys/bus/pci/devices/{bdf} && basename $(readlink driver) &&
         echo {bdf} > driver/unbind &&
         echo > driver_override && echo {bdf} > /sys/bus/pci/drivers_probe &&
         ip addr add 10.77.0.1/24 dev eth0 && ip link set eth0 up"
    );
    assert_eq!(lan.guest.sh(&back)?.trim(), "vfio-pci", "the device was moved");
    lan.is_given_back()
}

fn chapters(lan: &mut Lan) -> Result<()> {
    connectivity::reaches(&mut lan.guest, HOST)?;
    refusals(lan)?;
    let kernel = kernel(lan)?;
    for module in ["vfio_iommu_type1", "vfio_pci", "uio_pci_generic"] {
        lan.load(module)?;
    }
    lan.guest.sh("echo 4 > /proc/sys/vm/nr_hugepages")?;
    let mut table = vec![("kernel's pktgen, kernel's driver", kernel)];
    table.push(("pkt-gen tx, plain, UIO", send(lan, ",via=uio", false)?));
    table.push(("pkt-gen tx, CSB, UIO", send(lan, ",via=uio,csb=on", true)?));
    table.push((
        "pkt-gen tx, CSB, sysfs, polling",
        send(lan, ",via=sysfs,csb=on,receive=poll", true)?,
    ));
    table.push(("pkt-gen tx, CSB, VFIO", send(lan, ",csb=on", true)?));
    let by_message = ",csb=on,irq=msi";
    table.push(("pkt-gen tx, CSB by MSI, VFIO", send(lan, by_message, true)?));
    let slowly = receive(lan, ",csb=on", 10_000, "5k")?;
    table.push(("pkt-gen rx, CSB, VFIO (5,000 frames/s offered)", slowly));
    let fast = receive(lan, by_message, 300_000, "0")?;
    table.push(("pkt-gen rx, CSB by MSI, VFIO (as they come)", fast));
    interrupted(lan, ",csb=on")?;
    killed(lan, ",via=uio,csb=on")?;
    bound_by_hand(lan)?;
    for (what, frames) in table {
        println!("  {what:<48} {frames:>9.0} frames/s");
    }
    realtek(lan, 1, ",csb=on")?;
    realtek(lan, 2, ",csb=on,irq=msi")?;
    lan.switch.alive()
}

/// The same with a Realtek chip, in short.
fn realtek(lan: &mut Lan, n: u8, by_vfio: &str) -> Result<()> {
    lan.take(n)?;
    // Linux has its INTx on a list of those that cannot be masked.
    let unmaskable = lan.card.kind.model == "r8169";
    if unmaskable {
        let said = lan.refusal(&lan.address(",via=uio"))?;
        assert!(said.contains("irq=msi"), "{said}");
    } else {
        send(lan, ",via=uio", false)?;
    }
    send(lan, ",via=sysfs,csb=on,receive=poll", true)?;
    send(lan, by_vfio, true)?;
    receive(lan, by_vfio, 10_000, "5k")?;
    killed(lan, if unmaskable { by_vfio } else { ",via=uio,csb=on" })
}

#[test]
fn past_the_kernel() -> Result<()> {
    let since = Instant::now();
    let mut lan = Lan::start()?;
    println!("  booted in {:.1?}", since.elapsed());
    let end = chapters(&mut lan);
    println!("  {} in {:.1?}", if end.is_ok() { "passed" } else { "FAILED" }, since.elapsed());
    if end.is_err() {
        println!("{}", last_words(lan.dir.path()));
    }
    end
}
