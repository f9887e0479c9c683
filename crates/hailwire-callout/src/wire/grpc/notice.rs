//! What an agent says unasked.

use serde_json::Value;

use super::{
    DecodeError, json, now_ms,
    proto::{self, agent_to_proxy::Message, config_update_request::UpdateType as Wanted},
};
use crate::{
    Text,
    control::{
        AgentHealth, ConfigUpdate, ConfigUpdateKind, FlowControl, HealthState, HistogramBucket,
        HistogramMetric, LogLine, Metric, MetricsReport, Notice, RuleDefinition,
    },
};

/// What an agent said unasked.
#[derive(Debug)]
pub(crate) enum ReceivedNotice {
    /// This.
    Notice(Notice),
    /// Something that changes nothing here, such as how much room it has.
    Nothing,
}

/// A notice as a message, from the agent of this name.
pub(crate) fn notice(notice: Notice, agent: &str) -> Message {
    match notice {
        Notice::Health(health) => Message::Health(health_status(health, agent)),
        Notice::Metrics(report) => Message::Metrics(metrics(report)),
        Notice::ConfigUpdate(update) => Message::ConfigUpdate(config_update(update)),
        Notice::Flow(flow) => {
            let (action, id) = match flow {
                FlowControl::Pause(id) => (proto::FlowAction::Pause, id),
                FlowControl::Resume(id) => (proto::FlowAction::Resume, id),
            };
            Message::FlowControl(proto::FlowControlSignal {
                correlation_id: id.map(|id| id.to_string()),
                action: action.into(),
                buffer_available: None,
                timestamp_ms: now_ms(),
            })
        }
        Notice::Log(log) => Message::Log(proto::LogMessage {
            level: log.level.into(),
            message: log.message,
            correlation_id: log.correlation_id,
            fields: Default::default(),
            timestamp_ms: now_ms(),
        }),
    }
}

/// What a message says; `None` where it is no notice.
pub(crate) fn notified(message: Message) -> Option<Result<ReceivedNotice, DecodeError>> {
    let notice = match message {
        Message::Handshake(_) | Message::Response(_) | Message::Pong(_) => return None,
        Message::Health(status) => read_health(status).map(Notice::Health),
        Message::Metrics(report) => Ok(Notice::Metrics(read_metrics(report))),
        Message::ConfigUpdate(update) => read_config_update(update).map(Notice::ConfigUpdate),
        Message::FlowControl(signal) => {
            let id = signal.correlation_id.map(Text::from);
            match proto::FlowAction::try_from(signal.action) {
                Ok(proto::FlowAction::Pause) => Ok(Notice::Flow(FlowControl::Pause(id))),
                Ok(proto::FlowAction::Resume) => Ok(Notice::Flow(FlowControl::Resume(id))),
                _ => return Some(Ok(ReceivedNotice::Nothing)),
            }
        }
        Message::Log(log) => Ok(Notice::Log(LogLine {
            level: u8::try_from(log.level).unwrap_or(0),
            message: log.message,
            correlation_id: log.correlation_id,
        })),
    };
    Some(notice.map(ReceivedNotice::Notice))
}

/// How an agent is, as a message.
pub(crate) fn health_status(health: AgentHealth, agent: &str) -> proto::HealthStatus {
    let load = health.in_flight.map(|in_flight| proto::LoadMetrics {
        in_flight,
        ..proto::LoadMetrics::default()
    });
    proto::HealthStatus {
        agent_id: agent.to_owned(),
        state: u8::from(health.state).into(),
        message: health.message,
        load,
        timestamp_ms: now_ms(),
        timeout_multiplier: health.timeout_multiplier.unwrap_or(0.0),
        drain_eta_ms: health.drain_eta_ms,
        ..proto::HealthStatus::default()
    }
}

pub(crate) fn read_health(status: proto::HealthStatus) -> Result<AgentHealth, DecodeError> {
    let state = u8::try_from(status.state)
        .map_err(|e| e.to_string())
        .and_then(HealthState::try_from)
        .map_err(DecodeError)?;
    Ok(AgentHealth {
        state,
        message: status.message.or(status.unhealthy_reason),
        in_flight: status.load.map(|load| load.in_flight),
        drain_eta_ms: status.drain_eta_ms,
        timeout_multiplier: Some(status.timeout_multiplier).filter(|by| *by > 0.0),
    })
}

