//! The command line: which command, with which settings. Turns every refusal into one line; runs nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config;
use crate::demo::{self, Demo};
use crate::flags::Flags;
use crate::given::{Given, Place, Rejected};
use crate::replay::{Replay, ReplayFlags};
use crate::resolve;
use crate::settings::Settings;
use crate::simulate::{SimFlags, Simulation};
use crate::startup::{EXIT_CODES, StartupError};

/// What the program was asked to do.
pub enum Command {
    /// Stand in front of workers.
    Serve(Box<Settings>),
    /// Say whether it could.
    Check {
        /// What was checked: the file, or `flags`.
        subject: String,
        /// What it stands for.
        settings: Box<Settings>,
    },
    /// Stand in front of simulated workers in the same process.
    Demo(Box<Demo>),
    /// Be simulated workers.
    Simulate(Simulation),
    /// Replay a decision log.
    Replay(Replay),
    /// Print this text, which is the help or the version, to stdout.
    Print(String),
}

/// forebay stands in front of vLLM workers and sends every request to the right one.
#[derive(Parser)]
#[command(name = "forebay", version, after_help = EXIT_CODES, max_term_width = 110)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    source: Source,
    #[command(subcommand)]
    command: Option<Chosen>,
}

#[derive(Subcommand)]
enum Chosen {
    /// Stand in front of workers; what happens without a command
    #[command(after_help = EXIT_CODES)]
    Serve(Source),
    /// Check the config file and the flags without starting anything
    Check(Source),
    /// Try it without any GPU: simulated workers with forebay in front, on this machine only
    Demo(DemoFlags),
    /// Run simulated workers alone
    Sim(SimFlags),
    /// Replay a decision log offline: is each choice made again, and what would other policies have made of it?
    Replay(ReplayFlags),
}

/// Where settings come from. `flags` only declares them: their values are taken on top of the file's.
#[derive(Args)]
struct Source {
    /// Config file: YAML with the flags below as keys, without the dashes; flags win
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Args)]
struct DemoFlags {
    /// Simulated workers, from 1 to 64 [default: 4]
    #[arg(long, value_name = "N")]
    workers: Option<Given>,
    /// How many of them prefill; the others decode, and prompts become pairs [default: 0, none has a role]
    #[arg(long, value_name = "N")]
    prefill_workers: Option<Given>,
    #[command(flatten)]
    source: Source,
}

/// Reads the command line, the config file it names, and the environment through `environment`.
///
/// # Errors
/// `FlagInvalid` or `ConfigInvalid`.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl Fn(&'static str) -> Option<OsString>,
) -> Result<Command, StartupError> {
    // Else a number below zero is taken for a flag, and the flag that it was meant for is not named.
    let numbers = |arg: clap::Arg| {
        let takes_one = arg.get_action().takes_values();
        if takes_one { arg.allow_negative_numbers(true) } else { arg }
    };
    let command = Cli::command().mut_args(numbers).mut_subcommands(|inner| inner.mut_args(numbers));
    let matches = match command.try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) if !error.use_stderr() => return Ok(Command::Print(error.to_string())),
        Err(error) => return Err(StartupError::FlagInvalid(one_line(&error))),
    };
    let cli = Cli::from_arg_matches(&matches).map_err(|error| StartupError::FlagInvalid(one_line(&error)))?;
    let inner = matches.subcommand().map_or(&matches, |(_, inner)| inner);
    let flags = |source: &Source| flags(source, inner, &environment);
    match cli.command {
        None => settings(&cli.source, flags(&cli.source)?).map(Command::Serve),
        Some(Chosen::Serve(source)) => settings(&source, flags(&source)?).map(Command::Serve),
        Some(Chosen::Check(source)) => {
            let settings = settings(&source, flags(&source)?)?;
            let subject = source.config.map_or("flags".to_owned(), |file| file.display().to_string());
            Ok(Command::Check { subject, settings })
        }
        Some(Chosen::Demo(DemoFlags { workers, prefill_workers, source })) => {
            let mut flags = flags(&source)?;
            let counts = [workers.as_ref(), prefill_workers.as_ref()];
            let (workers, prefillers) =
                demo::adapt(counts, &mut flags).map_err(|error| refusal(&source, &error))?;
            let settings = *settings(&source, flags)?;
            Ok(Command::Demo(Box::new(Demo { workers, prefillers, settings })))
        }
        Some(Chosen::Sim(flags)) => Simulation::new(flags)
            .map(Command::Simulate)
            .map_err(|error| StartupError::FlagInvalid(format!("--{}: {}", error.key, error.problem))),
        Some(Chosen::Replay(flags)) => Replay::new(flags)
            .map(Command::Replay)
            .map_err(|error| StartupError::FlagInvalid(format!("--{}: {}", error.key, error.problem))),
    }
}

