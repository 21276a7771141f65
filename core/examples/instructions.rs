//! The cost of an operation in instructions. The program runs under callgrind, which counts instructions independently of the
//! machine's load. `cargo xtask instructions` runs the program and compares the results.
//!
//! `instructions list` names the cases. `instructions CASE N` executes a case N times (N is rounded down to a multiple of 16), and
//! `valgrind --tool=callgrind --toggle-collect='*measured_CASE*'` counts it. A case that is listed as `CASE/16` is executed once
//! for every 16 of N, because one execution is long.
//!
//! | case | what is counted |
//! |---|---|
//! | `post`, `poll` | the sending of an 8-byte message, and its delivery to the handler, 16 messages at a time |
//! | `one_send`, `one_poll` | the same, one message at a time: `one_poll` is one call of `progress` |
//! | `idle` | a call of `progress` that finds nothing |
//! | `kib` | a message of 1 KiB, sent and delivered, one at a time |
//! | `put`, `fetch_add` | an operation of 8 bytes on memory of `Context::alloc` |
//! | `rendezvous` | a message above the eager limit, both ends together: announced, received into a region, confirmed |
//! | `list` | a piece of 64 bytes in a put of 256 pieces |
//! | `put_raw`, `get_raw` | a put and a get of 8 bytes of ordinary memory, by its address |
//! | `list_new`, `list_again` | a descriptor of 64 bytes in a list of 256 puts: checked and posted, and posted again as a prepared list |

#![allow(unsafe_code)] // memory by address, and the clock

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use tieline::{
    Context, Descriptor, Endpoint, Error, Outcome, PreparedList, Region, RemoteKey, Rendezvous,
    Worker,
};

/// The time at which the counted operations began, in nanoseconds of the monotonic clock; zero before it.
static BEGAN: AtomicI64 = AtomicI64::new(0);

/// The number by which the time of this process is divided after [`BEGAN`].
const SLOWER: i64 = 1024;

/// The clocks of this process. While operations are counted, the time passes more slowly than the real time, because callgrind and
/// a loaded machine slow the program down. So the work that depends on the time is not more than without them.
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(
    clock: libc::clockid_t,
    now: *mut libc::timespec,
) -> libc::c_int {
    // SAFETY: the arguments are those of the caller.
    let outcome = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, now) as libc::c_int };
    let began = BEGAN.load(Ordering::Relaxed);
    if outcome == 0
        && began != 0
        && matches!(clock, libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_COARSE)
    {
        // SAFETY: the caller passes a valid pointer, and the system has written there.
        let now = unsafe { &mut *now };
        let time = began + (nanoseconds(now) - began) / SLOWER;
        (now.tv_sec, now.tv_nsec) = (time / 1_000_000_000, time % 1_000_000_000);
    }
    outcome
}

