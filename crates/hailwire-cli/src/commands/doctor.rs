//! `hail doctor`: what this network allows, why a path is as it is, and what to do.

use std::fmt::Write as _;

use hailwire::admin::{AddressPair, Diagnosis, DiagnosisFinding, DiagnosisRequest, method};
use hailwire_terminal::{
    failure::CommandFailure,
    table::{TableStyle, TextTable},
    text,
};

use super::{CommandContext, connect};

/// Ends with exit code 1 where a fault was found.
pub(super) async fn run(
    run: &CommandContext,
    request: DiagnosisRequest,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let diagnosis: Diagnosis = client.admin(method::DIAGNOSE, &request).await?;
    let style = run.output.table_style();
    let shown = |diagnosis: &Diagnosis| for_people(diagnosis, style);
    run.output.value(&diagnosis, shown)?;
    let is_fault = |finding: &&DiagnosisFinding| finding.level == "fault";
    match diagnosis.findings.iter().filter(is_fault).count() {
        0 => Ok(()),
        1 => Err(CommandFailure::general("one fault was found")),
        many => Err(CommandFailure::general(format!("{many} faults were found"))),
    }
}

fn for_people(diagnosis: &Diagnosis, style: TableStyle) -> String {
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
    if let Some(peer) = &diagnosis.peer
        && !peer.pairs.is_empty()
    {
        let _ = write!(page, "\n{}", pairs(&peer.pairs, style));
    }
    page
}

/// The pairs of addresses that were tried, and what came back.
fn pairs(pairs: &[AddressPair], style: TableStyle) -> String {
    let mut table = TextTable::new(["TRIED", "HERE", "THERE", "WHAT CAME BACK"]);
    for pair in pairs {
        let what = match pair.outcome.as_str() {
            "used" => "an answer, in use",
            "answered" => "an answer",
            _ => "nothing",
        };
        let end = |address: &Option<String>| address.clone().unwrap_or_default();
        table.row([
            pair.kind.clone(),
            end(&pair.near),
            end(&pair.far),
            what.to_owned(),
        ]);
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use hailwire::admin::PeerDiagnosis;

    use super::*;

    fn pair(kind: &str, near: Option<&str>, far: Option<&str>, outcome: &str) -> AddressPair {
        AddressPair {
            kind: kind.to_owned(),
            near: near.map(str::to_owned),
            far: far.map(str::to_owned),
            outcome: outcome.to_owned(),
        }
    }

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
                pairs: vec![
                    pair(
                        "relay",
                        Some("https://hub\x1b/"),
                        Some("https://hub\x1b/"),
                        "used",
                    ),
                    pair("udp", None, Some("192.0.2.1:7"), "no-answer"),
                ],
                ..PeerDiagnosis::default()
            }),
            ..Diagnosis::default()
        };
        let page = for_people(&diagnosis, TableStyle::default());
        assert!(page.contains("warning  nat-symmetric\n"), "{page}");
        assert!(page.contains("         → Turn it off.\n"), "{page}");
        let table: Vec<Vec<&str>> = page
            .lines()
            .skip_while(|line| !line.starts_with("TRIED"))
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(table[0].last(), Some(&"use"), "{page}");
        assert_eq!(table[1], ["udp", "-", "192.0.2.1:7", "nothing"], "{page}");
        assert!(!page.contains('\x1b'));
    }
}
