//! Tests of invalid keys, ranges, messages and handles.

use tieline_processes::interpreter::{hex, unhex};
use tieline_processes::{Failed, Node, Test, Verdict, forge, named};

pub(crate) const TESTS: &[Test] = named![
    a_wrong_range_right_or_alignment_is_an_error_of_that_operation_alone,
    a_deregistered_region_is_refused_also_when_its_place_is_taken_again,
    no_forged_key_reaches_other_memory,
    too_long_or_reserved_message_is_refused_and_unknown_id_is_counted,
    objects_of_closed_worker_return_closed,
    forked_child_is_refused_and_its_end_affects_no_peer,
];

const LEN: usize = 4096;

/// A route to memory: the settings, the order with which the target makes its regions, and the name of the path.
const WAYS: [(&[&str], &str, &str); 3] = [
    (&[], "alloc", "shm/ring"),
    (&[], "register", "shm-cma/copy"),
    (&["TIELINE_PROVIDERS=^shm-cma"], "register", "emulated over shm/ring"),
];

/// Starts a caller and a target with three regions; the caller may access only the middle region.
fn caller_and_target(way: &(&[&str], &str, &str)) -> (Node, Node) {
    let (settings, make, path) = way;
    let (mut caller, mut target) = (Node::with("caller", settings), Node::with("target", settings));
    caller.connect(&mut target);
    for (seed, region) in ["before", "middle", "after"].iter().enumerate() {
        let _ = target.must(&format!("{make} {region} {LEN}"));
        let _ = target.must(&format!("fill {region} {seed}"));
    }
    let _ = caller.must(&format!("register here {}", 2 * LEN));
    assert_eq!(&caller.import(&mut target, "middle"), path);
    (caller, target)
}

fn nothing_else_was_touched(target: &mut Node) {
    for (seed, region) in [(0, "before"), (2, "after")] {
        assert_eq!(target.must(&format!("check {region} 0 {LEN} {seed} 0")), "same", "{region}");
    }
}

fn refused(outcome: Result<String, Failed>, status: &str, what: &str) {
    match outcome {
        Err(failed) if failed.status == status => {
            assert!(!failed.text.is_empty(), "{what}: no words");
        }
        other => panic!("{what} should be {status} and is {other:?}"),
    }
}

fn a_wrong_range_right_or_alignment_is_an_error_of_that_operation_alone() -> Verdict {
    for way in &WAYS {
        let (mut caller, mut target) = caller_and_target(way);
        for (at, len) in [
            (LEN as u64, 1),
            (LEN as u64 - 7, 8),
            (0, LEN + 1),
            (u64::MAX, 8),
            (u64::MAX - 7, 8),
            (1 << 40, 8),
        ] {
            for operation in ["put", "get"] {
                let what = format!("{operation} target.middle here 0 {len} {at}");
                refused(caller.ask(&what), "OutOfRange", &what);
            }
            let what = format!("put-bytes target.middle {len} 7 {at}");
            refused(caller.ask(&what), "OutOfRange", &what);
        }
        refused(caller.ask("atomic target.middle 4096 1"), "OutOfRange", "an atomic outside");
        refused(caller.ask("atomic target.middle 12 1"), "Misaligned", "64 bits at 12");
        refused(caller.ask("swap target.middle 6 1"), "Misaligned", "32 bits at 6");
        refused(caller.ask("put target.middle here 8190 8 0"), "OutOfRange", "a local range");
        // Operations at the very end of the region succeed.
        for fits in ["put target.middle here 0 4096 0", "put target.middle here 0 0 4096"] {
            let _ = caller.must(fits);
        }
        let _ = caller.must("atomic target.middle 4088 1");

        let _ = target.must(&format!("{} readable {LEN} read", way.1));
        let _ = target.must("fill readable 5");
        let _ = caller.import(&mut target, "readable");
        refused(caller.ask("put target.readable here 0 8 0"), "KeyRejected", "a put to a readable");
        refused(caller.ask("put-bytes target.readable 8 1 0"), "KeyRejected", "a put of bytes");
        refused(caller.ask("atomic target.readable 0 1"), "KeyRejected", "an atomic on a readable");
        let _ = caller.must("get target.readable here 0 4096 0");
        assert_eq!(caller.must(&format!("check here 0 {LEN} 5 0")), "same");
        assert_eq!(target.must(&format!("check readable 0 {LEN} 5 0")), "same");

        nothing_else_was_touched(&mut target);
        assert_eq!(caller.must("error target"), "alive");
        let _ = caller.must("ping target");
        caller.end();
        target.end();
    }
    Verdict::Passed
}

