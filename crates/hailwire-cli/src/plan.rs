//! Decides what to do from the arguments and the environment, without side effects.
//!
//! [`plan`] is a pure function: the same arguments in the same [`ProcessSurroundings`] give the same
//! [`Plan`], and every refusal that needs no I/O is made here. Each command's file under [`crate::commands`]
//! carries out its plan.

use std::{
    ffi::{OsStr, OsString},
    num::NonZeroU32,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use hailwire::{
    Code, Status, admin,
    config::{ByteSize, Carrier},
};
use hailwire_core::{call_attempts::AttemptPolicy, dispatch_plan::DispatchLimits};
use hailwire_hub::TlsMode;
use hailwire_terminal::{
    failure::CommandFailure,
    global::{CommonOptions, GlobalArgs, ProcessSurroundings},
    programs::{self, CompanionProgram},
};
use hailwire_wire::{
    Address, AgentName, HubUrl, Priority,
    address::{LeaseName, NodeRef},
    directory::MemberTrust,
    limits,
    messages::MessageState,
    ticket::Ticket,
    topics::{Topic, TopicPattern},
};

use crate::{
    args::{Cli, Command, HeaderField, agent, callout, inbox, lead, node, other, task, topics},
    serve::{
        agent_spec::{AgentSpec, DEFAULT_IDLE, GroupPlace, MAX_WOKEN, OnMessage, default_max},
        agents_file,
    },
};

/// The decided action with its global options.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) common: CommonOptions,
    pub(crate) action: Action,
}

/// How often a peer is pinged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PingPlan {
    /// Most pings.
    pub(crate) count: u32,
    /// The time between two.
    pub(crate) interval: Duration,
    /// Whether the first that took a direct path is the last, and none such a failure.
    pub(crate) until_direct: bool,
}

/// The action of a run. Requests to the node are ready to be sent.
#[derive(Debug)]
pub(crate) enum Action {
    Up(node::UpArgs),
    Down(admin::ShutdownRequest),
    Status,
    Top,
    Logs {
        lines: usize,
        follow: bool,
    },
    Id,
    Invite(admin::InviteRequest),
    Join(JoinPlan),
    TrustList,
    TrustAdd(admin::TrustAdd),
    TrustRemove(admin::PeerSelector),
    TrustPending,
    TrustApprove(admin::TrustAdd),
    Peers {
        watch: bool,
    },
    Doctor(admin::DiagnosisRequest),
    Agents(admin::AgentsQuery),
    Describe(Address),
    /// One agent, for as long as the command runs.
    Serve {
        agent: AgentSpec,
        /// How long calls under way may take when it is to end.
        drain: Duration,
    },
    ServeFile {
        file: PathBuf,
        drain: Duration,
        /// The process id of the node that has started this.
        beside_node: Option<u32>,
    },
    ServeKeep {
        file: PathBuf,
        agent: AgentSpec,
    },
    ServeList(PathBuf),
    ServeRemove {
        name: AgentName,
        file: PathBuf,
    },
    ServeRestart {
        name: AgentName,
        file: PathBuf,
    },
    ServeLogs {
        name: Option<AgentName>,
        follow: bool,
        file: PathBuf,
    },
    Call {
        call: CallPlan,
        stats: bool,
    },
    /// A call of every member of a group.
    Gather {
        call: CallPlan,
        /// How many answers are enough; `None` for all.
        replies: Option<u32>,
    },
    Dispatch(Box<DispatchPlanned>),
    Send(CallPlan),
    SendDurable {
        call: CallPlan,
        durable: DurablePlan,
    },
    InboxList(admin::MessageQuery),
    InboxShow(String),
    InboxWait {
        id: String,
        until: String,
    },
    InboxRetry(String),
    InboxDrop(String),
    InboxTake {
        agent: String,
        most: u32,
        lease: Duration,
    },
    InboxAck(admin::MessageVerdict),
    TaskSubmit {
        call: CallPlan,
        durable: DurablePlan,
    },
    TaskStatus(String),
    TaskWait(String),
    TaskCancel(String),
    TaskList(admin::MessageQuery),
    TaskProgress(admin::TaskProgressReport),
    Publish(PublishPlan),
    Subscribe(SubscribePlan),
    TopicList,
    Lead(LeadPlan),
    Leases(admin::LeaseQuery),
    TopicKeep(admin::KeepRequest),
    TopicUnkeep(String),
    TopicForget(String),
    StatePut(PublishPlan),
    StateGet {
        key: String,
        wait: Duration,
    },
    StateWatch {
        pattern: String,
        most: Option<u64>,
    },
    StateList {
        pattern: String,
        wait: Duration,
    },
    Stream(CallPlan),
    Ping {
        who: admin::PingRequest,
        pings: PingPlan,
    },
    CalloutServe(PathBuf),
    CalloutAgent {
        name: AgentName,
        at: AgentListener,
    },
    CalloutTest {
        config: PathBuf,
        small: bool,
    },
    HubRun(Box<HubPlan>),
    /// Start the hub in the background.
    HubDetach(Box<other::HubRunArgs>),
    HubDown,
    HubStatus,
    HubMembers,
    HubMemberRemove(NodeRef),
    HubTickets,
    HubTicketRevoke(String),
    Leave(admin::LeaveRequest),
    HubInvite {
        uses: u32,
        expires: Duration,
    },
    Demo(other::DemoArgs),
    ConfigShow {
        effective: bool,
    },
    ConfigPath,
    ConfigCheck,
    ServiceInstall {
        enable: bool,
        unit: ServiceUnit,
    },
    ServiceShow(ServiceUnit),
    ServiceUninstall {
        disable: bool,
        unit: ServiceUnit,
    },
    /// Executed by another program, with the same arguments.
    Forwarded(&'static CompanionProgram),
    Completions(clap_complete::Shell),
    Man(Option<PathBuf>),
    /// Of the command that these words name.
    Help(Vec<OsString>),
    Version,
}

/// A ticket to join with.
#[derive(Debug)]
pub(crate) struct JoinPlan {
    /// `None`: read from stdin.
    pub(crate) ticket: Option<String>,
    /// The request, without the ticket.
    pub(crate) request: admin::JoinRequest,
    /// Whether the user can be asked.
    pub(crate) can_ask: bool,
}

/// Whether the user has to agree before a ticket is used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JoinAgreement {
    /// Not needed, or agreed to on the command line.
    Given,
    /// The user has to be asked whether the members of this hub may call every agent here.
    Ask(HubUrl),
}

