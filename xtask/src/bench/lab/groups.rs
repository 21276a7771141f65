//! The comparisons in the lab, and the aims. The note of a row states what its two sides have in common and how they differ.

use super::Measured;
use super::pair::{self, Figure, Pair, STREAM, Tool};
use crate::bench::groups::Group;

/// The words of `tieline perf --test`, of a program of perftest, and of `ucx_perftest -t` if it has such a test.
type Words = [&'static str; 3];

/// Compares a figure of Tieline with perftest and UCX, with the same number of iterations; the aim refers to perftest.
fn beside(
    what: &'static str,
    (figure, iterations): (Figure, u64),
    aim: impl Into<Option<f64>>,
    [ours, perftest, ucx]: Words,
    note: &'static str,
) -> Measured {
    let pair = |tool, test| Pair { tool, test, iterations, figure };
    let (program, options) = perftest.split_once(' ').unwrap_or((perftest, ""));
    let mut rivals = vec![(program, pair(Tool::Perftest(program), options), aim.into())];
    if !ucx.is_empty() {
        rivals.push(("UCX uct rc_verbs", pair(Tool::Ucx, ucx), None));
    }
    let group = Group::new(what, figure.unit(), pair(Tool::Tieline, ours), rivals);
    Measured { group, series: Vec::new(), note }
}

pub(super) fn speed() -> Vec<Measured> {
    vec![
        beside(
            "8 B put, there and back / 2",
            (Figure::P50, 1000),
            1.05,
            ["put_lat --size 8", "ib_write_lat -s 8", "put_lat -s 8 -D short"],
            "All three write to the other side and look at their own memory until the answer is there; the \
             payload is inline. ib_write_lat waits for the completion of its write first; \
             tieline and UCX reap it afterwards.",
        ),
        beside(
            "8 B message, one way",
            (Figure::P50, 1000),
            None,
            ["am_lat --size 8", "ib_send_lat -s 8", "am_lat -s 8 -D short"],
            "ib_send_lat moves bare sends into posted receives. A message of tieline (and of UCX) has a header, runs \
             a handler, counts credits and keeps a shared receive queue filled: 24 bytes instead of 8.",
        ),
        beside(
            "8 B fetch-add, waited for",
            (Figure::P50, 1000),
            None,
            ["fadd_lat", "ib_atomic_lat", "fadd -s 8 -D short -O 1"],
            "One atomic by the device at a time, its completion waited for (tieline with TIELINE_ATOMICS=device).",
        ),
        beside(
            "64 KiB put",
            (Figure::Bandwidth, 200),
            0.95,
            [
                "put_bw --size 64k --window 128",
                "ib_write_bw -s 65536 -t 128",
                "put_bw -s 65536 -D zcopy",
            ],
            "Registered memory on both sides. tieline and ib_write_bw keep 128 writes under way, UCX what its send queue \
             holds. ib_write_bw asks for one completion in a hundred writes, tieline for each.",
        ),
        beside(
            "64 KiB get",
            (Figure::Bandwidth, 200),
            None,
            ["get_bw --size 64k --window 128", "ib_read_bw -s 65536 -t 128", ""],
            "As the put, by reads: 128 posted by either; the device serves fewer at a time.",
        ),
        beside(
            "8 B messages",
            (Figure::Rate, 6000),
            0.95,
            ["am_bw --size 8", "ib_send_bw -s 8 -t 128 -I 188", "am_bw -s 8 -D short"],
            "ib_send_bw has 512 receives posted and 128 sends under way, and asks for one completion in a \
             hundred. tieline's credits allow 32 messages under way at first, and up to 256 once they come in a stream.",
        ),
    ]
}

/// Returns the groups of instructions, which are counted once, because they do not depend on the load of the machine.
pub(super) fn instructions() -> Vec<Kind> {
    let turn = |what, figure, words| beside(what, (figure, 100), None, words, TURN);
    let post = |what, figure, words| beside(what, (figure, STREAM), None, words, POST);
    vec![
        Kind {
            turn: turn(
                "8 B put: instructions of a turn",
                pair::TURN_PUT,
                ["put_lat --size 8", "ib_write_lat -s 8", "put_lat -s 8 -D short"],
            ),
            post: post(
                "8 B put: of these, the post",
                pair::POST_PUT,
                ["put_bw --size 8", "ib_write_bw -s 8 -I 188 -t 16", "put_bw -s 8 -D short"],
            ),
            rest: "8 B put: the rest, polls",
        },
        Kind {
            turn: turn(
                "8 B message: instructions of a turn",
                pair::TURN,
                ["am_lat --size 8", "ib_send_lat -s 8", "am_lat -s 8 -D short"],
            ),
            post: post(
                "8 B message: of these, the post",
                pair::POST_MESSAGE,
                ["am_bw --size 8", "ib_send_bw -s 8 -I 188", "am_bw -s 8 -D short"],
            ),
            rest: "8 B message: the rest, polls",
        },
    ]
}

pub(super) struct Kind {
    pub(super) turn: Measured,
    pub(super) post: Measured,
    /// The label of the row with the difference between a turn and a post.
    pub(super) rest: &'static str,
}

const TURN: &str = "Instructions of the program in user mode from one doorbell to the next in a ping-pong: one operation \
    posted, one arrived and handled, its completion taken. Counted by single steps (xtask/src/steps.c) with the program \
    held after each doorbell until the answer is there; the least of 15 turns, so that no turn of a waiting loop is counted. The driver's library \
    is the same for all and counts in all; the clock's code, which is the kernel's, does not. The puts of tieline and UCX complete locally.";

const POST: &str = "From one doorbell to the next in a stream, where nothing was polled between and nothing had to wait: the \
    cost of posting alone, and of the loop. \
    The rest of a turn, the turn less the post, is what polling and handling cost.";
