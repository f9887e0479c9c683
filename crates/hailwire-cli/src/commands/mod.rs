//! Doing what was planned: one file per command.

mod completions;
mod config;
mod man;
mod service;

use crate::{
    failure::Failure,
    plan::{Action, Plan},
};

/// Carries a plan out.
pub(crate) fn run(plan: Plan) -> Result<(), Failure> {
    let Plan {
        output,
        data,
        data_named,
        action,
        ..
    } = plan;
    match action {
        Action::ConfigShow { effective } => config::show(output, &data, effective),
        Action::ConfigPath => config::path(output, &data),
        Action::ConfigCheck => config::check(output, &data),
        Action::ServiceInstall { enable, unit } => {
            let named = data_named.then_some(data.as_path());
            service::install(output, &unit, named, enable)
        }
        Action::ServiceUninstall { disable, unit } => service::uninstall(output, &unit, disable),
        Action::Completions(shell) => completions::print(output, shell),
        Action::Man(dir) => man::run(output, dir.as_deref()),
        _ => Err(Failure::general("not yet")),
    }
}
