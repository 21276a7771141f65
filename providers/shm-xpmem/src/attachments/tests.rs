//! Tests of the cache's contents, its evictions, and its calls of the kernel module.

use super::*;
use crate::double::{Command, Played, There};
use crate::settings::Reach;

const PAGE: u64 = 4096;
const WINDOW: u64 = 4 * PAGE;
const OWNER: Nonce = [1; 16];

struct Table {
    played: Arc<Played>,
    attachments: Arc<Attachments>,
    segment: Segment,
    /// The segment of each owner's card and the memory of that segment.
    cards: Vec<(Nonce, Segment, Vec<u8>)>,
}

/// The number of segments that exist independently of attachments: one of all memory, and two of cards.
const SEGMENTS: usize = 3;

fn card(played: &Played, owner: Nonce) -> (Nonce, Segment, Vec<u8>) {
    let len = PAGE as usize;
    let mut memory = vec![0u8; 2 * len];
    let start = memory.as_mut_ptr().expose_provenance().next_multiple_of(len);
    let inside = start - memory.as_ptr().addr();
    memory[inside..][..16].copy_from_slice(&owner);
    (owner, played.make(start as u64, PAGE).unwrap(), memory)
}

/// Returns a cache with windows of four pages over a segment of all memory, with these limits on attachments and bytes.
fn table(attachments: u64, cache: u64) -> Table {
    let played = Arc::new(Played::default());
    let (window, reach) = (WINDOW, Reach::Direct);
    let (segments, page, declines) = (256, PAGE, false);
    let settings = Settings { reach, declines, cache, attachments, window, segments, page };
    let segment = played.make(0, u64::MAX).unwrap();
    let attachments = Arc::new(Attachments::new(played.clone(), settings));
    let cards = [OWNER, [2; 16]].map(|owner| card(&played, owner)).into();
    Table { attachments, played, segment, cards }
}

impl Table {
    /// Returns a registration of this range.
    fn place(&self, generation: u64, base: u64, len: u64) -> Where {
        let segment = self.segment;
        let (owner, segment_start, window) = (OWNER, 0, WINDOW);
        let card = self.card_of(owner);
        Where { owner, card, generation, segment, segment_start, base, len, window }
    }

    fn card_of(&self, owner: Nonce) -> Segment {
        self.cards.iter().find(|card| card.0 == owner).unwrap().1
    }

    /// Returns the numbers of the attached windows.
    fn windows(&self) -> Vec<u64> {
        self.played.ranges().iter().map(|range| range.0 / WINDOW).collect()
    }
}

#[test]
fn a_window_is_cut_to_the_pages_of_its_registration_and_attached_once() {
    let table = table(100, u64::MAX);
    let place = table.place(1, 2 * WINDOW + PAGE + 100, 2 * WINDOW);
    let first = table.attachments.attach(place, place.base).unwrap();
    assert_eq!(first.of(place.base), Some((place.base, 3 * PAGE - 100)));
    assert_eq!(first.of(place.base - 101), None);
    assert_eq!(first.of(3 * WINDOW), None);
    let again = table.attachments.attach(place, 3 * WINDOW - 1).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    let _ = table.attachments.attach(place, 3 * WINDOW).unwrap();
    let _ = table.attachments.attach(place, 4 * WINDOW + PAGE).unwrap();
    // The last window has two pages: the registration ends 100 bytes after the first page.
    let ranges = [(2 * WINDOW + PAGE, 3 * PAGE), (3 * WINDOW, WINDOW), (4 * WINDOW, 2 * PAGE)];
    assert_eq!(table.played.ranges(), ranges);
    assert_eq!(table.attachments.all(), Attached { count: 3, bytes: 9 * PAGE });
    assert_eq!(table.attachments.of(&OWNER), 9 * PAGE);
    assert_eq!(table.attachments.of(&[2; 16]), 0);
    assert_eq!(table.played.asked(Command::Get), 2, "one permit serves them all, and one the card");
}

#[test]
fn a_registration_at_the_end_of_the_address_space_has_a_last_window() {
    let table = table(100, u64::MAX);
    let base = u64::MAX - 50;
    let place = Where { segment_start: 0, ..table.place(1, base, 50) };
    // No such memory exists: the module returns the error, and the arithmetic does not overflow.
    assert_eq!(table.attachments.attach(place, base).err(), Some(libc::EINVAL));
    let before = Where { segment_start: base, ..place };
    assert_eq!(table.attachments.attach(before, base).err(), Some(libc::EINVAL));
}

