//! Transformations that encode and decode: base64, hexadecimal, percent-encoding, parity.

pub(super) fn base64_decode(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0);
    for byte in value {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            b'=' => break,
            _ => continue,
        };
        bits = bits << 6 | u32::from(six);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held & 0xff) as u8);
        }
    }
    out
}

pub(super) fn base64_encode(value: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::with_capacity(value.len().div_ceil(3) * 4);
    for three in value.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            out.push(if digit > three.len() {
                b'='
            } else {
                DIGITS[(bits >> (18 - 6 * digit) & 63) as usize]
            });
        }
    }
    out
}

/// `None` if the value does not consist of pairs of digits.
pub(super) fn hex_decode(value: &[u8]) -> Option<Vec<u8>> {
    if !value.len().is_multiple_of(2) {
        return None;
    }
    value.chunks(2).map(pair).collect()
}

pub(super) fn hex_encode(value: &[u8]) -> Vec<u8> {
    value.iter().flat_map(|byte| digits(*byte)).collect()
}

/// Replaces each number like `0x414243` by the bytes that it represents in SQL.
pub(super) fn sql_hex_decode(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let number = after
            .first()
            .filter(|x| *byte == b'0' && matches!(x, b'x' | b'X'));
        let bytes = number.map_or(&[][..], |_| &after[1..]);
        let decoded: Vec<u8> = bytes.chunks(2).map_while(pair).collect();
        if decoded.is_empty() {
            out.push(*byte);
        } else {
            rest = &bytes[2 * decoded.len()..];
            out.extend_from_slice(&decoded);
        }
    }
    out
}

pub(super) fn url_encode(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for byte in value {
        match byte {
            b' ' => out.push(b'+'),
            b'*' => out.push(*byte),
            byte if byte.is_ascii_alphanumeric() => out.push(*byte),
            byte => {
                out.push(b'%');
                out.extend(digits(*byte));
            }
        }
    }
    out
}

/// Sets the eighth bit of each byte for even or odd parity.
pub(super) fn parity(value: &[u8], odd: u32) -> Vec<u8> {
    let set = |byte: &u8| {
        let seven = byte & 0x7f;
        seven
            | if seven.count_ones() % 2 == odd {
                0
            } else {
                0x80
            }
    };
    value.iter().map(set).collect()
}

fn pair(two: &[u8]) -> Option<u8> {
    let [high, low] = two else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(*high)? << 4 | digit(*low)?) as u8)
}

fn digits(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)])
}
