//! Tests of registered memory that is removed while peers access it.

use tieline_processes::{Failed, Launch, Node, Test, Verdict, named};
use tieline_testing::built;

pub(crate) const TESTS: &[Test] = named![
    memory_without_the_rights_of_peers_is_refused_when_it_is_registered,
    access_to_memory_that_has_gone_fails_alone_and_says_where,
    put_of_several_messages_fails_with_any_and_does_not_notify,
    a_long_message_from_memory_that_has_gone_fails_on_both_sides,
];

const SHM: &str = "TIELINE_PROVIDERS=shm,shm-cma";
const ALONE: &str = "TIELINE_PROVIDERS=shm,shm-cma TIELINE_ASSIST_SIZE=1g";
const EMULATED: &str = "TIELINE_PROVIDERS=shm";
const TCP: &str = "TIELINE_PROVIDERS=tcp,tcp-connect";

const PAGE: usize = 4096;
/// A length that is longer than one message, and longer than one end copies alone.
const LEN: usize = 1 << 20;
const GONE: usize = LEN / 2;

/// Starts a caller and an owner over each available route, connected in both directions. Each pair has the name of its route.
fn pairs() -> impl Iterator<Item = (&'static str, Node, Node)> {
    let folder = built::folder(&built::TCP);
    if let Err(reason) = &folder {
        println!("    skipped: over tcp: {reason}");
    }
    let over =
        if folder.is_ok() { &[SHM, ALONE, EMULATED, TCP][..] } else { &[SHM, ALONE, EMULATED] };
    over.iter().map(move |over| {
        let node = |name: &str| {
            let mut launch = Launch::new(name, "node");
            if let Ok(folder) = &folder {
                launch = launch.env("TIELINE_PROVIDER_PATH", folder.display());
            }
            let mut settings: Vec<&str> = over.split(' ').collect();
            settings.push("TIELINE_TCP_INTERFACES=127.0.0.0/8");
            Node::open(launch, &settings)
        };
        let (mut caller, mut owner) = (node("caller"), node("owner"));
        caller.connect(&mut owner);
        owner.connect(&mut caller);
        (*over, caller, owner)
    })
}

/// Asserts that the operation failed because the owner's memory is missing from this byte on.
fn missing(failed: Result<String, Failed>, at: usize, what: &str) {
    let failed = failed.expect_err(what);
    let place = format!("offset {at} of the region");
    assert_eq!(failed.status, "Permission", "{what}: {failed:?}");
    assert!(failed.text.contains(&place), "{what}: {failed:?} does not name {place}");
    assert!(!failed.text.contains("ended"), "{what}: {failed:?}");
}

fn memory_without_the_rights_of_peers_is_refused_when_it_is_registered() -> Verdict {
    let (mut caller, mut owner) =
        (Node::with("caller", &[EMULATED]), Node::with("owner", &[EMULATED]));
    caller.connect(&mut owner);
    for (kind, rights) in [("read-only", ""), ("nowhere", ""), ("nowhere", " read")] {
        let failed = owner.ask(&format!("place memory 8192 {kind}{rights}"));
        let failed = failed.expect_err("it has no such right");
        println!("    {kind}{rights}: {}", failed.text);
        assert_eq!(failed.status, "Permission", "{failed:?}");
        assert!(failed.text.contains("offset 0"), "{failed:?}");
    }
    let _ = owner.must("place readable 8192 read-only read");
    let _ = caller.import(&mut owner, "readable");
    let _ = caller.must("register here 8192");
    let _ = caller.must("get owner.readable here 0 8192 0");
    // Memory that is committed later is missing before, and accessible afterwards.
    let _ = owner.must("place memory 8192 nowhere later");
    let _ = caller.import(&mut owner, "memory");
    missing(caller.ask("put owner.memory here 0 8 16"), 16, "a put before");
    let _ = owner.must("spoil memory usable 0");
    let _ = caller.must("put owner.memory here 0 8192 0");
    caller.end();
    owner.end();
    Verdict::Passed
}

