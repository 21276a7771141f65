//! The parts of the tests, which all ranks run.

pub(crate) mod collectives;
pub(crate) mod messages;
pub(crate) mod windows;

use tieline::Error;
use tieline_runtime::Runtime;

pub(crate) type Part = fn(&Runtime) -> Result<(), Error>;

/// All parts that leave the job usable, by name.
pub(crate) const ALL: &[(&str, Part)] = &[
    ("receives that are posted first", messages::expected),
    ("messages that come first", messages::unexpected),
    ("wildcards", messages::wildcards),
    ("lent buffers", messages::lent),
    ("probes", messages::probes),
    ("collectives", collectives::all),
    ("windows", windows::put_and_get),
    ("locks", windows::locks),
];

pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn of(seed: u64) -> Numbers {
        Numbers(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Returns the bytes from one rank to another with a tag: every byte depends on both ranks and the tag.
pub(crate) fn bytes(from: usize, to: usize, tag: u64, len: usize) -> Vec<u8> {
    let mut numbers = Numbers::of(from as u64 ^ (to as u64) << 20 ^ tag << 40);
    let mut bytes: Vec<u8> =
        (0..len.div_ceil(8)).flat_map(|_| numbers.next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}
