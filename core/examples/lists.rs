//! The time of a list of gets over `shm-cma`, and of one bare `process_vm_readv` over the same ranges, in alternation.
//!
//! `lists [ROUNDS]` prints, for several lists, the median of the ratios of the two times. Both copy from another process: the program
//! starts a child, which registers the memory. Only the ratio means something on a machine with other work.

#![allow(unsafe_code)] // the bare system call

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;
use tieline::{Context, Descriptor, Error, Region, Status};

/// The numbers of descriptors and their lengths.
const LISTS: [(usize, usize); 4] = [(256, 16 << 10), (1000, 4096), (256, 64), (16, 64 << 10)];
const BYTES: usize = 256 * (16 << 10) * 2;

fn failed(what: &str) -> Error {
    Error::new(Status::Io, what, std::io::Error::last_os_error().to_string(), "")
}

fn context() -> Result<Context, Error> {
    Ok(Context::builder().set("TIELINE_PROVIDERS", "shm,shm-cma").open()?)
}

/// Registers memory, writes its address, the worker's address and the key, and lives until its input ends.
fn child() -> Result<(), Error> {
    let context = context()?;
    let worker = context.worker()?;
    let memory = context.register(vec![7u8; BYTES])?;
    let mut out = std::io::stdout().lock();
    let base = memory.as_ptr().addr().to_le_bytes().to_vec();
    for part in [base, worker.address()?, memory.remote_key()?] {
        let written = out.write_all(&part.len().to_le_bytes()).and_then(|()| out.write_all(&part));
        written.and_then(|()| out.flush()).map_err(|_| failed("writing to the parent"))?;
    }
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

fn read_part(from: &mut impl Read) -> Result<Vec<u8>, Error> {
    let mut len = [0; 8];
    from.read_exact(&mut len).map_err(|_| failed("reading from the child"))?;
    let mut part = vec![0; usize::from_le_bytes(len)];
    from.read_exact(&mut part).map_err(|_| failed("reading from the child"))?;
    Ok(part)
}

/// Copies the ranges of a list by one system call.
fn bare(pid: u32, from: usize, to: &Region, (count, len): (usize, usize)) -> Result<f64, Error> {
    let range = |at: usize| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: len };
    let there: Vec<_> = (0..count).map(|n| range(from + n * 2 * len)).collect();
    let here: Vec<_> = (0..count).map(|n| range(to.as_ptr().addr() + n * len)).collect();
    let (many, pid) = (count as libc::c_ulong, pid as libc::pid_t);
    let begin = Instant::now();
    // SAFETY: the local ranges lie in a region that nothing else accesses, and the kernel checks the remote ones.
    let copied =
        unsafe { libc::process_vm_readv(pid, here.as_ptr(), many, there.as_ptr(), many, 0) };
    let elapsed = begin.elapsed().as_secs_f64();
    match copied as usize == count * len {
        true => Ok(elapsed),
        false => Err(failed("process_vm_readv")),
    }
}

fn main() -> Result<(), Error> {
    let word = std::env::args().nth(1);
    if word.as_deref() == Some("child") {
        return child();
    }
    let rounds = word.and_then(|word| word.parse().ok()).unwrap_or(200usize);
    let program = std::env::current_exe().map_err(|_| failed("the program's name"))?;
    let mut command = Command::new(program);
    let _ = command.arg("child").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|_| failed("starting the child"))?;
    let mut from_child = child.stdout.take().ok_or(Status::Io)?;
    let base: [u8; 8] = read_part(&mut from_child)?.try_into().map_err(|_| Status::BadData)?;
    let (address, key) = (read_part(&mut from_child)?, read_part(&mut from_child)?);
    let base = usize::from_le_bytes(base);

    let context = context()?;
    let worker = context.worker()?;
    let peer = worker.connect(&address)?;
    let key = peer.import_key(&key)?;
    while key.is_settling() {
        let _ = worker.progress();
    }
    let landing = context.register(vec![0u8; BYTES])?;
    println!("over {}", key.path());
    for (count, len) in LISTS {
        let list: Vec<_> = (0..count)
            .map(|n| Descriptor::new(&landing, n * len..(n + 1) * len, &key, (n * 2 * len) as u64))
            .collect();
        let prepared = peer.prepare_get_list(&list)?;
        let (mut new, mut again) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let call = bare(child.id(), base, &landing, (count, len))?;
            let begin = Instant::now();
            let got = peer.get_list(&list)?;
            let _ = worker.finish(got)?;
            new.push(begin.elapsed().as_secs_f64() / call);
            let call = bare(child.id(), base, &landing, (count, len))?;
            let begin = Instant::now();
            let got = peer.post_list(&prepared)?;
            let _ = worker.finish(got)?;
            again.push(begin.elapsed().as_secs_f64() / call);
        }
        let median = |ratios: &mut Vec<f64>| {
            ratios.sort_by(f64::total_cmp);
            ratios[ratios.len() / 2]
        };
        let (new, again) = (median(&mut new), median(&mut again));
        println!(
            "{count} x {len} bytes: a list {new:.3}, a prepared list {again:.3} of the bare call"
        );
    }
    drop(child.stdin.take());
    let _ = child.wait();
    Ok(())
}
