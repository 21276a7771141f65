//! Steps of puts and their notifications, and of gets and atomics.

use super::{MOST, Own, Run, What, sys};
use crate::model::{Kind, place_of};
use crate::program::{CELL, FIRST_CELL, Get, Put};
use tieline::{AtomicOp, Completion, Width};

const WORDS: u32 = 0x2000;
const LONG: u32 = 1 << 16;

impl Run {
    pub(super) fn get(
        &mut self,
        end: usize,
        (cell, len): (usize, usize),
        how: Get,
    ) -> Result<(), String> {
        if self.model.len() >= MOST {
            return Ok(());
        }
        let number = self.end(end).number;
        let op = self.model.post(number, Kind::Get { cell, len });
        let by_address = how == Get::Raw || how == Get::List && op % 4 == 0;
        let make = if by_address { Own::by_address } else { Own::new };
        let landing = make(&self.at_a, &vec![0xee; len + 16]).map_err(|error| error.to_string())?;
        let (own, at) = (self.end(end), (FIRST_CELL + cell * CELL) as u64);
        let (to, key) = (&own.endpoint, &own.keys[op % 2]);
        let got = match how {
            Get::Region => to.get(&landing.region, 8..8 + len, key, at),
            Get::Pieces => to.get_pieces(&landing.pieces(8, len), key, at),
            Get::Raw => sys::get_raw(to, &landing, len, key, at),
            Get::List => {
                let list = sys::descriptors(&landing, (8, len), &own.keys, at, by_address);
                match op % 2 {
                    0 => to.get_list(&list),
                    _ => to.prepare_get_list(&list).and_then(|list| to.post_list(&list)),
                }
            }
        };
        if how == Get::List {
            let _ = self.lists.insert(op);
        }
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
        // A list notifies of nothing.
        let (local, tells) = (how == Put::Local, tells && how != Put::List);
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
        let by_address = how == Put::Raw || how == Put::List && op % 4 == 0;
        let make = if by_address { Own::by_address } else { Own::new };
        let source = make(&self.at_a, &bytes).map_err(|error| error.to_string())?;
        let own = self.end(end);
        let (key, region) = (&own.keys[op % 2], &source.region);
        let completion = if local { Completion::Local } else { Completion::Remote };
        let to = &own.endpoint;
        let put = match (how, tells) {
            (Put::Pieces, true) => to.put_pieces_notify(&source.pieces(0, len), key, at, word),
            (Put::Pieces, false) => to.put_pieces(&source.pieces(0, len), key, at),
            (Put::Raw, tells) => sys::put_raw(to, &source, len, key, at, tells.then_some(word)),
            (Put::List, _) => {
                let list = sys::descriptors(&source, (0, len), &own.keys, at, by_address);
                match op % 2 {
                    0 => to.put_list(&list),
                    _ => to.prepare_put_list(&list).and_then(|list| to.post_list(&list)),
                }
            }
            (_, true) => to.put_notify_with(region, 0..len, key, at, word, completion),
            (_, false) => to.put_with(region, 0..len, key, at, completion),
        };
        if how == Put::List {
            let _ = self.lists.insert(op);
        }
        // Every third source is dropped immediately: the library must keep the region until the put has ended.
        let kept = (op % 3 != 0).then_some(source);
        self.posted(end, What::Memory(op), put, None, kept).map(|_| ())
    }
}

/// Returns the notification word of a put: a number that no forged put has. Every third word is wider than some lanes carry.
fn word_of(op: usize) -> u32 {
    WORDS | op as u32 | if op % 3 == 0 { LONG } else { 0 }
}

/// Returns the put with this notification word, if there is one.
pub(super) fn op_of(word: u32) -> Option<usize> {
    (word & !(LONG | 0xff) == WORDS).then_some((word & 0xff) as usize)
}
