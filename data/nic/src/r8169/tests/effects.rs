//! Registers that do something.

use super::guest::*;

#[test]
fn commands() {
    let mut guest = Guest::cold(0, false);
    guest.set8(CR, 0xff & !RST);
    assert_eq!(guest.get(CR, 1), TE | RE);
    guest.set8(CR, RST | TE | RE);
    assert_eq!(guest.get(CR, 1), 0, "reset clears itself, and turns both off");
    guest.start();
    assert!(guest.chip.is_up());
    guest.set8(CR, TE);
    assert!(!guest.chip.is_up());
}

#[test]
fn what_a_software_reset_keeps() {
    let guest = Guest::cold(0, false);
    guest.config_write(4, &[7, 0]);
    guest.set8(CR9346, 0xc0);
    let kept = [(IDR0, 4), (4, 2), (MAR0, 4), (0x0c, 4), (0x84, 4), (0xc4, 2), (0x82, 1)];
    let lost =
        [(TNPDS, 4), (THPDS, 4), (RDSAR, 4), (RCR, 4), (RMS, 2), (CPCR, 2), (INTMIT, 2), (IMR, 2)];
    for (at, len) in kept.iter().chain(&lost) {
        guest.write_bar(*at, &[0x41; 4][..*len]);
    }
    guest.set8(CONFIG1 + 2, 0x20);
    guest.set32(TIMERINT, 5);
    guest.set_phy(4, 0x1e1);
    guest.set8(CR, RST);
    for (at, len) in kept {
        assert_eq!(guest.get(at, len), 0x4141_4141 >> (32 - 8 * len), "{at:#x}");
    }
    for (at, len) in lost {
        assert_eq!(guest.get(at, len), 0, "{at:#x}");
    }
    assert_eq!((guest.get(CONFIG1 + 2, 1), guest.get(TIMERINT, 4)), (0x20, 0));
    assert_eq!((guest.phy(4), guest.config(4, 2)), (0x1e1, 7));
    assert_eq!(guest.get(CR9346, 1), 0, "locked again");
    guest.chip.reset();
    assert_eq!(guest.get(IDR0, 4), 0x0100_5452, "from the EEPROM");
    assert_eq!((guest.get(MAR0, 4), guest.get(CONFIG1 + 2, 1), guest.phy(4)), (0, 0, 0x0de1));
}

/// 9346CR by hand, as `realtek/eeprom.rs` tests it at length.
#[test]
fn eeprom() {
    let guest = Guest::cold(0, false);
    let clock = |di: bool| {
        let pins = 0x88 | if di { 2 } else { 0 };
        guest.set8(CR9346, pins);
        guest.set8(CR9346, pins | 4);
        let bit = guest.get(CR9346, 1) & 1;
        guest.set8(CR9346, pins);
        bit
    };
    let word = |address: u32| {
        guest.set8(CR9346, 0x80);
        guest.set8(CR9346, 0x88);
        for bit in (0..9).rev() {
            clock((0b110 << 6 | address) >> bit & 1 != 0);
        }
        let word = (0..16).fold(0, |word, _| word << 1 | clock(false));
        guest.set8(CR9346, 0);
        word
    };
    assert_eq!([0, 1, 2, 7, 8, 9].map(word), [0x8129, 0x10ec, 0x8169, 0x5452, 0x0100, 0x0302]);
    // A new address, until it is loaded again.
    guest.set8(CR9346, 0xc0);
    guest.set32(IDR0, 0x1234_5678);
    guest.set8(CR9346, 0);
    guest.set32(IDR0, 0);
    assert_eq!(guest.get(IDR0, 4), 0x1234_5678);
    guest.set8(CR9346, 0x40);
    assert_eq!((guest.get(IDR0, 4), guest.get(CR9346, 1)), (0x0100_5452, 0));
}

#[test]
fn timer() {
    let guest = Guest::cold(0, false);
    guest.config_write(4, &[7, 0]);
    guest.set16(IMR, TIMEOUT);
    guest.sleep(1_000_000);
    assert_eq!(guest.get(TCTR, 4), 33_000);
    guest.set32(TCTR, 0x1234);
    assert_eq!(guest.get(TCTR, 4), 0, "whatever is written");
    guest.set32(TIMERINT, 33_000);
    guest.sleep(999_999);
    assert_eq!((guest.isr(), guest.host.raises()), (0, 0));
    guest.sleep(1);
    assert_eq!((guest.isr(), guest.host.raises()), (TIMEOUT, 1));
    guest.set16(ISR, TIMEOUT);
    guest.sleep(10_000_000);
    assert_eq!(guest.isr(), 0, "once in a lap");
    // As FreeBSD's re does after each interrupt.
    guest.set32(TCTR, 1);
    guest.sleep(1_000_000);
    assert_eq!(guest.isr(), TIMEOUT);
    guest.set16(ISR, TIMEOUT);
    guest.set32(TCTR, 1);
    guest.set32(TIMERINT, 0);
    guest.sleep(10_000_000);
    assert_eq!(guest.isr(), 0, "0 is never");
}

