//! The code of docs/guide.md and docs/from-ucp.md. The pages hold copies of parts of this file, and a test compares them.

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tieline::{
    Access, After, Close, Completion, CompletionError, Context, Descriptor, Endpoint, Error,
    KeyLookup, Outcome, PostError, SendOptions, Status, Worker,
};

type Result<T> = std::result::Result<T, Error>;

const GREETING: u16 = 1;
const BLOCK: u16 = 2;
const TASK: u16 = 3;

#[test]
fn hello() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let greeted = Rc::new(Cell::new(false));
    let seen = greeted.clone();
    worker.on_message(GREETING, move |message| {
        assert_eq!(message.payload(), b"hello");
        seen.set(true);
    })?;

    let me = worker.connect(&worker.address()?)?; // the peer's address, over a channel that only the job can read; here our own
    let _ = me.send(GREETING, 0, b"hello")?;
    let _ = worker.wait_until(|| greeted.get(), Some(Duration::from_secs(30)))?;
    assert!(greeted.get());
    Ok(())
}

#[test]
fn ranks() -> Result<()> {
    let job = tieline::Job::from_env()?; // tieline run, mpirun, srun or TIELINE_BOOTSTRAP; alone: rank 0 of 1
    let context = Context::open()?;
    let worker = context.worker()?;
    job.publish(1, &worker.address()?)?; // does not wait for the other ranks
    let next = (job.rank() + 1) % job.size();
    let next = worker.connect(&job.lookup(next, 1)?)?; // waits until that rank has published
    println!("reached by {}", next.path());
    Ok(())
}

#[test]
fn replies() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let answers = Rc::new(Cell::new(0));
    let sum = answers.clone();
    worker.on_message(1, |question| {
        let Some(back) = question.endpoint() else { return };
        // A handler may post, and make every call that does not wait, except a flush.
        let _ = back.send(2, question.header() * 2, b"");
    })?;
    worker.on_message(2, move |answer| sum.set(answer.header()))?;

    let me = worker.connect(&worker.address()?)?;
    let _ = me.send(1, 21, b"")?;
    let _ = worker.wait_until(|| answers.get() != 0, None)?;
    assert_eq!(answers.get(), 42);
    Ok(())
}

/// Posts an operation. `Retry` means that nothing was posted, so it makes progress and posts again.
fn accepted<T>(
    worker: &Worker,
    mut post: impl FnMut() -> std::result::Result<T, PostError>,
) -> Result<T> {
    loop {
        match post() {
            Err(PostError::Retry(_)) => drop(worker.progress()),
            other => return Ok(other?),
        }
    }
}

#[test]
fn many_messages() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let count = Rc::new(Cell::new(0));
    let seen = count.clone();
    worker.on_message(GREETING, move |_| seen.set(seen.get() + 1))?;
    let me = worker.connect(&worker.address()?)?;
    for n in 0..100_000 {
        let _ = accepted(&worker, || me.send(GREETING, n, b"many of these"))?;
    }
    let _ = worker.wait_until(|| count.get() == 100_000, None)?;
    Ok(())
}

#[test]
fn posted_later() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let sum = Rc::new(Cell::new(0));
    let total = sum.clone();
    worker.on_message(2, move |answer| total.set(total.get() + answer.header()))?;
    // The replies that a handler could not send; the loop below sends them.
    let backlog: Rc<RefCell<VecDeque<(Endpoint, u64)>>> = Rc::default();
    let later = backlog.clone();
    worker.on_message(1, move |question| {
        let Some(back) = question.endpoint() else { return };
        let answer = question.header() * 2;
        if let Err(PostError::Retry(_)) = back.send(2, answer, b"") {
            later.borrow_mut().push_back((back, answer));
        }
    })?;

    let me = worker.connect(&worker.address()?)?;
    for n in 0..10_000 {
        let _ = accepted(&worker, || me.send(1, n, b""))?;
    }
    let answered = || {
        let next = backlog.borrow_mut().pop_front();
        if let Some((back, answer)) = next {
            if let Err(PostError::Retry(_)) = back.send(2, answer, b"") {
                backlog.borrow_mut().push_front((back, answer));
            }
        }
        sum.get() == 2 * (0..10_000).sum::<u64>()
    };
    assert!(worker.wait_until(answered, None)?);
    Ok(())
}

