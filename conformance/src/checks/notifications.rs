//! Checks of puts that notify the target.

use super::rma::{Bench, TARGET, bench, most};
use crate::case::{ALL_RIGHTS, Case};
use crate::endpoint::Target;
use crate::random::Random;
use crate::report::{Checked, equal, holds, same_bytes, succeeds};
use tieline_plugin_api::{event, op_flags};

/// The length of the longest put before the put that notifies.
const BEFORE: usize = 4 << 10;

pub(super) fn a_notification_comes_behind_its_bytes(case: &Case) -> Checked {
    let bits = case.attr.notify_bits;
    holds((1..=32).contains(&bits), "notify_bits with CAP_PUT_NOTIFY", "1 to 32", bits)?;
    let Bench { mut desk, target, key, local, .. } = bench(case, ALL_RIGHTS)?;
    let (mut random, mut model) = (Random(9), vec![0xee; TARGET]);
    let most = most(case).min(TARGET / 2);
    let words = u64::from(u32::MAX >> (32 - bits));
    for n in 0..200u64 {
        // The first words are the smallest and the greatest; every fourth put has no bytes.
        let word = if n < 2 { n * words } else { random.next() & words };
        let len = if n % 4 == 3 { 0 } else { random.below(most + 1) };
        let before = 1 + random.below(BEFORE.min(most));
        let data = random.bytes(before + len);
        local.write(0, &data);
        let endpoint = desk.endpoint();
        let flags = op_flags::REMOTE_COMPLETION * (n % 2);
        let at = |offset, cookie| Target { key: &key, offset, cookie, flags };
        let iov = [local.piece(0..before)];
        let first = desk.retry(|| endpoint.rma(true, &iov, at(0, 1)))?;
        let iov = [local.piece(before..before + len)];
        let offset = TARGET / 2;
        let told = || endpoint.put_notify(&iov, at(offset as u64, 2), word as u32);
        let second = desk.retry(told)?;
        // The target alone makes progress for a while: the notification must not arrive before the bytes.
        for _ in 0..20 {
            if desk.far().messages.is_empty() {
                let _ = desk.far().turn()?;
            }
        }
        let received = desk.receive()?;
        equal("the kind of an event behind a put_notify", event::NOTIFIED, received.kind)?;
        equal("the word of a put_notify", word, received.header)?;
        model[..before].copy_from_slice(&data[..before]);
        model[offset..offset + len].copy_from_slice(&data[before..]);
        same_bytes("the target at its notification", &model, &target.all())?;
        for (code, cookie) in [(first, 1), (second, 2)] {
            desk.synchronous(code, "put_notify")?;
            let _ = succeeds("a put", desk.complete(code, cookie)?)?;
        }
    }
    // Each notification arrived once.
    desk.turn()?;
    holds(desk.far().messages.is_empty(), "messages behind 200 put_notify", "nothing", "more")
}
