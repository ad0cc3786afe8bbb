//! Registers: their names, and how the driver accesses them. Each access is counted.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::notify::{Intact, registers::publish};
use vmlan_transport::{Bus, BusError, Width};

const MOST: usize = 48; // Most registers of one chip that a driver touches.

/// The registers of a chip.
pub trait Register: Copy + Debug + Send + 'static {
    /// All of them, in the order of their offsets.
    const ALL: &'static [Self];

    /// Offset in their BAR, in bytes.
    fn offset(self) -> u32;
    /// Its bytes.
    fn width(self) -> Width;
    /// The datasheet's name.
    fn name(self) -> &'static str;
    /// Its place in [`Self::ALL`].
    fn index(self) -> usize;
}

/// Declares the registers that a driver touches: their names (the datasheet's in brackets where it
/// is no identifier or not unique), their widths ([`Width`]) unless that is four bytes, their
/// offsets.
macro_rules! registers {
    (@width) => { $crate::chip::Width::Four };
    (@width $width:ident) => { $crate::chip::Width::$width };
    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $text:literal) => { $text };
    ($(
        $(#[$doc:meta])* $name:ident $(($text:literal))? $(: $width:ident)? = $offset:literal,
    )*) => {
        /// A register. Of an array it stands for the first element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, clippy::upper_case_acronyms)] // The datasheet's names.
        pub enum Register { $($(#[$doc])* $name,)* }

        impl Register {
            /// All of them, in the order of their offsets.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Offset in its BAR, in bytes.
            #[inline]
            pub const fn offset(self) -> u32 {
                match self { $(Self::$name => $offset,)* }
            }

            /// The datasheet's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $crate::chip::registers::registers!(@name $name $($text)?),)*
                }
            }
        }

        impl $crate::chip::Register for Register {
            const ALL: &'static [Self] = Self::ALL;

            #[inline]
            fn offset(self) -> u32 {
                Self::offset(self)
            }

            #[inline]
            fn width(self) -> $crate::chip::Width {
                match self {
                    $(Self::$name => $crate::chip::registers::registers!(@width $($width)?),)*
                }
            }

            fn name(self) -> &'static str {
                Self::name(self)
            }

            #[inline]
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}
pub(crate) use registers;

/// Accesses of one register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Access {
    /// The datasheet's name.
    pub register: &'static str,
    /// Reads: each a trip to the device and back.
    pub reads: u64,
    /// Writes that went as messages.
    pub writes: u64,
    /// Loads and stores in a shared page.
    pub mapped: u64,
}

/// The registers, counted. After the bus has failed they behave as on a PCI bus whose device is
/// gone: reads are all ones, writes are lost; [`Self::failure`] tells why.
#[derive(Debug)]
pub struct Registers<R, B> {
    bus: B,
    /// By the register's place in [`Register::ALL`].
    counts: [Access; MOST],
    slowest: Duration,
    failure: Option<BusError>,
    of: PhantomData<R>,
}

impl<R: Register, B: Bus> Registers<R, B> {
    pub(super) fn new(bus: B) -> Self {
        const { assert!(R::ALL.len() <= MOST, "more registers than can be counted") };
        let mut counts = [Access::default(); MOST];
        for (count, register) in counts.iter_mut().zip(R::ALL) {
            count.register = register.name();
        }
        Self { bus, counts, slowest: Duration::ZERO, failure: None, of: PhantomData }
    }

    /// Reads a register.
    pub fn read(&mut self, register: R) -> u32 {
        if let Some(word) = self.bus.mapped(register.offset()) {
            self.counts[register.index()].mapped += 1;
            return u32::from_le(word.load(Acquire));
        }
        if self.failure.is_some() {
            return u32::MAX;
        }
        self.counts[register.index()].reads += 1;
        let start = Instant::now();
        let result = self.bus.read(register.offset(), register.width());
        self.slowest = self.slowest.max(start.elapsed());
        match result {
            Ok(value) => value,
            Err(error) => {
                self.failure = Some(error);
                u32::MAX
            }
        }
    }

    /// Writes a register: what was stored in the guest's RAM before is visible to a device that
    /// sees this write. True when the write was a trip to the device, false when it was a store in
    /// a shared page.
    #[inline]
    pub fn write(&mut self, register: R, value: u32) -> bool {
        self.write_at(register, 0, value)
    }

    /// Writes the `n`th word behind a register.
    #[inline]
    pub fn write_at(&mut self, register: R, n: u32, value: u32) -> bool {
        let offset = register.offset() + 4 * n;
        if let Some(word) = self.bus.mapped(offset) {
            self.counts[register.index()].mapped += 1;
            publish(&Intact, || word.store(value.to_le(), Relaxed));
            return false;
        }
        publish(&Intact, || self.trap(register, offset, value));
        true
    }

    fn trap(&mut self, register: R, offset: u32, value: u32) {
        if self.failure.is_some() {
            return;
        }
        self.counts[register.index()].writes += 1;
        let start = Instant::now();
        let result = self.bus.write(offset, register.width(), value);
        self.slowest = self.slowest.max(start.elapsed());
        if let Err(error) = result {
            self.failure = Some(error);
        }
    }

    /// Does something else with the bus; its failure is kept like any other.
    pub(crate) fn with<T: Default>(
        &mut self,
        work: impl FnOnce(&mut B) -> Result<T, BusError>,
    ) -> T {
        if self.failure.is_some() {
            return T::default();
        }
        work(&mut self.bus).unwrap_or_else(|error| {
            self.failure = Some(error);
            T::default()
        })
    }

    /// Why the device is no longer reached; taken, so that the next one can be.
    pub(super) fn take_failure(&mut self) -> Option<BusError> {
        self.failure.take()
    }

    /// Why the device is no longer reached.
    pub fn failure(&self) -> Option<&BusError> {
        self.failure.as_ref()
    }

    /// The accesses so far, by register in the order of their offsets.
    pub fn counts(&self) -> &[Access] {
        &self.counts[..R::ALL.len()]
    }

    /// The longest time that a read or write took since the last call: a guest's processor stands
    /// still for as long.
    pub fn take_slowest(&mut self) -> Duration {
        std::mem::take(&mut self.slowest)
    }

    /// The longest that a read or write took.
    pub fn slowest(&self) -> Duration {
        self.slowest
    }

    /// The bus.
    pub fn bus(&self) -> &B {
        &self.bus
    }

    /// The bus, for uses beside the driver's.
    pub fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    /// Another bus, with the counts kept.
    pub(super) fn replace(&mut self, bus: B) {
        self.bus = bus;
        self.failure = None;
    }
}
