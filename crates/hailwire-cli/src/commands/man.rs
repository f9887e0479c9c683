//! `hail man [DIR]`: manual pages from the same table as the help.

use std::{fs, io, path::Path};

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use hailwire_terminal::{failure::CommandFailure, outline, output::Output};

use crate::args::Cli;

/// Prints the page of `hail`, or writes the pages of all commands into `dir`.
pub(crate) fn run(output: Output, dir: Option<&Path>) -> Result<(), CommandFailure> {
    let failed = |error: io::Error| CommandFailure::io("cannot generate the manual page", &error);
    let Some(dir) = dir else {
        let (_, page) = pages(Cli::command()).map_err(failed)?.swap_remove(0);
        return output.text(&String::from_utf8_lossy(&page));
    };
    let table = outline::graft(Cli::command(), |missing| {
        output.note(&format!("note: some pages are not included: {missing}"));
    })?;
    let wrong =
        |error: io::Error| CommandFailure::io(format!("cannot write to {}", dir.display()), &error);
    fs::create_dir_all(dir).map_err(wrong)?;
    let pages = pages(table).map_err(failed)?;
    for (name, page) in &pages {
        fs::write(dir.join(name), page).map_err(wrong)?;
    }
    let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    output.value(&names, |names| {
        format!("{} pages in {}\n", names.len(), dir.display())
    })
}

/// File name and text of each page, `hail.1` first.
fn pages(mut root: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    root.build();
    let mut pages = Vec::new();
    collect(&root, "hail", &mut pages)?;
    Ok(pages)
}

fn collect(
    command: &clap::Command,
    name: &str,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> io::Result<()> {
    let mut page = Vec::new();
    Man::new(command.clone().display_name(name))
        .title(name.to_uppercase())
        .render(&mut page)?;
    pages.push((format!("{name}.1"), page));
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
    {
        collect(inner, &format!("{name}-{}", inner.get_name()), pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_page() {
        let pages = pages(Cli::command()).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[0], "hail.1");
        for name in [
            "hail-up.1",
            "hail-call.1",
            "hail-trust-approve.1",
            "hail-hub-invite.1",
        ] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
    }
}
