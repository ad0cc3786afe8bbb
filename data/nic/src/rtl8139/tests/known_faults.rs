//! What broke QEMU's rtl8139 and the emulated NICs of others, as far as this chip can be asked for
//! it: a test for each class of fault. `docs/known-faults.md` says who had it.

use super::guest::*;
use crate::chip::{Nic, PciFunction, Space};

/// Where the VMM would put BAR1.
const BAR: u64 = 0xfebf_1000;
const VLAN: u32 = 1 << 17 | 0x0100;

/// Frames with their FCS never go beyond the buffer, whatever its length.
#[test]
fn frames_stay_in_their_buffers() {
    for len in [60, 64, 68, 100, 1000, 1514, 1518] {
        for room in [1u32, 4, 17, 60, 64, 500, 1518, 1536] {
            let guest = Guest::plus();
            guest.write(RX_BUFFERS, &vec![0xee; 2048 * 64]);
            for i in 0..SIZE {
                guest.post_buffer(i, RX_BUFFERS + 2048 * u64::from(i), room);
            }
            assert_eq!(guest.arrive(&[frame(MAC, len)]), 1);
            for i in 0..SIZE {
                let behind = RX_BUFFERS + 2048 * u64::from(i) + u64::from(room);
                assert!(guest.read(behind, 400).iter().all(|b| *b == 0xee), "{len} {room} {i}");
            }
        }
    }
}

/// Segmentation without a segment's size, and of packets with headers that cannot be.
#[test]
fn segmentation_without_a_size() {
    for mss in [0, 1, 7, 536, 0x7ff] {
        let mut guest = Guest::plus();
        guest.send_plus(&packet(true, 3000), LGSEN | mss << 16, 0);
        let sent = guest.pull();
        if mss < 48 {
            assert_eq!((sent.len(), guest.dropped()), (0, 1));
        } else {
            assert_eq!(u32::from(sent[0].offload.gso_size), mss);
        }
        assert_eq!(guest.tx_opts(0) & OWN, 0, "the ring goes on");
    }
}

/// Receive descriptors without a buffer, in number: bounded, and the next good one is used.
#[test]
fn null_receive_buffers() {
    let guest = Guest::plus();
    for i in 0..10 {
        guest.post_buffer(i, RX_BUFFERS, 0);
    }
    assert_eq!(guest.arrive(&[frame(MAC, 60)]), 1);
    assert_eq!(guest.rx_opts(10).0, FS | LS | 1 << 25 | 64);
    let guest = Guest::plus();
    for i in 0..SIZE {
        guest.post_buffer(i, 0, 0);
    }
    assert_eq!(guest.arrive(&vec![frame(MAC, 60); 256]), 0);
}

/// Descriptors that keep OWN, or whose ring has no end, cost a bounded pass.
#[test]
fn rings_that_stay_owned() {
    let mut guest = Guest::plus();
    for i in 0..SIZE {
        guest.tx_desc(i, OWN | FS | LS | 60, 0, TX_BUFFERS);
    }
    for _ in 0..10 {
        let n = guest.pull().len();
        assert!(n <= SIZE as usize, "{n}");
        // The guest gives all back at once, again and again.
        for i in 0..SIZE {
            guest.tx_desc(i, OWN | FS | LS | 60, 0, TX_BUFFERS);
        }
    }
    // First segments only, and pieces that never end.
    for opts in [OWN | FS | 60, OWN | 60, OWN | EOR, OWN | FS | LS | EOR, OWN] {
        let mut guest = Guest::plus();
        for i in 0..SIZE {
            guest.tx_desc(i, opts, 0, TX_BUFFERS);
        }
        for _ in 0..4 {
            guest.set8(TPPOLL, 0x40);
            assert!(guest.pull().len() <= SIZE as usize);
        }
    }
    // Classic: all four, for ever.
    let mut guest = Guest::classic();
    for _ in 0..10 {
        for n in 0..4 {
            guest.set32(TSAD + 4 * n, TX_BUFFERS as u32);
            guest.set32(TSD + 4 * n, 60);
        }
        assert_eq!(guest.pull().len(), 4);
    }
}

/// Rings, buffers and dumps in the chip's own registers, which are no memory.
#[test]
fn dma_to_registers() {
    let mut guest = Guest::plus();
    guest.send_plus(&frame(MAC, 60), 0, 0);
    guest.tx_desc(0, OWN | FS | LS | 60, 0, BAR);
    guest.post_buffer(0, BAR, RX_LEN);
    assert_eq!((guest.pull().len(), guest.arrive(&[frame(MAC, 60)]), guest.dropped()), (0, 1, 2));
    guest.set32(0x10, BAR as u32 & !63 | 8);
    assert_eq!(guest.get32(0x10) & 8, 8);
    guest.set32(TSAD, BAR as u32 & !255);
    guest.set32(RDSAR, BAR as u32 & !255);
    assert_eq!((guest.pull().len(), guest.arrive(&[frame(MAC, 60)])), (0, 0));
    assert!(guest.chip.fault().is_some_and(|fault| fault.address().is_some()));
    let mut guest = Guest::classic();
    guest.set32(TSAD, BAR as u32);
    guest.set32(TSD, 60);
    guest.set32(RBSTART, BAR as u32);
    assert_eq!((guest.pull().len(), guest.arrive(&[frame(MAC, 60)])), (0, 0));
    assert_eq!(guest.tsd(0), T_OWN | T_TUN | 60);
}

