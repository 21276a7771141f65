//! Random programs that use all calls, compared with lists that are searched from their beginning.

use proptest::prelude::*;
use tieline_tag::{Arrival, Matcher, Message, MessageId, Pattern, Post, Receive, ReceiveId};

#[derive(Clone, Debug)]
enum Call {
    Post(Pattern),
    Arrive(u64, u64),
    /// Posts a series of receives, which fill tables and chunks.
    PostMany(u64, u8),
    ArriveMany(u64, u8),
    /// Receives up to this number of kept messages, starting with the newest.
    Drain(u8),
    Receive(Pattern),
    Peek(Pattern),
    Claim(Pattern, u64),
    /// Takes one of all message ids so far.
    Take(prop::sample::Index),
    TakeClaim(u64),
    Change(prop::sample::Index),
    /// Cancels one of all receive ids so far.
    Cancel(prop::sample::Index),
    CancelOf(u64),
}

/// Masks with more shapes than there are tables.
const MASKS: &[u64] = &[0, 0, 0, 0, u64::MAX, 1, 2, 3, 1 << 63, 0b110, u64::MAX << 1, 12];

fn pattern() -> impl Strategy<Value = Pattern> {
    let source = prop_oneof![3 => (0..3u64).prop_map(Some), 1 => Just(None)];
    (source, tag(), prop::sample::select(MASKS)).prop_map(|(source, tag, ignore)| Pattern {
        source,
        tag,
        ignore,
    })
}

fn tag() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..6u64, 1 => Just(1 << 63), 1 => Just(u64::MAX)]
}

fn call() -> impl Strategy<Value = Call> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        12 => pattern().prop_map(Call::Post),
        12 => (0..3u64, tag()).prop_map(|(source, tag)| Call::Arrive(source, tag)),
        1 => (0..3u64, any::<u8>()).prop_map(|(source, n)| Call::PostMany(source, n)),
        1 => (0..3u64, any::<u8>()).prop_map(|(source, n)| Call::ArriveMany(source, n)),
        1 => any::<u8>().prop_map(Call::Drain),
        2 => pattern().prop_map(Call::Receive),
        4 => pattern().prop_map(Call::Peek),
        4 => (pattern(), 0..3u64).prop_map(|(pattern, word)| Call::Claim(pattern, word)),
        3 => index().prop_map(Call::Take),
        2 => (0..3u64).prop_map(Call::TakeClaim),
        1 => index().prop_map(Call::Change),
        4 => index().prop_map(Call::Cancel),
        1 => (0..3u64).prop_map(Call::CancelOf),
    ]
}

/// A simple implementation of the matcher's guarantees, without optimisation.
#[derive(Default)]
struct Lists {
    receives: Vec<Receive>,
    messages: Vec<Message<u64>>,
    claims: Vec<(u64, Message<u64>)>,
    /// The ids of all receives so far.
    receive_ids: Vec<ReceiveId>,
    message_ids: Vec<MessageId>,
    count: u64,
}

impl Lists {
    fn find(&self, pattern: Pattern) -> Option<usize> {
        self.messages.iter().position(|message| pattern.fits(message.source, message.tag))
    }

    fn take(&mut self, id: MessageId) -> Option<Message<u64>> {
        if let Some(at) = self.messages.iter().position(|message| message.id == id) {
            return Some(self.messages.remove(at));
        }
        let at = self.claims.iter().position(|(_, message)| message.id == id)?;
        Some(self.claims.remove(at).1)
    }
}

fn owned(message: Option<Message<&u64>>) -> Option<Message<u64>> {
    let Message { id, source, tag, payload } = message?;
    Some(Message { id, source, tag, payload: *payload })
}

/// Returns a pattern in the form that the matcher returns: without the ignored bits.
fn plain(pattern: Pattern) -> Pattern {
    Pattern { tag: pattern.tag & !pattern.ignore, ..pattern }
}

fn post(matcher: &mut Matcher<u64>, lists: &mut Lists, pattern: Pattern) {
    lists.count += 1;
    let word = lists.count % 3;
    let expected = lists.find(pattern).map(|at| lists.messages.remove(at));
    match (matcher.post(pattern, word), expected) {
        (Post::Matched(message, returned), expected) => {
            assert_eq!((Some(message), returned), (expected, word));
        }
        (Post::Waiting(id), None) => {
            assert!(lists.receive_ids.iter().all(|earlier| *earlier < id));
            lists.receive_ids.push(id);
            lists.receives.push(Receive { id, pattern: plain(pattern), word });
        }
        (Post::Waiting(_), Some(missed)) => panic!("{pattern:?} fits {missed:?}"),
    }
}

