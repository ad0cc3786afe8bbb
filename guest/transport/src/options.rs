//! How the chip is driven, and which wishes go together.

use crate::{Irq, Model};

/// When the chip may interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// Always, except while the driver polls, as a kernel's driver does.
    Always,
    /// Only while the driver sleeps, as a driver that owns a core does.
    Idle,
}

/// How the driver learns that frames were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Each frame is reported (RS), and interrupts.
    Interrupt,
    /// A frame is reported now and then, and what is missing is read from TDH; the chip interrupts
    /// only while the driver sleeps because all slots are under way. The paper's "lazy completion"
    /// (section 3.3.1).
    Lazy,
}

/// How the driver learns that frames were received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// By an interrupt; then it polls, a budget at a time, until the ring is dry.
    Interrupt,
    /// It polls, and sleeps for a tick at a time: received frames never interrupt (the paper's
    /// section 3.3.2).
    Poll,
    /// As with `Interrupt`, until an interrupt finds a good part of a budget; as with `Poll` then,
    /// until several ticks in turn find nothing.
    Adaptive,
}

/// How the chip is driven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which chip.
    pub model: Model,
    /// Descriptors of each ring: a multiple of 8, from 8 to 4096, or what the chip has at most. Of
    /// an RTL8139 in classic mode: frames that the driver copies and keeps.
    pub size: u16,
    /// Bytes of a receive buffer: 256, 512, 1024 ... 16384, or what the chip has at most. Of an
    /// RTL8139 in classic mode: of the only one, 8192, 16384 or 32768.
    pub buffer: u16,
    /// Bytes of a transmit buffer: the largest frame.
    pub room: usize,
    /// Most bytes of one transmit descriptor.
    pub segment: u16,
    /// From 1501 on, long packets are received.
    pub mtu: u16,
    /// How the chip interrupts.
    pub irq: Irq,
    /// The handler of a message reads what caused it. Otherwise it clears all causes by a write,
    /// which can be posted, and looks at both rings.
    pub reads_causes: bool,
    /// An e1000 is reset through the I/O window, as Linux does with this chip.
    pub reset_by_io: bool,
    /// When it may interrupt. Without effect while CSB is on: its flags say that more finely.
    pub interrupts: Interrupts,
    /// How sent frames are reported.
    pub completion: Completion,
    /// How received frames are.
    pub receive: Reception,
    /// Send combining: TDT is not written while the completion interrupt of an earlier write is
    /// expected; that interrupt writes it for all frames sent meanwhile (the paper's section 3.2).
    pub combine: bool,
    /// Frames that send combining holds back at most.
    pub combine_frames: u16,
    /// How long it holds a frame back at most, in microseconds.
    pub combine_us: u16,
    /// The shared status block: indexes in memory instead of registers, while both sides are awake
    /// (the paper's section 4).
    pub csb: bool,
    /// Most frames of one poll.
    pub budget: u16,
    /// Receive buffers returned with one write of RDT; 0: all that a poll took.
    pub refill: u16,
    /// ITR, in units of 256 ns.
    pub itr: u16,
    /// TIDV, in units of 1.024 us; 0: no frame asks for a delay.
    pub tidv: u16,
    /// TADV, in units of 1.024 us.
    pub tadv: u16,
    /// RDTR, in units of 1.024 us.
    pub rdtr: u16,
    /// RADV, in units of 1.024 us.
    pub radv: u16,
    /// IntrMitigate of an RTL8169: timers and frames of both sides.
    pub mitigate: u16,
    /// Unit of its timers, 0 to 3, in C+CR.
    pub mitigate_unit: u8,
    /// One write of TDT for a burst, instead of one for each frame. With CSB, bursts are published
    /// in any case.
    pub batch: bool,
    /// Read a register after interrupts were masked or acknowledged, so that the write has arrived.
    /// With posted writes a Realtek chip's driver must.
    pub flush: bool,
    /// Take all frames, whatever their address.
    pub promisc: bool,
    /// The chip strips the CRC.
    pub strip_crc: bool,
    /// The chip reports received checksums, and completes sent ones on request.
    pub checksum: bool,
    /// Frames may ask to be cut into segments.
    pub segmentation: bool,
    /// A vmxnet3 may hand over packets of up to 64 KiB that are still to be segmented.
    pub lro: bool,
    /// A vmxnet3 is asked whether it wants to be told of frames and buffers after a full fence.
    /// Without, as by Linux's driver, and of buffers at every 16th place only.
    pub fence: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            model: Model::E1000,
            size: 256,
            buffer: 2048,
            room: 2048,
            segment: 4096,
            mtu: 1500,
            irq: Irq::Intx,
            reads_causes: true,
            reset_by_io: true,
            interrupts: Interrupts::Always,
            completion: Completion::Interrupt,
            receive: Reception::Interrupt,
            combine: false,
            combine_frames: 64,
            combine_us: 200,
            csb: false,
            budget: 64,
            refill: 16,
            itr: 0,
            tidv: 0,
            tadv: 0,
            rdtr: 0,
            radv: 0,
            mitigate: 0,
            mitigate_unit: 0,
            batch: false,
            flush: true,
            promisc: false,
            strip_crc: false,
            checksum: false,
            segmentation: false,
            lro: false,
            fence: true,
        }
    }
}

