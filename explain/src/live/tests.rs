use super::read::{clean, parse, read};
use super::room::Room;
use super::sys::{Mapped, memory_file, reserve};
use super::*;
use crate::snapshot::{
    Doing, EndpointStatus, MOST_SHOWN, PeerStatus, Status, Waits, WorkerStatus, cut,
};
use std::fs::File as Opened;
use std::sync::Arc;
use tieline_testing::holds_in_child;

fn file() -> Arc<File> {
    File::create(&[7; 16], None).unwrap()
}

fn worker(name: &str) -> WorkerStatus {
    WorkerStatus { worker: name.into(), ..WorkerStatus::default() }
}

fn text(status: &WorkerStatus) -> Vec<u8> {
    status.clone().fit(MOST_TEXT).unwrap()
}

fn waiting(peer: &str, ms: u64) -> EndpointStatus {
    let waits = Some(Waits { for_what: "room in shm/ring".into(), ms });
    EndpointStatus { peer: peer.into(), open: 3, waits, ..EndpointStatus::default() }
}

/// Makes a memory file with foreign contents.
fn foreign(len: usize, change: impl FnOnce(&Mapped)) -> Opened {
    let fd = memory_file(NAME, len).unwrap();
    reserve(&fd, 0, len).unwrap();
    change(&Mapped::new(&fd, 0, len).unwrap());
    Opened::from(fd)
}

