//! `tieline completions DIR` writes the completion files of shells, from the same definitions as `--help`. Packages use this
//! command.

use crate::system_error;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;
use tieline::Error;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory to which the files are written
    directory: PathBuf,
}

/// The shells, each with the name under which it looks for the file.
const SHELLS: [(Shell, &str); 3] =
    [(Shell::Bash, "tieline"), (Shell::Zsh, "_tieline"), (Shell::Fish, "tieline.fish")];

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    for (shell, name) in SHELLS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut shown(), "tieline", &mut text);
        let file = args.directory.join(name);
        std::fs::write(&file, text).map_err(|e| {
            let fix = "name a directory that is there and may be written to";
            system_error(format!("cannot write {}", file.display()), &e, fix)
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the command without subcommands and options that only other programs use.
fn shown() -> Command {
    let root = crate::Cli::command();
    let subcommands: Vec<Command> =
        root.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    Command::new("tieline")
        .version(crate::VERSION)
        .about(root.get_about().cloned().unwrap_or_default())
        .subcommands(subcommands)
}
