//! Code that the tests of bad providers share.
#![allow(dead_code)] // each test program uses a part

use std::cell::Cell;
use std::rc::Rc;
use tieline::Context;
use tieline::explain::Verdict;
use tieline_bad_providers::Directory;

pub(crate) fn open(directories: &[&Directory]) -> Context {
    open_with(directories, &[])
}

pub(crate) fn open_with(directories: &[&Directory], settings: &[(&str, &str)]) -> Context {
    let paths: Vec<String> =
        directories.iter().map(|directory| directory.path().display().to_string()).collect();
    let mut builder = Context::builder()
        .set("TIELINE_PROVIDER_PATH", &paths.join(":"))
        .set("TIELINE_PROBE", "nocache");
    for (name, value) in settings {
        builder = builder.set(name, value);
    }
    builder.open().expect("a context, whatever lies in the directories")
}

/// Returns the verdicts of the report about a provider (or a directory), in order.
pub(crate) fn verdicts(context: &Context, provider: &str) -> Vec<Verdict> {
    let records = context.report().records;
    records.into_iter().filter(|r| r.provider == provider).map(|r| r.verdict).collect()
}

#[track_caller]
pub(crate) fn refusal(context: &Context, provider: &str) -> (String, String, String) {
    match verdicts(context, provider).as_slice() {
        [Verdict::Refused { phase, expected, found }] => {
            (phase.clone(), expected.clone(), found.clone())
        }
        other => panic!("{provider}: not one refusal: {other:?}"),
    }
}

/// Checks that the report of the provider's refusal contains these words, and that a message still arrives.
#[track_caller]
pub(crate) fn assert_refused(
    context: &Context,
    provider: &str,
    phase: &str,
    expected: &str,
    found: &str,
) {
    let refusal = refusal(context, provider);
    assert_eq!(refusal.0, phase, "{refusal:?}");
    assert!(refusal.1.contains(expected), "expected `{expected}` in {refusal:?}");
    assert!(refusal.2.contains(found), "found `{found}` in {refusal:?}");
    assert_the_rest_works(context);
}

pub(crate) fn is_found(context: &Context, provider: &str) -> bool {
    let loaded = context.report().providers;
    loaded.iter().any(|view| view.name == provider)
}

#[track_caller]
pub(crate) fn assert_the_rest_works(context: &Context) {
    let worker = context.worker().expect("a worker");
    let arrived = Rc::new(Cell::new(0));
    let seen = arrived.clone();
    worker.on_message(7, move |message| seen.set(message.header())).expect("a free message id");
    let address = worker.address().expect("an address");
    let endpoint = worker.connect(&address).expect("an endpoint to oneself");
    let outcome = endpoint.send(7, 42, b"payload").expect("a message that is accepted");
    let _ = worker.finish(outcome).expect("a message that is sent");
    while arrived.get() == 0 {
        let _ = worker.progress();
    }
    assert_eq!(arrived.get(), 42);
}
