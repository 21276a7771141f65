//! The outstanding sends of one queue pair.
//!
//! The device completes in order and reports only signalled or failed sends, so one completion also retires all sends before it.

use crate::memory::Loan;
use std::collections::VecDeque;

/// The work to do at a send's completion.
#[derive(Default)]
pub(crate) struct Ends {
    /// The cookie of the operation, if the application waits for this completion.
    pub(crate) cookie: Option<u64>,
    /// Whether the application is notified only of a failure; success is implied by a later operation.
    pub(crate) silent: bool,
    /// The message buffer to release.
    pub(crate) buffer: Option<u32>,
    /// The buffer for the fetched value of an atomic.
    pub(crate) result: Option<u32>,
    /// The transient registrations of this operation. Few operations have any, and every record is moved, so this field is small.
    pub(crate) borrowed: Option<Box<[Loan]>>,
    /// Whether the device reads or writes memory of the application.
    pub(crate) foreign: bool,
    /// The number of parts of the list that this send completes; 0 for another part of a list.
    pub(crate) list: Option<u32>,
    pub(crate) role: Role,
}

/// The purpose of a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    #[default]
    User,
    Hello,
    Bye,
    Keepalive,
}

/// The stored form of [`Ends`], without registrations.
#[derive(Clone, Copy, Default)]
struct Sent {
    cookie: u64,
    buffer: u32,
    result: u32,
    /// The flags for the fields in use and the other properties: `COOKIE` and the constants after it.
    flags: u8,
    role: Role,
}

const COOKIE: u8 = 1;
const SILENT: u8 = 2;
const BUFFER: u8 = 4;
const RESULT: u8 = 8;
const FOREIGN: u8 = 16;
const BORROWED: u8 = 32;
/// A send of the provider, not of the application.
const CONTROL: u8 = 64;
/// A part of a list. With `COOKIE`, `result` has the number of parts.
const LIST: u8 = 128;
/// The flags of sends that need more than a completion event.
const NOT_PLAIN: u8 = BUFFER | RESULT | BORROWED | CONTROL;

/// The outstanding sends, oldest first.
pub(crate) struct SendQueue {
    /// A ring, indexed by the send's number. Its length is zero or a power of two.
    sends: Vec<Sent>,
    /// The transient registrations of sends, oldest first. Few sends have any.
    borrowed: VecDeque<Box<[Loan]>>,
    /// The number of the oldest send, and the count of sends.
    first: u32,
    len: u32,
    /// The number of sends since the last signalled one.
    silent: u32,
    /// The limit on sends of the application: the present one, and the maximum.
    depth: usize,
    made_for: usize,
}

/// The initial length of the ring.
const FIRST_ROOM: usize = 16;
/// The number of entries beyond the depth, for control messages.
pub(crate) const RESERVE: usize = 8;

impl SendQueue {
    pub(crate) fn new(depth: usize) -> SendQueue {
        let (sends, borrowed) = (Vec::new(), VecDeque::new());
        SendQueue { sends, borrowed, first: 0, len: 0, silent: 0, depth, made_for: depth }
    }

