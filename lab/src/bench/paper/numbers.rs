//! The paper's figures 4, 5 and 11: Linux and FreeBSD guests under QEMU-KVM, on an i7-3930K of
//! 2013.

use super::{Scene, Way, scene};

/// UDP8 and UDP-1460 in thousands of datagrams a second, TCP and TCPw in Mbit/s, TCPRR in thousands
/// of transactions a second.
type Row = [Option<f64>; 5];

struct Lines {
    scene: Scene,
    technique: &'static str,
    linux: Row,
    freebsd: Row,
}

const NONE: Row = [None; 5];

const fn all(row: [f64; 5]) -> Row {
    [Some(row[0]), Some(row[1]), Some(row[2]), Some(row[3]), Some(row[4])]
}

/// Figure 11 has no TCPRR without TSO.
const fn virtio(row: [f64; 4]) -> Row {
    [Some(row[0]), Some(row[1]), Some(row[2]), Some(row[3]), None]
}

const fn lines(scene: Scene, technique: &'static str, linux: Row, freebsd: Row) -> Lines {
    Lines { scene, technique, linux, freebsd }
}

/// Rows RX have streams alone.
const fn streams(tcp: f64, tcp_w: f64) -> Row {
    [None, None, Some(tcp), Some(tcp_w), None]
}

const HOST_1: Scene = scene(Way::Host, 1);
const HOST_2: Scene = scene(Way::Host, 2);
const FROM_1: Scene = scene(Way::FromHost, 1);
const FROM_2: Scene = scene(Way::FromHost, 2);
const GUEST_1: Scene = scene(Way::Switch, 1);
const GUEST_2: Scene = scene(Way::Switch, 2);
const TAPS_1: Scene = scene(Way::Taps, 1);
const TAPS_2: Scene = scene(Way::Taps, 2);

