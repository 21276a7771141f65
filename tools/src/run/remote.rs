//! A rank on another host: ssh starts a shell there, which reads a script from its standard input.
//!
//! ```text
//! launcher: ssh HOST sh            and, on standard input, a first line
//! shell:    tieline-ready          now nobody reads ahead of it any more
//! launcher: the script: variables, the secret among them, and the program; then "#go TOKEN"
//! launcher: TERM or KILL           a signal for the program; the end of the input: both, with a pause
//! shell:    0x1e TOKEN STATUS      the program has ended so; whatever it left running there is ended next
//! ```
//!
//! The script keeps the job's data off command lines, and the program ends when the launcher or the connection is gone. The token
//! is random: no argument can be mistaken for the end of the script, and no output of the program for the report of its end. The
//! shell reports the program's end. The report distinguishes an exit status of the program from one of ssh, and the launcher need
//! not wait for a connection that a background process keeps open.

use super::output::{Copy, Take};
use crate::sys;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const READY: &[u8] = b"tieline-ready";

/// The marker byte with which the report of the program's end begins.
const END: u8 = 0x1e;

/// The interval at which the launcher retries writing a script to a full pipe.
const AGAIN: Duration = Duration::from_millis(20);

/// The maximum number of bytes of a line that are kept while the host's greeting is skipped.
const GREETING: usize = 64 << 10;

/// The connection to the shell, and the shell's report at the end. No call of this type waits.
#[derive(Clone)]
pub(super) struct Control {
    line: Arc<Mutex<Line>>,
    told: Arc<Mutex<Told>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    Status(u8),
    /// The shell is gone without a report.
    Silent,
}

enum Line {
    Starting(ChildStdin),
    /// The shell is ready, and these bytes of the script are still to be written.
    Sending(ChildStdin, Vec<u8>),
    Running(ChildStdin),
    Closed,
}

impl Control {
    pub(super) fn new(mut to: ChildStdin, token: &str) -> std::io::Result<Control> {
        sys::set_nonblocking(to.as_raw_fd())?;
        // The line is a complete command: the shell reports that it is ready when it has read the line. If the shell has ended, its
        // end is detected separately.
        let _ = write!(
            to,
            "{{ echo tieline-ready; s=; while IFS= read -r l && [ \"$l\" != '#go {token}' ]; do s=\"$s$l\n\"; done; \
             eval \"$s\"; exit; }}\n"
        );
        let told = Arc::new(Mutex::new(Told::Nothing));
        Ok(Control { line: Arc::new(Mutex::new(Line::Starting(to))), told })
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that the shell send a signal to the program. Returns `false` if the program has not started or the shell is gone.
    pub(super) fn signal(&self, name: &str) -> bool {
        match &mut *self.line() {
            Line::Running(to) => to.write_all(format!("{name}\n").as_bytes()).is_ok(),
            _ => false,
        }
    }

    /// Closes the connection: the shell then ends the program.
    pub(super) fn close(&self) {
        *self.line() = Line::Closed;
    }

    /// Returns the end of the program, if the shell has reported it.
    pub(super) fn told(&self) -> Told {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, told: Told) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = told;
    }

    fn start(&self, script: Vec<u8>) {
        let mut line = self.line();
        if let Line::Starting(to) = std::mem::replace(&mut *line, Line::Closed) {
            *line = Line::Sending(to, script);
        }
    }

