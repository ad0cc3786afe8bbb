//! The kernel module of `guest/linux`: built for the guests' kernel, and driven in a guest.

use crate::{
    Guest, HarnessError, LanHost, Result, Switch, find_program, kernel_headers, output_of,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Its name, and that of its file in a guest's `/lib/m`.
pub const MODULE: &str = "vmlan_nic";
/// Where [`Extras::files`](crate::Extras) is to put it.
pub const IN_GUEST: &str = "lib/m/vmlan_nic";

/// Where its sources are.
#[must_use]
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest/linux")
}

/// Builds it in `dir`, without a warning; `None`, and a word, where headers or tools are missing.
///
/// # Errors
/// [`HarnessError::Failed`] with the compiler's words.
pub fn build(dir: &Path) -> Result<Option<PathBuf>> {
    let Some(headers) = kernel_headers() else {
        println!("skipped: no headers of the guests' kernel; scripts/setup.sh test fetches them");
        return Ok(None);
    };
    let variables = fs::read_to_string(headers.join(".kernelvariables")).unwrap_or_default();
    let compiler = variables.split_whitespace().find_map(|word| Some(&word[word.find("gcc-")?..]));
    for tool in ["make", compiler.unwrap_or("gcc")] {
        if find_program(tool).is_err() {
            println!("skipped: {tool} is missing; scripts/setup.sh build test installs it");
            return Ok(None);
        }
    }
    let place = dir.join("module");
    fs::create_dir_all(&place).map_err(HarnessError::file(&place))?;
    for file in fs::read_dir(sources()).map_err(HarnessError::file(&sources()))?.flatten() {
        let copy = place.join(file.file_name());
        fs::copy(file.path(), &copy).map_err(HarnessError::file(&copy))?;
    }
    let headers = headers.to_string_lossy().into_owned();
    let here = format!("M={}", place.display());
    // Type information for BPF needs pahole, which only the packages of headers depend on.
    let plain = "CONFIG_DEBUG_INFO_BTF_MODULES=";
    output_of("make", &["-C", &headers, &here, "W=1", "KCFLAGS=-Werror", plain, "modules"])?;
    Ok(Some(place.join("vmlan_nic.ko")))
}

/// Takes the guest's NIC from whatever module has it, loads `driver` with `options`, and gives the
/// interface its address.
///
/// # Errors
/// As [`LanHost::sh`].
pub fn load(guest: &mut Guest, driver: &str, options: &str) -> Result<()> {
    let ip = guest.ip().to_owned();
    guest
        .sh(&format!(
            "rmmod {MODULE} 2> /dev/null; rmmod e1000 2> /dev/null
             insmod /lib/m/{driver} {options} && ip link set eth0 up &&
             ip addr add {ip}/24 dev eth0"
        ))
        .map(drop)
}

/// Turns a technique on or off, live.
///
/// # Errors
/// As [`LanHost::sh`].
pub fn technique(guest: &mut Guest, name: &str, on: bool) -> Result<()> {
    let on = if on { "on" } else { "off" };
    guest.sh(&format!("ethtool --set-priv-flags eth0 {name} {on}")).map(drop)
}

/// What the switch counted of a port.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Frames in both directions.
    pub frames: f64,
    /// Interrupts.
    pub interrupts: f64,
    doorbells: f64,
    registers: serde_json::Value,
}

impl Counts {
    /// As they are now.
    ///
    /// # Errors
    /// As [`Switch::port`].
    pub fn read(switch: &Switch, port: &str) -> Result<Counts> {
        let said = switch.port(port)?;
        let number = |value: &serde_json::Value| value.as_f64().unwrap_or(0.0);
        Ok(Counts {
            frames: number(&said["in"]["frames"]) + number(&said["out"]["frames"]),
            interrupts: number(&said["interrupts"]),
            doorbells: number(&said["doorbells"]),
            registers: said["device"]["registers"].clone(),
        })
    }

    fn of(&self, register: &str) -> f64 {
        let number = |way: &str| self.registers[register][way].as_f64().unwrap_or(0.0);
        number("reads") + number("writes")
    }

    /// A NIC without registers has doorbells.
    fn all(&self) -> f64 {
        if self.registers.is_null() {
            return self.doorbells;
        }
        let names = self.registers.as_object().into_iter().flat_map(|all| all.keys());
        names.map(|name| self.of(name)).sum()
    }
}

/// By how much they grew.
#[derive(Clone, Debug)]
pub struct Grown {
    before: Counts,
    after: Counts,
}

impl Grown {
    /// Between two looks.
    #[must_use]
    pub fn between(before: Counts, after: Counts) -> Grown {
        Grown { before, after }
    }

    /// While a command ran in the guest.
    ///
    /// # Errors
    /// As [`LanHost::run`]; [`HarnessError::Failed`] if it fails.
    pub fn during(guest: &mut Guest, switch: &Switch, command: &str) -> Result<Grown> {
        let before = Counts::read(switch, guest.name())?;
        let said = guest.run(command, Duration::from_secs(300))?;
        if said.code != 0 {
            return Err(HarnessError::Failed { what: command.into(), heard: said.text });
        }
        Ok(Grown::between(before, Counts::read(switch, guest.name())?))
    }

    /// Frames in both directions.
    #[must_use]
    pub fn frames(&self) -> f64 {
        self.after.frames - self.before.frames
    }

    /// Register accesses for 1,000 frames.
    #[must_use]
    pub fn accesses(&self) -> f64 {
        1000.0 * (self.after.all() - self.before.all()) / self.frames()
    }

    /// Accesses of some registers for 1,000 frames.
    #[must_use]
    pub fn of(&self, registers: &[&str]) -> f64 {
        let grown = |name: &&str| self.after.of(name) - self.before.of(name);
        1000.0 * registers.iter().map(grown).sum::<f64>() / self.frames()
    }

    /// Interrupts for 1,000 frames.
    #[must_use]
    pub fn interrupts(&self) -> f64 {
        1000.0 * (self.after.interrupts - self.before.interrupts) / self.frames()
    }
}
