//! A Linux guest in stock QEMU, and the line to its agent.

use crate::{
    Image, Proc, Said, Station,
    fault::{Fault, Result, SETUP},
    proc::{last_words, out_of},
};
use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// How long a guest may take to boot under TCG: 8 s on two idle cores, over 120 s seen at a load of 29.
const BOOT: Duration = Duration::from_secs(240);

/// What a guest is made of: its name, its number on the LAN, and its NIC.
pub struct Boot {
    name: String,
    number: u8,
    nic: Vec<String>,
    device: &'static str,
}

impl Boot {
    /// A guest with no NIC yet. `number` gives its address: 10.77.0.`number`, 52:54:00:77:00:`number`.
    #[must_use]
    pub fn new(name: &str, number: u8) -> Boot {
        Boot { name: name.into(), number, nic: Vec::new(), device: "" }
    }

    /// virtio-net over vhost-user; QEMU connects and, when the line breaks, tries again each second.
    #[must_use]
    pub fn vhost_user(self, socket: &Path) -> Boot {
        self.virtio(format!("socket,id=net,path={},reconnect=1", socket.display()))
    }

    /// virtio-net over vhost-user; QEMU listens, and waits for the switch to connect before it starts the guest.
    #[must_use]
    pub fn vhost_user_listening(self, socket: &Path) -> Boot {
        self.virtio(format!("socket,id=net,path={},server=on,wait=off", socket.display()))
    }

    /// Any NIC model of QEMU over a `stream` socket that somebody else listens on.
    #[must_use]
    pub fn stream(self, socket: &Path, model: &'static str) -> Boot {
        let netdev =
            format!("stream,id=net0,server=off,addr.type=unix,addr.path={}", socket.display());
        Boot { nic: words(&["-netdev", &netdev]), device: model, ..self }
    }

    fn virtio(self, chardev: String) -> Boot {
        let nic = words(&["-chardev", &chardev, "-netdev", "vhost-user,id=net0,chardev=net"]);
        Boot { nic, device: "virtio-net-pci", ..self }
    }

    fn arguments(&self, image: &Image, dir: &Path) -> Vec<String> {
        let serial = format!("file:{}", dir.join(format!("{}.serial", self.name)).display());
        let agent = format!("socket,id=agent,path={}", agent_socket(dir, &self.name).display());
        let mut all = words(&[
            "qemu-system-x86_64",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "1",
        ]);
        all.extend(words(&[
            "-machine",
            "q35,memory-backend=mem",
            "-m",
            "256M",
            "-no-reboot",
            "-nodefaults",
        ]));
        all.extend(words(&["-object", "memory-backend-memfd,id=mem,size=256M,share=on"]));
        all.extend(words(&[
            "-display",
            "none",
            "-serial",
            &serial,
            "-chardev",
            &agent,
            "-serial",
            "chardev:agent",
        ]));
        all.extend(words(&["-kernel", &image.kernel.to_string_lossy()]));
        all.extend(words(&["-initrd", &image.initramfs.to_string_lossy()]));
        all.extend(words(&[
            "-append",
            "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on",
        ]));
        all.extend(self.nic.iter().cloned());
        let vectors =
            if self.device == "virtio-net-pci" && msix_crashes() { ",vectors=0" } else { "" };
        let number = self.number;
        let device =
            format!("{},netdev=net0,mac=52:54:00:77:00:{number:02x}{vectors}", self.device);
        all.extend(words(&["-device", &device]));
        all
    }
}

/// Debian 12's QEMU 7.2 without KVM dies of SIGSEGV in `msix_set_vector_notifiers` when a vhost-user device is started, with any
/// back end (seen with DPDK's too, `tests/control.rs`). INTx instead of MSI-X avoids it; newer versions do not need that.
fn msix_crashes() -> bool {
    static CRASHES: OnceLock<bool> = OnceLock::new();
    *CRASHES.get_or_init(|| {
        out_of("qemu-system-x86_64", &["--version"]).is_ok_and(|text| text.contains("version 7."))
    })
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|&word| word.into()).collect()
}

fn agent_socket(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.agent"))
}

/// A booted guest. Dropping it kills its QEMU.
pub struct Guest {
    name: String,
    ip: String,
    qemu: Proc,
    serial: PathBuf,
    line: BufReader<UnixStream>,
    asked: u32,
}

impl Guest {
    /// Boots all of `boots` at the same time and waits until each has its address set and its link up.
    ///
    /// # Errors
    /// [`Fault::Missing`] without QEMU, [`Fault::Ended`] with QEMU's own words if it gives up, [`Fault::Deadline`].
    pub fn boot<const N: usize>(image: &Image, dir: &Path, boots: [Boot; N]) -> Result<[Guest; N]> {
        let mut begun = Vec::new();
        for boot in boots {
            begun.push(Begun::start(image, dir, boot)?);
        }
        let end = Instant::now() + BOOT;
        let guests =
            begun.into_iter().map(|begun| begun.finish(end)).collect::<Result<Vec<_>>>()?;
        // `begun` held exactly N.
        guests
            .try_into()
            .map_err(|_| Fault::Garbled { what: "boot".into(), heard: "a lost guest".into() })
    }

    /// SIGKILL for the VM, as from an out-of-memory killer.
    pub fn kill9(&mut self) {
        self.qemu.kill9();
    }

