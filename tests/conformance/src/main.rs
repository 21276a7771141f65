//! `tieline-conformance PATH.so`: does this provider do what it claims?

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tieline_conformance::checks::CHECKS;
use tieline_conformance::runner::{self, Plan};
use tieline_conformance::{case, peer};
use tieline_plugin_api::{caps, role};

const USAGE: &str = "\
Runs every check of the Tieline provider contract against a provider file.

usage: tieline-conformance PATH_TO.so [--module [DOMAIN/]MODULE] [--filter TEXT] [--patience SECONDS]
       tieline-conformance PATH_TO.so --list      the modules in the file and the checks

Prints one line per check: ok, FAILED: what, expected, found, or skipped: why.
Exit status: 0 all passed or were skipped, 1 a check failed, 2 the file or the command line is of no use.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return unusable(&format!("this program's own path: {error}")),
    };
    let result = match words[..] {
        [runner::ARGUMENT, check, path] => runner::run_one(check, Path::new(path), "", &program),
        [runner::ARGUMENT, check, path, module] => {
            runner::run_one(check, Path::new(path), module, &program)
        }
        [peer::ARGUMENT, path, module] => {
            peer::serve(Path::new(path), module, &program).map(|()| String::new())
        }
        [] | ["--help" | "-h"] => Ok(USAGE.to_string()),
        _ => return check_file(&words, program),
    };
    match result {
        Ok(line) if line.is_empty() => ExitCode::SUCCESS,
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => unusable(&why),
    }
}

fn unusable(why: &str) -> ExitCode {
    eprintln!("tieline-conformance: {why}");
    ExitCode::from(2)
}

fn check_file(words: &[&str], program: PathBuf) -> ExitCode {
    let (mut plan, list) = match parse(words, program) {
        Ok(parsed) => parsed,
        Err(why) => return unusable(&format!("{why}\n\n{USAGE}")),
    };
    // A name without a slash would be looked up by the dynamic linker.
    plan.path = match plan.path.canonicalize() {
        Ok(path) => path,
        Err(error) => return unusable(&format!("{}: {error}", plan.path.display())),
    };
    if list {
        return match case::modules(&plan.path) {
            Ok(names) => {
                for (name, role) in &names {
                    let only = *role == role::CONNECTION_ONLY;
                    println!("module {name}{}", if only { " (connection-only)" } else { "" });
                }
                for check in CHECKS {
                    let needs: Vec<&str> = caps::ALL
                        .iter()
                        .filter(|c| c.value & check.needs != 0)
                        .map(|c| c.c_name)
                        .collect();
                    println!("check {} {}", check.name, needs.join(" "));
                }
                ExitCode::SUCCESS
            }
            Err(why) => unusable(&why),
        };
    }
    match runner::run(&plan, &mut std::io::stdout()) {
        Ok(tally) if tally.failed == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(why) => unusable(&format!("{}: {why}", plan.path.display())),
    }
}

fn parse(words: &[&str], program: PathBuf) -> Result<(Plan, bool), String> {
    let (mut path, mut module, mut filter, mut list) = (None, None, None, false);
    let mut patience = Duration::from_secs(120);
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        let mut value =
            || words.next().map(|v| (*v).to_string()).ok_or(format!("{word} needs a value"));
        match word {
            "--module" => module = Some(value()?),
            "--filter" => filter = Some(value()?),
            "--patience" => {
                let seconds = value()?;
                let number =
                    seconds.parse().map_err(|_| format!("{seconds} is no number of seconds"))?;
                patience = Duration::from_secs(number);
            }
            "--list" => list = true,
            _ if word.starts_with('-') => return Err(format!("unknown option {word}")),
            _ if path.is_some() => {
                return Err(format!("one file at a time; {word} is a second one"));
            }
            _ => path = Some(PathBuf::from(word)),
        }
    }
    let path = path.ok_or("no provider file was named")?;
    Ok((Plan { path, module, filter, program, patience }, list))
}