fn metrics(report: MetricsReport) -> proto::MetricsReport {
    proto::MetricsReport {
        agent_id: report.agent_id,
        timestamp_ms: report.timestamp_ms,
        interval_ms: report.interval_ms,
        counters: report
            .counters
            .into_iter()
            .map(|metric| proto::CounterMetric {
                name: metric.name,
                help: metric.help,
                labels: metric.labels,
                value: metric.value,
            })
            .collect(),
        gauges: report
            .gauges
            .into_iter()
            .map(|metric| proto::GaugeMetric {
                name: metric.name,
                help: metric.help,
                labels: metric.labels,
                value: metric.value,
            })
            .collect(),
        histograms: report.histograms.into_iter().map(histogram).collect(),
    }
}

fn histogram(histogram: HistogramMetric) -> proto::HistogramMetric {
    let buckets = histogram.buckets.into_iter();
    proto::HistogramMetric {
        name: histogram.name,
        help: histogram.help,
        labels: histogram.labels,
        sum: histogram.sum,
        count: histogram.count,
        buckets: buckets
            .map(|bucket| proto::HistogramBucket {
                le: bucket.le.as_f64().unwrap_or(f64::INFINITY),
                count: bucket.count,
            })
            .collect(),
    }
}

fn read_metrics(report: proto::MetricsReport) -> MetricsReport {
    MetricsReport {
        agent_id: report.agent_id,
        timestamp_ms: report.timestamp_ms,
        interval_ms: report.interval_ms,
        counters: report
            .counters
            .into_iter()
            .map(|metric| Metric {
                name: metric.name,
                help: metric.help,
                labels: metric.labels,
                value: metric.value,
            })
            .collect(),
        gauges: report
            .gauges
            .into_iter()
            .map(|metric| Metric {
                name: metric.name,
                help: metric.help,
                labels: metric.labels,
                value: metric.value,
            })
            .collect(),
        histograms: report.histograms.into_iter().map(read_histogram).collect(),
    }
}

fn read_histogram(histogram: proto::HistogramMetric) -> HistogramMetric {
    let buckets = histogram.buckets.into_iter();
    HistogramMetric {
        name: histogram.name,
        help: histogram.help,
        labels: histogram.labels,
        sum: histogram.sum,
        count: histogram.count,
        buckets: buckets
            .map(|bucket| HistogramBucket {
                le: serde_json::Number::from_f64(bucket.le)
                    .map_or_else(|| Value::from("+Inf"), Value::Number),
                count: bucket.count,
            })
            .collect(),
    }
}

fn config_update(update: ConfigUpdate) -> proto::ConfigUpdateRequest {
    let wanted = match update.update_type {
        ConfigUpdateKind::RequestReload => Wanted::RequestReload(proto::RequestReload {}),
        ConfigUpdateKind::RuleUpdate {
            rule_set,
            rules,
            remove_rules,
        } => Wanted::RuleUpdate(proto::RuleUpdate {
            rule_set,
            rules: rules.into_iter().map(rule).collect(),
            remove_rules,
        }),
        ConfigUpdateKind::ListUpdate {
            list_id,
            add,
            remove,
        } => Wanted::ListUpdate(proto::ListUpdate {
            list_id,
            add,
            remove,
        }),
        ConfigUpdateKind::RestartRequired {
            reason,
            grace_period_ms,
        } => Wanted::RestartRequired(proto::RestartRequired {
            reason,
            grace_period_ms,
        }),
        ConfigUpdateKind::ConfigError { error, field } => {
            Wanted::ConfigError(proto::ConfigError { error, field })
        }
    };
    proto::ConfigUpdateRequest {
        request_id: update.request_id,
        timestamp_ms: update.timestamp_ms,
        update_type: Some(wanted),
    }
}

