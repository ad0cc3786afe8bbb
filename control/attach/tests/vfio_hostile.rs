//! What a hostile vfio-user client can send. It harms itself at most. `docs/known-faults.md` says
//! which other servers had these faults.

mod common;
mod vfio;

use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{PATIENCE, clear_nonblocking, fds_of, memfd, rss_kib, until};
use vfio::*;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

const EINVAL: u32 = 22;
const EEXIST: u32 = 17;
const ENOENT: u32 = 2;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;

#[test]
fn a_dma_unmap_asks_for_as_much_room_as_it_likes_and_gets_none() {
    let f = Fixture::new();
    let mut client = f.ready();
    let memory = memfd(1 << 20);
    assert_eq!(client.map(0, 0, 1 << 20, memory.as_raw_fd()), Some(0));
    let before = rss_kib();
    for size in [u64::MAX, 1 << 40, 1 << 32, 0] {
        let mut body = halves(&[u32::MAX, 1]);
        body.extend(words(&[0, 1 << 20, 4096, size]));
        assert_eq!(client.ask(DMA_UNMAP, &body, &[]), Some(ENOTSUP), "a dirty bitmap");
        let mut body = halves(&[u32::MAX, 0]);
        body.extend(words(&[4096, size]));
        assert_eq!(client.ask(DMA_UNMAP, &body, &[]), Some(ENOENT), "a part");
    }
    // Other tests of this process have their own.
    assert!(rss_kib() < before + (64 << 10));
    let reply = client.call(DMA_UNMAP, &dma_unmap(0, 0, 1 << 20), &[]).unwrap();
    assert_eq!((reply.error, reply.body), (0, dma_unmap(0, 0, 1 << 20)));
}

#[test]
fn accesses_that_leave_their_region_or_wrap_are_refused() {
    let f = Fixture::new();
    let mut client = f.ready();
    for (region, size) in [(0u32, 128u64 << 10), (1, 64), (7, 256)] {
        for (offset, count) in [
            (size, 1u32),
            (size - 3, 4),
            (size - 1, 2),
            (u64::MAX, 1),
            (u64::MAX - 3, 4),
            (u64::MAX, u32::MAX),
            (0, u32::MAX),
            (0, 4097),
            (0, 0),
            (1 << 32, 4),
            (1 << 63, 4),
        ] {
            let case = format!("region {region} {offset:#x} {count}");
            let read = client.ask(READ, &access(region, offset, count, &[]), &[]);
            assert_eq!(read, Some(EINVAL), "{case}");
            let data = vec![0; (count as usize).min(4096)];
            let write = client.ask(WRITE, &access(region, offset, count, &data), &[]);
            assert_eq!(write, Some(EINVAL), "{case}");
            let mut body = words(&[1]);
            body.extend(access(region, offset, count, &[0; 8]));
            let multi = client.ask(WRITE_MULTI, &body, &[]);
            assert_eq!(multi, Some(EINVAL), "{case}");
        }
        assert_eq!(client.read(region, size - 1, 1).unwrap().len(), 1);
    }
    assert_eq!(client.read(0, 0, 4096).unwrap().len(), 4096);
}