#[test]
fn any_length() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let arrived = Rc::new(RefCell::new(None));
    let slot = arrived.clone();
    worker.on_message(BLOCK, move |message| {
        // A message above `max_message` is a rendezvous message: it has no payload yet.
        *slot.borrow_mut() = message.rendezvous();
    })?;
    let me = worker.connect(&worker.address()?)?;

    // Both sides register a buffer for the transfer (`register_transient`): the library makes no copy in between.
    let block = context.register_transient(vec![5; 10 << 20])?;
    let sent = me.send_regions(BLOCK, 0, &[(&block, 0..block.len())])?;

    let announced = worker.wait_for(|| arrived.borrow_mut().take(), None)?.unwrap();
    let room = context.register_transient(vec![0; announced.len()])?;
    let taken = announced.receive_into(&room, 0..room.len())?;
    let _ = worker.finish(taken)?;
    let _ = worker.finish(sent)?; // the block may be reused
    assert_eq!(room.into_buffer()?[..], [5; 10 << 20]);
    Ok(())
}

#[test]
fn heads() -> Result<()> {
    let (context, slot) = (Context::open()?, Rc::new(RefCell::new(None)));
    let worker = context.worker()?;
    let later = slot.clone();
    worker.on_message(TASK, move |message| {
        // Up to 32 bytes beside the 8-byte header; a rendezvous message has them as well.
        assert!(message.header_bytes().starts_with(b"matrix 7"));
        // The message counts as delivered when this is given, and not at the end of the handler.
        *later.borrow_mut() = message.acknowledgement();
    })?;
    let me = worker.connect(&worker.address()?)?;

    let options = SendOptions::new().header_bytes(b"matrix 7, row 12").delivered();
    let sent = me.send_with(TASK, 0, b"multiply", &options)?;
    let acknowledgement = worker.wait_for(|| slot.borrow_mut().take(), None)?.unwrap();
    // ... the task is done ...
    acknowledgement.give();
    let _ = worker.finish(sent)?;
    Ok(())
}

#[test]
fn notifications() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let me = worker.connect(&worker.address()?)?;
    worker.on_message(TASK, |message| assert_eq!(message.payload(), b"layer 3 is there"))?;
    let (cache, room) = (context.alloc(4096)?, context.alloc(4096)?);
    let key = me.import_key(&room.remote_key()?)?;
    let (first, second) = (me.put(&cache, 0..64, &key, 0)?, me.get(&cache, 64..128, &key, 64)?);
    // Sent when both operations are complete at the target, and never if one of them fails.
    let told = me.notify(After::Operations(&[&first, &second]), TASK, 3, b"layer 3 is there")?;
    // Sent after everything that was posted to the endpoint before.
    let last = me.notify(After::Everything, TASK, 4, b"layer 3 is there")?;
    let _ = (worker.finish(told)?, worker.finish(last)?);
    Ok(())
}

#[test]
fn first_part() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let arrived = Rc::new(RefCell::new(None));
    let slot = arrived.clone();
    worker.on_message(BLOCK, move |message| *slot.borrow_mut() = message.rendezvous())?;
    let me = worker.connect(&worker.address()?)?;
    let sent = me.send(BLOCK, 0, &vec![5; 10 << 20])?;
    let announced = worker.wait_for(|| arrived.borrow_mut().take(), None)?.unwrap();
    let (head, body) = (context.alloc(64)?, context.alloc(1 << 20)?);
    let taken = announced.receive_into_pieces(&[(&head, 0..64), (&body, 0..100_000)])?;
    let _ = worker.finish(taken)?;
    let _ = worker.finish(sent)?; // the receiver has what it requested
    assert_eq!((head.to_vec(0..64)?, body.to_vec(99_999..100_001)?), (vec![5; 64], vec![5, 0]));
    Ok(())
}

