//! The VMM's side of a chip: configuration space, EEPROM and PHY, behind the control lock.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use vmlan_ram::Window;

use super::held::{Held, Remains};
use super::interrupts::Interrupts;
use super::locks::{After, lock};
use super::nic::{Chip, PciFunction};
use super::pci::Pci;
use super::port::{ReceiveSide, TransmitSide};
use super::state::{Fields, MADE, Parts, Stateful, Tag};
use super::{Layout, Made, Space, StateError};

/// What only the VMM's side touches.
pub(crate) struct Control<E, P> {
    pub(crate) pci: Pci,
    pub(crate) eeprom: E,
    pub(crate) phy: P,
}

/// The control part of a chip.
pub(crate) type ControlOf<C> = Control<<C as Controlled>::Eeprom, <C as Controlled>::Phy>;

/// What a chip does for the VMM. Implementing this gives it [`PciFunction`].
pub(crate) trait Controlled: Chip {
    type Eeprom: Send + Stateful;
    type Phy: Send + Stateful;
    /// What it looks like on its bus.
    const ON_BUS: &'static Layout;

    fn mutex(&self) -> &Mutex<ControlOf<Self>>;
    /// How it was made.
    fn made(&self) -> Made;
    /// The EEPROM as it left the factory.
    fn new_eeprom(&self) -> Self::Eeprom;
    /// Plugs the cable in, or pulls it out.
    fn plug(phy: &mut Self::Phy, up: bool);
    /// Resets all but configuration space.
    fn reset_all(&self, control: &mut ControlOf<Self>) -> After;
    /// Brings registers and what lets frames pass in line with the cable, the PHY and PCI.
    fn follow(&self, control: &mut ControlOf<Self>) -> After;
    /// Passes its registers, and what else it has beside its control part, its sides and
    /// [`ChipCore`](super::ChipCore).
    fn fields(&self, io: &mut Fields<'_>);
    /// These are restored: brings what follows from them in line, without effect on anybody.
    fn derive(&self, control: &mut ControlOf<Self>) {
        let _nobody_is_told = self.follow(control);
    }
    /// All is restored: the same for the sides.
    fn derive_sides(&self, _: &ControlOf<Self>, _: &mut Self::Tx, _: &mut Self::Rx) {}
    /// It goes on from the state: sets the host's timer, if something waits for it.
    fn resume(&self) {
        let core = self.core();
        core.irq.resume(&*core.host);
    }
    /// Reads registers, through BAR `bar`.
    fn read_bar(&self, bar: u8, offset: u64, data: &mut [u8]);
    /// Writes registers, through BAR `bar`.
    fn write_bar(&self, bar: u8, offset: u64, data: &[u8]);
    /// What of it outlives its process, beside what all chips have: this is where it goes. False:
    /// nothing does.
    fn hold_own(&self, _: &Arc<Held>) -> bool {
        false
    }
    /// Finds its registers in what a process has left. `mapped`: those that a guest may have mapped
    /// are there already.
    ///
    /// # Errors
    /// They cannot be, or it does not outlive anything.
    fn revive_own(&self, _: &Remains<'_>, _mapped: bool) -> Result<(), StateError> {
        Err(StateError::NotHeld)
    }
    /// Causes that something may have been lost of: one too many is harmless.
    const LOST: u32 = 0;
    /// Those of them that may be lost now.
    fn may_be_lost(&self) -> u32 {
        Self::LOST
    }
    /// See [`PciFunction::posts_silently`].
    fn posts_without_register(&self) -> bool {
        false
    }

    fn control(&self) -> MutexGuard<'_, ControlOf<Self>> {
        lock(self.mutex())
    }

    /// Runs `change` with the control lock, and what it asks for without.
    fn with_control(&self, change: impl FnOnce(&mut ControlOf<Self>) -> After) {
        let after = change(&mut self.control());
        self.core().unnoted.store(true, Ordering::Relaxed);
        self.core().run(self, after);
    }

    /// The parts of the state that only the VMM's side touches.
    fn pass_control(&self, control: &mut ControlOf<Self>, parts: &mut Parts<'_>) {
        parts.part(MADE, 1, |io| {
            let made = self.made();
            let mut said = made;
            said.fields(io);
            io.check(said == made);
        });
        let Control { pci, eeprom, phy } = control;
        parts.part(Tag(*b"PCI "), 1, |io| pci.fields(io));
        parts.part(Tag(*b"EEPR"), 1, |io| eeprom.fields(io));
        parts.part(Tag(*b"PHY "), 1, |io| phy.fields(io));
    }