#[test]
fn capabilities_of_every_kind_are_taken_or_refused() {
    let f = Fixture::mapped();
    let good = [
        r#"{"capabilities":{"max_msg_fds":0}}"#,
        r#"{"capabilities":{"max_msg_fds":18446744073709551615}}"#,
        r#"{"capabilities":{"migration":{"pgsize":4096},"twin_socket":{"supported":true}}}"#,
        r#"{"capabilities":{},"more":[[[1]]]}"#,
        "{}",
        "",
    ];
    let deep = "[".repeat(3000);
    let bad = [
        r#"{"capabilities":{"max_msg_fds":-1}}"#,
        r#"{"capabilities":{"max_msg_fds":1e300}}"#,
        r#"{"capabilities":{"max_msg_fds":18446744073709551616}}"#,
        r#"{"capabilities":{"max_msg_fds":"1"}}"#,
        r#"{"capabilities":{"max_data_xfer_size":-5}}"#,
        r#"{"capabilities":{"max_dma_maps":null}}"#,
        r#"{"capabilities":{"pgsizes":[]}}"#,
        r#"{"capabilities":{"write_multiple":1}}"#,
        r#"{"capabilities":7}"#,
        r#"{"capabilities":"#,
        "[]",
        "null",
        "\0{}",
        "{}\0",
        deep.as_str(),
    ];
    let say = |text: &str, zero: bool| {
        f.wait_free();
        let mut client = f.connect();
        let mut body = vec![0, 0, 1, 0];
        body.extend(text.bytes());
        body.extend(zero.then_some(0));
        let error = client.ask(VERSION, &body, &[]);
        (client, error)
    };
    for text in good {
        let (mut client, error) = say(text, true);
        assert_eq!(error, Some(0), "{text}");
        let mut body = halves(&[64, 0, 0, 0]);
        body.extend([0; 16]);
        let reply = client.call(REGION_INFO, &body, &[]).unwrap();
        let takes_none = text.contains(":0}");
        assert_eq!(reply.fds.len(), usize::from(!takes_none), "{text}");
        assert_eq!(reply.word(4) & 4 == 0, takes_none, "said to be mappable only if it is");
    }
    for text in bad {
        let (mut client, error) = say(text, true);
        assert_eq!(error, Some(EINVAL), "{text}");
        assert!(client.is_closed());
    }
    let (mut client, error) = say("{}", false);
    assert_eq!(error, Some(EINVAL), "no NUL behind it");
    assert!(client.is_closed());
}

#[test]
fn set_irqs_of_every_kind() {
    let f = Fixture::new();
    let mut client = f.ready();
    let line = eventfd();
    let fd = [raw(&line)];
    let edge = [0u32, 1, 2, 3, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX];
    for index in edge {
        for start in edge {
            for count in edge {
                let whole = (start, count) == (0, 0) && index < 3;
                let one = (start, count) == (0, 1) && index < 2;
                let body = halves(&[20, NONE | TRIGGER, index, start, count]);
                let error = client.ask(SET_IRQS, &body, &[]);
                assert_eq!(error == Some(0), whole || one, "{index} {start} {count}");
                let body = halves(&[20, EVENTFD | TRIGGER, index, start, count]);
                let error = client.ask(SET_IRQS, &body, &fd);
                assert_eq!(error == Some(0), one, "{index} {start} {count}");
            }
        }
    }
    for flags in 0..256u32 {
        for index in [INTX, MSI] {
            let (data, action) = (flags & 7, flags & !7);
            let alone = data.is_power_of_two() && action.is_power_of_two() && action <= TRIGGER;
            let good = alone
                && (action == TRIGGER || index == INTX)
                && (data == NONE || data == EVENTFD && action != MASK);
            let error = client.set_irqs(flags, index, 1, &[]);
            assert_eq!(error == Some(0), good, "flags {flags:#x} index {index}");
        }
    }
    // Data and descriptors that do not fit the flags.
    assert_eq!(client.set_irqs(NONE | TRIGGER, INTX, 1, &fd), Some(EINVAL));
    assert_eq!(client.set_irqs(NONE | TRIGGER, INTX, 0, &fd), Some(EINVAL));
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 0, &fd), Some(EINVAL));
    assert_eq!(client.set_irqs(BOOL | TRIGGER, INTX, 1, &[]), Some(EINVAL));
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[fd[0]; 2]), Some(EINVAL));
}

#[test]
fn every_command_with_every_size_and_fd_count_ends_in_an_answer() {
    let f = Fixture::new();
    let file = memfd(4096);
    let mut client = f.ready();
    let mut refused = 0;
    for command in 0..24u16 {
        for size in [0usize, 1, 4, 8, 15, 16, 17, 20, 21, 24, 32, 33, 40, 64, 4112] {
            for count in [0usize, 1, 2, 32] {
                for fill in [0u8, 1, 0xa5, 0xff] {
                    // Too many end the connection, and of those few are let in each second.
                    if count > 1 && fill > 1 || count > 16 && (fill > 0 || command % 4 > 0) {
                        continue;
                    }
                    let fds: Vec<RawFd> = vec![file.as_raw_fd(); count];
                    let error = client.ask(command, &vec![fill; size], &fds);
                    refused += u32::from(error != Some(0));
                    if error.is_none() || command == VERSION {
                        drop(client);
                        client = f.ready();
                    }
                }
            }
        }
    }
    assert!(refused > 3000, "{refused}");
    drop(client);
    f.wait_free();
    until("descriptors are back", || fds_of(&file) == 1);
    f.assert_alive();
}

