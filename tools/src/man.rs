//! `tieline man DIR` writes the man pages, from the same definitions as `--help`. Packages use this command.

use crate::{misuse, system_error};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tieline::Error;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory to which the pages are written
    directory: PathBuf,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    let root = crate::Cli::command().disable_help_subcommand(true);
    write(&args.directory, root.clone(), "tieline")?;
    for sub in root.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = format!("tieline-{}", sub.get_name());
        let spoken = format!("tieline {}", sub.get_name());
        let page = sub.clone().display_name(&name).bin_name(spoken).version(crate::VERSION);
        write(&args.directory, page, &name)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(directory: &Path, command: Command, name: &str) -> Result<(), Error> {
    let mut page = Vec::new();
    let file = directory.join(format!("{name}.1"));
    let failed = |e: std::io::Error| {
        let fix = "name a directory that is there and may be written to";
        system_error(format!("cannot write {}", file.display()), &e, fix)
    };
    let source = format!("tieline {}", crate::VERSION);
    // The pages have no date, because a date would make every build's pages different.
    let man =
        Man::new(command).title(name.to_uppercase()).date("").source(source).manual("Tieline");
    man.render(&mut page).map_err(failed)?;
    let text = String::from_utf8(page)
        .map_err(|e| misuse("a page is no text", e.to_string(), "please report it"))?;
    std::fs::write(&file, tidy(&text)).map_err(failed)
}

/// Removes blanks at the ends of lines, and makes the text end with one newline.
fn tidy(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}
