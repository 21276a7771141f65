//! A table whose entries have numbers. A number is reused at the earliest by the entry that is inserted 2^40 - 1 entries later.
//!
//! ```text
//! number = serial << 24 | place        serial: 1, 2, 3, ... for every entry that this table ever had
//! ```
//!
//! After its last value the serial begins again at 1. Inserting and removing take constant time on average. Empty pages are freed,
//! except one. A number fits 64 bits and is never 0. The number of a removed entry matches nothing, unless the same place gets the
//! same serial 2^40 - 1 entries later.

use std::num::NonZeroU64;

const PLACE_BITS: u32 = 24;
const PAGE: usize = 256;
const LAST_SERIAL: u64 = (1 << (64 - PLACE_BITS)) - 1;
/// The maximum number of concurrent entries. The places of the last page stay free, so the highest place can stand for "none".
const MOST: usize = (1 << PLACE_BITS) - PAGE;

/// The number of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(NonZeroU64);

impl Id {
    /// Converts a number received from a provider or a peer; 0 is no entry's number.
    #[inline]
    pub fn from_raw(raw: u64) -> Option<Id> {
        NonZeroU64::new(raw).map(Id)
    }

    /// The number that no entry has, because no entry uses its place.
    pub const NONE: Id = Id(NonZeroU64::MAX);

    /// Returns the number in the form that providers and peers use.
    #[inline]
    pub fn raw(self) -> u64 {
        self.0.get()
    }

    /// Returns the entry's place. After removal, another entry may use the same place.
    #[inline]
    pub fn place(self) -> usize {
        self.0.get() as usize & ((1 << PLACE_BITS) - 1)
    }
}

#[derive(Clone, Copy, Default)]
struct Slot<H> {
    /// The entry's number; 0: the slot is free.
    number: u64,
    hot: H,
}

/// The length of the arrays is part of their type, so that a place within a page needs no test.
struct Page<H, C> {
    slots: Box<[Slot<H>; PAGE]>,
    cold: Box<[C; PAGE]>,
    free: [u64; PAGE / 64],
    used: usize,
}

/// Makes the entries of a page, without a copy of them on the stack.
fn boxed<T>(one: impl Fn() -> T) -> Box<[T; PAGE]> {
    let all: Box<[T]> = (0..PAGE).map(|_| one()).collect();
    match all.try_into() {
        Ok(all) => all,
        Err(_) => unreachable!("so many entries were made"),
    }
}

impl<H: Copy + Default, C: Default> Page<H, C> {
    fn new() -> Page<H, C> {
        Page {
            slots: boxed(Slot::default),
            cold: boxed(C::default),
            free: [u64::MAX; PAGE / 64],
            used: 0,
        }
    }

    fn take_place(&mut self) -> Option<usize> {
        let word = self.free.iter().position(|word| *word != 0)?;
        let bit = self.free[word].trailing_zeros() as usize;
        self.free[word] &= self.free[word] - 1;
        self.used += 1;
        Some(word * 64 + bit)
    }

    /// Puts an entry into a free place of this page. Returns its number for this serial, or `None` if the page is full.
    #[inline]
    fn put(&mut self, page: usize, serial: u64, hot: H) -> Option<u64> {
        let at = self.take_place()?;
        let number = serial << PLACE_BITS | (page * PAGE + at) as u64;
        *self.slots.get_mut(at)? = Slot { number, hot };
        Some(number)
    }

    fn give_place(&mut self, at: usize) {
        self.free[at / 64] |= 1 << (at % 64);
        self.used -= 1;
    }
}

