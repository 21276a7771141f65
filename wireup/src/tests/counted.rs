//! Tests of the action and the counters for each kind of message in each phase, word for word.

use super::world::{MODULE, id};
use crate::message::{Body, Header, Parsed, encode, encode_version, parse};
use crate::{Action, Claim, ConnectionKey, Limits, Machine, Phase, ReasonKind, short};
use tieline_plugin_api::address_hash;

const OURS: &[u8] = b"ours";
const THEIRS: &[u8] = b"theirs";
const MS: u64 = 1_000_000;

/// Makes a machine in its fifth epoch, whose peer is in its third.
fn machine() -> Machine {
    Machine::new(id(0), 5, vec![0], Limits::default())
}

fn header(n: u32) -> Header<'static> {
    Header { from: id(1), to: id(0), from_epoch: 3, to_epoch: 5, module: MODULE, n }
}

fn request(address: &[u8]) -> Body<'_> {
    Body::Request { identity: b"peer", address }
}

fn reply(bound_to: &[u8]) -> Body<'static> {
    Body::Reply { identity: b"peer", address: THEIRS, bound_to: address_hash(bound_to) }
}

fn ready(mine: &[u8], yours: &[u8]) -> Body<'static> {
    Body::Ready { mine: address_hash(mine), yours: address_hash(yours) }
}

fn words(datagram: &[u8]) -> String {
    match parse(datagram).unwrap() {
        Parsed::Message(_, Body::Request { .. }) => "request".into(),
        Parsed::Message(_, Body::Reply { .. }) => "reply".into(),
        Parsed::Message(_, Body::Ready { .. }) => "ready".into(),
        Parsed::Message(_, Body::Duplicate { ready }) => format!("duplicate, ready: {ready}"),
        Parsed::Message(_, Body::Reject { kind, next, text }) => {
            format!("{kind:?}, next {next}: {text}")
        }
        other => panic!("{other:?}"),
    }
}

/// Returns all of the machine's next actions.
fn does(machine: &mut Machine) -> Vec<String> {
    let words = |action| match action {
        Action::Create { key, .. } => format!("create {}", key.n),
        Action::Bind { key, .. } => format!("bind {}", key.n),
        Action::Ready { key } => format!("ready {}", key.n),
        Action::Renumbered { from, to } => format!("{} goes on as {}", from.n, to.key().n),
        Action::Failed { key, reason } => format!("failed {}, {:?}: {reason}", key.n, reason.kind),
        Action::Send { datagram, .. } => format!("send {}", words(&datagram)),
        Action::Answer { datagram, .. } => format!("answer {}", words(&datagram)),
    };
    std::iter::from_fn(|| machine.take_action()).map(words).collect()
}

/// Returns the actions for a message, followed by the counters.
fn about(machine: &mut Machine, header: &Header<'_>, body: &Body<'_>) -> Vec<String> {
    about_bytes(machine, &encode(header, body))
}

fn about_bytes(machine: &mut Machine, bytes: &[u8]) -> Vec<String> {
    let before = *machine.counters();
    let _ = machine.receive(7, bytes);
    let after = *machine.counters();
    let counts = [
        ("requests", before.requests, after.requests),
        ("duplicates", before.duplicates, after.duplicates),
        ("stale", before.stale, after.stale),
        ("malformed", before.malformed, after.malformed),
        ("rejected", before.rejected, after.rejected),
        ("early", before.early, after.early),
        ("renumbered", before.renumbered, after.renumbered),
        ("ready", before.ready, after.ready),
        ("failed", before.failed, after.failed),
    ];
    let counted = counts.iter().filter(|(_, before, after)| before != after);
    let counted = counted.map(|(name, before, after)| format!("{name} {}", after - before));
    let mut all = does(machine);
    all.push(counted.collect::<Vec<_>>().join(", "));
    all
}

/// Makes a connection that the local side has requested.
fn asked(machine: &mut Machine) -> ConnectionKey {
    let Ok(Claim::New(key)) = machine.connect(0, id(1), MODULE) else { panic!("a new one") };
    machine.created(0, &key, OURS);
    assert_eq!(does(machine), ["send request"]);
    key
}