#[test]
fn ends() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let me = worker.connect(&worker.address()?)?;
    let there = context.alloc(4096)?;
    let key = me.import_key(&there.remote_key()?)?;

    // One operation: wait for it.
    let put = me.put_bytes(b"first", &key, 0)?;
    let _ = worker.finish(put)?;

    // Many operations: track each with a word, and take completions in the order of their ends.
    for block in 0..8 {
        let put = me.put_bytes(&[block; 64], &key, u64::from(block) * 64)?;
        worker.track(&put, block.into())?;
    }
    let mut open = 8;
    let all_ended = || {
        open -= worker.take_completed(64, |block, end| println!("block {block}: {end:?}"));
        open == 0
    };
    let _ = worker.wait_until(all_ended, None)?;

    // All operations: post them without tracking, and flush.
    for _ in 0..100 {
        let _ = accepted(&worker, || me.fetch_add(&key, 1024, 1))?;
    }
    worker.flush()?;
    assert_eq!(there.to_vec(1024..1025)?, [100]);
    Ok(())
}

#[test]
fn counted() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let me = worker.connect(&worker.address()?)?;
    let there = context.alloc(4096)?;
    let key = me.import_key(&there.remote_key()?)?;
    let counter = worker.completion_counter()?;
    for n in 0..16 {
        let put = me.put_bytes(&[n; 8], &key, u64::from(n) * 8)?;
        worker.count(&put, &counter)?;
    }
    let _ = worker.wait_until(|| counter.pending() == 0, None)?;
    counter.mark();
    let put = me.put_bytes(b"next", &key, 0)?;
    worker.count(&put, &counter)?;
    let _ = worker.wait_until(|| counter.pending() == 0, None)?;
    assert_eq!((counter.done_since_mark(), counter.failed_since_mark()), (1, 0));
    assert!(counter.first_failure().is_none()); // of the operations since the mark
    assert_eq!((counter.done(), counter.failed()), (17, 0));
    Ok(())
}

#[test]
fn memory() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let me = worker.connect(&worker.address()?)?;

    let window = context.alloc(1 << 20)?; // peers on this host access it by load and store
    let table = context.register_with(vec![0; 4096], Access::READ)?; // an existing buffer; peers may read
    let scratch = context.register_transient(vec![7; 4096])?; // local use only: no key for peers

    let key = me.import_key(&window.remote_key()?)?;
    let put = me.put(&scratch, 0..4096, &key, 0)?;
    let _ = worker.finish(put)?;
    let key = me.import_key(&table.remote_key()?)?;
    assert_eq!(me.put_bytes(b"no", &key, 0).unwrap_err().status(), Status::KeyRejected);

    let back: Box<[u8]> = scratch.into_buffer()?;
    assert_eq!(back[..], window.to_vec(0..4096)?);
    Ok(())
}

#[test]
fn keys_by_numbers() -> Result<()> {
    let context = Context::builder().publish_keys(true).open()?;
    let window = context.alloc(4096)?;
    window.publish(17)?; // a number of the application's choice
    let worker = context.worker()?;
    let there = worker.connect(&worker.address()?)?;
    // In the peer's process:
    let key = loop {
        match there.key_by_number(17)? {
            KeyLookup::Known(key) => break key,
            KeyLookup::Asked(asked) => _ = worker.finish(asked)?,
        }
    };
    let named = there.import_key(&window.remote_key_with_address()?)?;
    assert_eq!((key.address(), named.address()), (None, Some(window.as_ptr() as u64)));
    Ok(())
}

