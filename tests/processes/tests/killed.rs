//! Tests of peers that are killed by SIGKILL.

use tieline_processes::node::milliseconds;
use tieline_processes::{BOUND_MS, Node, Test, Verdict, named};

pub(crate) const TESTS: &[Test] = named![
    peer_killed_while_idle_is_noticed_and_operations_are_refused,
    a_peer_that_never_wrote_is_reported_when_it_is_killed,
    a_peer_killed_in_the_middle_of_a_message_stream_ends_the_stream,
    sender_killed_in_mid_stream_is_reported_to_receiver,
    a_peer_killed_in_the_middle_of_a_1_gib_put_by_single_copy_ends_it,
    a_peer_killed_in_the_middle_of_an_emulated_1_gib_put_ends_it,
    target_continues_after_process_killed_in_mid_put,
    peer_killed_before_accept_fails_posted_operations,
    a_peer_killed_before_anybody_connects_is_refused_as_gone,
];

fn within_bound(what: &str, killed: u64, noticed: u64) {
    assert!(noticed > killed, "{what} came {} ms before the kill", milliseconds(noticed, killed));
    let took = milliseconds(killed, noticed);
    println!("    {what}: {took:.2} ms after the kill (promised: 1000)");
    assert!(took < BOUND_MS, "{what} took {took} ms");
}

/// Two processes that exchange requests and answers without end.
struct Bystanders {
    asks: Node,
    answers: Node,
}

impl Bystanders {
    fn start(victim: &mut Node) -> Bystanders {
        let (mut asks, mut answers) = (Node::start("asks"), Node::start("answers"));
        for node in [&mut asks, &mut answers] {
            node.connect(victim);
            let victim_name = victim.peer.name.clone();
            let _ = node.must(&format!("send {victim_name} 1 0 8"));
        }
        asks.connect(&mut answers);
        let _ = asks.must("chat answers");
        let mut this = Bystanders { asks, answers };
        this.go_on();
        this
    }

    /// Waits until the processes have exchanged more messages than before.
    fn go_on(&mut self) {
        let count = |node: &mut Node| node.must("pongs").parse::<u64>().expect("a number");
        let before = count(&mut self.asks);
        while count(&mut self.asks) < before + 100 {}
        self.asks.nothing_was_wrong();
        self.answers.nothing_was_wrong();
    }

    fn end(mut self) {
        self.go_on();
        self.asks.end();
        self.answers.end();
    }
}

/// Starts a survivor and a victim that know each other, with memory of the victim.
fn pair(settings: &[&str]) -> (Node, Node) {
    let (mut survivor, mut victim) =
        (Node::with("survivor", settings), Node::with("victim", settings));
    survivor.connect(&mut victim);
    victim.connect(&mut survivor);
    let _ = victim.must("send survivor 1 0 8");
    let _ = survivor.must("ping victim");
    let _ = survivor.must("register here 4096");
    let _ = victim.must("alloc shared 4096");
    let _ = victim.must("register plain 4096");
    let _ = survivor.import(&mut victim, "shared");
    let _ = survivor.import(&mut victim, "plain");
    (survivor, victim)
}

fn everything_is_refused(survivor: &mut Node) {
    for key in ["shared", "plain"] {
        let statuses = survivor.must(&format!("post-all victim victim.{key} here"));
        for posted in statuses.split(',') {
            assert!(posted.ends_with("=PeerFailed"), "{statuses}");
        }
    }
    assert_eq!(survivor.must("pending"), "0");
    assert!(survivor.must("error victim").starts_with("PeerFailed"));
}

fn peer_killed_while_idle_is_noticed_and_operations_are_refused() -> Verdict {
    let (mut survivor, mut victim) = pair(&[]);
    let mut bystanders = Bystanders::start(&mut victim);
    survivor.peer.tell("failures 1");
    let killed = victim.kill();
    let noticed = survivor.answer().expect("on_peer_failure is called");
    within_bound("on_peer_failure", killed, noticed.at);
    assert!(noticed.text.ends_with("PeerFailed"), "{}", noticed.text);
    assert_eq!(noticed.text.split(';').count(), 1, "called once");
    let failed = survivor.try_ask("await-error victim").expect("the endpoint fails");
    within_bound("the endpoint's failure", killed, failed.at);
    everything_is_refused(&mut survivor);
    bystanders.go_on();
    bystanders.end();
    survivor.end();
    Verdict::Passed
}

fn a_peer_that_never_wrote_is_reported_when_it_is_killed() -> Verdict {
    let (mut survivor, mut victim) = (Node::start("survivor"), Node::start("victim"));
    survivor.connect(&mut victim);
    let _ = survivor.must("send victim 1 0 8");
    survivor.peer.tell("failures 1");
    let killed = victim.kill();
    let noticed = survivor.answer().expect("on_peer_failure is called");
    within_bound("on_peer_failure", killed, noticed.at);
    assert!(noticed.text.ends_with("PeerFailed"), "{}", noticed.text);
    survivor.end();
    Verdict::Passed
}

fn a_peer_killed_in_the_middle_of_a_message_stream_ends_the_stream() -> Verdict {
    for len in [8, 4000] {
        let (mut survivor, mut victim) = pair(&[]);
        let mut bystanders = Bystanders::start(&mut victim);
        survivor.peer.tell(&format!("stream victim 1000000000 {len}"));
        let _ = survivor.peer.expect("streaming");
        bystanders.go_on();
        let killed = victim.kill();
        let failed = survivor.answer().expect_err("the stream cannot end well");
        assert_eq!(failed.status, "PeerFailed", "{failed:?}");
        within_bound(&format!("the end of a stream of {len} bytes"), killed, failed.at);
        everything_is_refused(&mut survivor);
        bystanders.end();
        survivor.end();
    }
    Verdict::Passed
}