/// Two wishes that contradict each other, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Conflict {
    #[error(
        "combine=on and csb=on: CSB has no completion interrupts while both sides are awake, so \
         none would flush the frames that combining defers; use one of them"
    )]
    CombineCsb,
    #[error(
        "combine=on and completion=lazy: deferred frames are flushed by the completion interrupt, \
         which lazy completion does without; use completion=interrupt"
    )]
    CombineLazy,
    #[error(
        "combine=on and interrupts=idle: deferred frames are flushed by the completion interrupt, \
         which interrupts=idle takes only while asleep; use interrupts=always"
    )]
    CombineIdle,
    #[error(
        "combine=on and doorbell=mapped: a mapped doorbell is a store, so there is nothing to save \
         by ringing less; use doorbell=trapped"
    )]
    CombineMapped,
    #[error("combine_frames=0: no frame could be deferred; use 1 or more, or combine=off")]
    CombineNothing,
    #[error(
        "csb=on and doorbell=mapped: a kick must be heard, and a store in a mapped register rings \
         nobody; use doorbell=trapped"
    )]
    CsbMapped,
    #[error(
        "csb=on and completion=lazy: with CSB slots come back by an index in memory, without \
         reports or interrupts to be lazy about; leave completion=lazy out"
    )]
    CsbLazy,
    #[error(
        "csb=on and receive=adaptive: with CSB an awake driver polls and a sleeping one is \
         interrupted, which is what adaptive would find; leave receive=adaptive out"
    )]
    CsbAdaptive,
    #[error(
        "size={size}: {model} has rings of {most} descriptors at most; use size={most} or less"
    )]
    Size { model: Model, size: u16, most: u16 },
    #[error("buffer={buffer}: {model} has receive buffers of {least} to {most} bytes")]
    Buffer { model: Model, buffer: u16, least: u16, most: u16 },
    #[error("size={size}: {model} has rings of {step} descriptors, or a multiple of that")]
    Step { model: Model, size: u16, step: u16 },
    #[error("mtu={mtu}: {model} has {most} at most")]
    Mtu { model: Model, mtu: u16, most: u16 },
    #[error(
        "segment={segment}: a frame of {room} bytes would take more than the {most} descriptors \
         that {model} takes for one; use larger segments"
    )]
    Segment { model: Model, segment: u16, room: usize, most: usize },
    #[error("lro=on and buffer={buffer}: packets of 64 KiB need buffers of {least} bytes or more")]
    Lro { buffer: u16, least: u16 },
    #[error("{key}: {model} has none; leave it out")]
    Lacks { model: Model, key: &'static str },
    #[error(
        "interrupts=idle and receive=adaptive: with interrupts=idle an awake driver polls already; \
         use interrupts=always"
    )]
    IdleAdaptive,
}

impl Options {
    /// Do the wishes go together?
    ///
    /// # Errors
    /// The first two wishes that do not.
    pub fn check(&self) -> Result<(), Conflict> {
        let idle = self.interrupts == Interrupts::Idle;
        let lazy = self.completion == Completion::Lazy;
        let adaptive = self.receive == Reception::Adaptive;
        let conflicts = [
            (self.combine && self.csb, Conflict::CombineCsb),
            (self.combine && lazy, Conflict::CombineLazy),
            (self.combine && idle, Conflict::CombineIdle),
            (self.combine && self.combine_frames == 0, Conflict::CombineNothing),
            (self.csb && lazy, Conflict::CsbLazy),
            (self.csb && adaptive, Conflict::CsbAdaptive),
            (idle && adaptive, Conflict::IdleAdaptive),
        ];
        let first = conflicts.iter().find(|(there, _)| *there);
        first.map_or(self.check_chip(), |(_, conflict)| Err(*conflict))
    }

