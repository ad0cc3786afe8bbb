//! Firmware boots over the network: it finds its MAC address, asks for an address by DHCP, fetches
//! a Linux kernel by TFTP from a guest with virtio-net, and starts it. U-Boot with our e1000, iPXE
//! with our vmxnet3 and our e1000e. Under TCG iPXE takes half a minute for a kernel: `make soak`
//! starts it, and here it fetches a MiB, which is looked for in its memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use vmlan_tests::boot_server::BootServer;
use vmlan_tests::numbered::{STALL, Stops, mac};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Boot, Image, Process, Result, Switch, qemu};

/// So much of the kernel is a file of its own: some 730 frames.
const PART: usize = 1 << 20;
/// Debian's package u-boot-qemu.
const FIRMWARE: &str = "/usr/lib/u-boot/qemu-x86/u-boot.rom";

/// A PC with `more` and the NIC at `socket`, which also has `keys`; its console is its input and
/// output.
fn power_on(dir: &Path, socket: &Path, keys: &str, more: [&str; 2]) -> Result<Process> {
    let qemu = qemu::with_vfio_user()?.display().to_string();
    let nic = format!(
        r#"{{"driver":"vfio-user-pci",{keys}"socket":{{"type":"unix","path":"{}"}}}}"#,
        socket.display()
    );
    let [option, value] = more;
    let words = [
        &qemu,
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        "max",
        "-machine",
        "pc,memory-backend=mem",
        "-m",
        "256M",
        "-object",
        "memory-backend-memfd,id=mem,size=256M,share=on",
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-serial",
        "stdio",
        option,
        value,
        "-device",
        &nic,
    ];
    Process::start_dialogue("the PC", &dir.join("console.log"), &words.map(str::to_owned))
}

/// Waits until it has said so since `from` bytes of its console.
fn hears(pc: &mut Process, from: usize, text: &str) -> Result<()> {
    let log = pc.log_path().to_owned();
    let said = || std::fs::read(&log).unwrap_or_default();
    let ready = || String::from_utf8_lossy(said().get(from..).unwrap_or_default()).contains(text);
    pc.wait(text, STALL, ready)
}

/// Says a command, and waits until that has had its effect. On a busy machine U-Boot misses a
/// character now and then, and knows no such command: it is said again.
fn command(pc: &mut Process, line: &str, effect: &str) -> Result<()> {
    for _ in 0..9 {
        let log = pc.log_path().to_owned();
        let from = std::fs::metadata(&log).map_or(0, |m| usize::try_from(m.len()).unwrap());
        pc.say(line)?;
        let said = || {
            let all = std::fs::read(&log).unwrap_or_default();
            String::from_utf8_lossy(all.get(from..).unwrap_or_default()).into_owned()
        };
        pc.wait(effect, STALL, || said().contains(effect) || said().contains("Unknown command"))?;
        if said().contains(effect) {
            return Ok(());
        }
    }
    panic!("`{line}` does not get through: {}", pc.log())
}

/// A NIC of this model and a server with a kernel, which DHCP names, or, if there is one, with a
/// script that names the kernel or the first MiB of it, `part`; and `boot`, which is told where the
/// NIC's socket is, and gets the kernel.
fn with_server(
    model: &str,
    script: Option<&str>,
    boot: impl FnOnce(&Path, &Path, &[u8]) -> Result<()>,
) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("vmlan-uboot.").tempdir().expect("a directory");
    let dir = dir.path();
    let place = |name: &str| dir.join(name);
    let words = [
        "--full-wait".into(),
        "10000000".into(),
        format!("e1=vfio-user:{},model={model},mac={}", place("e1").display(), Boot::mac(1)),
        format!("server=vhost-user:{}", place("server").display()),
    ];
    let mut switch = Switch::start(dir, None, &words)?;
    let kernel = std::fs::read(Image::build(dir)?.packed_kernel).expect("a kernel");
    let stop = AtomicBool::new(false);
    let script = script.map(|text| ("script", text.as_bytes().to_vec()));
    let served = [("part", kernel[..PART].to_vec()), ("kernel", kernel.clone())];
    let files = script.into_iter().chain(served).collect();
    let mut guest = VirtioGuest::connect(&place("server"), 2, "");
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| BootServer::new(mac(2, 0), files).serve(&mut guest, &stop));
        boot(dir, &place("e1"), &kernel)?;
        switch.alive()
    })?;
    let port = switch.port("e1")?;
    assert_eq!(port["faults"], 0, "{port}");
    // iPXE speaks LACP, which no bridge passes on (IEEE 802.1Q, table 8-1).
    let drops = port["drops"].as_object().expect("drops by reason");
    assert!(drops.keys().all(|reason| reason == "reserved"), "{port}");
    Ok(())
}