/// Whether the user has to be asked before a ticket is used.
pub(crate) fn plan_agreement(
    ticket: &str,
    yes: bool,
    can_ask: bool,
) -> Result<JoinAgreement, CommandFailure> {
    // The node reports what is wrong with an invalid ticket.
    let Ok(Ticket::Hub(ticket)) = ticket.parse::<Ticket>() else {
        return Ok(JoinAgreement::Given);
    };
    match (ticket.trust, yes, can_ask) {
        (MemberTrust::Nobody, _, _) | (MemberTrust::Members, true, _) => Ok(JoinAgreement::Given),
        (MemberTrust::Members, false, true) => Ok(JoinAgreement::Ask(ticket.url)),
        (MemberTrust::Members, false, false) => {
            let what = format!(
                "the members of {} trust each other: each could call every agent of this node",
                ticket.url
            );
            let refused = Status::new(Code::FailedPrecondition, what);
            Err(refused.with_hint("to agree, join with --yes").into())
        }
    }
}

/// How the socket of an attached inspection agent is found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AgentListener {
    /// It listens on this socket.
    Socket(PathBuf),
    /// This shell command runs it, and is given the path of the socket.
    Program(String),
}

/// A call, a send or a stream.
#[derive(Clone, Debug)]
pub(crate) struct CallPlan {
    pub(crate) to: Address,
    pub(crate) method: String,
    pub(crate) priority: Priority,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content_type: String,
    pub(crate) idempotency_key: String,
    pub(crate) affinity: String,
    pub(crate) from: Option<AgentName>,
    pub(crate) carrier: Carrier,
    pub(crate) deadline: Option<Duration>,
    pub(crate) body: BodySource,
    /// What is done besides one call; nothing for a send or a stream.
    pub(crate) further: AttemptPolicy,
}

/// What is published, and how.
#[derive(Debug)]
pub(crate) struct PublishPlan {
    pub(crate) topic: String,
    pub(crate) body: BodySource,
    /// Each line of stdin is a message.
    pub(crate) lines: bool,
    pub(crate) content_type: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) from: Option<AgentName>,
    /// It says that the value is deleted.
    pub(crate) deleted: bool,
    /// Only at this revision.
    pub(crate) if_kept: Option<u64>,
}

/// What is subscribed to, and from where on.
#[derive(Debug)]
pub(crate) struct SubscribePlan {
    pub(crate) request: admin::SubscribeRequest,
    pub(crate) most: Option<u64>,
    /// The topic is printed too.
    pub(crate) topic: bool,
}

/// How a call or a send is kept on disk.
#[derive(Debug)]
pub(crate) struct DurablePlan {
    /// Whether an answer is wanted.
    pub(crate) answered: bool,
    pub(crate) in_order: bool,
    /// For how long it is kept after its end.
    pub(crate) keep: Duration,
    /// How often it is tried at most, where the user says.
    pub(crate) attempts: Option<u32>,
    pub(crate) wait: bool,
}

/// One call for each of many inputs.
#[derive(Debug)]
pub(crate) struct DispatchPlanned {
    /// Each call, without its body.
    pub(crate) call: CallPlan,
    pub(crate) inputs: DispatchInputs,
    pub(crate) limits: DispatchLimits,
    pub(crate) journal: Option<PathBuf>,
}

/// What the inputs of a dispatch are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DispatchInputs {
    /// Each is one input.
    Files(Vec<PathBuf>),
    /// Each of its lines is one.
    Lines(DispatchSource),
    /// Each of its JSON values is one.
    Values(DispatchSource),
}

impl DispatchInputs {
    /// What one is called in a journal.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Files(_) => "files",
            Self::Lines(_) => "lines",
            Self::Values(_) => "values",
        }
    }
}

/// Where inputs are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DispatchSource {
    Stdin,
    File(PathBuf),
}

/// Where a body comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BodySource {
    Text(Bytes),
    File(PathBuf),
    Stdin,
}

/// A program that runs while this machine leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeadPlan {
    pub(crate) name: LeaseName,
    pub(crate) ttl: Duration,
    /// Empty for the only one.
    pub(crate) hub: String,
    pub(crate) command: Vec<OsString>,
}

