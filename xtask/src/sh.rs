//! Functions that run other programs, and the paths of the workspace.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tieline_testing::hang::{self, Limit};

/// A result whose error is one line of text.
pub(crate) type Outcome<T = ()> = Result<T, String>;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}

pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if !dir.is_empty() => root().join(dir),
        _ => root().join("target"),
    }
}

pub(crate) static WHOLE: AtomicBool = AtomicBool::new(false);

pub(crate) fn command(program: impl AsRef<OsStr>, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    let _ = command.args(args).current_dir(root());
    if WHOLE.load(Ordering::Relaxed) {
        let _ = command.env(tieline_testing::WHOLE, "1");
    }
    command
}

/// Returns the command of the cargo that runs this program, without the variables that cargo has set for this process.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = command(std::env::var_os("CARGO").unwrap_or("cargo".into()), args);
    let own = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in own.filter(|name| name.starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR") {
        let _ = command.env_remove(name);
    }
    command
}

/// The time limit of a command that is not part of a step with its own limit.
pub(crate) const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The time at which the commands of the current step have to end.
static DEADLINE: Mutex<Option<Instant>> = Mutex::new(None);

/// Runs `body`, whose commands share this time limit. If an inner step has its own limit, its time does not count towards the outer
/// limit.
pub(crate) fn within<T>(limit: Duration, body: impl FnOnce() -> T) -> T {
    let set = |deadline| {
        let mut current = DEADLINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::replace(&mut *current, deadline)
    };
    let began = Instant::now();
    let before = set(Some(began + limit));
    let result = body();
    let _ = set(before.map(|at| at + began.elapsed()));
    result
}

/// The time for which the output of an ended command is read if another process keeps the output open.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A command that was started. A command that exceeds its limit is ended, and the error describes what the command waited for.
struct Running {
    child: Child,
    limit: Option<Limit>,
    expired: Arc<AtomicBool>,
    name: String,
}

impl Running {
    fn start(command: &mut Command) -> Outcome<Running> {
        let name = show(command);
        let child = command.spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
        let expired = Arc::new(AtomicBool::new(false));
        let deadline = *DEADLINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let left = deadline.map_or(LIMIT, |at| at.saturating_duration_since(Instant::now()));
        let (id, told, what) = (child.id(), expired.clone(), name.clone());
        let limit = Limit::new(left, move || {
            told.store(true, Ordering::Relaxed);
            println!("{what} does not end; what waits for what:");
            print!("{}", hang::told(id, &target()));
            hang::end(id);
            let _ = Command::new("kill").args(["-KILL", &id.to_string()]).status();
        });
        Ok(Running { child, limit: Some(limit), expired, name })
    }

    /// Waits for the end; returns the reason if the command failed.
    fn succeeded(mut self) -> Outcome<bool> {
        let status = self.child.wait().map_err(|e| format!("{}: {e}", self.name))?;
        drop(self.limit.take());
        if self.expired.load(Ordering::Relaxed) {
            return Err(format!("{} did not end and was ended: see above", self.name));
        }
        Ok(status.success())
    }
}

/// Runs a command to its end; its output is printed.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let running = Running::start(command)?;
    if running.succeeded()? { Ok(()) } else { Err(format!("{} failed", show(command))) }
}

/// Runs a command and returns its output; its error output is the text of the error.
pub(crate) fn capture(command: &mut Command) -> Outcome<String> {
    let mut running =
        Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let errors = running.child.stderr.take().map(|stream| std::thread::spawn(|| whole(stream)));
    let said = running.child.stdout.take().map(whole).unwrap_or_default();
    let errors = errors.and_then(|thread| thread.join().ok()).unwrap_or_default();
    if !running.succeeded()? {
        let last = errors.lines().last().unwrap_or("").to_owned();
        return Err(format!("{} failed: {last}", show(command)));
    }
    Ok(said)
}

