//! Two processes access each other's memory through attachments, while both attach and detach, and map, unmap and discard attached
//! memory. `xpmem_race 4` runs for 4 seconds.
//!
//! The first part of each process's memory is never unmapped, only mapped over and discarded: the other process accesses it
//! directly. The second part may have holes: the other process accesses this part by kernel copies, which return EFAULT for a hole.
//! A word of a page is 0, or names its owner, the page's number, and the turn of its last change. An owner that has mapped a page
//! again publishes the turn after it has stored the word. If a reader finds an older turn than the published one, it has read a
//! freed page.

use std::time::{Duration, Instant};
use tieline_lab_programs::child::Child;
use tieline_lab_programs::random::Random;
use tieline_lab_programs::sys::{self, End, PAGE, Pipe};
use tieline_lab_programs::xpmem::Device;

const PAGES: usize = 96;
/// The number of pages without holes.
const TOUCHED: usize = 64;
const ATTACHMENTS: usize = 12;
/// The number of bits that a word has for the turn.
const TURN_BITS: u32 = 40;

fn main() -> Result<(), String> {
    let seconds =
        std::env::args().nth(1).and_then(|word| word.parse().ok()).ok_or("xpmem_race SECONDS")?;
    let until = Instant::now() + Duration::from_secs(seconds);
    // For each process: the published turns, one per page, its segment, and whether it has stopped its accesses.
    let words = sys::map_shared(2 * PAGE);
    let start = |me: u64| {
        Child::start(move |talk| {
            let mut side = Side::new(me, words);
            let _ = talk.hear();
            while Instant::now() < until {
                side.turn();
            }
            println!(
                "process {me}: {} words read, {} copied, {} were zero, {} not there; {} attachments, {} changes",
                side.read, side.copied, side.zeros, side.holes, side.attachments, side.changes
            );
            // The other process may access this memory until it has also stopped.
            talk.say(side.wrong);
            let _ = talk.hear();
            side.leave();
        })
    };
    let sides = [start(0), start(1)];
    sides.iter().for_each(|side| side.talk.say(0));
    let wrong: Vec<_> = sides.iter().map(|side| side.talk.hear()).collect();
    let ends = sides.map(Child::end);
    match (wrong.as_slice(), ends) {
        ([Some(0), Some(0)], [End::Status(0), End::Status(0)]) => Ok(()),
        _ => Err(format!("words that were wrong: {wrong:?}; the processes ended with {ends:?}")),
    }
}

struct Side {
    me: u64,
    words: usize,
    device: Device,
    memory: usize,
    mapped: [bool; PAGES],
    turns: [u64; PAGES],
    random: Random,
    permit: Option<i64>,
    /// The reserved addresses for attachments: the kernel could choose an address where this process has unmapped its own memory.
    places: Vec<usize>,
    pipe: Pipe,
    /// The attachments: the address, the other process's first page, and the number of pages.
    attached: Vec<(usize, usize, usize)>,
    read: u64,
    copied: u64,
    zeros: u64,
    holes: u64,
    attachments: u64,
    changes: u64,
    wrong: u64,
}

fn announced(words: usize, of: u64, page: usize) -> usize {
    words + of as usize * PAGE + page * 8
}

fn segment(words: usize, of: u64) -> usize {
    announced(words, of, PAGES)
}

fn word(of: u64, page: usize, turn: u64) -> u64 {
    (of + 1) << 60 | (page as u64) << TURN_BITS | turn
}

impl Side {
    fn new(me: u64, words: usize) -> Side {
        let device = Device::open();
        let memory = sys::map(PAGES * PAGE);
        sys::store_word(segment(words, me), device.make(memory, PAGES * PAGE) as u64);
        Side {
            me,
            words,
            device,
            memory,
            mapped: [true; PAGES],
            turns: [0; PAGES],
            random: Random::new(me + u64::from(std::process::id())),
            permit: None,
            pipe: Pipe::default(),
            places: (0..ATTACHMENTS).map(|_| sys::map(PAGES * PAGE)).collect(),
            attached: Vec::new(),
            read: 0,
            copied: 0,
            zeros: 0,
            holes: 0,
            attachments: 0,
            changes: 0,
            wrong: 0,
        }
    }