    /// Has the chip what is wished for?
    fn check_chip(&self) -> Result<(), Conflict> {
        let model = self.model;
        let (size, least, most) = match model {
            Model::E1000 | Model::E1000e => (4096, 256, 16_384),
            Model::R8169 => (1024, 256, 8192),
            Model::Rtl8139Plus => (64, 256, 4096),
            Model::Rtl8139Classic => (4096, 8192, 32_768),
            Model::Vmxnet3 => (4096, 256, 8192),
        };
        if self.size > size {
            return Err(Conflict::Size { model, size: self.size, most: size });
        }
        let buffer = self.buffer;
        if !(least..=most).contains(&buffer) {
            return Err(Conflict::Buffer { model, buffer, least, most });
        }
        let old = model == Model::Rtl8139Classic;
        let of_8139 = old || model == Model::Rtl8139Plus;
        let lacks = [
            ((old || model == Model::E1000e) && self.csb, "csb=on"),
            (old && self.checksum, "csum=on"),
            (old && self.segmentation, "tso=on"),
            (of_8139 && self.irq == Irq::Msi, "irq=msi"),
            (model.vectors() == 0 && self.irq == Irq::Msix, "irq=msix"),
            (self.irq == Irq::Msix && self.reads_causes, "causes=read"),
            (model != Model::R8169 && self.mitigate > 0, "mitigate"),
            (model != Model::R8169 && self.mitigate_unit > 0, "mitigate_unit"),
        ];
        let first = lacks.iter().find(|(wished, _)| *wished);
        match first {
            Some((_, key)) => Err(Conflict::Lacks { model, key }),
            None if model == Model::Vmxnet3 => self.check_vmxnet3(),
            None => Ok(()),
        }
    }

    /// Limits of a vmxnet3, which offers neither a place to ask how far it has come nor a register
    /// that says what has happened.
    fn check_vmxnet3(&self) -> Result<(), Conflict> {
        const STEP: u16 = 32;
        const MTU: u16 = 9000;
        const LRO: u16 = 4096; // For a head and the 17 bodies that a frame may have.
        let model = self.model;
        let lacks = [
            (self.csb, "csb=on"),
            (self.completion == Completion::Lazy, "completion=lazy"),
            (self.reads_causes, "causes=read"),
        ];
        if let Some((_, key)) = lacks.iter().find(|(wished, _)| *wished) {
            return Err(Conflict::Lacks { model, key });
        }
        if !self.size.is_multiple_of(STEP) {
            return Err(Conflict::Step { model, size: self.size, step: STEP });
        }
        if self.mtu > MTU {
            return Err(Conflict::Mtu { model, mtu: self.mtu, most: MTU });
        }
        if self.lro && self.buffer < LRO {
            return Err(Conflict::Lro { buffer: self.buffer, least: LRO });
        }
        let (segment, room) = (self.segment, self.room);
        let most = if self.segmentation { 24 } else { 16 };
        if room.div_ceil(usize::from(segment.max(1))) > most {
            return Err(Conflict::Segment { model, segment, room, most });
        }
        Ok(())
    }

    /// The defaults of a chip's driver: those of Linux's driver, with the same ring sizes.
    pub fn of(model: Model) -> Self {
        let all = Self { model, ..Self::default() };
        match model {
            Model::E1000 => all,
            Model::E1000e => {
                Self { irq: Irq::Msix, reads_causes: false, reset_by_io: false, ..all }
            }
            Model::R8169 => Self { flush: false, ..all },
            Model::Rtl8139Plus => Self { size: 64, ..all },
            // As in the KVM analysis: accesses of I/O ports need no flush.
            Model::Rtl8139Classic => Self { size: 64, buffer: 32_768, flush: false, ..all },
            Model::Vmxnet3 => {
                Self { size: 512, irq: Irq::Msix, reads_causes: false, flush: false, ..all }
            }
        }
    }
}