#[test]
fn least_recently_used_window_is_evicted_at_the_count_limit() {
    let table = table(3, u64::MAX);
    let place = table.place(1, WINDOW, 100 * WINDOW);
    for window in 1..=3 {
        drop(table.attachments.attach(place, window * WINDOW).unwrap());
    }
    drop(table.attachments.attach(place, WINDOW).unwrap());
    drop(table.attachments.attach(place, 4 * WINDOW).unwrap());
    assert_eq!(table.windows(), [1, 3, 4]);
    let cold = table.attachments.cold(place, WINDOW + 5, 3 * WINDOW);
    assert_eq!(cold, [(2, WINDOW)]);
    assert_eq!(table.attachments.cold(place, 2 * WINDOW + 5, 7), [(2, 7)]);
    assert_eq!(table.attachments.cold(place, WINDOW, 5), []);
    drop(table.attachments.attach(place, 5 * WINDOW).unwrap());
    assert_eq!(table.windows(), [1, 4, 5]);
    for round in 0..50 {
        drop(table.attachments.attach(place, (10 + round) * WINDOW).unwrap());
        assert_eq!(table.attachments.all().count, 3);
        assert_eq!(table.played.there().attached, 3);
    }
    assert_eq!(table.windows(), [57, 58, 59]);
}

#[test]
fn enough_windows_are_evicted_at_the_byte_limit() {
    let table = table(100, 2 * WINDOW);
    let one_page = |n: u64| table.place(n, n * WINDOW, PAGE);
    for n in 1..=8 {
        drop(table.attachments.attach(one_page(n), n * WINDOW).unwrap());
    }
    assert_eq!(table.attachments.all(), Attached { count: 8, bytes: 2 * WINDOW });
    let long = table.place(9, 9 * WINDOW, WINDOW);
    drop(table.attachments.attach(long, 9 * WINDOW).unwrap());
    assert_eq!(table.windows(), [5, 6, 7, 8, 9]);
    assert_eq!(table.attachments.all(), Attached { count: 5, bytes: 2 * WINDOW });
}

#[test]
fn attachments_in_use_stay_and_an_excess_one_ends_with_its_access() {
    let table = table(2, u64::MAX);
    let place = table.place(1, WINDOW, 100 * WINDOW);
    let held: Vec<_> =
        (1..=2).map(|n| table.attachments.attach(place, n * WINDOW).unwrap()).collect();
    let third = table.attachments.attach(place, 3 * WINDOW).unwrap();
    assert_eq!(table.windows(), [1, 2, 3]);
    drop(third);
    assert_eq!(table.windows(), [1, 2]);
    assert_eq!(table.attachments.all().count, 2);
    drop(held);
    drop(table.attachments.attach(place, 4 * WINDOW).unwrap());
    assert_eq!(table.windows(), [2, 4]);
}

#[test]
fn forgotten_attachment_in_use_ends_with_that_use() {
    let table = table(10, u64::MAX);
    let (one, two) = (table.place(1, WINDOW, WINDOW), table.place(2, 2 * WINDOW, WINDOW));
    let used = table.attachments.attach(one, WINDOW).unwrap();
    drop(table.attachments.attach(two, 2 * WINDOW).unwrap());
    table.attachments.forget(&OWNER, 1);
    assert_eq!(table.windows(), [1, 2]);
    assert_eq!(table.attachments.all(), Attached { count: 1, bytes: WINDOW });
    drop(used);
    assert_eq!(table.windows(), [2]);
    table.attachments.forget(&[9; 16], 2);
    assert_eq!(table.windows(), [2], "another owner's");
}

#[test]
fn last_endpoint_to_an_owner_releases_attachments_and_permits() {
    let table = table(10, u64::MAX);
    let place = table.place(1, WINDOW, WINDOW);
    let other = Where { owner: [2; 16], card: table.card_of([2; 16]), ..place };
    for owner in [OWNER, OWNER, [2; 16]] {
        table.attachments.join(&owner);
    }
    drop(table.attachments.attach(place, WINDOW).unwrap());
    drop(table.attachments.attach(other, WINDOW).unwrap());
    assert_eq!(table.played.there(), There { segments: SEGMENTS, permits: 2, attached: 2 });
    table.attachments.leave(&OWNER);
    assert_eq!(table.played.there().attached, 2);
    table.attachments.leave(&OWNER);
    assert_eq!(table.played.there(), There { segments: SEGMENTS, permits: 1, attached: 1 });
    table.attachments.clear();
    assert_eq!(table.played.there(), There { segments: SEGMENTS, permits: 0, attached: 0 });
    assert_eq!(table.attachments.all(), Attached::default());
}

