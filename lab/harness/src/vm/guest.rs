//! A Linux guest in stock QEMU, and the line to its agent.

use crate::{
    Boot, HarnessError, Image, LanHost, Process, Result, Said, last_lines,
    vm::base64::{base64, unbase64},
    vm::monitor::Monitor,
};
use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long a guest may take to boot under TCG: 8 s on two idle cores, over 120 s seen at a load of
/// 29.
const BOOT: Duration = Duration::from_secs(600);

/// Where a QEMU in `dir` has a file of guest `name`.
pub(super) fn place(dir: &Path, name: &str, what: &str) -> PathBuf {
    dir.join(format!("{name}.{what}"))
}

/// A booted guest. Dropping it kills its QEMU.
pub struct Guest {
    pub(super) name: String,
    ip: String,
    pub(super) qemu: Process,
    pub(super) serial: PathBuf,
    line: BufReader<UnixStream>,
    pub(super) monitor: Option<Monitor>,
    asked: u32,
}

impl Guest {
    /// Boots all of `boots` at the same time and waits until each has its address set and its link
    /// up.
    ///
    /// # Errors
    /// [`HarnessError::Missing`] without QEMU, [`HarnessError::Ended`] with QEMU's own words if it
    /// gives up, [`HarnessError::Deadline`].
    pub fn boot<const N: usize>(image: &Image, dir: &Path, boots: [Boot; N]) -> Result<[Guest; N]> {
        // As many as there were.
        Guest::boot_all(image, dir, boots.into())?.try_into().map_err(|_| HarnessError::Garbled {
            what: "boot".into(),
            heard: "a lost guest".into(),
        })
    }

    /// The same for any number of them.
    pub fn boot_all(image: &Image, dir: &Path, boots: Vec<Boot>) -> Result<Vec<Guest>> {
        let mut begun = Vec::new();
        for boot in boots {
            begun.push(Begun::start(image, dir, boot)?);
        }
        let end = Instant::now() + BOOT;
        begun.into_iter().map(|begun| begun.finish(end)).collect()
    }

    /// SIGKILL for the VM, as from an out-of-memory killer.
    pub fn kill9(&mut self) {
        self.qemu.kill9();
    }

    /// Reboots and waits until it is back, with its address set and its link up; background
    /// commands are gone. Only for a guest that [`Boot::reboots`].
    pub fn reboot(&mut self) -> Result<()> {
        // There is no answer: the agent's would be lost with the machine, or not, by its speed.
        self.ask("reboot -f", BOOT)?;
        self.booted(BOOT)
    }

    fn booted(&mut self, within: Duration) -> Result<()> {
        self.asked = 0;
        // What the line still had when the machine was reset comes first.
        while self.answer("to boot", within)? != READY {}
        self.sh(&format!("ip addr add {}/24 dev eth0 && ip link set eth0 up", self.ip)).map(drop)
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.qemu.pid()
    }

    /// How long the guest has been up, in seconds: it only grows as long as nobody rebooted it.
    pub fn uptime(&mut self) -> Result<f64> {
        let text = self.sh("cut -d' ' -f1 /proc/uptime")?;
        text.trim()
            .parse()
            .map_err(|_| HarnessError::Garbled { what: self.name.clone(), heard: text })
    }

    /// Speaks to its agent by `line` from now on.
    pub(super) fn listen(&mut self, line: UnixStream) -> Result<()> {
        self.line = BufReader::new(settled(line).map_err(HarnessError::file(&self.name))?);
        Ok(())
    }

    fn ask(&mut self, command: &str, within: Duration) -> Result<()> {
        self.asked += 1;
        let ask =
            format!("{} {} {}\n", self.asked, within.as_secs().max(1), base64(command.as_bytes()));
        self.line.get_mut().write_all(ask.as_bytes()).map_err(HarnessError::file(&self.name))
    }

