//! Unit tests: the parts that need no server.

mod msix;

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_frame::Port;
use vmlan_keeper::{Descriptor, MAX_FDS};
use vmlan_nic::chip::Host;

use super::dma::Dma;
use super::nic_host::NicHost;
use super::version::Client;
use super::wire::{Command, Frames, Header, MAX_BODY, Replies};
use crate::bytes::Body;
use crate::connection::tests::{peeked, turns};
use crate::connection::{Framing, Malformed};
use crate::eventfd;
use crate::memory::sealed_memfd;
use crate::poll::{EdgeWatch, Wait, poll};
use crate::sys::SharedPages;
use crate::waker::Waker;

fn head(id: u16, command: u16, size: u32, flags: u32) -> Vec<u8> {
    let mut bytes = [id, command].into_iter().flat_map(u16::to_ne_bytes).collect::<Vec<_>>();
    bytes.extend([size, flags, 0].into_iter().flat_map(u32::to_ne_bytes));
    bytes
}

#[test]
fn headers_of_commands_only() {
    let parse = |size, flags| Frames::parse(&head(7, 9, size, flags));
    let header = Header { id: 7, command: 9, no_reply: false };
    assert_eq!(parse(16, 0), Ok((header, 0)));
    assert_eq!(parse(20, 0x10), Ok((Header { no_reply: true, ..header }, 4)));
    let most = u32::try_from(16 + MAX_BODY).unwrap();
    assert_eq!(parse(most, 0), Ok((header, MAX_BODY)));
    assert_eq!(parse(most + 1, 0), Err(Malformed::Oversize(most + 1)));
    assert_eq!(parse(15, 0), Err(Malformed::Undersize(15)));
    assert_eq!(parse(16, 1), Err(Malformed::Flags(1)), "a reply to nothing");
}

#[test]
fn bodies_fit_what_is_taken() {
    for number in 0..=u16::MAX {
        if let Some(command) = Command::from_number(number) {
            let (sizes, fds) = command.limits();
            assert!(*sizes.end() <= MAX_BODY && *fds.end() <= MAX_FDS, "{}", command.name());
        }
    }
}

/// With a journal each is peeked at anew, and what is behind it is copied for nothing.
#[test]
fn a_flood_of_control_messages_is_not_copied_for_each_of_them() {
    let reset = head(0, 13, 16, 0);
    let turns = turns::<Frames>(&reset.repeat(1000));
    assert!(turns.len() == 1000 && turns.iter().all(|turn| turn.bodies == [b""]));
    // For the first, register accesses may be behind it.
    let all = peeked(&turns);
    assert!(all <= Frames::BUFFER + 128 * 1000, "{all} bytes were peeked at for 1000 messages");
}

/// Few bytes are looked at after a control message alone.
#[test]
fn register_writes_are_read_many_at_a_time_after_a_control_message() {
    let write = [head(0, 10, 36, 0x10), vec![0; 20]].concat();
    let sent = [head(0, 13, 16, 0), write.repeat(1000)].concat();
    let turns = turns::<Frames>(&sent);
    assert_eq!(turns.iter().map(|turn| turn.bodies.len()).sum::<usize>(), 1001);
    let (count, all) = (turns.len(), peeked(&turns));
    assert!(count <= 10, "{count} turns");
    assert!(all <= Frames::BUFFER + 2 * sent.len(), "{all} bytes for {}", sent.len());
}

#[test]
fn a_message_is_charged_for_each_register_it_touches() {
    let access = |count: u32| [&[0; 12][..], &count.to_ne_bytes()].concat();
    for (command, body, work) in [
        (Command::RegionRead, access(4), 1),
        (Command::RegionRead, access(4096), 1024),
        (Command::RegionRead, access(u32::MAX), 1024),
        (Command::RegionWrite, vec![0; 16 + 4], 1),
        (Command::RegionWrite, vec![0; 16 + 4096], 1024),
        (Command::WriteMulti, vec![0; 8 + 200 * 24], 200),
        (Command::WriteMulti, vec![0; 8], 1),
        (Command::SetIrqs, [access(0), 25u32.to_ne_bytes().to_vec()].concat(), 25),
        (Command::SetIrqs, [access(0), u32::MAX.to_ne_bytes().to_vec()].concat(), 32),
        (Command::Reset, Vec::new(), 1),
    ] {
        assert_eq!(command.work(&body), work, "{} with {} bytes", command.name(), body.len());
    }
}

#[test]
fn replies_stand_one_behind_the_other() {
    let mut replies = Replies::default();
    let to = Header { id: 0x1234, command: 9, no_reply: false };
    replies.reply(to, &[1, 2], 2, |data| data.fill(9));
    assert_eq!(replies.bytes()[..16], head(0x1234, 9, 20, 1));
    assert_eq!(replies.bytes()[16..], [1, 2, 9, 9]);
    let len = replies.bytes().len();
    replies.error(to, libc::EINVAL);
    let mut error = head(0x1234, 9, 16, 0x21);
    error[12] = 22;
    assert_eq!(replies.bytes()[len..], error);
    replies.truncate(len);
    assert_eq!(replies.bytes().len(), len);
}