#[test]
fn attach_without_mappings_evicts_others_and_retries_once() {
    let table = table(100, u64::MAX);
    let place = table.place(1, WINDOW, 100 * WINDOW);
    let held = table.attachments.attach(place, WINDOW).unwrap();
    drop(table.attachments.attach(place, 2 * WINDOW).unwrap());
    for want in [libc::ENOMEM, libc::EAGAIN] {
        table.played.fail(Command::Attach, want);
        drop(table.attachments.attach(place, 3 * WINDOW).unwrap());
        assert_eq!(table.windows(), [1, 3]);
        for _ in 0..2 {
            table.played.fail(Command::Attach, want);
        }
        assert_eq!(table.attachments.attach(place, 4 * WINDOW).err(), Some(want));
    }
    drop(held);
}

#[test]
fn refused_permit_is_retried_and_unused_permit_is_released() {
    let table = table(100, u64::MAX);
    let place = table.place(1, WINDOW, WINDOW);
    table.played.fail(Command::Get, libc::EACCES);
    assert_eq!(table.attachments.attach(place, WINDOW).err(), Some(libc::EACCES));
    table.played.fail(Command::Attach, libc::ENOENT);
    assert_eq!(table.attachments.attach(place, WINDOW).err(), Some(libc::ENOENT));
    assert_eq!(table.played.there(), There { segments: SEGMENTS, permits: 0, attached: 0 });
    assert!(table.attachments.attach(place, WINDOW).is_ok());
}

#[test]
fn ended_registrations_leave_only_bounded_state() {
    let table = table(50, u64::MAX);
    for n in 1..=100_000u64 {
        let place = table.place(n, (n % 1000 + 1) * WINDOW, PAGE);
        let place = Where { segment: table.segment, ..place };
        drop(table.attachments.attach(place, place.base).unwrap());
        assert!(table.attachments.all().count <= 50);
    }
    assert_eq!(table.played.there(), There { segments: SEGMENTS, permits: 1, attached: 50 });
    let state = table.attachments.state();
    assert!(state.order.len() <= 50 && state.permissions.len() < 200);
}

#[test]
fn whole_attachment_counts_against_limits_and_is_never_evicted() {
    let table = table(3, u64::MAX);
    let place = table.place(1, WINDOW + 100, 3 * WINDOW);
    let whole = table.attachments.attach_whole(place).unwrap();
    assert_eq!(whole.of(WINDOW + 100), Some(WINDOW + 100));
    assert_eq!(whole.of(4 * WINDOW + 100), Some(4 * WINDOW + 100));
    assert_eq!(table.played.ranges(), [(WINDOW, 3 * WINDOW + PAGE)]);
    assert_eq!(table.attachments.of(&OWNER), 3 * WINDOW + PAGE);
    let others = table.place(2, 10 * WINDOW, 10 * WINDOW);
    for n in 10..20 {
        drop(table.attachments.attach(others, n * WINDOW).unwrap());
    }
    assert_eq!(table.windows(), [1, 18, 19]);
    assert_eq!(table.attachments.all().count, 3);
    let (second, third) = (table.place(3, WINDOW, PAGE), table.place(4, WINDOW, PAGE));
    let second = table.attachments.attach_whole(second).unwrap();
    let third = table.attachments.attach_whole(third).unwrap();
    let refused = table.attachments.attach_whole(table.place(5, WINDOW, PAGE));
    assert_eq!(refused.err(), Some(libc::ENOSPC), "each of them stays");
    drop((whole, second, third));
    assert_eq!(table.attachments.all(), Attached::default());
    assert_eq!(table.attachments.of(&OWNER), 0);
    assert_eq!(table.played.there().attached, 0);
}

#[test]
fn registration_longer_than_the_cache_evicts_nothing() {
    let table = table(100, 4 * WINDOW);
    let place = table.place(1, WINDOW, 100 * WINDOW);
    for n in 1..=4 {
        drop(table.attachments.attach(place, n * WINDOW).unwrap());
    }
    assert_eq!(table.attachments.attach_whole(place).err(), Some(libc::ENOSPC));
    assert_eq!(table.windows(), [1, 2, 3, 4]);
    let whole = table.attachments.attach_whole(table.place(2, 20 * WINDOW, 3 * WINDOW)).unwrap();
    assert_eq!(table.windows(), [4, 20], "what can be made room for is");
    let second = table.attachments.attach_whole(table.place(3, 30 * WINDOW, 2 * WINDOW));
    assert_eq!(second.err(), Some(libc::ENOSPC), "beside what stays");
    assert_eq!(table.windows(), [4, 20]);
    drop(whole);
}