fn nanoseconds(time: &libc::timespec) -> i64 {
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Lets the time pass more slowly from now on.
fn slow_time_down() {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the record outlives the call.
    let _ = unsafe { clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    BEGAN.store(nanoseconds(&now), Ordering::Relaxed);
}

const CASES: [&str; 14] = [
    "post",
    "poll",
    "one_send",
    "one_poll",
    "idle",
    "kib",
    "put",
    "fetch_add",
    "rendezvous/16",
    "list",
    "put_raw",
    "get_raw",
    "list_new",
    "list_again",
];
const BATCH: usize = 16;
const PIECES: usize = 256;
const PIECE_BYTES: usize = 64;

#[inline(never)]
fn measured_post(endpoint: &Endpoint) -> Result<(), Error> {
    for i in 0..BATCH as u64 {
        let _ = endpoint.send(1, i, &i.to_le_bytes())?;
    }
    Ok(())
}

#[inline(never)]
fn measured_poll(worker: &Worker, seen: &Cell<usize>) {
    while seen.get() < BATCH {
        let _ = worker.progress();
    }
}

#[inline(never)]
fn measured_one_send(endpoint: &Endpoint, i: u64) -> Result<(), Error> {
    let _ = endpoint.send(1, i, &i.to_le_bytes())?;
    Ok(())
}

#[inline(never)]
fn measured_one_poll(worker: &Worker, seen: &Cell<usize>) {
    while seen.get() == 0 {
        let _ = worker.progress();
    }
}

#[inline(never)]
fn measured_idle(worker: &Worker) {
    for _ in 0..BATCH {
        let _ = worker.progress();
    }
}

#[inline(never)]
fn measured_kib(
    worker: &Worker,
    endpoint: &Endpoint,
    seen: &Cell<usize>,
    bytes: &[u8; 1024],
) -> Result<(), Error> {
    let _ = endpoint.send(1, 0, bytes)?;
    while seen.get() == 0 {
        let _ = worker.progress();
    }
    Ok(())
}

#[inline(never)]
fn measured_put(endpoint: &Endpoint, key: &RemoteKey) -> Result<(), Error> {
    for i in 0..BATCH as u64 {
        let _ = endpoint.put_bytes(&i.to_le_bytes(), key, 8)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_fetch_add(endpoint: &Endpoint, key: &RemoteKey) -> Result<(), Error> {
    for _ in 0..BATCH {
        let Outcome::Done(_) = endpoint.fetch_add(key, 0, 1)? else {
            return Err(tieline::Status::Unsupported.into());
        };
    }
    Ok(())
}

#[inline(never)]
fn measured_rendezvous(
    worker: &Worker,
    endpoint: &Endpoint,
    from: &Region,
    to: &Region,
    arrived: &RefCell<Option<Rendezvous>>,
) -> Result<(), Error> {
    let sent = endpoint.send_regions(2, 0, &[(from, 0..from.len())])?;
    let announced = loop {
        if let Some(announced) = arrived.borrow_mut().take() {
            break announced;
        }
        let _ = worker.progress();
    };
    let received = announced.receive_into(to, 0..to.len())?;
    let _ = worker.finish(received)?;
    let _ = worker.finish(sent)?;
    Ok(())
}

#[inline(never)]
fn measured_list(endpoint: &Endpoint, local: &Region, key: &RemoteKey) -> Result<(), Error> {
    let piece = |i: usize| (local, i * PIECE_BYTES..(i + 1) * PIECE_BYTES);
    let pieces: [_; PIECES] = std::array::from_fn(piece);
    let Outcome::Done(_) = endpoint.put_pieces(&pieces, key, 0)? else {
        return Err(tieline::Status::Unsupported.into());
    };
    Ok(())
}

#[inline(never)]
fn measured_put_raw(endpoint: &Endpoint, key: &RemoteKey) -> Result<(), Error> {
    for i in 0..BATCH as u64 {
        // SAFETY: the put is complete when the call returns, because the key leads to shared memory.
        let _ = unsafe { endpoint.put_raw((&raw const i).cast(), 8, key, 8)? };
    }
    Ok(())
}

#[inline(never)]
fn measured_get_raw(endpoint: &Endpoint, key: &RemoteKey) -> Result<u64, Error> {
    let mut word = 0u64;
    for _ in 0..BATCH {
        // SAFETY: the get is complete when the call returns, because the key leads to shared memory.
        let _ = unsafe { endpoint.get_raw((&raw mut word).cast(), 8, key, 8)? };
    }
    Ok(word)
}

fn descriptors<'a>(local: &'a Region, key: &'a RemoteKey) -> [Descriptor<'a>; PIECES] {
    std::array::from_fn(|i| {
        let at = i * PIECE_BYTES;
        Descriptor::new(local, at..at + PIECE_BYTES, key, at as u64)
    })
}

#[inline(never)]
fn measured_list_new(endpoint: &Endpoint, local: &Region, key: &RemoteKey) -> Result<(), Error> {
    let Outcome::Done(_) = endpoint.put_list(&descriptors(local, key))? else {
        return Err(tieline::Status::Unsupported.into());
    };
    Ok(())
}

#[inline(never)]
fn measured_list_again(endpoint: &Endpoint, list: &PreparedList) -> Result<(), Error> {
    let Outcome::Done(_) = endpoint.post_list(list)? else {
        return Err(tieline::Status::Unsupported.into());
    };
    Ok(())
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_case = |word: &str| CASES.iter().any(|case| case.split('/').next() == Some(word));
    let (case, times) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => {
            println!("{}", CASES.join("\n"));
            return Ok(());
        }
        [case, times] if is_case(case) => (case, times.parse().unwrap_or(0usize)),
        _ => return Err(tieline::Status::Invalid.into()),
    };
    let context = Context::open()?;
    let worker = context.worker()?;
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    worker.on_message(1, move |_| count.set(count.get() + 1))?;
    let arrived = Rc::new(RefCell::new(None));
    let announced = arrived.clone();
    worker.on_message(2, move |message| *announced.borrow_mut() = message.rendezvous())?;
    let me = worker.connect(&worker.address()?)?;
    let memory = context.alloc(PIECES * PIECE_BYTES)?;
    let key = me.import_key(&memory.remote_key()?)?;
    // The messages exceed the number after which a fast box is used, and the key's mapping arrives meanwhile.
    for _ in 0..200 {
        let outcome = me.send(1, 0, b"warm up!")?;
        let _ = worker.finish(outcome)?;
        let _ = worker.progress();
    }
    while key.is_settling() || seen.get() < 200 {
        let _ = worker.progress();
    }
    let long = me.max_message()? + 1;
    // The kernel copies this memory. A copy of memory of `alloc` would be counted, with each byte as an instruction.
    let (from, to) = (context.register(vec![0; long])?, context.register(vec![0; long])?);
    let pieces = context.alloc(PIECES * PIECE_BYTES)?;
    let prepared = me.prepare_put_list(&descriptors(&pieces, &key))?;
    let _ = me.post_list(&prepared)?;
    slow_time_down();
    for i in 0..(times / BATCH) as u64 {
        match case {
            "post" | "poll" => {
                seen.set(0);
                measured_post(&me)?;
                measured_poll(&worker, &seen);
            }
            "one_send" | "one_poll" => {
                for _ in 0..BATCH {
                    seen.set(0);
                    measured_one_send(&me, i)?;
                    measured_one_poll(&worker, &seen);
                }
            }
            "idle" => measured_idle(&worker),
            "kib" => {
                for _ in 0..BATCH {
                    seen.set(0);
                    measured_kib(&worker, &me, &seen, &[7; 1024])?;
                }
            }
            "put" => measured_put(&me, &key)?,
            "fetch_add" => measured_fetch_add(&me, &key)?,
            "rendezvous" => measured_rendezvous(&worker, &me, &from, &to, &arrived)?,
            "put_raw" => measured_put_raw(&me, &key)?,
            "get_raw" => drop(measured_get_raw(&me, &key)?),
            _ if i as usize % (PIECES / BATCH) != 0 => {}
            "list_new" => measured_list_new(&me, &pieces, &key)?,
            "list_again" => measured_list_again(&me, &prepared)?,
            _ => measured_list(&me, &pieces, &key)?,
        }
    }
    Ok(())
}
