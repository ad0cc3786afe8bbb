//! C+ mode: the rings of `realtek` with this chip's registers, and what is this chip's of them.

use vmlan_frame::{Gso, Offload, Reason};

use super::guest::*;
use crate::chip::{Nic, PciFunction};

const TCPCS: u32 = 1 << 16;
const UDPCS: u32 = 1 << 17;
const IPCS: u32 = 1 << 18;

#[test]
fn frames_are_sent_and_written_back() {
    let mut guest = Guest::plus();
    for round in 0..200usize {
        let f = frame([0xff; 6], 60 + round * 7);
        guest.send_plus(&f, 0, 0);
        assert_eq!(guest.pull()[0].bytes, f, "{round}");
        let n = round as u32 % SIZE;
        let eor = if n == SIZE - 1 { EOR } else { 0 };
        assert_eq!(guest.tx_opts(n), FS | LS | eor | f.len() as u32);
        assert_eq!(guest.get16(ISR) & TOK, TOK);
        guest.ack(0xffff);
    }
}

/// Without EOR, the chip wraps behind 64 descriptors all the same.
#[test]
fn the_ring_has_no_more_than_64() {
    let mut guest = Guest::plus();
    for i in 0..256 {
        guest.tx_desc(i, 0, 0, 0);
    }
    let at = guest.fill(0, &frame(MAC, 60));
    for round in 0..3u32 {
        for i in 0..SIZE {
            guest.tx_desc(i, OWN | FS | LS | 60, 0, at);
        }
        guest.tx_desc(SIZE, OWN | FS | LS | 1000, 0, at);
        guest.set8(TPPOLL, 0x40);
        let mut sent = guest.pull();
        sent.extend(guest.pull());
        assert_eq!(sent.len(), SIZE as usize, "{round}");
        assert!(sent.iter().all(|f| f.bytes.len() == 60));
        assert_eq!(guest.tx_opts(SIZE) & OWN, OWN, "the 65th is not the chip's");
    }
}

#[test]
fn short_frames_are_padded_and_long_ones_are_in_pieces() {
    let mut guest = Guest::plus();
    guest.send_plus(&frame(MAC, 20), 0, 0);
    assert_eq!(guest.pull()[0].bytes.len(), 60);
    let f = frame(MAC, 3000);
    let at = guest.fill(3, &f);
    guest.tx_desc(1, OWN | FS | 1000, 0, at);
    guest.tx_desc(2, OWN | 1000, 0, at + 1000);
    assert!(guest.pull().is_empty(), "its end is not posted");
    guest.tx_desc(3, OWN | LS | 1000, 0, at + 2000);
    assert_eq!(guest.pull()[0].bytes, f);
}

/// Checksums and segments, as the frames' receivers see them.
#[test]
fn offloads() {
    for (tcp, bits) in [(true, IPCS | TCPCS), (false, IPCS | UDPCS)] {
        let mut guest = Guest::plus();
        let whole = packet(tcp, 500);
        let mut f = whole.clone();
        f[24..26].fill(0);
        guest.send_plus(&f, bits, 0);
        let sent = guest.pull();
        assert_eq!(&sent[0].bytes[24..26], &whole[24..26], "IP");
        assert!(sent[0].offload.needs_csum);
        assert_eq!(usize::from(sent[0].offload.csum_start), 34);
    }
    let mut guest = Guest::plus();
    guest.send_plus(&packet(true, 8000), LGSEN | 1448 << 16, 0);
    let sent = guest.pull();
    assert_eq!((sent[0].offload.gso, sent[0].offload.gso_size), (Gso::Tcp4, 1448));
    assert_eq!(sent[0].bytes.len(), 8066);
}

/// The IP header has its sum in every fragment.
#[test]
fn the_header_sum_of_later_fragments() {
    for (options, bits) in [(0, IPCS), (0, IPCS | UDPCS), (4, IPCS), (40, IPCS | TCPCS)] {
        let mut guest = Guest::plus();
        let want = later_fragment(options);
        let mut f = want.clone();
        f[24..26].fill(0);
        guest.send_plus(&f, bits, 0);
        let sent = guest.pull();
        assert_eq!((&sent[0].bytes, sent[0].offload), (&want, Offload::NONE));
    }
}

#[test]
fn tags_are_inserted_and_taken_out() {
    let mut guest = Guest::plus();
    let f = frame(MAC, 100);
    // VLAN 123h, priority 5, in the order of the wire.
    guest.send_plus(&f, 0, 1 << 17 | 0x23a1);
    let sent = guest.pull().remove(0).bytes;
    assert_eq!((&sent[12..16], sent.len()), ([0x81, 0, 0xa1, 0x23].as_slice(), 104));
    guest.arrive(std::slice::from_ref(&sent));
    assert_eq!(guest.rx_opts(0), (FS | LS | 1 << 25 | 108, 0));
    guest.set16(CPCR, 0x7b);
    guest.arrive(&[sent]);
    assert_eq!(guest.rx_opts(1), (FS | LS | 1 << 25 | 104, 1 << 16 | 0x23a1));
    assert_eq!(guest.read(RX_BUFFERS + 2048, 100), f);
}