    /// Saves all parts of the state, or restores them: whatever `parts` are for.
    fn pass(&self, parts: &mut Parts<'_>) {
        let control = &mut *self.control();
        let core = self.core();
        core.stopped(|tx, rx| {
            self.pass_control(control, parts);
            parts.part(Tag(*b"REGS"), 1, |io| self.fields(io));
            if parts.restores() {
                self.derive(control);
            }
            core.fields(self, (&mut *tx, &mut *rx), parts);
            if parts.restores() {
                self.derive_sides(control, tx, rx);
            }
        });
    }

    fn take_over(&self, state: &[u8]) -> Result<(), StateError> {
        let mut parts = Parts::restore(state, Self::ON_BUS.model)?;
        self.pass(&mut parts);
        parts.end()
    }

    /// Goes on from what a process has left.
    fn take_up(&self, remains: &Remains<'_>, mapped: bool) -> Result<(), StateError> {
        let mut parts = Parts::restore(remains.parts(), Self::ON_BUS.model)?;
        let control = &mut *self.control();
        let core = self.core();
        core.stopped(|tx, rx| {
            self.pass_control(control, &mut parts);
            parts.end()?;
            self.revive_own(remains, mapped)?;
            self.derive(control);
            self.derive_sides(control, tx, rx);
            core.irq.revive(remains.mask());
            tx.revive(self, remains)?;
            rx.revive(self, remains)?;
            core.revive_csb(self, (tx, rx), remains)
        })
    }

    fn write_config(&self, offset: u64, data: &[u8]) {
        self.with_control(|control| {
            let change = control.pci.change(offset, data);
            let mut after = After::default();
            if change.woke {
                after.merge(self.reset_all(control));
            }
            after.merge(self.follow(control));
            self.core().reconfigured(self, change, after)
        });
    }
}

impl<C: Controlled + Send + Sync> PciFunction for C {
    fn layout(&self) -> &'static Layout {
        C::ON_BUS
    }

    #[inline]
    fn read(&self, space: Space, offset: u64, data: &mut [u8]) {
        match space {
            Space::Bar(bar) => self.read_bar(bar, offset, data),
            Space::Config => self.control().pci.read(offset, data, self.core().irq.level()),
        }
    }

    #[inline]
    fn write(&self, space: Space, offset: u64, data: &[u8]) {
        match space {
            Space::Bar(bar) => self.write_bar(bar, offset, data),
            Space::Config => self.write_config(offset, data),
        }
        if self.core().may_repeat() {
            self.core().revived.store(false, Ordering::Relaxed);
        }
    }

    fn reset(&self) {
        self.with_control(|control| {
            control.pci.reset();
            self.reset_all(control)
        });
    }

    fn renew(&self) {
        self.control().eeprom = self.new_eeprom();
        self.reset();
    }

    fn set_link(&self, up: bool) {
        self.with_control(|control| {
            C::plug(&mut control.phy, up);
            self.follow(control)
        });
    }

    fn posts_silently(&self) -> bool {
        self.posts_without_register()
    }

    fn hold(&self, memory: Window) -> bool {
        let held = Held::new(memory);
        if !self.hold_own(&held) {
            return false;
        }
        let core = self.core();
        core.stopped(|tx, rx| {
            tx.hold(&held);
            rx.hold(&held);
        });
        core.unnoted.store(true, Ordering::Relaxed);
        core.held.set(held).is_ok()
    }

    fn note(&self) {
        let core = self.core();
        let Some(held) = core.held.get() else { return };
        let mask = core.irq.enabled();
        let unnoted = core.unnoted.swap(false, Ordering::Relaxed);
        if core.noted_mask.swap(mask, Ordering::Relaxed) != mask || unnoted {
            held.set_mask(mask);
        }
        if unnoted {
            let mut parts = Parts::save(C::ON_BUS.model);
            self.pass_control(&mut self.control(), &mut parts);
            held.commit(&parts.into_bytes());
        }
    }

    fn revive(&self, remains: &[u8], mapped: bool) -> Result<(), StateError> {
        let remains = Remains::new(remains)?;
        let before = self.save();
        let done = self.take_up(&remains, mapped);
        match done {
            Ok(()) => self.core().post(self, self.may_be_lost()),
            Err(_) => drop(self.take_over(&before)),
        }
        self.core().unnoted.store(true, Ordering::Relaxed);
        self.core().revived.store(done.is_ok(), Ordering::Relaxed);
        done
    }

    fn save(&self) -> Vec<u8> {
        let mut parts = Parts::save(C::ON_BUS.model);
        self.pass(&mut parts);
        parts.into_bytes()
    }

    fn restore(&self, state: &[u8]) -> Result<(), StateError> {
        let before = self.save();
        let done = self.take_over(state);
        match done {
            Ok(()) => self.resume(),
            Err(_) => drop(self.take_over(&before)),
        }
        done
    }
}