    /// It has booted once more, which nobody has asked for: what its kernel said at the end.
    fn rebooted(&self) -> HarnessError {
        let said = std::fs::read_to_string(&self.serial).unwrap_or_default();
        let end = said.rfind("Linux version").unwrap_or(said.len());
        let what = format!("guest {}", self.name);
        let heard = last_lines(said.get(..end).unwrap_or_default());
        HarnessError::Ended { what, status: "it has booted once more".into(), heard }
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
                Err(source) => return Err(HarnessError::file(&self.name)(source)),
            }
            if Instant::now() > end {
                let heard = last_lines(&std::fs::read_to_string(&self.serial).unwrap_or_default());
                let what = format!("guest {}: {what}", self.name);
                return Err(HarnessError::Deadline { what, seconds: within.as_secs(), heard });
            }
        }
    }
}

impl LanHost for Guest {
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
        self.ask(command, within)?;
        // The guest's own timeout ends the command first; a busy host gets time to hear of it.
        let answer = self.answer(command, within + Duration::from_secs(15))?;
        if answer == READY {
            return Err(self.rebooted());
        }
        let garbled = || HarnessError::Garbled { what: self.name.clone(), heard: answer.clone() };
        let mut parts = answer.split(' ');
        if parts.next() != Some(&self.asked.to_string()) {
            return Err(garbled());
        }
        let code = parts.next().and_then(|code| code.parse().ok()).ok_or_else(garbled)?;
        let text = unbase64(parts.next().unwrap_or_default()).ok_or_else(garbled)?;
        Ok(Said { code, text: String::from_utf8_lossy(&text).into_owned() })
    }
}

/// The agent's first line (`image.rs`).
const READY: &str = "agent ready";

/// A read returns now and then, so that an end of QEMU is noticed.
fn settled(line: UnixStream) -> std::io::Result<UnixStream> {
    line.set_nonblocking(false)?;
    line.set_read_timeout(Some(Duration::from_millis(200)))?;
    Ok(line)
}

/// A QEMU that was started and whose agent has not spoken yet.
pub(super) struct Begun {
    boot: Boot,
    pub(super) qemu: Process,
    pub(super) serial: PathBuf,
    agent: UnixListener,
    monitor: PathBuf,
}

impl Begun {
    pub(super) fn start(image: &Image, dir: &Path, boot: Boot) -> Result<Begun> {
        let [agent, serial, monitor] =
            ["agent", "serial", "qmp"].map(|what| place(dir, &boot.name, what));
        // A guest of that name that was killed leaves its own behind.
        let _ = std::fs::remove_file(&agent);
        let _ = std::fs::remove_file(&monitor);
        let argv = boot.arguments(image, dir)?;
        // We listen and QEMU connects, so no word of the agent can be lost before we look.
        let agent = UnixListener::bind(&agent).map_err(HarnessError::file(&agent))?;
        agent.set_nonblocking(true).map_err(HarnessError::file(&serial))?;
        let name = format!("QEMU of guest {}", boot.name);
        let qemu = Process::start(&name, &place(dir, &boot.name, "qemu"), &argv)?;
        Ok(Begun { boot, qemu, serial, agent, monitor })
    }

    /// Waits for QEMU's end of the line to the agent.
    pub(super) fn line(&mut self, end: Instant) -> Result<UnixStream> {
        let mut stream = None;
        let left = end.saturating_duration_since(Instant::now());
        self.qemu.wait("its agent's socket", left, || {
            stream = self.agent.accept().ok().map(|(stream, _)| stream);
            stream.is_some()
        })?;
        stream.ok_or_else(|| HarnessError::Garbled { what: "QEMU".into(), heard: "no line".into() })
    }

    fn finish(mut self, end: Instant) -> Result<Guest> {
        let line = settled(self.line(end)?).map_err(HarnessError::file(&self.boot.name))?;
        let monitor = self
            .boot
            .moves
            .then(|| Monitor::connect(&self.boot.name, &mut self.qemu, &self.monitor));
        let mut guest = Guest {
            ip: format!("10.77.0.{}", self.boot.number),
            name: self.boot.name,
            qemu: self.qemu,
            serial: self.serial,
            line: BufReader::new(line),
            monitor: monitor.transpose()?,
            asked: 0,
        };
        guest.booted(end.saturating_duration_since(Instant::now()))?;
        Ok(guest)
    }
}
