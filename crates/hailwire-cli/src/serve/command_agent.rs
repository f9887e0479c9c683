//! One agent whose calls a program answers: each call with a process of its own, or all with one.

use std::{path::Path, sync::Arc};

use hailwire::{Agent, Client, Code, Request, RequestKind, Response, ServeHandle, Status};
use tokio::sync::Semaphore;

use super::{
    AgentProgram,
    agent_log::SharedLog,
    agent_spec::AgentSpec,
    each_call, environment,
    lines::{self, LineOptions, LineProgram},
    program_file::find_program,
    program_slot::{AgentCounters, CountedCall, ProgramLimit},
    program_user::find_user,
    reaper::ReaperHandle,
    schema_file,
};

/// What the agents of one process share.
#[derive(Clone)]
pub(crate) struct ProgramContext {
    pub(crate) reaper: ReaperHandle,
    pub(crate) limit: Arc<ProgramLimit>,
    /// The data folder of the node that they are served at: `hail` in a program speaks with that node. Absolute; none if it is no text.
    pub(crate) data: Option<String>,
    /// Where the programs' stderr goes, beside the last bytes that callers get.
    pub(crate) log: Option<SharedLog>,
    /// Called with a fault of a program, for the operator.
    pub(crate) tell: Arc<dyn Fn(&str) + Send + Sync>,
}

/// How the calls of one agent are answered. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CommandAgent {
    program: AgentProgram,
    context: ProgramContext,
    lines: Option<LineProgram>,
    /// One permit for each process that may run.
    slots: Arc<Semaphore>,
    counters: Arc<AgentCounters>,
}

impl CommandAgent {
    /// Looks for the program, and starts the task that keeps it, if one process is to answer all calls.
    ///
    /// # Errors
    ///
    /// `failed_precondition`: the program, its folder or its user is not there.
    pub(crate) fn new(
        spec: &AgentSpec,
        context: &ProgramContext,
        counters: &Arc<AgentCounters>,
    ) -> Result<Self, Status> {
        let program = program(spec, context)?;
        let lines = spec.lines.then(|| {
            let options = LineOptions {
                keys: spec.keys,
                restart: spec.restart,
                tell: context.tell.clone(),
                limit: context.limit.clone(),
                counters: counters.clone(),
            };
            // The task ends with the last clone of the handle, or with the reaper.
            LineProgram::start(program.clone(), options, context.reaper.clone()).0
        });
        Ok(Self {
            program,
            context: context.clone(),
            lines,
            slots: Arc::new(Semaphore::new(slots(spec.max))),
            counters: counters.clone(),
        })
    }

    /// Offers the agent.
    ///
    /// # Errors
    ///
    /// Those of [`Client::serve`].
    pub(crate) async fn offer(
        &self,
        client: &Client,
        spec: &AgentSpec,
    ) -> Result<ServeHandle, Status> {
        client.serve(agent(spec)?, self.clone().handler()).await
    }

    /// Offers the agent in place of how it was offered before.
    ///
    /// # Errors
    ///
    /// Those of [`ServeHandle::replace`].
    pub(crate) async fn offer_anew(
        &self,
        handle: &mut ServeHandle,
        spec: &AgentSpec,
    ) -> Result<(), Status> {
        handle.replace(agent(spec)?, self.clone().handler()).await
    }

    fn handler(self) -> impl hailwire::Handler {
        move |request: Request| {
            let agent = self.clone();
            async move { agent.answer(request).await }
        }
    }

    async fn answer(self, mut request: Request) -> Result<Response, Status> {
        let call = CountedCall::begin(&self.counters);
        if let Some(lines) = self.lines {
            let body = request.body_mut().bytes(lines::MAX_LINE).await?;
            let priority = request.header().priority;
            return lines.exchange(&body, priority).await.map(Response::new);
        }
        // The node admits no more calls than there are slots, so at most as many wait here, and only for the processes
        // of calls that have ended. The semaphore is never closed.
        let permit = self.slots.acquire_owned().await.ok();
        let slot = self.context.limit.slot(&self.counters, permit)?;
        let kind = request.kind();
        let (header, caller, body) = request.into_parts();
        let variables = environment::variables(&header, caller.node())?;
        let work = each_call::CallWork {
            body,
            slot: Some(slot),
            call: Some(call),
        };
        let mut answer = each_call::answer(&self.program, &variables, work, &self.context.reaper)?;
        if kind == RequestKind::Send {
            // A message is accepted once the program has succeeded; its output is discarded.
            while answer.chunk().await?.is_some() {}
        }
        Ok(Response::new(answer))
    }
}

/// The program of an agent, with whatever it needs at hand.
pub(crate) fn program(spec: &AgentSpec, context: &ProgramContext) -> Result<AgentProgram, Status> {
    let here = Path::new(".");
    let folder = spec.folder.as_deref().unwrap_or(here);
    if !folder.is_dir() {
        let what = format!("there is no folder {}", folder.display());
        return Err(Status::new(Code::FailedPrecondition, what));
    }
    let path = spec.path_variable();
    let file = find_program(&spec.program, folder, path.as_deref()).map_err(|missing| {
        Status::new(Code::FailedPrecondition, missing.to_string()).with_hint(missing.hint())
    })?;
    let user = spec.user.as_deref().map(find_user).transpose();
    let user = user.map_err(|why| Status::new(Code::FailedPrecondition, why))?;
    // What the operator says comes after it, and counts.
    let data = context.data.iter();
    let data = data.map(|data| ("HAIL_DATA".to_owned(), data.clone()));
    Ok(AgentProgram {
        program: spec.program.clone(),
        file: Some(file),
        args: spec.args.clone(),
        grace: spec.grace,
        folder: spec.folder.clone(),
        environment: data.chain(spec.environment.iter().cloned()).collect(),
        user,
        log: context.log.as_ref().map(|log| log.of(spec.name.clone())),
    })
}

/// What is said of an agent to the node.
fn agent(spec: &AgentSpec) -> Result<Agent, Status> {
    let agent = Agent::new(spec.name.as_str())
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?
        .describe(spec.description.clone())
        .version(spec.version.clone())
        .max_concurrency(spec.max)
        .priority(spec.place.priority)
        .overflow(spec.place.overflow)
        .slow_start(spec.place.slow_start.unwrap_or_default());
    let agent = match spec.queue {
        Some(calls) => agent.max_waiting(calls),
        None => agent,
    };
    let agent = match spec.place.pinned {
        Some(idle) => agent.pinned(idle),
        None => agent,
    };
    let schema = spec.schema.as_deref().map(schema_file::read).transpose();
    let schema = schema.map_err(|why| Status::new(Code::FailedPrecondition, why))?;
    let agent = match &schema {
        Some(schema) => agent.schema(schema),
        None => agent,
    };
    Ok(spec.tags.iter().cloned().fold(agent, Agent::tag))
}

fn slots(max: u32) -> usize {
    match usize::try_from(max) {
        // The bound of the supervisor holds, or none.
        Ok(0) | Err(_) => Semaphore::MAX_PERMITS,
        Ok(max) => max.min(Semaphore::MAX_PERMITS),
    }
}
