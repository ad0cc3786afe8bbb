//! The virtio-net header that TAP devices and packet sockets put before each frame (virtio 1.2
//! section 5.1.6, without `num_buffers`), in the host's byte order: the legacy form, their default.

use vmlan_frame::{Gso, Offload, Reason};

/// Bytes, as `TUNSETVNETHDRSZ` takes them.
pub(crate) const LEN_FOR_IOCTL: libc::c_int = 10;
/// Bytes.
pub(crate) const LEN: usize = LEN_FOR_IOCTL.unsigned_abs() as usize;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// What the header says. Its offsets are unchecked still: `Batch::add` does that.
pub(crate) fn parse(h: &[u8; LEN]) -> Result<Offload, Reason> {
    let [flags, kind, l0, l1, s0, s1, c0, c1, o0, o1] = *h;
    let gso = match kind & !GSO_ECN {
        GSO_NONE => Gso::None,
        GSO_TCPV4 => Gso::Tcp4,
        GSO_TCPV6 => Gso::Tcp6,
        GSO_UDP_L4 => Gso::Udp,
        _ => return Err(Reason::BadOffload),
    };
    let needs_csum = flags & F_NEEDS_CSUM != 0;
    Ok(Offload {
        needs_csum,
        csum_valid: !needs_csum && flags & F_DATA_VALID != 0,
        gso,
        ecn: kind & GSO_ECN != 0,
        gso_size: u16::from_ne_bytes([s0, s1]),
        hdr_len: u16::from_ne_bytes([l0, l1]),
        csum_start: u16::from_ne_bytes([c0, c1]),
        csum_offset: u16::from_ne_bytes([o0, o1]),
    })
}

/// The header that tells the kernel `o`.
pub(crate) fn emit(o: &Offload) -> [u8; LEN] {
    if !o.needs_csum {
        let flags = if o.csum_valid { F_DATA_VALID } else { 0 };
        return [flags, GSO_NONE, 0, 0, 0, 0, 0, 0, 0, 0];
    }
    let kind = match o.gso {
        Gso::None => GSO_NONE,
        Gso::Tcp4 => GSO_TCPV4,
        Gso::Tcp6 => GSO_TCPV6,
        Gso::Udp => GSO_UDP_L4,
    };
    let ecn = if o.ecn && o.gso != Gso::None { GSO_ECN } else { 0 };
    let [l0, l1] = o.hdr_len.to_ne_bytes();
    let [s0, s1] = o.gso_size.to_ne_bytes();
    let [c0, c1] = o.csum_start.to_ne_bytes();
    let [o0, o1] = o.csum_offset.to_ne_bytes();
    [F_NEEDS_CSUM, kind | ecn, l0, l1, s0, s1, c0, c1, o0, o1]
}
