//! Tests of the lookup of workers by their names, and of the cost of a hundred thousand ranks that are known by name.

mod sys;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};
use tieline::{ConnectError, Context, Error, PeerId, Status, Waited, Worker, WorkerName};
use tieline_testing::built;

const RANKS: usize = 100_000;
/// Longer than a lookup takes.
const LONG: Duration = Duration::from_secs(10);
/// The memory limit for a rank without contact, in bytes.
const MOST: isize = 64;

fn worker() -> Result<Worker, Error> {
    let context = Context::builder().set("TIELINE_TCP_INTERFACES", "127.0.0.0/8").open()?;
    Ok(context.worker()?)
}

/// Returns the names of `RANKS` ranks as bytes: the name of an existing worker, each with a different proof.
fn carried(name: &WorkerName) -> Vec<u8> {
    let mut all = vec![0; RANKS * WorkerName::MAX_LEN];
    for (rank, place) in all.chunks_exact_mut(WorkerName::MAX_LEN).enumerate() {
        place[..name.as_bytes().len()].copy_from_slice(name.as_bytes());
        let proof = u64::from_le_bytes(place[2..10].try_into().unwrap()) ^ rank as u64;
        place[2..10].copy_from_slice(&proof.to_le_bytes());
    }
    all
}

#[test]
fn a_hundred_thousand_ranks_that_never_talk_take_at_most_64_bytes_each() -> Result<(), Error> {
    let (us, rank_0) = (worker()?, worker()?);
    let carried = carried(&rank_0.name()?);
    let (before, begun) = (sys::held(), Instant::now());
    let mut names = Vec::with_capacity(RANKS);
    for name in carried.chunks_exact(WorkerName::MAX_LEN) {
        names.push(WorkerName::from_bytes(name)?);
    }
    let (took, each) = (begun.elapsed(), (sys::held() - before) / RANKS as isize);
    println!("{RANKS} names: {each} bytes each, {took:?} together");
    assert!(each <= MOST, "{each} bytes");
    assert_eq!(names.len(), RANKS);
    // An abandoned or completed call holds no memory either.
    drop(us.ask_name(&names[0])?);
    let before = sys::held();
    for name in &names[1..20] {
        drop(us.ask_name(name)?);
    }
    assert!(sys::held() - before < MOST, "{} bytes are left", sys::held() - before);
    Ok(())
}

/// Makes progress on two workers until `done`.
fn until(workers: [&Worker; 2], done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        let _ = workers.map(Worker::progress);
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not happen");
    }
}

#[test]
fn connected_peers_know_the_names_that_exist_and_others_have_none() -> Result<(), Error> {
    let (named, plain) = (worker()?, worker()?);
    let before = plain.connect(&named.address()?)?;
    assert_eq!(plain.name_of_peer(before.peer())?, None, "it has no name yet");
    let name = named.name()?;
    assert_eq!(plain.name_of_peer(before.peer())?, None, "it is not connected yet");
    let (third, came) = (worker()?, Rc::new(Cell::new(None)));
    let seen = came.clone();
    third.on_message(5, move |message| seen.set(Some(message.peer())))?;
    // The receiver learns the name from the connection, and the sender from the address.
    let out = named.connect(&third.address()?)?;
    let _ = out.send(5, 0, b"")?;
    until([&named, &third], || came.get().is_some());
    assert_eq!(third.name_of_peer(came.get().unwrap())?, Some(name));
    assert_eq!(named.name_of_peer(out.peer())?, None);
    let back = worker()?;
    let there = back.connect(&named.address()?)?;
    assert_eq!(back.name_of_peer(there.peer())?, Some(name));
    let nobody = PeerId::from_number(1000);
    assert_eq!(back.name_of_peer(nobody).unwrap_err().status(), Status::Invalid);
    Ok(())
}

/// Returns a worker over one transport.
fn worker_over(providers: &str) -> Result<Worker, Error> {
    let context = Context::builder().set("TIELINE_TCP_INTERFACES", "127.0.0.0/8");
    let context = match built::folder(&built::TCP) {
        Ok(folder) => context.set("TIELINE_PROVIDER_PATH", &folder.display().to_string()),
        Err(_) => context,
    };
    Ok(context.set("TIELINE_PROVIDERS", providers).open()?.worker()?)
}

