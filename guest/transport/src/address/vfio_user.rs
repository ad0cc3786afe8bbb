//! Addresses of vfio-user ports seen from the guest's side:
//! `vfio-user:/run/vm2.sock[,key=value...]`.

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::str::FromStr;

use super::{AddressError, on_off};
use crate::{Completion, Conflict, Interrupts, Irq, Model, Options, Reception};

/// Which doorbells are rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Mapped when the server offers that, unless trips are what the driver's options are about
    /// (send combining, CSB).
    Auto,
    /// By messages.
    Trapped,
    /// By stores in a shared page; it is an error when the server has none.
    Mapped,
}

/// How the VMM unmasks INTx, which masks itself when it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmask {
    /// By an eventfd at the end of the handler: KVM's resampling.
    Eventfd,
    /// By a message at the end of the handler.
    Message,
    /// By a message after the first access to a register: QEMU without KVM, which also takes mapped
    /// registers away meanwhile and for [`VfioUser::mmap_timeout`] after the interrupt.
    Access,
}

/// All keys of an address.
pub const KEYS: &str = "\
    model, plus, writes, doorbell, irq, causes, unmask, mmap_timeout, reset, interrupts, \
    completion, receive, combine, combine_frames, combine_us, csb, size, buffer, segment, \
    mtu, budget, refill, itr, tidv, tadv, rdtr, radv, mitigate, mitigate_unit, batch, \
    flush, promisc, secrc, csum, tso, lro, fence";

/// How to reach a server and how to drive the chip behind it.
///
/// In words: `vfio-user:PATH[,key=value...]` with the keys
///
/// - `model` (`e1000`, `e1000e`, `r8169`, `rtl8139`, `vmxnet3`): the port's (default `e1000`); it
///   changes the defaults below
/// - `plus` (`on`, `off`): an `rtl8139` is driven in C+ mode, or in classic mode
/// - `writes` (`waited`, `posted`): register writes wait for their reply (QEMU 10, Cloud
///   Hypervisor), or not (QEMU 11)
/// - `doorbell` (`auto`, `trapped`, `mapped`): whether ring registers that can be mapped are
/// - `irq` (`intx`, `msi`, `msix`): how the chip interrupts (default `intx`; `e1000e` and
///   `vmxnet3`, the only ones with `msix`: that)
/// - `unmask` (`eventfd`, `message`, `access`): how INTx is unmasked (KVM: eventfd; QEMU without
///   KVM: access)
/// - `mmap_timeout` (0 to 65535): with `unmask=access`: ms without mapped registers after an
///   interrupt (default 1100; 0: none)
/// - `causes` (`read`, `unread`): with `irq=msi`: what a message was about is read, or all is
///   cleared by a write; with `msix` there is nothing to read
/// - `reset` (`io`, `memory`): where CTRL.RST is written: the I/O window, as Linux does, or the
///   register
/// - `interrupts` (`always`, `idle`): like a kernel's driver, or only while there is nothing to do
/// - `completion` (`interrupt`, `lazy`): each sent frame is reported and interrupts, or one now and
///   then is reported, without interrupts
/// - `receive` (`interrupt`, `poll`, `adaptive`): received frames interrupt, with a budget; never
///   do, the driver looks; or do until there is load
/// - `combine` (`on`, `off`): send combining: TDT is written by the completion interrupt of an
///   earlier write
/// - `combine_frames` (1 to 4096): most frames that are held back for that (default 64)
/// - `combine_us` (0 to 65535): longest time that one is, in microseconds (default 200)
/// - `csb` (`on`, `off`): the shared status block: no registers and no interrupts while both sides
///   are awake
/// - `size` (8 to 4096, a multiple of 8): descriptors of a ring (default 256); `r8169`: up to 1024,
///   `rtl8139`: up to 64 (default), `vmxnet3`: a multiple of 32 (default 512)
/// - `buffer` (256, 512, 1024, 2048, 4096, 8192, 16384 or 32768): bytes of a receive buffer
///   (default 2048); `plus=off`: of the only one (default 32768)
/// - `segment` (64 to 16288): most bytes one transmit descriptor is for (default 4096)
/// - `mtu` (68 to 16110): long packets are taken from 1501 on
/// - `budget` (1 to 4096): most frames of one poll (default 64)
/// - `refill` (0 to 4096): receive buffers returned with one write of RDT; 0, and with `csb`: all
///   of a poll (default 16)
/// - `itr` `tidv` `tadv` `rdtr` `radv` (0 to 65535): moderation, in the registers' units
/// - `mitigate` (0 to 65535, or 0x0 to 0xffff): `r8169`: IntrMitigate
/// - `mitigate_unit` (0 to 3): `r8169`: the unit of its timers, in C+CR
/// - `batch` `flush` `promisc` `secrc` `csum` `tso` (`on`, `off`): one TDT write for each burst
///   (with `csb` always); read a register after each mask (on with `writes=posted`, and as Linux's
///   driver has it); filters; CRC; offloads
/// - `lro` (`on`, `off`): `vmxnet3`: packets may come that are still to be segmented
/// - `fence` (`on`, `off`): `vmxnet3`: whether there is a full fence before its wishes for
///   doorbells are read; Linux's driver has none
///
/// What contradicts itself is refused, with the reason: see [`Conflict`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct VfioUser {
    pub path: PathBuf,
    /// Register writes do not wait for a reply.
    pub posted: bool,
    /// Which doorbells are rung.
    pub doorbell: Doorbell,
    /// How INTx is unmasked.
    pub unmask: Unmask,
    /// With [`Unmask::Access`]: milliseconds for which mapped registers are taken away after an
    /// interrupt.
    pub mmap_timeout: u16,
    pub driver: Options,
}

