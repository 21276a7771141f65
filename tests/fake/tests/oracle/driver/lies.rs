//! Forged messages: unsolicited answers, and messages of the library with one field changed. They refer to separate memory, the
//! prey.

use super::long::NOT_SENT;
use super::numbers::PUBLISHED;
use super::{ENDS, Run, progress};
use crate::program::Lie;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use tieline::{Access, Context, Error, Region, Rendezvous, Status, Worker};
use tieline_fake::Slot;

/// The length of the prey, to which a well-formed message may write.
pub(super) const LEN: usize = 64;
const FROM: usize = 8;
const TO: usize = 48;
const BEFORE: u8 = 0x33;
/// Checks whether the first bytes of the prey are unchanged, except for bytes that a forged message may legitimately write.
pub(super) fn are_untouched(bytes: &[u8]) -> bool {
    let kept = |at: usize| !(FROM..TO).contains(&at);
    bytes.iter().enumerate().all(|(at, byte)| *byte == BEFORE || !kept(at))
}

/// The offset of the numbers in a key, which follow the key's head and the context's number.
const NUMBERS: usize = 5 + 16;

/// The id of rendezvous messages (announcements) whose message does not exist.
pub(super) const NEVER_SENT: u16 = 15;
/// The number of such announcements that the target keeps until the next ones arrive.
const KEPT: usize = 3;
/// The number of announcements that the test remembers, to withdraw them.
const REMEMBERED: usize = 8;

/// Makes the target keep announcements of messages that do not exist, so that they can also be withdrawn and received.
pub(super) fn listen(b: &Worker, prey: &Rc<Prey>) -> Result<(), Error> {
    let prey = prey.clone();
    b.on_message(NEVER_SENT, move |message| {
        let oldest = {
            let mut kept = prey.kept.borrow_mut();
            kept.extend(message.rendezvous());
            if kept.len() > KEPT { kept.pop_front() } else { None }
        };
        oldest.into_iter().for_each(Rendezvous::refuse);
    })
}

/// The memory that forged messages refer to, on either side.
pub(super) struct Prey {
    /// The regions and keys of the ends' context and of the target's context.
    sides: [(Region, Vec<u8>); 2],
    /// Whether a forged put has sent its notification but has written nothing.
    told_of_nothing: Cell<bool>,
    /// The kept announcements of messages that do not exist.
    kept: RefCell<VecDeque<Rendezvous>>,
    /// The interface and the number of each forged announcement.
    announced: RefCell<VecDeque<(usize, u64)>>,
}

impl Prey {
    pub(super) fn new(at_a: &Context, at_b: &Context) -> Result<Prey, Error> {
        let side = |context: &Context| -> Result<(Region, Vec<u8>), Error> {
            let region = context.register_with(vec![BEFORE; LEN], Access::ALL)?;
            let key = region.remote_key()?;
            Ok((region, key))
        };
        Ok(Prey {
            sides: [side(at_a)?, side(at_b)?],
            told_of_nothing: Cell::new(false),
            kept: RefCell::default(),
            announced: RefCell::default(),
        })
    }

    fn remember(&self, lie: Lie, from: usize, number: u64) {
        if lie != Lie::Announce {
            return;
        }
        let mut announced = self.announced.borrow_mut();
        announced.push_back((from, number));
        if announced.len() > REMEMBERED {
            let _ = announced.pop_front();
        }
    }

    /// Records whether the notification of a forged put has arrived although the put has written nothing.
    pub(super) fn hear(&self, word: u32) {
        let bytes = self.sides[1].0.to_vec(FROM..FROM + 8);
        if word == NO_PUT && bytes.is_ok_and(|bytes| bytes == [BEFORE; 8]) {
            self.told_of_nothing.set(true);
        }
    }

    pub(super) fn look(&self) -> Result<(), String> {
        if self.told_of_nothing.get() {
            return Err("the word of a put was told that was refused".into());
        }
        for (region, _) in &self.sides {
            let bytes = region.to_vec(0..LEN).map_err(|error| error.to_string())?;
            if !are_untouched(&bytes) {
                return Err(format!("a lie has written where it may not: {bytes:x?}"));
            }
        }
        Ok(())
    }
}

const NO_PUT: u32 = 0x1234;

#[derive(Default)]
struct Body {
    fields: Vec<Vec<u8>>,
    wrong: Vec<Vec<Vec<u8>>>,
}

