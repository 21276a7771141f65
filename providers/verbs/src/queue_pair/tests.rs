//! Tests of the statuses and texts of queue pair errors.

use super::*;
use crate::double::domain;
use crate::double::world::announce;

#[test]
fn send_errors_have_texts_for_operation_and_connection() {
    use Status::*;
    let domain = domain(&[]).unwrap();
    let state = &domain.state;
    let said = |status| {
        let wc = ibv_wc { status, vendor_err: 0x77, ..ibv_wc::default() };
        let (own, failure) = completion_error(&wc, state, Some((17, &state.port)));
        (own, failure.status, failure.text)
    };
    let peer = "(queue pair 17 at 10.0.0.1)";
    for (status, own, all, words) in [
        (IBV_WC_RETRY_EXC_ERR, TimedOut, TimedOut, "did not acknowledge in 7 tries of 3."),
        (IBV_WC_REM_ACCESS_ERR, KeyRejected, KeyRejected, "refused a remote key"),
        (IBV_WC_LOC_QP_OP_ERR, Unreachable, Unreachable, "its link, address or route is gone"),
        (IBV_WC_LOC_PROT_ERR, Invalid, Io, "the device could not reach local memory"),
        (IBV_WC_REM_OP_ERR, PeerFailed, PeerFailed, "refused an operation"),
        (IBV_WC_REM_INV_REQ_ERR, PeerFailed, PeerFailed, "refused an operation"),
        (IBV_WC_WR_FLUSH_ERR, Io, Io, "it refused a request of the peer"),
        (99, Io, Io, "completion status 99, vendor error 0x77"),
    ] {
        let (of_operation, of_connection, text) = said(status);
        assert_eq!((of_operation, of_connection), (own, all), "{text}");
        assert!(text.contains(words), "{text}");
        assert_eq!(text.contains(peer), own != Invalid, "whose fault it may be: {text}");
    }
    // The reported cause is the one that ends all connections.
    announce(IBV_EVENT_PORT_ERR);
    state.watch.read_events();
    let (own, all, text) = said(IBV_WC_RETRY_EXC_ERR);
    assert_eq!((own, all), (Unreachable, Unreachable));
    assert_eq!(text, format!("double0 port 1 is down, and the peer {peer} did not answer"));
    announce(IBV_EVENT_DEVICE_FATAL);
    state.watch.read_events();
    let gone = "the device double0 was removed".to_string();
    assert_eq!(said(IBV_WC_WR_FLUSH_ERR), (NoDevice, NoDevice, gone));
}

#[test]
fn queue_pair_events_map_to_statuses() {
    for (kind, status, words) in [
        (IBV_EVENT_QP_ACCESS_ERR, Status::KeyRejected, "the peer used a remote key"),
        (IBV_EVENT_QP_REQ_ERR, Status::Io, "the peer sent a request"),
        (IBV_EVENT_QP_FATAL, Status::Io, "the device reported"),
    ] {
        let failure = event_error(kind);
        assert_eq!(failure.status, status);
        assert!(failure.text.starts_with(words), "{}", failure.text);
    }
}

#[test]
fn stale_completions_take_entries_until_the_queue_is_drained() {
    let mut cleanup = Cleanup::default();
    cleanup.destroy(None, 24);
    cleanup.reset(1, 8);
    cleanup.fetched(32, false);
    assert_eq!(cleanup.stale(), 32, "it may be others' that were read");
    cleanup.fetched(0, true);
    assert_eq!(cleanup.stale(), 0);
}
