//! One field that is short, kept in place: building it allocates nothing, and it is no larger than a pointer to where it would
//! otherwise lie.
//!
//! It is the same map as any other: one name, one value, each with a marker of its length before it.

/// As much as fits where else [`super::Headers`] say where they lie.
const MAX_MAP: usize = 39;

const _: () = assert!(size_of::<super::Headers>() == 48);

/// Texts up to this length have a marker of one byte.
const MAX_TEXT: usize = 31;

#[derive(Clone)]
pub(super) struct InlineField {
    length: u8,
    map: [u8; MAX_MAP],
}

impl InlineField {
    /// `None` where it is too long.
    #[inline]
    pub(super) fn new(name: &[u8], value: &[u8]) -> Option<Self> {
        let length = 4 + name.len() + value.len();
        if name.len() > MAX_TEXT || value.len() > MAX_TEXT || length > MAX_MAP {
            return None;
        }
        let mut map = [0; MAX_MAP];
        map[0] = 0x81;
        map[1] = 0xa0 | name.len() as u8;
        map[2..2 + name.len()].copy_from_slice(name);
        map[2 + name.len()] = 0x91;
        map[3 + name.len()] = 0xa0 | value.len() as u8;
        map[4 + name.len()..length].copy_from_slice(value);
        Some(Self {
            length: length as u8,
            map,
        })
    }

    #[inline]
    pub(super) fn packed(&self) -> &[u8] {
        self.map.get(..usize::from(self.length)).unwrap_or_default()
    }
}