#[test]
fn a_message_in_pieces_is_one_and_regions_do_not_overlap() {
    let f = Fixture::new();
    let mut client = f.ready();
    let memory = memfd(1 << 20);
    let map = message(77, DMA_MAP, 0, &dma_map(0, 0x10_0000, 1 << 20));
    for (i, byte) in map.iter().enumerate() {
        let fds = if i == 0 { vec![memory.as_raw_fd()] } else { Vec::new() };
        client.bytes(&[*byte], &fds).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    assert_eq!(client.reply().unwrap().error, 0);
    let fd = memory.as_raw_fd();
    for (address, size) in
        [(0x10_0000, 1 << 20), (0xf_f000, 8192), (0x1f_f000, 8192), (0x18_0000, 4096)]
    {
        assert_eq!(client.map(0, address, size, fd), Some(EEXIST));
        assert_eq!(client.ask(DMA_MAP, &dma_map(0, address, size), &[]), Some(EEXIST));
    }
    assert_eq!(client.ask(DMA_MAP, &dma_map(0, 0, 1 << 40), &[]), Some(EEXIST));
    // Whole, or not at all.
    for (address, size) in [(0x10_0000, 1 << 19), (0x18_0000, 1 << 19), (0, 0x18_0000), (0, 0)] {
        assert_eq!(client.unmap(address, size), Some(ENOENT));
    }
    assert_eq!(client.unmap(0x10_0000, 1 << 20), Some(0));
    assert_eq!(client.unmap(0x10_0000, 1 << 20), Some(ENOENT));
    assert_eq!(fds_of(&memory), 1);
}

#[test]
fn one_vmm_at_a_time() {
    let f = Fixture::new();
    let mut first = f.ready();
    for _ in 0..20 {
        assert!(f.connect().is_closed(), "turned away");
    }
    assert_eq!(first.config16(0), 0x8086, "the first does not notice");
}

#[test]
fn descriptors_of_half_a_header_and_too_many_are_closed() {
    let f = Fixture::new();
    let file = memfd(4096);
    for round in 0..50 {
        f.wait_free();
        let client = f.connect();
        let fds = vec![file.as_raw_fd(); 1 + round % 32];
        // Turned away if the one before has not been seen yet: its descriptors must come back all
        // the same.
        let _ = client.bytes(&[1, 0, 2][..1 + round % 3], &fds);
        drop(client);
    }
    f.wait_free();
    until("descriptors are back", || fds_of(&file) == 1);
    for count in [33, 64, 253] {
        let mut client = f.ready();
        let fds = vec![file.as_raw_fd(); count];
        let map = message(1, DMA_MAP, 0, &dma_map(0, 0, 4096));
        client.sock.send_with_fds(&[&map[..]], &fds).unwrap();
        assert!(client.is_closed(), "{count} descriptors");
        f.wait_free();
        until("descriptors are back", || fds_of(&file) == 1);
    }
    f.assert_alive();
}

#[test]
fn a_file_shorter_than_its_region_is_refused() {
    let f = Fixture::new();
    let mut client = f.ready();
    let memory = memfd(1 << 20);
    let fd = memory.as_raw_fd();
    for (offset, address, size) in [
        (0, 0, 2 << 20),
        (4096, 0, 1 << 20),
        (1 << 20, 0, 4096),
        (u64::MAX - 4095, 0, 4096),
        (1 << 62, 0, 4096),
        (0, 0, 0),
        (0, u64::MAX - 4095, 4096),
        (0, 4096, u64::MAX - 4095),
        (0, 0, 1 << 63),
        (1, 0, 4096),
        (0, 1, 4096),
        (0, 0, 4095),
    ] {
        let error = client.map(offset, address, size, fd);
        assert!(matches!(error, Some(EINVAL | 12)), "{offset:#x} {address:#x} {size:#x} {error:?}");
    }
    assert_eq!(client.map(0, 0, 1 << 20, fd), Some(0));
    for file in ["/dev/null", "/proc/self/maps", "/"] {
        let other = std::fs::File::open(file).unwrap();
        assert_eq!(client.map(0, 1 << 30, 4096, other.as_raw_fd()), Some(EINVAL), "{file}");
    }
    assert_eq!(f.detail("memory"), "1 MiB in 1 region", "what was refused changed nothing");
}

#[test]
fn version_of_every_shape() {
    let f = Fixture::new();
    let closed = |bytes: &[u8]| {
        f.wait_free();
        let mut client = f.connect();
        client.bytes(bytes, &[]).unwrap();
        client.sock.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(client.is_closed());
    };
    for size in [0usize, 1, 3] {
        closed(&message(1, VERSION, 0, &vec![0; size]));
    }
    closed(&message(1, VERSION, 0, &[1, 0, 0, 0]));
    closed(&message(1, VERSION, NO_REPLY, &[0, 0, 0, 0]));
    closed(&message(1, VERSION, 0, &[0xff; 4112]));
    // Another command first.
    closed(&message(1, READ, 0, &access(7, 0, 4, &[])));
    closed(&message(1, DMA_MAP, 0, &dma_map(0, 0, 4096)));
    let mut twice = f.ready();
    assert_eq!(twice.ask(VERSION, &[0, 0, 1, 0], &[]), Some(EINVAL));
    assert!(twice.is_closed());
    // A read as long as it can be said: nothing is set aside for it.
    let mut client = f.ready();
    let before = rss_kib();
    assert_eq!(client.ask(READ, &access(0, 0, u32::MAX, &[]), &[]), Some(EINVAL));
    assert!(rss_kib() < before + (64 << 10));
    f.wait_free_after(client);
    f.assert_alive();
}

impl Fixture {
    fn wait_free_after(&self, client: Raw) {
        drop(client);
        self.wait_free();
    }
}

#[test]
fn the_number_behind_the_last_is_refused() {
    let f = Fixture::new();
    let mut client = f.ready();
    let info = |argsz: u32, index: u32| {
        let mut body = halves(&[argsz, 0, index, 0]);
        body.extend([0; 16]);
        body
    };
    for index in [9, 10, 255, 256, u32::MAX] {
        assert_eq!(client.ask(REGION_INFO, &info(32, index), &[]), Some(EINVAL));
        assert_eq!(client.ask(IO_FDS, &halves(&[16, 0, index, 0]), &[]), Some(EINVAL));
        assert_eq!(client.ask(READ, &access(index, 0, 1, &[]), &[]), Some(EINVAL));
    }
    for index in [3, 4, 5, u32::MAX] {
        assert_eq!(client.ask(IRQ_INFO, &halves(&[16, 0, index, 0]), &[]), Some(EINVAL));
    }
    for index in [2u32, 3, 4, 5, 6, 8] {
        assert_eq!(client.ask(READ, &access(index, 0, 1, &[]), &[]), Some(EINVAL), "empty");
    }
    for argsz in [0, 1, 15, 31] {
        assert_eq!(client.ask(REGION_INFO, &info(argsz, 0), &[]), Some(EINVAL));
        assert_eq!(client.ask(GET_INFO, &halves(&[argsz.min(15), 0, 0, 0]), &[]), Some(EINVAL));
        assert_eq!(client.ask(IRQ_INFO, &halves(&[argsz.min(15), 0, 0, 0]), &[]), Some(EINVAL));
    }
}

#[test]
fn no_reply_is_longer_than_its_asker_said() {
    let f = Fixture::mapped();
    let mut client = f.ready();
    for argsz in [32u32, 33, 63, 64, 65, u32::MAX] {
        let mut body = halves(&[argsz, 0, 0, 0]);
        body.extend([0; 16]);
        let reply = client.call(REGION_INFO, &body, &[]).unwrap();
        assert!(reply.body.len() <= argsz as usize);
        assert_eq!(reply.word(0), 64, "what a full reply takes");
    }
    // QEMU takes a reply to VERSION that is as long as its own.
    f.wait_free_after(client);
    let mut qemu = f.connect();
    let mut body = vec![0; 4];
    body.extend(
        br#"{"capabilities": {"pgsizes": 4096, "max_msg_fds": 16, "max_dma_maps": 65535,
         "max_data_xfer_size": 1048576, "migration": {"max_bitmap_size": 268435456,
         "pgsize": 4096}, "write_multiple": true}}"#,
    );
    body.push(0);
    let reply = qemu.call(VERSION, &body, &[]).unwrap();
    assert!(reply.error == 0 && reply.body.len() <= body.len());
    assert_eq!((&reply.body[..4], reply.body.last()), (&[0; 4][..], Some(&0)), "0.0, as asked");
}