#[test]
fn peers_that_knew_a_worker_without_a_name_learn_its_name_once() -> Result<(), Error> {
    let tcp = built::folder(&built::TCP).is_ok();
    if !tcp {
        println!("skipped: over tcp");
    }
    for providers in ["shm", "tcp,tcp-connect"].into_iter().take(1 + usize::from(tcp)) {
        let late = worker_over(providers)?;
        let address = late.address()?;
        // One peer sends to the worker, the worker sends to another, and a third one connects only later.
        let [sender, receiver, later] =
            [worker_over(providers)?, worker_over(providers)?, worker_over(providers)?];
        let came = Rc::new(Cell::new(0));
        for worker in [&late, &receiver] {
            let seen = came.clone();
            worker.on_message(5, move |_| seen.set(seen.get() + 1))?;
        }
        let (to, from) = (sender.connect(&address)?, late.connect(&receiver.address()?)?);
        let _ = (to.send(5, 0, b"")?, from.send(5, 0, b"")?);
        until([&late, &sender], || came.get() >= 1);
        until([&late, &receiver], || came.get() == 2);
        let seen = receiver.connect(&address)?.peer();
        assert_eq!(receiver.name_of_peer(seen)?, None, "{providers}");
        let name = Some(late.name()?);
        until([&late, &sender], || sender.name_of_peer(to.peer()) == Ok(name));
        until([&late, &receiver], || receiver.name_of_peer(seen) == Ok(name));
        let to = later.connect(&address)?;
        assert_eq!(later.name_of_peer(to.peer())?, None, "the address was written before");
        let _ = to.send(5, 0, b"")?;
        until([&late, &later], || later.name_of_peer(to.peer()) == Ok(name));
        assert_eq!([&sender, &receiver, &later].map(|peer| peer.counters().malformed), [0; 3]);
    }
    Ok(())
}

#[test]
fn the_one_rank_that_is_talked_to_is_found_by_its_name() -> Result<(), Error> {
    let (us, them) = (worker()?, worker()?);
    let name = WorkerName::from_bytes(&carried(&them.name()?)[..WorkerName::MAX_LEN])?;
    let call = us.ask_name(&name)?;
    let begun = Instant::now();
    let endpoint = loop {
        let _ = them.progress();
        match call.test() {
            Some(found) => break found?,
            None => assert!(begun.elapsed() < Duration::from_secs(60), "nobody answered"),
        }
    };
    println!("found in {:?}", begun.elapsed());
    let sent = endpoint.flush_messages()?;
    us.track(&sent, 7)?;
    let mut told = None;
    while told.is_none() {
        let _ = (us.progress(), them.progress());
        let _ = us.take_completed(1, |word, result| told = Some((word, result.is_ok())));
    }
    assert_eq!(told, Some((7, true)));
    assert!(call.test().is_none(), "it is told once");
    drop(them);
    // The listener closes with its context.
    assert_eq!(refused(&us, &name, &[])?.status(), Status::PeerFailed);
    Ok(())
}

/// Returns the error of a refused request, while these workers make progress.
fn refused(us: &Worker, name: &WorkerName, others: &[&Worker]) -> Result<Error, Error> {
    let call = us.ask_name(name)?;
    loop {
        others.iter().for_each(|other| _ = other.progress());
        match call.test() {
            Some(found) => return Ok(found.expect_err("nobody is there").into()),
            None => std::thread::yield_now(),
        }
    }
}

#[test]
fn workers_of_a_context_answer_for_each_other_and_for_none_that_is_closed() -> Result<(), Error> {
    let context = Context::builder().set("TIELINE_TCP_INTERFACES", "127.0.0.0/8").open()?;
    let (us, first, second) = (worker()?, context.worker()?, context.worker()?);
    let (one, other) = (first.name()?, second.name()?);
    assert_ne!(one, other);
    assert_eq!(first.name()?, one, "it is the same every time");
    for name in [one, other] {
        let call = us.ask_name(&name)?;
        while call.test().map(|found| found.map(drop)).transpose()?.is_none() {
            let _ = second.progress();
        }
    }
    drop(first);
    let gone = refused(&us, &one, &[&second])?;
    assert_eq!(gone.status(), Status::PeerFailed);
    assert!(gone.why().contains("no such worker"), "{gone}");
    Ok(())
}

