//! The last error of a thread.

use super::{numbers, records};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;
use tieline::error::Scope;
use tieline::process::PerProcess;
use tieline::{CompletionError, ConnectError, Error, OpenError, PostError, Status};

/// How to react to a failure: `TIELINE_DO_*` and `TIELINE_OP_*` in C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    #[default]
    Correct = numbers::TIELINE_DO_CORRECT,
    Retry = numbers::TIELINE_DO_RETRY,
    Reconnect = numbers::TIELINE_DO_RECONNECT,
    Exchange = numbers::TIELINE_DO_EXCHANGE,
    Configure = numbers::TIELINE_DO_CONFIGURE,
    Release = numbers::TIELINE_DO_RELEASE,
    Reopen = numbers::TIELINE_DO_REOPEN,
    Refused = numbers::TIELINE_OP_REFUSED,
    Unknown = numbers::TIELINE_OP_UNKNOWN,
    Canceled = numbers::TIELINE_OP_CANCELED,
    Pending = numbers::TIELINE_OP_PENDING,
    Panicked = numbers::TIELINE_PANICKED,
}

/// A failure that an exported function returns to the caller.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) error: Error,
    /// Whether something, such as an operation or an endpoint, has ended because its time was up: TIELINE_EXPIRED. Any other
    /// timeout is TIELINE_TIMED_OUT.
    has_expired: bool,
}

impl Fault {
    /// Makes a failure whose kind follows from its status.
    #[cold]
    pub(crate) fn new(
        status: Status,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Fault {
        Error::new(status, what, why, fix).into()
    }

    /// Returns the same failure with another kind.
    #[cold]
    pub(crate) fn of(mut self, kind: Kind) -> Fault {
        self.kind = kind;
        self
    }

    /// Makes a failure of this kind. With the status `TimedOut`, the caller gets TIELINE_EXPIRED.
    #[cold]
    pub(crate) fn ended(kind: Kind, error: Error) -> Fault {
        let has_expired = error.status() == Status::TimedOut;
        Fault { kind, error, has_expired }
    }

    /// Makes the failure of an endpoint or a peer that is gone for this reason.
    #[cold]
    pub(crate) fn gone(error: impl Into<ConnectError>) -> Fault {
        let error = error.into();
        Fault::ended(gone_kind(&error), error.into())
    }

    /// Returns the index of the descriptor of a list that failed first; -1: none.
    pub(crate) fn index(&self) -> i64 {
        self.error.index().map_or(-1, |index| index as i64)
    }

    /// Returns the status of the failure: TIELINE_*, below 0.
    pub(crate) fn status(&self) -> i32 {
        if self.has_expired { numbers::TIELINE_EXPIRED } else { self.error.status() as i32 }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let kind = match error.status() {
            _ if error.scope() == Scope::Context => Kind::Reopen,
            _ if error.setting().is_some() => Kind::Configure,
            // Nothing has ended: the same call may be made again.
            Status::Again | Status::TimedOut => Kind::Retry,
            Status::NoMemory => Kind::Release,
            Status::PeerFailed => Kind::Exchange,
            Status::NoDevice | Status::Permission | Status::Unreachable => Kind::Configure,
            _ => Kind::Correct,
        };
        Fault { kind, error, has_expired: false }
    }
}

fn connection_kind(error: &ConnectError) -> Kind {
    match error {
        ConnectError::Retry(_) => Kind::Reconnect,
        ConnectError::Correct(_) => Kind::Correct,
        ConnectError::Exchange(_) => Kind::Exchange,
        ConnectError::Configure(_) => Kind::Configure,
        ConnectError::Release(_) => Kind::Release,
    }
}

/// Chooses the kind for a correct call on an endpoint that has ended.
fn gone_kind(error: &ConnectError) -> Kind {
    match connection_kind(error) {
        Kind::Correct => Kind::Reconnect,
        kind => kind,
    }
}

impl From<ConnectError> for Fault {
    #[cold]
    fn from(error: ConnectError) -> Fault {
        Fault::ended(connection_kind(&error), error.into())
    }
}

impl From<PostError> for Fault {
    #[cold]
    fn from(error: PostError) -> Fault {
        let kind = match &error {
            PostError::Retry(_) => Kind::Retry,
            PostError::Correct(_) => Kind::Correct,
            PostError::Reconnect(why) => gone_kind(why),
            PostError::Release(_) => Kind::Release,
        };
        Fault::ended(kind, error.into())
    }
}

impl From<CompletionError> for Fault {
    #[cold]
    fn from(error: CompletionError) -> Fault {
        let kind = match &error {
            CompletionError::Refused(_) => Kind::Refused,
            CompletionError::Unknown(_) => Kind::Unknown,
            CompletionError::Canceled(_) => Kind::Canceled,
            CompletionError::Pending(_) => Kind::Pending,
        };
        Fault::ended(kind, error.into())
    }
}

impl From<OpenError> for Fault {
    #[cold]
    fn from(error: OpenError) -> Fault {
        let kind = match &error {
            OpenError::Configure(_) => Kind::Configure,
            OpenError::Release(_) => Kind::Release,
            OpenError::Reopen(_) => Kind::Reopen,
        };
        Fault::ended(kind, error.into())
    }
}

/// A failure: its texts, and how to react to it. In a record that a handler gets, the texts are valid until the handler returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Failure {
    /// The size of this record in bytes. Set this field before the call.
    pub size: usize,
    /// The status of the failure: TIELINE_*, below 0; 0 if nothing has failed yet.
    pub status: i32,
    /// The reaction to a failed call: TIELINE_DO_*; or the outcome of a failed operation: TIELINE_OP_*.
    pub kind: u32,
    /// The text of the event; valid until the next call that fails in this thread. Null only if tieline_endpoint_error reports no
    /// failure.
    pub what: *const c_char,
    /// The text of the reason; empty if the status says everything.
    pub why: *const c_char,
    /// The text of the remedy; empty if there is no advice.
    pub fix: *const c_char,
    /// The name of the setting that caused the failure; null if no setting did.
    pub setting: *const c_char,
    /// The index of the descriptor of a list that failed first; below 0: the failure is not that of one descriptor.
    pub index: i64,
}