/// Decides what to do.
pub(crate) fn plan(cli: Cli, around: &ProcessSurroundings) -> Result<Plan, CommandFailure> {
    let Cli { global, command } = cli;
    let common = global.decide(around)?;
    let action = match command {
        Command::Up(up) => Action::Up(up),
        Command::Down(node::DownArgs { grace }) => Action::Down(admin::ShutdownRequest {
            grace_ms: milliseconds(grace),
        }),
        Command::Status(_) => Action::Status,
        Command::Top(_) => Action::Top,
        Command::Logs(node::LogsArgs { follow, lines }) => Action::Logs { lines, follow },
        Command::Id(_) => Action::Id,
        Command::Invite(invite) => Action::Invite(plan_invite(invite)?),
        Command::Join(join) => Action::Join(plan_join(join, around)?),
        Command::Leave(node::LeaveArgs { hub }) => Action::Leave(admin::LeaveRequest {
            hub: hub.map(|url| url.to_string()).unwrap_or_default(),
        }),
        Command::Trust(node::TrustArgs { command }) => plan_trust(command),
        Command::Doctor(node::DoctorArgs { peer, lifetime }) => {
            Action::Doctor(admin::DiagnosisRequest {
                who: peer.unwrap_or_default(),
                lifetime_s: lifetime.map_or(0, |longest| longest.as_secs().max(1)),
            })
        }
        Command::Peers(node::PeersArgs { watch }) => Action::Peers { watch },
        Command::Agents(agent::AgentsArgs { words, tag, local }) => {
            Action::Agents(admin::AgentsQuery {
                tags: tag,
                words,
                local_only: local,
            })
        }
        Command::Describe(agent::DescribeArgs { agent }) => Action::Describe(agent),
        Command::Serve(serve) => plan_serve(serve, &common.data)?,
        Command::Call(agent::CallArgs {
            to,
            body,
            kept,
            envelope,
            all,
            replies,
            retry,
            hedge_after,
            stats,
        }) => {
            let body = body_source(body.as_deref(), around);
            let further = AttemptPolicy {
                retries: retry,
                hedge_after,
            };
            let call = CallPlan {
                further,
                ..plan_call(to, body, envelope, &global)?
            };
            match (kept.durable, all || replies.is_some()) {
                (true, _) => plan_durable(call, &kept, true),
                (false, true) => Action::Gather { call, replies },
                (false, false) => Action::Call { call, stats },
            }
        }
        Command::Dispatch(dispatch) => {
            Action::Dispatch(Box::new(plan_dispatch(dispatch, &global, around)?))
        }
        Command::Send(agent::SendArgs {
            to,
            body,
            kept,
            envelope,
        }) => {
            let call = plan_call(to, body_source(body.as_deref(), around), envelope, &global)?;
            match kept.durable {
                true => plan_durable(call, &kept, false),
                false => Action::Send(call),
            }
        }
        Command::Inbox(inbox::InboxArgs { command }) => plan_inbox(command),
        Command::Task(task::TaskArgs { command }) => plan_task(command, &global, around)?,
        Command::Pub(publish) => Action::Publish(PublishPlan {
            topic: publish.topic.to_string(),
            body: body_source(publish.body.as_deref(), around),
            lines: publish.lines,
            content_type: publish.content_type.unwrap_or_default(),
            headers: publish
                .headers
                .into_iter()
                .map(|field| (field.name, field.value))
                .collect(),
            from: publish.from,
            deleted: false,
            if_kept: None,
        }),
        Command::Lead(lead) => Action::Lead(LeadPlan {
            name: lead.name,
            ttl: lead.ttl,
            hub: lead.hub.map(|url| url.to_string()).unwrap_or_default(),
            command: lead.command,
        }),
        Command::Leases(lead::LeasesArgs { hub }) => Action::Leases(admin::LeaseQuery {
            hub: hub.map(|url| url.to_string()).unwrap_or_default(),
        }),
        Command::Sub(subscribe) => plan_subscribe(subscribe),
        Command::Topics(topics::TopicsArgs { command }) => plan_topics(command),
        Command::State(topics::StateArgs { command }) => plan_state(command, around),
        Command::Stream(agent::StreamArgs { to, envelope }) => {
            Action::Stream(plan_call(to, BodySource::Stdin, envelope, &global)?)
        }
        Command::Ping(agent::PingArgs {
            peer,
            carrier,
            count,
            until_direct,
            interval,
        }) => Action::Ping {
            who: admin::PingRequest {
                who: peer,
                carrier: carrier
                    .filter(|carrier| *carrier != Carrier::Auto)
                    .map(|carrier| carrier.name().to_owned())
                    .unwrap_or_default(),
            },
            pings: PingPlan {
                count: count.unwrap_or(if until_direct { 40 } else { 3 }),
                interval,
                until_direct,
            },
        },
        Command::Callout(callout::CalloutArgs { command }) => plan_callout(command)?,
        Command::Hub(hub) => plan_hub(hub, &common.data)?,
        Command::Demo(demo) => plan_demo(demo)?,
        Command::Bench(_) | Command::Lab(_) => Action::Forwarded(&programs::BENCH),
        Command::Config(other::ConfigArgs { command }) => match command {
            other::ConfigCommand::Show { effective } => Action::ConfigShow { effective },
            other::ConfigCommand::Path => Action::ConfigPath,
            other::ConfigCommand::Check => Action::ConfigCheck,
        },
        Command::Service(other::ServiceArgs { command }) => match command {
            other::ServiceCommand::Install { unit, enable, args } => Action::ServiceInstall {
                enable,
                unit: plan_unit(unit, args, &common, around)?,
            },
            other::ServiceCommand::Show { unit, args } => {
                Action::ServiceShow(plan_unit(unit, args, &common, around)?)
            }
            other::ServiceCommand::Uninstall { unit, disable } => Action::ServiceUninstall {
                disable,
                unit: plan_unit(unit, Vec::new(), &common, around)?,
            },
        },
        Command::Completions(other::CompletionsArgs { shell }) => Action::Completions(shell),
        Command::Man(other::ManArgs { dir }) => Action::Man(dir),
        Command::Help(other::HelpArgs { command }) => Action::Help(command),
        Command::Version(_) => Action::Version,
    };
    Ok(Plan { common, action })
}

/// A unit of systemd, and where it is written.
#[derive(Debug)]
pub(crate) struct ServiceUnit {
    pub(crate) what: other::ServiceKind,
    pub(crate) system: bool,
    /// The unit's name, without `.service`.
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    /// The data folder, where one was named.
    pub(crate) data: Option<PathBuf>,
    /// Further arguments of the command.
    pub(crate) args: Vec<OsString>,
}

fn plan_unit(
    unit: other::UnitArgs,
    args: Vec<OsString>,
    common: &CommonOptions,
    around: &ProcessSurroundings,
) -> Result<ServiceUnit, CommandFailure> {
    let other::UnitArgs { what, system } = unit;
    let name = match what {
        other::ServiceKind::Node => "hailwire",
        other::ServiceKind::Hub => "hailwire-hub",
        other::ServiceKind::Callout => "hailwire-callout",
    };
    let data = common.data_named.then(|| common.data.clone());
    if system && data.is_some() {
        let message = format!("a service of the machine keeps its data in /var/lib/{name}");
        return Err(CommandFailure::usage(message).hint("leave --data and HAIL_DATA out"));
    }
    let folder = match system {
        true => PathBuf::from("/etc/systemd/system"),
        false => user_units(around)?,
    };
    Ok(ServiceUnit {
        path: folder.join(format!("{name}.service")),
        what,
        system,
        name,
        data,
        args,
    })
}

