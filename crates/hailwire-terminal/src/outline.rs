//! The table of a program's commands as data, so that `hail` can complete and document what another program parses.
//!
//! Each companion program prints an outline of the commands that it executes, as JSON, with the hidden command [`COMMAND`]. [`graft`] puts
//! them into the table of `hail` in place of their entries there. An outline holds what completions and manual pages show; values are parsed by the program itself.

use std::process::{Command as Process, Stdio};

use clap::{
    Arg, ArgAction, ArgGroup, Command, ValueHint,
    builder::{PossibleValue, PossibleValuesParser, Resettable, Str, StyledStr},
};
use serde::{Deserialize, Serialize};

use crate::{
    failure::CommandFailure,
    output::Output,
    programs::{ALL, CompanionProgram, ForwardedCommand},
};

/// The hidden command of a program that prints its outlines.
pub const COMMAND: &str = "outline";

/// A command with all that is below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandOutline {
    name: String,
    about: Option<String>,
    long_about: Option<String>,
    hidden: bool,
    needs_command: bool,
    args: Vec<ArgOutline>,
    groups: Vec<GroupOutline>,
    commands: Vec<CommandOutline>,
}

/// An option or an argument of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ArgOutline {
    id: String,
    short: Option<char>,
    long: Option<String>,
    help: Option<String>,
    long_help: Option<String>,
    heading: Option<String>,
    /// The minimum and maximum number of values.
    values: (usize, usize),
    value_names: Vec<String>,
    possible: Vec<(String, Option<String>)>,
    defaults: Vec<String>,
    hint: String,
    repeats: ArgRepetition,
    required: bool,
    hidden: bool,
    last: bool,
    conflicts: Vec<String>,
}

/// Whether an option may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ArgRepetition {
    Never,
    EachAddsValues,
    EachCounts,
}

/// Options of which one is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GroupOutline {
    id: String,
    args: Vec<String>,
    required: bool,
    multiple: bool,
}

/// Prints the outlines of the commands that `program` executes, from its table `table`, as a JSON list in their order.
///
/// # Errors
///
/// If stdout cannot be written.
pub fn print(
    program: &CompanionProgram,
    table: &mut Command,
    output: Output,
) -> Result<(), CommandFailure> {
    let outlines = of_program(program, table);
    let text = serde_json::to_string(&outlines)
        .map_err(|error| CommandFailure::general(format!("cannot print as JSON: {error}")))?;
    output.text(&(text + "\n"))
}

/// The outlines of the commands that `program` executes.
pub fn of_program(program: &CompanionProgram, table: &mut Command) -> Vec<CommandOutline> {
    table.build();
    let found = program.commands.iter();
    found
        .filter_map(|carried| at(table, carried))
        .map(CommandOutline::of)
        .collect()
}

/// Completes the table of `hail` with the outlines of the companion programs. If one is missing, its entries stay as they are,
/// and `missing` is called.
///
/// # Errors
///
/// If a program exists and does not print its outlines.
pub fn graft(mut table: Command, mut missing: impl FnMut(&str)) -> Result<Command, CommandFailure> {
    for program in ALL {
        match program.find() {
            Ok(path) => {
                for (carried, outline) in program.commands.iter().zip(ask(&path)?) {
                    put(&mut table, carried.path, outline.into());
                }
            }
            Err(absent) => missing(&absent.to_string()),
        }
    }
    Ok(table)
}

/// Replaces the command at `path` by `command`, if it exists.
fn put(table: &mut Command, path: &[&str], command: Command) {
    let [first, rest @ ..] = path else {
        let place = table.get_display_order();
        *table = command.display_order(place);
        return;
    };
    let mut below = table.get_subcommands_mut();
    if let Some(inner) = below.find(|inner| inner.get_name() == *first) {
        put(inner, rest, command);
    }
}

/// Whether `hail` can show all commands of `program` as the program itself would; for the program's tests.
///
/// # Errors
///
/// What is lost, or differs in the list of commands of `hail`.
pub fn verify(program: &CompanionProgram, table: Command) -> Result<(), String> {
    let outlines = of_program(program, &mut table.clone());
    if outlines.len() != program.commands.len() {
        return Err(format!("{} lacks commands", program.name));
    }
    let mut rebuilt = table;
    for (carried, outline) in program.commands.iter().zip(&outlines) {
        if outline.about.as_deref() != Some(carried.about) {
            return Err(format!("{carried}: {:?}", outline.about));
        }
        put(&mut rebuilt, carried.path, outline.clone().into());
    }
    let (is, was) = (of_program(program, &mut rebuilt), outlines);
    let (is, was) = (format!("{is:#?}"), format!("{was:#?}"));
    match was.lines().zip(is.lines()).find(|(was, is)| was != is) {
        Some((was, is)) => Err(format!("{was} became {is}")),
        None => Ok(()),
    }
}