impl VfioUser {
    /// The defaults, for a socket at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            posted: false,
            doorbell: Doorbell::Auto,
            unmask: Unmask::Eventfd,
            mmap_timeout: 1100,
            driver: Options::default(),
        }
    }

    /// Do the wishes go together?
    ///
    /// # Errors
    /// The first two that do not.
    pub fn check(&self) -> Result<(), Conflict> {
        let mapped = self.doorbell == Doorbell::Mapped;
        let mappable = [Model::E1000, Model::E1000e, Model::Vmxnet3];
        if mapped && !mappable.contains(&self.driver.model) {
            return Err(Conflict::Lacks { model: self.driver.model, key: "doorbell=mapped" });
        }
        self.driver.check()?;
        match (self.driver.combine, self.driver.csb) {
            (true, _) if mapped => Err(Conflict::CombineMapped),
            (_, true) if mapped => Err(Conflict::CsbMapped),
            _ => Ok(()),
        }
    }

    /// May ring registers be mapped?
    pub fn may_map(&self) -> bool {
        let trips = self.driver.combine || self.driver.csb;
        self.doorbell == Doorbell::Mapped || self.doorbell == Doorbell::Auto && !trips
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), AddressError> {
        let bad = |wanted| AddressError::Value { key: key.into(), value: value.into(), wanted };
        match (key, value) {
            ("writes", "waited") => self.posted = false,
            ("writes", "posted") => self.posted = true,
            ("writes", _) => return Err(bad("waited or posted")),
            ("doorbell", "auto") => self.doorbell = Doorbell::Auto,
            ("doorbell", "trapped") => self.doorbell = Doorbell::Trapped,
            ("doorbell", "mapped") => self.doorbell = Doorbell::Mapped,
            ("doorbell", _) => return Err(bad("auto, trapped or mapped")),
            ("irq", "intx") => self.driver.irq = Irq::Intx,
            ("irq", "msi") => self.driver.irq = Irq::Msi,
            ("irq", "msix") => self.driver.irq = Irq::Msix,
            ("irq", _) => return Err(bad("intx, msi or msix")),
            ("causes", "read") => self.driver.reads_causes = true,
            ("causes", "unread") => self.driver.reads_causes = false,
            ("causes", _) => return Err(bad("read or unread")),
            ("unmask", "eventfd") => self.unmask = Unmask::Eventfd,
            ("unmask", "message") => self.unmask = Unmask::Message,
            ("unmask", "access") => self.unmask = Unmask::Access,
            ("unmask", _) => return Err(bad("eventfd, message or access")),
            ("reset", "io") => self.driver.reset_by_io = true,
            ("reset", "memory") => self.driver.reset_by_io = false,
            ("reset", _) => return Err(bad("io or memory")),
            ("interrupts", "always") => self.driver.interrupts = Interrupts::Always,
            ("interrupts", "idle") => self.driver.interrupts = Interrupts::Idle,
            ("interrupts", _) => return Err(bad("always or idle")),
            _ => return self.set_way(key, value),
        }
        Ok(())
    }

    /// How frames are reported.
    fn set_way(&mut self, key: &str, value: &str) -> Result<(), AddressError> {
        let bad = |wanted| AddressError::Value { key: key.into(), value: value.into(), wanted };
        match (key, value) {
            ("completion", "interrupt") => self.driver.completion = Completion::Interrupt,
            ("completion", "lazy") => self.driver.completion = Completion::Lazy,
            ("completion", _) => return Err(bad("interrupt or lazy")),
            ("receive", "interrupt") => self.driver.receive = Reception::Interrupt,
            ("receive", "poll") => self.driver.receive = Reception::Poll,
            ("receive", "adaptive") => self.driver.receive = Reception::Adaptive,
            ("receive", _) => return Err(bad("interrupt, poll or adaptive")),
            _ => return self.set_number(key, value),
        }
        Ok(())
    }

    fn set_number(&mut self, key: &str, value: &str) -> Result<(), AddressError> {
        let driver = &mut self.driver;
        let bad = |wanted| AddressError::Value { key: key.into(), value: value.into(), wanted };
        let number = |least: u16, most: u16, wanted| {
            value.parse().ok().filter(|n| (least..=most).contains(n)).ok_or(bad(wanted))
        };
        match key {
            "mitigate" => {
                let hex = value.strip_prefix("0x").map(|digits| u16::from_str_radix(digits, 16));
                let number = hex.unwrap_or_else(|| value.parse());
                driver.mitigate = number.map_err(|_| bad("0 to 65535, or 0x0 to 0xffff"))?;
            }
            "mitigate_unit" => {
                let unit = value.parse().ok().filter(|unit| *unit <= 3);
                driver.mitigate_unit = unit.ok_or(bad("0 to 3"))?;
            }
            "size" => {
                let wanted = "a multiple of 8 from 8 to 4096";
                let size = number(8, 4096, wanted)?;
                driver.size = (size % 8 == 0).then_some(size).ok_or(bad(wanted))?;
            }
            "buffer" => {
                let wanted = "256, 512, 1024, 2048, 4096, 8192, 16384 or 32768";
                let bytes = number(256, 32_768, wanted)?;
                driver.buffer = bytes.is_power_of_two().then_some(bytes).ok_or(bad(wanted))?;
            }
            "segment" => driver.segment = number(64, 16_288, "64 to 16288 bytes")?,
            "mtu" => driver.mtu = number(68, 16_110, "68 to 16110 bytes")?,
            "combine_frames" => driver.combine_frames = number(1, 4096, "1 to 4096 frames")?,
            "budget" => driver.budget = number(1, 4096, "1 to 4096 frames")?,
            "refill" => driver.refill = number(0, 4096, "0 to 4096 buffers")?,
            _ => return self.set_delay(key, value),
        }
        Ok(())
    }

    fn set_delay(&mut self, key: &str, value: &str) -> Result<(), AddressError> {
        let driver = &mut self.driver;
        let field = match key {
            "itr" => &mut driver.itr,
            "tidv" => &mut driver.tidv,
            "tadv" => &mut driver.tadv,
            "rdtr" => &mut driver.rdtr,
            "radv" => &mut driver.radv,
            "mmap_timeout" => &mut self.mmap_timeout,
            "combine_us" => &mut driver.combine_us,
            _ => return self.toggle(key, value),
        };
        let (key, text, wanted) = (key.into(), value.into(), "0 to 65535");
        *field = value.parse().or(Err(AddressError::Value { key, value: text, wanted }))?;
        Ok(())
    }

    fn toggle(&mut self, key: &str, value: &str) -> Result<(), AddressError> {
        let driver = &mut self.driver;
        let field = match key {
            "batch" => &mut driver.batch,
            "combine" => &mut driver.combine,
            "csb" => &mut driver.csb,
            "flush" => &mut driver.flush,
            "promisc" => &mut driver.promisc,
            "secrc" => &mut driver.strip_crc,
            "csum" => &mut driver.checksum,
            "tso" => &mut driver.segmentation,
            "lro" => &mut driver.lro,
            "fence" => &mut driver.fence,
            _ => return Err(AddressError::VfioKey(key.into())),
        };
        *field = on_off(key, value)?;
        Ok(())
    }
}