    /// Checks whether an operation of the application fits into the queue.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.len() < self.depth
    }

    /// Returns the number of operations that fit into the queue.
    pub(crate) fn room(&self) -> usize {
        self.depth.saturating_sub(self.len())
    }

    /// Sets the limit, at most to the depth at creation. Returns whether outstanding sends fill the queue and none of them is
    /// signalled.
    pub(crate) fn limit(&mut self, depth: usize) -> bool {
        self.depth = depth.min(self.made_for);
        !self.has_room() && !self.awaits_completion()
    }

    /// Returns the number of completion queue entries that this queue may need: each send may fail.
    pub(crate) fn completions(&self) -> usize {
        self.len().max(self.depth) + RESERVE
    }

    /// Checks whether a control message fits into the queue.
    pub(crate) fn has_reserve(&self) -> bool {
        self.len() < self.made_for + RESERVE - 1
    }

    /// Checks whether a send must be signalled although the application does not wait for it.
    #[inline]
    pub(crate) fn must_signal(&self) -> bool {
        self.silent as usize + 1 >= self.depth / 4
    }

    /// Returns the memory of a queue in which `depth` sends of the application and all reserved ones have been outstanding, in
    /// bytes.
    pub(crate) fn bytes(depth: usize) -> usize {
        (depth + RESERVE).next_power_of_two().max(FIRST_ROOM) * size_of::<Sent>()
    }

    /// Returns the number of the next send.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.len)
    }

    /// Records a posted send.
    #[inline(always)] // lets the compiler drop the tests of absent fields
    pub(crate) fn push(&mut self, ends: Ends, signalled: bool) {
        self.silent = if signalled { 0 } else { self.silent + 1 };
        if self.len() == self.sends.len() {
            self.grow();
        }
        let place = self.place(self.next());
        let Some(sent) = self.sends.get_mut(place) else { return };
        let mut flags =
            if ends.silent { SILENT } else { 0 } | if ends.foreign { FOREIGN } else { 0 };
        if ends.role != Role::User {
            sent.role = ends.role;
            flags |= CONTROL;
        }
        if let Some(cookie) = ends.cookie {
            sent.cookie = cookie;
            flags |= COOKIE;
        }
        if let Some(buffer) = ends.buffer {
            sent.buffer = buffer;
            flags |= BUFFER;
        }
        if let Some(result) = ends.result {
            sent.result = result;
            flags |= RESULT;
        }
        if let Some(parts) = ends.list {
            sent.result = parts;
            flags |= LIST;
        }
        if let Some(loans) = ends.borrowed {
            self.borrowed.push_back(loans);
            flags |= BORROWED;
        }
        sent.flags = flags;
        self.len += 1;
    }

    /// Returns the ring index of a send.
    #[inline]
    fn place(&self, number: u32) -> usize {
        number as usize & self.sends.len().wrapping_sub(1)
    }

    /// Doubles the ring.
    #[cold]
    fn grow(&mut self) {
        let numbers = (0..self.len).map(|ahead| self.first.wrapping_add(ahead));
        let (places, room) =
            (numbers.map(|number| (number, self.place(number))), 2 * self.sends.len());
        let places: Vec<(u32, usize)> = places.collect();
        let old = core::mem::take(&mut self.sends);
        self.sends.resize(room.max(FIRST_ROOM), Sent::default());
        for (number, from) in places {
            let to = self.place(number);
            self.sends[to] = old[from];
        }
    }

    /// Retires plain sends up to `number`. A plain send ends with at most a completion event. `tell` delivers that event and
    /// returns whether the event array had room. Returns whether all sends up to `number` are retired.
    #[inline(always)]
    pub(crate) fn retire_plain(&mut self, number: u32, mut tell: impl FnMut(u64) -> bool) -> bool {
        if !self.holds(number) {
            return true;
        }
        let mut first = self.first;
        let all = loop {
            let Some(sent) = self.sends.get(self.place(first)) else { break false };
            let goes = match sent.flags & (NOT_PLAIN | COOKIE | SILENT) {
                COOKIE => tell(sent.cookie),
                flags => flags & NOT_PLAIN == 0,
            };
            if !goes {
                break false;
            }
            first = first.wrapping_add(1);
            if first.wrapping_sub(1) == number {
                break true;
            }
        };
        self.len -= first.wrapping_sub(self.first);
        self.first = first;
        all
    }

    /// Retires the oldest send if its number is at most `number`.
    #[inline]
    pub(crate) fn retire(&mut self, number: u32) -> Option<Ends> {
        if !self.holds(number) {
            return None;
        }
        let &Sent { cookie, buffer, result, flags, role } =
            self.sends.get(self.place(self.first))?;
        self.first = self.first.wrapping_add(1);
        self.len -= 1;
        let has = |flag: u8| flags & flag != 0;
        Some(Ends {
            cookie: has(COOKIE).then_some(cookie),
            silent: has(SILENT),
            buffer: has(BUFFER).then_some(buffer),
            result: has(RESULT).then_some(result),
            borrowed: if has(BORROWED) { self.borrowed.pop_front() } else { None },
            foreign: has(FOREIGN),
            list: has(LIST).then_some(result),
            role: if has(CONTROL) { role } else { Role::User },
        })
    }

    /// Checks whether the send `number` is outstanding.
    #[inline]
    pub(crate) fn holds(&self, number: u32) -> bool {
        number.wrapping_sub(self.first) < self.len
    }

    /// Checks whether a signalled send is outstanding. The device never reports the success of unsignalled sends.
    pub(crate) fn awaits_completion(&self) -> bool {
        self.silent < self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Checks whether the device may still touch memory of the application.
    pub(crate) fn touches_application(&self) -> bool {
        let numbers = (0..self.len).map(|ahead| self.first.wrapping_add(ahead));
        numbers.map(|number| self.place(number)).any(|place| self.sends[place].flags & FOREIGN != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(cookie: u64) -> Ends {
        Ends { cookie: Some(cookie), ..Ends::default() }
    }

    #[test]
    fn one_completion_retires_all_before_it() {
        let mut queue = SendQueue::new(16);
        let mut numbers = Vec::new();
        for cookie in 0..5 {
            numbers.push(queue.next());
            queue.push(user(cookie), cookie == 3);
        }
        let retired: Vec<u64> =
            core::iter::from_fn(|| queue.retire(numbers[3])).filter_map(|e| e.cookie).collect();
        assert_eq!(retired, [0, 1, 2, 3]);
        assert!(queue.holds(numbers[4]) && !queue.holds(numbers[3]));
        assert!(queue.retire(numbers[3]).is_none(), "a number that has passed retires nothing");
    }

    #[test]
    fn plain_sends_retire_until_room_ends_or_a_send_is_not_plain() {
        let mut queue = SendQueue::new(16);
        queue.push(user(1), false);
        queue.push(Ends { foreign: true, ..Ends::default() }, false);
        queue.push(Ends { silent: true, ..user(2) }, false);
        queue.push(user(3), true);
        queue.push(Ends { buffer: Some(7), ..user(4) }, true);
        queue.push(Ends { role: Role::Keepalive, ..Ends::default() }, true);
        queue.push(user(5), true);
        let mut told = Vec::new();
        let mut tell = |queue: &mut SendQueue, number: u32, room: usize| {
            let all = queue.retire_plain(number, |cookie| {
                let fits = told.len() < room;
                told.extend(fits.then_some(cookie));
                fits
            });
            (all, told.clone(), queue.len())
        };
        assert_eq!(tell(&mut queue, 1, 9), (true, vec![1], 5), "those behind have not ended");
        assert_eq!(tell(&mut queue, 6, 1), (false, vec![1], 4), "there is no room for the third");
        assert_eq!(tell(&mut queue, 6, 9), (false, vec![1, 3], 3), "a buffer ends with the next");
        assert_eq!(
            queue.retire(6).map(|ends| (ends.cookie, ends.buffer)),
            Some((Some(4), Some(7)))
        );
        assert_eq!(tell(&mut queue, 6, 9), (false, vec![1, 3], 2));
        assert_eq!(queue.retire(6).map(|ends| ends.role), Some(Role::Keepalive));
        assert_eq!(tell(&mut queue, 6, 9), (true, vec![1, 3, 5], 0));
    }

    #[test]
    fn completion_entries_cover_outstanding_sends_and_reserve() {
        let mut queue = SendQueue::new(16);
        assert_eq!(queue.completions(), 16 + RESERVE);
        (0..16).for_each(|cookie| queue.push(user(cookie), true));
        let _ = queue.limit(4);
        assert_eq!(queue.completions(), 16 + RESERVE, "until they have ended");
        let _ = core::iter::from_fn(|| queue.retire(15)).count();
        assert_eq!(queue.completions(), 4 + RESERVE);
    }

    #[test]
    fn send_numbers_wrap_around_safely() {
        let mut queue = SendQueue::new(16);
        queue.first = u32::MAX - 1;
        for cookie in 0..4 {
            queue.push(user(cookie), true);
        }
        let last = queue.next().wrapping_sub(1);
        assert_eq!(core::iter::from_fn(|| queue.retire(last)).count(), 4);
        assert_eq!(queue.next(), 2);
    }

    #[test]
    fn send_queue_keeps_order_while_it_grows() {
        let mut queue = SendQueue::new(1000);
        queue.first = u32::MAX - 20;
        let mut retired = 0;
        for cookie in 0..700 {
            queue.push(user(cookie), true);
            if cookie % 3 == 0 {
                let oldest = queue.retire(queue.next().wrapping_sub(1)).unwrap();
                assert_eq!(oldest.cookie, Some(retired));
                retired += 1;
            }
        }
        let last = queue.next().wrapping_sub(1);
        let rest: Vec<u64> =
            core::iter::from_fn(|| queue.retire(last)).filter_map(|ends| ends.cookie).collect();
        assert_eq!(rest, (retired..700).collect::<Vec<_>>());
        assert!(queue.is_empty() && queue.retire(last).is_none());
    }

    #[test]
    fn full_queue_always_holds_a_signalled_send() {
        for depth in [16, 17, 128] {
            let mut queue = SendQueue::new(depth);
            let mut signalled = 0;
            while queue.has_room() {
                let signal = queue.must_signal();
                signalled += usize::from(signal);
                queue.push(Ends::default(), signal);
            }
            assert!(signalled >= 4, "{signalled} of {depth}");
            assert!(queue.has_reserve());
        }
    }

    #[test]
    fn room_reserve_and_signalling_are_exact_to_the_last_entry() {
        let mut queue = SendQueue::new(16);
        let mut asked = Vec::new();
        for cookie in 0..16 {
            assert_eq!((queue.room(), queue.has_room()), (16 - cookie as usize, true));
            let asks = queue.must_signal();
            asked.push(asks);
            queue.push(user(cookie), asks);
        }
        assert_eq!(asked, [[false, false, false, true]; 4].concat());
        assert_eq!((queue.room(), queue.has_room()), (0, false));
        for _ in 1..RESERVE {
            assert!(queue.has_reserve());
            queue.push(Ends { role: Role::Keepalive, ..Ends::default() }, true);
        }
        assert!(!queue.has_reserve(), "the last place is for the send that ends all");
        assert_eq!((queue.room(), queue.len()), (0, 16 + RESERVE - 1));
        let each = size_of::<Sent>();
        for (depth, places) in [(1, 16), (8, 16), (9, 32), (24, 32), (120, 128), (121, 256)] {
            assert_eq!(SendQueue::bytes(depth), places * each, "{depth}");
        }
    }

    #[test]
    fn queue_reports_being_full_of_unsignalled_sends() {
        let mut queue = SendQueue::new(16);
        assert!(!queue.awaits_completion() && !queue.touches_application());
        queue.push(Ends { foreign: true, ..user(0) }, false);
        (1..4).for_each(|cookie| queue.push(user(cookie), false));
        assert!(!queue.awaits_completion() && queue.touches_application());
        assert!(!queue.limit(5), "there is room for one more");
        assert!(queue.limit(4));
        assert_eq!((queue.limit(100), queue.room()), (false, 12), "it was made for no more");
        queue.push(user(4), true);
        assert!(queue.awaits_completion() && !queue.limit(5));
        queue.push(user(5), false);
        assert!(queue.awaits_completion(), "that of the one before");
        assert_eq!(core::iter::from_fn(|| queue.retire(4)).count(), 5);
        assert!(!queue.awaits_completion() && !queue.touches_application());
    }
}
