//! Lists of offers that take more than one frame.
//!
//! A node that offers many agents cuts its list into pages, each a frame of at most
//! [`limits::MAX_HEADER`] bytes: the first in `OFFERS`, the others in `MORE_OFFERS`, which a reader that
//! does not know it skips. Every page says which list it belongs to (`number`), which page it is and how
//! many there are, so that a reader may have the pages of one list from several connections with a node,
//! and drops what is older than the list that it has.
//!
//! A reader holds the pages as they came until it has all of them: at most
//! [`limits::MAX_OFFER_PAGES`] frames.

use bytes::Bytes;
use serde::Deserialize;
use thiserror::Error;

use crate::{
    frame::FrameKind,
    header::{self, AgentOffer, AgentOffers, HeaderError},
    limits,
    record::check_offer,
};

/// What a page takes besides its agents: the map and its keys, the length of the array, three numbers.
const PAGE_OVERHEAD: usize = 64;

/// Most bytes that an agent takes beyond those of a group of one, by what is said of its group.
pub const LARGEST_GROUP: usize = 45;

/// Bytes that an agent takes in a list of offers.
#[must_use]
pub fn size(offer: &AgentOffer) -> usize {
    header::encode(offer).len()
}

/// Cuts a list into the frames that carry it, first page first. `number` as [`AgentOffers::number`], not 0.
///
/// Agents beyond what [`limits::MAX_OFFER_PAGES`] pages hold are left out; a node that keeps to
/// [`limits::MAX_OFFERS`] has none of them.
#[must_use]
pub fn pages(agents: Vec<AgentOffer>, number: u64) -> Vec<(FrameKind, Bytes)> {
    let mut cut: Vec<Vec<AgentOffer>> = vec![Vec::new()];
    let mut room = limits::MAX_HEADER - PAGE_OVERHEAD;
    for offer in agents {
        let size = size(&offer);
        if size > room {
            cut.push(Vec::new());
            room = limits::MAX_HEADER - PAGE_OVERHEAD;
        }
        room = room.saturating_sub(size);
        if let Some(page) = cut.last_mut() {
            page.push(offer);
        }
    }
    cut.truncate(limits::MAX_OFFER_PAGES);
    let pages = if cut.len() > 1 { cut.len() as u32 } else { 0 };
    let frame = |(page, agents): (u32, Vec<AgentOffer>)| {
        let kind = match page {
            0 => FrameKind::OFFERS,
            _ => FrameKind::MORE_OFFERS,
        };
        let offers = AgentOffers {
            agents,
            number,
            page,
            pages,
        };
        (kind, Bytes::from(header::encode(&offers)))
    };
    (0..).zip(cut).map(frame).collect()
}

/// One page as it came, of which is known only where it belongs.
#[derive(Clone, Debug)]
pub struct OfferPage {
    number: u64,
    page: usize,
    pages: usize,
    payload: Bytes,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct PagePosition {
    number: u64,
    page: u32,
    pages: u32,
}

impl OfferPage {
    /// Reads where a page belongs, and passes over its agents without keeping them.
    ///
    /// # Errors
    ///
    /// [`OffersError`] for what is no page, or one that no list can have.
    pub fn parse(kind: FrameKind, payload: Bytes) -> Result<Self, OffersError> {
        let PagePosition {
            number,
            page,
            pages,
        } = header::decode(&payload)?;
        let (page, pages) = (page as usize, (pages as usize).max(1));
        if pages > limits::MAX_OFFER_PAGES {
            return Err(OffersError::Bound("number of pages"));
        }
        let first = kind == FrameKind::OFFERS;
        if page >= pages || first != (page == 0) || (number == 0 && pages > 1) {
            return Err(OffersError::Page);
        }
        Ok(Self {
            number,
            page,
            pages,
            payload,
        })
    }

    /// [`AgentOffers::number`].
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// The pages of one list, of which some may be missing.
#[derive(Clone, Debug)]
pub struct OfferPages {
    number: u64,
    pages: Vec<Option<Bytes>>,
}

impl OfferPages {
    /// The list that a page belongs to, with that page.
    #[must_use]
    pub fn of(page: OfferPage) -> Self {
        let mut pages = Self {
            number: page.number,
            pages: vec![None; page.pages],
        };
        pages.add(page);
        pages
    }

    /// [`AgentOffers::number`].
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Adds a page of the same list. One that disagrees about how many there are is ignored: one of the
    /// two is wrong, and the list stays as it is.
    pub fn add(&mut self, page: OfferPage) {
        if page.number == self.number
            && page.pages == self.pages.len()
            && let Some(place) = self.pages.get_mut(page.page)
        {
            *place = Some(page.payload);
        }
    }

    /// Whether no page is missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.pages.iter().all(Option::is_some)
    }

    /// The agents of all pages that are there, within their bounds. Takes time in proportion to their
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`OffersError`].
    pub fn agents(&self) -> Result<Vec<AgentOffer>, OffersError> {
        let mut agents = Vec::new();
        for payload in self.pages.iter().flatten() {
            let page: AgentOffers = header::decode(payload)?;
            agents.extend(page.agents);
            if agents.len() > limits::MAX_AGENTS_PER_NODE {
                return Err(OffersError::Bound("more than 1024 agents"));
            }
        }
        agents
            .iter()
            .try_for_each(check_offer)
            .map_err(OffersError::Bound)?;
        Ok(agents)
    }
}