fn set(mapped: &Mapped, at: usize, value: u64) {
    mapped.word(at).store(value, std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn published_worker_state_is_read_back_unchanged() {
    let file = file();
    let page = file.place().unwrap();
    let mut status = worker("ab12cd34");
    status.endpoints.push(waiting("process 9", 5));
    assert!(page.write(&text(&status), now_ns()));
    page.polled(41, 2);
    let shown = own(&file).unwrap();
    assert_eq!((shown.context.as_str(), shown.pid), ("07070707", std::process::id()));
    let seen = &shown.workers[0];
    assert_eq!((seen.worker.as_str(), seen.polls, seen.doing), ("ab12cd34", 41, Doing::Asked));
    assert_eq!(seen.endpoints[0].peer, "process 9");
}

#[test]
fn a_worker_that_is_gone_is_not_shown_and_its_place_is_the_next_ones() {
    let file = file();
    let (first, second) = (file.place().unwrap(), file.place().unwrap());
    assert!(first.write(&text(&worker("first")), now_ns()));
    assert!(second.write(&text(&worker("second")), now_ns()));
    drop(first);
    let names = |file: &File| -> Vec<String> {
        own(file).unwrap().workers.into_iter().map(|worker| worker.worker).collect()
    };
    assert_eq!(names(&file), ["second"]);
    let third = file.place().unwrap();
    assert!(third.write(&text(&worker("third")), now_ns()));
    assert_eq!(names(&file), ["third", "second"]);
}

#[test]
fn more_workers_than_there_are_places_are_counted() {
    let file = file();
    let pages: Vec<_> = (0..PLACES).map(|_| file.place().unwrap()).collect();
    assert!(file.place().is_none());
    assert_eq!(own(&file).unwrap().unseen, 1);
    drop(pages);
    assert!(file.place().is_some());
}

#[test]
fn a_forked_child_changes_nothing_of_what_its_parent_shows() {
    let file = file();
    let mut page = file.place();
    assert!(page.as_ref().unwrap().write(&text(&worker("parent")), now_ns()));
    assert!(holds_in_child(|| {
        let page = page.take().unwrap();
        !page.write(&text(&worker("child")), now_ns())
    }));
    assert_eq!(own(&file).unwrap().workers[0].worker, "parent");
}

/// Reads a whole file, as an observer in another process does.
fn seen(
    file: &Opened,
    before: Option<&[(usize, read::Words)]>,
    holds: Option<Doing>,
) -> Option<Status> {
    read(file, before, holds, &mut Room::without_bounds())
}

#[test]
fn two_observations_reveal_activity_of_worker() {
    let file = file();
    let page = file.place().unwrap();
    assert!(page.write(&text(&worker("it")), now_ns()));
    page.polled(1, 0);
    let opened = file.opened().unwrap();
    let before = read::used(opened, &mut Room::without_bounds());
    let doing = |holds| seen(opened, Some(&before), holds).unwrap().workers[0].doing;
    assert_eq!(doing(None), Doing::NotCalled);
    assert_eq!(doing(Some(Doing::Stopped)), Doing::Stopped);
    page.polled(2, 0);
    assert_eq!(doing(None), Doing::Polls);
    page.sleeps(now_ns(), false);
    assert_eq!(doing(None), Doing::Sleeps);
    page.sleeps(now_ns(), true);
    assert_eq!(doing(None), Doing::Armed);
    page.awakes();
    assert_eq!(doing(None), Doing::Polls, "whatever it does now, it does not sleep");
    page.waits(now_ns());
    let waits = || seen(opened, Some(&before), None).unwrap().workers[0].waiting_ms.is_some();
    assert!(waits());
    page.waits(0);
    assert!(!waits());
}

/// Makes a page with a text that is this number of seconds old and contains a waiting operation; `polls` is the poll count in the
/// text.
fn page_of(file: &Arc<File>, polls: u64, seconds: u64) -> Page {
    let page = file.place().unwrap();
    page.polled(polls, 3);
    let mut status = WorkerStatus { polls, ..worker("it") };
    status.endpoints.push(waiting("process 9", 5));
    assert!(page.write(&text(&status), now_ns() - seconds * 1_000_000_000));
    page
}

#[test]
fn waits_in_text_age_only_while_worker_sleeps() {
    let file = file();
    // The host may have started less than a minute ago.
    let page = page_of(&file, 7, 12);
    let opened = file.opened().unwrap();
    let before = read::used(opened, &mut Room::without_bounds());
    let look = || seen(opened, Some(&before), None).unwrap();
    page.sleeps(now_ns() - 12_000_000_000, false);
    let first_line = |status: &Status| status.to_string().lines().nth(2).unwrap().to_owned();
    let line = first_line(&look());
    assert!(line.starts_with("  3 operations to process 9, for 12."), "{line}");
    // The application computes, so it is unknown whether the operation still waits.
    page.awakes();
    let line = first_line(&look());
    assert!(line.starts_with("  3 operations to process 9, for 5 ms (12."), "{line}");
    let it = &look().workers[0];
    assert_eq!((it.doing, it.age_ms / 1000), (Doing::NotCalled, 12));
    // The worker has made progress since, and an operation is open.
    page.polled(8, 1);
    let before = read::used(opened, &mut Room::without_bounds());
    let status = seen(opened, Some(&before), None).unwrap();
    assert_eq!(status.workers[0].doing_ms, 250, "more is not known");
    assert!(first_line(&status).contains("for 5 ms (12."), "{status}");
    // After further progress no operation is open.
    page.polled(9, 0);
    let status = look();
    assert_eq!((status.workers[0].pending, status.workers[0].endpoints[0].open), (0, 0));
    assert!(status.to_string().contains("no operation of the application is open"), "{status}");
}

#[test]
fn a_text_is_whole_while_the_next_one_is_made_however_long_that_takes() {
    let file = file();
    let page = page_of(&file, 1, 0);
    let place = Mapped::new(file.opened().unwrap(), HEAD, PLACE).unwrap();
    let texts = place.word(AT_TEXTS).load(std::sync::atomic::Ordering::Relaxed);
    // A writer is stopped in the middle of the next text.
    place.write(slot(texts + 1) + AT_TEXT, b"{\"worker\":\"oth");
    set(&place, slot(texts + 1) + AT_LEN, 4000);
    assert_eq!(own(&file).unwrap().workers[0].worker, "it");
    // Long and short texts alternate.
    for n in 0..6 {
        let name = "x".repeat(if n % 3 == 0 { 20_000 } else { n });
        assert!(page.write(&text(&worker(&name)), now_ns()));
        assert_eq!(own(&file).unwrap().workers[0].worker, name);
    }
}

#[test]
fn a_worker_that_is_closed_shows_nothing_more_though_somebody_holds_it() {
    let file = file();
    let page = page_of(&file, 1, 0);
    page.give_back();
    assert_eq!(own(&file).unwrap().workers, []);
    let other = file.place().unwrap();
    assert!(other.write(&text(&worker("other")), now_ns()));
    page.polled(2, 1);
    page.sleeps(now_ns(), true);
    assert!(!page.write(&text(&worker("it")), now_ns()));
    drop(page);
    let shown = own(&file).unwrap();
    assert_eq!((shown.workers.len(), shown.workers[0].worker.as_str()), (1, "other"));
    assert_eq!((shown.workers[0].polls, shown.workers[0].doing), (0, Doing::Asked));
}

#[test]
fn a_text_that_does_not_fit_has_fewer_endpoints_and_says_how_many() {
    let mut status = worker("it");
    status.endpoints = (0..1000).map(|n| waiting(&format!("process {n}"), 9)).collect();
    let bytes = status.fit(MOST_TEXT).unwrap();
    assert!(bytes.len() <= MOST_TEXT);
    let kept = parse(&bytes);
    assert!(kept.endpoints.len() > 50);
    assert_eq!(kept.endpoints.len() + kept.more_endpoints, 1000);
    assert!(worker(&"x".repeat(MOST_TEXT)).fit(MOST_TEXT).is_none());
}

#[test]
fn a_file_that_is_none_or_lies_about_lengths_is_read_without_harm() {
    assert!(seen(&foreign(HEAD + PLACE, |_| {}), None, None).is_none(), "no magic");
    assert!(seen(&foreign(16, |_| {}), None, None).is_none(), "too short");
    let lies = foreign(HEAD + PLACE + 1, |mapped| {
        set(mapped, AT_MAGIC, MAGIC);
        set(mapped, AT_PID, 1);
        set(mapped, HEAD + AT_USED, 1);
        set(mapped, HEAD + slot(0) + AT_LEN, u64::MAX);
        set(mapped, HEAD + slot(0) + AT_WRITTEN, u64::MAX);
        set(mapped, HEAD + AT_ASLEEP, u64::MAX);
        set(mapped, HEAD + AT_WAITING, u64::MAX);
    });
    let shown = seen(&lies, None, None).unwrap();
    assert_eq!(shown.workers.len(), 1);
    let text = shown.to_string();
    assert!(text.contains("nothing is known: its text is none that this version reads"), "{text}");
    assert!(text.contains("1 workers are only partly known"), "{text}");
    let silent = foreign(HEAD + PLACE, |mapped| {
        set(mapped, AT_MAGIC, MAGIC);
        set(mapped, HEAD + AT_USED, 1);
    });
    let text = seen(&silent, None, None).unwrap().to_string();
    assert!(text.contains("it has not shown itself yet"), "{text}");
}

#[test]
fn hostile_text_cannot_exhaust_memory_of_reader() {
    let many = |what: &str| format!("{{\"{what}\":[{}{{}}]}}", "{},".repeat(9000));
    for what in ["endpoints", "forming", "interfaces"] {
        let it = parse(many(what).as_bytes());
        let all = it.endpoints.len() + it.forming.len() + it.interfaces.len();
        assert_eq!((all, it.unknown), (MOST_SHOWN, None), "{what}");
    }
    assert_eq!(parse(many("endpoints").as_bytes()).more_endpoints, 9001 - MOST_SHOWN);
    let lanes = format!("{{\"endpoints\":[{{\"lanes\":[{}\"\"]}}]}}", "\"\",".repeat(9000));
    assert_eq!(parse(lanes.as_bytes()).endpoints[0].lanes.len(), MOST_SHOWN);
    let counters: Vec<String> = (0..3000).map(|n| format!("\"c{n}\":1")).collect();
    let counters = format!("{{\"counters\":{{{}}}}}", counters.join(","));
    assert_eq!(parse(counters.as_bytes()).counters.len(), MOST_SHOWN);
    // The file has more workers than one observation reads.
    let full = foreign(HEAD + 40 * PLACE, |mapped| {
        set(mapped, AT_MAGIC, MAGIC);
        (0..40).for_each(|at| set(mapped, HEAD + at * PLACE + AT_USED, 1));
    });
    let mut room = Room::of(30 * 2048 + 40 * WORDS, std::time::Duration::from_secs(1000));
    let shown = read(&full, None, None, &mut room).unwrap();
    assert_eq!((shown.workers.len(), shown.unread), (30, 10));
}

#[test]
fn a_text_that_is_written_while_it_is_read_is_never_a_mixture() {
    let file = file();
    let page = file.place().unwrap();
    assert!(page.write(&text(&worker("a")), now_ns()));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                for worker in own(&file).unwrap().workers {
                    let same = |c: char| worker.worker.starts_with(c);
                    let changes = worker.unknown.is_some();
                    assert!(changes || worker.worker.chars().all(same), "{}", worker.worker);
                    seen += 1;
                }
            }
            seen
        });
        for n in 0..20_000u32 {
            let letter = char::from(b'a' + (n % 26) as u8);
            let name = letter.to_string().repeat(1 + n as usize % 300);
            assert!(page.write(&text(&worker(&name)), now_ns()));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
}

