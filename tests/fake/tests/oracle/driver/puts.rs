//! Steps of puts and their notifications, and of gets and atomics.

use super::{MOST, Own, Run, What};
use crate::model::{Kind, place_of};
use crate::program::{CELL, FIRST_CELL, Put};
use tieline::{AtomicOp, Completion, Width};

const WORDS: u32 = 0x2000;
const LONG: u32 = 1 << 16;

impl Run {
    pub(super) fn get(
        &mut self,
        end: usize,
        (cell, len): (usize, usize),
        pieces: bool,
    ) -> Result<(), String> {
        if self.model.len() >= MOST {
            return Ok(());
        }
        let landing = Own::new(&self.at_a, &vec![0xee; len + 16]);
        let landing = landing.map_err(|error| error.to_string())?;
        let number = self.end(end).number;
        let op = self.model.post(number, Kind::Get { cell, len });
        let (own, at) = (self.end(end), (FIRST_CELL + cell * CELL) as u64);
        let (to, key) = (&own.endpoint, &own.keys[op % 2]);
        let got = match pieces {
            false => to.get(&landing.region, 8..8 + len, key, at),
            true => to.get_pieces(&landing.pieces(8, len), key, at),
        };
        self.posted(end, What::Memory(op), got, Some(landing), None).map(|_| ())
    }

    pub(super) fn atomic(
        &mut self,
        end: usize,
        word: usize,
        fetch: bool,
        how: usize,
    ) -> Result<(), String> {
        let Some(bit) = self.model.bit(word).filter(|_| self.model.len() < MOST) else {
            return Ok(());
        };
        let number = self.end(end).number;
        let op = self.model.post(number, Kind::Atomic { word, bit, fetch });
        let (at, width) = place_of(word);
        let width = if width == 8 { Width::Bits64 } else { Width::Bits32 };
        let which = [AtomicOp::Add, AtomicOp::Or, AtomicOp::Xor][how];
        let own = self.end(end);
        let key = &own.keys[op % 2];
        let posted = match fetch {
            true => own.endpoint.fetch(which, width, key, at as u64, bit),
            false => own.endpoint.atomic(which, width, key, at as u64, bit),
        };
        self.posted(end, What::Memory(op), posted, None, None).map(|_| ())
    }

    pub(super) fn put(
        &mut self,
        end: usize,
        how: Put,
        (cell, len): (usize, usize),
        tells: bool,
    ) -> Result<(), String> {
        if self.model.len() >= MOST {
            return Ok(());
        }
        let number = self.end(end).number;
        let local = how == Put::Local;
        let op = self.model.post(number, Kind::Put { cell, len, local, tells });
        let (at, word) = ((FIRST_CELL + cell * CELL) as u64, word_of(op));
        let bytes = vec![op as u8 + 1; len];
        if how == Put::Bytes {
            let own = self.end(end);
            let key = &own.keys[op % 2];
            let put = match tells {
                true => own.endpoint.put_bytes_notify(&bytes, key, at, word),
                false => own.endpoint.put_bytes(&bytes, key, at),
            };
            return self.posted(end, What::Memory(op), put, None, None).map(|_| ());
        }
        let source = Own::new(&self.at_a, &bytes).map_err(|error| error.to_string())?;
        let own = self.end(end);
        let (key, region) = (&own.keys[op % 2], &source.region);
        let completion = if local { Completion::Local } else { Completion::Remote };
        let to = &own.endpoint;
        let put = match (how, tells) {
            (Put::Pieces, true) => to.put_pieces_notify(&source.pieces(0, len), key, at, word),
            (Put::Pieces, false) => to.put_pieces(&source.pieces(0, len), key, at),
            (_, true) => to.put_notify_with(region, 0..len, key, at, word, completion),
            (_, false) => to.put_with(region, 0..len, key, at, completion),
        };
        // Every third source is dropped immediately: the library must keep the region until the put has ended.
        let kept = (op % 3 != 0).then_some(source);
        self.posted(end, What::Memory(op), put, None, kept).map(|_| ())
    }

    pub(super) fn hear(&mut self) -> Result<(), String> {
        let told = std::mem::take(&mut self.heard.borrow_mut().told);
        let own = told.iter().filter_map(|(word, memory)| Some((op_of(*word)?, memory)));
        for (op, memory) in own {
            self.model.notified(op, memory)?;
        }
        Ok(())
    }
}

/// Returns the notification word of a put: a number that no forged put has. Every third word is wider than some lanes carry.
fn word_of(op: usize) -> u32 {
    WORDS | op as u32 | if op % 3 == 0 { LONG } else { 0 }
}

/// Returns the put with this notification word, if there is one.
fn op_of(word: u32) -> Option<usize> {
    (word & !(LONG | 0xff) == WORDS).then_some((word & 0xff) as usize)
}
