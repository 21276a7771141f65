use super::*;
use std::fmt::Write;

/// The origin of a failure, and the function that converts an error of that origin.
type Column = (&'static str, fn(Error) -> Fault);

/// The columns of the table in docs/c.md.
const COLUMNS: [Column; 6] = [
    ("a call", Fault::from),
    ("opening", |error| OpenError::from(error).into()),
    ("connecting", |error| ConnectError::from(error).into()),
    ("posting", |error| PostError::from(error).into()),
    ("an operation's end", |error| CompletionError::from(error).into()),
    ("an endpoint or a peer that is gone", |error| Fault::gone(error.of(Scope::Connection))),
];

fn fault(column: usize, status: Status) -> Fault {
    COLUMNS[column].1(Error::new(status, "what", "why", "fix"))
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Correct => "`DO_CORRECT`",
        Kind::Retry => "`DO_RETRY`",
        Kind::Reconnect => "`DO_RECONNECT`",
        Kind::Exchange => "`DO_EXCHANGE`",
        Kind::Configure => "`DO_CONFIGURE`",
        Kind::Release => "`DO_RELEASE`",
        Kind::Reopen => "`DO_REOPEN`",
        Kind::Refused => "`OP_REFUSED`",
        Kind::Unknown => "`OP_UNKNOWN`",
        Kind::Canceled => "`OP_CANCELED`",
        Kind::Pending => "`OP_PENDING`",
        Kind::Panicked => "`PANICKED`",
    }
}

/// Returns the table of docs/c.md. Each status has a row. The row `EXPIRED` shows how `TIMED_OUT` is reported if something has
/// ended.
fn table() -> String {
    let mut text = String::from("| status |");
    for (column, _) in COLUMNS {
        write!(text, " {column} |").unwrap();
    }
    text.push_str("\n|---|---|---|---|---|---|---|\n");
    let mut row = |label: &str, status: Status, expired: bool| {
        write!(text, "| `{label}` |").unwrap();
        for column in 0..COLUMNS.len() {
            let fault = fault(column, status);
            let is_here = (fault.status() == numbers::TIELINE_EXPIRED) == expired;
            write!(text, " {} |", if is_here { name(fault.kind) } else { "" }).unwrap();
        }
        text.push('\n');
    };
    for &status in Status::ALL {
        row(status.constant().trim_start_matches("TIELINE_"), status, false);
    }
    row("EXPIRED", Status::TimedOut, true);
    text
}

#[test]
fn docs_have_the_table_of_status_and_kind() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/c.md");
    let text = std::fs::read_to_string(path).unwrap();
    let begin = "<!-- status and kind: made by the tests of capi/src/abi/error.rs -->\n";
    let (_, rest) = text.split_once(begin).unwrap();
    let found = rest.split("<!-- end -->").next().unwrap();
    assert_eq!(found, table(), "docs/c.md is to have:\n{}", table());
}

#[test]
fn timed_out_wait_continues_and_expired_operation_has_ended() {
    let wait = super::super::wait::time_was_up();
    assert_eq!((wait.status(), wait.kind), (Status::TimedOut as i32, Kind::Retry));
    assert!(wait.error.fix().contains("wait again"));
    for (number, (column, _)) in COLUMNS.iter().enumerate().skip(1) {
        let ended = fault(number, Status::TimedOut);
        assert_eq!(ended.status(), numbers::TIELINE_EXPIRED, "{column}");
        assert!(!matches!(ended.kind, Kind::Retry | Kind::Pending | Kind::Correct));
    }
    assert!(Status::ALL.iter().all(|status| *status as i32 != numbers::TIELINE_EXPIRED));
}

#[test]
fn wait_without_a_connected_peer_names_the_failure_of_the_last_one() {
    let (what, why) = ("worker 7 is gone", "the connection was closed without a goodbye");
    let failure = Error::new(Status::PeerFailed, what, why, "start the peer again");
    let wait = super::super::wait::after_failure(&failure);
    assert_eq!((wait.status(), wait.kind), (Status::TimedOut as i32, Kind::Retry));
    assert!(wait.error.why().contains(what) && wait.error.why().contains(why));
    assert_eq!(wait.error.fix(), "start the peer again");
}

#[test]
fn the_end_of_a_peer_is_never_the_callers_mistake() {
    for &status in Status::ALL {
        let gone = fault(COLUMNS.len() - 1, status);
        assert_ne!(gone.kind, Kind::Correct, "{status:?}");
    }
    assert_eq!(Fault::gone(Error::from_status(Status::PeerFailed)).kind, Kind::Exchange);
    assert_eq!(Fault::from(Error::from_status(Status::PeerFailed)).kind, Kind::Exchange);
}

#[test]
fn a_busy_object_of_this_library_asks_for_another_call() {
    use super::super::enter::Mark;
    let mark = Mark::new(true);
    let inner = mark.post(|| Ok(mark.post(|| Ok(())))).unwrap().unwrap_err();
    assert_eq!((inner.error.status(), inner.kind), (Status::Busy, Kind::Retry));
    assert!(inner.error.fix().contains("call again"));
}

/// The texts of the last failure, after the thread's variables with destructors have ended.
#[test]
fn a_failure_in_an_ending_thread_has_its_status_and_its_text() {
    use std::sync::mpsc::{Sender, channel};
    struct AtEnd(Sender<(i32, i32, String, String)>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            let returned = done(Err(Fault::from(Error::from_status(Status::TooLarge))));
            // SAFETY: a plain record, which may be all zero.
            let mut last: Failure = unsafe { std::mem::zeroed() };
            last.size = size_of::<Failure>();
            // SAFETY: a record with its size.
            assert_eq!(unsafe { tieline_last_error(&raw mut last) }, 0);
            // SAFETY: a text of the library.
            let text =
                |of: *const c_char| unsafe { CStr::from_ptr(of) }.to_string_lossy().into_owned();
            let line = text(tieline_error_text());
            let _ = self.0.send((returned, last.status, text(last.why), line));
        }
    }
    thread_local! { static FIRST: RefCell<Option<AtEnd>> = const { RefCell::new(None) }; }
    let (to, ended) = channel();
    let thread = std::thread::spawn(|| {
        // A thread-local variable that is created first ends last.
        FIRST.set(Some(AtEnd(to)));
        let _ = done(Err(Fault::from(Error::from_status(Status::Closed))));
    });
    thread.join().expect("no panic");
    let (status, words) = (Status::TooLarge as i32, Status::TooLarge.text().to_owned());
    assert_eq!(ended.recv(), Ok((status, status, words.clone(), words)));
}