impl Body {
    fn field(mut self, right: &[u8], wrong: impl IntoIterator<Item = Vec<u8>>) -> Body {
        self.fields.push(right.to_vec());
        self.wrong.push(wrong.into_iter().collect());
        self
    }

    fn number(self, right: u64, wrong: &[u64]) -> Body {
        self.field(&right.to_le_bytes(), wrong.iter().map(|wrong| wrong.to_le_bytes().to_vec()))
    }

    fn byte(self, right: u8, wrong: &[u8]) -> Body {
        self.field(&[right], wrong.iter().map(|wrong| vec![*wrong]))
    }

    fn short(self, right: u16, wrong: &[u16]) -> Body {
        self.field(&right.to_le_bytes(), wrong.iter().map(|wrong| wrong.to_le_bytes().to_vec()))
    }

    /// Appends a field of bytes that follow their length.
    fn blob(self, right: &[u8], wrong: &[&[u8]]) -> Body {
        let len = right.len() as u16;
        let wrong = wrong.iter().map(|wrong| wrong.to_vec());
        self.short(len, &[0, 1, len.wrapping_sub(1), len + 1, u16::MAX])
            .field(right, wrong.chain([vec![0xff; right.len()], Vec::new()]))
    }

    /// Appends the numbers of a region and an offset; all alternatives except the first are out of range.
    fn target(self, key: &[u8]) -> Body {
        let numbers = [&key[NUMBERS..NUMBERS + 8], &key[NUMBERS + 8..NUMBERS + 16]];
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let [region, generation] = numbers.map(number);
        self.number(region, &[0, region + 1000, u64::MAX])
            .number(generation, &[0, generation ^ 1, u64::MAX])
            .number(FROM as u64, &[57, 64, 1 << 40, 1 << 63, u64::MAX - 7, u64::MAX])
    }

    fn spoilt(mut self, wrong: usize) -> Vec<u8> {
        let (field, which) = (wrong % (self.fields.len() + 3), wrong / 64);
        if let Some(wrong) = self.wrong.get(field).filter(|wrong| !wrong.is_empty()) {
            self.fields[field] = wrong[which % wrong.len()].clone();
        }
        let mut bytes = self.fields.concat();
        match field.wrapping_sub(self.fields.len()) {
            0 => bytes.truncate(which % (bytes.len() + 1)),
            1 => bytes.extend(vec![0xa5; which % 17]),
            _ => {}
        }
        bytes
    }
}

fn worker_of(address: &[u8]) -> &[u8] {
    let host = usize::from(address[59]);
    &address[60 + host..76 + host]
}