thread_local! {
    /// The number of accesses to tables that this thread has counted, in builds with debug assertions. Tests use the count as a
    /// measure of an operation's cost that is independent of the machine.
    pub static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts one access, in builds with debug assertions.
#[inline(always)]
pub fn look() {
    #[cfg(debug_assertions)]
    LOOKS.set(LOOKS.get() + 1);
}

/// A table whose entries have two parts: `H` for frequent use, and `C`, which few uses touch.
#[derive(Default)]
pub struct Slab<H, C = ()> {
    pages: Vec<Option<Page<H, C>>>,
    /// The stack of pages with free places. The next entry uses the top page if that page has a free place. A full or freed page
    /// stays in the stack until an insert finds it at the top.
    roomy: Vec<u32>,
    /// Whether `roomy` contains a page, for each page. `roomy` contains a page at most once.
    listed: Vec<bool>,
    /// The indices of freed pages, without those that were made again.
    vacant: Vec<u32>,
    /// The page that became empty last, which may contain entries again.
    spare: Option<usize>,
    serial: u64,
}

impl<H: Copy + Default, C: Default> Slab<H, C> {
    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.pages.iter().flatten().map(|page| page.used).sum()
    }

    /// Inserts an entry; `None` if the table is full.
    #[inline(always)]
    pub fn insert(&mut self, hot: H) -> Option<Id> {
        look();
        let serial = if self.serial == LAST_SERIAL { 1 } else { self.serial + 1 };
        let top = self.roomy.last().map_or(usize::MAX, |page| *page as usize);
        let page = self.pages.get_mut(top).and_then(Option::as_mut);
        let number = match page.and_then(|page| page.put(top, serial, hot)) {
            Some(number) => number,
            None => self.put_elsewhere(serial, hot)?,
        };
        self.serial = serial;
        Id::from_raw(number)
    }

    /// Inserts an entry when the top page has no free place.
    #[cold]
    fn put_elsewhere(&mut self, serial: u64, hot: H) -> Option<u64> {
        let page = self.roomy_page()?;
        self.pages[page].as_mut()?.put(page, serial, hot)
    }

    fn roomy_page(&mut self) -> Option<usize> {
        while let Some(&page) = self.roomy.last() {
            look();
            match &self.pages[page as usize] {
                Some(room) if room.used < PAGE => return Some(page as usize),
                _ => {
                    self.listed[page as usize] = false;
                    let _ = self.roomy.pop();
                }
            }
        }
        let page = match self.vacant.pop() {
            Some(page) => page,
            None if self.pages.len() * PAGE >= MOST => return None,
            None => {
                self.pages.push(None);
                self.listed.push(false);
                (self.pages.len() - 1) as u32
            }
        };
        self.pages[page as usize] = Some(Page::new());
        self.list(page as usize);
        Some(page as usize)
    }

    fn list(&mut self, page: usize) {
        if !std::mem::replace(&mut self.listed[page], true) {
            self.roomy.push(page as u32);
        }
    }

    fn slot(&self, place: usize) -> Option<&Slot<H>> {
        look();
        self.pages.get(place / PAGE)?.as_ref()?.slots.get(place % PAGE)
    }

    /// Returns the `H` part of the entry with this number.
    pub fn get(&self, id: Id) -> Option<&H> {
        self.slot(id.place()).filter(|slot| slot.number == id.raw()).map(|slot| &slot.hot)
    }

    /// Returns the `H` part of the entry with this number, mutable.
    pub fn get_mut(&mut self, id: Id) -> Option<&mut H> {
        look();
        let page = self.pages.get_mut(id.place() / PAGE)?.as_mut()?;
        let slot = &mut page.slots[id.place() % PAGE];
        (slot.number == id.raw()).then_some(&mut slot.hot)
    }

    /// Returns the `C` part of an entry.
    pub fn cold(&self, id: Id) -> Option<&C> {
        look();
        let page = self.pages.get(id.place() / PAGE)?.as_ref()?;
        let at = id.place() % PAGE;
        (page.slots[at].number == id.raw()).then(|| &page.cold[at])
    }

    /// Returns the `C` part of an entry, mutable.
    pub fn cold_mut(&mut self, id: Id) -> Option<&mut C> {
        look();
        let page = self.pages.get_mut(id.place() / PAGE)?.as_mut()?;
        let at = id.place() % PAGE;
        (page.slots[at].number == id.raw()).then(|| &mut page.cold[at])
    }

    /// Returns both parts of an entry, mutable.
    pub fn both_mut(&mut self, id: Id) -> Option<(&mut H, &mut C)> {
        look();
        let page = self.pages.get_mut(id.place() / PAGE)?.as_mut()?;
        let at = id.place() % PAGE;
        let slot = &mut page.slots[at];
        (slot.number == id.raw()).then(|| (&mut slot.hot, &mut page.cold[at]))
    }

    /// Returns the `C` part of an entry that was inserted just now, so that its number needs no check.
    #[inline(always)]
    pub fn cold_of_new(&mut self, id: Id) -> Option<&mut C> {
        look();
        self.pages.get_mut(id.place() / PAGE)?.as_mut()?.cold.get_mut(id.place() % PAGE)
    }

    /// Returns the `H` part of the entry at a place, if there is one, mutable.
    #[inline(always)]
    pub fn at_mut(&mut self, place: usize) -> Option<&mut H> {
        look();
        let page = self.pages.get_mut(place / PAGE)?.as_mut()?;
        let slot = &mut page.slots[place % PAGE];
        (slot.number != 0).then_some(&mut slot.hot)
    }

    /// Returns the number of the entry at a place, if there is one.
    pub fn at(&self, place: usize) -> Option<Id> {
        self.slot(place).and_then(|slot| Id::from_raw(slot.number))
    }

    /// Returns all numbers, ordered by place.
    pub fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        let slots = self.pages.iter().flatten().flat_map(|page| page.slots.iter());
        slots.inspect(|_| look()).filter_map(|slot| Id::from_raw(slot.number))
    }

    /// Removes an entry and returns its `C` part.
    pub fn remove(&mut self, id: Id) -> Option<C> {
        let cold = std::mem::take(self.cold_mut(id)?);
        self.remove_hot(id);
        Some(cold)
    }

    /// Removes an entry whose `C` part is unchanged.
    pub fn remove_hot(&mut self, id: Id) {
        let _ = self.remove_hot_if(id, |_| true);
    }

    /// Removes an entry whose `C` part is unchanged if `is` accepts it. Returns whether it was removed.
    #[inline(always)]
    pub fn remove_hot_if(&mut self, id: Id, is: impl FnOnce(&H) -> bool) -> bool {
        look();
        let number = id.place() / PAGE;
        let Some(page) = self.pages.get_mut(number).and_then(Option::as_mut) else { return false };
        let at = id.place() % PAGE;
        let slot = &mut page.slots[at];
        if slot.number != id.raw() || !is(&slot.hot) {
            return false;
        }
        slot.number = 0;
        let was_full = page.used == PAGE;
        page.give_place(at);
        let empty = page.used == 0;
        if was_full {
            self.list(number);
        }
        if empty {
            self.emptied(number);
        }
        true
    }

    /// Handles a page that became empty. One empty page is kept, so that alternating inserts and removals of one entry cost no
    /// allocation.
    #[inline(never)] // keeps the common case (page not empty) small
    fn emptied(&mut self, number: usize) {
        let spare = self.spare.replace(number);
        if let Some(spare) = spare.filter(|spare| *spare != number && self.is_empty(*spare)) {
            self.pages[spare] = None;
            self.vacant.push(spare as u32);
        }
    }

    fn is_empty(&self, page: usize) -> bool {
        self.pages[page].as_ref().is_some_and(|page| page.used == 0)
    }

    /// Returns the number of pages.
    #[cfg(test)]
    fn page_count(&self) -> usize {
        self.pages.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_number_is_not_given_away_twice_and_never_zero() {
        let mut slab: Slab<u32> = Slab::default();
        let first = slab.insert(1).unwrap();
        assert_eq!(slab.remove(first), Some(()));
        let second = slab.insert(2).unwrap();
        assert_eq!(first.place(), second.place());
        assert_ne!(first, second);
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&2)));
        assert_eq!(slab.remove(first), None);
        assert_eq!(Id::from_raw(0), None);
    }

    #[test]
    fn the_serial_that_follows_the_last_one_is_one_and_not_zero() {
        let mut slab: Slab<u32> = Slab { serial: (1 << 40) - 2, ..Slab::default() };
        let ids = [0; 3].map(|_| slab.insert(7).unwrap());
        assert_eq!(ids.map(|id| id.raw() >> PLACE_BITS), [(1 << 40) - 1, 1, 2]);
        assert!(ids.iter().all(|id| slab.get(*id) == Some(&7)));
    }

    #[test]
    fn pages_of_a_burst_are_given_back_also_when_a_few_entries_stay() {
        let mut slab: Slab<u32> = Slab::default();
        let ids: Vec<Id> = (0..100 * PAGE as u32).map(|n| slab.insert(n).unwrap()).collect();
        assert_eq!(slab.page_count(), 100);
        for id in ids.iter().skip(3) {
            assert!(slab.remove(*id).is_some());
        }
        assert_eq!(slab.count(), 3);
        assert!(slab.page_count() <= 2, "{}", slab.page_count());
        assert!(ids[..3].iter().zip(0..).all(|(id, n)| slab.get(*id) == Some(&n)));
    }

    #[test]
    fn a_full_table_says_so_and_loses_nothing() {
        let mut slab: Slab<u8> = Slab::default();
        let all: Vec<Id> = std::iter::from_fn(|| slab.insert(0)).take(MOST + 1).collect();
        assert_eq!(all.len(), MOST);
        assert!(slab.remove(all[12_345]).is_some());
        assert_eq!(slab.insert(1).map(Id::place), Some(all[12_345].place()));
        assert_eq!(slab.insert(1), None);
        assert_eq!(slab.get(Id::NONE), None);
        assert_eq!(slab.remove(Id::NONE), None);
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(steps in proptest::collection::vec(any::<u16>(), 1..2000)) {
            let (mut slab, mut map): (Slab<u16, u64>, HashMap<Id, u16>) = Default::default();
            let mut ids = Vec::new();
            for step in steps {
                if step % 3 != 0 || ids.is_empty() {
                    let id = slab.insert(step).unwrap();
                    *slab.cold_mut(id).unwrap() = u64::from(step) << 20;
                    prop_assert_eq!(map.insert(id, step), None);
                    ids.push(id);
                } else {
                    let id = ids.swap_remove(usize::from(step) % ids.len());
                    let held = map.remove(&id).unwrap();
                    prop_assert_eq!(slab.remove(id), Some(u64::from(held) << 20));
                    prop_assert_eq!(slab.get(id), None);
                }
                prop_assert_eq!((slab.count(), slab.ids().count()), (map.len(), map.len()));
                let listed = slab.roomy.len();
                prop_assert!(listed <= slab.pages.len());
            }
            prop_assert!(map.iter().all(|(id, held)| slab.get(*id) == Some(held)));
        }
    }
}