#[test]
fn a_doorbell_that_is_no_eventfd_is_refused_and_a_blocking_one_made_nonblocking() {
    let f = Fixture::new();
    let mut client = f.ready();
    let (pipe, other) = std::io::pipe().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let socket = UnixStream::pair().unwrap();
    let fds = [pipe.as_raw_fd(), other.as_raw_fd(), null.as_raw_fd(), socket.0.as_raw_fd()];
    for fd in fds {
        for flags in [EVENTFD | TRIGGER, EVENTFD | UNMASK] {
            assert_eq!(client.set_irqs(flags, INTX, 1, &[fd]), Some(EINVAL));
        }
        assert_eq!(client.set_irqs(EVENTFD | TRIGGER, MSI, 1, &[fd]), Some(EINVAL));
    }
    let line = eventfd();
    clear_nonblocking(&line);
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(&line)]), Some(0));
    (&line).write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
    // It is full, and blocking again: this port's own thread is not to hang in it.
    clear_nonblocking(&line);
    // Who hangs does not answer.
    assert_eq!(client.set_irqs(NONE | TRIGGER, INTX, 1, &[]), Some(0));
}

#[test]
fn more_regions_than_agreed_are_refused() {
    let f = Fixture::new();
    let mut client = f.ready();
    let memory = memfd(1 << 20);
    for i in 0..64 {
        assert_eq!(client.map(0, i << 20, 4096, memory.as_raw_fd()), Some(0), "{i}");
    }
    assert_eq!(client.map(0, 64 << 20, 4096, memory.as_raw_fd()), Some(ENOSPC));
    for i in 0..256u64 {
        assert_eq!(client.ask(DMA_MAP, &dma_map(0, (100 + i) << 20, 4096), &[]), Some(0), "{i}");
    }
    assert_eq!(client.ask(DMA_MAP, &dma_map(0, 1 << 40, 4096), &[]), Some(ENOSPC));
    assert_eq!(client.unmap(0, 4096), Some(0));
    assert_eq!(client.map(0, 64 << 20, 4096, memory.as_raw_fd()), Some(0));
    assert_eq!(client.ask(DMA_UNMAP, &dma_unmap(2, 0, 4096), &[]), Some(ENOENT));
    assert_eq!(client.ask(DMA_UNMAP, &dma_unmap(2, 0, 0), &[]), Some(0), "all");
    assert_eq!((f.detail("memory"), fds_of(&memory)), ("0 MiB in 0 regions".to_owned(), 1));
    // A range takes all that lies in it, and cuts nothing.
    for at in [0, 4096, 1 << 20] {
        assert_eq!(client.map(0, at, 4096, memory.as_raw_fd()), Some(0));
    }
    assert_eq!(client.ask(DMA_MAP, &dma_map(0, 1 << 16, 4096), &[]), Some(0));
    assert_eq!(client.unmap(1 << 19, 4096), Some(ENOENT), "nothing there");
    assert_eq!(client.unmap(0, 1 << 17), Some(0), "two and one out of reach");
    assert_eq!(f.detail("memory"), "4 KiB in 1 region");
    assert_eq!(client.map(0, 1 << 30, 1 << 20, memory.as_raw_fd()), Some(0));
    assert_eq!(client.unmap(0, (1 << 30) + 4096), Some(ENOENT), "cut");
    assert_eq!(f.detail("memory"), "1 MiB in 2 regions");
    assert_eq!(client.unmap(0, 1 << 40), Some(0));
    // What the device may not write is out of its reach.
    let mut body = halves(&[32, 1]);
    body.extend(words(&[0, 0, 1 << 20]));
    assert_eq!(client.ask(DMA_MAP, &body, &[memory.as_raw_fd()]), Some(0));
    assert_eq!(f.detail("memory"), "0 MiB in 0 regions, 1 MiB more not shared");
}

