//! `hail service install | show | uninstall`: the node, a hub or `hail callout serve` as a service of systemd.
//!
//! The unit is written and the next steps are printed; systemctl is only run on request. A service of the machine has a user of
//! its own (`DynamicUser=`) and none of the rights that it does not need.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use hailwire_terminal::{failure::CommandFailure, output::Output};
use serde_json::json;

use crate::{args::other::ServiceKind, plan::ServiceUnit};

/// What a service of the machine may not do, whatever it runs.
const HARDENING: &str = "\
    ProtectSystem=strict\n\
    ProtectHome=yes\n\
    PrivateTmp=yes\n\
    PrivateDevices=yes\n\
    ProtectKernelTunables=yes\n\
    ProtectKernelModules=yes\n\
    ProtectKernelLogs=yes\n\
    ProtectControlGroups=yes\n\
    ProtectClock=yes\n\
    ProtectHostname=yes\n\
    NoNewPrivileges=yes\n\
    CapabilityBoundingSet=\n\
    RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK\n\
    RestrictNamespaces=yes\n\
    RestrictRealtime=yes\n\
    RestrictSUIDSGID=yes\n\
    LockPersonality=yes\n\
    SystemCallArchitectures=native\n\
    SystemCallFilter=@system-service\n\
    UMask=0077\n";

/// What only programs of ours stand: an agent's program may make code at run time, and looks at other processes.
const STRICTER: &str = "MemoryDenyWriteExecute=yes\nProtectProc=invisible\nProcSubset=pid\n";

/// Writes the unit; with `enable` also starts it.
pub(crate) fn install(
    output: Output,
    unit: &ServiceUnit,
    enable: bool,
) -> Result<(), CommandFailure> {
    let text = text_of(unit)?;
    let path = &unit.path;
    let wrong =
        |error: io::Error| CommandFailure::io(format!("cannot write {}", path.display()), &error);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(wrong)?;
    }
    fs::write(path, text).map_err(wrong)?;
    let manager = ServiceManager::of(unit);
    if enable {
        manager.run(&["daemon-reload"])?;
        manager.run(&["enable", "--now", &unit.file_name()])?;
    }
    output.value(&json!({ "unit": path, "enabled": enable }), |_| {
        format!("{}\n", path.display())
    })?;
    if !enable {
        output.note("next:");
        output.note(&format!("  {manager} daemon-reload"));
        output.note(&format!("  {manager} enable --now {}", unit.file_name()));
        if !unit.system {
            output
                .note("  loginctl enable-linger    # to keep it running while you are logged out");
        }
    }
    Ok(())
}

/// Prints the unit.
pub(crate) fn show(output: Output, unit: &ServiceUnit) -> Result<(), CommandFailure> {
    output.text(&text_of(unit)?)
}

/// Removes the unit; with `disable` stops the service first.
pub(crate) fn uninstall(
    output: Output,
    unit: &ServiceUnit,
    disable: bool,
) -> Result<(), CommandFailure> {
    let manager = ServiceManager::of(unit);
    if disable {
        manager.run(&["disable", "--now", &unit.file_name()])?;
    }
    match fs::remove_file(&unit.path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            output.note(&format!("{} does not exist", unit.path.display()));
        }
        Err(error) => {
            return Err(CommandFailure::io(
                format!("cannot remove {}", unit.path.display()),
                &error,
            ));
        }
    }
    if disable {
        return manager.run(&["daemon-reload"]);
    }
    output.note("next:");
    output.note(&format!("  {manager} disable --now {}", unit.file_name()));
    output.note(&format!("  {manager} daemon-reload"));
    Ok(())
}

impl ServiceUnit {
    fn file_name(&self) -> String {
        format!("{}.service", self.name)
    }

    /// The words after the global options.
    fn command(&self) -> &'static str {
        match self.what {
            ServiceKind::Node => "up",
            ServiceKind::Hub => "hub",
            ServiceKind::Callout => "callout serve",
        }
    }

    fn description(&self) -> &'static str {
        match self.what {
            ServiceKind::Node => "Hailwire node",
            ServiceKind::Hub => "Hailwire hub",
            ServiceKind::Callout => "Hailwire inspection agents for proxies",
        }
    }
}

fn text_of(unit: &ServiceUnit) -> Result<String, CommandFailure> {
    let program = std::env::current_exe()
        .map_err(|error| CommandFailure::io("cannot find the path of this program", &error))?;
    let data = unit.data.as_ref().map(std::path::absolute).transpose();
    let data = data.map_err(|error| CommandFailure::io("cannot find the data folder", &error))?;
    Ok(unit_text(unit, &program, data))
}

/// The unit: restarted after a crash, stopped by SIGTERM with time to drain.
fn unit_text(unit: &ServiceUnit, program: &Path, data: Option<PathBuf>) -> String {
    let name = unit.name;
    let data = match unit.system {
        true => Some(PathBuf::from(format!("/var/lib/{name}"))),
        false => data,
    };
    let mut start = quoted(program.as_os_str());
    if let Some(data) = data {
        let _ = write!(start, " --data {}", quoted(data.as_os_str()));
    }
    let _ = write!(start, " {}", unit.command());
    for arg in &unit.args {
        let _ = write!(start, " {}", quoted(arg));
    }
    let (rights, wanted_by) = match unit.system {
        true => (system_rights(unit), "multi-user.target"),
        false => (String::new(), "default.target"),
    };
    format!(
        "[Unit]\n\
         Description={}\n\
         Documentation=man:hail(1)\n\
         After=network-online.target\n\
         Wants=network-online.target\n\
         \n\
         [Service]\n\
         ExecStart={start}\n\
         Restart=on-failure\n\
         RestartSec=2\n\
         TimeoutStopSec=30\n\
         KillMode=mixed\n\
         LimitNOFILE=65536\n\
         {rights}\
         \n\
         [Install]\n\
         WantedBy={wanted_by}\n",
        unit.description()
    )
}

