//! Unit tests of the map and its doors.
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::MemfdFlags;

use super::*;

mod proofs;

fn memfd(len: u64, flags: MemfdFlags) -> std::fs::File {
    let f = std::fs::File::from(rustix::fs::memfd_create("t", flags).unwrap());
    f.set_len(len).unwrap();
    f
}

fn map(pairs: &[(u64, u64)]) -> Arc<Map> {
    let regions = pairs
        .iter()
        .map(|(gpa, size)| {
            let f = memfd(*size, MemfdFlags::CLOEXEC);
            let m = Arc::new(Mapping::new(f.as_fd(), 0, *size).unwrap());
            Region::new(*gpa, *size, gpa + 0x7000_0000_0000, 0, m).unwrap()
        })
        .collect();
    Arc::new(Map::new(regions, None).unwrap())
}

#[test]
fn slices_never_leave_their_region() {
    let m = map(&[(0x1000, 0x1000), (0x2000, 0x1000), (0x10000, 0x1000)]);
    assert_eq!(m.slice(0x1000, 0x1000).unwrap().len(), 0x1000);
    assert!(m.slice(0x1001, 0x1000).is_none(), "adjacent regions are not adjacent here");
    assert_eq!(m.first_run(0x1f00, 0x200).unwrap().len(), 0x100);
    assert!(m.slice(0x3000, 1).is_none());
    assert!(m.slice(u64::MAX, 1).is_none());
    assert!(m.slice(0x1000, usize::MAX).is_none());
    assert!(m.slice(0x10fff, 1).is_some());
    assert_eq!(m.gpa_of(0x7000_0000_2004), Some(0x2004));
    assert_eq!(m.gpa_of(0x2004), None);
}

#[test]
fn a_short_file_is_refused() {
    let f = memfd(4096, MemfdFlags::CLOEXEC);
    assert!(matches!(Mapping::new(f.as_fd(), 0, 8192), Err(MapError::ShortFile { .. })));
    assert!(matches!(Mapping::new(f.as_fd(), u64::MAX, 1), Err(MapError::BadSize { .. })));
    assert!(matches!(Mapping::new(f.as_fd(), 0, 0), Err(MapError::BadSize { .. })));
}

#[test]
fn overlapping_regions_are_refused() {
    let f = memfd(8192, MemfdFlags::CLOEXEC);
    let m = Arc::new(Mapping::new(f.as_fd(), 0, 8192).unwrap());
    let r = |gpa| Region::new(gpa, 8192, gpa, 0, m.clone()).unwrap();
    assert!(matches!(Map::new(vec![r(0), r(4096)], None), Err(MapError::Overlap(4096))));
    assert!(Region::new(0, 8193, 0, 0, m.clone()).is_err());
    assert!(Region::new(u64::MAX - 10, 4096, 0, 0, m).is_err());
}

#[test]
fn copies_of_every_length_agree() {
    let src: Vec<u8> = (0..=255).collect();
    for n in 0..=200 {
        let mut dst = vec![0xee; 256];
        assert_eq!(Slice::from_bytes(&src[..n]).read(&mut dst), n);
        assert_eq!(dst[..n], src[..n]);
        assert!(dst[n..].iter().all(|b| *b == 0xee), "length {n} wrote too far");
        let mut dst = vec![0xee; 256];
        assert_eq!(SliceMut::from_bytes(&mut dst).write(3, &src[..n]), n);
        assert_eq!(dst[3..3 + n], src[..n]);
        assert!(dst[3 + n..].iter().all(|b| *b == 0xee));
        let mut dst = vec![0xee; 256];
        // SAFETY: both have n bytes.
        unsafe { copy::copy_by_bytes(src.as_ptr(), dst.as_mut_ptr(), n) };
        assert_eq!((&dst[..n], dst[n]), (&src[..n], 0xee));
    }
}

/// A hostile guest may map one file twice, so that a frame is copied onto itself.
#[test]
fn overlapping_copies_stay_inside() {
    let m = map(&[(0, 4096)]);
    let bytes: Vec<u8> = (0..=255).collect();
    for n in [8, 16, 17, 60, 128, 129, 200] {
        m.slice_mut(0, 256).unwrap().write(0, &bytes);
        m.slice_mut(5, 251).unwrap().write_from(0, m.slice(0, n).unwrap());
        let mut after = [0; 256];
        m.slice(0, 256).unwrap().read(&mut after);
        assert_eq!((&after[..5], &after[5 + n..]), (&bytes[..5], &bytes[5 + n..]));
        assert_eq!(after[5..5 + n], bytes[..n]);
    }
}