fn at<'a>(table: &'a Command, carried: &ForwardedCommand) -> Option<&'a Command> {
    let mut path = carried.path.iter();
    path.try_fold(table, |inner, name| inner.find_subcommand(name))
}

/// Reads the outlines that a program prints.
fn ask(program: &std::path::Path) -> Result<Vec<CommandOutline>, CommandFailure> {
    let shown = program.display();
    let asked = Process::new(program)
        .arg(COMMAND)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| CommandFailure::io(format!("cannot start {shown}"), &error))?;
    serde_json::from_slice(&asked.stdout).map_err(|error| {
        CommandFailure::general(format!("{shown} did not describe its commands: {error}"))
            .hint("its version may differ from that of hail")
    })
}

impl CommandOutline {
    /// The outline of a command in a table that was built.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        // Options that the table adds to each of its commands are added again by the table of `hail`.
        let own = |arg: &&Arg| !arg.is_global_set() && !["help", "version"].contains(&id_of(arg));
        Self {
            name: command.get_name().to_owned(),
            about: command.get_about().map(ToString::to_string),
            long_about: command.get_long_about().map(ToString::to_string),
            hidden: command.is_hide_set(),
            needs_command: command.is_subcommand_required_set(),
            args: command
                .get_arguments()
                .filter(own)
                .map(|arg| ArgOutline::of(command, arg))
                .collect(),
            groups: command.get_groups().map(GroupOutline::of).collect(),
            commands: command.get_subcommands().map(Self::of).collect(),
        }
    }
}

fn id_of(arg: &Arg) -> &str {
    arg.get_id().as_str()
}

impl ArgOutline {
    fn of(command: &Command, arg: &Arg) -> Self {
        let values = arg.get_num_args().unwrap_or_else(|| 0.into());
        // A flag has a value name although it takes no value.
        let takes_values = values.max_values() > 0;
        let value_names = arg.get_value_names().filter(|_| takes_values);
        let conflicts = command.get_arg_conflicts_with(arg);
        Self {
            id: id_of(arg).to_owned(),
            short: arg.get_short(),
            long: arg.get_long().map(str::to_owned),
            help: arg.get_help().map(ToString::to_string),
            long_help: arg.get_long_help().map(ToString::to_string),
            heading: arg.get_help_heading().map(str::to_owned),
            values: (values.min_values(), values.max_values()),
            value_names: value_names
                .unwrap_or_default()
                .iter()
                .map(ToString::to_string)
                .collect(),
            possible: possible(arg),
            defaults: arg
                .get_default_values()
                .iter()
                .map(|value| value.to_string_lossy().into_owned())
                .collect(),
            hint: format!("{:?}", arg.get_value_hint()),
            repeats: match arg.get_action() {
                ArgAction::Append => ArgRepetition::EachAddsValues,
                ArgAction::Count => ArgRepetition::EachCounts,
                _ => ArgRepetition::Never,
            },
            required: arg.is_required_set(),
            hidden: arg.is_hide_set(),
            last: arg.is_last_set(),
            conflicts: conflicts
                .into_iter()
                .map(|arg| id_of(arg).to_owned())
                .collect(),
        }
    }
}

fn possible(arg: &Arg) -> Vec<(String, Option<String>)> {
    // A flag has the possible values true and false, which are never typed.
    if !arg.get_action().takes_values() {
        return Vec::new();
    }
    let values = arg.get_possible_values().into_iter();
    values
        .map(|value| {
            let help = value.get_help().map(ToString::to_string);
            (value.get_name().to_owned(), help)
        })
        .collect()
}

impl GroupOutline {
    fn of(group: &ArgGroup) -> Self {
        Self {
            id: group.get_id().as_str().to_owned(),
            args: group.get_args().map(ToString::to_string).collect(),
            required: group.is_required_set(),
            multiple: group.clone().is_multiple(),
        }
    }
}

impl From<CommandOutline> for Command {
    fn from(outline: CommandOutline) -> Self {
        let mut command = Self::new(outline.name)
            .hide(outline.hidden)
            .subcommand_required(outline.needs_command)
            .args(outline.args.into_iter().map(Arg::from))
            .groups(outline.groups.into_iter().map(ArgGroup::from))
            .subcommands(outline.commands.into_iter().map(Self::from));
        if let Some(about) = outline.about {
            command = command.about(about);
        }
        if let Some(about) = outline.long_about {
            command = command.long_about(about);
        }
        command
    }
}

