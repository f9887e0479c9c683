//! Which kinds of bytes a text holds, as one bit for each kind.
//!
//! Every mark of ASCII is a kind of its own, and so is each sort of white space; letters are one kind whatever their case,
//! digits another. One cheap pass over a text then says which transformations cannot change it and which rules
//! cannot match it.

use super::transform::Transform;

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Kinds(u64);

impl Kinds {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ALL: Self = Self(u64::MAX);
    /// Says that there are capital letters, besides [`Self::LETTER`].
    pub(super) const UPPER: Self = Self(1 << 63);
    pub(super) const LETTER: Self = Self(1 << 62);
    pub(super) const DIGIT: Self = Self(1 << 61);
    /// Not ASCII.
    pub(super) const HIGH: Self = Self(1 << 60);
    /// Control characters that have no kind of their own.
    const CONTROL: Self = Self(1 << 59);
    pub(super) const NULL: Self = Self(1 << 58);
    pub(super) const SPACE: Self = Self(1 << 57);
    /// White space besides the space.
    pub(super) const LINES: Self = Self(0b1_1111 << 52);
    pub(super) const SPACES: Self = Self(Self::SPACE.0 | Self::LINES.0);
    /// What nearly every text has.
    pub(super) const COMMON: Self = Self(Self::LETTER.0 | Self::DIGIT.0 | Self::SPACE.0);
    /// What words are made of.
    pub(super) const WORD: Self = Self::byte(b'_')
        .or(Self::LETTER)
        .or(Self::UPPER)
        .or(Self::DIGIT);

    /// That of one byte.
    pub(super) const fn byte(byte: u8) -> Self {
        match byte {
            0 => Self::NULL,
            9..=13 => Self(1 << (52 + byte - 9)),
            b' ' => Self::SPACE,
            b'0'..=b'9' => Self::DIGIT,
            b'A'..=b'Z' => Self(Self::LETTER.0 | Self::UPPER.0),
            b'a'..=b'z' => Self::LETTER,
            33..=47 => Self(1 << (byte - 33)),
            58..=64 => Self(1 << (byte - 58 + 15)),
            91..=96 => Self(1 << (byte - 91 + 22)),
            123..=126 => Self(1 << (byte - 123 + 28)),
            128.. => Self::HIGH,
            _ => Self::CONTROL,
        }
    }

    /// Those of some bytes, at compile time too.
    pub(super) const fn bytes(bytes: &[u8]) -> Self {
        let (mut kinds, mut at) = (Self::NONE, 0);
        while at < bytes.len() {
            kinds = kinds.or(Self::byte(bytes[at]));
            at += 1;
        }
        kinds
    }

    /// Those of a text.
    pub(super) fn of(text: &[u8]) -> Self {
        // Four sums, so that none waits for another.
        let mut sums = [0; 4];
        let mut fours = text.chunks_exact(4);
        for four in &mut fours {
            for (sum, byte) in sums.iter_mut().zip(four) {
                *sum |= TABLE[usize::from(*byte)];
            }
        }
        let rest = fours.remainder().iter();
        let rest = rest.fold(0, |sum, byte| sum | TABLE[usize::from(*byte)]);
        Self(sums.iter().fold(rest, |all, sum| all | sum))
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there is a kind of these.
    pub(super) const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// Whether all of these are there.
    #[cfg(test)]
    pub(super) const fn all(self, of: Self) -> bool {
        self.0 & of.0 == of.0
    }
}

/// Whether words are made of it, as `\w` has it.
pub(super) const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

static TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = Kinds::byte(byte as u8).0;
        byte += 1;
    }
    table
};

impl Transform {
    /// Without one of these in it, a text stays as it is.
    pub(super) const fn changes(self) -> Kinds {
        match self {
            Self::Lowercase => Kinds::UPPER,
            Self::RemoveNulls | Self::ReplaceNulls => Kinds::NULL,
            Self::RemoveWhitespace
            | Self::CompressWhitespace
            | Self::Trim
            | Self::TrimLeft
            | Self::TrimRight => Kinds::SPACES,
            Self::Uppercase => Kinds::LETTER,
            Self::SqlHexDecode => Kinds::DIGIT,
            Self::UrlDecode | Self::UrlDecodeUni => Kinds::bytes(b"%+"),
            Self::HtmlEntityDecode => Kinds::byte(b'&'),
            Self::JsDecode | Self::EscapeSeqDecode | Self::CssDecode => Kinds::byte(b'\\'),
            Self::RemoveCommentsChar | Self::RemoveComments => Kinds::bytes(b"*-#"),
            Self::ReplaceComments => Kinds::byte(b'*'),
            Self::CmdLine => Kinds::bytes(b"\\\"'^,; \t\r\n").or(Kinds::UPPER),
            Self::NormalizePath => Kinds::byte(b'/'),
            Self::NormalizePathWin => Kinds::bytes(b"/\\"),
            Self::Utf8ToUnicode => Kinds::HIGH,
            Self::Base64Decode
            | Self::Base64Encode
            | Self::HexDecode
            | Self::HexEncode
            | Self::Length
            | Self::ParityEven7bit
            | Self::ParityOdd7bit
            | Self::ParityZero7bit
            | Self::UrlEncode => Kinds::ALL,
        }
    }

