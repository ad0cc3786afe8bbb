use super::*;
use crate::virtio::virtqueue::RingOptions;
use crate::virtio::virtqueue::tests::{Device, PLAIN};

fn queue(options: RingOptions, shape: Shape) -> (Arc<Ram>, Queue, Device) {
    let ram = Ram::new(options.ram_bytes(), 1 << 16).unwrap();
    let ring = Ring::new(&ram, &mut Pool::new(0, ram.buffers()), options);
    let queue = Queue::new(&ram, ring, &mut Pool::new(ram.buffers(), ram.size()), shape).unwrap();
    let device = Device::new(&ram, queue.ring.places(), queue.ring.options());
    (ram, queue, device)
}

fn frame(len: u8) -> Vec<u8> {
    (0..len).collect()
}

#[test]
fn a_sent_frame_has_a_header_in_front() {
    for (header, segments, indirect) in
        [(12, 1, false), (10, 2, false), (12, 4, true), (10, 8, false)]
    {
        let options = RingOptions { segments, indirect, ..PLAIN };
        let (_ram, queue, mut device) = queue(options, Shape { buffer: 256, header });
        let mut tx = TxQueue::new(queue);
        for round in 60..64 {
            let slot = tx.next().unwrap();
            tx.write(slot, 0, &frame(round));
            tx.send(slot, round.into());
            assert_eq!(tx.flush(), 1);
            let (head, pieces) = device.pop().unwrap();
            assert_eq!(pieces.len(), usize::from(segments));
            if segments > 1 {
                assert_eq!(pieces[0].1, header, "the header has a descriptor of its own");
            }
            let bytes = device.get(&pieces);
            assert_eq!(bytes[..header], vec![0; header]);
            assert_eq!(bytes[header..], frame(round));
            device.push(head.into(), 0);
            device.publish();
            assert_eq!(tx.reap(), tx.slots());
        }
        assert_eq!((tx.stats().frames, tx.stats().bytes), (4, 60 + 61 + 62 + 63));
    }
}

#[test]
fn one_doorbell_for_a_batch() {
    let (_ram, queue, mut device) = queue(PLAIN, Shape { buffer: 256, header: 12 });
    let mut tx = TxQueue::new(queue);
    device.want_doorbell(true);
    assert_eq!(tx.send_filled(20, 60), 8);
    assert_eq!(device.waiting(), 0, "not shown before the flush");
    assert_eq!(tx.flush(), 8);
    assert_eq!((tx.queue.kick.take(), device.waiting()), (1, 8));
    assert!(tx.next().is_none());
    let stats = tx.stats();
    assert_eq!((stats.doorbells, stats.batches, stats.full), (1, 1, 1));
    let (head, _) = device.pop().unwrap();
    device.push(head.into(), 0);
    device.publish();
    assert_eq!(tx.reap(), 1);
}

fn receive(device: &mut Device, bytes: &[u8]) {
    let (head, pieces) = device.pop().unwrap();
    device.put(&pieces, bytes);
    device.push(head.into(), u32::try_from(bytes.len()).unwrap());
}

#[test]
fn a_received_frame_is_read_back_and_its_buffer_posted_again() {
    for header in [10, 12] {
        let (_ram, queue, mut device) = queue(PLAIN, Shape { buffer: 256, header });
        let mut rx = RxQueue::new(queue, 256, false);
        rx.start();
        let mut batch = rx.batch();
        for round in 0..30 {
            let bytes = [vec![0; header], frame(60 + round)].concat();
            receive(&mut device, &bytes);
            device.publish();
            assert_eq!(rx.poll(&mut batch, 8), 1);
            let got = batch.frames()[0];
            let mut copy = [0; 100];
            let len = rx.read(&batch, got, 0, &mut copy);
            assert_eq!(copy[..len], frame(60 + round));
            let len = rx.read(&batch, got, 50, &mut copy);
            assert_eq!(copy[..len], frame(60 + round)[50..]);
            rx.release(&mut batch);
            assert_eq!(device.waiting(), 8);
        }
        assert_eq!(rx.stats().frames, 30);
        assert!(rx.queue.ring.audit().is_sound());
    }
}

#[test]
fn a_frame_in_several_buffers_is_one_frame() {
    let (_ram, queue, mut device) = queue(PLAIN, Shape { buffer: 64, header: 12 });
    let mut rx = RxQueue::new(queue, 64, true);
    rx.start();
    let mut batch = rx.batch();
    let mut first = NetHeader { num_buffers: 3, ..NetHeader::default() }.encode().to_vec();
    first.extend(&frame(150)[..52]);
    receive(&mut device, &first);
    receive(&mut device, &frame(150)[52..116]);
    device.publish();
    assert_eq!(rx.poll(&mut batch, 8), 0, "the last buffer is still missing");
    rx.release(&mut batch);
    receive(&mut device, &frame(150)[116..]);
    let small = [NetHeader { num_buffers: 1, ..NetHeader::default() }.encode().to_vec(), frame(20)];
    receive(&mut device, &small.concat());
    device.publish();
    assert_eq!(rx.poll(&mut batch, 8), 2);
    let mut copy = [0; 200];
    let len = rx.read(&batch, batch.frames()[0], 0, &mut copy);
    assert_eq!(copy[..len], frame(150));
    let len = rx.read(&batch, batch.frames()[1], 0, &mut copy);
    assert_eq!(copy[..len], frame(20));
    rx.release(&mut batch);
    assert_eq!((device.waiting(), rx.outstanding()), (8, 8));
    assert!(rx.queue.ring.audit().is_sound());
}

#[test]
fn a_device_that_lies_about_lengths_is_counted() {
    let (_ram, queue, mut device) = queue(PLAIN, Shape { buffer: 64, header: 12 });
    let mut rx = RxQueue::new(queue, 64, true);
    rx.start();
    let mut batch = rx.batch();
    for (buffers, len) in [(0, 64), (9, 64), (1, 65), (1, 11), (1, 0)] {
        let (head, pieces) = device.pop().unwrap();
        let header = NetHeader { num_buffers: buffers, ..NetHeader::default() };
        device.put(&pieces, &header.encode());
        device.push(head.into(), len);
    }
    device.publish();
    assert_eq!(rx.poll(&mut batch, 8), 3, "the two that are shorter than a header are no frames");
    assert!(batch.frames().iter().all(|frame| frame.len == 52));
    assert_eq!(rx.stats().malformed, 5);
    rx.release(&mut batch);
    assert!(rx.queue.ring.audit().is_sound());
    assert_eq!(device.waiting(), 8, "every buffer is the device's again");
}

#[test]
fn headers_are_little_endian_words() {
    let header = NetHeader {
        flags: 1,
        gso_type: 3,
        hdr_len: 0x0102,
        gso_size: 0x0304,
        csum_start: 0x0506,
        csum_offset: 0x0708,
        num_buffers: 0x090a,
    };
    assert_eq!(header.encode(), [1, 3, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9]);
    assert_eq!(NetHeader::decode(header.encode()), header);
}