#[test]
#[allow(unsafe_code)]
fn by_address_and_lists() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let me = worker.connect(&worker.address()?)?;
    let (there, blocks) = (context.alloc(4096)?, context.register(vec![7; 4096])?);
    let key = me.import_key(&there.remote_key()?)?;
    // Memory by address: no region, and nothing to close.
    let mut numbers = [0u64; 512];
    // SAFETY: nothing else accesses `numbers` until `finish` has returned.
    let get = unsafe { me.get_raw(numbers.as_mut_ptr().cast(), 4096, &key, 0)? };
    let _ = worker.finish(get)?;

    // Many puts with one call and one completion.
    let list: Vec<_> = (0..64)
        .map(|n| Descriptor::new(&blocks, n * 64..n * 64 + 48, &key, 64 * n as u64))
        .collect();
    let put = me.put_list(&list)?;
    if let Err(error) = worker.finish(put) {
        println!("descriptor {:?} is the first that failed: {error}", error.index());
    }

    // The same list again: it is checked once and posted many times.
    let prepared = me.prepare_put_list(&list)?;
    for _ in 0..10 {
        let put = me.post_list(&prepared)?;
        let _ = worker.finish(put)?;
    }
    assert_eq!(there.to_vec(64..112)?, [7; 48]);
    Ok(())
}

#[test]
#[allow(unsafe_code)]
fn memory_of_the_caller() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let me = worker.connect(&worker.address()?)?;
    let (layout, start) = (Layout::from_size_align(1 << 20, 4096).unwrap(), 4096);
    // Memory whose lifetime the application manages: the heap of a runtime, a buffer passed to MPI_Send.
    // SAFETY: the layout has a size.
    let heap = unsafe { std::alloc::alloc_zeroed(layout) };
    // SAFETY: the memory is freed only after the region was closed.
    let region = unsafe { context.register_raw(heap, layout.size(), Access::ALL)? };

    let key = me.import_key(&region.remote_key()?)?;
    let put = me.put_bytes(b"from afar", &key, start)?; // `start` is an offset in the region, not a pointer
    let _ = worker.finish(put)?;

    drop(key);
    worker.close_region(region, Duration::from_secs(5))?; // no peer and no device accesses it after this
    // SAFETY: the memory was allocated with the same layout.
    unsafe { std::alloc::dealloc(heap, layout) };
    Ok(())
}

#[test]
fn telling() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let me = worker.connect(&worker.address()?)?;
    let there = context.alloc(64)?;
    let key = me.import_key(&there.remote_key()?)?;

    // The peer's handler runs after the bytes are visible.
    let told = Rc::new(Cell::new(None));
    let word = told.clone();
    worker.on_notification(move |_, what| word.set(Some(what)))?;
    let _ = me.put_bytes_notify(b"block", &key, 0, 7)?;
    let _ = worker.wait_until(|| told.get() == Some(7), None)?;

    // A peer that sees the flag also sees the block.
    let _ = me.put_bytes(b"block", &key, 8)?;
    me.fence()?;
    let _ = me.fetch_add(&key, 56, 1)?;
    let _ = worker.wait_word(&there, 56, |flag| flag == 1, None)?;
    assert_eq!(there.to_vec(8..13)?, b"block");
    Ok(())
}

/// Shows the reactions of a program to an operation that could not be posted.
fn post(worker: &Worker, peer: &Endpoint) -> Result<bool> {
    match peer.send(GREETING, 0, b"hello") {
        Ok(outcome) => drop(worker.finish(outcome)),
        Err(PostError::Retry(_)) => return Ok(false), // make progress, and send again
        Err(PostError::Correct(error)) => return Err(error), // this call will never succeed
        Err(PostError::Reconnect(error)) => return Err(error.into()), // this endpoint has ended, with the reason
        Err(PostError::Release(error)) => return Err(error), // memory or descriptors ran out here
    }
    Ok(true)
}

#[test]
fn failures() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let gone = Context::open()?;
    let other = gone.worker()?;
    other.on_message(GREETING, |_| {})?;
    let peer = worker.connect(&other.address()?)?;
    assert!(post(&worker, &peer)?);
    let _ = worker.wait_until(|| other.progress() > 0, None)?;

    worker.on_endpoint_failure(|endpoint, error| println!("{}: {error}", endpoint.id()));
    drop((other, gone));
    let error = loop {
        if let Err(error) = post(&worker, &peer) {
            break error;
        }
    };
    println!("{}\n  why: {}\n  what to do: {}", error.what(), error.why(), error.fix());
    Ok(())
}