/// The folder of the units of this user's systemd.
fn user_units(around: &ProcessSurroundings) -> Result<PathBuf, CommandFailure> {
    let config = around.xdg_config_home.as_ref().map(PathBuf::from);
    let config = config.or_else(|| Some(Path::new(around.home.as_ref()?).join(".config")));
    match config {
        Some(config) => Ok(config.join("systemd/user")),
        None => Err(CommandFailure::usage(
            "cannot find the folder of the unit: HOME is not set",
        )),
    }
}

fn plan_invite(invite: node::InviteArgs) -> Result<admin::InviteRequest, CommandFailure> {
    let node::InviteArgs {
        uses,
        expires,
        allow,
        offer,
    } = invite;
    let expires_s = expires.as_secs();
    if expires_s == 0 {
        return Err(CommandFailure::usage(
            "a ticket must be valid for at least one second",
        ));
    }
    Ok(admin::InviteRequest {
        uses,
        expires_s,
        allow: texts(&allow),
        offer: texts(&offer),
    })
}

fn plan_join(
    join: node::JoinArgs,
    around: &ProcessSurroundings,
) -> Result<JoinPlan, CommandFailure> {
    let node::JoinArgs {
        ticket,
        alias,
        allow,
        offer,
        yes,
    } = join;
    if ticket.len() > limits::MAX_TICKET {
        return Err(CommandFailure::usage("the input is too long for a ticket"));
    }
    let ticket = Some(ticket).filter(|ticket| ticket != "-");
    // The ticket comes from stdin, so no answer can be read from there.
    let can_ask = ticket.is_some() && around.stdin_is_terminal && around.stderr_is_terminal;
    Ok(JoinPlan {
        ticket,
        request: admin::JoinRequest {
            ticket: String::new(),
            alias: text(alias),
            allow: texts(&allow),
            offer: texts(&offer),
            yes,
        },
        can_ask,
    })
}

fn plan_trust(command: node::TrustCommand) -> Action {
    let add = |add: node::TrustAddArgs| admin::TrustAdd {
        id: add.id,
        alias: text(add.alias),
        allow: texts(&add.allow),
        offer: texts(&add.offer),
        addresses: texts(&add.address),
        tcp: texts(&add.tcp),
    };
    match command {
        node::TrustCommand::Ls => Action::TrustList,
        node::TrustCommand::Add(args) => Action::TrustAdd(add(args)),
        node::TrustCommand::Rm { who } => Action::TrustRemove(admin::PeerSelector { who }),
        node::TrustCommand::Pending => Action::TrustPending,
        node::TrustCommand::Approve(args) => Action::TrustApprove(add(args)),
    }
}

fn plan_serve(serve: agent::ServeArgs, data: &Path) -> Result<Action, CommandFailure> {
    let path = |args: agent::KeptFileArgs| match args.file {
        Some(file) => absolute(&file),
        None => absolute(&data.join(agents_file::FILE_NAME)),
    };
    Ok(match serve.command {
        Some(agent::ServeCommand::Ls(file)) => Action::ServeList(path(file)?),
        Some(agent::ServeCommand::Rm { name, file }) => {
            let file = path(file)?;
            Action::ServeRemove { name, file }
        }
        Some(agent::ServeCommand::Restart { name, file }) => {
            let file = path(file)?;
            Action::ServeRestart { name, file }
        }
        Some(agent::ServeCommand::Logs { name, follow, file }) => {
            let file = path(file)?;
            Action::ServeLogs { name, follow, file }
        }
        None => match (serve.run.file.clone(), serve.run.keep) {
            (Some(file), _) => Action::ServeFile {
                file: absolute(&file)?,
                drain: serve.run.drain,
                beside_node: serve.run.beside_node,
            },
            (None, true) => Action::ServeKeep {
                file: absolute(&data.join(agents_file::FILE_NAME))?,
                agent: agent_spec(serve.run)?,
            },
            (None, false) => Action::Serve {
                drain: serve.run.drain,
                agent: agent_spec(serve.run)?,
            },
        },
    })
}

/// An agent as the command line declares it.
fn agent_spec(args: agent::ServeRunArgs) -> Result<AgentSpec, CommandFailure> {
    let description = args.describe.unwrap_or_default();
    if description.len() > limits::MAX_DESCRIPTION {
        let what = format!(
            "the description is longer than {} bytes",
            limits::MAX_DESCRIPTION
        );
        return Err(CommandFailure::usage(what));
    }
    if args.tag.len() > limits::MAX_TAGS {
        let what = format!("more than {} tags", limits::MAX_TAGS);
        return Err(CommandFailure::usage(what));
    }
    let max = args.max.unwrap_or(default_max(args.lines, args.on_message));
    if args.on_message && max > MAX_WOKEN {
        let what = format!("with --on-message, --max is at most {MAX_WOKEN}");
        return Err(CommandFailure::usage(what));
    }
    let idle = args.idle.unwrap_or(DEFAULT_IDLE);
    let name = args
        .name
        .ok_or_else(|| CommandFailure::usage("the agent's name is missing"))?;
    let mut command = args.command.into_iter();
    let program = command
        .next()
        .ok_or_else(|| CommandFailure::usage("the program is missing: write it after `--`"))?;
    let mut environment = Vec::new();
    for HeaderField { name, value } in args.env {
        agents_file::check_variable(&name).map_err(CommandFailure::usage)?;
        environment.push((name, value));
    }
    Ok(AgentSpec {
        description,
        tags: args.tag,
        version: args.agent_version.unwrap_or_default(),
        schema: args.schema.as_deref().map(absolute).transpose()?,
        max,
        queue: args.queue,
        place: GroupPlace {
            priority: args.group_priority.unwrap_or(0),
            overflow: args.overflow.unwrap_or(0),
            pinned: args.pinned,
            slow_start: args.slow_start,
        },
        lines: args.lines,
        keys: args.keys,
        on_message: args.on_message.then_some(OnMessage { idle }),
        grace: args.grace,
        folder: args.folder.as_deref().map(absolute).transpose()?,
        environment,
        user: args.user,
        ..AgentSpec::new(name, program, command.collect())
    })
}

