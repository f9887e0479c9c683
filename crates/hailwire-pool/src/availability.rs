//! Whether whoever may take a call takes it: one word for members and slots.

/// Whether a member or a slot takes new calls; the lesser is the better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Availability {
    /// It takes new calls. So does a member whose probe is due, or it would never recover.
    Available,
    /// Only where no available one has room.
    Degraded,
    /// It takes no new calls.
    #[default]
    Unavailable,
}