/// No worker that could answer remains, while the context stays open.
#[test]
fn listener_closes_with_last_named_worker_and_reopens() -> Result<(), Error> {
    for thread in ["off", "on"] {
        let context = Context::builder().set("TIELINE_TCP_INTERFACES", "127.0.0.0/8");
        let context = context.set("TIELINE_PROGRESS_THREAD", thread).open()?;
        let (us, first, silent) = (worker()?, context.worker()?, context.worker()?);
        let name = first.name()?;
        drop(first);
        let gone = refused(&us, &name, &[])?;
        assert_eq!(gone.status(), Status::PeerFailed, "{gone}");
        assert!(gone.why().contains("refused"), "{gone}");
        let again = us.ask_name(&silent.name()?)?;
        while again.test().map(|found| found.map(drop)).transpose()?.is_none() {
            let _ = silent.progress();
        }
    }
    Ok(())
}

const FEW_FILES: &str = "TIELINE_TEST_FEW_FILES";

/// A process that resolves a thousand ranks concurrently is in this situation.
#[test]
fn lookup_without_descriptors_does_not_report_missing_process() -> Result<(), Error> {
    if std::env::var_os(FEW_FILES).is_none() {
        let limited = "ulimit -n 96; exec \"$0\" --exact \"$1\"";
        let test = "lookup_without_descriptors_does_not_report_missing_process";
        let mut shell = std::process::Command::new("sh");
        let _ = shell.args(["-c", limited]).arg(std::env::current_exe().unwrap()).arg(test);
        assert!(shell.env(FEW_FILES, "1").status().unwrap().success());
        return Ok(());
    }
    let (us, them) = (worker()?, worker()?);
    let (name, mut calls) = (them.name()?, Vec::new());
    let starved = loop {
        assert!(calls.len() < 96, "as many as there are descriptors");
        let refused = match us.ask_name(&name) {
            Ok(call) => {
                let ended = call.test();
                calls.push(call);
                ended.map(|found| found.expect_err("nobody answers"))
            }
            Err(refused) => Some(refused),
        };
        if let Some(refused) = refused {
            break refused;
        }
    };
    assert!(matches!(starved, ConnectError::Release(_)), "{starved}");
    assert!(starved.to_string().contains("ulimit -n"), "{starved}");
    // When descriptors are free again, the lookup continues.
    calls.truncate(1);
    let again = us.ask_name(&name)?;
    while again.test().map(|found| found.map(drop)).transpose()?.is_none() {
        let _ = them.progress();
    }
    Ok(())
}

/// The other worker answers only when this one sleeps.
#[test]
fn open_lookup_wakes_a_worker_that_sleeps() -> Result<(), Error> {
    let ((sends, named), (ends, is_over)) = (channel(), channel::<()>());
    let other = std::thread::spawn(move || -> Result<(), Error> {
        let them = worker()?;
        sends.send((them.name()?, them.waker()?)).expect("the test waits for the name");
        let is_over = || is_over.try_recv() == Err(TryRecvError::Disconnected);
        assert!(them.wait_until(is_over, Some(LONG))?, "the lookup ended");
        Ok(())
    });
    let us = worker()?;
    let (name, waker) = named.recv().expect("the other thread sends its name");
    let call = us.ask_name(&name)?;
    let found = loop {
        match call.test() {
            Some(found) => break found?,
            None => assert_ne!(us.wait(Some(LONG))?, Waited::TimeIsUp, "the lookup is open"),
        }
    };
    drop((found, ends));
    waker.wake();
    other.join().expect("the other thread asserts")
}

/// As when it computes and has no progress thread.
#[test]
fn lookup_of_idle_worker_times_out() -> Result<(), Error> {
    let (them, here) = (worker()?, Context::builder());
    let here = here.set("TIELINE_TCP_INTERFACES", "127.0.0.0/8");
    let us = here.set("TIELINE_CONNECT_TIMEOUT", "200ms").open()?.worker()?;
    let late = refused(&us, &them.name()?, &[])?;
    assert_eq!(late.status(), Status::TimedOut, "{late}");
    Ok(())
}
