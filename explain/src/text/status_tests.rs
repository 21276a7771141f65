//! Tests of a status: its lines word for word, its JSON, its shortening and its aging.

use crate::snapshot::{
    Doing, EndpointStatus, FormingStatus, InterfaceStatus, PeerStatus, Status, Waits, WorkerStatus,
};
use std::collections::BTreeMap;

fn counters(names: &[(&str, u64)]) -> BTreeMap<String, u64> {
    names.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
}

fn busy_endpoint() -> EndpointStatus {
    EndpointStatus {
        peer: "process 9 on nodeb".into(),
        peer_worker: "0badcafe".into(),
        owner: "library".into(),
        state: "queueing".into(),
        message: "shm/ring".into(),
        lanes: vec!["shm/ring".into(), "shm-cma/cma".into()],
        open: 2,
        queued: 1,
        queued_bytes: 10_240,
        answers: 3,
        counters: counters(&[("refused", 4), ("sent", 5)]),
        waits: Some(Waits { for_what: "room".into(), ms: 61_000 }),
        error: Some("the cable is cut".into()),
        ..EndpointStatus::default()
    }
}

fn busy_worker() -> WorkerStatus {
    WorkerStatus {
        worker: "ab12cd34".into(),
        service: true,
        thread: 7,
        doing: Doing::Polls,
        age_ms: 1_000,
        pending: 6,
        untaken: 8,
        owed: 9,
        peers: 10,
        endpoints: vec![busy_endpoint()],
        more_endpoints: 11,
        forming: vec![FormingStatus {
            peer: "process 12".into(),
            module: "tcp:lo/stream".into(),
            by: "tcp-connect".into(),
            phase: "asked".into(),
            ms: 999,
            trouble: "refused by a firewall".into(),
        }],
        interfaces: vec![InterfaceStatus {
            path: "shm/ring".into(),
            peers: 13,
            bytes: 10_485_760,
            out_of_use: Some("its device is gone".into()),
        }],
        counters: counters(&[("malformed", 14)]),
        ..WorkerStatus::default()
    }
}

#[test]
fn everything_that_is_known_has_its_words() {
    let status = Status {
        pid: 4242,
        program: "solver".into(),
        version: "1.2.3".into(),
        context: "01020304".into(),
        open_ms: 3_600_000,
        workers: vec![busy_worker()],
        peers: vec![PeerStatus { text: "process 9 sleeps".into(), ..PeerStatus::default() }],
        unseen: 2,
        unread: 1,
        incomplete: true,
    };
    assert_eq!(
        status.to_string(),
        "process 4242 (solver), Tieline 1.2.3, context 01020304, open for 1 h 0 min\n\
         WAITS\n\
         \x20 2 operations to process 9 on nodeb, for 1 min 1 s (1.0 s ago): room\n\
         \x20 a connection to process 12 over tcp:lo/stream is being formed for 999 ms (1.0 s ago) by tcp-connect: asked; refused by a firewall\n\
         \x20 process 9 sleeps\n\
         4 workers are only partly known\n\
         the look ended before all was read: it has three seconds and 2 MiB for everything that is shown\n\
         2 workers found no place to show themselves in\n\
         \nWORKER ab12cd34 of the progress thread, thread 7, makes progress\n\
         \x20 6 operations pending, 10 peers known, 8 ended and not taken, 9 answers owed without a route, as of 1.0 s ago\n\
         \x20 to process 9 on nodeb (0badcafe), queueing, of the library, messages over shm/ring, open: shm/ring shm-cma/cma, \
         2 pending, 1 queued of 10 KiB, 3 answers wait, counted: refused 4, sent 5; the cable is cut\n\
         \x20 and 11 endpoints more\n\
         \x20 shm/ring: 13 peers, 10 MiB; its device is gone\n\
         \x20 counted: malformed 14\n"
    );
}

#[test]
fn empty_fields_produce_no_text() {
    let idle = EndpointStatus {
        peer: "process 9".into(),
        peer_worker: "0badcafe".into(),
        owner: "application".into(),
        state: "ready".into(),
        message: "shm/ring".into(),
        ..EndpointStatus::default()
    };
    let interface =
        InterfaceStatus { path: "shm/ring".into(), bytes: 10_239, ..Default::default() };
    let worker = WorkerStatus {
        worker: "ab12cd34".into(),
        thread: 7,
        age_ms: 999,
        endpoints: vec![idle],
        interfaces: vec![interface],
        ..WorkerStatus::default()
    };
    let mut status = Status { pid: 1, workers: vec![worker], ..Status::default() };
    assert_eq!(
        status.to_string(),
        "process 1, Tieline , context , open for 0 ms\n\
         no operation of the application is open\n\
         \nWORKER ab12cd34, thread 7\n\
         \x20 0 operations pending, 0 peers known\n\
         \x20 to process 9 (0badcafe), ready, messages over shm/ring\n\
         \x20 shm/ring: 0 peers, 10239 bytes\n"
    );
    status.workers.clear();
    assert!(status.to_string().ends_with("open for 0 ms\nit has no worker\n"), "{status}");
    status.unseen = 1;
    let words = "1 workers are only partly known\n1 workers found no place to show themselves in\n";
    assert!(status.to_string().ends_with(words), "{status}");
}

