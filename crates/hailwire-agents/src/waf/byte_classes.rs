//! Which classes of bytes a text contains, one bit for each class.
//!
//! Every ASCII punctuation mark is a class of its own, and so is each white space character; all letters are one class,
//! all digits another. One cheap pass over a text then shows which transformations cannot change it and which rules
//! cannot match it.

use super::transform::Transform;

/// A set of byte classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ByteClassSet(u64);

impl ByteClassSet {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ALL: Self = Self(u64::MAX);
    /// Capital letters, in addition to [`Self::LETTER`].
    pub(super) const UPPER: Self = Self(1 << 63);
    pub(super) const LETTER: Self = Self(1 << 62);
    pub(super) const DIGIT: Self = Self(1 << 61);
    /// Not ASCII.
    pub(super) const NON_ASCII: Self = Self(1 << 60);
    /// Control characters without a class of their own.
    const CONTROL: Self = Self(1 << 59);
    pub(super) const NULL: Self = Self(1 << 58);
    pub(super) const SPACE: Self = Self(1 << 57);
    /// White space besides the space.
    pub(super) const NON_SPACE_WHITESPACE: Self = Self(0b1_1111 << 52);
    pub(super) const WHITESPACE: Self = Self(Self::SPACE.0 | Self::NON_SPACE_WHITESPACE.0);
    /// Classes that nearly every text contains.
    pub(super) const COMMON: Self = Self(Self::LETTER.0 | Self::DIGIT.0 | Self::SPACE.0);
    /// Word characters, as in `\w`.
    pub(super) const WORD: Self = Self::byte(b'_')
        .or(Self::LETTER)
        .or(Self::UPPER)
        .or(Self::DIGIT);

    /// The class of one byte.
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
            128.. => Self::NON_ASCII,
            _ => Self::CONTROL,
        }
    }

    /// The classes of some bytes, also at compile time.
    pub(super) const fn bytes(bytes: &[u8]) -> Self {
        let (mut classes, mut at) = (Self::NONE, 0);
        while at < bytes.len() {
            classes = classes.or(Self::byte(bytes[at]));
            at += 1;
        }
        classes
    }

    /// The classes in a text.
    pub(super) fn of(text: &[u8]) -> Self {
        // Four independent sums, so that none waits for another.
        let mut sums = [0; 4];
        let mut fours = text.chunks_exact(4);
        for four in &mut fours {
            for (sum, byte) in sums.iter_mut().zip(four) {
                *sum |= CLASS_BITS[usize::from(*byte)];
            }
        }
        let rest = fours.remainder().iter();
        let rest = rest.fold(0, |sum, byte| sum | CLASS_BITS[usize::from(*byte)]);
        Self(sums.iter().fold(rest, |all, sum| all | sum))
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether it contains any of these classes.
    pub(super) const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// Whether it contains all of these classes.
    #[cfg(test)]
    pub(super) const fn all(self, of: Self) -> bool {
        self.0 & of.0 == of.0
    }
}

/// Whether it is a word character, as in `\w`.
pub(super) const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

static CLASS_BITS: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = ByteClassSet::byte(byte as u8).0;
        byte += 1;
    }
    table
};

