//! A rank on another host: a shell there, reached by ssh, that reads what to do from its standard input.
//!
//! ```text
//! launcher: ssh HOST sh            and, on standard input, BOOTSTRAP
//! shell:    tieline-ready          now nobody reads ahead of it any more
//! launcher: the script: variables, the secret among them, and the program; then "#go"
//! launcher: TERM or KILL           a signal for the program; the end of the input: both, with a pause
//! ```
//!
//! So nothing of the job stands on a command line, and a launcher or a connection that is gone takes the program
//! along.

use super::output;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

const READY: &str = "tieline-ready";

/// A complete command: the shell says it is ready once it has read all of it.
const BOOTSTRAP: &str = "\
{ echo tieline-ready; s=; while IFS= read -r l && [ \"$l\" != '#go' ]; do s=\"$s$l
\"; done; eval \"$s\"; exit; }
";

/// The line to the shell.
#[derive(Clone)]
pub(super) struct Control(Arc<Mutex<Line>>);

enum Line {
    /// Not ready yet.
    Starting(ChildStdin),
    Running(ChildStdin),
    Closed,
}

impl Control {
    /// Has the program told to end. `false`: there is no program yet, or nobody to tell.
    pub(super) fn signal(&self, name: &str) -> bool {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Line::Running(to) => writeln!(to, "{name}").and_then(|()| to.flush()).is_ok(),
            _ => false,
        }
    }

    /// Closes the line: the shell ends the program.
    pub(super) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Line::Closed;
    }

    /// Sends the script. The line stays open.
    fn start(&self, script: &str) {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Line::Starting(mut to) = std::mem::replace(&mut *line, Line::Closed) {
            if to.write_all(script.as_bytes()).and_then(|()| to.flush()).is_ok() {
                *line = Line::Running(to);
            }
        }
    }
}

/// `ssh`, the host, and a shell that will read from its standard input.
pub(super) fn command(ssh: &str, host: &str) -> Option<Command> {
    let mut words = ssh.split_whitespace();
    let mut command = Command::new(words.next()?);
    let _ = command.args(words).arg(host).arg("sh");
    let _ = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

/// Starts what `script` says once the shell is there, and copies what it prints.
pub(super) fn drive(
    child: &mut Child,
    script: String,
    tag: Option<usize>,
) -> std::io::Result<(Control, Vec<JoinHandle<()>>)> {
    let missing = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let mut to = child.stdin.take().ok_or_else(missing)?;
    let from = child.stdout.take().ok_or_else(missing)?;
    let errors = child.stderr.take().map(|from| output::copy(from, std::io::stderr(), tag));
    // A shell that is gone already is noticed by its end.
    let _ = to.write_all(BOOTSTRAP.as_bytes()).and_then(|()| to.flush());
    let control = Control(Arc::new(Mutex::new(Line::Starting(to))));
    let starter = control.clone();
    let copying = std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        // What comes before is the host's own greeting.
        loop {
            line.clear();
            match from.read_until(b'\n', &mut line) {
                Ok(n) if n > 0 => {}
                _ => return,
            }
            if line.trim_ascii() == READY.as_bytes() {
                break;
            }
        }
        starter.start(&script);
        output::copy_lines(from, std::io::stdout(), tag);
    });
    Ok((control, errors.into_iter().chain([copying]).collect()))
}

/// What the shell is to do.
pub(super) fn script(
    variables: &[(String, String)],
    directory: &str,
    program: &[String],
) -> String {
    let mut script = String::new();
    for (name, value) in variables {
        let _ = writeln!(script, "export {name}={}", quote(value));
    }
    let words: Vec<String> = program.iter().map(|word| quote(word)).collect();
    let _ = write!(
        script,
        "cd {0} || exit 126\n\
         exec 3<&0\n\
         {1} </dev/null 3<&- &\n\
         child=$!\n\
         ( while IFS= read -r signal; do kill -s \"$signal\" $child; done; kill -s TERM $child; sleep 2; \
         kill -s KILL $child ) <&3 >/dev/null 2>&1 &\n\
         watcher=$!\n\
         exec 3<&- </dev/null\n\
         wait $child; status=$?\n\
         kill $watcher 2>/dev/null\n\
         exit $status\n\
         #go\n",
        quote(directory),
        words.join(" ")
    );
    script
}

/// One word for a shell, whatever is in it.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_every_word_as_it_was() {
        for word in ["", "a b", "it's", "$(reboot)", "\"", "\\", "`x`", "*", "two\nlines"] {
            let script = format!("printf %s {}", quote(word));
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }

    #[test]
    fn no_variable_stands_on_the_command_line() {
        let command = command("ssh -p 22", "nodea").unwrap();
        let words: Vec<_> = command.get_args().map(|w| w.to_string_lossy().into_owned()).collect();
        assert_eq!(words, ["-p", "22", "nodea", "sh"]);
    }
}
