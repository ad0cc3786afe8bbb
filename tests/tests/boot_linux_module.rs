//! The kernel module of `guest/linux` in a Linux guest: what the stock driver shows, each technique
//! on and off while traffic runs, and what each costs: register accesses and interrupts for 1,000
//! frames, as the switch counts them. Throughputs are printed by nobody and judged by nobody.

use std::{thread::sleep, time::Duration};
use vmlan_tests::{
    Extras, Guest, LanHost, Result, connectivity,
    e1000_lan::{E1000, E1000Lan},
    guest_tools,
    linux_module::{self, Grown, IN_GUEST, MODULE, load, technique},
    linux_nic_suite::chapter,
};

const HOST: &str = "10.77.0.101";
const VIRTIO: &str = "10.77.0.2";

/// Runs `tell` on a LAN whose guest has the module loaded, unless it cannot be built here.
fn with_module(tell: fn(&mut E1000Lan) -> Result<()>) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("vmlan-module.").tempdir().expect("a directory");
    let Some(module) = linux_module::build(dir.path())? else { return Ok(()) };
    let extras = Extras { files: &[(IN_GUEST, &module)], ..Extras::default() };
    let mut lan = E1000Lan::start_with(E1000::Module, extras)?;
    load(&mut lan.e1000, MODULE, "")?;
    connectivity::reaches(&mut lan.e1000, HOST)?;
    let end = tell(&mut lan);
    if end.is_err() {
        println!("{}", lan.last_lines());
    }
    end
}

#[test]
fn a_guest_drives_its_nic_by_the_module() -> Result<()> {
    with_module(|lan| {
        chapter("parameters", || parameters(lan))?;
        chapter("every pair", || lan.scene().every_pair())?;
        chapter("self-test", || self_test(lan))?;
        chapter("statistics", || lan.scene().statistics())?;
        connectivity::offloads(&mut lan.e1000, true)?;
        chapter("techniques", || techniques(lan))?;
        chapter("accesses", || accesses(lan))?;
        chapter("offloads on", || lan.scene().traffic(true, true))?;
        chapter("VLAN", || lan.scene().vlan())?;
        chapter("jumbo frames", || lan.scene().jumbo(false))?;
        chapter("reload", || reload(lan, 5))?;
        sound(lan)?;
        chapter("the switch is killed", || switch_killed(lan))
    })
}

#[test]
#[ignore = "soak: minutes"]
fn everything_that_the_stock_driver_shows() -> Result<()> {
    with_module(|lan| {
        for techniques in ["csb=1", "csb=1 msi=0", "csb=0", "csb=0 msi=0", "csb=0 polling=1"] {
            println!("  with {techniques}");
            load(&mut lan.e1000, MODULE, techniques)?;
            chapter("every pair", || lan.scene().every_pair())?;
            chapter("offloads on", || lan.scene().traffic(true, true))?;
            chapter("offloads off", || lan.scene().traffic(false, true))?;
            connectivity::offloads(&mut lan.e1000, true)?;
            chapter("segmentation offload", || lan.scene().unsegmented())?;
            chapter("link", || lan.scene().link(2))?;
            chapter("multicast", || lan.scene().multicast())?;
            chapter("promiscuous mode", || lan.scene().promiscuous())?;
            chapter("jumbo frames", || lan.scene().jumbo(true))?;
            sound(lan)?;
        }
        chapter("50 reloads", || reload(lan, 50))?;
        sound(lan)
    })
}

/// Nothing that a kernel says when it is in trouble, and nothing of a broken device.
fn sound(lan: &mut E1000Lan) -> Result<()> {
    lan.scene().no_complaints()?;
    let broken = lan.e1000.sh("dmesg | grep -c 'device broken' || true")?;
    assert_eq!(broken.trim(), "0", "the driver called the device broken");
    lan.switch.alive()
}

/// It has the NIC, and refuses what makes no sense, by name.
fn parameters(lan: &mut E1000Lan) -> Result<()> {
    let guest = &mut lan.e1000;
    let bound = guest.sh("ethtool -i eth0")?;
    assert!(bound.contains("driver: vmlan_nic"), "{bound}");
    guest.sh("rmmod vmlan_nic")?;
    for (options, name) in [
        ("ring=100", "ring=100: from 64 to 4096, a power of two"),
        ("itr_us=0", "itr_us=0: from 1 to 16000"),
        ("sc_us=5", "sc_us=5: from 10 to 100000"),
        ("send_combining=1", "send_combining=1 goes with csb=0 only"),
    ] {
        let said = guest.run(&format!("insmod /lib/m/{MODULE} {options}"), STEP)?;
        assert_ne!(said.code, 0, "{options} was taken");
        let said = guest.sh("dmesg -c")?;
        assert!(said.contains(name), "{options}: {said}");
    }
    load(guest, MODULE, "")?;
    let odd = guest.run("ethtool --set-priv-flags eth0 send-combining on", STEP)?;
    assert_ne!(odd.code, 0, "send combining beside the CSB");
    guest.sh("dmesg -c | grep 'send-combining goes with csb off only'")?;
    guest.sh("ethtool -C eth0 rx-usecs 100 && ethtool -c eth0 | grep -q 'rx-usecs:.*100'")?;
    guest.sh("ethtool -C eth0 rx-usecs 0")?;
    connectivity::reaches(guest, HOST)
}

