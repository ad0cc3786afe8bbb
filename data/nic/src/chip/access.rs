//! Accesses of any size to spaces of 32-bit registers.

/// Reads the words that `offset..offset + data.len()` touches, each once, in order.
pub fn read_words(offset: u64, data: &mut [u8], mut read: impl FnMut(u32) -> u32) {
    let Ok(mut at) = u32::try_from(offset) else { return data.fill(u8::MAX) };
    let mut rest = data;
    while !rest.is_empty() {
        let word = read(at & !3).to_le_bytes();
        let part = word.get((at & 3) as usize..).unwrap_or_default();
        let n = part.len().min(rest.len());
        let (now, later) = rest.split_at_mut(n);
        now.copy_from_slice(part.get(..n).unwrap_or_default());
        rest = later;
        let Some(next) = (at & !3).checked_add(4) else { return rest.fill(u8::MAX) };
        at = next;
    }
}

/// Writes the whole words in `offset..offset + data.len()`, in order.
pub fn write_words(offset: u64, data: &[u8], mut write: impl FnMut(u32, u32)) {
    let Ok(offset) = u32::try_from(offset) else { return };
    let skip = (offset.wrapping_neg() & 3) as usize;
    let Some(first) = offset.checked_next_multiple_of(4) else { return };
    let words = data.get(skip..).unwrap_or_default().chunks_exact(4);
    for (at, word) in (first..).step_by(4).zip(words) {
        if let Ok(word) = word.try_into() {
            write(at, u32::from_le_bytes(word));
        }
    }
}