/// Receive buffers over the rings themselves: what is read was checked, once.
#[test]
fn buffers_in_the_ring_itself() {
    let mut guest = Guest::plus();
    for i in 0..SIZE {
        guest.post_buffer(i, RX_RING + 16 * u64::from(i), RX_LEN);
        guest.tx_desc(i, OWN | FS | LS | 1024, 0, TX_RING);
    }
    let f: Vec<u8> = frame(MAC, 1024);
    for _ in 0..100 {
        guest.arrive(&vec![f.clone(); 64]);
        guest.pull();
    }
    let mut guest = Guest::classic();
    guest.set32(RBSTART, TX_BUFFERS as u32);
    guest.set32(TSAD, TX_BUFFERS as u32);
    for _ in 0..100 {
        guest.set32(TSD, 1500);
        guest.arrive(std::slice::from_ref(&f));
        guest.pull();
    }
}

/// Loopback does not recurse, in either mode, and short frames are as long as all.
#[test]
fn loopback_of_short_frames_is_no_recursion() {
    for plus in [false, true] {
        let mut guest = if plus { Guest::plus() } else { Guest::classic() };
        guest.set32(TCR, 3 << 17);
        for len in 14..60 {
            if plus {
                guest.send_plus(&frame(MAC, len), 0, 0);
            } else {
                guest.send(&frame(MAC, len));
            }
            assert!(guest.pull().is_empty());
            if plus {
                assert_eq!(guest.rx_opts(len as u32 - 14).0 & 0x1fff, 64);
            } else {
                assert_eq!(guest.take().unwrap().1.len(), 64);
            }
        }
    }
}

/// Frames of too many pieces, and offloads of what has not the headers for them.
#[test]
fn headers_that_are_not_there() {
    let good = packet(true, 200);
    let at = |i: usize, value: u8| {
        let mut f = good.clone();
        f[i] = value;
        f
    };
    let cases = [
        frame(MAC, 60),
        frame(MAC, 14),
        // Header lengths, IP's and TCP's, of nothing, and of more than there is.
        at(14, 0x40),
        at(14, 0x4f),
        at(46, 0x00),
        at(46, 0xf0),
        // Lengths that the packet does not have; fragments; another protocol.
        at(16, 0xff),
        at(17, 0x10),
        at(20, 0x3f),
        at(23, 132),
        at(12, 0x86),
        good[..30].to_vec(),
        good[..40].to_vec(),
    ];
    for f in &cases {
        for opts in [LGSEN | 100 << 16, LGSEN | 1 << 16, 7 << 16, 1 << 16, 1 << 17, 1 << 18] {
            for tag in [0, VLAN] {
                let mut guest = Guest::plus();
                guest.write(TX_BUFFERS, &[0xaa; 4096]);
                guest.send_plus(f, opts, tag);
                for lent in guest.pull() {
                    // Nothing that is not the guest's frame, its tag or padding.
                    assert!(lent.bytes.len() <= f.len().max(60) + 4);
                    let all: usize = finish(&lent).iter().map(Vec::len).sum();
                    assert!(all < 40_000);
                }
                assert_eq!(guest.tx_opts(0) & OWN, 0);
            }
        }
    }
    // 300 pieces: there are no more than 64 descriptors, so that is the end of the ring.
    let mut guest = Guest::plus();
    for i in 0..SIZE {
        let first = if i == 0 { FS } else { 0 };
        guest.tx_desc(i, OWN | first | if i == SIZE - 1 { LS | EOR } else { 0 } | 8, 0, TX_BUFFERS);
    }
    guest.set8(TPPOLL, 0x40);
    guest.pull();
}

/// After a reset, or with bus mastering off, nothing of before moves.
#[test]
fn nothing_moves_after_a_reset() {
    let stops: [fn(&Guest); 4] = [
        |guest| guest.chip.reset(),
        |guest| guest.set8(CR, RST),
        |guest| guest.chip.write(Space::Config, 4, &[3]),
        |guest| guest.chip.write(Space::Config, 0x54, &[3]),
    ];
    for stop in stops {
        for plus in [false, true] {
            let mut guest = if plus { Guest::plus() } else { Guest::classic() };
            let mut take = Take { hold: vec![0], ..Take::default() };
            if plus {
                guest.send_plus(&frame(MAC, 60), 0, 0);
            } else {
                guest.send(&frame(MAC, 60));
            }
            guest.pull_to(&mut take);
            assert_eq!(take.frames.len(), 1);
            stop(&guest);
            let before = guest.read(0, MEMORY as usize);
            assert!(guest.pull().is_empty());
            guest.arrive(&[frame(MAC, 60)]);
            assert!(guest.read(0, MEMORY as usize) == before);
        }
    }
}