fn bound(machine: &mut Machine) -> ConnectionKey {
    let key = asked(machine);
    assert_eq!(about(machine, &header(1), &request(THEIRS)), ["bind 1", "requests 1"]);
    machine.bound(0, &key, Ok(()));
    assert_eq!(does(machine), ["send reply"]);
    key
}

#[test]
fn message_for_another_worker_or_life_is_rejected_or_counted() {
    let mut machine = machine();
    let _ = asked(&mut machine);
    let (me, other) = (short(&id(0)), short(&id(9)));
    let wrong = Header { to: id(9), ..header(1) };
    let lives = format!(
        "answer NoSuchWorker, next 2: this address belongs to worker {me}, not to worker {other}"
    );
    let told = |text: String, counts: &str| vec![text, counts.to_owned()];
    assert_eq!(about(&mut machine, &wrong, &request(THEIRS)), told(lives, "stale 1, rejected 1"));
    assert_eq!(about(&mut machine, &wrong, &ready(THEIRS, OURS)), ["stale 1"]);
    let own = Header { from: id(0), ..header(1) };
    assert_eq!(about(&mut machine, &own, &request(THEIRS)), ["stale 1"]);
    let life = Header { to_epoch: 4, ..header(1) };
    let text = "answer Closed, next 2: the message is for another life of this worker".to_owned();
    assert_eq!(about(&mut machine, &life, &request(THEIRS)), told(text, "stale 1, rejected 1"));
    assert_eq!(about(&mut machine, &life, &ready(THEIRS, OURS)), ["stale 1"]);
    // None of these messages leaves state: a first request without a known epoch of the receiver is served.
    let first = Header { to_epoch: 0, ..header(1) };
    assert_eq!(about(&mut machine, &first, &request(THEIRS)), ["bind 1", "requests 1"]);
    let older = Header { from_epoch: 2, ..header(2) };
    let text =
        "answer Outlived, next 2: a later life of the requesting worker is known here".to_owned();
    assert_eq!(about(&mut machine, &older, &request(THEIRS)), told(text, "stale 1, rejected 1"));
    assert_eq!(about(&mut machine, &older, &ready(THEIRS, OURS)), ["stale 1"]);
}

#[test]
fn message_of_another_version_is_answered_or_counted() {
    let mut machine = machine();
    let _ = asked(&mut machine);
    let mut in_version_2 = |header: &Header<'_>, body: &Body<'_>| {
        about_bytes(&mut machine, &encode_version(2, header, body))
    };
    assert_eq!(
        in_version_2(&header(2), &request(THEIRS)),
        [
            "answer Version, next 2: this side speaks version 1 of the wire-up, the request came in version 2",
            "rejected 1"
        ]
    );
    assert_eq!(in_version_2(&header(1), &ready(THEIRS, OURS)), ["stale 1"]);
    let no = Body::Reject { kind: ReasonKind::Version, next: 1, text: "no" };
    for other in [Header { to: id(9), ..header(1) }, Header { to_epoch: 4, ..header(1) }, header(2)]
    {
        assert_eq!(in_version_2(&other, &no), ["stale 1"]);
    }
    let worker = short(&id(1));
    let failed = format!(
        "failed 1, Version: connection 1 over {MODULE} to worker {worker}: the peer speaks version 2 of the wire-up, this side version 1: no"
    );
    assert_eq!(in_version_2(&header(1), &no), [failed, "failed 1".into()]);
    assert_eq!(about_bytes(&mut machine, b"TX"), ["malformed 1"]);
}

