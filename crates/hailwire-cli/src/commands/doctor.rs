//! `hail doctor`: what this network allows, why a path is as it is, and what to do.

use std::fmt::Write as _;

use hailwire::admin::{Diagnosis, DiagnosisFinding, DiagnosisRequest, PathCandidate, method};
use hailwire_terminal::{failure::CommandFailure, text};

use super::{CommandContext, connect};

/// Ends with exit code 1 where a fault was found.
pub(super) async fn run(
    run: &CommandContext,
    request: DiagnosisRequest,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let diagnosis: Diagnosis = client.admin(method::DIAGNOSE, &request).await?;
    run.output.value(&diagnosis, for_people)?;
    let is_fault = |finding: &&DiagnosisFinding| finding.level == "fault";
    match diagnosis.findings.iter().filter(is_fault).count() {
        0 => Ok(()),
        1 => Err(CommandFailure::general("one fault was found")),
        many => Err(CommandFailure::general(format!("{many} faults were found"))),
    }
}

fn for_people(diagnosis: &Diagnosis) -> String {
    let mut page = String::new();
    for finding in &diagnosis.findings {
        let DiagnosisFinding {
            code,
            level,
            cause,
            cure,
        } = finding;
        let _ = writeln!(page, "{level:<8} {code}", code = text::one_line(code));
        let _ = writeln!(page, "         {}", text::one_line(cause));
        if !cure.is_empty() {
            let _ = writeln!(page, "         → {}", text::one_line(cure));
        }
    }
    if let Some(peer) = &diagnosis.peer {
        candidates(&mut page, "from here", &peer.candidates);
        candidates(&mut page, "from there", &peer.far_candidates);
    }
    page
}

/// The addresses at which one end looked for the other, and what came back.
fn candidates(page: &mut String, whence: &str, candidates: &[PathCandidate]) {
    if candidates.is_empty() {
        return;
    }
    let _ = writeln!(page, "\naddresses that were tried {whence}");
    let shown = |candidate: &PathCandidate| {
        let parts = [&candidate.kind, &candidate.address];
        parts.map(|part| text::one_line(part))
    };
    let rows: Vec<_> = candidates.iter().map(shown).collect();
    let width = rows.iter().map(|[_, address]| address.chars().count());
    let width = width.max().unwrap_or_default();
    for (candidate, [kind, address]) in candidates.iter().zip(rows) {
        let what = match (candidate.used, candidate.answered) {
            (true, _) => "in use",
            (false, true) => "answered",
            (false, false) => "no answer",
        };
        let _ = writeln!(page, "  {kind:<5}  {address:<width$}  {what}");
    }
}

#[cfg(test)]
mod tests {
    use hailwire::admin::PeerDiagnosis;

    use super::*;

    #[test]
    fn each_finding_has_its_cause_and_its_cure() {
        let diagnosis = Diagnosis {
            findings: vec![DiagnosisFinding {
                code: "nat-symmetric".to_owned(),
                level: "warning".to_owned(),
                cause: "The router \x1b does.".to_owned(),
                cure: "Turn it off.".to_owned(),
            }],
            peer: Some(PeerDiagnosis {
                candidates: vec![PathCandidate {
                    kind: "udp".to_owned(),
                    address: "192.0.2.1:7".to_owned(),
                    answered: false,
                    used: false,
                }],
                far_candidates: vec![PathCandidate {
                    kind: "relay".to_owned(),
                    address: "https://hub\x1b/".to_owned(),
                    answered: true,
                    used: true,
                }],
                ..PeerDiagnosis::default()
            }),
            ..Diagnosis::default()
        };
        let page = for_people(&diagnosis);
        assert!(page.contains("warning  nat-symmetric\n"), "{page}");
        assert!(page.contains("         → Turn it off.\n"), "{page}");
        assert!(
            page.contains("from here\n  udp    192.0.2.1:7  no answer\n"),
            "{page}"
        );
        let there = page.split("from there\n").nth(1).unwrap();
        assert!(there.starts_with("  relay  https://hub") && there.ends_with("in use\n"));
        assert!(!page.contains('\x1b'));
    }
}
