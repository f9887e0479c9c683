//! Resolves XML references.

/// The result of resolving a reference.
pub(super) enum ResolvedReference<'a> {
    Bytes(&'a [u8]),
    Unknown,
}

/// Resolves a reference, given without `&` and `;`.
pub(super) fn of<'a>(name: &[u8], buffer: &'a mut [u8; 4]) -> ResolvedReference<'a> {
    let code = match name {
        b"lt" => u32::from(b'<'),
        b"gt" => u32::from(b'>'),
        b"amp" => u32::from(b'&'),
        b"quot" => u32::from(b'"'),
        b"apos" => u32::from(b'\''),
        [b'#', b'x' | b'X', digits @ ..] => number(digits, 16),
        [b'#', digits @ ..] => number(digits, 10),
        _ => return ResolvedReference::Unknown,
    };
    if code == u32::MAX {
        return ResolvedReference::Unknown;
    }
    let c = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    ResolvedReference::Bytes(c.encode_utf8(buffer).as_bytes())
}

/// Parses digits; [`u32::MAX`] if they are not all digits.
fn number(digits: &[u8], radix: u32) -> u32 {
    let mut code = 0_u32;
    for digit in digits {
        let Some(digit) = char::from(*digit).to_digit(radix) else {
            return u32::MAX;
        };
        // Saturates above the last code point.
        code = (code * radix + digit).min(0x11_0000);
    }
    if digits.is_empty() { u32::MAX } else { code }
}