impl From<ArgOutline> for Arg {
    fn from(outline: ArgOutline) -> Self {
        let (least, most) = outline.values;
        let action = match outline.repeats {
            ArgRepetition::EachAddsValues => ArgAction::Append,
            ArgRepetition::EachCounts => ArgAction::Count,
            ArgRepetition::Never if most == 0 => ArgAction::SetTrue,
            ArgRepetition::Never => ArgAction::Set,
        };
        let mut arg = Self::new(outline.id)
            .short(outline.short)
            .long(Resettable::from(outline.long.map(Str::from)))
            .help(Resettable::from(outline.help.map(StyledStr::from)))
            .long_help(Resettable::from(outline.long_help.map(StyledStr::from)))
            .help_heading(Resettable::from(outline.heading.map(Str::from)))
            .action(action)
            .required(outline.required)
            .hide(outline.hidden)
            .last(outline.last)
            .conflicts_with_all(outline.conflicts);
        if most > 0 {
            arg = arg
                .num_args(least..=most)
                .value_names(outline.value_names)
                .default_values(outline.defaults)
                .value_hint(outline.hint.parse::<ValueHint>().unwrap_or_default());
            if !outline.possible.is_empty() {
                let values = outline.possible.into_iter().map(|(name, help)| {
                    PossibleValue::new(name).help(Resettable::from(help.map(StyledStr::from)))
                });
                arg = arg.value_parser(PossibleValuesParser::new(values));
            }
        }
        arg
    }
}

impl From<GroupOutline> for ArgGroup {
    fn from(outline: GroupOutline) -> Self {
        Self::new(outline.id)
            .args(outline.args)
            .required(outline.required)
            .multiple(outline.multiple)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, CommandFactory, Parser, Subcommand};
    use clap_complete::Shell;

    use super::*;
    use crate::global::GlobalArgs;

    /// A table with one of everything that the tables of our programs have.
    #[derive(Debug, Parser)]
    #[command(name = "hail", bin_name = "hail", disable_help_subcommand = true)]
    struct Cli {
        #[command(flatten)]
        global: GlobalArgs,
        #[command(subcommand)]
        command: Commands,
    }

    #[derive(Debug, Subcommand)]
    enum Commands {
        /// One before it
        First,
        /// Measure
        ///
        /// In more than one line.
        Bench {
            #[command(subcommand)]
            command: Inner,
        },
        /// One behind it
        Last,
    }

    #[derive(Debug, Subcommand)]
    enum Inner {
        Run(Run),
        /// Not shown
        #[command(hide = true)]
        Part,
    }

    /// Run it
    #[derive(Debug, Args)]
    #[command(group = ArgGroup::new("which").required(true))]
    struct Run {
        /// Which suite
        #[arg(value_name = "SUITE", value_parser = ["smoke", "overlay"])]
        suite: String,
        /// As little: [brackets], 'quotes' and a colon
        ///
        /// More of it.
        #[arg(short, long, conflicts_with = "full")]
        quick: bool,
        /// Everything
        #[arg(long)]
        full: bool,
        /// Only this network; may repeat
        #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = ["wan", "lan"])]
        network: Vec<String>,
        /// How many
        #[arg(long, value_name = "N", default_value = "5")]
        repeats: u32,
        /// Folder
        #[arg(long, value_name = "DIR", group = "which")]
        out: Option<std::path::PathBuf>,
        /// Command
        #[arg(long, value_name = "CMD", group = "which", requires = "quick")]
        exec: Option<String>,
        /// Not shown
        #[arg(long, hide = true, conflicts_with_all = ["quick", "full"])]
        tiny: bool,
        /// The program and its arguments
        #[arg(last = true, required = true, value_name = "PROGRAM", num_args = 1..)]
        program: Vec<std::ffi::OsString>,
    }

    /// The table with the outline of one of its commands, sent as JSON, in that command's place.
    fn grafted() -> Command {
        let mut table = Cli::command();
        table.build();
        let outline = CommandOutline::of(table.find_subcommand("bench").unwrap());
        let sent = serde_json::to_string(&outline).unwrap();
        let outline: CommandOutline = serde_json::from_str(&sent).unwrap();
        let mut table = Cli::command();
        put(&mut table, &["bench"], outline.into());
        table
    }

    #[test]
    fn completions_of_every_shell_are_those_of_the_program_itself() {
        for shell in [
            Shell::Bash,
            Shell::Zsh,
            Shell::Fish,
            Shell::Elvish,
            Shell::PowerShell,
        ] {
            let script = |mut table: Command| {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut table, "hail", &mut script);
                String::from_utf8(script).unwrap()
            };
            assert_eq!(script(grafted()), script(Cli::command()), "{shell}");
        }
    }

    #[test]
    fn manual_pages_are_those_of_the_program_itself() {
        fn collect(command: &Command, pages: &mut Vec<String>) {
            let mut page = Vec::new();
            clap_mangen::Man::new(command.clone())
                .render(&mut page)
                .unwrap();
            pages.push(String::from_utf8(page).unwrap());
            for inner in command.get_subcommands() {
                collect(inner, pages);
            }
        }
        let all = |mut table: Command| {
            let mut all = Vec::new();
            table.build();
            collect(&table, &mut all);
            all
        };
        assert_eq!(all(grafted()), all(Cli::command()));
    }
}