#[test]
fn requesting_side_acts_on_each_message_once() {
    let mut machine = machine();
    let key = asked(&mut machine);
    // The peer is still making its endpoint, so the next request is sent later.
    assert_eq!(machine.next_timer(), Some(50 * MS));
    assert_eq!(about(&mut machine, &header(1), &Body::Duplicate { ready: true }), ["stale 1"]);
    assert_eq!(about(&mut machine, &header(1), &Body::Duplicate { ready: false }), [""]);
    assert_eq!(about(&mut machine, &header(2), &Body::Duplicate { ready: false }), ["stale 1"]);
    machine.tick(50 * MS);
    assert_eq!(
        (does(&mut machine), machine.next_timer()),
        (vec!["send request".into()], Some(2050 * MS))
    );
    assert_eq!(about(&mut machine, &header(1), &ready(THEIRS, OURS)), ["stale 1"]);
    let busy = Body::Reject { kind: ReasonKind::Busy, next: 1, text: "busy" };
    assert_eq!(about(&mut machine, &header(1), &busy), [""]);
    let gone = [
        "answer Closed, next 2: the reply is bound to an endpoint that is gone",
        "stale 1, rejected 1",
    ];
    assert_eq!(about(&mut machine, &header(1), &reply(b"another")), gone);
    assert_eq!(about(&mut machine, &header(1), &reply(OURS)), ["bind 1", ""]);
    assert_eq!(machine.phase(&key), Some(Phase::Binding));
    assert_eq!(
        about(&mut machine, &header(1), &request(THEIRS)),
        ["send duplicate, ready: false", "requests 1, duplicates 1"]
    );
    assert_eq!(about(&mut machine, &header(1), &reply(OURS)), [""]);
    assert_eq!(about(&mut machine, &header(1), &ready(THEIRS, OURS)), ["stale 1"]);
    // The peer was bound before, so both sides are bound.
    machine.bound(0, &key, Ok(()));
    assert_eq!(does(&mut machine), ["ready 1", "send ready"]);
    assert_eq!(machine.counters().ready, 1);
}

#[test]
fn bound_and_ready_side_answers_duplicates_and_rejects_others() {
    let mut machine = machine();
    let key = bound(&mut machine);
    assert_eq!(
        about(&mut machine, &header(1), &request(THEIRS)),
        ["send reply", "requests 1, duplicates 1"]
    );
    let another = [
        "answer Closed, next 2: another endpoint has this number",
        "requests 1, stale 1, rejected 1",
    ];
    assert_eq!(about(&mut machine, &header(1), &request(b"another")), another);
    assert_eq!(about(&mut machine, &header(1), &ready(b"another", OURS)), ["stale 1"]);
    assert_eq!(about(&mut machine, &header(1), &ready(THEIRS, b"another")), ["stale 1"]);
    assert_eq!(about(&mut machine, &header(1), &ready(THEIRS, OURS)), ["ready 1", "ready 1"]);
    assert_eq!((machine.phase(&key), machine.next_timer()), (Some(Phase::Ready), None));
    assert_eq!(
        about(&mut machine, &header(1), &request(THEIRS)),
        ["send duplicate, ready: true", "requests 1, duplicates 1"]
    );
    assert_eq!(about(&mut machine, &header(1), &request(b"another")), another);
    assert_eq!(about(&mut machine, &header(1), &reply(OURS)), ["send ready", "duplicates 1"]);
    assert_eq!(about(&mut machine, &header(1), &ready(THEIRS, OURS)), ["duplicates 1"]);
    let closed = Body::Reject { kind: ReasonKind::Closed, next: 2, text: "closed" };
    assert_eq!(about(&mut machine, &header(1), &closed), ["stale 1"]);
    assert_eq!(about(&mut machine, &header(9), &closed), ["stale 1"]);
    // The number of the connection is used up.
    machine.close(0, &key);
    assert_eq!(does(&mut machine), [""; 0], "its endpoint tells the peer");
    let ended = "answer Closed, next 2: the connection of this number has ended";
    assert_eq!(about(&mut machine, &header(1), &reply(OURS)), [ended, "stale 1, rejected 1"]);
    let counts = "requests 1, stale 1, rejected 1";
    assert_eq!(about(&mut machine, &header(1), &request(THEIRS)), [ended, counts]);
}

