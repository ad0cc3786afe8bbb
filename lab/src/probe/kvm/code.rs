//! The guest's programs: 16-bit code of a few bytes, in its one page.
//!
//! A processor that has just been reset runs in real mode; nothing has to be set up but segments.
//! `bx` has the length of a row.

use super::guest::{DONE, HANDLED, KERNEL, RING, USER};

/// Where programs start.
pub(super) const START: u64 = 0x1000;
/// Where the stack ends.
pub(super) const STACK: u64 = 0xf000;
/// What `es` holds: its first byte is [`OUTSIDE`].
pub(super) const OUTSIDE_SEGMENT: u16 = 0xd000;
/// Guest-physical, no memory there.
pub(super) const OUTSIDE: u64 = (OUTSIDE_SEGMENT as u64) << 4;

/// The line of the PIC, and where its entry stands in the interrupt vector table: vectors start at
/// 20h.
pub(super) const LINE: u32 = 5;
const ENTRY: usize = (0x20 + LINE as usize) * 4;
/// Where the handler is.
const HANDLER: u16 = 0x1100;

const MOV_ECX_EBX: [u8; 3] = [0x66, 0x89, 0xd9];
const DEC_ECX: [u8; 2] = [0x66, 0x49];

/// `out PORT, al`
const fn out(port: u8) -> [u8; 2] {
    [0xe6, port]
}

/// `jnz`, `jmp` to `to` bytes from the start of a program that is so long without them.
fn jump(opcode: u8, to: usize, len: usize) -> [u8; 2] {
    let back = u8::try_from(len + 2 - to).unwrap_or(2);
    [opcode, back.wrapping_neg()]
}

const JNZ: u8 = 0x75;
const JMP: u8 = 0xeb;

/// `ebx` times `body`, then an exit, and again.
fn row(body: &[u8]) -> Vec<u8> {
    let mut code = MOV_ECX_EBX.to_vec();
    code.extend(body);
    code.extend(DEC_ECX);
    code.extend(jump(JNZ, MOV_ECX_EBX.len(), code.len()));
    code.extend(out(DONE));
    code.extend(jump(JMP, 0, code.len()));
    code
}

/// The same for ever.
fn forever(body: &[u8]) -> Vec<u8> {
    [body, &jump(JMP, 0, body.len())].concat()
}

/// Counts `ebx` down, two instructions each time.
pub(super) fn count() -> Vec<u8> {
    row(&[])
}

/// Writes to the port of an ioeventfd.
pub(super) fn kernel_port() -> Vec<u8> {
    row(&out(KERNEL))
}

/// `mov es:[RING], al`: the memory address of an ioeventfd.
pub(super) fn kernel_memory() -> Vec<u8> {
    let [low, high] = RING.to_le_bytes();
    row(&[0x26, 0xa2, low, high])
}

/// `vmcall`, with a number that KVM does not know.
pub(super) fn hypercall() -> Vec<u8> {
    row(&[0x0f, 0x01, 0xc1])
}

pub(super) fn user_port() -> Vec<u8> {
    forever(&out(USER))
}

/// `mov es:[0], al`
pub(super) fn user_write() -> Vec<u8> {
    forever(&[0x26, 0xa2, 0, 0])
}

/// `mov al, es:[0]`
pub(super) fn user_read() -> Vec<u8> {
    forever(&[0x26, 0xa0, 0, 0])
}

/// Lets the PIC (8259A: ICW1 to ICW4, mask) interrupt by [`LINE`] only, and waits: asleep, or by
/// going round.
pub(super) fn interrupts(asleep: bool) -> Vec<u8> {
    let mask = !(1_u8 << LINE);
    let mut code = vec![0xfa];
    for (port, value) in [(0x20, 0x11), (0x21, 0x20), (0x21, 0x04), (0x21, 0x01), (0x21, mask)] {
        code.extend([0xb0, value]);
        code.extend(out(port));
    }
    code.push(0xfb);
    let wait = code.len();
    if asleep {
        code.push(0xf4);
    }
    code.extend(jump(JMP, wait, code.len()));
    code
}

/// The handler: tells, ends the interrupt (8259A: OCW2) and returns. And its entry in the vector
/// table. Each with its address.
pub(super) fn handler() -> [(usize, Vec<u8>); 2] {
    let mut code = vec![0x50];
    code.extend(out(HANDLED));
    code.extend([0xb0, 0x20]);
    code.extend(out(0x20));
    code.extend([0x58, 0xcf]);
    let [low, high] = HANDLER.to_le_bytes();
    [(HANDLER.into(), code), (ENTRY, vec![low, high, 0, 0])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_go_back_to_where_they_should() {
        // mov ecx, ebx; 3: out e1; dec ecx; jnz 3; out e2; jmp 0
        let row = [0x66, 0x89, 0xd9, 0xe6, 0xe1, 0x66, 0x49, 0x75, 0xfa, 0xe6, 0xe2, 0xeb, 0xf3];
        assert_eq!(kernel_port(), row);
        assert_eq!(user_port(), [0xe6, 0xe0, 0xeb, 0xfc]);
        assert_eq!(user_read(), [0x26, 0xa0, 0, 0, 0xeb, 0xfa]);
        assert!(interrupts(true).ends_with(&[0xfb, 0xf4, 0xeb, 0xfd]));
        assert!(interrupts(false).ends_with(&[0xfb, 0xeb, 0xfe]));
    }

    #[test]
    fn the_vector_points_to_the_handler() {
        let [(at, code), (entry, vector)] = handler();
        assert_eq!((entry, vector), (0x94, vec![0, 0x11, 0, 0]));
        assert_eq!((at, code[0], code[code.len() - 1]), (0x1100, 0x50, 0xcf));
    }
}