    /// Continues to write the script; returns whether bytes remain.
    fn go_on(&self) -> bool {
        let mut line = self.line();
        let Line::Sending(to, script) = &mut *line else { return false };
        while !script.is_empty() {
            match to.write(script) {
                Ok(n) => drop(script.drain(..n)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => {
                    *line = Line::Closed;
                    return false;
                }
            }
        }
        if let Line::Sending(to, _) = std::mem::replace(&mut *line, Line::Closed) {
            *line = Line::Running(to);
        }
        false
    }
}

/// Makes the command that consists of `ssh`, the host, and a shell that reads from its standard input.
pub(super) fn command(ssh: &str, host: &str) -> Option<Command> {
    let mut words = ssh.split_whitespace();
    let mut command = Command::new(words.next()?);
    let _ = command.args(words).arg(host).arg("sh");
    let _ = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

/// The shell's output: its greeting, the program's output, and the report of the program's end.
pub(super) struct Shell {
    control: Control,
    wake: Arc<UnixStream>,
    end: Vec<u8>,
    out: Copy,
    state: State,
    /// Bytes that may be the beginning of a longer sequence.
    kept: Vec<u8>,
}

enum State {
    /// The input is the host's own greeting; this script is sent after it.
    Greeting(Vec<u8>),
    /// The input is the program's output; the flag states whether the script is still being sent.
    Running(bool),
    Over,
}

impl Shell {
    pub(super) fn new(
        control: Control,
        wake: Arc<UnixStream>,
        token: &str,
        script: Vec<u8>,
        out: Copy,
    ) -> Shell {
        let end = [&[END][..], token.as_bytes(), b" "].concat();
        Shell { control, wake, end, out, state: State::Greeting(script), kept: Vec::new() }
    }

    /// Discards lines until the line that reports that the shell is ready.
    fn greeted(&mut self) {
        while let Some(at) = self.kept.iter().position(|byte| *byte == b'\n') {
            let rest = self.kept.split_off(at + 1);
            let line = std::mem::replace(&mut self.kept, rest);
            if line.trim_ascii() == READY {
                if let State::Greeting(script) = std::mem::replace(&mut self.state, State::Over) {
                    self.control.start(script);
                    self.state = State::Running(self.control.go_on());
                }
                let first = std::mem::take(&mut self.kept);
                return self.take(&first);
            }
        }
        if self.kept.len() > GREETING {
            self.kept.clear();
        }
    }

    fn printed(&mut self) {
        let is_end = |part: &[u8]| self.end.starts_with(part) || part.starts_with(&self.end);
        let end = (0..self.kept.len()).find(|at| is_end(&self.kept[*at..]));
        let last = self.kept.split_off(end.unwrap_or(self.kept.len()));
        let printed = std::mem::replace(&mut self.kept, last);
        if !printed.is_empty() {
            self.out.take(&printed);
        }
        let Some(word) = self.kept.strip_prefix(&self.end[..]) else { return };
        let Some(stop) = word.iter().position(|byte| *byte == b'\n') else { return };
        let code = std::str::from_utf8(&word[..stop]).ok().and_then(|code| code.parse().ok());
        self.control.tell(code.map_or(Told::Silent, Told::Status));
        self.state = State::Over;
        self.kept.clear();
        self.out.idle();
        let _ = (&*self.wake).write(&[0]);
    }
}

impl Take for Shell {
    fn take(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Over => return, // by somebody whom the program left behind
            State::Greeting(_) => {
                self.kept.extend(bytes);
                return self.greeted();
            }
            State::Running(more) => {
                *more = *more && self.control.go_on();
                self.kept.extend(bytes);
            }
        }
        self.printed();
    }

    fn idle(&mut self) {
        if let State::Running(more) = &mut self.state {
            *more = *more && self.control.go_on();
            self.out.idle();
        }
    }

    fn waits(&self) -> Option<Duration> {
        match self.state {
            State::Running(true) => Some(AGAIN),
            _ => self.out.waits(),
        }
    }

    fn finish(&mut self) {
        if let State::Running(_) = self.state {
            self.out.take(&std::mem::take(&mut self.kept));
        }
        if self.control.told() == Told::Nothing {
            self.control.tell(Told::Silent);
        }
        self.out.finish();
    }
}

/// Returns the script for the shell as bytes, because words of a command and values of variables may contain any byte.
pub(super) fn script(
    token: &str,
    variables: &[(String, OsString)],
    directory: &OsStr,
    program: &[OsString],
) -> Vec<u8> {
    let mut script = Vec::new();
    for (name, value) in variables {
        script.extend([b"export ", name.as_bytes(), b"=", &quote(value), b"\n"].concat());
    }
    let words: Vec<Vec<u8>> = program.iter().map(|word| quote(word)).collect();
    let text = |text: &str| text.as_bytes().to_vec();
    script.extend(
        [
            text("tieline_end() { printf '\\036"),
            text(token),
            text(" %s\\n' \"$1\"; }\ncd "),
            quote(directory),
            // If setsid is available, the program gets a new session, so that its members can be found after the program has ended.
            text(
                " || { tieline_end 126; exit 126; }\n\
                 exec 3<&0\n\
                 tieline_session=setsid\n\
                 command -v setsid >/dev/null 2>&1 || tieline_session=\n\
                 $tieline_session ",
            ),
            words.join(&b' '),
            text(
                " </dev/null 3<&- &\n\
                 child=$!\n\
                 ( while IFS= read -r signal; do kill -s \"$signal\" $child; done; kill -s TERM $child; sleep 2; \
                 kill -s KILL $child ) <&3 >/dev/null 2>&1 &\n\
                 watcher=$!\n\
                 exec 3<&- </dev/null\n\
                 wait $child; status=$?\n\
                 tieline_end $status\n\
                 kill $watcher 2>/dev/null\n\
                 if [ -n \"$tieline_session\" ]; then\n\
                 signal=TERM; n=0\n\
                 while kill -s $signal -- -$child 2>/dev/null && [ $n -lt 20 ]; do\n\
                 n=$((n + 1)); [ $n -lt 10 ] || signal=KILL; sleep 0.1\n\
                 done\n\
                 fi\n\
                 exit $status\n\
                 #go ",
            ),
            text(token),
            text("\n"),
        ]
        .concat(),
    );
    script
}

fn quote(text: &OsStr) -> Vec<u8> {
    let mut word = vec![b'\''];
    for byte in text.as_bytes() {
        match byte {
            b'\'' => word.extend(b"'\\''"),
            byte => word.push(*byte),
        }
    }
    word.push(b'\'');
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_every_word_as_it_was() {
        let words =
            ["", "a b", "it's", "$(reboot)", "\"", "\\", "`x`", "*", "two\nlines", "\u{81}"];
        for word in words.map(OsStr::new).into_iter().chain([OsStr::from_bytes(b"\xff\x81\x88\n")])
        {
            let script = [b"printf %s ", &quote(word)[..]].concat();
            let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).output();
            assert_eq!(output.unwrap().stdout, word.as_bytes());
        }
    }

    #[test]
    fn no_variable_stands_on_the_command_line() {
        let command = command("ssh -p 22", "nodea").unwrap();
        let words: Vec<_> = command.get_args().map(|w| w.to_string_lossy().into_owned()).collect();
        assert_eq!(words, ["-p", "22", "nodea", "sh"]);
    }
}
