//! Runs checks in separate processes.

use crate::case::{Case, lacking};
use crate::checks::{self, CHECKS, Check};
use crate::enter::{Nothing, modules};
use crate::report::Verdict;
use crate::{load, peer, watch};
use core::fmt::{self, Write};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tieline_plugin_api::role;

/// The first argument of a process that runs one check: milliseconds, its name, the file and `domain/module` follow.
pub(crate) const ARGUMENT: &str = "check-one";

/// The name of the process that lists modules: it is separate, too, because a constructor may crash.
const LIST_MODULES: &str = "modules";

/// The name of the process that observes the effect of settings.
const OBSERVE: &str = "observe";

/// The checks to run.
pub struct Plan {
    /// The path of the provider file.
    pub path: PathBuf,
    /// The only module to check, as `MODULE` or `DOMAIN/MODULE`; `None` for all.
    pub module: Option<String>,
    /// A text that the names of the checks must contain; `None` for all checks.
    pub filter: Option<String>,
    /// The program to start for a check and for a peer: it calls [`child`] first.
    pub program: PathBuf,
    /// The time after which a check counts as hanging.
    pub limit: Duration,
    /// Whether the run stops after the first failed check.
    pub until_failure: bool,
}

/// The result of one check.
pub struct Outcome {
    /// The module's name, `domain/module`.
    pub module: String,
    /// The check.
    pub check: &'static Check,
    /// The verdict of the check.
    pub verdict: Verdict,
    /// The duration of the check.
    pub took: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.module, self.check.name, self.verdict)
    }
}

/// The number of checks by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of checks that passed.
    pub passed: usize,
    /// The number of checks that failed.
    pub failed: usize,
    /// The number of checks that were skipped.
    pub skipped: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { passed, failed, skipped } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// A module of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The module's name, `domain/module`.
    pub name: String,
    /// The role, `TIELINE_ROLE_*`.
    pub role: u32,
    /// The capabilities `TIELINE_CAP_*` that checks may rely on.
    pub caps: u64,
}

/// The identity and the contents of a provider file.
pub struct Contents {
    /// The provider's name.
    pub name: String,
    /// The provider's version.
    pub version: String,
    /// The modules that the plan selects.
    pub modules: Vec<Listed>,
    /// The provider's text if the machine lacks the provider's device, so that the file has no module to check.
    pub no_device: Option<String>,
}

impl Contents {
    /// Returns the modules, and the applicable checks with the capabilities that they need.
    #[must_use]
    pub fn list(&self) -> String {
        let mut text = String::new();
        for Listed { name, role, .. } in &self.modules {
            let only = if *role == role::CONNECTION_ONLY { " (connection-only)" } else { "" };
            let _ = writeln!(text, "module {name}{only}");
        }
        let here = |check: &&Check| self.modules.iter().any(|module| check.is_for(module.role));
        for check in CHECKS.iter().filter(here) {
            let _ = writeln!(text, "{}", format!("check {} {}", check.name, check.needed()).trim());
        }
        text
    }
}

