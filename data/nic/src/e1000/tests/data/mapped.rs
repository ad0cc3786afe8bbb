//! Ring registers in a page that the guest has mapped: plain stores, at any moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::guest::*;

/// Where a register lies in the mapped pages.
fn at(register: u64) -> usize {
    register as usize - 0x2000
}

#[test]
fn stores_move_frames_as_writes_do() {
    let mut guest = Guest::new();
    for round in 0..200u32 {
        let buffer = guest.fill(0, &frame([2; 6], 60 + round as usize));
        guest.tx_desc(round % SIZE, buffer, u64::from(60 + round) | LAST);
        guest.pages.set_u32(at(TD + TAIL), (round + 1) % SIZE, Ordering::Release);
        assert!(guest.chip.arm(), "seen without a doorbell");
        assert_eq!(guest.pull()[0].bytes, frame([2; 6], 60 + round as usize));
        assert_eq!(guest.pages.u32(at(TD + HEAD), Ordering::Acquire), (round + 1) % SIZE);
        assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
        let head = guest.pages.u32(at(RD + HEAD), Ordering::Acquire);
        assert_eq!(head, (round + 1) % SIZE);
        guest.pages.set_u32(at(RD + TAIL), (head + SIZE - 1) % SIZE, Ordering::Release);
    }
    assert_eq!(guest.host.rings(), 0);
}

/// Reserved bits may hold anything: the chip does not have them.
#[test]
fn reserved_bits_are_not_looked_at() {
    let mut guest = Guest::new();
    guest.pages.set_u32(at(TD), TX_RING as u32 | 0xf, Ordering::Release);
    guest.pages.set_u32(at(TD + LEN), (SIZE * 16) | 0xfff0_007f, Ordering::Release);
    guest.pages.set_u32(at(TD + HEAD), 0xabcd_0000, Ordering::Release);
    let buffer = guest.fill(0, &frame([2; 6], 60));
    guest.tx_desc(0, buffer, 60 | LAST);
    guest.pages.set_u32(at(TD + TAIL), 0xffff_0001, Ordering::Release);
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.chip.fault(), None);
}

#[test]
fn a_head_that_the_guest_moves_is_taken_over() {
    let mut guest = Guest::new();
    for i in 0..4 {
        guest.send(i, &frame([2; 6], 100 + i as usize));
    }
    guest.pull_to(&mut Take { hold: vec![0, 1, 2, 3], ..Take::default() });
    guest.pages.set_u32(at(TD + HEAD), 2, Ordering::Release);
    let lens: Vec<_> = guest.pull().iter().map(|f| f.bytes.len()).collect();
    assert_eq!(lens, [102, 103]);
    // A tail that goes back takes what is in flight away; there is nothing to lend.
    guest.send(0, &frame([2; 6], 100));
    guest.pull_to(&mut Take { hold: vec![0], ..Take::default() });
    guest.pages.set_u32(at(TD + TAIL), 4, Ordering::Release);
    assert!(guest.pull().is_empty());
    assert_eq!(guest.pages.u32(at(TD + HEAD), Ordering::Acquire), 4);
}

#[test]
fn registers_and_descriptors_that_change_all_the_time() {
    let mut guest = Guest::new();
    let (stop, map) = (AtomicBool::new(false), guest.map.clone());
    let ring = map.window(TX_RING, 0x2000, 8).unwrap();
    let receiver = map.window(RX_RING, 0x400, 8).unwrap();
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> 33
    };
    let chip_pages = &guest.pages;
    let (chip, batch) = (&guest.chip, &mut guest.batch);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let registers = [HEAD, TAIL, LEN, 0, TAIL, TAIL];
            while !stop.load(Ordering::Relaxed) {
                let side = if random() & 1 == 0 { TD } else { RD };
                let register = registers[random() as usize % registers.len()];
                let sane = match register {
                    LEN => SIZE * 16,
                    0 if side == TD => TX_RING as u32,
                    0 => RX_RING as u32,
                    _ => random() as u32 % SIZE,
                };
                let value = if random().is_multiple_of(8) { random() as u32 } else { sane };
                chip_pages.set_u32(at(side + register), value, Ordering::Release);
                let slot = random() as usize % SIZE as usize * 16;
                let (first, second) = (TX_BUFFERS + random() % 0x4000, random() << 32 | random());
                ring.set_u64(slot, first, Ordering::Relaxed);
                ring.set_u64(slot + 8, second & !(0xf_f000) | EOP, Ordering::Relaxed);
                receiver.set_u64(slot, RX_BUFFERS + random() % 0x4000, Ordering::Relaxed);
            }
        });
        let frames = vec![frame([0xff; 6], 1000); 8];
        let mut incoming = vmlan_frame::Batch::new();
        for frame in &frames {
            let rest = vmlan_ram::Slice::from_bytes(&frame[128..]);
            incoming.add_parts(&frame[..128], [rest], vmlan_frame::Offload::NONE).unwrap();
        }
        let (mut lent, mut round) = (0, 0usize);
        let end = Instant::now() + Duration::from_secs(300);
        // The other thread may not have run yet.
        while round < 3000 || lent < 1000 && Instant::now() < end {
            round += 1;
            let mut take = Take { hold: vec![round % 5], ..Take::default() };
            chip.pull(batch, 256, &mut take);
            lent += take.frames.len();
            chip.push(&incoming, &[0, 1, 2, 3, 4, 5, 6, 7]);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(lent >= 1000);
    });
    guest.set(CTRL, 1 << 26);
    guest.start();
    guest.send(0, &frame([2; 6], 100));
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 100)]), 1);
}