/// Status bits in this chip's places, which are not the RTL8169's.
#[test]
fn received_frames() {
    let guest = Guest::plus();
    let raised = guest.raised();
    assert_eq!(guest.arrive(&[frame(MAC, 60), frame([0xff; 6], 1514)]), 2);
    assert_eq!(guest.raised(), raised + 1);
    assert_eq!(guest.rx_opts(0).0, FS | LS | 1 << 25 | 64);
    assert_eq!(guest.rx_opts(1).0, FS | LS | 1 << 24 | 1518);
    assert_eq!(guest.read(RX_BUFFERS + 2048, 1514), frame([0xff; 6], 1514));
    // Checksums of frames that somebody vouches for: TCP/IP, UDP/IP.
    let good = Offload { csum_valid: true, ..Offload::NONE };
    guest.arrive_with(&[(packet(true, 10), good), (packet(false, 10), good)]);
    assert_eq!([2, 3].map(|i| guest.rx_opts(i).0 >> 13 & 0x1f), [1 << 3, 2 << 3]);
    guest.set16(CPCR, 0x1b);
    guest.arrive_with(&[(packet(true, 10), good)]);
    assert_eq!(guest.rx_opts(4).0 >> 13 & 0x1f, 0, "RxChkSum is off");
}

#[test]
fn a_full_ring_keeps_its_senders_waiting() {
    let guest = Guest::plus();
    let frames = vec![frame(MAC, 60); 100];
    // All but one, and that one then.
    assert_eq!([guest.arrive(&frames), guest.arrive(&frames), guest.arrive(&frames)], [63, 1, 0]);
    assert!(!guest.chip.want_room());
    assert_eq!((guest.dropped(), guest.get32(MPC)), (0, 0));
    guest.ack(0xffff);
    guest.chip.counters().output.drop(Reason::ReceiverFull, 3);
    guest.arrive(&frames[..1]);
    assert_eq!((guest.get16(ISR) & (RXOVW | FOVW), guest.get32(MPC)), (RXOVW | FOVW, 3));
    // The driver gives two back, and says so by what it does anyhow.
    assert!(!guest.chip.want_room());
    guest.post_buffer(0, RX_BUFFERS, RX_LEN);
    guest.post_buffer(1, RX_BUFFERS + 2048, RX_LEN);
    let rang = guest.rang();
    guest.ack(0xffff);
    assert_eq!(guest.rang(), rang + 1);
    assert!(guest.chip.want_room());
    assert!(guest.arrive(&frames) > 0);
}

/// What does not fit one buffer takes several; the last one has the whole length.
#[test]
fn jumbo_frames() {
    let guest = Guest::plus();
    for i in 0..8 {
        guest.post_buffer(i, RX_BUFFERS + 2048 * u64::from(i), 1000);
    }
    let f = frame(MAC, 2500);
    assert_eq!(guest.arrive(&[f.clone(), frame(MAC, 4200)]), 2);
    assert_eq!(guest.dropped(), 1, "4 KiB of data at most");
    assert_eq!([0, 1].map(|i| guest.rx_opts(i).0 & 0x7fff_1fff), [FS | 1000, 1000]);
    assert_eq!(guest.rx_opts(2).0, LS | 1 << 25 | 2504);
    assert_eq!(guest.read(RX_BUFFERS + 4096, 500), f[2000..]);
}

/// The high priority queue goes first.
#[test]
fn two_queues() {
    let mut guest = Guest::plus();
    guest.set32(TSAD + 12, 0);
    guest.set32(TSAD + 8, HIGH_RING as u32);
    guest.send_plus(&frame(MAC, 61), 0, 0);
    let at = guest.fill(9, &frame(MAC, 62));
    guest.desc(HIGH_RING, 0, OWN | FS | LS | EOR | 62, 0, at);
    guest.set8(TPPOLL, 0x80);
    let lens: Vec<_> = guest.pull().iter().map(|l| l.bytes.len()).collect();
    assert_eq!(lens, [62, 61]);
    assert_eq!(guest.word(HIGH_RING), FS | LS | EOR | 62);
}