/// Reads the contents of the file.
///
/// # Errors
/// The reason why the file holds nothing to check.
pub fn contents(plan: &Plan) -> Result<Contents, String> {
    let note = load::note(&plan.path)?;
    let (name, version) =
        tieline_host::stated(&note).ok_or("the note states no name and no version")?;
    let (name, version) = (name.to_owned(), version.to_owned());
    let mut chosen = match modules_apart(plan)? {
        Ok(modules) => modules,
        Err(why) => {
            return Ok(Contents { name, version, modules: Vec::new(), no_device: Some(why) });
        }
    };
    let all = chosen.iter().map(|module| module.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(wanted) = &plan.module {
        chosen.retain(|Listed { name, .. }| {
            name == wanted || name.rsplit('/').next() == Some(wanted)
        });
    }
    match (chosen.is_empty(), &plan.module) {
        (true, Some(wanted)) => Err(format!("there is no module {wanted}; there is {all}")),
        (true, None) => Err("the file has no module".to_string()),
        _ => Ok(Contents { name, version, modules: chosen, no_device: None }),
    }
}

/// Runs the plan on the contents of the file, and calls `each` with every result.
///
/// # Errors
/// The reason why there was nothing to run.
pub fn run(
    plan: &Plan,
    contents: &Contents,
    each: &mut dyn FnMut(Outcome),
) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let wanted = |name: &str| plan.filter.as_ref().is_none_or(|filter| name.contains(&**filter));
    'all: for Listed { name: module, role, caps } in &contents.modules {
        for check in CHECKS.iter().filter(|check| check.is_for(*role) && wanted(check.name)) {
            let began = Instant::now();
            // A check of a capability that the module does not claim is skipped without a process.
            let verdict = match lacking(check.needs, *caps) {
                Some(why) => Verdict::Skipped(why),
                None => one(plan, check.name, module, &[]),
            };
            let took = began.elapsed();
            match verdict {
                Verdict::Passed => tally.passed += 1,
                Verdict::Failed(_) => tally.failed += 1,
                Verdict::Skipped(_) => tally.skipped += 1,
            }
            each(Outcome { module: module.clone(), check, verdict, took });
            if plan.until_failure && tally.failed > 0 {
                break 'all;
            }
        }
    }
    if tally == Tally::default() && contents.no_device.is_none() {
        return Err(format!("no check has `{}` in its name", plan.filter.as_deref().unwrap_or("")));
    }
    Ok(tally)
}

/// Returns the modules, or the reason why the file has none on this machine.
fn modules_apart(plan: &Plan) -> Result<Result<Vec<Listed>, String>, String> {
    match apart(plan, &[LIST_MODULES.as_ref(), plan.path.as_os_str()], &[])? {
        Ended::With(text) => match text.split_once(": ") {
            Some(("modules", list)) => {
                let module = |entry: &str| {
                    let mut words = entry.rsplitn(3, ' ');
                    let (caps, role) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                    Some(Listed { name: words.next()?.to_string(), role, caps })
                };
                Ok(Ok(list.split(", ").filter_map(module).collect()))
            }
            Some(("no device", why)) => Ok(Err(why.to_string())),
            _ => Err(text),
        },
        Ended::Badly(how) => Err(format!("loading the provider {how}")),
    }
}

