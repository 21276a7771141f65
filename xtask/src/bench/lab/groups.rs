//! What is compared in the lab, and the aims. What a row's two sides do alike and what not is in its note.

use super::pair::{Figure, Pair, STREAM, Tool};
use crate::bench::groups::{Group, Unit};

/// Things that two programs do on the same device, measured in turn.
pub(super) struct Beside {
    pub(super) group: Group<Pair>,
    /// What is the same on every side, and what is not.
    pub(super) note: &'static str,
}

fn ours(test: &'static str, iterations: u64, figure: Figure) -> Pair {
    Pair { tool: Tool::Tieline, test, iterations, figure }
}

type Rival = (&'static str, Pair);

fn perftest(program: &'static str, test: &'static str, iterations: u64, figure: Figure) -> Rival {
    (program, Pair { tool: Tool::Perftest(program), test, iterations, figure })
}

fn ucx(test: &'static str, iterations: u64, figure: Figure) -> Rival {
    ("UCX uct rc_verbs", Pair { tool: Tool::Ucx, test, iterations, figure })
}

/// Ours beside each rival; the aim is towards the first.
fn beside(
    what: &'static str,
    unit: Unit,
    aim: Option<f64>,
    ours: Pair,
    rivals: Vec<Rival>,
    note: &'static str,
) -> Beside {
    let aims = std::iter::once(aim).chain(std::iter::repeat(None));
    let rivals = rivals.into_iter().zip(aims).map(|((rival, pair), aim)| (rival, pair, aim));
    Beside { group: Group::new(what, unit, ours, rivals.collect()), note }
}

/// Times and rates, small to large.
pub(super) fn speed() -> Vec<Beside> {
    vec![
        beside(
            "8 B put, there and back / 2",
            Unit::Time,
            Some(1.05),
            ours("put_lat --size 8", 1000, Figure::P50),
            vec![
                perftest("ib_write_lat", "-s 8", 1000, Figure::P50),
                ucx("put_lat -s 8 -D short", 1000, Figure::P50),
            ],
            "All three write to the other side and look at their own memory until the answer is there; the \
             payload goes inline. ib_write_lat waits for the completion of its write before it looks for the answer; \
             tieline and UCX take it afterwards.",
        ),
        beside(
            "8 B message, one way",
            Unit::Time,
            None,
            ours("am_lat --size 8", 1000, Figure::P50),
            vec![
                perftest("ib_send_lat", "-s 8", 1000, Figure::P50),
                ucx("am_lat -s 8 -D short", 1000, Figure::P50),
            ],
            "ib_send_lat moves bare sends into posted receives. A message of tieline (and of UCX) has a header, runs \
             a handler, counts credits and keeps a shared receive queue filled: 24 bytes instead of 8.",
        ),
        beside(
            "8 B fetch-add, waited for",
            Unit::Time,
            None,
            ours("fadd_lat", 1000, Figure::P50),
            vec![
                perftest("ib_atomic_lat", "", 1000, Figure::P50),
                ucx("fadd -s 8 -D short -O 1", 1000, Figure::P50),
            ],
            "One atomic by the device at a time, its completion waited for (tieline with TIELINE_ATOMICS=device).",
        ),
        beside(
            "64 KiB put",
            Unit::Bandwidth,
            Some(0.95),
            ours("put_bw --size 64k --window 128", 200, Figure::Bandwidth),
            vec![
                perftest("ib_write_bw", "-s 65536 -t 128", 200, Figure::Bandwidth),
                ucx("put_bw -s 65536 -D zcopy", 200, Figure::Bandwidth),
            ],
            "Registered memory on both sides. tieline and ib_write_bw keep 128 writes under way, UCX what its send queue \
             holds. ib_write_bw asks for one completion in a hundred writes, tieline for each.",
        ),
        beside(
            "64 KiB get",
            Unit::Bandwidth,
            None,
            ours("get_bw --size 64k --window 128", 200, Figure::Bandwidth),
            vec![perftest("ib_read_bw", "-s 65536 -t 128", 200, Figure::Bandwidth)],
            "As the put, by reads: 128 posted by either; the device serves fewer at a time.",
        ),
        beside(
            "8 B messages",
            Unit::Rate,
            Some(0.95),
            ours("am_bw --size 8", 6000, Figure::Rate),
            vec![
                perftest("ib_send_bw", "-s 8 -t 128 -I 188", 6000, Figure::Rate),
                ucx("am_bw -s 8 -D short", 6000, Figure::Rate),
            ],
            "ib_send_bw has 512 receives posted, 128 sends under way, and asks for one completion in a hundred; tieline's \
             credits let 32 messages be on their way at first, and up to 256 once they come in a stream.",
        ),
    ]
}

/// Instructions: counted once, because they do not depend on how busy the machine is.
pub(super) fn instructions() -> Vec<Kind> {
    vec![
        Kind {
            turn: beside(
                "8 B put: instructions of a turn",
                Unit::Instructions,
                None,
                ours("put_lat --size 8", 100, Figure::TurnPut),
                vec![
                    perftest("ib_write_lat", "-s 8", 100, Figure::TurnPut),
                    ucx("put_lat -s 8 -D short", 100, Figure::TurnPut),
                ],
                TURN,
            ),
            post: beside(
                "8 B put: of these, the post",
                Unit::Instructions,
                None,
                ours("put_bw --size 8", STREAM, Figure::PostPut),
                vec![
                    perftest("ib_write_bw", "-s 8 -I 188 -t 16", STREAM, Figure::PostPut),
                    ucx("put_bw -s 8 -D short", STREAM, Figure::PostPut),
                ],
                POST,
            ),
            rest: "8 B put: the rest, polls",
        },
        Kind {
            turn: beside(
                "8 B message: instructions of a turn",
                Unit::Instructions,
                None,
                ours("am_lat --size 8", 100, Figure::Turn),
                vec![
                    perftest("ib_send_lat", "-s 8", 100, Figure::Turn),
                    ucx("am_lat -s 8 -D short", 100, Figure::Turn),
                ],
                TURN,
            ),
            post: beside(
                "8 B message: of these, the post",
                Unit::Instructions,
                None,
                ours("am_bw --size 8", STREAM, Figure::PostMessage),
                vec![
                    perftest("ib_send_bw", "-s 8 -I 188", STREAM, Figure::PostMessage),
                    ucx("am_bw -s 8 -D short", STREAM, Figure::PostMessage),
                ],
                POST,
            ),
            rest: "8 B message: the rest, polls",
        },
    ]
}

/// The instructions of one kind of operation.
pub(super) struct Kind {
    pub(super) turn: Beside,
    pub(super) post: Beside,
    /// What the difference is called.
    pub(super) rest: &'static str,
}

const TURN: &str = "Instructions of the program in user mode from one doorbell to the next in a ping-pong: one operation \
    posted, one arrived and handled, its completion taken. Counted by single steps (xtask/src/steps.c) with the program \
    held after each doorbell until the answer is there; the least of 15 turns, so that no turn of a waiting loop is counted. The driver's library \
    is the same for all and counts in all; the clock's code, which is the kernel's, does not. The puts of tieline and UCX complete locally.";

const POST: &str = "From one doorbell to the next in a stream, where nothing was polled between and nothing had to wait: the \
    cost of posting alone, and of the loop. \
    The rest of a turn, the turn less the post, is what polling and handling cost.";