#[test]
fn headers_that_contradict_themselves_end_the_connection() {
    let f = Fixture::new();
    for (size, flags) in
        [(0u32, 0u32), (15, 0), (16 + 4809, 0), (u32::MAX, 0), (16, 1), (16, 2), (16, 0xf)]
    {
        let mut client = f.ready();
        let mut bytes = vec![1, 0, 13, 0];
        bytes.extend(halves(&[size, flags, 0]));
        client.bytes(&bytes, &[]).unwrap();
        assert!(client.is_closed(), "size {size} flags {flags:#x}");
    }
    assert_eq!(f.faults(), 7);
    // Flags and an error number that mean nothing in a command.
    let mut client = f.ready();
    let mut bytes = vec![1, 0, 13, 0];
    bytes.extend(halves(&[16, 0xffff_ff20, 99]));
    client.bytes(&bytes, &[]).unwrap();
    assert_eq!(client.reply().unwrap().error, 0);
    f.wait_free_after(client);
    f.assert_alive();
}

#[test]
fn a_message_that_does_not_end_has_a_deadline() {
    let fixtures: Vec<_> = (0..6).map(|_| Fixture::new()).collect();
    let file = memfd(1 << 20);
    let mut clients: Vec<_> = fixtures.iter().map(Fixture::ready).collect();
    // Nothing more, a header without a body, and bytes that dribble in one by one.
    let map = message(1, DMA_MAP, 0, &dma_map(0, 0, 1 << 20));
    clients[0].bytes(&map[..1], &[file.as_raw_fd()]).unwrap();
    clients[1].bytes(&map[..16], &[file.as_raw_fd()]).unwrap();
    clients[2].bytes(&map[..47], &[file.as_raw_fd()]).unwrap();
    let start = Instant::now();
    for at in 0.. {
        if clients[3].bytes(&map[at % 16..=at % 16], &[]).is_err() || at == 15 {
            break;
        }
        std::thread::sleep(Duration::from_millis(330));
    }
    for client in &mut clients[..4] {
        assert!(client.is_closed());
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(4), "{took:?}");
    assert_eq!(clients[4].config16(0), 0x8086, "others do not notice");
    assert_eq!(clients[5].config16(0), 0x8086);
    until("descriptors are back", || fds_of(&file) == 1);
    fixtures.iter().take(4).for_each(Fixture::assert_alive);
}

