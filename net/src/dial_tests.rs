//! Tests of the decisions of a dial.

use super::*;

fn dial(routes: Vec<Route>, deadline: Instant) -> Dial {
    let hello = Hello::new(0, [0; 16], b"").expect("short");
    Dial::start(routes, Key::derive(b"secret", &[0; 16]), hello, deadline)
}

#[test]
fn advice_about_firewall_is_given_once_at_best_failure() {
    // The cases, for each failure: whether there was no answer, and whether it was rejected.
    let said = |failures: &[(bool, bool)]| {
        let mut dial = dial(Vec::new(), Instant::now());
        for (n, (unanswered, rejected)) in failures.iter().enumerate() {
            dial.advise(*unanswered, *rejected);
            dial.failures.push(n.to_string());
        }
        dial.words().replace(FIREWALL, " dropped").replace(REJECTED, " rejected")
    };
    let (other, dropped, rejected) = ((false, false), (true, false), (false, true));
    assert_eq!(said(&[]), "there is no address to connect to");
    assert_eq!(said(&[other, other]), "0; 1");
    assert_eq!(said(&[dropped, other]), "0 dropped; 1");
    assert_eq!(said(&[dropped, dropped]), "0; 1 dropped");
    assert_eq!(said(&[rejected, other]), "0 rejected; 1");
    assert_eq!(said(&[rejected, rejected]), "0; 1 rejected");
    assert_eq!(said(&[dropped, rejected]), "0 dropped; 1");
    assert_eq!(said(&[rejected, dropped]), "0; 1 dropped");
}

#[test]
fn the_last_route_has_all_the_time_and_the_others_no_more_than_there_is() {
    let (now, s) = (Instant::now(), Duration::from_secs);
    assert_eq!(limit(now, now + s(10), 0, s(3)), now + s(10));
    assert_eq!(limit(now, now + s(10), 1, s(3)), now + s(3));
    assert_eq!(limit(now, now + s(2), 1, s(3)), now + s(2));
}

#[test]
fn a_route_for_which_no_time_is_left_is_named_and_not_begun() {
    let remote = SocketAddr::from(([127, 0, 0, 1], 9));
    let route = || Route { local: None, remote, why: "test".into() };
    let mut late = dial(vec![route(), route()], Instant::now());
    assert!(matches!(late.advance(Instant::now()), Progress::Failed(_)));
    let one = "127.0.0.1:9 (test): no time left to try";
    assert_eq!((late.failures(), late.attempt()), (&[one.to_owned(), one.to_owned()][..], 0));
    assert_eq!(late.words(), format!("{one}; {one}"));
    assert!(!late.is_refused() && !late.is_starved() && late.fd().is_none());
    assert_eq!(late.timeout(), late.deadline);
}

/// An unusable route and one for which no time was left say nothing about the host.
#[test]
fn a_dial_is_unanswered_where_no_route_led_to_an_answer() {
    let unanswered = |unanswered: usize, unusable: usize, untried: usize, failures: usize| {
        let mut dial = dial(Vec::new(), Instant::now());
        (dial.unanswered, dial.unusable, dial.untried) = (unanswered, unusable, untried);
        dial.failures = vec![String::new(); failures];
        dial.is_unanswered()
    };
    assert!(unanswered(1, 0, 0, 1) && unanswered(1, 1, 1, 3));
    assert!(!unanswered(0, 0, 0, 0) && !unanswered(0, 1, 1, 2) && !unanswered(1, 0, 0, 2));
}

/// A refusal on every usable route counts as the end of the process. An address without an answer may still belong to the process.
#[test]
fn a_target_is_refused_where_no_other_route_failed_otherwise() {
    let refused = |refusals: usize, unusable: usize, failures: usize| {
        let mut dial = dial(Vec::new(), Instant::now());
        (dial.refusals, dial.unusable) = (refusals, unusable);
        dial.failures = vec![String::new(); failures];
        dial.is_refused()
    };
    assert!(refused(1, 0, 1) && refused(2, 0, 2) && refused(1, 1, 2));
    assert!(!refused(0, 0, 0) && !refused(0, 1, 1) && !refused(1, 0, 2) && !refused(1, 1, 3));
}