fn arrive(matcher: &mut Matcher<u64>, lists: &mut Lists, source: u64, tag: u64) {
    lists.count += 1;
    let payload = lists.count;
    let first = lists.receives.iter().position(|receive| receive.pattern.fits(source, tag));
    let expected = first.map(|at| lists.receives.remove(at));
    // Every other message is reported by the call that lends the data of the receive.
    let arrival = match (payload % 2 == 0, expected) {
        (true, expected) => {
            let matched = matcher.arrive_with(source, tag, (), |word, ()| *word, |()| payload);
            assert_eq!(matched, expected.map(|receive| receive.word));
            match expected {
                Some(receive) => Arrival::Matched(receive, ()),
                None => Arrival::Kept(matcher.messages().map(|message| message.id).max().unwrap()),
            }
        }
        (false, _) => matcher.arrive(source, tag, (), |()| payload),
    };
    match (arrival, expected) {
        (Arrival::Matched(receive, ()), expected) => assert_eq!(Some(receive), expected),
        (Arrival::Kept(id), None) => {
            assert!(lists.message_ids.iter().all(|earlier| *earlier < id));
            lists.message_ids.push(id);
            lists.messages.push(Message { id, source, tag, payload });
        }
        (Arrival::Kept(_), Some(missed)) => panic!("{source}, {tag} is for {missed:?}"),
    }
}

fn run(matcher: &mut Matcher<u64>, lists: &mut Lists, call: Call) {
    match call {
        Call::Post(pattern) => post(matcher, lists, pattern),
        Call::Arrive(source, tag) => arrive(matcher, lists, source, tag),
        Call::PostMany(source, n) => {
            (0..u64::from(n)).for_each(|tag| post(matcher, lists, Pattern::exact(source, tag)));
        }
        Call::ArriveMany(source, n) => {
            (0..u64::from(n)).for_each(|tag| arrive(matcher, lists, source, tag));
        }
        Call::Drain(n) => {
            for _ in 0..n {
                let Some(last) = lists.messages.last() else { return };
                post(matcher, lists, Pattern::exact(last.source, last.tag));
            }
        }
        Call::Receive(pattern) => {
            let expected = lists.find(pattern).map(|at| lists.messages.remove(at));
            assert_eq!(matcher.receive(pattern), expected);
        }
        Call::Peek(pattern) => {
            let expected = lists.find(pattern).map(|at| lists.messages[at]);
            assert_eq!(owned(matcher.peek(pattern)), expected);
        }
        Call::Claim(pattern, word) => {
            let expected = lists.find(pattern).map(|at| lists.messages.remove(at));
            assert_eq!(owned(matcher.claim(pattern, word)), expected);
            lists.claims.extend(expected.map(|message| (word, message)));
        }
        Call::Take(which) => {
            if let Some(id) = pick(&lists.message_ids, which) {
                assert_eq!(matcher.take(id), lists.take(id));
            }
        }
        Call::TakeClaim(word) => {
            let expected = lists.claims.iter().find(|(own, _)| *own == word);
            let expected = expected.map(|(_, message)| message.id);
            assert_eq!(matcher.claim_of(word), expected);
            if let Some(id) = expected {
                assert_eq!(matcher.take(id), lists.take(id));
            }
        }
        Call::Change(which) => {
            let Some(id) = pick(&lists.message_ids, which) else { return };
            let claims = lists.claims.iter_mut().map(|(_, message)| message);
            let expected = lists.messages.iter_mut().chain(claims).find(|m| m.id == id);
            assert_eq!(owned(matcher.message(id)), expected.as_deref().copied());
            match (matcher.payload_mut(id), expected) {
                (Some(payload), Some(message)) => {
                    *payload += 1_000_000;
                    message.payload += 1_000_000;
                }
                (payload, message) => assert!(payload.is_none() && message.is_none()),
            }
        }
        Call::Cancel(which) => {
            let Some(id) = pick(&lists.receive_ids, which) else { return };
            let at = lists.receives.iter().position(|receive| receive.id == id);
            assert_eq!(matcher.cancel(id), at.map(|at| lists.receives.remove(at)));
        }
        Call::CancelOf(word) => {
            let of = matcher.receives().filter(|receive| *receive.word == word);
            let first = of.map(|receive| receive.id).min();
            let at = lists.receives.iter().position(|receive| receive.word == word);
            let expected = at.map(|at| lists.receives.remove(at));
            assert_eq!(first.and_then(|id| matcher.cancel(id)), expected);
        }
    }
}

fn pick<I: Copy>(ids: &[I], which: prop::sample::Index) -> Option<I> {
    (!ids.is_empty()).then(|| ids[which.index(ids.len())])
}

fn compare(matcher: &Matcher<u64>, lists: &Lists) {
    assert_eq!(matcher.posted(), lists.receives.len());
    assert_eq!(matcher.unexpected(), lists.messages.len());
    assert_eq!(matcher.claimed(), lists.claims.len());
    let mut receives: Vec<Receive> = matcher.receives().map(Receive::cloned).collect();
    receives.sort_by_key(|receive| receive.id);
    assert_eq!(receives, lists.receives);
    assert!(matcher.messages().filter_map(|m| owned(Some(m))).eq(lists.messages.iter().copied()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_matcher_does_what_lists_do(calls in prop::collection::vec(call(), 1..200)) {
        let (mut matcher, mut lists) = (Matcher::new(), Lists::default());
        for call in calls {
            run(&mut matcher, &mut lists, call);
        }
        compare(&matcher, &lists);
        // The rest is received in order.
        while let Some(message) = matcher.receive(Pattern::ANY) {
            assert_eq!(message, lists.messages.remove(0));
        }
        compare(&matcher, &lists);
    }
}