fn read_config_update(update: proto::ConfigUpdateRequest) -> Result<ConfigUpdate, DecodeError> {
    let update_type = match update.update_type {
        None => return Err(DecodeError("the configuration update is empty".to_owned())),
        Some(Wanted::RequestReload(_)) => ConfigUpdateKind::RequestReload,
        Some(Wanted::RuleUpdate(of)) => ConfigUpdateKind::RuleUpdate {
            rule_set: of.rule_set,
            rules: of
                .rules
                .into_iter()
                .map(read_rule)
                .collect::<Result<_, _>>()?,
            remove_rules: of.remove_rules,
        },
        Some(Wanted::ListUpdate(of)) => ConfigUpdateKind::ListUpdate {
            list_id: of.list_id,
            add: of.add,
            remove: of.remove,
        },
        Some(Wanted::RestartRequired(of)) => ConfigUpdateKind::RestartRequired {
            reason: of.reason,
            grace_period_ms: of.grace_period_ms,
        },
        Some(Wanted::ConfigError(of)) => ConfigUpdateKind::ConfigError {
            error: of.error,
            field: of.field,
        },
    };
    Ok(ConfigUpdate {
        update_type,
        request_id: update.request_id,
        timestamp_ms: update.timestamp_ms,
    })
}

fn rule(rule: RuleDefinition) -> proto::RuleDefinition {
    proto::RuleDefinition {
        id: rule.id,
        priority: rule.priority,
        definition_json: rule.definition.to_string(),
        enabled: rule.enabled,
        description: rule.description,
        tags: rule.tags,
    }
}

fn read_rule(rule: proto::RuleDefinition) -> Result<RuleDefinition, DecodeError> {
    Ok(RuleDefinition {
        definition: json(&rule.definition_json)?,
        id: rule.id,
        priority: rule.priority,
        enabled: rule.enabled,
        description: rule.description,
        tags: rule.tags,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_notice_comes_as_it_left() {
        let text = str::to_owned;
        let labels = BTreeMap::from([(text("l"), text("v"))]);
        let notices = [
            Notice::Health(AgentHealth {
                state: HealthState::Draining,
                message: Some(text("m")),
                in_flight: Some(3),
                drain_eta_ms: Some(4),
                timeout_multiplier: Some(2.0),
            }),
            Notice::Metrics(MetricsReport {
                agent_id: text("a"),
                timestamp_ms: 1,
                interval_ms: 2,
                counters: vec![Metric {
                    name: text("c"),
                    help: None,
                    labels: labels.clone(),
                    value: 3,
                }],
                gauges: vec![Metric {
                    name: text("g"),
                    help: Some(text("h")),
                    labels: labels.clone(),
                    value: 0.5,
                }],
                histograms: vec![HistogramMetric {
                    name: text("h"),
                    help: None,
                    labels,
                    sum: 1.5,
                    count: 2,
                    buckets: vec![
                        HistogramBucket {
                            le: Value::from(0.5),
                            count: 1,
                        },
                        HistogramBucket {
                            le: Value::from("+Inf"),
                            count: 2,
                        },
                    ],
                }],
            }),
            Notice::ConfigUpdate(ConfigUpdate {
                update_type: ConfigUpdateKind::RuleUpdate {
                    rule_set: text("r"),
                    rules: vec![RuleDefinition {
                        id: text("1"),
                        priority: -1,
                        definition: serde_json::json!({"a": 1}),
                        enabled: true,
                        description: None,
                        tags: vec![text("t")],
                    }],
                    remove_rules: vec![text("2")],
                },
                request_id: text("q"),
                timestamp_ms: 5,
            }),
            Notice::Flow(FlowControl::Pause(None)),
            Notice::Flow(FlowControl::Resume(Some("c1".into()))),
            Notice::Log(LogLine {
                level: 3,
                message: text("m"),
                correlation_id: Some(text("c1")),
            }),
        ];
        for given in notices {
            let came = notified(notice(given.clone(), "a"));
            assert!(
                matches!(&came, Some(Ok(ReceivedNotice::Notice(read))) if *read == given),
                "{given:?} {came:?}"
            );
        }
    }
}