/// What the file says, with the command line on top and the environment's secrets below.
fn flags(
    source: &Source,
    matches: &ArgMatches,
    environment: impl Fn(&'static str) -> Option<OsString>,
) -> Result<Flags, StartupError> {
    let mut flags = source.config.as_deref().map(config::read).transpose()?.unwrap_or_default();
    flags.update_from_arg_matches(matches).map_err(|error| StartupError::FlagInvalid(one_line(&error)))?;
    let secret = |variable| {
        // A value that is no text is refused later, like any other that no key can have.
        environment(variable)
            .map(|text| Given::from_environment(variable, text.to_string_lossy().into_owned()))
    };
    flags.api_key = flags.api_key.or_else(|| secret("FOREBAY_API_KEY"));
    flags.admin_api_key = flags.admin_api_key.or_else(|| secret("FOREBAY_ADMIN_API_KEY"));
    Ok(flags)
}

fn settings(source: &Source, flags: Flags) -> Result<Box<Settings>, StartupError> {
    resolve::settings(flags).map(Box::new).map_err(|error| refusal(source, &error))
}

fn refusal(source: &Source, Rejected { place, key, problem }: &Rejected) -> StartupError {
    match place {
        Place::Flag => StartupError::FlagInvalid(format!("--{key}: {problem}")),
        Place::Environment(variable) => StartupError::FlagInvalid(format!("{variable}: {problem}")),
        Place::File { line, column } => {
            let file = source.config.as_deref().unwrap_or(Path::new("config")).display();
            StartupError::ConfigInvalid(format!("{file}:{line}:{column}: {key}: {problem}"))
        }
    }
}

/// What clap says on several lines, as one: the flag, what was wrong, what is allowed.
fn one_line(error: &clap::Error) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    // Clap names a flag together with its value's name.
    let argument = context(ContextKind::InvalidArg).unwrap_or_default();
    let flag = argument.split(['=', ' ', '[']).next().unwrap_or_default();
    let hint = |kind| context(kind).map_or(String::new(), |known| format!("; did you mean {known}?"));
    match error.kind() {
        ErrorKind::UnknownArgument if flag.starts_with('-') => {
            format!("{flag}: there is no such flag{}", hint(ContextKind::SuggestedArg))
        }
        ErrorKind::UnknownArgument => {
            format!(
                "{flag}: a flag was expected here, or the command serve, check, demo, sim or replay first"
            )
        }
        ErrorKind::InvalidSubcommand => {
            let name = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("{name}: there is no such command; serve, check, demo, sim and replay are allowed")
        }
        ErrorKind::ArgumentConflict
            if context(ContextKind::PriorArg).is_some_and(|prior| prior == argument) =>
        {
            format!("{flag}: it is given twice; once is allowed")
        }
        ErrorKind::ArgumentConflict if error.get(ContextKind::InvalidSubcommand).is_some() => misplaced(
            &context(ContextKind::InvalidSubcommand).unwrap_or_default(),
            &context(ContextKind::PriorArg).unwrap_or_default(),
        ),
        ErrorKind::MissingRequiredArgument => format!("{argument}: it is not given; it is needed"),
        ErrorKind::InvalidValue => format!("{flag}: no value is given; one is needed"),
        ErrorKind::TooManyValues => format!("{flag}: it takes no value; none is allowed"),
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.trim_start_matches("error: ").to_owned()
        }
    }
}

/// A word behind `prior` that is no flag.
fn misplaced(word: &str, prior: &str) -> String {
    match prior.split_once("[=") {
        Some((flag, _)) => {
            format!("{word}: a value of {flag} stands after a =, and a command before all flags")
        }
        None => format!("{word}: a command stands before all flags"),
    }
}

#[cfg(test)]
mod tests;