#[test]
fn hostile_text_is_shown_without_control_characters() {
    let status = parse(br#"{"worker":"a\u001b[2J\nb\u202e","endpoints":[{"peer":"x\ry"}]}"#);
    assert_eq!((status.worker.as_str(), status.endpoints[0].peer.as_str()), ("a?[2J?b?", "x?y"));
    assert_eq!(clean("plain ä"), "plain ä");
}

#[test]
fn unknown_fields_are_ignored_and_missing_fields_are_empty() {
    let status = parse(br#"{"worker":"ab","news":[1,2],"pending":3}"#);
    assert_eq!((status.worker.as_str(), status.pending, status.peers), ("ab", 3, 0));
}

#[test]
fn waiting_operations_come_first_with_their_duration() {
    let mut it = worker("ab12cd34");
    it.endpoints.push(waiting("process 9 on nodeb", 0));
    it.grow_older(12_340);
    it.doing = Doing::Sleeps;
    let text = "process 9 (ring) is stopped".to_owned();
    let peers = vec![PeerStatus { text, ..PeerStatus::default() }];
    let status = Status { pid: 8, workers: vec![it], peers, ..Status::default() };
    let text = status.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], "WAITS");
    assert_eq!(lines[2], "  3 operations to process 9 on nodeb, for 12.3 s: room in shm/ring");
    assert_eq!(lines[3], "  process 9 (ring) is stopped");
}

