//! `hail doctor`: what this network allows, why a path is as it is, and what to do.

use std::fmt::Write as _;

use hailwire::admin::{Diagnosis, DiagnosisFinding, DiagnosisRequest, method};
use hailwire_terminal::{failure::CommandFailure, text};

use super::{CommandContext, connect};

/// Ends with exit code 1 where a fault was found.
pub(super) async fn run(run: &CommandContext, who: String) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let diagnosis: Diagnosis = client
        .admin(method::DIAGNOSE, &DiagnosisRequest { who })
        .await?;
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
    let candidates = diagnosis.peer.iter().flat_map(|peer| &peer.candidates);
    let mut title = "\naddresses of the peer that were tried\n";
    for candidate in candidates {
        let what = match (candidate.used, candidate.answered) {
            (true, _) => "in use",
            (false, true) => "answered",
            (false, false) => "no answer",
        };
        let address = text::one_line(&candidate.address);
        let _ = writeln!(page, "{title}  {:<5} {address}  {what}", candidate.kind);
        title = "";
    }
    page
}

#[cfg(test)]
mod tests {
    use hailwire::admin::{PathCandidate, PeerDiagnosis};

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
                ..PeerDiagnosis::default()
            }),
            ..Diagnosis::default()
        };
        let page = for_people(&diagnosis);
        assert!(page.contains("warning  nat-symmetric\n"), "{page}");
        assert!(page.contains("         → Turn it off.\n"), "{page}");
        assert!(page.contains("  udp   192.0.2.1:7  no answer\n"), "{page}");
        assert!(!page.contains('\x1b'));
    }
}