/// Makes a correct body, from the keys of the receiver's memory and of the alleged sender's memory, and from their addresses.
fn body(lie: Lie, (key, theirs): (&[u8], &[u8]), (to, from): (&[u8], &[u8])) -> Body {
    let ends = [1 << 40, 1 << 63, u64::MAX - 7, u64::MAX];
    match lie {
        Lie::Put => {
            // The length is too large even if the first eight bytes are parsed as the notification word of a put.
            let too_long = [LEN + 1, 100, 1900].map(|len| vec![0xbb; len]);
            Body::default().target(key).field(&[0xbb; 8], too_long)
        }
        Lie::Get => Body::default().target(key).number(8, &ends),
        Lie::Atomic => Body::default()
            .target(key)
            .number(1, &ends)
            .number(0, &ends)
            .byte(0, &[8, 31, 32, 33, 64, 255])
            .byte(8, &[0, 1, 2, 3, 7, 16, 128, 255]),
        Lie::GetData => Body::default()
            .number(0, &ends)
            .field(&0i32.to_le_bytes(), [vec![0xff; 4], 1i32.to_le_bytes().to_vec()])
            .field(&[0; 4], [vec![0xff; 4]])
            .field(&[0xbb; 8], [vec![0xbb; 1900]]),
        Lie::Reply => {
            let refused = (Status::PeerFailed as i32).to_le_bytes().to_vec();
            Body::default().field(&[0; 4], [refused, vec![0xff; 4]]).number(77, &ends)
        }
        Lie::Ping => Body::default().field(&[], [vec![0xbb; 40]]),
        Lie::Assist => Body::default()
            .byte(1, &[0, 2])
            .short(1, &[0, u16::MAX])
            .short(0, &[15, 16, u16::MAX])
            .number(LEN as u64, &ends)
            .number(0, &ends)
            .target(key)
            .blob(key, &[])
            .blob(key, &[]),
        Lie::Wireup => Body::default()
            .field(b"TW\x01", [b"TW\x02".to_vec(), b"TX\x01".to_vec()])
            .byte(1, &[0, 2, 3, 4, 5, 6, 255])
            .field(worker_of(from), [vec![0; 16], worker_of(to).to_vec()])
            .field(worker_of(to), [vec![0; 16], worker_of(from).to_vec()])
            .number(1, &ends)
            .number(0, &ends)
            .byte(2, &[0, 1, 3, 255])
            .field(b"am", [b"xx".to_vec(), vec![0xff; 2]])
            .field(&1u32.to_le_bytes(), [vec![0; 4], vec![0xff; 4]])
            .blob(from, &[])
            .blob(&1u64.to_le_bytes(), &[]),
        Lie::Service => Body::default()
            .field(b"TS\x01", [b"TS\x02".to_vec(), b"TT\x01".to_vec()])
            .byte(1, &[0, 2, 3, 4, 5, 6, 255])
            .number(1, &ends)
            .byte(1, &[0, 2, 255])
            .field(b"x", [vec![0xff]])
            .short(0, &[1, u16::MAX]),
        Lie::Notify => Body::default().field(&[], [vec![0xbb; 40]]),
        Lie::PutNotify => Body::default()
            .target(key)
            .field(&NO_PUT.to_le_bytes(), [vec![0; 4], vec![0xff; 4]])
            .field(&[0; 4], [vec![0xff; 4]])
            .field(&[0xbb; 8], [LEN + 1, 100, 1900].map(|len| vec![0xbb; len])),
        Lie::Announce => Body::default()
            .short(NEVER_SENT, &[0xf000, 0xf00b, u16::MAX, 0])
            .field(&[0; 6], [vec![0xff; 6]])
            .number(3, &ends)
            .number(LEN as u64, &[0, 1, LEN as u64 + 1, 1 << 40, 1 << 63, u64::MAX])
            .blob(theirs, &[key]),
        Lie::Withdraw => Body::default().field(&[], [vec![1], vec![0; 40]]),
        Lie::Key => Body::default().number(7, &ends),
        Lie::Headed | Lie::Deliver => {
            let head = Body::default()
                .short(NEVER_SENT, &[99, 0xf000, 0xf010, u16::MAX])
                .byte(3, &[0, 4, 32, 33, 255])
                .field(&[0; 5], [vec![0xff; 5]]);
            let head = if lie == Lie::Deliver { head.number(3, &ends) } else { head };
            head.field(&[7; 3], [vec![7; 40], Vec::new()])
        }
        Lie::Delivered => {
            Body::default().number(7, &ends).field(&[], [vec![0xff; 8], vec![0; 400]])
        }
        Lie::AnnounceHeaded => Body::default()
            .short(NEVER_SENT, &[0xf000, 0xf013, u16::MAX, 0])
            .field(&[0; 6], [vec![0xff; 6]])
            .number(3, &ends)
            .number(LEN as u64, &[0, 1, LEN as u64 + 1, 1 << 40, 1 << 63, u64::MAX])
            .blob(theirs, &[key])
            .byte(3, &[0, 4, 32, 33, 255])
            .field(&[7; 3], [vec![7; 40], Vec::new()]),
        Lie::Named => Body::default().field(&[1; 20], [vec![0; 48], vec![1; 49], Vec::new()]),
        Lie::KeyNumbered => Body::default().number(PUBLISHED, &ends),
        Lie::KeyIs => Body::default().field(key, [vec![0xff; key.len()], Vec::new()]),
    }
}

impl Run {
    /// Delivers an unsolicited answer, of any kind, to the number of an existing operation, with any status.
    pub(super) fn lie(&mut self, end: usize, id: u32, of: usize, status: bool) {
        let Some(world) = self.world else { return };
        let lane = world.lanes()[0];
        let (at, from) = (world.interface(end + 1, lane), world.interface(0, lane));
        let cookies = world.cookies(end + 1);
        let cookie = cookies.iter().rev().nth(of).copied().unwrap_or(of as u64);
        let code = if status { Status::PeerFailed as i32 } else { 0 };
        let reply: Vec<u8> = [&code.to_le_bytes()[..], &77u64.to_le_bytes()].concat();
        let data: Vec<u8> =
            [&(of as u64).to_le_bytes()[..], &code.to_le_bytes(), &[0; 4], &[0xfe; 5]].concat();
        let lie = match id {
            0xf004 => reply,
            0xf002 => data,
            _ => vec![of as u8; 8 * of],
        };
        // The alleged peer has to be known to the receiver.
        let _ = world.try_forge(from, at, id, cookie, &lie);
    }

