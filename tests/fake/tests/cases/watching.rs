//! Tests of the words that the core compares instead of polling.

use crate::cases;
use crate::stage::{Stage, pending};
use std::cell::Cell;
use std::rc::Rc;
use tieline::Status;
use tieline_fake::{Act, Lane, Rule, Slot, World};

/// The progress calls of which the core uses at least one for a poll.
const EACH: u64 = 64;
/// The number of polls at intervals that may fall into eight calls: the call after a poll of all interfaces polls again.
const AT_INTERVAL: u64 = 2;

/// Makes a stage on which both workers have polled their interfaces for so long that polls at intervals are rare.
fn quiet(lanes: Vec<Lane>) -> Stage {
    let listing = lanes.into_iter().map(Lane::listing).collect();
    let stage = Stage::new(listing);
    for _ in 0..40 {
        stage.settle();
    }
    stage
}

/// Returns the number of polls in `calls` progress calls of one worker without an event.
fn polls_in(stage: &Stage, calls: u64) -> u64 {
    let before = stage.world.polls();
    (0..calls).for_each(|_| assert_eq!(stage.a.progress(), 0));
    stage.world.polls() - before
}

/// Returns the number of polls in `calls` progress calls without an event, of the first attempt with at most `most` polls. A thread
/// that was stopped polls more often afterwards for a while.
fn polls_undisturbed(stage: &Stage, calls: u64, most: u64) -> u64 {
    let mut polls = 0;
    for _ in 0..1000 {
        polls = polls_in(stage, calls);
        if polls <= most {
            break;
        }
    }
    polls
}

/// Lists the words, which takes one poll of each interface.
fn list(stage: &Stage, count: usize) {
    stage.world.list_words(count);
    let _ = polls_in(stage, EACH);
}

cases! {
    fn interface_whose_words_are_unchanged_is_polled_in_one_of_64_calls() {
        let stage = quiet(vec![Lane::messages("am")]);
        assert_eq!(polls_in(&stage, 640), 640, "without a list every call polls");
        for count in 1..World::WORDS {
            list(&stage, count);
            let polls = polls_undisturbed(&stage, 10 * EACH, 12);
            assert!((10..=12).contains(&polls), "{polls} polls beside {count} words");
        }
        list(&stage, World::WORDS);
        assert_eq!(polls_in(&stage, 640), 640, "a list with too many words is empty");
        stage.assert_no_faults();
    }

    fn changed_word_makes_the_next_call_poll() {
        let stage = quiet(vec![Lane::messages("am")]);
        for count in 1..World::WORDS {
            list(&stage, count);
            for word in 0..count {
                stage.world.change_word(word);
                assert_eq!(polls_in(&stage, 1), 1, "word {word} of {count}");
                assert!(polls_in(&stage, 8) <= AT_INTERVAL, "the new value is listed");
            }
        }
    }

    fn message_beside_a_changed_word_is_dispatched_by_the_next_call() {
        let stage = quiet(vec![Lane::messages("am")]);
        let log = Rc::new(Cell::new(0));
        let count = log.clone();
        stage.a.on_message(9, move |_| count.set(count.get() + 1)).unwrap();
        for n in 1..=200 {
            list(&stage, 2);
            let _ = stage.ba.send(9, n, b"").unwrap();
            stage.world.change_word(1);
            assert_eq!((stage.a.progress(), log.get()), (1, n));
        }
        stage.assert_no_faults();
    }

    /// The words of the interface say nothing of them.
    fn queued_operations_are_advanced_by_every_call_beside_unchanged_words() {
        let stage = quiet(vec![Lane::messages("am")]);
        list(&stage, 2);
        stage.world.rule(Rule::every(Slot::Short, Act::Refuse(Status::Again)));
        let sent = pending(stage.ab.send(9, 1, b""));
        let tries = || stage.world.calls(Slot::Short).len();
        let before = tries();
        let _ = polls_in(&stage, 20);
        assert!(tries() - before >= 20, "{before} and {} tries", tries());
        stage.world.forget_rules();
        while stage.a.test(&sent).is_none() {
            let _ = stage.a.progress();
        }
        assert!(polls_in(&stage, 8) <= AT_INTERVAL, "the work is done");
    }

    fn each_active_interface_is_polled_only_if_its_words_have_changed() {
        let stage = quiet(vec![Lane::messages("am"), Lane::memory("rma")]);
        list(&stage, 2);
        let polls = polls_undisturbed(&stage, 10 * EACH, 24);
        assert!((20..=24).contains(&polls), "{polls} polls of two interfaces");
        stage.world.change_word(0);
        assert_eq!(polls_in(&stage, 1), 2, "both interfaces list this word");
    }

    fn words_of_a_provider_that_has_failed_are_not_compared_any_more() {
        let stage = quiet(vec![Lane::messages("am")]);
        list(&stage, 2);
        stage.world.rule(Rule::next(Slot::Poll, Act::Panic));
        stage.world.change_word(0);
        assert!(stage.a.progress() > 0, "the failure counts as an event");
        stage.world.change_word(0);
        assert_eq!(polls_in(&stage, 100), 0, "the provider is out of use");
    }

    fn backlog_of_a_panicked_handler_is_dispatched_beside_unchanged_words() {
        let stage = quiet(vec![Lane::messages("am")]);
        let log = Rc::new(Cell::new(0));
        let count = log.clone();
        let count_or_panic = move |message: &tieline::Message<'_>| {
            assert_ne!(message.header(), 1, "the first handler panics");
            count.set(count.get() + 1);
        };
        stage.a.on_message(9, count_or_panic).unwrap();
        list(&stage, 2);
        for header in 1..=3 {
            let _ = stage.ba.send(9, header, b"").unwrap();
        }
        stage.world.change_word(0);
        let call = || stage.a.progress();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
        assert_eq!(log.get(), 0);
        assert!(stage.a.progress() >= 2);
        assert_eq!(log.get(), 2);
        stage.assert_no_faults();
    }
}