fn whole(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes); // what was said until then
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a command and passes each line of both output streams to `each` when it arrives; returns whether the command succeeded.
pub(crate) fn lines(command: &mut Command, mut each: impl FnMut(&str)) -> Outcome<bool> {
    let mut running =
        Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let (sender, receiver) = mpsc::channel();
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        running.child.stdout.take().map(|s| Box::new(s) as _),
        running.child.stderr.take().map(|s| Box::new(s) as _),
    ];
    for stream in streams.into_iter().flatten() {
        let sender = sender.clone();
        drop(std::thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                let _ = sender.send(line); // A process that outlives the command has no reader any more.
            }
        }));
    }
    drop(sender);
    let mut ended = false;
    loop {
        match receiver.recv_timeout(LAST_WORDS) {
            Ok(line) => each(String::from_utf8_lossy(&line).trim_end()),
            Err(RecvTimeoutError::Disconnected) => break,
            // The command has ended, and a process that it left behind keeps its output open.
            Err(RecvTimeoutError::Timeout) if ended => break,
            Err(RecvTimeoutError::Timeout) => {
                ended = !matches!(running.child.try_wait(), Ok(None));
            }
        }
    }
    running.succeeded()
}

pub(crate) fn on<T>(file: impl AsRef<Path>, result: std::io::Result<T>) -> Outcome<T> {
    result.map_err(|e| format!("{}: {e}", file.as_ref().display()))
}

pub(crate) fn read(file: impl AsRef<Path>) -> Outcome<String> {
    on(&file, std::fs::read_to_string(&file))
}

/// Returns a file's bytes.
pub(crate) fn bytes(file: impl AsRef<Path>) -> Outcome<Vec<u8>> {
    on(&file, std::fs::read(&file))
}

pub(crate) fn write(file: impl AsRef<Path>, text: impl AsRef<[u8]>) -> Outcome {
    on(&file, std::fs::write(&file, text))
}

pub(crate) fn make_folder(folder: impl AsRef<Path>) -> Outcome {
    on(&folder, std::fs::create_dir_all(&folder))
}

pub(crate) fn entries(folder: impl AsRef<Path>) -> Outcome<Vec<PathBuf>> {
    let found = on(&folder, std::fs::read_dir(&folder))?;
    let mut entries: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    Ok(entries)
}

pub(crate) fn files_of(folder: impl AsRef<Path>, ending: &str) -> Outcome<Vec<PathBuf>> {
    let mut files = entries(&folder)?;
    files.retain(|file| file.extension().is_some_and(|end| end == ending));
    Ok(files)
}

pub(crate) fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

pub(crate) fn packages(args: &[&str]) -> Outcome<Vec<serde_json::Value>> {
    let said = capture(cargo(&["metadata", "--format-version", "1"]).args(args))?;
    let mut said: serde_json::Value =
        serde_json::from_str(&said).map_err(|e| format!("cargo metadata: {e}"))?;
    Ok(said["packages"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// Runs a command. Returns whether it succeeded, and the lines that it printed.
pub(crate) fn listened(command: &mut Command) -> (Outcome<bool>, Vec<String>) {
    let mut said = Vec::new();
    (lines(command, |line| said.push(line.to_owned())), said)
}

pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

pub(crate) fn heading(text: &str) {
    if std::io::stdout().is_terminal() {
        println!("\n\x1b[1m{text}\x1b[0m");
    } else {
        println!("\n== {text}");
    }
}

pub(crate) fn show_time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 100.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {:02} s", time.as_secs() / 60, time.as_secs() % 60)
    }
}

fn show(command: &Command) -> String {
    let mut words = vec![Path::new(command.get_program()).file_name().unwrap_or_default()];
    words.extend(command.get_args().take(4));
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    format!("`{}`", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_keeps_the_output_of_an_ended_command_is_not_awaited() {
        let mut said = Vec::new();
        let mut shell = command("sh", &["-c", "sleep 600 & echo $!; echo last"]);
        assert_eq!(lines(&mut shell, |line| said.push(line.to_owned())), Ok(true));
        assert_eq!(said[1..], ["last"]);
        let child = said[0].as_str();
        assert!(Path::new("/proc").join(child).exists(), "it is still there");
        assert!(run(&mut command("kill", &[child])).is_ok());
    }
}
