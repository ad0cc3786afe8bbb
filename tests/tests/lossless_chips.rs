//! Nothing is lost, doubled or reordered between two chips, however often everybody falls asleep:
//! millions of numbered frames through the program, with random pauses of sender and receiver.
//! Nobody polls but the switch where doorbells are mapped: a wake-up that gets lost shows as a
//! sleep that nothing ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vmlan_driver::chip::{Chip, Offload};
use vmlan_driver::e1000::{Intel, Intel82574};
use vmlan_driver::realtek::{Gigabit, Plus, Rings};
use vmlan_driver::rtl8139::Classic;
use vmlan_driver::vmxnet3::Vmware;
use vmlan_driver::wait::Interest;
use vmlan_tests::chip_guest::ChipGuest;
use vmlan_tests::exchange::TestGuest;
use vmlan_tests::numbered::{STALL, mac, watch_over};
use vmlan_tests::random::Random;
use vmlan_tests::sleep_together::Sleeper;
use vmlan_tests::usage::threads;
use vmlan_tests::{Result, Switch};
use vmlan_transport::vfio_user::VfioBus;
use vmlan_transport::{Model, Wake};

const FRAME: usize = 60;
const NUMBER: usize = 14;

/// Sleeps on the interrupt. Longer than anybody pauses means that a wake-up was lost.
fn sleep<C: Chip>(guest: &mut ChipGuest<C, VfioBus>, interest: Interest, who: &str, at: u64) {
    match guest.wait(interest, STALL) {
        Wake::Ready => {}
        end => panic!("{who} at frame {at}: {end:?} instead of a wake-up"),
    }
}

/// Until the `end` that depends on how many frames were sent, and how often it slept for that;
/// returns both. `own` and `other`: what this guest and its peer are doing.
fn send_all<C: Chip>(
    guest: &mut ChipGuest<C, VfioBus>,
    to: u8,
    [own, other]: [&Sleeper; 2],
    end: &dyn Fn(u64, u64) -> bool,
) -> (u64, u64) {
    let (mut random, mut sleeps, mut n, mut stuck) = (Random(0x1234_5678), 0, 0, None);
    let mut bytes = [0; FRAME];
    bytes[..6].copy_from_slice(&mac(to, 0));
    bytes[6..12].copy_from_slice(&mac(guest.id, 0));
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    let mut next = random.stretch();
    while !end(n, sleeps) {
        bytes[NUMBER..NUMBER + 8].copy_from_slice(&n.to_le_bytes());
        bytes[NUMBER + 8..NUMBER + 16].copy_from_slice(&(!n).to_le_bytes());
        if guest.send(Offload::default(), &bytes) {
            (n, stuck) = (n + 1, None);
        } else {
            guest.flush();
            sleeps += 1;
            own.sleep(|| sleep(guest, Interest { rx: false, tx: true }, "the sender", n));
            // Woken again and again, for nothing, is no better.
            let since = *stuck.get_or_insert_with(Instant::now);
            assert!(since.elapsed() < STALL, "the sender gets no slot for frame {n}");
        }
        if n >= next {
            guest.flush();
            own.sometimes_wait_for(other, &mut random);
            random.pause();
            next = n + random.stretch();
        } else if n % 64 == 0 {
            guest.flush();
        }
    }
    guest.flush();
    own.done();
    (n, sleeps)
}

/// Until as many frames came as `sent` says, once it says so. Counts how often it slept.
fn receive_all<C: Chip>(
    guest: &mut ChipGuest<C, VfioBus>,
    (own, other): (&Sleeper, Option<&Sleeper>),
    sleeps: &AtomicU64,
    frames: &AtomicU64,
    sent: &dyn Fn() -> Option<u64>,
) -> u64 {
    let (mut random, mut n) = (Random(0x8765_4321), 0);
    let mut next = random.stretch();
    let address = mac(guest.id, 0);
    let mut last = Instant::now();
    while sent().is_none_or(|all| n < all) {
        let mut got = 0;
        guest.receive(|_, bytes| {
            if bytes[..6] != address {
                return;
            }
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let (number, check) = (word(NUMBER), word(NUMBER + 8));
            assert_eq!((number, check, bytes.len()), (n, !n, FRAME), "frame {n} is the next");
            (n, got) = (n + 1, got + 1);
        });
        if got > 0 {
            last = Instant::now();
            frames.store(n, Ordering::Relaxed);
        }
        if n >= next {
            if let Some(other) = other {
                own.sometimes_wait_for(other, &mut random);
            }
            random.pause();
            next = n + random.stretch();
        } else if got == 0 {
            sleeps.fetch_add(1, Ordering::Relaxed);
            // The sender may be done, and this one does not know yet.
            let nap = Duration::from_millis(200);
            let wake = own.sleep(|| guest.wait(Interest { rx: true, tx: false }, nap));
            assert!(last.elapsed() < STALL, "frame {n} does not come: {wake:?}");
            assert_eq!(guest.nic.interrupt_stats().missed, 0, "frame {n} came without interrupt");
        }
    }
    n
}

/// How long a busy machine may take for what it would do in less.
const LONGEST: Duration = Duration::from_secs(600);

/// Whether the sender fills its ring: one that waits for each doorbell does not.
fn fills(keys: &str) -> bool {
    keys.contains("batch")
}

/// Whether so many frames, and sleeps of sender and receiver, show anything.
fn enough<C: Chip>(keys: &str, count: u64, slept: u64, naps: u64) -> bool {
    let least = if C::MODEL == Model::Rtl8139Classic { 2000 } else { 20_000 };
    count > least && (slept > 10 || !fills(keys)) && naps > 10
}