fn a_deregistered_region_is_refused_also_when_its_place_is_taken_again() -> Verdict {
    for way in &WAYS {
        let (mut caller, mut target) = caller_and_target(way);
        let _ = caller.must("put target.middle here 0 8 0");
        let _ = target.must("free middle");
        for again in [false, true] {
            if again {
                let _ = target.must(&format!("{} middle {LEN}", way.1));
                let _ = target.must("fill middle 1");
            }
            for operation in [
                "put target.middle here 0 8 0",
                "put-bytes target.middle 8 238 0",
                "get target.middle here 0 8 0",
                "atomic target.middle 0 1",
            ] {
                refused(caller.ask(operation), "KeyRejected", operation);
            }
        }
        assert_eq!(target.must(&format!("check middle 0 {LEN} 1 0")), "same");
        nothing_else_was_touched(&mut target);
        assert_eq!(caller.must("error target"), "alive");
        let _ = caller.must("ping target");
        // The new region has a different key.
        let _ = caller.must("disconnect target");
        caller.connect(&mut target);
        assert_eq!(&caller.import(&mut target, "middle"), way.2);
        let _ = caller.must("put target.middle here 0 8 0");
        caller.end();
        target.end();
    }
    Verdict::Passed
}

fn no_forged_key_reaches_other_memory() -> Verdict {
    for way in &WAYS {
        let (mut caller, mut target) = caller_and_target(way);
        let key = unhex(&target.must("key middle"));
        let (mut tried, mut reached, mut not_imported) = (0, 0, 0);
        for at in forge::places(&key) {
            for bits in [0x01, 0x80] {
                let forged = hex(&forge::flipped(&key, at, bits));
                tried += 1;
                if let Err(failed) = caller.ask(&format!("import target forged {forged}")) {
                    assert_eq!(failed.status, "KeyRejected", "byte {at}: {failed:?}");
                    not_imported += 1;
                    continue;
                }
                for operation in [
                    "put-bytes target.forged 8 238 0",
                    "put-bytes target.forged 8 238 4088",
                    "put-bytes target.forged 8 238 4096",
                    "put-bytes target.forged 8 238 1048576",
                    "get target.forged here 0 8 4096",
                    "atomic target.forged 8 1",
                    "atomic target.forged 4096 1",
                ] {
                    match caller.ask(operation) {
                        // The byte has no meaning for this path; it may belong to a name. The operation accesses the same memory.
                        Ok(_) if !operation.contains("4096") && !operation.contains("1048576") => {
                            reached += 1;
                        }
                        Ok(_) => panic!("byte {at}, {bits:#x}: `{operation}` went through"),
                        // The byte belongs to the name of the executor of atomics, and no executor in this test has the changed
                        // name.
                        Err(failed) if operation.starts_with("atomic") => assert!(
                            ["KeyRejected", "OutOfRange", "Unsupported"]
                                .contains(&failed.status.as_str()),
                            "byte {at}, {bits:#x}: `{operation}`: {failed:?}"
                        ),
                        Err(failed) => assert!(
                            ["KeyRejected", "OutOfRange"].contains(&failed.status.as_str()),
                            "byte {at}, {bits:#x}: `{operation}`: {failed:?}"
                        ),
                    }
                }
                assert_eq!(caller.must("error target"), "alive", "byte {at}");
            }
        }
        println!(
            "    {}: {tried} keys, {not_imported} refused at once, {reached} operations reached the key's own region",
            way.2
        );
        nothing_else_was_touched(&mut target);
        let _ = caller.must("ping target");
        caller.end();
        target.end();
    }
    Verdict::Passed
}

