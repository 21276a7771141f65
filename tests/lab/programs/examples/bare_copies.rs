//! The latency of reading another process's memory by each kernel interface, measured in a loop without Tieline. Each output line
//! contains `figure`, the size, nanoseconds, and the name.

use std::time::Instant;
use tieline_lab_programs::child::Child;
use tieline_lab_programs::sys::{self, PAGE};
use tieline_lab_programs::{knem, xpmem};

/// The number of bytes in a get, and the number of timed gets.
const SIZES: [(usize, usize); 6] =
    [(8, 100), (512, 100), (4096, 50), (64 << 10, 50), (1 << 20, 20), (16 << 20, 5)];
const MOST: usize = 16 << 20;

fn main() {
    let child = Child::start(|talk| {
        let memory = sys::map(MOST);
        (0..MOST).step_by(PAGE).for_each(|at| sys::store(memory + at, 1));
        talk.say(memory as u64);
        talk.say(xpmem::Device::open().make(memory, MOST) as u64);
        talk.say(knem::Device::open().region(memory, MOST));
        let _ = talk.hear();
    });
    let (memory, segment, cookie) = (child.hear() as usize, child.hear() as i64, child.hear());
    let here = sys::map(MOST);
    (0..MOST).step_by(PAGE).for_each(|at| sys::store(here + at, 0));
    let device = xpmem::Device::open();
    let permit = device.get(segment).unwrap_or_else(|e| panic!("get: errno {e}"));
    let attach = |len: usize| {
        let len = len.next_multiple_of(PAGE);
        device.attach(permit, 0, len).unwrap_or_else(|e| panic!("attach: errno {e}"))
    };
    let all = attach(MOST);
    let own = std::process::id() as i32;
    let whole = |len: usize, copied: sys::Answer<i64>| assert_eq!(copied, Ok(len as i64));
    timed("xpmem direct, warm", |len| sys::copy(all, here, len));
    timed("xpmem direct, cold", |len| {
        let at = attach(len);
        sys::copy(at, here, len);
        assert_eq!(device.detach(at), Ok(()));
    });
    timed("xpmem copy, warm", |len| whole(len, sys::write_process(own, all, here, len)));
    timed("xpmem copy, cold", |len| {
        let at = attach(len);
        whole(len, sys::write_process(own, at, here, len));
        assert_eq!(device.detach(at), Ok(()));
    });
    timed("cma", |len| whole(len, sys::read_process(child.pid, memory, here, len)));
    let copier = knem::Device::open();
    timed("knem", |len| {
        let piece = [knem::Piece::of(here, len)];
        let how = knem::How { flags: 0, slot: 0 };
        let status = copier.inline_bounded(&piece, false, (cookie, 0), len as u64, how);
        assert_eq!(status, Ok(knem::SUCCESS));
    });
    let _ = child.end();
}

fn timed(name: &str, get: impl Fn(usize)) {
    for (len, count) in SIZES {
        // Reading the clock takes the time of a short get, so short gets are timed in groups.
        let each = if len > 4096 { 1 } else { 16 };
        get(len);
        let mut times: Vec<u128> = (0..count)
            .map(|_| {
                let began = Instant::now();
                (0..each).for_each(|_| get(len));
                began.elapsed().as_nanos() / each
            })
            .collect();
        times.sort_unstable();
        println!("figure {len} {} {name}", times[count / 2]);
    }
}