/// The tally counters, dumped where DTCCR says, at once.
#[test]
fn tally() {
    let mut guest = Guest::plus();
    guest.send_plus(&frame(MAC, 60), 0, 0);
    guest.pull();
    guest.arrive(&[frame(MAC, 60), frame([0xff; 6], 60)]);
    guest.write(TALLY, &[0xee; 80]);
    guest.set32(0x14, 0);
    guest.set32(0x10, TALLY as u32 | 8);
    assert_eq!(guest.get32(0x10), TALLY as u32, "done");
    let field = |at: u64| guest.word(TALLY + at);
    assert_eq!([field(0), field(8), field(40), field(48)], [1, 2, 1, 1]);
    assert_eq!(guest.read(TALLY + 64, 16), [0xee; 16]);
    // Where there is no memory it is never done, and not while it may not be.
    guest.set32(0x10, 0xffff_ffc8);
    assert_eq!(guest.get32(0x10), 0xffff_ffc8);
    guest.chip.write(crate::chip::Space::Config, 4, &[3]);
    guest.write(TALLY, &[0xee; 64]);
    guest.set32(0x10, TALLY as u32 | 8);
    assert_eq!((guest.get32(0x10) & 8, field(0)), (8, 0xeeee_eeee));
    // In classic mode the place is TSD0's.
    let guest = Guest::classic();
    guest.set32(0x10, TALLY as u32 | 8);
    assert_eq!(guest.read(TALLY, 64), [0; 64]);
}

/// Registers of both modes are in the same places, and frames of one are never taken for the
/// other's.
#[test]
fn changing_modes() {
    let mut guest = Guest::plus();
    guest.send_plus(&frame(MAC, 60), 0, 0);
    // Ring addresses have OWN as 0 in all places where TSD would be.
    guest.set32(0x10, 0x40);
    guest.set16(CPCR, 0);
    assert!(guest.pull().is_empty());
    assert_eq!([0, 1, 2, 3].map(|n| guest.tsd(n)), [T_OWN; 4]);
    guest.set32(RBSTART, RX_BUFFER as u32);
    assert_eq!(guest.arrive(&[frame(MAC, 60)]), 1);
    assert_eq!((guest.take().unwrap().0, guest.rx_opts(0).0 & OWN), (0x4001, OWN));
    guest.next = 0;
    guest.send(&frame(MAC, 70));
    assert_eq!(guest.pull()[0].bytes.len(), 70);
    // And back: what stands in the registers is the ring's address.
    guest.set32(TSAD, TX_RING as u32);
    guest.set32(TSAD + 4, 0);
    guest.set16(CPCR, 0x3b);
    assert_eq!(guest.pull()[0].bytes.len(), 60);
    assert_eq!(guest.arrive(&[frame(MAC, 60)]), 1);
    assert_eq!(guest.rx_opts(0).0 & OWN, 0);
}

/// Each side has its own mode.
#[test]
fn one_side_only() {
    let mut guest = Guest::plus();
    guest.set16(CPCR, 1);
    guest.set32(RBSTART, RX_BUFFER as u32);
    guest.send_plus(&frame(MAC, 60), 0, 0);
    assert_eq!((guest.pull().len(), guest.arrive(&[frame(MAC, 60)])), (1, 1));
    assert!(guest.take().is_some());
    guest.set16(CPCR, 2);
    guest.next = 0;
    guest.send(&frame(MAC, 71));
    assert_eq!((guest.pull()[0].bytes.len(), guest.arrive(&[frame(MAC, 60)])), (71, 1));
    assert_eq!(guest.rx_opts(0).0 & OWN, 0);
}

/// A ring begins again after each of these, and nowhere else.
#[test]
fn where_rings_begin() {
    let mut guest = Guest::plus();
    for i in 0..3 {
        guest.send_plus(&frame(MAC, 60 + i), 0, 0);
    }
    assert_eq!(guest.pull().len(), 3);
    // Bus master off and on: it goes on.
    guest.chip.write(crate::chip::Space::Config, 4, &[3]);
    guest.chip.write(crate::chip::Space::Config, 4, &[7]);
    guest.send_plus(&frame(MAC, 63), 0, 0);
    assert_eq!(guest.pull()[0].bytes.len(), 63);
    for again in [0, 1] {
        match again {
            0 => {
                guest.set8(CR, 0);
                guest.set8(CR, RE | TE);
            }
            _ => guest.start_plus(),
        }
        guest.next = 0;
        guest.send_plus(&frame(MAC, 64), 0, 0);
        assert_eq!(guest.pull()[0].bytes.len(), 64, "{again}");
    }
}

#[test]
fn loopback() {
    let mut guest = Guest::plus();
    guest.set32(TCR, 3 << 17);
    guest.send_plus(&packet(true, 4000), LGSEN | 1000 << 16, 0);
    guest.send_plus(&frame(MAC, 60), 0, 1 << 17 | 0x0100);
    assert!(guest.pull().is_empty());
    let lens = [0, 1, 2, 3, 4].map(|i| guest.rx_opts(i).0 & 0x1fff);
    assert_eq!(lens, [1070, 1070, 1070, 1070, 68]);
    assert_eq!(guest.rx_opts(5).0 & OWN, OWN);
}