fn too_long_or_reserved_message_is_refused_and_unknown_id_is_counted() -> Verdict {
    let (mut caller, mut target) = caller_and_target(&WAYS[0]);
    let max: usize = caller.must("max-message target").parse().expect("a number");
    // The message is a rendezvous message, and its handler does not receive it.
    refused(caller.ask(&format!("send target 1 0 {}", max + 1)), "Unsupported", "one byte more");
    let _ = caller.must(&format!("send target 1 0 {max}"));
    refused(caller.ask("send target 61440 0 8"), "Invalid", "an id of the library's");
    refused(caller.ask("send target 65535 0 8"), "Invalid", "the highest id");
    let _ = caller.must("send target 61439 0 8");
    let _ = caller.must("send target 4 0 100");
    let _ = caller.must("gather target here 3");
    let _ = caller.must("ping target");
    let counters = target.must("counters");
    assert!(counters.contains("unknown_ids: 3"), "{counters}");
    assert_eq!(target.must("counted"), "2");
    assert_eq!(caller.must("error target"), "alive");
    nothing_else_was_touched(&mut target);
    caller.end();
    target.end();
    Verdict::Passed
}

fn objects_of_closed_worker_return_closed() -> Verdict {
    for way in &WAYS {
        let (mut caller, mut target) = caller_and_target(way);
        let statuses = caller.must("close-worker target target.middle here");
        for posted in statuses.split(',') {
            assert!(posted.ends_with("=Closed"), "{statuses}");
        }
        // The application can still read the region although the context is gone.
        let _ = caller.must("fill here 3");
        assert_eq!(caller.must("check here 0 8192 3 0"), "same");
        assert_eq!(target.must(&format!("check middle 0 {LEN} 1 0")), "same");
        nothing_else_was_touched(&mut target);
        caller.end();
        target.end();
    }
    Verdict::Passed
}

fn forked_child_is_refused_and_its_end_affects_no_peer() -> Verdict {
    let served: (&[&str], _, _) = (&["TIELINE_PROGRESS_THREAD=on"], WAYS[1].1, WAYS[1].2);
    for way in WAYS.iter().chain([&served]) {
        let (mut caller, mut target) = caller_and_target(way);
        target.connect(&mut caller);
        let _ = target.must("ping caller");
        let _ = caller.must("put target.middle here 0 8 0");
        for _ in 0..3 {
            caller.peer.tell("fork target target.middle here");
            let statuses = caller.peer.expect("forked");
            for posted in statuses.split(',') {
                let expected = if posted.starts_with("progress") { "0" } else { "Invalid" };
                assert_eq!(posted.split_once('=').map(|(_, s)| s), Some(expected), "{statuses}");
            }
            assert_eq!(caller.answer().expect("the child ends").text, "Some(0)");
            // The parent of the fork and its peer are not affected.
            let _ = caller.must("ping target");
            let _ = target.must("ping caller");
            let _ = caller.must("put target.middle here 0 8 8");
            let _ = caller.must("atomic target.middle 16 1");
            let _ = caller.must("get target.middle here 0 4096 0");
            assert_eq!(caller.must("error target"), "alive");
            assert_eq!(target.must("failures"), "");
        }
        let _ = target.must("stream caller 1000 8");
        let _ = caller.must("stream target 1000 3000");
        caller.nothing_was_wrong();
        target.nothing_was_wrong();
        nothing_else_was_touched(&mut target);
        caller.end();
        target.end();
    }
    Verdict::Passed
}