#[test]
fn whole_attachment_may_outlive_the_last_endpoint_to_its_owner() {
    let table = table(10, u64::MAX);
    table.attachments.join(&OWNER);
    let first = table.attachments.attach_whole(table.place(1, WINDOW, 2 * WINDOW)).unwrap();
    table.attachments.leave(&OWNER);
    table.attachments.join(&OWNER);
    let second = table.attachments.attach_whole(table.place(2, 8 * WINDOW, WINDOW)).unwrap();
    drop(first);
    drop(second);
    assert_eq!(table.attachments.of(&OWNER), 0);
    assert_eq!(table.attachments.all(), Attached::default());
}

#[test]
fn a_segment_is_its_owners_only_while_the_owners_card_is_there() {
    let table = table(10, u64::MAX);
    let place = table.place(1, WINDOW, WINDOW);
    assert_eq!(table.attachments.ask(place), Ok(()));
    // The segment number may belong to another program since, or the card may.
    let stranger = Where { owner: [3; 16], ..place };
    assert_eq!(table.attachments.attach(stranger, WINDOW).err(), Some(libc::ENOENT));
    assert_eq!(table.attachments.ask(stranger), Err(libc::ENOENT));
    table.played.remove(place.card).unwrap();
    assert_eq!(table.attachments.attach(place, WINDOW).err(), Some(libc::ENOENT));
    assert_eq!(table.attachments.ask(place), Err(libc::ENOENT));
    assert_eq!(table.played.there(), There { segments: SEGMENTS - 1, permits: 0, attached: 0 });
}

#[test]
fn contexts_with_different_windows_attach_separately() {
    let table = table(10, u64::MAX);
    let place = table.place(1, WINDOW, 100 * WINDOW);
    let small = Where { window: PAGE, ..place };
    drop(table.attachments.attach(place, 8 * WINDOW).unwrap());
    drop(table.attachments.attach(small, 8 * WINDOW + PAGE).unwrap());
    assert_eq!(table.played.ranges(), [(8 * WINDOW, WINDOW), (8 * WINDOW + PAGE, PAGE)]);
}

#[test]
fn ended_attachments_leave_no_order_entry_and_no_permit() {
    let table = table(4, u64::MAX);
    for n in 1..=200 {
        let segment = table.played.make(0, u64::MAX).unwrap();
        let place = Where { segment, ..table.place(n, n * WINDOW, PAGE) };
        drop(table.attachments.attach(place, place.base).unwrap());
        let known = table.attachments.state().permissions.len();
        assert!(known <= 2 * (4 + 16) + 1, "{known} permits are known after {n}");
    }
    assert_eq!(table.played.there().permits, 4, "of those that are attached");
    assert_eq!(table.attachments.state().order.len(), 4);
    table.attachments.forget(&OWNER, 200);
    assert_eq!(table.attachments.state().order.len(), 3);
    table.attachments.forget(&OWNER, 77);
    assert_eq!(table.attachments.state().order.len(), 3, "that had gone before");
    table.attachments.clear();
    assert_eq!(table.attachments.state().order.len(), 0);
}

#[test]
fn registration_may_fill_the_cache_but_not_exceed_the_count() {
    let table = table(1, 4 * WINDOW);
    let all = table.attachments.attach_whole(table.place(1, WINDOW, 4 * WINDOW)).unwrap();
    let asked = table.played.asked(Command::Attach);
    let more = table.attachments.attach_whole(table.place(2, 8 * WINDOW, 0));
    assert_eq!(more.err(), Some(libc::EINVAL), "there is nothing of it");
    drop(all);
    let page = table.attachments.attach_whole(table.place(3, WINDOW, PAGE)).unwrap();
    let more = table.attachments.attach_whole(table.place(4, 8 * WINDOW, PAGE));
    assert_eq!(more.err(), Some(libc::ENOSPC));
    // The calls attach the window and the owner's card: the earlier permit was released.
    assert_eq!(table.played.asked(Command::Attach), asked + 2);
    drop(page);
}
