//! Two processes copy each other's regions, while both repeatedly make and end regions of newly mapped memory: `knem_race 4` runs
//! for 4 seconds. A region keeps the bytes that it was made of: a copy has all of these bytes, or its cookie is unknown. Cookies
//! are reused immediately, so a copy of a region that was renewed during the copy may have the bytes of the next region. The check
//! counts such a copy as too late.

use std::time::{Duration, Instant};
use tieline_lab_programs::child::Child;
use tieline_lab_programs::knem::{Device, How, Piece, READ, SUCCESS, WRITE};
use tieline_lab_programs::random::Random;
use tieline_lab_programs::sys::{self, End, PAGE};

const REGIONS: usize = 16;
const PAGES: usize = 4;

fn main() -> Result<(), String> {
    let seconds =
        std::env::args().nth(1).and_then(|word| word.parse().ok()).ok_or("knem_race SECONDS")?;
    let until = Instant::now() + Duration::from_secs(seconds);
    // For each process and region: a sequence number that is odd while the two following words change, the cookie, and the value of
    // the bytes.
    let words = sys::map_shared(2 * PAGE);
    let start = |me: usize| {
        Child::start(move |talk| {
            let mut side = Side::new(me, words);
            let _ = talk.hear();
            while Instant::now() < until {
                if side.random.below(3) == 0 {
                    side.renew();
                } else {
                    side.copy();
                }
            }
            println!(
                "process {me}: {} regions, {} copies, {} too late",
                side.made, side.copies, side.late
            );
            talk.say(side.wrong);
            let _ = talk.hear();
            assert!(side.copies > 0, "nothing was copied");
        })
    };
    let sides = [start(0), start(1)];
    sides.iter().for_each(|side| side.talk.say(0));
    let wrong: Vec<_> = sides.iter().map(|side| side.talk.hear()).collect();
    let ends = sides.map(Child::end);
    match (wrong.as_slice(), ends) {
        ([Some(0), Some(0)], [End::Status(0), End::Status(0)]) => Ok(()),
        _ => Err(format!("copies that were wrong: {wrong:?}; the processes ended with {ends:?}")),
    }
}

struct Side {
    me: usize,
    words: usize,
    device: Device,
    memory: usize,
    local: usize,
    cookies: [u64; REGIONS],
    random: Random,
    made: u64,
    copies: u64,
    late: u64,
    wrong: u64,
}

impl Side {
    fn new(me: usize, words: usize) -> Side {
        Side {
            me,
            words,
            device: Device::open(),
            memory: sys::map(REGIONS * PAGES * PAGE),
            local: sys::map(PAGES * PAGE),
            cookies: [0; REGIONS],
            random: Random::new((me as u64 + 1) * u64::from(std::process::id())),
            made: 0,
            copies: 0,
            late: 0,
            wrong: 0,
        }
    }

    fn told(&self, of: usize, region: usize) -> usize {
        self.words + of * PAGE + region * 24
    }

    /// Ends a region, and makes another region of new memory, which is then remapped or discarded immediately.
    fn renew(&mut self) {
        let region = self.random.below(REGIONS);
        let told = self.told(self.me, region);
        let (at, len) = (self.memory + region * PAGES * PAGE, PAGES * PAGE);
        sys::count_word(told);
        if self.cookies[region] != 0 {
            self.device.destroy(self.cookies[region]).expect("destroyed");
        }
        let byte = 1 + self.random.below(255) as u64;
        let word = byte * 0x0101_0101_0101_0101;
        let _ = sys::map_at(at, len);
        (0..len).step_by(8).for_each(|place| sys::store_word(at + place, word));
        let pieces = [Piece::of(at, PAGE + 24), Piece::of(at + PAGE + 24, len - PAGE - 24)];
        self.cookies[region] = self.device.create(&pieces, READ | WRITE, 0).expect("a region");
        self.made += 1;
        sys::store_word(told + 8, self.cookies[region]);
        sys::store_word(told + 16, word);
        sys::count_word(told);
        if self.random.below(2) == 0 {
            let _ = sys::map_at(at, len);
        } else {
            sys::discard(at, len);
        }
        sys::store_word(at, 0);
    }

    fn copy(&mut self) {
        let region = self.random.below(REGIONS);
        let told = self.told(1 - self.me, region);
        let before = sys::load_word(told);
        let (cookie, word) = (sys::load_word(told + 8), sys::load_word(told + 16));
        if before == 0 || before % 2 == 1 || sys::load_word(told) != before {
            return;
        }
        let len = 8 * (1 + self.random.below(PAGES * PAGE / 8));
        let offset = 8 * self.random.below(1 + (PAGES * PAGE - len) / 8);
        (0..len).step_by(8).for_each(|place| sys::store_word(self.local + place, 0));
        let local = [Piece::of(self.local, len)];
        let copied = self.device.inline_bounded(
            &local,
            false,
            (cookie, offset as u64),
            len as u64,
            How::default(),
        );
        match copied {
            Ok(SUCCESS) if sys::load_word(told) != before => self.late += 1,
            Ok(SUCCESS) => {
                self.copies += 1;
                let wrong =
                    (0..len).step_by(8).any(|place| sys::load_word(self.local + place) != word);
                self.wrong += u64::from(wrong);
            }
            Err(libc::EINVAL) if sys::load_word(told) != before => self.late += 1,
            other => {
                println!("process {}: a copy said {other:?}", self.me);
                self.wrong += 1;
            }
        }
    }
}