#[test]
fn activity_of_worker_is_shown_with_its_duration() {
    let does = |doing, waiting_ms| {
        let stuck = Some("D (disk sleep) in nfs_wait".to_owned());
        let worker =
            WorkerStatus { doing, doing_ms: 59_999, waiting_ms, stuck, ..WorkerStatus::default() };
        worker.does().unwrap_or_default()
    };
    assert_eq!(does(Doing::Asked, None), "");
    assert_eq!(does(Doing::Polls, None), "makes progress");
    let waits = "makes progress in a call that has waited for 1 h 59 min";
    assert_eq!(does(Doing::Polls, Some(2 * 3_600_000 - 1)), waits);
    assert_eq!(does(Doing::Sleeps, None), "has slept for 59.9 s");
    assert_eq!(does(Doing::Sleeps, Some(1_050)), "sleeps in a call that has waited for 1.0 s");
    assert!(does(Doing::Armed, None).ends_with(", for 59.9 s"));
    let seldom = does(Doing::NotCalled, None);
    assert!(seldom.starts_with("has made no progress for 59.9 s"), "{seldom}");
    assert!(seldom.ends_with("; its thread is D (disk sleep) in nfs_wait"), "{seldom}");
    assert_eq!(does(Doing::Stopped, None), "is of a process that is stopped by a signal");
    assert_eq!(does(Doing::Traced, None), "is of a process that is held by a debugger");
}

#[test]
fn second_line_names_halted_process_and_reason_for_unknown_worker() {
    let stopped = WorkerStatus { doing: Doing::Stopped, ..WorkerStatus::default() };
    let status = Status { workers: vec![stopped], ..Status::default() };
    let line = "the process is stopped by a signal; all below is as it was before";
    assert_eq!(status.to_string().lines().nth(1), Some(line));

    let why = Some("its text is damaged".to_owned());
    let unknown = WorkerStatus { unknown: why, doing: Doing::Polls, ..WorkerStatus::default() };
    assert_eq!(
        unknown.to_string(),
        "\nA WORKER of which nothing is known: its text is damaged, makes progress\n"
    );
}

#[test]
fn waiting_endpoint_is_shown_with_number_of_operations() {
    let waits = |open, answers, doing| {
        let worker = WorkerStatus {
            doing,
            age_ms: 2_000,
            endpoints: vec![EndpointStatus { open, answers, error: None, ..busy_endpoint() }],
            ..WorkerStatus::default()
        };
        let status = Status { workers: vec![worker], ..Status::default() };
        status.to_string().lines().nth(2).unwrap_or_default().trim().to_owned()
    };
    let to = "process 9 on nodeb, for 1 min 1 s";
    let polls = Doing::Polls;
    assert_eq!(
        waits(0, 0, polls),
        format!("a message of the library's own to {to} (2.0 s ago): room")
    );
    assert_eq!(waits(0, 1, polls), format!("an answer to {to} (2.0 s ago): room"));
    assert_eq!(waits(0, 2, polls), format!("2 answers to {to} (2.0 s ago): room"));
    assert_eq!(waits(1, 9, polls), format!("an operation to {to} (2.0 s ago): room"));
    // The state of a sleeping worker has not changed since the text was written.
    for asleep in [Doing::Sleeps, Doing::Armed, Doing::Asked] {
        assert_eq!(waits(5, 0, asleep), format!("5 operations to {to}: room"));
    }
}

#[test]
fn all_of_it_is_there_for_programs() {
    let status = Status { pid: 4242, workers: vec![busy_worker()], ..Status::default() };
    let read: serde_json::Value = serde_json::from_str(&status.to_json()).unwrap();
    assert_eq!(read["pid"], 4242);
    assert_eq!(read["workers"][0]["endpoints"][0]["waits"]["ms"], 61_000);
    assert_eq!(read["workers"][0]["forming"][0]["trouble"], "refused by a firewall");
    let worker: WorkerStatus = serde_json::from_str(&busy_worker().to_json()).unwrap();
    assert_eq!(worker, busy_worker());
}

#[test]
fn connections_are_halved_until_text_fits() {
    let one = busy_worker().forming.remove(0);
    let whole = WorkerStatus { forming: vec![one; 64], ..WorkerStatus::default() };
    let (most, bare) = (
        serde_json::to_vec(&whole).unwrap().len(),
        serde_json::to_vec(&WorkerStatus::default()).unwrap().len(),
    );
    let kept = |room: usize| {
        let text = whole.clone().fit(room)?;
        Some(serde_json::from_slice::<WorkerStatus>(&text).unwrap().forming.len())
    };
    assert_eq!(kept(most), Some(64));
    assert_eq!(kept(most - 1), Some(32));
    assert_eq!(kept(bare + (most - bare) / 3), Some(16));
    assert_eq!(kept(bare), Some(0));
    assert_eq!(kept(bare - 1), None);
}

#[test]
fn aging_extends_waits_and_ended_operations_wait_for_nothing() {
    let mut worker = busy_worker();
    worker.grow_older(5);
    assert_eq!(worker.endpoints[0].waits.as_ref().unwrap().ms, 61_005);
    assert_eq!(worker.forming[0].ms, 1_004);
    worker.ends_operations();
    let endpoint = &worker.endpoints[0];
    assert_eq!(
        (worker.pending, endpoint.open, endpoint.queued, endpoint.queued_bytes),
        (0, 0, 0, 0)
    );
    assert!(endpoint.waits.is_some(), "its answers still wait");
    worker.endpoints[0].answers = 0;
    worker.ends_operations();
    assert_eq!(worker.endpoints[0].waits, None);
}