impl FromStr for VfioUser {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest =
            text.strip_prefix("vfio-user:").ok_or_else(|| AddressError::Kind(text.into()))?;
        let mut parts = rest.split(',');
        let path = parts.next().filter(|path| !path.is_empty()).ok_or(AddressError::NoPath)?;
        let parts: Vec<_> =
            parts.map(|part| part.split_once('=').unwrap_or((part, "on"))).collect();
        let mut address = Self::new(path);
        let model = model(&parts)?;
        address.driver = Options::of(model);
        // Else an interrupt might be acknowledged after the frames that it was about were looked
        // for. (One of a vmxnet3 needs no acknowledgement, and its driver asks for no flush.)
        if parts.contains(&("writes", "posted")) {
            address.driver.flush = true;
        }
        for (key, value) in parts.into_iter().filter(|(key, _)| !["model", "plus"].contains(key)) {
            address.set(key, value)?;
            for (of, keys) in OF_SOME {
                if let Some(key) = keys.iter().find(|only| **only == key)
                    && !of.contains(&model)
                {
                    return Err(Conflict::Lacks { model, key }.into());
                }
            }
        }
        address.check()?;
        Ok(address)
    }
}

/// Keys that only some chips have.
const OF_SOME: [(&[Model], &[&str]); 2] = [
    (&[Model::E1000, Model::E1000e], &["reset", "secrc", "itr", "tidv", "tadv", "rdtr", "radv"]),
    (&[Model::Vmxnet3], &["lro", "fence"]),
];

/// The chip that an address names: the other keys' defaults depend on it.
fn model(parts: &[(&str, &str)]) -> Result<Model, AddressError> {
    let (mut model, mut plus) = (Model::E1000, None);
    for (key, value) in parts {
        let bad =
            |wanted| AddressError::Value { key: (*key).into(), value: (*value).into(), wanted };
        match (*key, *value) {
            ("model", "e1000") => model = Model::E1000,
            ("model", "e1000e") => model = Model::E1000e,
            ("model", "r8169") => model = Model::R8169,
            ("model", "rtl8139") => model = Model::Rtl8139Plus,
            ("model", "vmxnet3") => model = Model::Vmxnet3,
            ("model", _) => return Err(bad("e1000, e1000e, r8169, rtl8139 or vmxnet3")),
            ("plus", _) => plus = Some(on_off(key, value)?),
            _ => {}
        }
    }
    match (model, plus) {
        (Model::Rtl8139Plus, Some(false)) => Ok(Model::Rtl8139Classic),
        (Model::Rtl8139Plus, _) | (_, None) => Ok(model),
        _ => Err(Conflict::Lacks { model, key: "plus" }.into()),
    }
}