const STEP: Duration = Duration::from_secs(30);

/// Registers, EEPROM, interrupts, loopback and link.
fn self_test(lan: &mut E1000Lan) -> Result<()> {
    for by in ["", "msi=0", "csb=0 polling=1"] {
        load(&mut lan.e1000, MODULE, by)?;
        let verdicts = guest_tools::self_test(&mut lan.e1000)?;
        assert!(verdicts.values().all(|code| *code == 0), "{by}: {verdicts:?}");
        guest_tools::carrier(&mut lan.e1000, true)?;
        connectivity::reaches(&mut lan.e1000, HOST)?;
    }
    load(&mut lan.e1000, MODULE, "")
}

/// The guest sends whenever it can, or is silent again.
fn noise(guest: &mut Guest, on: bool) -> Result<()> {
    if on {
        guest.sh("rm -f /tmp/silent")?;
        let pings = "ping -q -i 0.005 -c 100 10.77.0.2; usleep 10000";
        return guest.background(&format!("sh -c 'until [ -e /tmp/silent ]; do {pings}; done'"));
    }
    guest.sh("touch /tmp/silent; while pidof ping; do sleep 0.1; done").map(drop)
}

/// Each on and off while both sides send, and files fetched with it.
fn techniques(lan: &mut E1000Lan) -> Result<()> {
    let guest = &mut lan.e1000;
    noise(guest, true)?;
    let all = ["csb", "moderated", "send-combining", "lazy-completion", "polling", "xmit-more"];
    for name in all {
        technique(guest, name, false)?;
    }
    for name in all {
        technique(guest, name, true)?;
        connectivity::fetch(guest, VIRTIO)?;
        technique(guest, name, false)?;
        connectivity::reaches(guest, VIRTIO)?;
    }
    for name in ["moderated", "send-combining", "lazy-completion"] {
        technique(guest, name, true)?;
    }
    connectivity::fetch(guest, VIRTIO)?;
    for _ in 0..10 {
        technique(guest, "send-combining", false)?;
        technique(guest, "csb", true)?;
        technique(guest, "csb", false)?;
    }
    connectivity::fetch(guest, VIRTIO)?;
    noise(guest, false)?;
    load(guest, MODULE, "")
}

/// Datagrams of 8 bytes, as fast as one thread sends them.
const SEND: &str = "iperf3 -u -b 0 -l 16 -n 200K -c 10.77.0.101";
/// Frames of full length, received.
const RECEIVE: &str = "iperf3 -n 16M -R -c 10.77.0.101";

/// What the techniques save, by the switch's counts. These do not depend on how fast anybody is, as
/// long as the workers stay awake between two frames of a guest.
fn accesses(lan: &mut E1000Lan) -> Result<()> {
    lan.host.background("iperf3 -s")?;
    let slow = "InterruptThrottleRate=0 TxIntDelay=0 TxAbsIntDelay=0 RxIntDelay=0 RxAbsIntDelay=0";
    // On a busy machine frames pile up before one of them, and the kernel hands it several at once.
    for tries_left in (0..3).rev() {
        let stock = row(lan, "e1000", slow, "stock e1000")?;
        let off = row(lan, MODULE, "csb=0 msi=0", "everything off")?;
        match same(&stock, &off) {
            Ok(()) => break,
            Err(what) if tries_left == 0 => panic!("{what}"),
            Err(what) => println!("  {what}; once more"),
        }
    }
    let base = row(lan, MODULE, "csb=0", "BASE, by MSI")?;
    // Bounds that a guest meets by what it sends, however slow it is.
    let combined = "csb=0 send_combining=1 lazy_completion=1 moderated=1 itr_us=16000 sc_rate=0 \
        sc_us=100000 reap_us=100000";
    let few = base[0].accesses() / 10.0;
    within(lan, combined, "SC", &|[sent, _]| sent.accesses() <= few)?;
    within(lan, "", "CSB", &|all| all.iter().all(|way| way.accesses() < 20.0))
}