fn plan_durable(call: CallPlan, kept: &inbox::DurableArgs, answered: bool) -> Action {
    let call = CallPlan {
        // `--timeout` is how long the command may take.
        deadline: Some(kept.expires),
        ..call
    };
    Action::SendDurable {
        call,
        durable: DurablePlan {
            answered,
            in_order: !kept.any_order,
            keep: kept.keep,
            attempts: kept.attempts,
            wait: kept.wait,
        },
    }
}

fn plan_subscribe(subscribe: topics::SubArgs) -> Action {
    let topics::StartArgs { since, last, from } = subscribe.start;
    let patterns = subscribe.patterns.iter().map(TopicPattern::to_string);
    let named = subscribe.name.is_some();
    let no_start = last.is_none() && from.is_none();
    Action::Subscribe(SubscribePlan {
        request: admin::SubscribeRequest {
            patterns: patterns.collect(),
            // A name that is new begins with what is published from now on.
            since_ms: since
                .map(millis)
                .or_else(|| (named && no_start).then_some(0)),
            last,
            from,
            name: subscribe.name.map(String::from).unwrap_or_default(),
            settle_ms: None,
        },
        most: subscribe.most,
        topic: subscribe.topic,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn plan_topics(command: Option<topics::TopicsCommand>) -> Action {
    use topics::TopicsCommand as C;
    match command {
        None | Some(C::Ls) => Action::TopicList,
        Some(C::Keep {
            pattern,
            max_bytes,
            max_age,
            max_messages,
            last_per_topic,
        }) => Action::TopicKeep(admin::KeepRequest {
            pattern: pattern.to_string(),
            max_bytes: Some(max_bytes),
            max_messages,
            max_age_ms: max_age.map(millis),
            last_per_topic,
        }),
        Some(C::Unkeep { pattern }) => Action::TopicUnkeep(pattern.to_string()),
        Some(C::Forget { name }) => Action::TopicForget(name.to_string()),
    }
}

fn plan_state(command: topics::StateCommand, around: &ProcessSurroundings) -> Action {
    use topics::StateCommand as C;
    let put = |key: Topic, body| PublishPlan {
        topic: key.to_string(),
        body,
        lines: false,
        content_type: String::new(),
        headers: Vec::new(),
        from: None,
        deleted: false,
        if_kept: None,
    };
    // What was parsed has the first token of state, which the library puts ahead itself.
    let of_state = |text: &str| match text.split_once('.') {
        Some((_, rest)) => rest.to_owned(),
        None => text.to_owned(),
    };
    match command {
        C::Put {
            key,
            value,
            if_revision,
            content_type,
            from,
        } => Action::StatePut(PublishPlan {
            if_kept: if_revision,
            content_type: content_type.unwrap_or_default(),
            from,
            ..put(key, body_source(Some(&value), around))
        }),
        C::Rm { key, if_revision } => Action::StatePut(PublishPlan {
            deleted: true,
            if_kept: if_revision,
            ..put(key, BodySource::Text(Bytes::new()))
        }),
        C::Get { key, wait } => Action::StateGet {
            key: of_state(key.as_str()),
            wait: wait.wait,
        },
        C::Watch { pattern, most } => Action::StateWatch {
            pattern: of_state(pattern.as_str()),
            most,
        },
        C::Ls { pattern, wait } => Action::StateList {
            pattern: of_state(pattern.as_str()),
            wait: wait.wait,
        },
    }
}

fn plan_task(
    command: task::TaskCommand,
    global: &GlobalArgs,
    around: &ProcessSurroundings,
) -> Result<Action, CommandFailure> {
    use task::TaskCommand as C;
    Ok(match command {
        C::Submit(args) => {
            let input = body_source(args.input.as_deref(), around);
            let call = plan_call(args.to, input, args.envelope, global)?;
            Action::TaskSubmit {
                call: CallPlan {
                    deadline: Some(args.expires),
                    ..call
                },
                durable: DurablePlan {
                    answered: true,
                    in_order: !args.any_order,
                    keep: args.keep,
                    attempts: args.attempts,
                    wait: args.wait,
                },
            }
        }
        C::Status { id } => Action::TaskStatus(id.to_string()),
        C::Wait { id } => Action::TaskWait(id.to_string()),
        C::Cancel { id } => Action::TaskCancel(id.to_string()),
        C::List { state } => Action::TaskList(admin::MessageQuery {
            sent: true,
            tasks: Some(state.iter().map(|state| state.name().to_owned()).collect()),
            ..admin::MessageQuery::default()
        }),
        C::Progress {
            done,
            total,
            text,
            id,
        } => Action::TaskProgress(admin::TaskProgressReport {
            id: id.map(|id| id.to_string()).unwrap_or_default(),
            attempt: 0,
            done,
            total,
            text,
        }),
    })
}

fn plan_inbox(command: inbox::InboxCommand) -> Action {
    use inbox::InboxCommand as C;
    let names = |states: Vec<MessageState>| {
        let names = states.into_iter().map(|state| state.name().to_owned());
        names.collect::<Vec<_>>()
    };
    let came = |agent: Option<AgentName>, states| {
        Action::InboxList(admin::MessageQuery {
            agent: agent.map(String::from).unwrap_or_default(),
            states,
            ..admin::MessageQuery::default()
        })
    };
    match command {
        C::Ls { agent, state, all } if all || !state.is_empty() => came(agent, names(state)),
        C::Ls { agent, .. } => {
            let open = vec![MessageState::Delivered, MessageState::Taken];
            came(agent, names(open))
        }
        C::Dead { agent } => {
            let given_up = vec![MessageState::Dead, MessageState::Unknown];
            came(agent, names(given_up))
        }
        C::Sent { to, state } => Action::InboxList(admin::MessageQuery {
            sent: true,
            agent: to.map(|to| to.to_string()).unwrap_or_default(),
            states: names(state),
            ..admin::MessageQuery::default()
        }),
        C::Show { id } => Action::InboxShow(id.to_string()),
        C::Wait { id, until } => Action::InboxWait {
            id: id.to_string(),
            until: until
                .map(|state| state.name().to_owned())
                .unwrap_or_default(),
        },
        C::Retry { id } => Action::InboxRetry(id.to_string()),
        C::Drop { id } => Action::InboxDrop(id.to_string()),
        C::Take { agent, most, lease } => Action::InboxTake {
            agent: agent.into(),
            most,
            lease,
        },
        C::Ack {
            id,
            answer,
            failed,
            retry,
        } => Action::InboxAck(admin::MessageVerdict {
            id: id.to_string(),
            failed,
            retry,
            answer: answer
                .map(|text| text.to_string_lossy().into_owned())
                .unwrap_or_default(),
        }),
    }
}

/// A path that means the same in another folder.
fn absolute(path: &Path) -> Result<PathBuf, CommandFailure> {
    std::path::absolute(path)
        .map_err(|error| CommandFailure::io("cannot find the current folder", &error))
}

fn plan_call(
    to: Address,
    body: BodySource,
    envelope: agent::CallHeaderArgs,
    global: &GlobalArgs,
) -> Result<CallPlan, CommandFailure> {
    let agent::CallHeaderArgs {
        method,
        priority,
        headers,
        content_type,
        carrier,
        idempotency_key,
        affinity,
        from,
    } = envelope;
    let method = method.unwrap_or_default();
    if method.len() > limits::MAX_METHOD {
        let what = format!("the method is longer than {} bytes", limits::MAX_METHOD);
        return Err(CommandFailure::usage(what));
    }
    let affinity = affinity.unwrap_or_default();
    if affinity.len() > limits::MAX_AFFINITY {
        let what = format!(
            "the affinity key is longer than {} bytes",
            limits::MAX_AFFINITY
        );
        return Err(CommandFailure::usage(what).hint("a hash of it serves as well"));
    }
    if headers.len() > limits::MAX_HEADER_FIELDS {
        let what = format!("more than {} header fields", limits::MAX_HEADER_FIELDS);
        return Err(CommandFailure::usage(what));
    }
    Ok(CallPlan {
        to,
        method,
        priority,
        headers: headers
            .into_iter()
            .map(|field| (field.name, field.value))
            .collect(),
        content_type: content_type.unwrap_or_default(),
        idempotency_key: idempotency_key.unwrap_or_default(),
        affinity,
        from,
        carrier: carrier.unwrap_or_default(),
        deadline: global.timeout,
        body,
        further: AttemptPolicy::default(),
    })
}

fn plan_dispatch(
    dispatch: agent::DispatchArgs,
    global: &GlobalArgs,
    around: &ProcessSurroundings,
) -> Result<DispatchPlanned, CommandFailure> {
    let agent::DispatchArgs {
        to,
        files,
        lines,
        values,
        in_flight,
        ordered,
        journal,
        retry,
        hedge_after,
        envelope,
    } = dispatch;
    let source = |path: PathBuf| match path.as_os_str().as_bytes() {
        b"-" => DispatchSource::Stdin,
        _ => DispatchSource::File(path),
    };
    let inputs = match (lines, values) {
        (Some(path), _) => DispatchInputs::Lines(source(path)),
        (None, Some(path)) => DispatchInputs::Values(source(path)),
        (None, None) if !files.is_empty() => DispatchInputs::Files(files),
        (None, None) if around.stdin_is_input => DispatchInputs::Lines(DispatchSource::Stdin),
        (None, None) => {
            return Err(CommandFailure::usage("the inputs are missing").hint(
                "name files, --lines FILE or --values FILE, or write lines to stdin: seq 9 | hail dispatch NAME",
            ));
        }
    };
    let mut call = plan_call(to, BodySource::Text(Bytes::new()), envelope, global)?;
    call.further.hedge_after = hedge_after;
    if let DispatchInputs::Values(_) = inputs
        && call.content_type.is_empty()
    {
        call.content_type = "application/json".to_owned();
    }
    Ok(DispatchPlanned {
        call,
        inputs,
        limits: DispatchLimits {
            in_flight: usize::from(in_flight),
            retries: retry,
            ordered,
        },
        journal,
    })
}

/// `TEXT`, `@FILE` or `-`; where none is given, what is piped in, if anything is. A text that begins with `@` is
/// written `@@…`.
fn body_source(body: Option<&OsStr>, around: &ProcessSurroundings) -> BodySource {
    let bytes = match body {
        Some(body) => body.as_bytes(),
        None if around.stdin_is_input => return BodySource::Stdin,
        None => b"",
    };
    match bytes {
        b"-" => BodySource::Stdin,
        [b'@', rest @ ..] if rest.first() != Some(&b'@') => {
            BodySource::File(PathBuf::from(OsStr::from_bytes(rest)))
        }
        [b'@', text @ ..] | text => BodySource::Text(Bytes::copy_from_slice(text)),
    }
}

fn plan_callout(command: callout::CalloutCommand) -> Result<Action, CommandFailure> {
    Ok(match command {
        callout::CalloutCommand::Serve(serve) => Action::CalloutServe(serve.config),
        callout::CalloutCommand::Test(callout::CalloutTestArgs { config, small }) => {
            Action::CalloutTest { config, small }
        }
        callout::CalloutCommand::Waf(_) | callout::CalloutCommand::RateLimit(_) => {
            Action::Forwarded(&programs::INSPECTION)
        }
        callout::CalloutCommand::Agent(callout::CalloutAgentArgs { uds, exec, name }) => {
            let at = match (uds, exec) {
                (Some(path), _) => AgentListener::Socket(path),
                (None, Some(command)) => AgentListener::Program(command),
                (None, None) => {
                    return Err(CommandFailure::usage(
                        "the agent is missing: give --uds or --exec",
                    ));
                }
            };
            let name = match (name, &at) {
                (Some(name), _) => name,
                (None, AgentListener::Socket(path)) => name_of_socket(path)?,
                (None, AgentListener::Program(_)) => {
                    return Err(CommandFailure::usage("the agent's name is missing"));
                }
            };
            Action::CalloutAgent { name, at }
        }
    })
}

/// `waf` for `/run/hail/waf.sock`.
fn name_of_socket(path: &Path) -> Result<AgentName, CommandFailure> {
    let stem = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    stem.parse().map_err(|_| {
        CommandFailure::usage(format!("`{stem}` is not a valid agent name"))
            .hint("give a name with --name NAME")
    })
}

/// A hub to run.
#[derive(Debug)]
pub(crate) struct HubPlan {
    pub(crate) config: hailwire_hub::HubConfig,
    /// Where its metrics are served.
    pub(crate) metrics: Option<std::net::SocketAddr>,
    /// Whether `hail hub -d` has started this process.
    pub(crate) detached: bool,
}

fn plan_hub(hub: other::HubArgs, data: &Path) -> Result<Action, CommandFailure> {
    let run = match hub.command {
        Some(other::HubCommand::Invite { uses, expires }) => {
            return Ok(Action::HubInvite { uses, expires });
        }
        Some(other::HubCommand::Down) => return Ok(Action::HubDown),
        Some(other::HubCommand::Status) => return Ok(Action::HubStatus),
        Some(other::HubCommand::Members { command }) => {
            return Ok(match command {
                None | Some(other::HubMembersCommand::Ls) => Action::HubMembers,
                Some(other::HubMembersCommand::Rm { who }) => Action::HubMemberRemove(who),
            });
        }
        Some(other::HubCommand::Tickets { command }) => {
            return Ok(match command {
                None | Some(other::HubTicketsCommand::Ls) => Action::HubTickets,
                Some(other::HubTicketsCommand::Revoke { id }) => Action::HubTicketRevoke(id),
            });
        }
        Some(other::HubCommand::Run(run)) => run,
        None => hub.run,
    };
    if run.plain && !run.listen.ip().is_loopback() {
        let what = format!(
            "plain HTTP is allowed on loopback only, and {} is not a loopback address",
            run.listen
        );
        return Err(
            CommandFailure::usage(what).hint("omit --plain, or use --listen 127.0.0.1:PORT")
        );
    }
    if run.detach {
        return Ok(Action::HubDetach(Box::new(run)));
    }
    let mut config = hailwire_hub::HubConfig::new(data);
    config.listen = run.listen;
    config.udp_port = run.udp_port;
    config.url = run.url;
    config.tls = match (run.tls_cert, run.tls_key) {
        (Some(certificate), Some(key)) => TlsMode::Files { certificate, key },
        _ if run.plain => TlsMode::Plain,
        _ => TlsMode::OwnKey,
    };
    config.trust = match run.trust {
        other::HubTrustPolicy::Nobody => hailwire_hub::MemberTrust::Nobody,
        other::HubTrustPolicy::Members => hailwire_hub::MemberTrust::Members,
    };
    let rate = |size: Option<ByteSize>| size.and_then(|size| NonZeroU32::new(size.bytes_u32()));
    config.bounds.relay_rates = hailwire_hub::RelayRates {
        whole: rate(run.relay_rate),
        each: rate(run.relay_rate_each),
    };
    config.hold.bytes = run.hold;
    config.listing = run.listing.map(|listing| match listing {
        other::HubListingPolicy::Members => hailwire_hub::AgentVisibility::Members,
        other::HubListingPolicy::Trusted => hailwire_hub::AgentVisibility::Trusted,
    });
    Ok(Action::HubRun(Box::new(HubPlan {
        config,
        metrics: run.metrics,
        detached: run.detached,
    })))
}

/// Every worker serves every kind of agent, so that any other can take over its work.
fn plan_demo(demo: other::DemoArgs) -> Result<Action, CommandFailure> {
    let least = demo.workers * 3;
    if demo.agents < least {
        let what = format!("{} workers need at least {least} agents", demo.workers);
        return Err(CommandFailure::usage(what).hint("each worker serves three kinds of agents"));
    }
    Ok(Action::Demo(demo))
}

fn text<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn around() -> ProcessSurroundings {
        ProcessSurroundings {
            home: Some("/home/u".into()),
            ..ProcessSurroundings::default()
        }
    }

    fn planned(line: &str) -> Result<Plan, CommandFailure> {
        let words = std::iter::once("hail").chain(line.split_whitespace());
        plan(Cli::try_parse_from(words).unwrap(), &around())
    }

    fn call(line: &str) -> CallPlan {
        match planned(line).unwrap().action {
            Action::Call { call, .. } => call,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_body_is_a_text_a_file_or_stdin() {
        assert_eq!(call("call grep").body, BodySource::Text(Bytes::new()));
        assert_eq!(
            call("call grep hello").body,
            BodySource::Text("hello".into())
        );
        assert_eq!(call("call grep -").body, BodySource::Stdin);
        assert_eq!(
            call("call grep @a/b.txt").body,
            BodySource::File("a/b.txt".into())
        );
        assert_eq!(
            call("call grep @@home").body,
            BodySource::Text("@home".into())
        );
        let piped = ProcessSurroundings {
            stdin_is_input: true,
            ..around()
        };
        for (line, body) in [
            (&["call", "grep"][..], BodySource::Stdin),
            (&["send", "grep"], BodySource::Stdin),
            (&["call", "grep", "hello"], BodySource::Text("hello".into())),
            // Nothing at all has to be said where something is piped in.
            (&["call", "grep", ""], BodySource::Text(Bytes::new())),
        ] {
            let words = std::iter::once(&"hail").chain(line);
            let action = plan(Cli::try_parse_from(words).unwrap(), &piped);
            let (Action::Call { call, .. } | Action::Send(call)) = action.unwrap().action else {
                panic!("{line:?}");
            };
            assert_eq!(call.body, body, "{line:?}");
        }
    }

    #[test]
    fn the_timeout_of_a_call_is_its_deadline() {
        let call = call("call grep@desk --timeout 1m30s -p high -H a=b -H a=c -m find");
        assert_eq!(call.deadline, Some(Duration::from_secs(90)));
        assert_eq!(call.priority, Priority::High);
        assert_eq!(
            call.headers,
            [("a".into(), "b".into()), ("a".into(), "c".into())]
        );
        assert_eq!(call.method, "find");
        assert_eq!(call.to.to_string(), "grep@desk");
    }

    #[test]
    fn what_can_never_succeed_is_refused_before_anything_happens() {
        for line in [
            "invite --expires 10ms".to_owned(),
            format!("join {}", "x".repeat(limits::MAX_TICKET + 1)),
            format!(
                "serve a --describe {} -- cat",
                "x".repeat(limits::MAX_DESCRIPTION + 1)
            ),
            format!("serve a {} -- cat", "--tag t ".repeat(limits::MAX_TAGS + 1)),
            format!("call a -m {}", "x".repeat(limits::MAX_METHOD + 1)),
            format!("call a {}", "-H a=b ".repeat(limits::MAX_HEADER_FIELDS + 1)),
            "hub --plain --listen 0.0.0.0:7443".to_owned(),
            "demo --workers 5 --agents 14".to_owned(),
        ] {
            assert_eq!(planned(&line).unwrap_err().exit(), 2, "{line}");
        }
    }

    #[test]
    fn a_hub_holds_as_much_as_was_said_and_nothing_where_that_is_zero() {
        let held = |line: &str| match planned(line).unwrap().action {
            Action::HubRun(hub) => hub.config.hold.bytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(held("hub"), hailwire_hub::HoldBounds::default().bytes);
        assert_eq!(held("hub --hold 2GiB"), 2 << 30);
        assert_eq!(held("hub --hold 0"), 0);
    }

    #[test]
    fn a_relay_has_the_rates_that_were_asked_for_and_none_by_itself() {
        let rates = |line: &str| match planned(line).unwrap().action {
            Action::HubRun(hub) => hub.config.bounds.relay_rates,
            other => panic!("{other:?}"),
        };
        assert!(rates("hub").unlimited());
        let bounded = rates("hub --relay-rate 20MiB --relay-rate-each 64KiB");
        assert_eq!(bounded.whole, NonZeroU32::new(20 << 20));
        assert_eq!(bounded.each, NonZeroU32::new(64 << 10));
        for low in ["0B", "63KiB", "5"] {
            let line = ["hail", "hub", "--relay-rate", low];
            assert!(Cli::try_parse_from(line).is_err(), "{low}");
        }
    }

    #[test]
    fn a_hub_whose_members_trust_each_other_is_joined_only_after_a_yes() {
        let ticket = |trust| {
            let ticket = Ticket::Hub(hailwire_wire::ticket::HubTicket {
                url: "https://hub.example:7443".parse().unwrap(),
                key: None,
                secret: hailwire_wire::ticket::TicketSecret::from_random([7; 16]),
                expires: u64::MAX,
                trust,
            });
            ticket.to_text().unwrap()
        };
        let closed = ticket(MemberTrust::Nobody);
        let open = ticket(MemberTrust::Members);
        let given = |ticket: &str, yes, ask| plan_agreement(ticket, yes, ask).unwrap();
        assert_eq!(given(&closed, false, false), JoinAgreement::Given);
        assert_eq!(given(&open, true, false), JoinAgreement::Given);
        let url = "https://hub.example:7443".parse().unwrap();
        assert_eq!(given(&open, false, true), JoinAgreement::Ask(url));
        let refused = plan_agreement(&open, false, false).unwrap_err();
        assert!(refused.for_people(false).contains("--yes"));
        // With the ticket on stdin, the user cannot be asked.
        let Action::Join(join) = planned("join -").unwrap().action else {
            panic!("not a join");
        };
        assert!(!join.can_ask);
    }

    #[test]
    fn a_program_keeps_its_own_flags() {
        let Action::Serve { agent: serve, .. } = planned("serve words --lines -- wc -w --json")
            .unwrap()
            .action
        else {
            panic!("not a serve");
        };
        assert_eq!(serve.program, "wc");
        assert_eq!(serve.args, ["-w", "--json"]);
        assert!(
            serve.lines
                && !planned("serve words -- wc --json")
                    .unwrap()
                    .common
                    .output
                    .json
        );
    }

    #[test]
    fn an_attached_agent_is_named_or_called_like_its_socket() {
        let attached = |line: &str| match planned(line).unwrap().action {
            Action::CalloutAgent { name, at } => (name.to_string(), at),
            other => panic!("{other:?}"),
        };
        let socket = |path: &str| AgentListener::Socket(path.into());
        assert_eq!(
            attached("callout agent --uds /run/waf.sock"),
            ("waf".to_owned(), socket("/run/waf.sock"))
        );
        assert_eq!(attached("callout agent --uds /run/x --name waf").0, "waf");
        assert_eq!(
            attached("callout agent --exec run-waf --name waf").1,
            AgentListener::Program("run-waf".to_owned())
        );
        assert_eq!(
            planned("callout agent --uds /A.sock").unwrap_err().exit(),
            2
        );
    }

    #[test]
    fn a_ticket_may_come_from_stdin() {
        let Action::Join(join) = planned("join - --alias desk").unwrap().action else {
            panic!("not a join");
        };
        assert_eq!((join.ticket, join.request.alias.as_str()), (None, "desk"));
    }
}