    /// What can be in a text afterwards that had these before.
    pub(super) const fn leaves(self, before: Kinds) -> Kinds {
        match self {
            Self::Lowercase => before.without(Kinds::UPPER),
            Self::RemoveNulls => before.without(Kinds::NULL),
            Self::RemoveWhitespace => before.without(Kinds::SPACES),
            Self::CompressWhitespace => before.without(Kinds::LINES).or(Kinds::SPACE),
            Self::Uppercase => before.or(Kinds::UPPER),
            Self::ReplaceNulls | Self::ReplaceComments | Self::RemoveComments | Self::CmdLine => {
                before.or(Kinds::SPACE)
            }
            Self::Trim
            | Self::TrimLeft
            | Self::TrimRight
            | Self::NormalizePath
            | Self::RemoveCommentsChar => before,
            Self::NormalizePathWin => before.or(Kinds::byte(b'/')),
            Self::Length => Kinds::DIGIT,
            Self::Base64Decode
            | Self::Base64Encode
            | Self::HexDecode
            | Self::HexEncode
            | Self::ParityEven7bit
            | Self::ParityOdd7bit
            | Self::ParityZero7bit
            | Self::SqlHexDecode
            | Self::UrlEncode
            | Self::CssDecode
            | Self::EscapeSeqDecode
            | Self::HtmlEntityDecode
            | Self::JsDecode
            | Self::UrlDecode
            | Self::UrlDecodeUni
            | Self::Utf8ToUnicode => Kinds::ALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_pcg::rand_core::Rng as _;

    use super::*;

    const ALL: [Transform; 32] = [
        Transform::Base64Encode,
        Transform::HexDecode,
        Transform::HexEncode,
        Transform::ParityEven7bit,
        Transform::ParityOdd7bit,
        Transform::ParityZero7bit,
        Transform::RemoveComments,
        Transform::SqlHexDecode,
        Transform::TrimLeft,
        Transform::TrimRight,
        Transform::Uppercase,
        Transform::UrlEncode,
        Transform::Lowercase,
        Transform::RemoveCommentsChar,
        Transform::Base64Decode,
        Transform::CmdLine,
        Transform::CompressWhitespace,
        Transform::CssDecode,
        Transform::EscapeSeqDecode,
        Transform::HtmlEntityDecode,
        Transform::JsDecode,
        Transform::Length,
        Transform::NormalizePath,
        Transform::NormalizePathWin,
        Transform::RemoveNulls,
        Transform::RemoveWhitespace,
        Transform::ReplaceComments,
        Transform::ReplaceNulls,
        Transform::Trim,
        Transform::UrlDecode,
        Transform::UrlDecodeUni,
        Transform::Utf8ToUnicode,
    ];

    #[test]
    fn what_kinds_say_of_a_transformation_holds_for_random_texts() {
        let mut random = rand_pcg::Pcg32::new(3, 5);
        let some = b"aZ09_ \t\n\r\x0b\0\x01\x7f%+&\\/*\"'^,;.#x27;<>(){}\xc3\xa9\xff";
        for _ in 0..200_000 {
            let length = random.next_u32() as usize % 9;
            let text: Vec<u8> = (0..length)
                .map(|_| some[random.next_u32() as usize % some.len()])
                .collect();
            let kinds = Kinds::of(&text);
            for transform in ALL {
                let after = transform.apply(&text);
                let name = || format!("{transform:?} of {:?}", text.escape_ascii().to_string());
                if !kinds.any(transform.changes()) && transform.changes() != Kinds::ALL {
                    assert_eq!(&*after, &text[..], "{}", name());
                }
                let left = transform.leaves(kinds);
                assert!(left.all(Kinds::of(&after)), "{}", name());
            }
        }
    }

    #[test]
    fn every_byte_has_a_kind_and_marks_have_one_of_their_own() {
        let mut seen = std::collections::BTreeMap::new();
        for byte in 0..=255_u8 {
            assert_ne!(Kinds::byte(byte), Kinds::NONE);
            assert_eq!(Kinds::of(&[byte]), Kinds::byte(byte));
            seen.entry(Kinds::byte(byte))
                .or_insert_with(Vec::new)
                .push(byte);
        }
        let marks = seen.iter().filter(|(_, bytes)| bytes.len() == 1);
        assert_eq!(marks.count(), 32 + 1 + 5 + 1, "marks, space, lines, null");
    }
}