    /// QEMU's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.qemu.pid()
    }

    /// How long the guest has been up, in seconds: it only grows as long as nobody rebooted it.
    ///
    /// # Errors
    /// As [`Station::sh`].
    pub fn uptime(&mut self) -> Result<f64> {
        let text = self.sh("cut -d' ' -f1 /proc/uptime")?;
        text.trim().parse().map_err(|_| Fault::Garbled { what: self.name.clone(), heard: text })
    }

    fn answer(&mut self, what: &str, within: Duration) -> Result<String> {
        let end = Instant::now() + within;
        let mut text = String::new();
        loop {
            // A timed-out read keeps what it got so far in `text`.
            match self.line.read_line(&mut text) {
                Ok(0) => self.qemu.alive()?,
                Ok(_) => return Ok(text.trim().to_owned()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.qemu.alive()?,
                Err(source) => return Err(Fault::file(&self.name)(source)),
            }
            if Instant::now() > end {
                let heard = last_words(&std::fs::read_to_string(&self.serial).unwrap_or_default());
                let what = format!("guest {}: {what}", self.name);
                return Err(Fault::Deadline { what, seconds: within.as_secs(), heard });
            }
        }
    }
}

impl Station for Guest {
    fn name(&self) -> &str {
        &self.name
    }

    fn ip(&self) -> &str {
        &self.ip
    }

    fn files(&self) -> &'static str {
        "/www"
    }

    fn background(&mut self, command: &str) -> Result<()> {
        self.sh(&format!("setsid {command} < /dev/null > /dev/null 2>&1 &")).map(drop)
    }

    fn run(&mut self, command: &str, within: Duration) -> Result<Said> {
        self.asked += 1;
        let ask =
            format!("{} {} {}\n", self.asked, within.as_secs().max(1), base64(command.as_bytes()));
        self.line.get_mut().write_all(ask.as_bytes()).map_err(Fault::file(&self.name))?;
        // The guest's own timeout ends the command first; a busy host gets time to hear of it.
        let answer = self.answer(command, within + Duration::from_secs(15))?;
        let garbled = || Fault::Garbled { what: self.name.clone(), heard: answer.clone() };
        let mut parts = answer.split(' ');
        if parts.next() != Some(&self.asked.to_string()) {
            return Err(garbled());
        }
        let code = parts.next().and_then(|code| code.parse().ok()).ok_or_else(garbled)?;
        let text = unbase64(parts.next().unwrap_or_default()).ok_or_else(garbled)?;
        Ok(Said { code, text: String::from_utf8_lossy(&text).into_owned() })
    }
}

/// A QEMU that was started and whose agent has not spoken yet.
struct Begun {
    boot: Boot,
    qemu: Proc,
    serial: PathBuf,
    agent: UnixListener,
}

impl Begun {
    fn start(image: &Image, dir: &Path, boot: Boot) -> Result<Begun> {
        let socket = agent_socket(dir, &boot.name);
        // We listen and QEMU connects, so no word of the agent can be lost before we look.
        let agent = UnixListener::bind(&socket).map_err(Fault::file(&socket))?;
        agent.set_nonblocking(true).map_err(Fault::file(&socket))?;
        let log = dir.join(format!("{}.qemu", boot.name));
        let name = format!("QEMU of guest {}", boot.name);
        if crate::image::find_tool("qemu-system-x86_64").is_err() {
            return Err(Fault::Missing { what: "qemu-system-x86_64".into(), mend: SETUP });
        }
        let qemu = Proc::start(&name, &log, &boot.arguments(image, dir))?;
        let serial = dir.join(format!("{}.serial", boot.name));
        Ok(Begun { boot, qemu, serial, agent })
    }

    fn finish(mut self, end: Instant) -> Result<Guest> {
        let left = || end.saturating_duration_since(Instant::now());
        let mut stream = None;
        self.qemu.wait("its agent's socket", left(), || {
            stream = self.agent.accept().ok().map(|(stream, _)| stream);
            stream.is_some()
        })?;
        let line = stream
            .ok_or_else(|| Fault::Garbled { what: "QEMU".into(), heard: "no line".into() })?;
        let settled = line
            .set_nonblocking(false)
            .and_then(|()| line.set_read_timeout(Some(Duration::from_millis(200))));
        settled.map_err(Fault::file(&self.boot.name))?;
        let mut guest = Guest {
            ip: format!("10.77.0.{}", self.boot.number),
            name: self.boot.name,
            qemu: self.qemu,
            serial: self.serial,
            line: BufReader::new(line),
            asked: 0,
        };
        guest.answer("to boot", left())?;
        guest.sh(&format!("ip addr add {}/24 dev eth0 && ip link set eth0 up", guest.ip))?;
        Ok(guest)
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648 section 4, with padding.
fn base64(bytes: &[u8]) -> String {
    let digit = |group: u32, at: u32| char::from(ALPHABET[(group >> (18 - 6 * at)) as usize & 63]);
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        text.push(digit(group, 0));
        text.push(digit(group, 1));
        text.push(if chunk.len() > 1 { digit(group, 2) } else { '=' });
        text.push(if chunk.len() > 2 { digit(group, 3) } else { '=' });
    }
    text
}

/// The reverse; nothing for a character outside the alphabet.
fn unbase64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut group, mut bits) = (0_u32, 0);
    for letter in text.bytes().take_while(|&letter| letter != b'=') {
        let value = u32::try_from(ALPHABET.iter().position(|&known| known == letter)?).ok()?;
        group = (group << 6 | value) & 0xff_ffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(group >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{base64, unbase64};

    #[test]
    fn base64_as_in_rfc_4648_section_10() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
            assert_eq!(unbase64(coded).unwrap(), plain.as_bytes());
        }
        assert!(unbase64("no spaces").is_none());
    }
}
