//! Accesses of odd size and alignment, anywhere.

use proptest::prelude::*;

use super::*;

#[test]
fn reads_return_the_bytes_asked_for() {
    let bench = Bench::new();
    bench.write(FCAL, 0x4433_2211);
    bench.write(FCAH, 0x6655);
    let read = |offset: u64, len: usize| {
        let mut data = vec![0xee; len];
        bench.chip.read_bar(0, offset, &mut data);
        data
    };
    assert_eq!(read(0x28, 1), [0x11]);
    assert_eq!(read(0x2a, 2), [0x33, 0x44]);
    assert_eq!(read(0x28, 8), [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0, 0]);
    assert_eq!(read(0x2b, 3), [0x44, 0x55, 0x66]);
    assert_eq!(read(0x29, 0), []);
}

#[test]
fn only_whole_words_are_written() {
    let bench = Bench::new();
    bench.write(FCAL, 0x4433_2211);
    for (offset, len) in [(0x28, 1), (0x28, 3), (0x29, 4), (0x2a, 2), (0x25, 4), (0x28, 0)] {
        bench.chip.write_bar(0, offset, &vec![0xff; len]);
        assert_eq!(bench.read(FCAL), 0x4433_2211, "{len} bytes at {offset:#x}");
    }
    bench.chip.write_bar(0, RA.into(), &0x8000_6655_4433_2211u64.to_le_bytes());
    assert_eq!((bench.read(RA), bench.read(RA + 4)), (0x4433_2211, 0x8000_6655));
    bench.chip.write_bar(0, 0x25, &[0xaa; 9]);
    assert_eq!(bench.read(FCAL), 0xaaaa_aaaa, "the word in the middle");
    assert_eq!(bench.read(FCAH), 0);
}

#[test]
fn a_wide_read_has_each_words_effect_once() {
    let bench = Bench::new();
    bench.write(ICS, 1);
    let mut data = [0; 8];
    bench.chip.read_bar(0, ICR.into(), &mut data);
    assert_eq!(data[0], 1);
    assert_eq!(bench.read(ICR), 0);
}

#[derive(Clone, Debug)]
enum Access {
    Read(u8, u64, usize),
    Write(u8, u64, Vec<u8>),
    Link(bool),
    Timer,
    Reset,
}

fn access() -> impl Strategy<Value = Access> {
    let offset = prop_oneof![
        4 => 0u64..0x6000,
        2 => 0u64..0x2_0000,
        1 => any::<u64>(),
        1 => prop::sample::select(vec![0x1_ffff, 0x2_0000, 0xffff_ffff, u64::MAX, 63, 255]),
    ];
    let size = prop_oneof![Just(4usize), 0usize..20];
    let bytes = prop::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        6 => (0u8..3, offset.clone(), size).prop_map(|(b, o, s)| Access::Read(b, o, s)),
        9 => (0u8..3, offset, bytes).prop_map(|(b, o, d)| Access::Write(b, o, d)),
        1 => any::<bool>().prop_map(Access::Link),
        1 => Just(Access::Timer),
        1 => Just(Access::Reset),
    ]
}

proptest! {
    #[test]
    fn no_access_panics(steps in prop::collection::vec(access(), 1..100)) {
        let Bench { chip, .. } = Bench::new();
        for step in steps {
            match step {
                Access::Read(bar, offset, len) => {
                    let data = &mut vec![0; len][..];
                    match bar {
                        0 => chip.read_bar(0, offset, data),
                        1 => chip.read_ports(offset, data),
                        _ => chip.read(Space::Config, offset, data),
                    }
                }
                Access::Write(bar, offset, data) => match bar {
                    0 => chip.write_bar(0, offset, &data),
                    1 => chip.write_ports(offset, &data),
                    _ => chip.write_config(offset, &data),
                },
                Access::Link(up) => chip.set_link(up),
                Access::Timer => chip.timer(),
                Access::Reset => chip.reset(),
            }
        }
        // Whatever was done to it, a reset makes it what it was.
        chip.reset();
        chip.set_link(true);
        let bench = Bench::new();
        for offset in (0..0xa000).step_by(4).filter(|o| !(RA..RA + 8).contains(o)) {
            let mut data = [0; 4];
            chip.read_bar(0, offset.into(), &mut data);
            prop_assert_eq!(u32::from_le_bytes(data), bench.read(offset), "register {:#x}", offset);
        }
    }
}
