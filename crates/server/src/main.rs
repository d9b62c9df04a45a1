//! The binary: reads the command line, runs the command, and turns the result into an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use forebay::command::{self, Command};
use forebay::startup::StartupError;
use forebay::{events, log, run};

/// Chosen by measurement: a request allocates some thirty small blocks and frees them on the same thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            events::startup_failed(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn execute() -> Result<(), StartupError> {
    match command::parse(std::env::args_os(), std::env::var_os)? {
        Command::Serve(settings) => {
            log::start(settings.log)?;
            run::serve(&settings)
        }
        Command::Demo(demo) => {
            log::start(demo.settings.log)?;
            demo.run()
        }
        Command::Simulate(simulation) => simulation.run(),
        Command::Replay(replay) => replay.run(),
        Command::Check { subject, settings } => print(&format!("ok: {subject}\n{settings}\n")),
        Command::Print(text) => print(&text),
    }
}

/// Unlike `println!`, does not panic when nobody reads.
fn print(text: &str) -> Result<(), StartupError> {
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| StartupError::Internal(format!("cannot write to stdout: {error}")))
}