#[test]
fn windows_check_bounds_and_alignment() {
    let m = map(&[(0, 4096)]);
    let w = m.window(0x100, 64, 16).unwrap();
    w.set_u16(2, 0xbeef, Ordering::Release);
    assert_eq!(w.u32(0, Ordering::Acquire), 0xbeef_0000);
    w.set_u64(60, u64::MAX, Ordering::Relaxed);
    assert_eq!(w.u64(60, Ordering::Relaxed), 0);
    assert_eq!(w.u16(usize::MAX, Ordering::Relaxed), 0);
    w.set_u64(48, 7, Ordering::Relaxed);
    w.set_u64(56, 9, Ordering::Relaxed);
    assert_eq!(w.descriptor(48), (7, 9));
    assert_eq!([w.descriptor(52), w.descriptor(56), w.descriptor(usize::MAX)], [(0, 0); 3]);
    assert!(m.window(0x101, 64, 16).is_none());
    assert!(m.window(4090, 64, 2).is_none());
}

#[test]
fn records_are_counted_up_to_the_first_that_fails() {
    let m = map(&[(0, 4096)]);
    let w = m.window(0x100, 64, 16).unwrap();
    (0..4).for_each(|i| w.set_u32(16 * i, 5, Ordering::Relaxed));
    let fives = |off, n| w.leading::<16>(off, n, |word| word == 5);
    assert_eq!([fives(0, 4), fives(16, 3), fives(16, 2), fives(0, 0)], [4, 3, 2, 0]);
    assert_eq!([fives(16, 4), fives(2, 1), fives(usize::MAX, 1), fives(0, usize::MAX)], [0; 4]);
    w.set_u32(32, 6, Ordering::Relaxed);
    assert_eq!([fives(0, 4), fives(32, 2), fives(48, 1)], [2, 0, 1]);
}

#[test]
fn a_sealable_file_is_sealed() {
    let f = memfd(8192, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let _m = Mapping::new(f.as_fd(), 0, 8192).unwrap();
    assert!(f.set_len(0).is_err(), "nobody can shrink it any more");
}

#[test]
fn a_truncated_file_gives_zeros_and_poisons_its_map_only() {
    sigbus::install().unwrap();
    let mut f = memfd(8192, MemfdFlags::CLOEXEC);
    f.write_all(&[7; 8192]).unwrap();
    let mapping = Arc::new(Mapping::new(f.as_fd(), 0, 8192).unwrap());
    let m = Map::new(vec![Region::new(0, 8192, 0, 0, mapping).unwrap()], None).unwrap();
    let other = map(&[(0, 4096)]);
    assert_eq!(m.slice(0, 4).unwrap().read_array::<4>(), Some([7; 4]));
    f.set_len(0).unwrap();
    assert_eq!(m.slice(4096, 4).unwrap().read_array::<4>(), Some([0; 4]));
    m.slice_mut(0, 8).unwrap().write(0, &[1; 8]);
    assert!(m.poisoned());
    assert!(!other.poisoned());
}

/// A file of huge pages, asked for by less than one, is mapped by whole ones: whoever goes by the
/// length asked for can neither replace nor unmap it. No huge page need exist for this.
#[test]
fn part_of_a_huge_page_is_mapped_guarded_and_unmapped_whole() {
    sigbus::install().unwrap();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(fd) = rustix::fs::memfd_create("t", flags) else {
        eprintln!("not tested: this kernel has no huge pages");
        return;
    };
    let f = std::fs::File::from(fd);
    assert!(matches!(Mapping::new(f.as_fd(), 0, 4096), Err(MapError::ShortFile { .. })));
    f.set_len(2 << 20).unwrap();
    let mapping = Arc::new(Mapping::new(f.as_fd(), 0, 4096).unwrap());
    assert_eq!(mapping.len(), 2 << 20);
    let region = Region::new(0, 4096, 0, 0, mapping.clone()).unwrap();
    let m = Map::new(vec![region], None).unwrap();
    let start = m.slice(0, 1).unwrap().as_raw().0.addr();
    f.set_len(0).unwrap();
    assert_eq!(m.slice(0, 4).unwrap().read_array::<4>(), Some([0; 4]));
    assert!(m.poisoned());
    drop((m, mapping));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(&format!("{start:x}-")), "unmapped whole");
}

