//! Tests that every status has a variant in every error type.

use super::*;
use crate::{Context, Outcome};
use Status::*;

/// Formats each status with its variant, as a letter of `cases`, in the order of the table of statuses.
fn sorted<E: From<Error>>(scope: Scope, cases: impl Fn(&E) -> char) -> String {
    let case = |status: &Status| cases(&E::from(Error::from_status(*status).of(scope)));
    Status::ALL.iter().map(case).collect()
}

/// The statuses in the order of [`Status::ALL`].
const ORDER: [Status; 22] = [
    Again,
    Unsupported,
    Invalid,
    NoMemory,
    NoDevice,
    Permission,
    PeerFailed,
    Unreachable,
    KeyRejected,
    OutOfRange,
    TooLarge,
    TimedOut,
    Closed,
    ProviderFailed,
    Io,
    BadData,
    UnsupportedParam,
    Busy,
    Canceled,
    Misaligned,
    Declined,
    OutcomeUnknown,
];

#[test]
fn every_status_of_a_post_says_what_to_do() {
    assert_eq!(Status::ALL, ORDER, "a new status has no place here yet");
    let cases = |error: &PostError| match error {
        PostError::Retry(_) => 't',
        PostError::Correct(_) => 'c',
        PostError::Release(_) => 'r',
        PostError::Reconnect(ConnectError::Retry(_)) => 'T',
        PostError::Reconnect(ConnectError::Correct(_)) => 'C',
        PostError::Reconnect(ConnectError::Exchange(_)) => 'X',
        PostError::Reconnect(ConnectError::Configure(_)) => 'F',
        PostError::Reconnect(ConnectError::Release(_)) => 'R',
    };
    assert_eq!(sorted(Scope::Call, cases), "tccrFcXFcccTTTTFccTcTT");
    assert_eq!(sorted(Scope::Connection, cases), "TFFRFFXFTTFTTTTFFTTTTT");
    assert_eq!(sorted(Scope::Worker, cases), "C".repeat(Status::ALL.len()));
    assert_eq!(sorted(Scope::Context, cases), "c".repeat(Status::ALL.len()));
}

#[test]
fn every_status_of_a_completion_says_what_has_become_of_the_operation() {
    let cases = |error: &CompletionError| match error {
        CompletionError::Refused(_) => 'r',
        CompletionError::Canceled(_) => 'c',
        CompletionError::Pending(_) => 'p',
        CompletionError::Unknown(ConnectError::Retry(_)) => 'T',
        CompletionError::Unknown(ConnectError::Correct(_)) => 'C',
        CompletionError::Unknown(ConnectError::Exchange(_)) => 'X',
        CompletionError::Unknown(ConnectError::Configure(_)) => 'F',
        CompletionError::Unknown(ConnectError::Release(_)) => 'R',
    };
    assert_eq!(sorted(Scope::Call, cases), "TrrRFrXFrrrTTTTFrTcrTT");
    assert_eq!(sorted(Scope::Connection, cases), "TFFRFFXFTTFTTTTFFTcTTT");
    assert_eq!(sorted(Scope::Worker, cases), "c".repeat(Status::ALL.len()));
    assert_eq!(sorted(Scope::Context, cases), "ppppppppppppppppppcppp");
}

#[test]
fn every_status_of_a_connection_says_what_it_takes_to_have_one() {
    let cases = |error: &ConnectError| match error {
        ConnectError::Retry(_) => 't',
        ConnectError::Correct(_) => 'c',
        ConnectError::Exchange(_) => 'x',
        ConnectError::Configure(_) => 'f',
        ConnectError::Release(_) => 'r',
    };
    assert_eq!(sorted(Scope::Call, cases), "tfcrffxfccctcttccctctt");
    assert_eq!(sorted(Scope::Connection, cases), "tffrffxfttfttttffttttt");
    for scope in [Scope::Worker, Scope::Context] {
        assert_eq!(sorted(scope, cases), "c".repeat(Status::ALL.len()));
    }
}

