//! Fields, written in the form in which they are kept: a map whose length, and those of its arrays, are known only at the end.

use std::iter;

use super::{MapExtent, groups, offset};

/// Writes fields as a map.
pub(crate) fn write<'a>(
    fields: impl IntoIterator<Item = (&'a str, &'a str)>,
    out: &mut Vec<u8>,
) -> MapExtent {
    let fields = fields.into_iter();
    let mut writer = HeaderWriter::new(fields.size_hint().1, out);
    for (name, value) in fields {
        if !writer.is_of(name.as_bytes()) {
            writer.name(name.as_bytes());
        }
        writer.value(value.as_bytes());
    }
    writer.finish()
}

/// Writes a map of names to arrays of values, whose lengths are known only at the end.
pub(crate) struct HeaderWriter<'v> {
    out: &'v mut Vec<u8>,
    start: usize,
    /// Bytes of the map's length: 1, 3 or 5.
    prefix: usize,
    names: u32,
    /// Where the name is to which values belong.
    name: (usize, usize),
    /// Where their array is.
    array: usize,
    values: u32,
    all_values: u32,
    seen: DuplicateFilter,
}

impl<'v> HeaderWriter<'v> {
    /// Begins. `most` is how many names there may be, if that is known.
    pub(crate) fn new(most: Option<usize>, out: &'v mut Vec<u8>) -> Self {
        let start = out.len();
        let prefix = if most.is_some_and(|most| most <= 15) {
            out.push(0x80);
            1
        } else {
            out.extend_from_slice(&[0xde, 0, 0]);
            3
        };
        Self {
            out,
            start,
            prefix,
            names: 0,
            name: (0, 0),
            array: 0,
            values: 0,
            all_values: 0,
            seen: DuplicateFilter::default(),
        }
    }

    /// Whether this is the name to which values belong, whatever its case.
    fn is_of(&self, name: &[u8]) -> bool {
        let (start, end) = self.name;
        end - start == name.len()
            && self.names > 0
            && self
                .out
                .get(start..end)
                .is_some_and(|known| known.eq_ignore_ascii_case(name))
    }

    /// Begins with the values of a name.
    pub(crate) fn name(&mut self, name: &[u8]) {
        self.close();
        self.names += 1;
        self.seen.add(name);
        put_text(name, self.out);
        self.name = (self.out.len() - name.len(), self.out.len());
        self.array = self.out.len();
        self.values = 0;
        self.out.push(0x90);
    }

    /// One value of it.
    pub(crate) fn value(&mut self, value: &[u8]) {
        self.values += 1;
        put_text(value, self.out);
    }

    fn close(&mut self) {
        if self.names == 0 {
            return;
        }
        self.all_values += self.values;
        match self.values {
            few @ 0..=15 => {
                if let Some(marker) = self.out.get_mut(self.array) {
                    *marker = 0x90 | few as u8;
                }
            }
            many => {
                let length = many.to_be_bytes();
                let marker = [0xdd, length[0], length[1], length[2], length[3]];
                self.out.splice(self.array..=self.array, marker);
            }
        }
    }

    /// Writes the lengths. Names that came apart are put together.
    pub(crate) fn finish(mut self) -> MapExtent {
        self.close();
        let (start, length) = (self.start, self.names.to_be_bytes());
        match (self.prefix, self.names) {
            (1, few @ 0..=15) => {
                if let Some(marker) = self.out.get_mut(start) {
                    *marker = 0x80 | few as u8;
                }
            }
            (3, 0..=0xffff) => {
                if let Some(place) = self.out.get_mut(start + 1..start + 3) {
                    place.copy_from_slice(&length[2..]);
                }
            }
            (prefix, _) => {
                let marker = [0xdf, length[0], length[1], length[2], length[3]];
                self.out.splice(start..start + prefix, marker);
            }
        }
        if self.seen.perhaps_twice && has_twice(self.out.get(start..).unwrap_or_default()) {
            return put_together(start, self.out);
        }
        MapExtent {
            start: offset(start),
            end: offset(self.out.len()),
            names: self.names,
            values: self.all_values,
        }
    }
}

/// Rewrites the map at the end of `out` so that no name occurs twice.
fn put_together(start: usize, out: &mut Vec<u8>) -> MapExtent {
    let map = out.get(start..).unwrap_or_default();
    let map = map.to_vec();
    let mut grouped: Vec<(&[u8], Vec<&[u8]>)> = Vec::new();
    let mut index = std::collections::HashMap::new();
    for (name, mut values) in groups(&map) {
        let at = *index.entry(name.to_ascii_lowercase()).or_insert_with(|| {
            grouped.push((name, Vec::new()));
            grouped.len() - 1
        });
        if let Some((_, all)) = grouped.get_mut(at) {
            all.extend(iter::from_fn(|| values.next_bytes()));
        }
    }
    out.truncate(start);
    let mut writer = HeaderWriter::new(Some(grouped.len()), out);
    for (name, values) in grouped {
        writer.name(name);
        for value in values {
            writer.value(value);
        }
    }
    // It cannot come here again.
    writer.seen = DuplicateFilter::default();
    writer.finish()
}

/// Whether a name of a checked map occurs twice, whatever its case.
pub(crate) fn has_twice(map: &[u8]) -> bool {
    let names: Vec<&[u8]> = groups(map).map(|(name, _)| name).collect();
    if names.len() <= 64 {
        return names.iter().enumerate().any(|(before, name)| {
            let same =
                |known: &&[u8]| known.len() == name.len() && known.eq_ignore_ascii_case(name);
            names.iter().take(before).any(same)
        });
    }
    let mut known = std::collections::HashSet::new();
    names
        .iter()
        .any(|name| !known.insert(name.to_ascii_lowercase()))
}

/// Tells, at a glance, that no name came twice.
#[derive(Default)]
pub(crate) struct DuplicateFilter {
    bits: [u64; 32],
    /// Some may have.
    pub(crate) perhaps_twice: bool,
}

impl DuplicateFilter {
    #[inline]
    pub(crate) fn add(&mut self, name: &[u8]) {
        const LOWER: u64 = u64::MAX / 255 * 0x20;
        let (first, last) = match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
            (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
            _ => {
                let short = name
                    .iter()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte));
                (short, 0)
            }
        };
        let mixed = (first | LOWER)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add((last | LOWER).wrapping_mul(0xc2b2_ae3d_27d4_eb4f))
            .wrapping_add((name.len() as u64).wrapping_mul(0x1656_67b1_9e37_79f9));
        let hash = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 53;
        let (word, bit) = ((hash >> 6) as usize & 31, 1 << (hash & 63));
        self.perhaps_twice |= self.bits[word] & bit != 0;
        self.bits[word] |= bit;
    }
}

fn put_text(text: &[u8], out: &mut Vec<u8>) {
    match text.len() {
        length @ 0..=31 => out.push(0xa0 | length as u8),
        length @ 32..=0xff => out.extend_from_slice(&[0xd9, length as u8]),
        length @ 0x100..=0xffff => {
            out.push(0xda);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(0xdb);
            out.extend_from_slice(&offset(length).to_be_bytes());
        }
    }
    out.extend_from_slice(text);
}