#[test]
fn the_end() -> Result<()> {
    let context = Context::open()?;
    let worker = context.worker()?;
    worker.on_message(GREETING, |_| {})?;
    let me = worker.connect(&worker.address()?)?;
    let _ = me.send(GREETING, 0, b"the last one")?;
    let closed = me.close(Close::Flush)?; // posts an operation: the call does not wait
    drop(me);
    let _ = worker.finish(closed)?;
    if let Err(lost) = worker.close(Duration::from_secs(5)) {
        println!("{lost}"); // the operations that were not delivered in time
    }
    Ok(())
}

#[test]
fn from_ucp() -> Result<()> {
    let context = Context::open()?; // ucp_config_read, ucp_init, ucp_config_release
    let worker = context.worker()?; // ucp_worker_create
    worker.on_message(GREETING, |message| drop(message.keep()))?; // ucp_worker_set_am_recv_handler
    let address = worker.address()?; // ucp_worker_get_address
    let peer = worker.connect(&address)?; // ucp_ep_create
    let memory = context.alloc(1 << 16)?; // ucp_mem_map with UCP_MEM_MAP_ALLOCATE
    let packed = memory.remote_key()?; // ucp_rkey_pack
    let key = peer.import_key(&packed)?; // ucp_ep_rkey_unpack
    let local = context.register_transient(vec![1; 4096])?; // the buffer passed to ucp_put_nbx

    let put = peer.put_with(&local, 0..4096, &key, 0, Completion::Local)?; // ucp_put_nbx
    match put {
        Outcome::Done(_) => {} // UCS_OK: no completion follows
        Outcome::Pending(_) => worker.track(&put, 17)?, // the callback's user_data
    }
    let flush = peer.flush()?; // ucp_ep_flush_nbx
    let _ = worker.finish(flush)?; // ucp_request_check_status in a loop of ucp_worker_progress
    let _ = worker.take_completed(64, |user, end: std::result::Result<u64, CompletionError>| {
        assert!(user == 17 && end.is_ok());
    });
    let closed = peer.close(Close::Flush)?; // ucp_ep_close_nbx
    let _ = worker.finish(closed)?;
    Ok(())
}

#[test]
fn driven() -> Result<()> {
    let context = Context::open()?;
    let worker = context.driven_worker()?; // a progress thread is included
    let sum = Arc::new(AtomicU64::new(0));
    let total = sum.clone();
    worker.on_message(TASK, move |message| {
        let _ = total.fetch_add(message.header(), Ordering::Relaxed); // one handler at a time, outside the lock
    })?;
    let me = worker.connect(&worker.address()?)?;
    std::thread::scope(|threads| {
        for number in 1..=4 {
            let me = &me;
            let _ = threads.spawn(move || me.send(TASK, number, b"from any thread"));
        }
    });
    assert!(worker.wait_until(|| sum.load(Ordering::Relaxed) == 10, None)?);
    worker.close(Duration::from_secs(30))?;
    Ok(())
}

/// Returns the blocks of Rust code of a page.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line == "```rust" {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

#[test]
fn the_code_of_the_pages_is_that_of_this_file() {
    let whole = include_str!("guide.rs");
    // A block from a function's body is indented less on the page.
    let body: Vec<&str> =
        whole.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let body = body.join("\n");
    for (page, least) in
        [(include_str!("../../docs/guide.md"), 10), (include_str!("../../docs/from-ucp.md"), 1)]
    {
        let blocks = blocks(page);
        assert!(blocks.len() >= least, "{} blocks", blocks.len());
        for block in blocks {
            assert!(whole.contains(&block) || body.contains(&block), "not in the file:\n{block}");
        }
    }
}
