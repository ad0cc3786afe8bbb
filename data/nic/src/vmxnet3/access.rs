//! The BARs: what reads and writes of a register do. A write of a part of a register does nothing,
//! and a read gets the bytes that it asks for.

use super::chip::Vmxnet3;
use super::life::{mac_of, registers_of};
use super::regs::{Register, command};
use crate::bits::low32;
use crate::chip::{After, ControlOf, Controlled, access};

const VERSIONS: u32 = 7; // 1 to 3.
const FORMATS: u32 = 1; // Of receive descriptors: the one.
const TABLE: u8 = 2; // The BAR of MSI-X.
const LINK_UP: u32 = 10_000 << 16 | 1; // Mbit/s, and that it is up.
const COPY_SIZE: u32 = 128; // Bytes of an entry of the transmit data ring.
const DEVICE: (u32, u32) = (0x07b0, 1); // What kind of device this is.

const LOW: u64 = 0xffff_ffff;

impl Vmxnet3 {
    /// Reads through BAR `bar`.
    pub(super) fn read_space(&self, bar: u8, offset: u64, data: &mut [u8]) {
        access::read_words(offset, data, |at| match Register::at(bar, at) {
            Some(register) => self.read_register(register),
            None if bar == TABLE => {
                let control = self.control();
                let table = control.phy.table.as_flattened();
                table.get(at as usize / 4).copied().unwrap_or(0)
            }
            None => 0,
        });
    }

    /// Writes through BAR `bar`.
    pub(super) fn write_space(&self, bar: u8, offset: u64, data: &[u8]) {
        access::write_words(offset, data, |at, value| match Register::at(bar, at) {
            Some(register) => self.write_register(register, value),
            None if bar == TABLE => {
                let mut control = self.control();
                let table = control.phy.table.as_flattened_mut();
                table.get_mut(at as usize / 4).into_iter().for_each(|word| *word = value);
            }
            None => {}
        });
    }

    fn read_register(&self, register: Register) -> u32 {
        self.accesses.count(register, false);
        if let Register::Imr(vector) = register {
            return self.core.irq.masked(vector).into();
        }
        if register == Register::Icr {
            let (asserted, edge) = self.core.irq.take();
            self.core.tell(edge);
            return asserted.into();
        }
        let control = self.control();
        match register {
            _ if control.pci.asleep() => u32::MAX,
            Register::Vrrs => VERSIONS,
            Register::Uvrs => FORMATS,
            Register::Dsal => low32(control.phy.shared),
            Register::Dsah => low32(control.phy.shared >> 32),
            Register::Cmd => control.phy.result,
            Register::Macl => low32(control.phy.mac),
            Register::Mach => low32(control.phy.mac >> 32),
            // Linux looks into DriverShared only; DPDK's driver asks here first.
            Register::Ecr => control.phy.events,
            _ => 0,
        }
    }

    fn write_register(&self, register: Register, value: u32) {
        self.accesses.count(register, true);
        match register {
            Register::Imr(vector) => {
                let edge = self.core.irq.set_mask(vector, value & 1 != 0, &*self.core.host);
                self.core.tell(edge);
            }
            Register::TxProd(queue) => {
                self.core.counters.input.notifications.add_shared(1);
                self.economy.rang(queue);
                self.core.ring_tx();
            }
            Register::RxProd(_) | Register::RxProd2(_) => {
                self.core.counters.rx_doorbells.add_shared(1);
                self.core.ring_rx();
            }
            _ => self.with_control(|control| match control.pci.asleep() {
                true => After::default(),
                false => self.write_controlled(control, register, value),
            }),
        }
    }

    fn write_controlled(
        &self,
        control: &mut ControlOf<Self>,
        register: Register,
        value: u32,
    ) -> After {
        let device = &mut control.phy;
        let word = u64::from(value);
        match register {
            Register::Dsal => {
                device.shared = device.shared & !LOW | word;
                if value == 0 {
                    return self.quiesce(control);
                }
                self.set_gate(control);
            }
            Register::Dsah => {
                device.shared = device.shared & LOW | word << 32;
                self.set_gate(control);
            }
            Register::Cmd => return self.carry_out(control, value),
            Register::Macl => {
                device.mac = device.mac & !LOW | word;
                self.follow_address(control);
            }
            Register::Mach => {
                device.mac = device.mac & LOW | (word & 0xffff) << 32;
                self.follow_address(control);
            }
            Register::Ecr => return self.take_events(control, value),
            // It only says what the driver understands.
            Register::Vrrs => {
                device.version = value;
                self.set_gate(control);
            }
            _ => {}
        }
        After::default()
    }

    fn follow_address(&self, control: &mut ControlOf<Self>) {
        let own = mac_of(control.phy.mac);
        self.update_rules(control, |rules, _, _| rules.own = own);
    }

    /// A command is done when its write is.
    fn carry_out(&self, control: &mut ControlOf<Self>, what: u32) -> After {
        control.phy.result = self.answer(control, what);
        match what {
            command::ACTIVATE => return self.activate(control),
            command::QUIESCE => return self.quiesce(control),
            command::RESET => return self.reset_device(control),
            command::UPDATE_RX_MODE => {
                self.update_rules(control, |r, map, at| r.read_mode(map, at))
            }
            command::UPDATE_GROUPS => {
                self.update_rules(control, |r, map, at| r.read_groups(map, at));
            }
            command::UPDATE_VLANS => self.update_rules(control, |r, map, at| r.read_vlans(map, at)),
            command::UPDATE_TABLE => {
                self.update_rules(control, |r, map, at| r.read_spread(map, at));
            }
            command::UPDATE_FEATURES => {
                self.update_rules(control, |r, map, at| r.read_features(map, at));
            }
            command::UPDATE_LEVELS => return self.update_levels(control),
            command::GET_STATS => self.write_stats(control),
            command::SET_COALESCE | command::GET_COALESCE => {
                return self.coalesce(control, what == command::SET_COALESCE);
            }
            _ => {}
        }
        After::default()
    }

    /// The result of a command.
    fn answer(&self, control: &ControlOf<Self>, what: u32) -> u32 {
        let factory = registers_of(self.mac);
        match what {
            command::LOAD_PLUGIN => 1,
            command::GET_LINK if control.phy.cable => LINK_UP,
            command::GET_MAC_LOW => low32(factory),
            command::GET_MAC_HIGH => low32(factory >> 32),
            command::GET_DEVICE_LOW => DEVICE.0,
            command::GET_DEVICE_HIGH => DEVICE.1,
            // Any kind of interrupt; they mask themselves.
            command::GET_INTERRUPTS => 0,
            // Rings keep their sizes.
            command::GET_RING_INFO => 1,
            command::GET_COPY_SIZE => COPY_SIZE,
            // Among others GET_STATUS: no queue ever stops.
            _ => 0,
        }
    }
}
