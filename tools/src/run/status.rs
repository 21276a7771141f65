//! The end of a process, as text and as an exit code.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

pub(super) struct End {
    /// The description of the end: `exited with code 7`.
    pub(super) how: String,
    /// The status that a shell would report: 128 + the signal.
    pub(super) code: u8,
    /// Whether ssh, and not the program, caused this end.
    pub(super) is_the_ways: bool,
}

impl End {
    pub(super) fn of(status: ExitStatus) -> End {
        End { how: describe(status), code: code(status), is_the_ways: false }
    }

    pub(super) fn told(code: u8) -> End {
        let how = if code == 0 { "ended".into() } else { format!("exited with code {code}") };
        End { how, code, is_the_ways: false }
    }

    /// Returns the end of a process whose status is unknown, because the process is gone and was no child of this process.
    pub(super) fn unknown() -> End {
        End { how: "ended in an unknown way".into(), code: 1, is_the_ways: false }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "ended".into(),
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}{}", name(signal)),
        (None, None) => "ended in an unknown way".into(),
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => " (SIGHUP)",
        libc::SIGINT => " (SIGINT)",
        libc::SIGQUIT => " (SIGQUIT)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGPIPE => " (SIGPIPE)",
        libc::SIGTERM => " (SIGTERM)",
        _ => "",
    }
}