#[test]
fn a_process_that_is_not_there_and_one_without_a_context_are_told_apart() {
    let error = status_of(u32::MAX).unwrap_err();
    assert!(error.to_string().contains("is not there"), "{error}");
    // Process 1 has no context of this library, whether or not it may be inspected.
    let error = status_of(1).unwrap_err();
    let words = error.to_string();
    assert!(words.contains("cannot be looked into") || words.contains("shows nothing"), "{words}");
}

#[test]
fn a_text_may_be_as_long_as_its_slot_and_end_with_a_page() {
    let file = file();
    let page = file.place().unwrap();
    let lens = || {
        let place = Mapped::new(file.opened().unwrap(), HEAD, PLACE).unwrap();
        let word = |at| place.word(at).load(std::sync::atomic::Ordering::Relaxed);
        word(slot(word(AT_TEXTS)) + AT_LEN)
    };
    assert!(!page.write(&vec![b' '; MOST_TEXT + 1], now_ns()));
    for len in [MOST_TEXT, 4096 - WORDS - AT_TEXT, MOST_TEXT, MOST_TEXT, 8192 - WORDS - AT_TEXT] {
        assert!(page.write(&vec![b' '; len], now_ns()), "{len}");
        assert_eq!(lens(), len as u64);
    }
    // The first text of a place uses the second slot, and the next text ends with the page of the words.
    let second = file.place().unwrap();
    assert!(second.write(b"{}", now_ns()));
    assert!(second.write(&vec![b' '; 4096 - WORDS - AT_TEXT], now_ns()));
}

#[test]
fn a_text_that_others_may_have_chosen_is_cut_between_characters() {
    assert_eq!(cut(&"x".repeat(300)), "x".repeat(300));
    assert_eq!(cut(&"x".repeat(301)), format!("{}...", "x".repeat(300)));
    assert_eq!(cut(&format!("{}\u{e4}", "x".repeat(299))), format!("{}...", "x".repeat(299)));
    assert_eq!(cut(&"\u{e4}".repeat(150)), "\u{e4}".repeat(150));
}

#[test]
fn bidi_control_characters_are_replaced_in_their_whole_range() {
    for turns in "\u{61c}\u{200e}\u{200f}\u{2028}\u{202e}\u{2066}\u{2069}".chars() {
        assert_eq!(clean(&format!("a{turns}b")), "a?b", "{turns:?}");
    }
    assert_eq!(clean("a\u{200d}\u{2010}\u{202f}\u{206a}b"), "a\u{200d}\u{2010}\u{202f}\u{206a}b");
}

proptest::proptest! {
    #[test]
    fn no_bytes_of_a_text_do_harm(bytes in proptest::collection::vec(0u8..=255, 0..400)) {
        let _ = parse(&bytes).to_string();
    }

    #[test]
    fn no_change_of_a_good_text_does_harm(at in 0usize..400, byte in 0u8..=255, cut_at in 0usize..600) {
        let mut status = worker("ab");
        status.endpoints.push(waiting("process 9", 4));
        let mut bytes = text(&status);
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(cut_at);
        let _ = parse(&bytes).to_string();
    }

    #[test]
    fn no_words_of_a_file_do_harm(places in proptest::collection::vec((0usize..HEAD + 128, 0u64..=u64::MAX), 0..40)) {
        let odd = foreign(HEAD + 2 * PLACE, |mapped| {
            set(mapped, AT_MAGIC, MAGIC);
            set(mapped, HEAD + AT_USED, 1);
            for (at, value) in &places {
                set(mapped, at & !7, *value);
            }
        });
        if let Some(status) = seen(&odd, None, None) {
            let _ = status.to_string();
        }
    }
}