fn sender_killed_in_mid_stream_is_reported_to_receiver() -> Verdict {
    let (mut survivor, mut victim) = pair(&[]);
    victim.peer.tell("stream survivor 1000000000 100");
    let _ = victim.peer.expect("streaming");
    survivor.peer.tell("failures 1");
    let killed = victim.kill();
    let noticed = survivor.answer().expect("on_peer_failure is called");
    within_bound("on_peer_failure", killed, noticed.at);
    survivor.nothing_was_wrong();
    // Messages that had arrived before the victim's death were delivered; messages in the victim's queue were lost.
    assert!(survivor.must("counted").parse::<u64>().expect("a number") > 0);
    everything_is_refused(&mut survivor);
    survivor.end();
    Verdict::Passed
}

fn in_the_middle_of_a_1_gib_put(settings: &[&str], path: &str, watch: &str) {
    let (mut survivor, mut victim) = pair(settings);
    let _ = survivor.must(&format!("register large {}", 1 << 30));
    let _ = survivor.must("fill here 1");
    let _ = victim.must(&format!("register large {}", 1 << 30));
    assert_eq!(survivor.import(&mut victim, "large"), path);
    // The first report says that the put has begun.
    let _ = survivor.must("swap-local large 1");
    let mut bystanders = Bystanders::start(&mut victim);
    victim.peer.tell(&format!("watch large 0 {watch}"));
    let _ = victim.peer.expect("watching");
    survivor.peer.tell(&format!("put victim.large large 0 {} 0", 1 << 30));
    let _ = survivor.peer.expect("begins");
    let _ = victim.answer().expect("the first word changes");
    let killed = victim.kill();
    let failed = survivor.answer().expect_err("half a put is none");
    assert_eq!(failed.status, "PeerFailed", "{failed:?}");
    within_bound(&format!("a 1 GiB put by {path}"), killed, failed.at);
    everything_is_refused(&mut survivor);
    bystanders.go_on();
    bystanders.end();
    survivor.end();
}

fn a_peer_killed_in_the_middle_of_a_1_gib_put_by_single_copy_ends_it() -> Verdict {
    // The kill happens once while the victim computes, and once while it makes progress and helps with the copy.
    in_the_middle_of_a_1_gib_put(&[], "shm-cma/copy", "compute");
    in_the_middle_of_a_1_gib_put(&[], "shm-cma/copy", "progress");
    Verdict::Passed
}

fn a_peer_killed_in_the_middle_of_an_emulated_1_gib_put_ends_it() -> Verdict {
    in_the_middle_of_a_1_gib_put(
        &["TIELINE_PROVIDERS=^shm-cma"],
        "emulated over shm/ring",
        "progress",
    );
    Verdict::Passed
}

fn target_continues_after_process_killed_in_mid_put() -> Verdict {
    for settings in [&[][..], &["TIELINE_PROVIDERS=^shm-cma"]] {
        let (mut survivor, mut victim) = pair(settings);
        let mut bystanders = Bystanders::start(&mut survivor);
        let _ = victim.must(&format!("register large {}", 256 << 20));
        let _ = victim.must("swap-local large 1");
        let _ = survivor.must(&format!("register large {}", 256 << 20));
        let _ = victim.import(&mut survivor, "large");
        survivor.peer.tell("watch large 0 progress");
        let _ = survivor.peer.expect("watching");
        victim.peer.tell(&format!("put survivor.large large 0 {} 0", 256 << 20));
        let _ = victim.peer.expect("begins");
        let _ = survivor.answer().expect("the first word changes");
        survivor.peer.tell("failures 1");
        let killed = victim.kill();
        let noticed = survivor.answer().expect("on_peer_failure is called");
        within_bound("on_peer_failure", killed, noticed.at);
        everything_is_refused(&mut survivor);
        bystanders.go_on();
        bystanders.end();
        survivor.end();
    }
    Verdict::Passed
}

fn peer_killed_before_accept_fails_posted_operations() -> Verdict {
    let (mut survivor, mut victim) = (Node::start("survivor"), Node::start("victim"));
    survivor.connect(&mut victim);
    let _ = victim.must("passive");
    // The message is in the socket, and in memory that was not read yet.
    let _ = survivor.must("send victim 1 0 8");
    survivor.peer.tell("ping victim");
    let killed = victim.kill();
    let failed = survivor.answer().expect_err("nobody answers");
    assert_eq!(failed.status, "PeerFailed", "{failed:?}");
    within_bound("a question to one who never accepted", killed, failed.at);
    let again = survivor.ask("send victim 1 0 8").expect_err("it is gone");
    assert_eq!(again.status, "PeerFailed");
    survivor.end();
    Verdict::Passed
}

fn a_peer_killed_before_anybody_connects_is_refused_as_gone() -> Verdict {
    let (mut survivor, mut victim) = (Node::start("survivor"), Node::start("victim"));
    survivor.connect(&mut victim);
    let killed = victim.kill();
    let failed = survivor.try_ask("send victim 1 0 8").expect_err("nobody is there");
    assert_eq!(failed.status, "PeerFailed", "{failed:?}");
    within_bound("the first message to one who is gone", killed, failed.at);
    assert_eq!(survivor.must("pending"), "0");
    survivor.end();
    Verdict::Passed
}
