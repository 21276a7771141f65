//! Providers of other minors, and ones that promise what they do not have.

mod common;

use common::{assert_the_rest_works, open, open_with};
use std::cell::Cell;
use std::rc::Rc;
use tieline::explain::Verdict;
use tieline::{Error, Status};
use tieline_bad_providers::Directory;

/// Only this provider: what works, works through it.
fn alone(directory: &Directory, name: &str) -> tieline::Context {
    open_with(&[directory], &[("TIELINE_PROVIDERS", name)])
}

#[test]
fn a_provider_in_c_moves_messages() {
    let directory = Directory::new();
    let _ = directory.compile("good", &[]);
    assert_the_rest_works(&alone(&directory, "good"));
}

#[test]
fn a_newer_minor_with_unknown_slots_works() {
    let directory = Directory::new();
    let _ = directory.compile("newer", &["NEWER_MINOR", "MINOR=7"]);
    assert_the_rest_works(&alone(&directory, "newer"));
}

#[test]
fn an_older_minor_with_missing_slots_works() {
    let directory = Directory::new();
    let _ = directory.compile("older", &["OLDER_MINOR"]);
    assert_the_rest_works(&alone(&directory, "older"));
}

#[test]
fn a_capability_that_is_claimed_but_not_there_is_refused_at_the_module() {
    let directory = Directory::new();
    let _ = directory.compile("boasts", &["CAPS=(TIELINE_CAP_AM_SHORT | TIELINE_CAP_PUT)"]);
    let context = open(&[&directory]);
    let records = context.report().records;
    let module = records.iter().find(|r| r.provider == "boasts" && r.module.is_some());
    let verdict = &module.expect("a record about the module").verdict;
    let Verdict::Refused { phase, expected, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(phase, "tables");
    assert!(expected.contains("the slot put, which CAP_PUT promises"), "{expected}");
    assert_the_rest_works(&context);
}

#[test]
fn a_module_without_room_behind_the_heads_of_emulated_operations_is_refused() {
    let directory = Directory::new();
    let caps = "CAPS=(TIELINE_CAP_AM_SHORT | TIELINE_CAP_AM_PACKED)";
    let _ = directory.compile("narrow", &[caps, "MAX_PACKED=24"]);
    let context = open(&[&directory]);
    let records = context.report().records;
    let module = records.iter().find(|r| r.provider == "narrow" && r.module.is_some());
    let verdict = &module.expect("a record about the module").verdict;
    let Verdict::Refused { expected, found, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!((expected.contains("max_packed of at least 64"), &found[..]), (true, "24"));
    assert_the_rest_works(&context);
}

#[test]
fn a_capability_of_a_domain_that_is_claimed_but_not_there_is_refused() {
    let directory = Directory::new();
    let _ = directory.compile("boasts", &["DOMAIN_CAPS=TIELINE_MEMORY_CAP_ALLOC"]);
    let context = open(&[&directory]);
    let records = context.report().records;
    let refused = records.iter().any(|record| {
        record.provider == "boasts"
            && matches!(&record.verdict, Verdict::Refused { expected, found, .. }
                if format!("{expected} {found}").contains("MEMORY_CAP_ALLOC"))
    });
    assert!(refused, "{records:?}");
    assert_the_rest_works(&context);
}

/// Sends header 0xdead, which the provider answers by failing; then everything to it fails, and only to it.
fn fails_on_dead(directory: &Directory, name: &str) {
    let context = alone(directory, name);
    let worker = context.worker().expect("a worker");
    let seen = Rc::new(Cell::new(0));
    let counter = seen.clone();
    worker.on_message(1, move |_| counter.set(counter.get() + 1)).expect("a free id");
    let address = worker.address().expect("an address");
    let endpoint = worker.connect(&address).expect("an endpoint to oneself");
    let outcome = endpoint.send(1, 1, b"fine").expect("a message");
    let _ = worker.finish(outcome).expect("a message that is sent");
    while seen.get() == 0 {
        let _ = worker.progress();
    }
    let send = |header, payload| -> Result<u64, Error> {
        Ok(worker.finish(endpoint.send(1, header, payload)?)?)
    };
    let error = send(0xdead, b"deadly").expect_err("a failure");
    assert_eq!(error.status(), Status::ProviderFailed, "{error}");
    assert!(send(1, b"later").is_err(), "a provider that has failed is used again");
    drop((endpoint, worker));
    // Another context of the process, with the other providers, goes on.
    assert_the_rest_works(&open_with(&[], &[("TIELINE_PROVIDERS", "shm")]));
}

#[test]
fn a_panic_in_a_data_call_fails_that_provider_alone() {
    let directory = Directory::new();
    let _ = directory.copy_example("bad_panics", "panics");
    fails_on_dead(&directory, "panics");
}

#[test]
fn a_provider_in_c_that_says_that_it_failed_is_out_of_use() {
    let directory = Directory::new();
    let _ = directory.compile("fails", &["FAILS_ON_DEAD"]);
    fails_on_dead(&directory, "fails");
}