#[test]
fn every_status_of_an_opening_says_whom_to_turn_to() {
    let cases = |error: &OpenError| match error {
        OpenError::Configure(_) => 'f',
        OpenError::Release(_) => 'r',
        OpenError::Reopen(_) => 'o',
    };
    let own = "rffrfffffffffffffrffff";
    for scope in [Scope::Call, Scope::Connection, Scope::Worker] {
        assert_eq!(sorted(scope, cases), own);
    }
    assert_eq!(sorted(Scope::Context, cases), "o".repeat(Status::ALL.len()));
}

#[test]
fn no_type_changes_a_word() {
    fn same<E: From<Error> + Into<Error> + std::error::Error>(error: &Error) {
        let typed = E::from(error.clone());
        let words = (typed.to_string(), format!("{typed:?}"));
        assert_eq!(words, (error.to_string(), format!("{error:?}")));
        let back: Error = typed.into();
        let facts =
            |e: &Error| (e.status(), e.what().to_owned(), e.why().to_owned(), e.fix().to_owned());
        assert_eq!(facts(&back), facts(error));
    }
    for &status in Status::ALL {
        for error in [Error::new(status, "what", "why", "fix"), Error::from_status(status)] {
            same::<PostError>(&error);
            same::<CompletionError>(&error);
            same::<ConnectError>(&error);
            same::<OpenError>(&error);
        }
    }
}

#[test]
fn a_type_costs_a_post_nothing() {
    assert_eq!(size_of::<Result<Outcome, PostError>>(), size_of::<Result<Outcome, Error>>());
}

#[test]
fn a_wrong_setting_is_named_with_its_value_and_its_origin() {
    let refused = Context::builder().set("TIELINE_QUEUE_BYTES", "many").open().map(drop);
    let Err(OpenError::Configure(error)) = refused else { panic!("{refused:?}") };
    let (name, setting) = error.setting().expect("a setting");
    assert_eq!((name, setting.value.as_str()), ("TIELINE_QUEUE_BYTES", "many"));
    assert_eq!(setting.origin, Origin::Program);
    let refused = Context::builder().set("TIELINE_PROVIDERS", "required:none").open().map(drop);
    let Err(OpenError::Configure(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.setting().map(|(name, _)| name), Some("TIELINE_PROVIDERS"));
    // More than one setting is responsible for the missing module.
    let refused = Context::builder().set("TIELINE_PROVIDERS", "tcp");
    let refused = refused.set("TIELINE_CONNECT", "^tcp-connect");
    let Err(OpenError::Configure(error)) = refused.open().map(drop) else { panic!("it opens") };
    assert_eq!((error.status(), error.setting()), (NoDevice, None));
}

#[test]
fn an_endpoint_of_a_closed_worker_is_to_be_made_by_another_one() {
    let context = Context::open().unwrap();
    let (worker, peer) = (context.worker().unwrap(), context.worker().unwrap());
    let endpoint = worker.connect(&peer.address().unwrap()).unwrap();
    let Outcome::Pending(asked) = endpoint.flush_messages().unwrap() else {
        panic!("it ended although the peer made no progress")
    };
    let stays = worker.finish(Outcome::Pending(peer_request(&peer)));
    assert!(matches!(stays, Err(CompletionError::Pending(_))), "{stays:?}");
    drop(worker.close(std::time::Duration::ZERO));
    let sent = endpoint.send(1, 0, b"").map(drop);
    assert!(matches!(sent, Err(PostError::Reconnect(ConnectError::Correct(_)))), "{sent:?}");
    assert!(matches!(worker.test(&asked), Some(Err(CompletionError::Canceled(_)))));
    let again = worker.connect(&peer.address().unwrap());
    assert!(matches!(again, Err(ConnectError::Correct(_))), "{again:?}");
}

/// Returns a pending operation of another worker.
fn peer_request(peer: &crate::Worker) -> crate::Request {
    let to_itself = peer.connect(&peer.address().unwrap()).unwrap();
    match to_itself.flush_messages().unwrap() {
        Outcome::Pending(request) => request,
        Outcome::Done(_) => panic!("it ended without progress"),
    }
}