/// Guest to host over TAP (rows "TX"), back ("RX"), guest to guest over VALE and over TAP.
const LINES: &[Lines] = &[
    lines(
        HOST_1,
        "plain",
        all([30.0, 28.0, 103.0, 182.0, 11.8]),
        all([17.0, 18.0, 181.0, 516.0, 14.6]),
    ),
    lines(
        HOST_1,
        "moderated",
        all([83.0, 71.0, 135.0, 249.0, 14.2]),
        all([64.0, 55.0, 267.0, 538.0, 8.9]),
    ),
    lines(
        HOST_1,
        "combined",
        all([216.0, 138.0, 1309.0, 1521.0, 4.6]),
        all([237.0, 167.0, 1060.0, 1041.0, 10.1]),
    ),
    lines(
        HOST_1,
        "csb",
        all([353.0, 242.0, 2620.0, 2594.0, 21.2]),
        all([392.0, 247.0, 1783.0, 1534.0, 16.5]),
    ),
    lines(HOST_1, "virtio", virtio([342.0, 320.0, 3490.0, 3485.0]), NONE),
    lines(
        HOST_2,
        "plain",
        all([45.0, 38.0, 239.0, 349.0, 13.5]),
        all([17.0, 17.0, 176.0, 500.0, 14.1]),
    ),
    lines(
        HOST_2,
        "moderated",
        all([84.0, 54.0, 329.0, 396.0, 13.5]),
        all([59.0, 53.0, 251.0, 522.0, 12.2]),
    ),
    lines(
        HOST_2,
        "combined",
        all([291.0, 136.0, 1723.0, 1761.0, 11.3]),
        all([244.0, 165.0, 1068.0, 1001.0, 11.6]),
    ),
    lines(
        HOST_2,
        "csb",
        all([369.0, 190.0, 1993.0, 1959.0, 20.7]),
        all([400.0, 244.0, 1862.0, 1611.0, 17.3]),
    ),
    lines(HOST_2, "virtio", virtio([334.0, 312.0, 3346.0, 3335.0]), NONE),
    lines(
        GUEST_1,
        "plain",
        all([32.0, 31.0, 559.0, 805.0, 7.4]),
        all([20.0, 18.0, 160.0, 804.0, 7.9]),
    ),
    lines(
        GUEST_1,
        "moderated",
        all([125.0, 98.0, 792.0, 859.0, 7.1]),
        all([91.0, 60.0, 547.0, 661.0, 4.3]),
    ),
    lines(
        GUEST_1,
        "combined",
        all([455.0, 186.0, 1856.0, 2450.0, 6.7]),
        all([459.0, 268.0, 927.0, 936.0, 5.7]),
    ),
    lines(
        GUEST_1,
        "csb",
        all([1526.0, 480.0, 4190.0, 4206.0, 12.3]),
        all([838.0, 456.0, 1835.0, 1821.0, 9.9]),
    ),
    lines(GUEST_1, "virtio", virtio([981.0, 768.0, 4526.0, 4532.0]), NONE),
    lines(
        GUEST_2,
        "plain",
        all([77.0, 66.0, 456.0, 548.0, 7.3]),
        all([20.0, 20.0, 183.0, 730.0, 7.3]),
    ),
    lines(
        GUEST_2,
        "moderated",
        all([118.0, 90.0, 813.0, 900.0, 7.0]),
        all([85.0, 65.0, 439.0, 621.0, 4.3]),
    ),
    lines(
        GUEST_2,
        "combined",
        all([468.0, 286.0, 2144.0, 3130.0, 6.6]),
        all([440.0, 258.0, 906.0, 921.0, 5.0]),
    ),
    lines(
        GUEST_2,
        "csb",
        all([1221.0, 447.0, 4380.0, 4849.0, 11.2]),
        all([817.0, 449.0, 1684.0, 1690.0, 9.1]),
    ),
    lines(GUEST_2, "virtio", virtio([875.0, 774.0, 4346.0, 3682.0]), NONE),
    lines(
        HOST_1,
        "csb-moderated",
        all([360.0, 239.0, 2590.0, 2757.0, 7.6]),
        all([379.0, 244.0, 1767.0, 1684.0, 7.2]),
    ),
    lines(
        HOST_2,
        "csb-moderated",
        all([343.0, 172.0, 1690.0, 1683.0, 10.4]),
        all([388.0, 243.0, 1746.0, 1658.0, 7.2]),
    ),
    lines(FROM_1, "plain", streams(3370.0, 3327.0), NONE),
    lines(FROM_1, "combined-100", streams(3912.0, 3890.0), NONE),
    lines(FROM_1, "csb-100", streams(7179.0, 7493.0), NONE),
    lines(FROM_2, "plain", streams(3938.0, 4118.0), NONE),
    lines(FROM_2, "moderated-100", streams(1250.0, 2894.0), NONE),
    lines(FROM_2, "combined-100", streams(2300.0, 5128.0), NONE),
    lines(FROM_2, "csb-100", streams(4400.0, 7566.0), NONE),
    lines(
        TAPS_1,
        "plain",
        all([29.0, 28.0, 416.0, 462.0, 7.1]),
        all([20.0, 19.0, 185.0, 633.0, 7.1]),
    ),
    lines(
        TAPS_1,
        "moderated",
        all([82.0, 70.0, 522.0, 598.0, 6.5]),
        all([54.0, 46.0, 357.0, 516.0, 3.8]),
    ),
    lines(
        TAPS_1,
        "combined",
        all([221.0, 138.0, 1265.0, 1661.0, 5.1]),
        all([251.0, 180.0, 739.0, 770.0, 3.9]),
    ),
    lines(
        TAPS_1,
        "csb",
        all([458.0, 269.0, 2923.0, 2982.0, 11.8]),
        all([475.0, 262.0, 1512.0, 1496.0, 9.5]),
    ),
    lines(TAPS_1, "virtio", virtio([424.0, 394.0, 3475.0, 3480.0]), NONE),
    lines(
        TAPS_2,
        "plain",
        all([40.0, 38.0, 302.0, 372.0, 5.1]),
        all([16.0, 16.0, 157.0, 549.0, 6.6]),
    ),
    lines(
        TAPS_2,
        "moderated",
        all([82.0, 70.0, 578.0, 646.0, 6.1]),
        all([50.0, 48.0, 422.0, 531.0, 3.8]),
    ),
    lines(
        TAPS_2,
        "combined",
        all([354.0, 163.0, 2174.0, 2185.0, 5.0]),
        all([250.0, 170.0, 704.0, 723.0, 3.8]),
    ),
    lines(
        TAPS_2,
        "csb",
        all([409.0, 258.0, 2747.0, 2824.0, 11.0]),
        all([464.0, 268.0, 1350.0, 1327.0, 8.0]),
    ),
    lines(TAPS_2, "virtio", virtio([417.0, 367.0, 3359.0, 3416.0]), NONE),
];

/// The paper's figures with Linux and with FreeBSD as the guest, for the workload at `column` of
/// its tables.
pub(super) fn of(scene: Scene, technique: &str, column: usize) -> [Option<f64>; 2] {
    let found = LINES.iter().find(|l| l.scene == scene && l.technique == technique);
    let at = |row: &Row| row.get(column).copied().flatten();
    found.map_or([None; 2], |l| [at(&l.linux), at(&l.freebsd)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_technique_of_the_paper_has_a_line_in_every_scene() {
        for scene in [HOST_1, HOST_2, GUEST_1, GUEST_2, TAPS_1, TAPS_2] {
            for technique in ["plain", "moderated", "combined", "csb", "virtio"] {
                assert!(of(scene, technique, 0)[0].is_some(), "{technique}");
            }
            assert_eq!(of(scene, "mapped", 0), [None, None]);
        }
        assert_eq!(of(GUEST_1, "csb", 0), [Some(1526.0), Some(838.0)]);
        assert_eq!(of(HOST_2, "csb", 4), [Some(20.7), Some(17.3)]);
        assert_eq!(of(HOST_2, "virtio", 4), [None, None]);
        assert_eq!(of(FROM_2, "csb-100", 3), [Some(7566.0), None]);
    }
}