#[test]
fn refused_request_of_peer_gets_the_same_words_when_repeated() {
    let mut machine = machine();
    let first = Header { to_epoch: 0, ..header(1) };
    assert_eq!(about(&mut machine, &first, &request(THEIRS)), ["create 1", "requests 1, early 1"]);
    assert_eq!(
        about(&mut machine, &header(1), &request(THEIRS)),
        ["send duplicate, ready: false", "requests 1, duplicates 1"]
    );
    let key = ConnectionKey { peer: id(1), module: MODULE.into(), n: 1 };
    machine.refused(0, &key, b"peer", "no memory");
    let (name, again) = (key.to_string(), "Rejected, next 2: no memory");
    assert_eq!(
        does(&mut machine),
        [
            format!("answer {again}"),
            format!("failed 1, Local: the endpoint of {name} could not be made: no memory")
        ]
    );
    assert_eq!((machine.counters().failed, machine.len()), (1, 0));
    let counts = "requests 1, stale 1, rejected 1";
    assert_eq!(
        about(&mut machine, &header(1), &request(THEIRS)),
        [&format!("answer {again}"), counts]
    );
}

/// If the peer ends a claimed connection before it is ready, the connection begins again, a limited number of times.
#[test]
fn connection_ended_by_peer_is_renumbered_up_to_limit() {
    let limits = Limits { max_renumbered: 2, ..Limits::default() };
    let mut machine = Machine::new(id(0), 5, vec![0], limits);
    let _ = asked(&mut machine);
    let closed = |next| Body::Reject { kind: ReasonKind::Closed, next, text: "it was closed" };
    assert_eq!(about(&mut machine, &header(1), &closed(4)), ["1 goes on as 4", "renumbered 1"]);
    assert_eq!(about(&mut machine, &header(4), &closed(2)), ["4 goes on as 5", "renumbered 1"]);
    let key = ConnectionKey { peer: id(1), module: MODULE.into(), n: 5 };
    let text =
        format!("failed 5, Closed: {key} is closed: it was closed; it was restarted 2 times");
    assert_eq!(about(&mut machine, &header(5), &closed(6)), [text, "failed 1".into()]);
    let mut machine =
        Machine::new(id(0), 5, vec![0], Limits { max_renumbered: 1, ..Limits::default() });
    let _ = asked(&mut machine);
    let _ = about(&mut machine, &header(1), &closed(2));
    let key = ConnectionKey { n: 2, ..key };
    let text = format!("failed 2, Closed: {key} is closed: it was closed; it was restarted once");
    assert_eq!(about(&mut machine, &header(2), &closed(3)), [text, "failed 1".into()]);
}

#[test]
fn request_is_retried_with_backoff_and_times_out_with_its_phase() {
    let limits = Limits {
        first_retry: 100 * MS,
        last_retry: 300 * MS,
        deadline: 1000 * MS,
        ..Limits::default()
    };
    let mut machine = Machine::new(id(0), 5, vec![0], limits);
    let key = asked(&mut machine);
    let mut sent = Vec::new();
    while machine.phase(&key).is_some() {
        let at = machine.next_timer().unwrap();
        machine.tick(at - 1);
        assert_eq!(does(&mut machine), [""; 0], "not before its time");
        machine.tick(at);
        sent.push((at / MS, does(&mut machine)));
    }
    let times: Vec<u64> = sent.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [100, 300, 600, 900, 1000]);
    assert!(sent[..4].iter().all(|(_, said)| said == &["send request"]), "{sent:?}");
    assert_eq!(
        sent[4].1,
        [
            "send Closed, next 2: the peer gave up waiting".to_owned(),
            format!(
                "failed 1, TimedOut: {key} is not ready after 1.0 s: the request was sent 5 times; nothing was heard of the peer"
            )
        ]
    );
    assert_eq!((machine.counters().retransmissions, machine.counters().failed), (4, 1));
}

#[test]
fn a_claim_that_cannot_be_is_refused_at_home() {
    let mut machine = machine();
    let mut refused =
        |peer, module: &str| machine.connect(0, peer, module).map_err(|reason| reason.kind);
    assert_eq!(refused(id(0), MODULE), Err(ReasonKind::Itself));
    assert_eq!(refused(id(1), ""), Err(ReasonKind::Local));
    assert_eq!(refused(id(1), &"m".repeat(256)), Err(ReasonKind::Local));
    assert!(refused(id(1), &"m".repeat(255)).is_ok());
}
