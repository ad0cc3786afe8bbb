//! Options that make a packet something other than its fixed header says. Few packets have any, so
//! this is out of line: packets without options cost no more for it.

/// IPv4's loose and strict source routes (RFC 791 section 3.1).
const ROUTES: [u8; 2] = [131, 137];

/// Mobile IPv6's home address, which replaces the source (RFC 6275 section 6.3).
const HOME_ADDRESS: u8 = 201;

/// A source route among IPv4 options, or options that end in the middle of one.
#[cold]
#[inline(never)]
pub(super) fn source_route(options: &[u8]) -> bool {
    // The length of an IPv4 option counts its kind and itself.
    any(options, 0, Some(1), |kind| ROUTES.contains(&kind))
}

/// A home address among IPv6 destination options, or options that end in the middle of one.
#[cold]
#[inline(never)]
pub(super) fn home_address(options: &[u8]) -> bool {
    any(options, 2, None, |kind| kind == HOME_ADDRESS)
}

/// True if an option is `odd`, or they cannot be walked. Lengths in them leave out `extra` bytes.
/// IPv4 has two kinds without length, 0 (end) and 1; IPv6 has 0, and no end.
fn any(mut rest: &[u8], extra: usize, one: Option<u8>, odd: impl Fn(u8) -> bool) -> bool {
    while let Some((kind, tail)) = rest.split_first() {
        if *kind == 0 && one.is_some() {
            return false;
        }
        if *kind == 0 || Some(*kind) == one {
            rest = tail;
            continue;
        }
        let size = tail.first().map_or(0, |size| usize::from(*size) + extra);
        match rest.get(size..) {
            Some(next) if size >= 2 && !odd(*kind) => rest = next,
            _ => return true,
        }
    }
    false
}
