//! The agent's line is in base64, so that nothing a command prints can be taken for the protocol.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648 section 4, with padding.
pub fn base64(bytes: &[u8]) -> String {
    let digit = |group: u32, at: u32| char::from(ALPHABET[(group >> (18 - 6 * at)) as usize & 63]);
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        text.push(digit(group, 0));
        text.push(digit(group, 1));
        text.push(if chunk.len() > 1 { digit(group, 2) } else { '=' });
        text.push(if chunk.len() > 2 { digit(group, 3) } else { '=' });
    }
    text
}

/// The reverse; nothing for a character outside the alphabet.
pub fn unbase64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut group, mut bits) = (0_u32, 0);
    for letter in text.bytes().take_while(|&letter| letter != b'=') {
        let value = u32::try_from(ALPHABET.iter().position(|&known| known == letter)?).ok()?;
        group = (group << 6 | value) & 0xff_ffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(group >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{base64, unbase64};

    #[test]
    fn base64_as_in_rfc_4648_section_10() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
            assert_eq!(unbase64(coded).unwrap(), plain.as_bytes());
        }
        assert!(unbase64("no spaces").is_none());
    }
}
