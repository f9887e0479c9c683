//! How the choice falls among equals, for groups and for slots.

/// How to choose among members or slots that are equally healthy and equally near.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Each in turn.
    RoundRobin,
    /// The one with the fewest calls in flight, in turn among equals.
    #[default]
    LeastLoaded,
    /// By chance, those whose calls go well more often.
    HealthWeighted,
    /// By chance.
    Random,
    /// Of two that chance names, the one with fewer calls in flight (Mitzenmacher, 2001): nearly as even as
    /// [`Strategy::LeastLoaded`], without every caller that asks at the same moment going to the same one.
    TwoChoices,
}
