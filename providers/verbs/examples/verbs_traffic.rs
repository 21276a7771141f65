//! A stream of messages and puts from rank 0 to rank 1, to observe failures on the network path.
//!
//! ```text
//! TIELINE_BOOTSTRAP=nodea:29400 TIELINE_SIZE=2 TIELINE_RANK=0 verbs_traffic 5      # seconds
//! TIELINE_BOOTSTRAP=nodea:29400 TIELINE_SIZE=2 TIELINE_RANK=1 verbs_traffic 5 20   # looks every 20 ms only
//! ```
//!
//! With `revoke` as a third argument, rank 1 drops its region in mid-stream, while rank 0 still puts into it.
//!
//! Rank 1 checks that every message arrives once, in order and unmodified. If the connection fails, both ranks print the reason and
//! exit with status 3. They also print the time for closing everything afterwards.

use std::cell::{Cell, RefCell};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline::{Context, Error, Job, PostError, Status, Worker};

const STREAM: u16 = 1;
const END: u16 = 2;
const MESSAGE: usize = 1500;
const REGION: usize = 64 << 10;

fn main() -> ExitCode {
    match run() {
        Ok(Ok(words)) => {
            println!("{words}");
            ExitCode::SUCCESS
        }
        Ok(Err(failed)) => {
            println!("closed within {:.1?}", failed.elapsed());
            ExitCode::from(3)
        }
        Err(error) => {
            println!("failed: {error}");
            ExitCode::from(3)
        }
    }
}

/// Returns the result of the stream, or the time at which the stream failed.
fn run() -> Result<Result<String, Instant>, Error> {
    let argument = |n| std::env::args().nth(n).and_then(|text| text.parse::<u64>().ok());
    let seconds = Duration::from_secs(argument(1).unwrap_or(5));
    let pause = Duration::from_millis(argument(2).unwrap_or(0));
    let job = Job::from_env()?;
    let context = Context::open()?;
    let worker = context.worker()?;
    let ended = if job.rank() == 0 {
        send(&job, &context, &worker, seconds)
    } else {
        receive(&job, &context, &worker, pause)
    };
    Ok(ended.map_err(|error| {
        println!("failed: {error}");
        Instant::now()
    }))
}

fn content(number: u64) -> [u8; MESSAGE] {
    [number as u8; MESSAGE]
}

fn send(job: &Job, context: &Context, worker: &Worker, seconds: Duration) -> Result<String, Error> {
    let source = context.alloc(REGION)?;
    let addresses = job.exchange(&worker.address()?)?;
    let keys = job.exchange(&[])?;
    let peer = worker.connect(&addresses[1])?;
    let key = peer.import_key(&keys[1])?;
    let until = Instant::now() + seconds;
    let (mut sent, mut told) = (0u64, false);
    while Instant::now() < until {
        match peer.send(STREAM, sent, &content(sent)) {
            Ok(_) => sent += 1,
            Err(PostError::Retry(_)) => {
                let _ = worker.progress();
            }
            Err(error) => return Err(error.into()),
        }
        if sent % 64 == 0 {
            let _ = worker.finish(peer.put(&source, 0..REGION, &key, 0)?)?;
        }
        if sent > 200 && !told {
            told = true;
            println!("running by {}", peer.message_path());
        }
    }
    loop {
        match peer.send(END, sent, b"") {
            Err(error) if error.status() == Status::Again => {
                let _ = worker.progress();
            }
            other => {
                let _ = worker.finish(other?)?;
                break;
            }
        }
    }
    job.barrier()?;
    Ok(format!("sent {sent}"))
}

fn receive(
    job: &Job,
    context: &Context,
    worker: &Worker,
    pause: Duration,
) -> Result<String, Error> {
    let mut target = Some(context.alloc(REGION)?);
    let revokes = std::env::args().nth(3).is_some_and(|text| text == "revoke");
    let (next, end) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(None)));
    let trouble: Rc<RefCell<Option<Error>>> = Rc::default();
    let (count, wrong) = (next.clone(), trouble.clone());
    worker.on_message(STREAM, move |message| {
        let number = message.header();
        if number != count.get() || message.payload() != content(number) {
            let why = format!("message {number} came when {} was due", count.get());
            *wrong.borrow_mut() = Some(Error::new(Status::BadData, "the stream is wrong", why, ""));
        }
        count.set(count.get() + 1);
    })?;
    let last = end.clone();
    worker.on_message(END, move |message| last.set(Some(message.header())))?;
    let failure = trouble.clone();
    worker.on_peer_failure(move |_, error| {
        let _ = failure.borrow_mut().get_or_insert_with(|| error.clone());
    });
    let _ = job.exchange(&worker.address()?)?;
    let key = target.as_ref().map(|target| target.remote_key()).transpose()?;
    let _ = job.exchange(&key.unwrap_or_default())?;
    while end.get().is_none() {
        if let Some(error) = trouble.borrow_mut().take() {
            return Err(error);
        }
        let _ = worker.progress();
        if revokes && next.get() > 300 {
            drop(target.take());
        }
        std::thread::sleep(pause);
    }
    job.barrier()?;
    let (count, expected) = (next.get(), end.get().unwrap_or(0));
    if count != expected {
        let why = format!("{count} of {expected} came");
        return Err(Error::new(Status::BadData, "messages were lost", why, ""));
    }
    Ok(format!("received {count} in order"))
}
