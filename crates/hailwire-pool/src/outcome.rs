//! What a call showed about whoever served it.

/// What a call showed about the member or slot that served it.
///
/// An answer that refuses the request (`invalid_argument`, `not_found` …) is a success here: the
/// member is well. A failure is one that another member might not have had: unreachable, cut short,
/// broken. A call that was cancelled shows neither: drop the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The member answered.
    Success,
    /// The member could not be reached, or did not answer as it should.
    Failure,
}