impl Transform {
    /// A text that contains none of these classes is left unchanged.
    pub(super) const fn changes(self) -> ByteClassSet {
        match self {
            Self::Lowercase => ByteClassSet::UPPER,
            Self::RemoveNulls | Self::ReplaceNulls => ByteClassSet::NULL,
            Self::RemoveWhitespace
            | Self::CompressWhitespace
            | Self::Trim
            | Self::TrimLeft
            | Self::TrimRight => ByteClassSet::WHITESPACE,
            Self::Uppercase => ByteClassSet::LETTER,
            Self::SqlHexDecode => ByteClassSet::DIGIT,
            Self::UrlDecode | Self::UrlDecodeUni => ByteClassSet::bytes(b"%+"),
            Self::HtmlEntityDecode => ByteClassSet::byte(b'&'),
            Self::JsDecode | Self::EscapeSeqDecode | Self::CssDecode => ByteClassSet::byte(b'\\'),
            Self::RemoveCommentsChar | Self::RemoveComments => ByteClassSet::bytes(b"*-#"),
            Self::ReplaceComments => ByteClassSet::byte(b'*'),
            Self::CmdLine => ByteClassSet::bytes(b"\\\"'^,; \t\r\n").or(ByteClassSet::UPPER),
            Self::NormalizePath => ByteClassSet::byte(b'/'),
            Self::NormalizePathWin => ByteClassSet::bytes(b"/\\"),
            Self::Utf8ToUnicode => ByteClassSet::NON_ASCII,
            Self::Base64Decode
            | Self::Base64Encode
            | Self::HexDecode
            | Self::HexEncode
            | Self::Length
            | Self::ParityEven7bit
            | Self::ParityOdd7bit
            | Self::ParityZero7bit
            | Self::UrlEncode => ByteClassSet::ALL,
        }
    }

    /// The classes that the result can contain, given those of the input.
    pub(super) const fn leaves(self, before: ByteClassSet) -> ByteClassSet {
        match self {
            Self::Lowercase => before.without(ByteClassSet::UPPER),
            Self::RemoveNulls => before.without(ByteClassSet::NULL),
            Self::RemoveWhitespace => before.without(ByteClassSet::WHITESPACE),
            Self::CompressWhitespace => before
                .without(ByteClassSet::NON_SPACE_WHITESPACE)
                .or(ByteClassSet::SPACE),
            Self::Uppercase => before.or(ByteClassSet::UPPER),
            Self::ReplaceNulls | Self::ReplaceComments | Self::RemoveComments | Self::CmdLine => {
                before.or(ByteClassSet::SPACE)
            }
            Self::Trim
            | Self::TrimLeft
            | Self::TrimRight
            | Self::NormalizePath
            | Self::RemoveCommentsChar => before,
            Self::NormalizePathWin => before.or(ByteClassSet::byte(b'/')),
            Self::Length => ByteClassSet::DIGIT,
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
            | Self::Utf8ToUnicode => ByteClassSet::ALL,
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
    fn classes_predict_transformations_of_random_texts() {
        let mut random = rand_pcg::Pcg32::new(3, 5);
        let some = b"aZ09_ \t\n\r\x0b\0\x01\x7f%+&\\/*\"'^,;.#x27;<>(){}\xc3\xa9\xff";
        for _ in 0..200_000 {
            let length = random.next_u32() as usize % 9;
            let text: Vec<u8> = (0..length)
                .map(|_| some[random.next_u32() as usize % some.len()])
                .collect();
            let classes = ByteClassSet::of(&text);
            for transform in ALL {
                let after = transform.apply(&text);
                let name = || format!("{transform:?} of {:?}", text.escape_ascii().to_string());
                if !classes.any(transform.changes()) && transform.changes() != ByteClassSet::ALL {
                    assert_eq!(&*after, &text[..], "{}", name());
                }
                let left = transform.leaves(classes);
                assert!(left.all(ByteClassSet::of(&after)), "{}", name());
            }
        }
    }

    #[test]
    fn every_byte_has_a_class_and_punctuation_marks_have_one_each() {
        let mut seen = std::collections::BTreeMap::new();
        for byte in 0..=255_u8 {
            assert_ne!(ByteClassSet::byte(byte), ByteClassSet::NONE);
            assert_eq!(ByteClassSet::of(&[byte]), ByteClassSet::byte(byte));
            seen.entry(ByteClassSet::byte(byte))
                .or_insert_with(Vec::new)
                .push(byte);
        }
        let marks = seen.iter().filter(|(_, bytes)| bytes.len() == 1);
        assert_eq!(marks.count(), 32 + 1 + 5 + 1, "marks, space, lines, null");
    }
}