/// The module with these options costs as `little` as it should, in one of three tries: on a busy
/// machine a guest may be too slow for anything to be combined, and the workers fall asleep.
fn within(
    lan: &mut E1000Lan,
    options: &str,
    name: &str,
    little: &dyn Fn(&[Grown; 2]) -> bool,
) -> Result<()> {
    for _ in 0..3 {
        if little(&row(lan, MODULE, options, name)?) {
            return Ok(());
        }
    }
    panic!("{name} saves too little");
}

/// Sends and receives by a driver; what that grew.
fn row(lan: &mut E1000Lan, driver: &str, options: &str, name: &str) -> Result<[Grown; 2]> {
    load(&mut lan.e1000, driver, options)?;
    connectivity::reaches(&mut lan.e1000, HOST)?;
    sleep(Duration::from_secs(1));
    let ways = [("sends UDP", SEND), ("receives TCP", RECEIVE)];
    let [sent, received] = ways.map(|(what, command)| {
        let grown = Grown::during(&mut lan.e1000, &lan.switch, command)?;
        println!(
            "  {name} {what}: {:.0} frames; for 1,000 of them {:.0} accesses, {:.0} interrupts",
            grown.frames(),
            grown.accesses(),
            grown.interrupts()
        );
        Ok(grown)
    });
    Ok([sent?, received?])
}

/// The control: driven as the stock driver drives it, the module costs what the stock driver does:
/// a doorbell for a frame, and five accesses for an interrupt. Where frames pile up before the
/// stock driver (Linux 6.12, a busy machine) the kernel hands them over together: it rings less.
fn same(stock: &[Grown; 2], off: &[Grown; 2]) -> std::result::Result<(), String> {
    let handler = ["ICR", "IMC", "IMS", "STATUS"];
    for (most_doorbells, (stock, off)) in [1050.0, 0.0].into_iter().zip(stock.iter().zip(off)) {
        let figures = [stock, off].map(|grown| {
            let [doorbells, reads] = [&["TDT"], &["ICR"]].map(|names| grown.of(names));
            (doorbells, grown.of(&handler) / reads)
        });
        println!("  doorbells for 1,000 frames, accesses for an interrupt: {figures:.1?}");
        let [(doorbells, each), (own_doorbells, own_each)] = figures;
        if (each - own_each).abs() >= 1.0 {
            return Err(format!("accesses for an interrupt: {figures:?}"));
        }
        let most = doorbells.max(own_doorbells);
        let differ = (doorbells - own_doorbells).abs() >= 0.3 * most + 10.0;
        if differ && (own_doorbells < doorbells || own_doorbells > most_doorbells) {
            return Err(format!("doorbells: {figures:?}"));
        }
    }
    Ok(())
}

/// It comes and goes while frames arrive, and while the guest itself sends whenever it can.
fn reload(lan: &mut E1000Lan, times: u32) -> Result<()> {
    let guest = &mut lan.e1000;
    noise(guest, true)?;
    guest_tools::generate(
        &mut lan.virtio,
        &vmlan_tests::Boot::mac(1),
        "10.77.0.1",
        60,
        Duration::from_micros(500),
    )?;
    for time in 1..=times {
        load(guest, MODULE, if time % 2 == 0 { "" } else { "csb=0" })?;
        if time % 5 == 0 || time == times {
            connectivity::reaches(guest, VIRTIO)?;
        }
        lan.switch.alive()?;
    }
    guest_tools::stop_generator(&mut lan.virtio)?;
    noise(guest, false)?;
    // The NIC goes back to the stock driver, and comes again.
    load(guest, "e1000", "")?;
    connectivity::reaches(guest, VIRTIO)?;
    load(guest, MODULE, "")?;
    connectivity::reaches(guest, VIRTIO)
}

/// `kill -9` of the switch under traffic. The NIC is dead, the guest is not. QEMU 11.1 itself dies
/// of a failed assertion more often than not; then there is nothing to see.
fn switch_killed(lan: &mut E1000Lan) -> Result<()> {
    lan.e1000.background("sh -c 'while :; do ping -q -i 0.05 -c 100 10.77.0.2; done'")?;
    lan.switch.kill9();
    sleep(Duration::from_secs(4));
    let Ok(said) = lan.e1000.sh("dmesg; ip link set eth0 down; rmmod vmlan_nic; echo alive") else {
        let log = lan.last_lines();
        assert!(log.contains("Assertion"), "the guest is gone, and QEMU does not say why: {log}");
        println!("  QEMU died of an assertion of its own");
        return Ok(());
    };
    let times = said.matches("device broken").count();
    println!("  the guest goes on; it called the device broken {times} times");
    assert!(times <= 1 && said.contains("alive"), "{said}");
    assert!(!["Oops", "BUG", "Call Trace"].iter().any(|word| said.contains(word)), "{said}");
    Ok(())
}
