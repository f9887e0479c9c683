//! All cases, by subject.

mod answers;
mod attaching;
mod callers;
mod connection;
mod control;
mod giving_up;
mod multiplexer;
mod openings;
mod requests;
mod topics;
mod volume;

use crate::case::CaseGroup;

/// All cases, in the order in which they are listed and run.
pub(crate) fn all() -> Vec<CaseGroup> {
    vec![
        attaching::group(),
        control::group(),
        openings::group(),
        requests::group(),
        callers::group(),
        answers::group(),
        giving_up::group(),
        multiplexer::group(),
        volume::group(),
        connection::group(),
        topics::group(),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::all;

    #[test]
    fn each_case_has_a_name_of_its_own_and_says_what_it_checks() {
        let groups = all();
        let cases: Vec<_> = groups.iter().flat_map(|group| &group.cases).collect();
        let names: HashSet<&str> = cases.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases.len());
        assert!(cases.len() >= 64, "{} cases", cases.len());
        for case in cases {
            let kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(case.name.chars().all(kebab), "{}", case.name);
            let claim = case.claim;
            assert!(
                claim.len() > 10 && !claim.ends_with('.') && !claim.contains('|'),
                "{claim}"
            );
        }
    }
}
