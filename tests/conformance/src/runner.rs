//! Runs every check in a process of its own and prints a line for each.

use crate::case::modules;
use crate::checks::CHECKS;
use crate::report::Verdict;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The first argument of a process that runs one check: its name, the file and `domain/module` follow.
pub const ARGUMENT: &str = "--check";

/// What to run.
pub struct Plan {
    /// The provider file.
    pub path: PathBuf,
    /// Only this module: `MODULE` or `DOMAIN/MODULE`.
    pub module: Option<String>,
    /// Only checks whose name contains this.
    pub filter: Option<String>,
    /// The program that understands [`ARGUMENT`] and [`crate::peer::ARGUMENT`].
    pub program: PathBuf,
    /// A check that takes longer hangs.
    pub patience: Duration,
}

/// How many checks ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// As it must be.
    pub passed: usize,
    /// Not.
    pub failed: usize,
    /// Not run.
    pub skipped: usize,
}

/// Runs the plan; every line goes to `out`.
///
/// # Errors
/// Why the file holds nothing to check, or `out` cannot be written.
pub fn run(plan: &Plan, out: &mut dyn Write) -> Result<Tally, String> {
    let mut chosen = modules_apart(plan)?;
    let all = chosen.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(wanted) = &plan.module {
        chosen.retain(|(name, _)| name == wanted || name.rsplit('/').next() == Some(wanted));
    }
    if chosen.is_empty() {
        return Err(match &plan.module {
            Some(wanted) => format!("there is no module {wanted}; there is {all}"),
            None => "the file has no module".to_string(),
        });
    }
    let mut tally = Tally::default();
    for (module, role) in &chosen {
        for check in CHECKS.iter().filter(|check| check.is_for(*role)) {
            if plan.filter.as_ref().is_some_and(|filter| !check.name.contains(filter.as_str())) {
                continue;
            }
            let verdict = one(plan, check.name, module);
            match verdict {
                Verdict::Passed => tally.passed += 1,
                Verdict::Failed(_) => tally.failed += 1,
                Verdict::Skipped(_) => tally.skipped += 1,
            }
            writeln!(out, "{module} {}: {verdict}", check.name).map_err(|e| e.to_string())?;
        }
    }
    let Tally { passed, failed, skipped } = tally;
    if passed + failed + skipped == 0 {
        return Err(format!("no check has `{}` in its name", plan.filter.as_deref().unwrap_or("")));
    }
    writeln!(out, "{passed} passed, {failed} failed, {skipped} skipped")
        .map_err(|e| e.to_string())?;
    Ok(tally)
}

/// The name of the check that lists modules: it runs apart, too, because a constructor may crash.
pub const LIST_MODULES: &str = "modules";

fn modules_apart(plan: &Plan) -> Result<Vec<(String, u32)>, String> {
    match apart(plan, &[LIST_MODULES.as_ref(), plan.path.as_os_str()])? {
        Ended::With(text) => match text.strip_prefix("modules: ") {
            Some(list) => {
                let module = |entry: &str| {
                    let (name, role) = entry.rsplit_once(' ')?;
                    Some((name.to_string(), role.parse().ok()?))
                };
                Ok(list.split(", ").filter_map(module).collect())
            }
            None => Err(text),
        },
        Ended::Badly(how) => Err(format!("loading the provider {how}")),
    }
}

fn one(plan: &Plan, check: &str, module: &str) -> Verdict {
    match apart(plan, &[check.as_ref(), plan.path.as_os_str(), module.as_ref()]) {
        Ok(Ended::With(text)) => match text.split_once(": ") {
            Some(("skipped", why)) => Verdict::Skipped(why.to_string()),
            Some(("FAILED", what)) => Verdict::Failed(what.to_string()),
            _ if text == "ok" => Verdict::Passed,
            _ => {
                Verdict::Failed(format!("the check's process, expected a verdict, found `{text}`"))
            }
        },
        Ok(Ended::Badly(how)) => Verdict::Failed(format!(
            "the check's process, expected it to end by itself, found that it {how}"
        )),
        Err(why) => Verdict::Failed(why),
    }
}

/// How a process ended.
enum Ended {
    /// By itself; its last line.
    With(String),
    /// By a signal, or not at all.
    Badly(String),
}

/// Runs the program on one check.
fn apart(plan: &Plan, arguments: &[&std::ffi::OsStr]) -> Result<Ended, String> {
    let mut child = Command::new(&plan.program)
        .arg(ARGUMENT)
        .args(arguments)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{} does not start: {e}", plan.program.display()))?;
    let (Some(mut output), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("the check's process has no pipes".to_string());
    };
    let (sender, ended) = channel();
    let _ = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.read_to_end(&mut text);
        let _ = sender.send(text);
    });
    let (errors_sender, errors_ended) = channel();
    let _ = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = errors.read_to_end(&mut text);
        let _ = errors_sender.send(text);
    });
    let text = match ended.recv_timeout(plan.patience) {
        Ok(text) => text,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(Ended::Badly(format!("hung: it did not end in {:?}", plan.patience)));
        }
    };
    let status = child.wait().map_err(|e| format!("waiting for the check's process: {e}"))?;
    let last_line = |text: &[u8]| {
        String::from_utf8_lossy(text).trim_end().lines().last().unwrap_or("").to_string()
    };
    if let Some(signal) = status.signal() {
        return Ok(Ended::Badly(format!("died of signal {signal}")));
    }
    if status.success() {
        return Ok(Ended::With(last_line(&text)));
    }
    let errors = errors_ended.recv_timeout(Duration::from_secs(5)).unwrap_or_default();
    let why = String::from_utf8_lossy(&errors).trim_end().replace('\n', " | ");
    Ok(Ended::Badly(format!("failed with {status}: {why}")))
}

/// The other side of [`ARGUMENT`]: runs one check here and returns the line to print.
///
/// # Errors
/// Why there is no such check.
pub fn run_one(check: &str, path: &Path, module: &str, program: &Path) -> Result<String, String> {
    if check == LIST_MODULES {
        return Ok(match modules(path) {
            Ok(names) => {
                let entry = |(name, role): &(String, u32)| format!("{name} {role}");
                format!("modules: {}", names.iter().map(entry).collect::<Vec<_>>().join(", "))
            }
            Err(why) => why.replace('\n', " "),
        });
    }
    let found = CHECKS.iter().find(|c| c.name == check);
    let found = found.ok_or_else(|| format!("there is no check {check}"))?;
    let verdict = match crate::case::Case::open(path, module, program) {
        Ok(case) => found.run(&case),
        Err(why) => Verdict::Failed(why),
    };
    Ok(verdict.to_string().replace('\n', " "))
}