/// The length of the file changes all the time: what is mapped must not depend on it.
#[test]
fn a_length_that_changes_meanwhile_never_makes_a_mapping_shorter() {
    sigbus::install().unwrap();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(fd) = rustix::fs::memfd_create("t", flags) else { return };
    let f = std::fs::File::from(fd);
    let (mut mapped, mut wrong) = (0, 0);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                f.set_len(2 << 20).unwrap();
                f.set_len(0).unwrap();
            }
        });
        while mapped < 100 && wrong == 0 {
            let Ok(mapping) = Mapping::new(f.as_fd(), 0, 4096) else { continue };
            // A failed assertion here would leave the other thread running.
            wrong += usize::from(mapping.len() != 2 << 20);
            mapped += 1;
            let region = Region::new(0, 4096, 0, 0, Arc::new(mapping)).unwrap();
            let m = Map::new(vec![region], None).unwrap();
            wrong += usize::from(m.slice(0, 4).unwrap().read_array::<4>() != Some([0; 4]));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong, 0, "a mapping shorter than a page, or one without zeros");
}

/// A private mapping is charged against the commit limit, and with `vm.overcommit_memory=2` can be
/// refused just when it is needed. A shared one is not.
#[test]
fn what_replaces_a_shrunk_file_needs_no_commit_charge() {
    sigbus::install().unwrap();
    let len = 1 << 30;
    let f = memfd(len, MemfdFlags::CLOEXEC);
    let mapping = Arc::new(Mapping::new(f.as_fd(), 0, len).unwrap());
    let m = Map::new(vec![Region::new(0, len, 0, 0, mapping).unwrap()], None).unwrap();
    let start = m.slice(0, 1).unwrap().as_raw().0.addr();
    f.set_len(0).unwrap();
    assert_eq!(m.slice(len - 4, 4).unwrap().read_array::<4>(), Some([0; 4]));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let one = format!("{start:x}-{:x} rw-s ", start as u64 + len);
    assert!(maps.contains(&one), "one shared mapping in the place of one: {maps}");
}

const CHILD: &str = "VMLAN_TEST_CHILD";

/// Runs the test of that name in processes of its own, whose limits it may change: one for each
/// value that they find in [`CHILD`]. True if this is one of them.
fn is_child(name: &str, values: &[&str]) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    for value in values {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", &format!("tests::{name}")]).env(CHILD, value);
        let output = child.output().unwrap();
        assert!(output.status.success(), "{value}: {output:?}");
    }
    false
}

/// Each kind of access to a field. Those that write do nothing.
fn reads_zero(window: &Window) -> bool {
    for order in [Ordering::Relaxed, Ordering::Release] {
        window.set_u16(2, 7, order);
        window.set_u32(4, 7, order);
        window.set_u64(8, 7, order);
    }
    let order = Ordering::Acquire;
    [window.u16(2, order).into(), window.u32(4, order).into(), window.u64(8, order)] == [0; 3]
        && window.descriptor(0) == (0, 0)
        && !window.replace_u32(4, 0, 1)
        && window.leading::<16>(0, 9, |word| word == 0) == 9
}

/// Nothing can be put in the place of a file that shrank: no address space may be taken any more,
/// as when the process has all the mappings it may have. Each kind of access goes on all the same.
#[test]
fn where_nothing_can_be_mapped_accesses_go_on_without_their_memory() {
    if !is_child("where_nothing_can_be_mapped_accesses_go_on_without_their_memory", &["1"]) {
        return;
    }
    sigbus::install().unwrap();
    let len = 8 << 20;
    let f = memfd(len, MemfdFlags::CLOEXEC);
    let mapping = Arc::new(Mapping::new(f.as_fd(), 0, len).unwrap());
    let log = DirtyLog::new(mapping.clone(), 4096, 4096).unwrap();
    let m = Map::new(vec![Region::new(0, len, 0, 0, mapping).unwrap()], None).unwrap();
    let m = Arc::new(m);
    let (window, other) = (m.window(4096, 4096, 16).unwrap(), map(&[(0, len)]));
    let lengths: Vec<usize> = (1..300).chain([1514, 4096, 65_536, 1 << 20, 5 << 20]).collect();
    let mut wrong = Vec::with_capacity(100);
    let (mut buffer, full) = (vec![0xee; 6 << 20], vec![0xee; 6 << 20]);
    f.set_len(0).unwrap();
    let old = rustix::process::getrlimit(rustix::process::Resource::As);
    let limit = |current| {
        let limit = rustix::process::Rlimit { current, maximum: old.maximum };
        rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
    };
    limit(Some(0));
    for n in &lengths {
        let (n, at) = (*n, 3 * 4096 + 7);
        let slice = m.slice(at, n).unwrap();
        buffer[..=n].fill(0xee);
        slice.read(&mut buffer[..n]);
        if buffer[..n].iter().any(|b| *b != 0) || buffer[n] != 0xee {
            wrong.push(("a read", n));
        }
        other.slice_mut(0, n).unwrap().write(0, &full[..n]);
        other.slice_mut(0, n).unwrap().write_from(0, slice);
        if (0..n as u64).step_by(61).any(|i| other.slice(i, 1).unwrap().read_array() != Some([0])) {
            wrong.push(("a copy", n));
        }
        m.slice_mut(at, n).unwrap().write(0, &buffer[..n]);
        m.slice_mut(at, n).unwrap().write_from(0, other.slice(0, n).unwrap());
    }
    if !reads_zero(&window) {
        wrong.push(("a field", 0));
    }
    log.mark(0, 4096);
    if m.slice(9, 12).unwrap().read_array() != Some([0u8; 12]) {
        wrong.push(("an array", 12));
    }
    limit(old.current);
    assert_eq!(wrong, []);
    assert!(m.poisoned() && !other.poisoned());
    // What could not be had before can be had now.
    assert_eq!(m.slice(0, 4).unwrap().read_array::<4>(), Some([0; 4]));
    m.slice_mut(0, 4).unwrap().write(0, &[5; 4]);
    assert_eq!(m.slice(0, 4).unwrap().read_array::<4>(), Some([5; 4]));
}

