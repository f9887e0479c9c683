//! `hail service install | uninstall`: the node as a systemd user service.
//!
//! The unit is written and the next steps are printed; systemctl is only run on request.

use std::{fs, io, path::Path, process::Command};

use hailwire_terminal::{failure::CommandFailure, output::Output};
use serde_json::json;

const UNIT: &str = "hailwire.service";

/// Writes the unit; with `enable` also starts it.
pub(crate) fn install(
    output: Output,
    unit: &Path,
    data: Option<&Path>,
    enable: bool,
) -> Result<(), CommandFailure> {
    let program = std::env::current_exe()
        .map_err(|error| CommandFailure::io("cannot find the path of this program", &error))?;
    let data = data.map(std::path::absolute).transpose();
    let data = data.map_err(|error| CommandFailure::io("cannot find the data folder", &error))?;
    let text = unit_text(&program, data.as_deref());
    let wrong =
        |error: io::Error| CommandFailure::io(format!("cannot write {}", unit.display()), &error);
    if let Some(folder) = unit.parent() {
        fs::create_dir_all(folder).map_err(wrong)?;
    }
    fs::write(unit, text).map_err(wrong)?;
    if enable {
        systemctl(&["daemon-reload"])?;
        systemctl(&["enable", "--now", UNIT])?;
    }
    output.value(&json!({ "unit": unit, "enabled": enable }), |_| {
        format!("{}\n", unit.display())
    })?;
    if !enable {
        output.note("next:");
        output.note("  systemctl --user daemon-reload");
        output.note(&format!("  systemctl --user enable --now {UNIT}"));
        output.note("  loginctl enable-linger    # to keep it running while you are logged out");
    }
    Ok(())
}

/// Removes the unit; with `disable` stops the service first.
pub(crate) fn uninstall(output: Output, unit: &Path, disable: bool) -> Result<(), CommandFailure> {
    if disable {
        systemctl(&["disable", "--now", UNIT])?;
    }
    match fs::remove_file(unit) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            output.note(&format!("{} does not exist", unit.display()));
        }
        Err(error) => {
            return Err(CommandFailure::io(
                format!("cannot remove {}", unit.display()),
                &error,
            ));
        }
    }
    if disable {
        return systemctl(&["daemon-reload"]);
    }
    output.note("next:");
    output.note(&format!("  systemctl --user disable --now {UNIT}"));
    output.note("  systemctl --user daemon-reload");
    Ok(())
}

/// The unit: restarted after a crash, stopped by SIGTERM with time to drain. Only the node is told to stop (`KillMode=mixed`): it ends
/// the supervisor of its kept agents once calls have ended, and systemd kills whatever is left.
fn unit_text(program: &Path, data: Option<&Path>) -> String {
    let mut start = quoted(program);
    if let Some(data) = data {
        start.push_str(" --data ");
        start.push_str(&quoted(data));
    }
    format!(
        "[Unit]\n\
         Description=Hailwire node\n\
         Documentation=man:hail(1)\n\
         After=network-online.target\n\
         Wants=network-online.target\n\
         \n\
         [Service]\n\
         ExecStart={start} up\n\
         Restart=on-failure\n\
         RestartSec=2\n\
         TimeoutStopSec=30\n\
         KillMode=mixed\n\
         LimitNOFILE=65536\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n"
    )
}

/// A path as one word of `ExecStart=` (systemd.service(5), "Command lines"): quoted, with `%` and
/// `$` doubled so that neither specifiers nor variables are expanded.
fn quoted(path: &Path) -> String {
    let mut out = String::from("\"");
    for c in path.to_string_lossy().chars() {
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

fn systemctl(args: &[&str]) -> Result<(), CommandFailure> {
    let status = Command::new("systemctl").arg("--user").args(args).status();
    let line = format!("systemctl --user {}", args.join(" "));
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(
            CommandFailure::general(format!("`{line}` failed: {status}"))
                .hint("see `systemctl --user status` and `journalctl --user`"),
        ),
        Err(error) => Err(CommandFailure::io(format!("cannot run `{line}`"), &error)
            .hint("without systemd, run `hail up -d` from your own init system")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> Output {
        Output {
            json: true,
            colour: false,
            colour_errors: false,
            progress: false,
            log_json: false,
            width: None,
        }
    }

    #[test]
    fn the_unit_starts_this_program_on_this_data_folder() {
        let text = unit_text(
            Path::new("/usr/bin/hail"),
            Some(Path::new("/srv/a b/50%$x\"")),
        );
        assert!(
            text.contains("\nExecStart=\"/usr/bin/hail\" --data \"/srv/a b/50%%$$x\\\"\" up\n")
        );
        assert!(text.contains("\nKillMode=mixed\n"));
        assert!(unit_text(Path::new("/hail"), None).contains("\nExecStart=\"/hail\" up\n"));
    }

    #[test]
    fn what_is_installed_can_be_uninstalled_twice() {
        let folder = tempfile::tempdir().unwrap();
        let unit = folder.path().join("systemd/user").join(UNIT);
        install(quiet(), &unit, None, false).unwrap();
        assert!(unit.exists());
        uninstall(quiet(), &unit, false).unwrap();
        assert!(!unit.exists());
        uninstall(quiet(), &unit, false).unwrap();
    }
}