    fn turn(&mut self) {
        match self.random.below(16) {
            0..5 => self.change(),
            5 => self.attach(),
            6 => self.detach(),
            7 if self.random.below(64) == 0 => self.fork(),
            _ => self.touch(),
        }
    }

    /// Maps, unmaps or discards some pages of this process, and writes to some pages.
    fn change(&mut self) {
        let first = self.random.below(PAGES);
        let count = (1 + self.random.below(6)).min(PAGES - first);
        let (at, len) = (self.memory + first * PAGE, count * PAGE);
        self.changes += 1;
        match self.random.below(4) {
            0 => {
                let _ = sys::map_at(at, len);
                self.mapped[first..first + count].fill(true);
            }
            1 if first >= TOUCHED => {
                sys::unmap(at, len);
                self.mapped[first..first + count].fill(false);
            }
            2 => sys::discard(at, len),
            _ => {}
        }
        for page in first..first + count {
            if !self.mapped[page] {
                continue;
            }
            self.turns[page] += 1;
            let word = word(self.me, page, self.turns[page]);
            // The word is stored at both ends of the page, so that a mixture of two pages is detected.
            sys::store_word(self.memory + page * PAGE, word);
            sys::store_word(self.memory + (page + 1) * PAGE - 8, word);
            sys::store_word(announced(self.words, self.me, page), self.turns[page]);
        }
    }

    fn attach(&mut self) {
        let other = 1 - self.me;
        let segid = sys::load_word(segment(self.words, other)) as i64;
        let Some(place) = self.places.last().copied().filter(|_| segid != 0) else { return };
        let device = self.device;
        let permit = *self.permit.get_or_insert_with(|| device.get(segid).expect("a permit"));
        let first = self.random.below(PAGES);
        let count = 1 + self.random.below(PAGES - first);
        let (offset, len) = ((first * PAGE) as i64, (count * PAGE) as u64);
        let at = self.device.attach_at(permit, offset, len, place).expect("an attachment");
        let _ = self.places.pop();
        self.attached.push((at, first, count));
        self.attachments += 1;
    }

    fn detach(&mut self) {
        if self.attached.is_empty() {
            return;
        }
        let chosen = self.random.below(self.attached.len());
        let (at, _, count) = self.attached.swap_remove(chosen);
        let inside = at + self.random.below(count) * PAGE;
        self.device.detach(inside).expect("detached");
        self.places.push(at);
    }

    /// Forks a short-lived child: shared pages are copied on write after that.
    fn fork(&mut self) {
        let pid = sys::fork();
        if pid == 0 {
            sys::exit(0);
        }
        let _ = sys::wait(pid);
    }

    fn touch(&mut self) {
        if self.attached.is_empty() {
            return;
        }
        let (at, first, count) = self.attached[self.random.below(self.attached.len())];
        for _ in 0..64 {
            let page = self.random.below(count);
            let end = if self.random.below(2) == 0 { 0 } else { PAGE - 8 };
            let place = at + page * PAGE + end;
            let number = first + page;
            let before = sys::load_word(announced(self.words, 1 - self.me, number));
            let found = if number < TOUCHED {
                self.read += 1;
                sys::load_word(place)
            } else {
                self.copied += 1;
                match self.pipe.word(place) {
                    Ok(word) => word,
                    Err(libc::EFAULT) => {
                        self.holes += 1;
                        continue;
                    }
                    Err(errno) => panic!("a copy of an attachment: errno {errno}"),
                }
            };
            self.judge(number, before, found);
        }
    }

    fn judge(&mut self, page: usize, before: u64, found: u64) {
        let other = 1 - self.me;
        if found == 0 {
            // The page is being filled, or was discarded.
            self.zeros += 1;
            return;
        }
        let turn = found & ((1 << TURN_BITS) - 1);
        if found != word(other, page, turn) || turn < before {
            self.wrong += 1;
            println!(
                "process {}: page {page} has {found:#x}; turn {before} was announced before",
                self.me
            );
        }
    }

    fn leave(mut self) {
        while !self.attached.is_empty() {
            self.detach();
        }
        assert!(self.attachments > 0, "nothing was attached");
        sys::close(self.device.fd);
    }
}
