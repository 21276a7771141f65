//! One promise each: what a peer that lies, a provider that breaks, a lane that is late must not do to the application.
//!
//! A case that waits for its repair stands in [`KNOWN`]: it has to fail, and one that passes has to be taken out.

mod bounds;
mod forged;
mod lanes;
mod panics;
mod shared;
mod stage;
mod workers;

/// The cases that fail today, and what is wrong.
const KNOWN: &[(&str, &str)] = &[
    (
        "questions_to_a_peer_that_does_not_answer_are_bounded",
        "no kind of emulated operation counts towards the endpoint's limit",
    ),
    (
        "what_a_provider_has_is_bounded",
        "what a provider has accepted does not count towards the endpoint's limit",
    ),
    (
        "what_waits_for_room_in_a_provider_is_bounded",
        "puts, gets, atomics and flushes that wait do not count towards the endpoint's limit",
    ),
    (
        "a_forged_answer_does_not_end_a_get_that_a_provider_has",
        "an answer is compared with who was asked, not with what",
    ),
    ("a_forged_answer_does_not_end_a_put_that_a_provider_has", "as for a get"),
    ("a_forged_answer_does_not_end_an_atomic_that_a_provider_has", "as for a get"),
    ("a_forged_answer_does_not_end_a_flush_that_a_provider_has", "as for a get"),
    (
        "an_emulated_atomic_is_not_ended_by_an_answer_to_a_get",
        "kinds of answers are interchangeable",
    ),
    (
        "an_atomic_behind_a_fence_waits_for_a_put_on_another_lane",
        "a fence orders within each lane only",
    ),
    ("a_fence_swallows_no_failure", "a fence flushes and drops what the flush had to tell"),
    (
        "what_is_longer_than_a_module_takes_is_cut",
        "max_put and max_get are ignored for modules that complete later",
    ),
    ("a_cut_transfer_ends_when_its_last_piece_has", "the same"),
    ("a_put_that_may_end_locally_asks_for_no_more", "native puts always ask for remote completion"),
    ("a_native_put_that_failed_after_it_had_ended_locally_is_told_by_the_flush", "the same"),
    ("a_failed_completion_says_why", "a failed completion is a bare status"),
    ("a_panic_in_a_handler_loses_nothing_of_its_batch", "the batch unwinds with the panic"),
    ("a_panic_in_a_handler_loses_no_payload_that_was_lent", "the same"),
    (
        "a_provider_that_panics_is_taken_out_and_no_other",
        "the provider of messages is blamed for what any data call returned",
    ),
    (
        "a_provider_that_fails_in_poll_is_taken_out_and_no_other",
        "only endpoints whose messages go through it end",
    ),
    ("a_worker_does_not_take_another_workers_request", "requests are compared by number alone"),
    (
        "a_dead_endpoint_does_not_spoil_a_workers_flush",
        "a dead endpoint fails every flush of its worker",
    ),
    (
        "what_a_handler_may_wait_for_does_not_depend_on_the_provider",
        "a handler may wait for what is done at once and for nothing else",
    ),
    ("an_atomic_without_a_result_brings_none", "an emulated one brings the value from before"),
    (
        "the_failure_of_an_endpoint_that_is_gone_is_not_the_next_ones",
        "the cookie of a lane is a place that is used again",
    ),
    (
        "a_flush_waits_for_what_a_helper_still_copies",
        "a flush asks lanes and the peer, and not shared copies",
    ),
    ("an_atomic_behind_a_fence_waits_for_what_a_helper_still_copies", "nor does a fence"),
    (
        "finish_waits_by_polling_where_a_lane_cannot_wake_anybody",
        "finish sleeps or gives up, and the request is lost",
    ),
    (
        "a_provider_that_stays_broken_in_any_slot_hangs_nobody",
        "what goes over the lanes of an interface that is out of use pends for ever",
    ),
];

/// Runs a case; one of [`KNOWN`] has to fail.
fn case(name: &str, body: impl FnOnce()) {
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    match (known, result) {
        (None, Ok(())) => {}
        (None, Err(panic)) => std::panic::resume_unwind(panic),
        (Some((_, wrong)), Err(_)) => println!("fails, as is known: {wrong}"),
        (Some(_), Ok(())) => panic!("`{name}` passes: take it out of KNOWN"),
    }
}

/// Declares cases: each is a test of the same name.
macro_rules! cases {
    ($( $(#[$doc:meta])* fn $name:ident() $body:block )*) => {
        $( $(#[$doc])* #[test] fn $name() { crate::case(stringify!($name), || $body) } )*
    };
}
pub(crate) use cases;

#[test]
fn every_known_case_is_a_case() {
    let sources = [
        include_str!("bounds.rs"),
        include_str!("forged.rs"),
        include_str!("lanes.rs"),
        include_str!("panics.rs"),
        include_str!("shared.rs"),
        include_str!("workers.rs"),
    ];
    for (name, _) in KNOWN {
        let declared = format!("fn {name}()");
        assert!(sources.iter().any(|source| source.contains(&declared)), "no case `{name}`");
    }
}