/// The last failure of a thread, and its C strings after the first request for them.
#[derive(Default)]
struct Last {
    fault: Option<Fault>,
    words: Option<Words>,
    line: Option<CString>,
}

/// The C strings of a failure.
pub(crate) struct Words {
    what: CString,
    why: CString,
    fix: CString,
    setting: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { fault: None, words: None, line: None }) };

    /// Status and kind of the last failure. This variable has no destructor: it outlives [`LAST`] in a thread that is ending.
    static NUMBERS: Cell<(i32, u32)> = const { Cell::new((0, 0)) };
}

impl Words {
    fn of(error: &Error) -> Words {
        Words {
            what: text(error.what()),
            why: text(error.why()),
            fix: text(error.fix()),
            setting: error.setting().map(|(name, _)| text(name)),
        }
    }

    fn record(&self, fault: &Fault) -> Failure {
        Failure {
            size: size_of::<Failure>(),
            status: fault.status(),
            kind: fault.kind as u32,
            what: self.what.as_ptr(),
            why: self.why.as_ptr(),
            fix: self.fix.as_ptr(),
            setting: self.setting.as_ref().map_or(std::ptr::null(), |name| name.as_ptr()),
            index: fault.index(),
        }
    }
}

/// Passes a failure's record to a function of the caller. The record is valid during that call.
pub(crate) fn shown<T>(fault: &Fault, show: impl FnOnce(&Failure) -> T) -> T {
    let words = Words::of(&fault.error);
    show(&words.record(fault))
}

pub(crate) fn text(words: &str) -> CString {
    CString::new(words.replace('\0', " ")).unwrap_or_default()
}

/// Makes the return value of an exported function: a non-negative status, or the status of the failure, which is stored in the
/// thread.
#[inline]
pub(crate) fn answer(result: Result<i32, Fault>) -> i32 {
    match result {
        Ok(status) => status,
        Err(fault) => failed(fault),
    }
}

/// Makes the return value of an exported function whose only result is its status: 0, or the code of the fault.
pub(crate) fn done(result: Result<(), Fault>) -> i32 {
    answer(result.map(|()| 0))
}

#[cold]
#[inline(never)]
fn failed(fault: Fault) -> i32 {
    let status = fault.status();
    NUMBERS.set((status, fault.kind as u32));
    // A thread that is ending has lost its thread-local storage, and so has the thread that runs the functions of `exit`.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Last { fault: Some(fault), words: None, line: None };
        }
    });
    status
}

/// Describes the last failure of this thread. The strings are valid until this thread's next call that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_last_error(out: *mut Failure) -> i32 {
    let empty = c"".as_ptr();
    let (setting, fix) = (std::ptr::null(), empty);
    let none =
        Failure { size: 0, status: 0, kind: 0, what: empty, why: empty, fix, setting, index: -1 };
    let ending = || {
        let (status, kind) = NUMBERS.get();
        let (what, why) =
            (c"a call of a thread that is ending".as_ptr(), tieline_status_text(status));
        if status == 0 { none } else { Failure { status, kind, what, why, ..none } }
    };
    let record = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        let Last { fault, words, .. } = &mut *last;
        let fault = fault.as_ref()?;
        Some(words.get_or_insert_with(|| Words::of(&fault.error)).record(fault))
    });
    // SAFETY: the caller's record.
    match unsafe { records::write(out, &record.map_or_else(|_| ending(), |it| it.unwrap_or(none))) }
    {
        Ok(()) => 0,
        Err(fault) => fault.status(),
    }
}

/// Describes the last failure of this thread in one line, "what: why; what to do". Never null; empty if nothing has failed yet.
#[unsafe(no_mangle)]
pub extern "C" fn tieline_error_text() -> *const c_char {
    let line = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        let Last { fault, line, .. } = &mut *last;
        let fault = fault.as_ref()?;
        Some(line.get_or_insert_with(|| text(&fault.error.to_string())).as_ptr())
    });
    let empty = c"".as_ptr();
    match (line, NUMBERS.get()) {
        (Ok(line), _) => line.unwrap_or(empty),
        (Err(_), (0, _)) => empty,
        (Err(_), (status, _)) => tieline_status_text(status),
    }
}

/// Describes a status in a few words. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn tieline_status_text(status: i32) -> *const c_char {
    static TEXTS: PerProcess<OnceLock<Vec<(i32, CString)>>> = PerProcess::new();
    let known: &'static CStr = match status {
        0 => c"done",
        1 => c"pending",
        numbers::TIELINE_EXPIRED => c"ended, because its time was up",
        _ => {
            let all = || Status::ALL.iter().map(|status| (*status as i32, text(status.text())));
            let texts = TEXTS.get_or_init(|| all().collect());
            let found = texts.iter().find(|(known, _)| *known == status);
            found.map_or(c"a status of a later version", |(_, text)| text.as_c_str())
        }
    };
    known.as_ptr()
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
