//! Kills one of three processes repeatedly. One process is a source that maps, unmaps and discards memory. The other two attach
//! this memory, and let the kernel read it through their attachments, by a write to a pipe. After each kill the other two
//! processes continue. The argument is the number of rounds: `xpmem_kills 30`.

use tieline_lab_programs::child::Child;
use tieline_lab_programs::random::Random;
use tieline_lab_programs::sys::{self, End, PAGE, Pipe};
use tieline_lab_programs::xpmem::Device;

const PAGES: usize = 32;
const PROCESSES: usize = 3;

fn main() -> Result<(), String> {
    let rounds: u64 =
        std::env::args().nth(1).and_then(|word| word.parse().ok()).ok_or("xpmem_kills ROUNDS")?;
    // The shared words are the segment, and then the number of turns that each process has done.
    let words = sys::map_shared(PAGE);
    let mut random = Random::new(u64::from(std::process::id()));
    let mut killed = [0; PROCESSES];
    for round in 0..rounds {
        (0..=PROCESSES).for_each(|word| sys::store_word(words + 8 * word, 0));
        let mut processes: Vec<_> = (0..PROCESSES)
            .map(|number| {
                Some(Child::start(|_| {
                    let random = Random::new(round * 8 + number as u64 + 1);
                    if number == 0 {
                        source(words, random)
                    } else {
                        attacher(words, number, random)
                    }
                }))
            })
            .collect();
        let victim = random.below(PROCESSES);
        go_on(words, &mut processes, 1, random.below(60) as u64 + 1)?;
        killed[victim] += 1;
        let first = processes[victim].take().map(Child::kill);
        if first != Some(End::Signal(libc::SIGKILL)) {
            return Err(format!("round {round}: process {victim} had ended before: {first:?}"));
        }
        for left in (0..PROCESSES).filter(|number| *number != victim) {
            go_on(words, &mut processes, left, 5)
                .map_err(|said| format!("round {round}, {victim} was killed: {said}"))?;
        }
        for process in processes.into_iter().flatten() {
            let _ = process.kill();
        }
    }
    println!("killed: {} sources, {} attachers", killed[0], killed[1] + killed[2]);
    Ok(())
}

/// Waits until a process has done `more` further turns.
fn go_on(
    words: usize,
    processes: &mut [Option<Child>],
    number: usize,
    turns: u64,
) -> Result<(), String> {
    let until = done(words, number) + turns;
    while done(words, number) < until {
        for (which, process) in processes.iter_mut().enumerate() {
            if let Some(end) = process.as_mut().and_then(Child::has_ended) {
                return Err(format!("process {which} ended with {end:?}"));
            }
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn done(words: usize, number: usize) -> u64 {
    sys::load_word(words + 8 * (number + 1))
}

fn source(words: usize, mut random: Random) {
    let device = Device::open();
    let memory = sys::map(PAGES * PAGE);
    sys::store_word(words, device.make(memory, PAGES * PAGE) as u64);
    loop {
        let first = random.below(PAGES);
        let (at, len) = (memory + first * PAGE, PAGE * (1 + random.below(PAGES - first)));
        match random.below(3) {
            0 => sys::unmap(at, len),
            1 => sys::discard(at, len),
            _ => {
                let _ = sys::map_at(at, len);
                sys::store_word(at, 1);
            }
        }
        sys::count_word(words + 8);
    }
}

fn attacher(words: usize, number: usize, mut random: Random) {
    while sys::load_word(words) == 0 {
        std::thread::yield_now();
    }
    let segment = sys::load_word(words) as i64;
    let device = Device::open();
    let pipe = Pipe::default();
    loop {
        // Each of these calls may find that the source is gone.
        let first = random.below(PAGES);
        let len = PAGE * (1 + random.below(PAGES - first));
        let apid = device.get(segment);
        let at = apid.and_then(|apid| device.attach(apid, first * PAGE, len));
        for place in at.into_iter().flat_map(|at| (at..at + len).step_by(PAGE)) {
            match pipe.word(place) {
                Ok(_) | Err(libc::EFAULT) => {}
                Err(errno) => panic!("a copy of an attachment: errno {errno}"),
            }
        }
        // Some attachments remain for the release, or for the end.
        match random.below(3) {
            0 => {
                let _ = at.map(|at| device.detach(at));
            }
            1 => {
                let _ = apid.map(|apid| device.release(apid));
            }
            _ => {}
        }
        sys::count_word(words + 8 * (number + 1));
    }
}