/// Lengths near what other types hold.
#[test]
fn lengths_of_any_size() {
    let guest = Guest::plus();
    let lens = [1514, 4118, 4119, 8191, 8192, 9000, 9014];
    assert_eq!(guest.arrive(&lens.map(|len| frame(MAC, len))), lens.len());
    let guest = Guest::classic();
    assert_eq!(guest.arrive(&lens.map(|len| frame(MAC, len))), lens.len());
    assert_eq!(guest.dropped(), 6);
    assert_eq!(guest.take().unwrap().1.len(), 1518);
    assert!(guest.take().is_none());
}

/// What a frame takes is counted with its header, its FCS and its alignment. (All of it:
/// `buffer.rs`.)
#[test]
fn the_alignment_counts() {
    for over in 0..8u16 {
        let guest = Guest::classic();
        // 73 bytes with header and FCS make 76.
        let f = frame(MAC, 65);
        guest.arrive(&vec![frame(MAC, 1514); 5]);
        let at = guest.get16(CBR);
        // The driver's read pointer stands 72 + over bytes ahead.
        guest.set16(CAPR, at + 72 + over - 16);
        assert_eq!(guest.arrive(&[f]), usize::from(over > 4), "{over}");
    }
}

/// A receiver that is on before it has a buffer.
#[test]
fn no_buffer_was_ever_set() {
    let guest = Guest::bare(true, Guest::config());
    guest.set8(CR, RE | TE);
    guest.set32(RCR, ACCEPT);
    assert_eq!(guest.arrive(&[frame(MAC, 60)]), 0);
    let guest = Guest::bare(false, Guest::config());
    guest.set16(CPCR, 3);
    guest.set8(CR, RE | TE);
    guest.set32(RCR, ACCEPT);
    assert_eq!(guest.arrive(&[frame(MAC, 60)]), 0);
    assert!(guest.read(0, 0x1000).iter().all(|b| *b == 0));
}

/// A tag that is inserted into a frame that comes back.
#[test]
fn loopback_and_a_tag() {
    for len in [14, 15, 16, 59, 60, 1514] {
        let mut guest = Guest::plus();
        guest.set32(TCR, 3 << 17);
        let f = frame(MAC, len);
        guest.send_plus(&f, 0, VLAN);
        assert!(guest.pull().is_empty());
        let got = guest.read(RX_BUFFERS, (len + 4).max(60));
        assert_eq!((&got[..12], &got[12..16]), (&f[..12], [0x81, 0, 0, 1].as_slice()));
        assert_eq!(&got[16..len + 4], &f[12..]);
        assert!(got[len + 4..].iter().all(|b| *b == 0), "{len}: padding is zeros");
    }
}

/// Rings and buffers that are memory only at their beginning.
#[test]
fn rings_at_the_end_of_memory() {
    let mut guest = Guest::plus();
    let last = MEMORY - 256;
    guest.set32(TSAD, last as u32);
    guest.set32(RDSAR, last as u32);
    for i in 0..16 {
        guest.desc(last, i, OWN | FS | LS | 60, 0, TX_BUFFERS);
    }
    guest.set8(TPPOLL, 0x40);
    let sent = guest.pull().len();
    assert!((15..=16).contains(&sent), "{sent}");
    guest.pull();
    guest.arrive(&vec![frame(MAC, 60); 20]);
    assert!(guest.chip.fault().is_some());
}

/// The longest frames, in loopback.
#[test]
fn loopback_of_the_longest_frames() {
    for plus in [false, true] {
        let mut guest = if plus { Guest::plus() } else { Guest::classic() };
        guest.set32(TCR, 3 << 17);
        for len in [1514, 1788, 1789, 1792] {
            if plus {
                guest.send_plus(&frame(MAC, len), 0, 0);
            } else {
                guest.send(&frame(MAC, len));
            }
        }
        guest.pull();
    }
}

/// Frames shorter than an Ethernet header are not sent, in either mode.
#[test]
fn frames_shorter_than_their_headers() {
    for len in 0..14 {
        let mut guest = Guest::plus();
        guest.tx_desc(0, OWN | FS | LS | len, 0, TX_BUFFERS);
        guest.set8(TPPOLL, 0x40);
        assert_eq!((guest.pull().len(), guest.tx_opts(0) & OWN), (0, 0), "{len}");
        let mut guest = Guest::classic();
        guest.set32(TSAD, TX_BUFFERS as u32);
        guest.set32(TSD, len);
        assert_eq!((guest.pull().len(), guest.tsd(0)), (0, T_OWN | T_TUN | len), "{len}");
    }
}