pub(crate) fn one(plan: &Plan, check: &str, module: &str, variables: &[(&str, &str)]) -> Verdict {
    match apart(plan, &[check.as_ref(), plan.path.as_os_str(), module.as_ref()], variables) {
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

/// Returns the result of [`checks::observed`] in a process with these variables set. Returns `None` if the module cannot start.
pub(crate) fn observe(plan: &Plan, module: &str, variables: &[(&str, &str)]) -> Option<String> {
    let words = [OBSERVE.as_ref(), plan.path.as_os_str(), module.as_ref()];
    match apart(plan, &words, variables) {
        Ok(Ended::With(text)) => text.strip_prefix("observed: ").map(str::to_string),
        _ => None,
    }
}

enum Ended {
    /// A normal exit, with the last line.
    With(String),
    /// A signal, or no end in time.
    Badly(String),
}

/// The time beyond the limit in which the process itself reports its pending calls.
const GRACE: Duration = Duration::from_secs(2);

fn apart(plan: &Plan, words: &[&OsStr], variables: &[(&str, &str)]) -> Result<Ended, String> {
    let mut command = Command::new(&plan.program);
    let _ = command
        .arg(ARGUMENT)
        .arg(plan.limit.as_millis().to_string())
        .args(words)
        .env("RUST_BACKTRACE", "0")
        .envs(variables.iter().map(|(name, value)| (load::variable(name), value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = watch::dies_with_us(&mut command)
        .spawn()
        .map_err(|e| format!("{} does not start: {e}", plan.program.display()))?;
    let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("the check's process has no pipes".to_string());
    };
    let (output, errors) = (collect(output), collect(errors));
    let text = match output.recv_timeout(plan.limit + GRACE) {
        Ok(text) => text,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(Ended::Badly(format!("hung: it did not end in {:?}", plan.limit + GRACE)));
        }
    };
    let status = child.wait().map_err(|e| format!("waiting for the check's process: {e}"))?;
    if let Some(signal) = status.signal() {
        return Ok(Ended::Badly(format!("died of signal {signal}{}", meaning(signal))));
    }
    if status.success() {
        let text = String::from_utf8_lossy(&text);
        return Ok(Ended::With(text.trim_end().lines().last().unwrap_or("").to_string()));
    }
    let errors = errors.recv_timeout(Duration::from_secs(5)).unwrap_or_default();
    let why = String::from_utf8_lossy(&errors).trim_end().replace('\n', " | ");
    Ok(Ended::Badly(format!("failed with {status}: {why}")))
}

/// Returns a channel with all data of a pipe, once the pipe has been closed.
fn collect(mut pipe: impl Read + Send + 'static) -> std::sync::mpsc::Receiver<Vec<u8>> {
    let (sender, ended) = channel();
    let _ = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = pipe.read_to_end(&mut text);
        let _ = sender.send(text);
    });
    ended
}

/// Returns the provider's likely mistake if a process dies by this signal.
fn meaning(signal: i32) -> &'static str {
    match signal {
        libc::SIGSEGV => " (memory that is not there: behind the end of a record, or gone)",
        libc::SIGBUS => " (a mapping without a file behind it, or a misaligned access)",
        libc::SIGABRT => " (abort, or a panic that crossed the boundary)",
        libc::SIGPIPE => " (SIGPIPE: a write to a peer that is gone; send with MSG_NOSIGNAL)",
        libc::SIGFPE => " (a division by zero)",
        _ => "",
    }
}

/// Runs the other side of [`run`]: if the arguments `words` state that the program was started to list modules, for a check or for
/// a check's peer, does that and returns the exit code. The program then has nothing else to do.
#[must_use]
pub fn child(words: &[OsString]) -> Option<ExitCode> {
    let (first, rest) = words.split_first()?;
    let program = || std::env::current_exe().ok();
    let result = match (first.to_str()?, rest) {
        (ARGUMENT, [limit, check, path, module @ ..]) if module.len() < 2 => {
            let limit = limit.to_str()?.parse().ok().map(Duration::from_millis)?;
            watch::begin(limit);
            let module = module.first().map_or("", |module| module.to_str().unwrap_or("?"));
            run_one(check.to_str()?, Path::new(path), module, &program()?)
        }
        (peer::ARGUMENT, [path, module]) => {
            peer::serve(Path::new(path), module.to_str()?, &program()?).map(|()| String::new())
        }
        _ => return None,
    };
    Some(match result {
        Ok(line) if line.is_empty() => ExitCode::SUCCESS,
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    })
}

fn run_one(check: &str, path: &Path, module: &str, program: &Path) -> Result<String, String> {
    if check == LIST_MODULES {
        return Ok(match modules(path) {
            Ok(names) => {
                let entry = |Listed { name, role, caps }: &Listed| format!("{name} {role} {caps}");
                format!("modules: {}", names.iter().map(entry).collect::<Vec<_>>().join(", "))
            }
            Err(Nothing::Wrong(why)) => why.replace('\n', " "),
            Err(Nothing::NoDevice(why)) => format!("no device: {}", why.replace('\n', " ")),
        });
    }
    if check == OBSERVE {
        let seen = checks::observed(&Case::open(path, module, program)?);
        return seen.map(|seen| format!("observed: {seen}")).map_err(|stop| format!("{stop:?}"));
    }
    let found = CHECKS.iter().find(|c| c.name == check);
    let found = found.ok_or_else(|| format!("there is no check {check}"))?;
    let verdict = match Case::open(path, module, program) {
        Ok(case) => found.run(&case),
        Err(why) => Verdict::Failed(why),
    };
    Ok(verdict.to_string().replace('\n', " "))
}
