use super::*;
use crate::{
    event::{Guardrail, GuardrailCheck},
    guardrail::{FINDINGS_KEY, Finding},
};

fn text(content: &str) -> Guardrail {
    Guardrail {
        correlation_id: Text::from("c"),
        inspection_type: GuardrailCheck::PiiDetection,
        content: content.to_owned(),
        ..Guardrail::default()
    }
}

fn found(redacted: Option<&str>) -> Findings {
    Findings {
        detected: true,
        confidence: 0.9,
        findings: vec![Finding {
            category: "ssn".to_owned(),
            ..Finding::default()
        }],
        redacted: redacted.map(str::to_owned),
    }
}

fn contents(agent: &Scripted) -> Vec<String> {
    let asked = agent.asked.lock().unwrap();
    let contents = asked.iter().filter_map(|event| match event {
        Event::Guardrail(event) => Some(event.content.clone()),
        _ => None,
    });
    contents.collect()
}

#[tokio::test]
async fn a_text_goes_on_without_what_was_found_and_otherwise_not_at_all() {
    let first = Scripted::new([answers(found(Some("my *")).answer())], allows());
    let second = Scripted::new([], answers(found(None).answer()));
    let inspector = inspector([
        ("a", AgentRule::default(), &first),
        ("b", AgentRule::default(), &second),
    ]);
    let mut exchange = inspector.exchange();
    let out = exchange.guardrail(text("my 123")).await;
    assert_eq!(contents(&second), ["my *"], "as the one before left it");
    assert_eq!(out.verdict.decision, blocked(403));
    assert!(out.verdict.routing_metadata.is_empty());
    assert_eq!(exchange.stopped(), Some(&blocked(403)));
    let late = exchange.guardrail(text("again")).await;
    assert_eq!(late.verdict.decision, blocked(403));
    assert_eq!(contents(&first), ["my 123"], "nobody is asked any more");
    for (agent, stopped) in [("a", 0), ("b", 1)] {
        let tally = inspector.counters(agent).unwrap();
        let counted = (
            tally.asked(EventKind::Guardrail),
            tally.stopped(EventKind::Guardrail),
        );
        assert_eq!(counted, (1, stopped));
    }

    let agent = Scripted::new([answers(found(Some("my *")).answer())], allows());
    let inspector = super::inspector([("a", AgentRule::default(), &agent)]);
    let mut exchange = inspector.exchange();
    let out = exchange.guardrail(text("my 123")).await;
    assert!(out.verdict.passes());
    assert_eq!(out.content.as_deref(), Some("my *"));
    assert_eq!(out.findings, [(Text::from("a"), found(Some("my *")))]);
    let out = exchange.guardrail(text("nothing")).await;
    assert_eq!(out, TextVerdict::default());
}

#[tokio::test]
async fn an_agent_decides_about_a_text_by_itself_where_it_wants() {
    let mut worse = found(Some("my *")).answer();
    worse.decision = blocked(451);
    for answer in [worse, Response::block(451)] {
        let agent = Scripted::always(answers(answer));
        let mut exchange = inspector([("a", AgentRule::default(), &agent)]).exchange();
        let out = exchange.guardrail(text("my 123")).await;
        assert_eq!(out.verdict.decision, blocked(451));
        assert_eq!(out.content, None);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_answered_about_a_text_is_decided_by_its_phase() {
    let mut unreadable = Response::allow();
    let lie = "{\"detected\":7}".to_owned();
    unreadable
        .routing_metadata
        .insert(FINDINGS_KEY.to_owned(), lie);
    let cases = [
        (answers(unreadable), AgentFault::Error),
        (Does::Hangs, AgentFault::Timeout),
        (Does::Fails(CallError::Down), AgentFault::Error),
        (Does::Fails(CallError::Overload), AgentFault::Overload),
        (Does::Fails(CallError::TooLarge), AgentFault::BodyTooLarge),
    ];
    for (does, fault) in cases {
        for action in [FallbackAction::Allow, FallbackAction::Block(418)] {
            let agent = Scripted::always(does.clone());
            let mut own = AgentRule::default();
            own.phase_mut(EventKind::Guardrail).unwrap().on[fault as usize] = action;
            let inspector = inspector([("a", own, &agent)]);
            let out = inspector.exchange().guardrail(text("text")).await;
            let passes = action == FallbackAction::Allow;
            assert_eq!(out.verdict.passes(), passes, "{fault:?}");
            assert_eq!((out.content, out.findings.len()), (None, 0));
            let tally = inspector.counters("a").unwrap();
            let counted = [
                tally.bypassed(EventKind::Guardrail, fault),
                tally.blocked(EventKind::Guardrail, fault),
            ];
            assert_eq!(counted, [u64::from(passes), u64::from(!passes)]);
        }
    }
}

#[tokio::test]
async fn an_agent_that_observes_leaves_a_text_as_it_is() {
    for (redacted, observed) in [(Some("my *"), 0), (None, 1)] {
        let agent = Scripted::always(answers(found(redacted).answer()));
        let own = AgentRule {
            observe: true,
            ..AgentRule::default()
        };
        let inspector = inspector([("a", own, &agent)]);
        let out = inspector.exchange().guardrail(text("my 123")).await;
        assert!(out.verdict.passes() && out.content.is_none());
        assert_eq!(out.findings.len(), 1, "for records");
        let tally = inspector.counters("a").unwrap();
        assert_eq!(tally.observed(EventKind::Guardrail), observed);
    }
}

/// An agent for texts and nothing else, on a real socket.
struct Texts;

impl crate::Agent for Texts {
    fn name(&self) -> &str {
        "texts"
    }

    async fn guardrail(&self, event: Guardrail) -> Response {
        match event.content.contains("123") {
            true => found(Some(&event.content.replace("123", "*"))).answer(),
            false => Findings::default().answer(),
        }
    }
}

#[tokio::test]
async fn only_agents_that_say_so_are_asked_about_texts() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("texts");
    let listener = crate::agent::uds::UdsListener::bind(&socket).unwrap();
    let _serving = tokio::spawn(async move {
        let options = crate::agent::ServeOptions::default();
        let _ = crate::agent::uds::serve(Arc::new(Texts), listener, &options).await;
    });
    let config = format!("agents {{ agent \"a\" {{ binary-uds {socket:?}; timeout-ms 20000 }} }}");
    let config = Config::parse(&config, std::path::Path::new("callout.kdl")).unwrap();
    let inspector = Inspector::from_config(&config, &|_, _| None).unwrap();
    assert!(inspector.ready(Duration::from_secs(20)).await);
    let mut exchange = inspector.exchange();
    assert!(exchange.wants(EventKind::Guardrail) && !exchange.wants(EventKind::RequestHeaders));
    assert!(exchange.request_headers(head("c")).await.passes());
    let out = exchange.guardrail(text("my 123")).await;
    assert!(out.verdict.passes());
    assert_eq!(out.content.as_deref(), Some("my *"));
    let tally = inspector.counters("a").unwrap();
    assert_eq!(tally.asked(EventKind::RequestHeaders), 0);
    assert_eq!(tally.asked(EventKind::Guardrail), 1);
}