    /// Delivers a body with one field changed: from the peer itself, from another peer, or from an unknown peer.
    pub(super) fn forge(
        &mut self,
        end: usize,
        to_target: bool,
        lie: Lie,
        wrong: usize,
    ) -> Result<(), String> {
        let Some(world) = self.world else { return Ok(()) };
        let lane = world.lanes()[0];
        let (b, a) = (world.interface(0, lane), world.interface(end + 1, lane));
        let other = world.interface((end + 1) % ENDS + 1, lane);
        let (worker, target) = (&self.workers[end], &self.b);
        let (Ok(at_end), Ok(at_target)) = (worker.address(), target.address()) else {
            return Ok(());
        };
        let [of_end, of_target] = self.prey.sides.each_ref().map(|(_, key)| &**key);
        let (at, peer, keys, said) = match to_target {
            true => (b, a, (of_target, of_end), (&*at_target, &*at_end)),
            false => (a, b, (of_end, of_target), (&*at_end, &*at_target)),
        };
        let bytes = body(lie, keys, said).spoilt(wrong / 64);
        if lie == Lie::PutNotify {
            let _ = self.prey.sides[1].0.write(FROM, &[BEFORE; 8]);
        }
        // Some forged messages have another id: one of the library's ids, or an unknown id.
        let id = match wrong % 16 {
            0 => 0xf000 + (wrong / 16 % 15) as u32,
            1 => 0x1_0000 | lie.id(),
            _ => lie.id(),
        };
        let numbers = [0, 1 << 40, 1 << 63 | 5, u64::MAX - 1, u64::MAX];
        let strange = numbers[wrong / 256 % numbers.len()];
        match wrong / 16 % 4 {
            // The message uses the number of a request that may be open for another operation.
            0 => {
                let asked = [world.calls(Slot::Short), world.calls(Slot::Packed)].concat();
                let own = |call: &&tieline_fake::Call| call.interface == at && call.id >= 0xf000;
                let question = asked.iter().rfind(own).map_or(strange, |call| call.cookie);
                world.forge_from_nobody(at, id, question, &bytes);
            }
            // The message uses a number that the end itself has announced, if there is one.
            1 if to_target => {
                let sent = [world.calls(Slot::Short), world.calls(Slot::Packed)].concat();
                let announced = |call: &&tieline_fake::Call| {
                    call.interface == a && call.id == Lie::Announce.id()
                };
                let number = match lie {
                    Lie::Withdraw | Lie::Announce => sent.iter().rfind(announced),
                    _ => None,
                };
                let number = number.map_or(strange, |call| call.cookie);
                let _ = world.try_forge(other, at, id, number, &bytes);
                self.prey.remember(lie, other, number);
            }
            // The message uses the number of a forged announcement.
            2 if to_target && lie == Lie::Withdraw => {
                let announced = self.prey.announced.borrow();
                let nth = wrong / 256 % announced.len().max(1);
                if let Some((from, number)) = announced.get(nth) {
                    let _ = world.try_forge(*from, at, id, *number, &bytes);
                }
            }
            _ => {
                let _ = world.try_forge(peer, at, id, strange, &bytes);
                if to_target {
                    self.prey.remember(lie, peer, strange);
                }
            }
        }
        if lie != Lie::Announce || !to_target {
            return Ok(());
        }
        // An announcement may be withdrawn after it was dispatched, and received nevertheless.
        let _ = progress(&self.b);
        let (last, end) = (self.prey.announced.borrow().back().copied(), wrong / 1024 % 4);
        if let (Some((from, number)), 0 | 1) = (last, end) {
            let body: &[u8] = if end == 0 { &[] } else { &[1] };
            let _ = world.try_forge(from, at, Lie::Withdraw.id(), number, body);
        }
        if wrong / 4096 % 2 == 0 {
            let _ = progress(&self.b);
        }
        if end > 0 { self.take_lie(wrong / 8192 % 5) } else { Ok(()) }
    }

    /// Makes the target receive a message that does not exist, or some quarters of the message.
    pub(super) fn take_lie(&mut self, quarters: usize) -> Result<(), String> {
        let Some(announcement) = self.prey.kept.borrow_mut().pop_front() else { return Ok(()) };
        self.take_this(NOT_SENT, announcement, quarters)
    }
}