#[test]
fn the_tally_is_dumped() {
    let mut guest = Guest::new();
    let at = 0x8_0000;
    let field = |guest: &Guest, at: u64, len: usize| {
        let mut value = [0; 8];
        value[..len].copy_from_slice(&guest.read(at, len));
        u64::from_le_bytes(value)
    };
    for n in 0..3 {
        guest.send(n, &frame([2; 6], 100));
    }
    guest.pull();
    let frames = [frame(MAC, 60), frame([0xff; 6], 60), frame([1, 0, 0x5e, 0, 0, 1], 60)];
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    guest.arrive_plain(&frames);
    guest.arrive_plain(&frames[..1]);
    guest.set32(DTCCR + 4, 0);
    guest.set32(DTCCR, at as u32);
    assert_eq!(field(&guest, at, 8), 0, "not yet");
    guest.set32(DTCCR, at as u32 | 8);
    assert_eq!(guest.get(DTCCR, 4), at as u32, "done");
    assert_eq!((field(&guest, at, 8), field(&guest, at + 8, 8)), (3, 4));
    assert_eq!(field(&guest, at + 40, 8), 2);
    assert_eq!((field(&guest, at + 48, 8), field(&guest, at + 56, 4)), (1, 1));
    // A software reset does not clear them, power-on does.
    guest.set8(CR, RST);
    guest.set32(DTCCR, at as u32 | 8);
    assert_eq!(field(&guest, at, 8), 3);
    guest.chip.reset();
    guest.config_write(4, &[7, 0]);
    guest.set32(DTCCR, at as u32 | 8);
    assert_eq!(guest.read(at, 64), [0; 64]);
    assert_eq!(guest.statistic("TxOk"), 3);
    // Nowhere, and without bus master.
    for at in [MEMORY, MEMORY - 32, !0xff, 0xfebc_0000] {
        guest.set64(DTCCR, at | 8);
    }
    guest.write(at, &[0xee; 64]);
    guest.config_write(4, &[3, 0]);
    guest.set64(DTCCR, at | 8);
    assert_eq!(guest.read(at, 64), [0xee; 64]);
}

#[test]
fn missed_packets_are_counted_and_cleared() {
    let guest = Guest::new();
    guest.chip.counters().output.drop(vmlan_frame::Reason::ReceiverFull, 5);
    assert_eq!(guest.get(MPC, 4), 5);
    guest.set32(MPC, 0xffff);
    assert_eq!(guest.get(MPC, 4), 0);
    guest.chip.counters().output.drop(vmlan_frame::Reason::ReceiverFull, 1 << 30);
    assert_eq!(guest.get(MPC, 4), 0xff_ffff, "24 bits");
}

#[test]
fn doorbells_ring_only_when_somebody_listens() {
    let guest = Guest::new();
    let rings = || guest.host.rings();
    let before = rings();
    guest.set8(TPPOLL, NPQ);
    assert_eq!(rings(), before);
    assert!(!guest.chip.arm());
    guest.set8(TPPOLL, NPQ);
    guest.set8(TPPOLL, NPQ);
    assert_eq!(rings(), before + 1, "once");
    assert_eq!(guest.get(TPPOLL, 1), 0, "clears itself");
    let counters = guest.chip.counters();
    assert_eq!((counters.input.notifications.get(), counters.rx_doorbells.get()), (3, 0));
    guest.set8(TPPOLL, 0);
    assert_eq!(counters.rx_doorbells.get(), 1);
}

/// These chips have no register for the receive ring's tail: what a driver does after it has given
/// buffers rings.
#[test]
fn room_is_told_by_what_drivers_do_next() {
    for (name, ring) in [
        ("TPPoll", (|g| g.set8(TPPOLL, 0)) as fn(&Guest)),
        ("IMR", |g| g.set16(IMR, 0)),
        ("ISR", |g| g.set16(ISR, 0)),
    ] {
        let guest = Guest::new();
        let frames = vec![frame(MAC, 60); 64];
        let all: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let mut done = 0;
        while done < 64 {
            let n = guest.arrive_plain(&all[done..]);
            assert!(n > 0 || guest.chip.want_room());
            done += n;
        }
        assert_eq!(guest.arrive_plain(&all[..1]), 0);
        assert!(!guest.chip.want_room());
        let before = guest.host.rings();
        guest.post(0);
        assert_eq!(guest.host.rings(), before);
        ring(&guest);
        assert_eq!(guest.host.rings(), before + 1, "{name}");
        assert!(guest.chip.want_room());
        assert_eq!(guest.arrive_plain(&all[..1]), 1);
    }
}

#[test]
fn everything_that_opens_the_gate_rings() {
    let guest = Guest::new();
    let opens = |what: &str, change: &dyn Fn()| {
        assert!(!guest.chip.arm());
        let before = guest.host.rings();
        change();
        assert!(guest.host.rings() > before, "{what}");
    };
    guest.config_write(4, &[3]);
    opens("bus master", &|| guest.config_write(4, &[7]));
    guest.chip.set_link(false);
    opens("cable", &|| guest.chip.set_link(true));
    guest.set8(CR, 0);
    opens("TE", &|| guest.set8(CR, TE));
    opens("loopback", &|| guest.set32(TCR, 1 << 17));
    opens("map", &|| drop(guest.chip.set_map(guest.map.clone())));
    opens("TNPDS", &|| guest.set32(TNPDS, TX_RING as u32));
}