fn system_rights(unit: &ServiceUnit) -> String {
    let name = unit.name;
    let stricter = match unit.what {
        ServiceKind::Node => "",
        ServiceKind::Hub | ServiceKind::Callout => STRICTER,
    };
    format!(
        "DynamicUser=yes\nStateDirectory={name}\nStateDirectoryMode=0700\nRuntimeDirectory={name}\n{HARDENING}{stricter}"
    )
}

/// A word of `ExecStart=` (systemd.service(5), "Command lines"): quoted, with `%` and
/// `$` doubled so that neither specifiers nor variables are expanded.
fn quoted(word: &OsStr) -> String {
    let mut out = String::from("\"");
    for c in word.to_string_lossy().chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '%' | '$' => out.extend([c, c]),
            '\n' => out.push_str("\\n"),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Which systemd a unit belongs to.
#[derive(Clone, Copy)]
struct ServiceManager {
    system: bool,
}

impl ServiceManager {
    fn of(unit: &ServiceUnit) -> Self {
        Self {
            system: unit.system,
        }
    }

    fn run(self, args: &[&str]) -> Result<(), CommandFailure> {
        let user = (!self.system).then_some("--user");
        let status = Command::new("systemctl").args(user).args(args).status();
        let line = format!("{self} {}", args.join(" "));
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(
                CommandFailure::general(format!("`{line}` failed: {status}"))
                    .hint(format!("see `{self} status` and `journalctl`")),
            ),
            Err(error) => Err(CommandFailure::io(format!("cannot run `{line}`"), &error)
                .hint("without systemd, run `hail up -d` from your own init system")),
        }
    }
}

impl std::fmt::Display for ServiceManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.system {
            true => "systemctl",
            false => "systemctl --user",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(what: ServiceKind, system: bool, folder: &Path) -> ServiceUnit {
        let name = match what {
            ServiceKind::Node => "hailwire",
            ServiceKind::Hub => "hailwire-hub",
            ServiceKind::Callout => "hailwire-callout",
        };
        ServiceUnit {
            what,
            system,
            name,
            path: folder.join(format!("systemd/{name}.service")),
            data: None,
            args: Vec::new(),
        }
    }

    #[test]
    fn the_unit_starts_this_program_on_this_data_folder_with_these_arguments() {
        let mut node = unit(ServiceKind::Node, false, Path::new("/u"));
        let data = Some(PathBuf::from("/srv/a b/50%$x\""));
        let text = unit_text(&node, Path::new("/usr/bin/hail"), data);
        assert!(
            text.contains("\nExecStart=\"/usr/bin/hail\" --data \"/srv/a b/50%%$$x\\\"\" up\n")
        );
        assert!(
            text.contains("KillMode=mixed") && !text.contains("DynamicUser"),
            "{text}"
        );
        node.args = vec!["--listen-tcp".into(), "0.0.0.0:443".into()];
        let text = unit_text(&node, Path::new("/hail"), None);
        assert!(
            text.contains("\nExecStart=\"/hail\" up \"--listen-tcp\" \"0.0.0.0:443\"\n"),
            "{text}"
        );
    }

    #[test]
    fn a_service_of_the_machine_has_its_own_user_and_few_rights() {
        let kinds = [ServiceKind::Node, ServiceKind::Hub, ServiceKind::Callout];
        let texts = kinds
            .map(|what| unit_text(&unit(what, true, Path::new("/s")), Path::new("/hail"), None));
        for text in &texts {
            for line in [
                "DynamicUser=yes",
                "ProtectSystem=strict",
                "CapabilityBoundingSet=",
                "WantedBy=multi-user.target",
            ] {
                assert!(
                    text.lines().any(|one| one == line),
                    "{line} is not in\n{text}"
                );
            }
        }
        let [node, hub, callout] = texts;
        assert!(
            hub.contains("--data \"/var/lib/hailwire-hub\" hub\n"),
            "{hub}"
        );
        assert!(callout.contains(" callout serve\n"), "{callout}");
        // An agent's program may make code at run time.
        assert!(
            !node.contains("MemoryDenyWriteExecute") && hub.contains("MemoryDenyWriteExecute=yes")
        );
    }

    #[test]
    fn what_is_installed_can_be_uninstalled_twice() {
        let folder = tempfile::tempdir().unwrap();
        let unit = unit(ServiceKind::Hub, false, folder.path());
        let quiet = Output {
            json: true,
            ..Output::default()
        };
        install(quiet, &unit, false).unwrap();
        assert!(unit.path.exists());
        uninstall(quiet, &unit, false).unwrap();
        assert!(!unit.path.exists());
        uninstall(quiet, &unit, false).unwrap();
    }
}