fn access_to_memory_that_has_gone_fails_alone_and_says_where() -> Verdict {
    for (over, mut caller, mut owner) in pairs() {
        println!("    {over}");
        let _ = caller.must(&format!("register here {LEN}"));
        let _ = owner.must("register other 4096");
        let _ = caller.import(&mut owner, "other");
        for (kind, change) in
            [("plain", "unmap"), ("plain", "nowhere"), ("file", "cut"), ("plain", "read-only")]
        {
            let _ = owner.must(&format!("place {change} {LEN} {kind}"));
            let _ = caller.import(&mut owner, change);
            let all = |what: &str| format!("{what} owner.{change} here 0 {LEN} 0");
            let short = |what: &str, at: usize| format!("{what} owner.{change} here 0 8 {at}");
            let whole = [all("put"), all("get"), short("put", GONE), short("get", GONE)];
            for order in &whole {
                let _ = caller.must(order);
            }
            let _ = owner.must(&format!("spoil {change} {change} {GONE}"));
            let reads = change == "read-only";
            for order in &whole {
                if reads && order.starts_with("get") {
                    let _ = caller.must(order);
                } else {
                    missing(caller.ask(order), GONE, &format!("{over}: {change}: {order}"));
                }
            }
            let last = LEN - 2 * PAGE - 3;
            missing(caller.ask(&short("put", last)), last, &format!("{over}: {change}"));
            let atomic = caller.ask(&format!("atomic owner.{change} {GONE} 1"));
            missing(atomic, GONE, &format!("{over}: {change}: an atomic"));
            // All other operations continue, in both directions.
            let _ = caller.must(&short("put", 8));
            let _ = caller.must(&short("get", GONE - 8));
            let _ = caller.must("put owner.other here 0 4096 0");
            assert_eq!(caller.must("error owner"), "alive");
            let _ = (caller.must("flush owner"), owner.must("ping caller"));
        }
        let said = owner.must("warnings");
        let times = said.matches("a peer's access to registered memory was refused").count();
        // If the caller's kernel copies, the owner only receives the atomic.
        assert_eq!(times, 4, "{over}: {said}");
        caller.end();
        owner.end();
    }
    Verdict::Passed
}

fn put_of_several_messages_fails_with_any_and_does_not_notify() -> Verdict {
    for (over, mut caller, mut owner) in pairs() {
        let _ = caller.must(&format!("register here {LEN}"));
        let _ = owner.must(&format!("place memory {LEN} plain"));
        let _ = caller.import(&mut owner, "memory");
        let _ = caller.must(&format!("put-notify owner.memory here {LEN} 0 7"));
        // Only the first page is missing: the memory of the last piece is present.
        let _ = owner.must("spoil memory nowhere 0");
        let _ = owner.must(&format!("spoil memory usable {PAGE}"));
        let failed = caller.ask(&format!("put-notify owner.memory here {LEN} 0 8"));
        missing(failed, 0, &format!("{over}: a notified put"));
        missing(caller.ask(&format!("put owner.memory here 0 {LEN} 0")), 0, over);
        let _ = caller.must(&format!("put owner.memory here 0 {PAGE} {PAGE}"));
        let _ = owner.must("spoil memory usable 0");
        let _ = caller.must(&format!("put-notify owner.memory here {LEN} 0 9"));
        let _ = caller.must("ping owner");
        assert_eq!(owner.must("words"), "[7, 9]", "{over}");
        caller.end();
        owner.end();
    }
    Verdict::Passed
}

fn a_long_message_from_memory_that_has_gone_fails_on_both_sides() -> Verdict {
    for (over, mut sender, mut receiver) in pairs() {
        let _ = sender.must(&format!("place memory {LEN} plain"));
        sender.peer.tell(&format!("long-of owner memory {LEN}"));
        let _ = receiver.must("long-came");
        let _ = receiver.must("long-refuse");
        let failed = sender.answer().expect_err("it was refused");
        assert_eq!(failed.status, "Unsupported", "{over}");
        let _ = sender.must(&format!("spoil memory nowhere {GONE}"));
        sender.peer.tell(&format!("long-of owner memory {LEN}"));
        let _ = receiver.must("long-came");
        missing(receiver.ask("long-take"), GONE, &format!("{over}: the receiver"));
        let failed = sender.answer().expect_err("it was not taken");
        assert_eq!(failed.status, "Unsupported", "{over}: {failed:?}");
        assert!(failed.text.contains("missing or protected"), "{over}: {failed:?}");
        assert_eq!([sender.must("error owner"), receiver.must("error caller")], ["alive"; 2]);
        let _ = (sender.must("ping owner"), receiver.must("ping caller"));
        sender.end();
        receiver.end();
    }
    Verdict::Passed
}