/// One run through a switch of its own, for `time`, and until it shows something.
fn run<C: Chip>(name: &str, port: &str, keys: &str, workers: &str, time: Duration) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = |n: &str| dir.path().join(format!("{n}.sock"));
    let mut words = ["--full-wait", "10000000", "--workers", workers].map(str::to_owned).to_vec();
    words.extend(["a", "b"].map(|n| format!("{n}=vfio-user:{},{port}", path(n).display())));
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut a = ChipGuest::<C, _>::connect(&path("a"), 1, keys);
    let mut b = ChipGuest::<C, _>::connect(&path("b"), 2, keys);
    b.introduce();
    let (begin, all, naps) = (Instant::now(), std::sync::OnceLock::new(), AtomicU64::new(0));
    let (frames, pids) = (Arc::new(AtomicU64::new(0)), [switch.pid(), std::process::id()]);
    let _watched = watch_over(Arc::clone(&frames), move || pids.map(threads).concat());
    let shows = |n, slept| enough::<C>(keys, n, slept, naps.load(Ordering::Relaxed));
    let over = |n, slept| {
        let so_far = begin.elapsed();
        so_far > LONGEST || so_far > time && shows(n, slept)
    };
    let (of_a, of_b) = (Sleeper::default(), Sleeper::default());
    let watches = (&of_b, fills(keys).then_some(&of_a));
    let (slept, got) = std::thread::scope(|scope| {
        let (a, all, over, pair) = (&mut a, &all, &over, [&of_a, &of_b]);
        let sender = scope.spawn(move || {
            let (n, sleeps) = send_all(a, 2, pair, over);
            all.set(n).expect("once");
            sleeps
        });
        let received = receive_all(&mut b, watches, &naps, &frames, &|| all.get().copied());
        (sender.join().expect("the sender"), received)
    });
    let count = *all.get().expect("the sender is done");
    assert_eq!(got, count);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(b.receive(|_, _| {}), 0, "no frame comes twice");
    a.assert_sound();
    b.assert_sound();
    let port = switch.port("b")?;
    assert_eq!(port["drops"].as_object().map(serde_json::Map::len), Some(0), "{port}");
    println!(
        "{name}: {count} frames in {:.1?}, sender slept {slept} times, receiver {naps:?} times",
        begin.elapsed()
    );
    // A run in which nobody slept has shown nothing.
    assert!(shows(count, slept), "too few frames or sleeps");
    switch.alive()
}

const SHORT: Duration = Duration::from_secs(4);

#[test]
fn mapped_doorbells_lose_nothing() -> Result<()> {
    run::<Intel>("mapped", "doorbell=mapped", ",doorbell=mapped,batch", "1", SHORT)?;
    run::<Intel>("mapped, plain", "doorbell=mapped", ",doorbell=mapped,size=64", "2", SHORT)
}

#[test]
fn trapped_doorbells_lose_nothing() -> Result<()> {
    run::<Intel>("waited", "doorbell=trapped", "", "1", SHORT)?;
    run::<Intel>("posted", "doorbell=trapped", ",writes=posted,batch,irq=msi", "2", SHORT)
}

#[test]
fn moderation_loses_nothing() -> Result<()> {
    let keys = ",doorbell=mapped,batch,itr=400,rdtr=30,radv=60,tidv=30,tadv=60";
    run::<Intel>("moderated", "doorbell=mapped,irq_rate_max=5000", keys, "1", SHORT)
}

const SHORTER: Duration = Duration::from_millis(1500);

#[test]
fn realtek_chips_lose_nothing() -> Result<()> {
    let csb = "model=r8169,csb=on";
    run::<Rings<Gigabit>>("r8169, CSB", csb, ",csb,batch", "2", SHORTER)?;
    let posted = ",writes=posted,batch,irq=msi,size=64";
    run::<Rings<Gigabit>>("r8169, posted", "model=r8169", posted, "2", SHORTER)?;
    run::<Rings<Gigabit>>(
        "r8169, moderated",
        "model=r8169",
        ",batch,mitigate=0x3131",
        "1",
        SHORTER,
    )?;
    run::<Rings<Plus>>("rtl8139, posted", "model=rtl8139", ",writes=posted,batch", "1", SHORTER)?;
    run::<Rings<Plus>>("rtl8139, CSB", "model=rtl8139,csb=on", ",csb,batch", "1", SHORTER)?;
    run::<Classic>("rtl8139, classic", "model=rtl8139,plus=off", ",buffer=8192", "2", SHORTER)
}

/// With the fence that Linux's driver lacks, and without.
#[test]
fn vmxnet3_loses_nothing() -> Result<()> {
    run::<Vmware>("vmxnet3", "model=vmxnet3", ",batch", "2", SHORTER)?;
    let plain = ",fence=off,writes=posted,batch,size=64";
    run::<Vmware>("vmxnet3, no fence", "model=vmxnet3", plain, "1", SHORTER)?;
    let level = ",irq=intx,fence=off,batch";
    run::<Vmware>("vmxnet3, INTx", "model=vmxnet3", level, "2", SHORTER)?;
    let mapped = ",doorbell=mapped,batch,size=64";
    run::<Vmware>("vmxnet3, mapped", "model=vmxnet3,doorbell=mapped", mapped, "1", SHORTER)
}

#[test]
fn e1000e_loses_nothing() -> Result<()> {
    run::<Intel82574>("e1000e", "model=e1000e", ",batch", "2", SHORTER)?;
    let mapped = ",doorbell=mapped,batch,itr=200,rdtr=30,radv=60,tidv=30,tadv=60";
    run::<Intel82574>("e1000e, mapped", "model=e1000e,doorbell=mapped", mapped, "1", SHORTER)?;
    let level = ",irq=intx,writes=posted,batch,size=64";
    run::<Intel82574>("e1000e, INTx", "model=e1000e", level, "2", SHORTER)
}