#[test]
fn a_client_that_never_reads_is_dropped_in_time() {
    let f = Fixture::new();
    let client = f.ready();
    let bytes = message(1, READ, 0, &access(0, 0, 4096, &[])).repeat(64);
    client.sock.set_nonblocking(true).unwrap();
    let start = Instant::now();
    let mut out = &client.sock;
    while start.elapsed() < PATIENCE {
        match out.write(&bytes) {
            Err(e) if e.kind() != std::io::ErrorKind::WouldBlock => break,
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    assert!(start.elapsed() < PATIENCE);
    f.assert_alive();
}

#[test]
fn a_client_that_goes_before_its_replies_costs_nobody_a_signal() {
    let f = Fixture::new();
    for _ in 0..50 {
        let client = f.ready();
        let bytes = message(1, READ, 0, &access(0, 0, 256, &[])).repeat(200);
        let _ = client.bytes(&bytes, &[]);
        drop(client);
    }
    f.assert_alive();
    assert_eq!(f.faults(), 0, "going is no fault");
}

#[test]
fn a_storm_of_masks_and_unmasks_is_only_work() {
    let f = Fixture::new();
    let mut client = f.ready();
    client.enable();
    let (line, unmask) = (eventfd(), eventfd());
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(&line)]), Some(0));
    client.set(e1000::IMS, 4);
    client.set(e1000::ICS, 4);
    for i in 0..2000 {
        let flags = [NONE | MASK, NONE | UNMASK, EVENTFD | UNMASK][i % 3];
        let fds = [raw(&unmask)];
        let fds = if flags & EVENTFD == 0 { &[][..] } else { &fds[..] };
        assert_eq!(client.set_irqs(flags, INTX, 1, fds), Some(0));
        (&unmask).write_all(&1u64.to_ne_bytes()).unwrap();
    }
    assert!(count(&line) > 600);
    client.get(e1000::ICR);
    f.wait_free_after(client);
    f.assert_alive();
}

#[test]
fn close_ends_a_connection_at_any_moment() {
    let mut f = Fixture::new();
    let mut client = f.ready();
    client.bytes(&[8, 0, 0], &[]).unwrap();
    f.door.close();
    f.door.close();
    assert!(client.is_closed());
    assert!(!f.door.port().is_up() && !f.path().exists());
}