/// Why bytes are not a list of offers.
#[derive(Debug, Error)]
pub enum OffersError {
    /// Not the map that belongs here.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A bound of [`limits`] was passed.
    #[error("an offer passes its bound: {0}")]
    Bound(&'static str),
    /// A page that its list cannot have, or in a frame of the wrong kind.
    #[error("a page of offers that no list has")]
    Page,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(index: usize, description: usize) -> AgentOffer {
        AgentOffer {
            group: crate::header::OfferedGroup::default(),
            name: format!("agent-{index}").parse().unwrap(),
            description: "d".repeat(description),
            tags: Vec::new(),
            version: String::new(),
        }
    }

    /// The largest agent that there may be.
    fn largest(index: usize) -> AgentOffer {
        AgentOffer {
            group: crate::header::OfferedGroup {
                members: u32::MAX,
                priority: u8::MAX,
                overflow: u32::MAX,
            },
            name: format!("{index:0>64}").parse().unwrap(),
            description: "d".repeat(limits::MAX_DESCRIPTION),
            tags: vec!["t".repeat(limits::MAX_NAME); limits::MAX_TAGS],
            version: "v".repeat(limits::MAX_NAME),
        }
    }

    fn parse(frames: &[(FrameKind, Bytes)]) -> Vec<OfferPage> {
        let page = |(kind, payload): &(FrameKind, Bytes)| OfferPage::parse(*kind, payload.clone());
        frames.iter().map(|frame| page(frame).unwrap()).collect()
    }

    fn joined(pages: impl IntoIterator<Item = OfferPage>) -> OfferPages {
        let mut pages = pages.into_iter();
        let mut all = OfferPages::of(pages.next().unwrap());
        pages.for_each(|page| all.add(page));
        all
    }

    #[test]
    fn the_largest_group_takes_what_is_reserved_for_it() {
        let alone = AgentOffer {
            group: crate::header::OfferedGroup::default(),
            ..largest(1)
        };
        assert_eq!(size(&largest(1)), size(&alone) + LARGEST_GROUP);
    }

    #[test]
    fn a_short_list_is_one_frame_that_every_version_reads() {
        let frames = pages(vec![offer(1, 10)], 7);
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].0, FrameKind::OFFERS);
        let read: AgentOffers = header::decode(&frames[0].1).unwrap();
        assert_eq!((read.number, read.page, read.pages), (7, 0, 0));
        assert_eq!(pages(Vec::new(), 1).len(), 1, "an empty list is said too");
    }

    #[test]
    fn the_fullest_list_fits_its_pages_and_comes_back_in_any_order() {
        let full = |list: &mut dyn Iterator<Item = AgentOffer>| {
            let mut bytes = 0;
            let fits = |offer: &AgentOffer| {
                bytes += size(offer);
                bytes <= limits::MAX_OFFERS
            };
            list.take_while(fits).collect::<Vec<_>>()
        };
        let lists = [
            full(&mut (0..limits::MAX_AGENTS_PER_NODE).map(|i| offer(i, 215))),
            full(&mut (0..limits::MAX_AGENTS_PER_NODE).map(largest)),
        ];
        assert_eq!(lists[0].len(), limits::MAX_AGENTS_PER_NODE);
        assert!(lists[1].len() > 150, "{}", lists[1].len());
        for list in lists {
            let frames = pages(list.clone(), 9);
            assert!((2..=limits::MAX_OFFER_PAGES).contains(&frames.len()));
            assert!(frames.iter().all(|(_, f)| f.len() <= limits::MAX_HEADER));
            let mut read = parse(&frames);
            read.reverse();
            assert!(!joined(read[1..].to_vec()).is_whole());
            let whole = joined(read);
            assert!(whole.is_whole());
            assert_eq!(whole.agents().unwrap(), list);
        }
    }

    #[test]
    fn pages_that_no_list_has_are_refused() {
        let page = |kind, number, page, pages| {
            let offers = AgentOffers {
                agents: Vec::new(),
                number,
                page,
                pages,
            };
            OfferPage::parse(kind, header::encode(&offers).into())
        };
        let most = limits::MAX_OFFER_PAGES as u32;
        assert!(page(FrameKind::OFFERS, 1, 0, most).is_ok());
        assert!(page(FrameKind::MORE_OFFERS, 1, most - 1, most).is_ok());
        for bad in [
            page(FrameKind::OFFERS, 1, 0, most + 1),
            page(FrameKind::OFFERS, 1, 1, 2),
            page(FrameKind::MORE_OFFERS, 1, 0, 2),
            page(FrameKind::MORE_OFFERS, 1, 2, 2),
            page(FrameKind::OFFERS, 0, 0, 2),
            OfferPage::parse(FrameKind::OFFERS, Bytes::from_static(b"\xc0")),
        ] {
            assert!(bad.is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_page_that_disagrees_about_its_list_changes_nothing() {
        let list: Vec<AgentOffer> = (0..limits::MAX_AGENTS_PER_NODE)
            .map(|i| offer(i, 200))
            .collect();
        let pages_of = |number| parse(&pages(list.clone(), number));
        let mut whole = joined(pages_of(3));
        for page in pages_of(4) {
            whole.add(page);
        }
        assert_eq!(whole.number(), 3);
        assert_eq!(whole.agents().unwrap(), list);
    }
}