#[test]
fn u_boot_starts_linux_over_the_network() -> Result<()> {
    assert!(Path::new(FIRMWARE).exists(), "no {FIRMWARE}; run:  scripts/setup.sh test");
    with_server("e1000", None, |dir, socket, kernel| {
        let mut pc = power_on(dir, socket, "", ["-bios", FIRMWARE])?;
        hears(&mut pc, 0, "Hit any key")?;
        command(&mut pc, "", "=> ")?;
        command(&mut pc, "setenv autoload no", "=> ")?;
        command(&mut pc, "setenv bootargs console=ttyS0 panic=-1", "=> ")?;
        command(&mut pc, "printenv ethaddr", &Boot::mac(1))?;
        command(&mut pc, "dhcp", "DHCP client bound to address 10.77.0.50")?;
        // A busy host answers late, many times in a row.
        command(&mut pc, "setenv tftptimeoutcountmax 100", "=> ")?;
        let loaded = format!("Bytes transferred = {} ", kernel.len());
        command(&mut pc, "tftpboot 0x2000000 10.77.0.1:kernel", &loaded)?;
        command(&mut pc, "zboot 0x2000000 ${filesize}", "Linux version")?;
        Ok(())
    })
}

/// Whether the PC's memory has `wanted` in one piece, where firmware would put it.
fn has_in_memory(pc: &Process, wanted: &[u8]) -> bool {
    let open = std::fs::read_dir(format!("/proc/{}/fd", pc.pid())).expect("the PC's descriptors");
    let is_memory = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("memfd:"))
    };
    open.flatten().map(|entry| entry.path()).filter(is_memory).any(|path| {
        let memory = std::fs::read(path).expect("the PC's memory");
        (0..memory.len()).step_by(16).any(|at| memory[at..].starts_with(wanted))
    })
}

/// iPXE with the ROM for this NIC, and what it does with `script`.
fn ipxe(
    [model, rom]: [&str; 2],
    script: &str,
    ends: impl FnOnce(&mut Process, &[u8]) -> Result<()>,
) -> Result<()> {
    let script = format!("#!ipxe\nifstat\n{script}\n");
    with_server(model, Some(&script), |dir, socket, kernel| {
        let rom = format!(r#""romfile":"{rom}","#);
        let mut pc = power_on(dir, socket, &rom, ["-machine", "graphics=off"])?;
        hears(&mut pc, 0, &Boot::mac(1))?;
        ends(&mut pc, kernel)
    })
}

/// It fetches a MiB unharmed, and has closed its NIC.
fn ipxe_fetches(nic: [&str; 2]) -> Result<()> {
    let script = "imgfetch tftp://10.77.0.1/part\nifclose\necho closed\nsleep 1000";
    ipxe(nic, script, |pc, kernel| {
        hears(pc, 0, "closed")?;
        assert!(has_in_memory(pc, &kernel[..PART]), "what it fetched is not in its memory");
        Ok(())
    })
}

/// It starts Linux.
fn ipxe_starts_linux(nic: [&str; 2]) -> Result<()> {
    let script = "kernel tftp://10.77.0.1/kernel console=ttyS0 panic=-1\nboot";
    ipxe(nic, script, |pc, _| hears(pc, 0, "Linux version"))
}

/// Its driver is unlike the others': it uses no interrupts and no second ring, and a descriptor
/// changes hands before its last word is written.
const VMXNET3: [&str; 2] = ["vmxnet3", "pxe-vmxnet3.rom"];

/// With legacy descriptors.
const E1000E: [&str; 2] = ["e1000e", "pxe-e1000e.rom"];

#[test]
fn ipxe_fetches_over_a_vmxnet3() -> Result<()> {
    ipxe_fetches(VMXNET3)
}

#[test]
fn ipxe_fetches_over_an_e1000e() -> Result<()> {
    ipxe_fetches(E1000E)
}

#[test]
#[ignore = "soak: 40 s of CPU for each; what U-Boot fetches starts beside the others"]
fn ipxe_starts_linux_over_each() -> Result<()> {
    ipxe_starts_linux(VMXNET3)?;
    ipxe_starts_linux(E1000E)
}