#[test]
fn guest_memory_is_left_out_of_core_dumps_and_children() {
    let m = map(&[(0, 4096)]);
    let start = m.slice(0, 1).unwrap().as_raw().0.addr();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let own = smaps.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
    let flags = own.into_iter().find(|line| line.starts_with("VmFlags:")).unwrap();
    for wanted in ["dd", "dc"] {
        assert!(flags.split(' ').any(|flag| flag == wanted), "{wanted}: {flags}");
    }
}

#[test]
fn dirty_pages_are_marked() {
    let f = memfd(4096, MemfdFlags::CLOEXEC);
    let log = Arc::new(Mapping::new(f.as_fd(), 0, 4096).unwrap());
    let d = DirtyLog::new(log.clone(), 8, 2).unwrap();
    d.mark(4095, 2);
    d.mark(4096 * 15, 1);
    d.mark(4096 * 16, 1);
    d.mark(u64::MAX, 10);
    let region = Region::new(0, 4096, 0, 0, log).unwrap();
    let m = Map::new(vec![region], None).unwrap();
    assert_eq!(m.slice(8, 3).unwrap().read_array::<3>(), Some([0b11, 0x80, 0]));
    assert!(DirtyLog::new(m.regions()[0].mapping_for_test(), 4095, 2).is_none());
}

#[test]
fn recycled_vectors_keep_their_storage() {
    let bytes = [1u8; 4];
    let mut v = Vec::with_capacity(100);
    v.push(Slice::from_bytes(&bytes));
    let v: Vec<Slice<'static>> = recycle(v);
    assert!(v.is_empty() && v.capacity() == 100);
}

/// Sparse files cost a peer nothing, but all peers' mappings share this process's 128 TiB of
/// addresses: when they are used up, the next allocation of anybody ends the process.
#[test]
fn all_mappings_together_leave_addresses_for_the_process() {
    let f = memfd(8 << 40, MemfdFlags::CLOEXEC);
    let maps: Vec<_> = (0..16).map(|_| Mapping::new(f.as_fd(), 0, 8 << 40)).collect();
    let got = maps.iter().filter(|m| m.is_ok()).count();
    assert!((7..=8).contains(&got), "{got} mappings of 8 TiB");
    assert!(matches!(maps[15], Err(MapError::NoAddresses { .. })));
    drop(maps);
    Mapping::new(f.as_fd(), 0, 8 << 40).unwrap();
}

/// A limit of file sizes, as `ulimit -f` sets it, neither ends the process nor stops it from
/// starting, unless the hard one is too low: then one line says so.
#[test]
fn a_limit_of_file_sizes_is_no_signal() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    if !is_child("a_limit_of_file_sizes_is_no_signal", &["soft", "hard"]) {
        return;
    }
    let hard = std::env::var_os(CHILD).unwrap() == "hard";
    let maximum = if hard { Some(1 << 20) } else { getrlimit(Resource::Fsize).maximum };
    setrlimit(Resource::Fsize, Rlimit { current: Some(1 << 20), maximum }).unwrap();
    let installed = sigbus::install();
    assert_eq!(getrlimit(Resource::Fsize).current, Some(1 << 20), "as it was");
    if hard {
        assert!(installed.unwrap_err().to_string().contains("ulimit -f"));
    } else {
        installed.unwrap();
        map(&[(0, 4096)]);
    }
}