#[test]
fn the_reply_to_version_is_json_that_its_client_can_take() {
    let text = br#"{"capabilities":{"write_multiple":true}}"#;
    let body = [&[0, 0, 9, 0][..], text, &[0]].concat();
    let reply = Client::parse(&body).unwrap().reply();
    assert_eq!(reply[..4], [0, 0, 1, 0], "0.1");
    let (json, zero) = reply[4..].split_at(reply.len() - 5);
    assert_eq!(zero, [0]);
    let value: serde_json::Value = serde_json::from_slice(json).unwrap();
    assert_eq!(value["capabilities"]["max_dma_maps"], 64);
    assert_eq!(value["capabilities"].get("write_multiple"), None, "even to one that asks for it");
}

#[test]
fn fresh_pages_are_seen_through_the_old_window() {
    let (pages, first) = SharedPages::new(0x4000).unwrap();
    let window = pages.window(0x2000, 0x2000).unwrap();
    let first = std::fs::File::from(first);
    first.write_all_at(&7u32.to_le_bytes(), 0x2010).unwrap();
    assert_eq!(window.u32(0x10, Ordering::Relaxed), 7);
    let second = std::fs::File::from(pages.renew().unwrap());
    assert_eq!(window.u32(0x10, Ordering::Relaxed), 0);
    first.write_all_at(&8u32.to_le_bytes(), 0x2010).unwrap();
    assert_eq!(window.u32(0x10, Ordering::Relaxed), 0, "nobody looks at it any more");
    window.set_u32(0x1ffc, 9, Ordering::Relaxed);
    let mut bytes = [0; 4];
    second.read_exact_at(&mut bytes, 0x3ffc).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), 9);
    second.set_len(0).expect_err("sealed");
}

#[test]
fn fresh_pages_come_while_others_look() {
    let (pages, _) = SharedPages::new(0x4000).unwrap();
    let window = pages.window(0, 0x4000).unwrap();
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                (0..0x4000).step_by(64).for_each(|at| window.set_u32(at, 1, Ordering::Relaxed));
            }
        });
        for _ in 0..500 {
            pages.renew().unwrap();
        }
        end.store(true, Ordering::Relaxed);
    });
}

#[test]
fn the_timer_expires_when_it_was_last_set_to() {
    let host = NicHost::new(Arc::new(Waker::new().unwrap())).unwrap();
    let expired = |ms| {
        let wait = [Some((host.timer_fd(), Wait::Read))];
        poll(wait, Some(std::time::Duration::from_millis(ms))).unwrap() == [true]
    };
    host.set_timer(host.now() + 3_600_000_000_000);
    assert!(!expired(5));
    let at = host.now() + 10_000_000;
    host.set_timer(at);
    assert!(expired(10_000) && host.now() >= at);
    host.take_timer();
    assert!(!expired(5));
    host.set_timer(0);
    assert!(expired(1000), "a time in the past is now");
}

#[test]
fn an_edge_is_seen_once_and_without_reading() {
    use std::io::Write;
    let fd = eventfd::new().unwrap();
    let watch = EdgeWatch::new(fd.try_clone().unwrap()).unwrap();
    assert!(!watch.take());
    let mut file = std::fs::File::from(fd.try_clone().unwrap());
    for _ in 0..3 {
        file.write_all(&1u64.to_ne_bytes()).unwrap();
        assert!(watch.take());
        assert!(!watch.take(), "though it is readable still");
    }
}

/// A DMA_MAP of the first MiB.
fn map_body(size: u64) -> Vec<u8> {
    let mut body = [32u32, 3].into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>();
    body.extend([0, 0, size].into_iter().flat_map(u64::to_ne_bytes));
    body
}

#[test]
fn a_region_that_was_unmapped_is_gone_once_its_map_is() {
    let (port, _) = super::handle::new_port(super::Model::E1000).unwrap();
    let mut dma = Dma::default();
    let file = sealed_memfd(c"t", 1 << 20).unwrap();
    assert!(dma.map(Body(&map_body(1 << 20)), Some(Descriptor::of(file))).unwrap());
    let map = dma.snapshot().unwrap();
    let gone = Arc::downgrade(&map);
    drop(port.nic().set_map(map));
    assert!(gone.upgrade().is_some() && port.room() < 1 << 20);
    assert!(dma.clear());
    drop(port.nic().set_map(Arc::default()));
    assert!(gone.upgrade().is_none());
}

/// Inputs that the fuzzer found, and one that does what a driver does.
#[test]
fn kept_inputs_of_the_fuzzer_break_no_promise() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/vfio_user");
    let mut honest = vec![0x3f];
    honest.extend([0xff, 0, 0x90, 0xa8, 0xb0, 0x81, 0x40, 0x0e, 0x06, 20, 0, 0, 0, 0x9f, 0xaf]);
    crate::fuzz::vfio_user(&honest);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        crate::fuzz::vfio_user(&std::fs::read(entry.path()).unwrap());
    }
}
