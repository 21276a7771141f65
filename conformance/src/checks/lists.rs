//! Checks of lists of puts and gets.

use super::rma::{Bench, TARGET, bench, most};
use crate::case::{ALL_RIGHTS, Case, Desk};
use crate::endpoint::{Key, Part};
use crate::random::Random;
use crate::report::{Checked, Stop, equal, holds, same_bytes, succeeds};
use tieline_plugin_api::{Status, op_flags};

const COOKIE: u64 = 4713;
/// The distance between the parts of a list, in the local memory and in the targets.
const SLOT: usize = 256;

/// Posts a list until all of its parts are taken and complete, or the first part of a call fails. Returns the number of taken parts.
fn post(
    desk: &mut Desk,
    put: bool,
    parts: &[Part<'_>],
) -> Result<(usize, Result<(), Status>), Stop> {
    let mut done = 0;
    while done < parts.len() {
        let (endpoint, mut taken) = (desk.endpoint(), 0);
        let code = desk.retry(|| {
            let (answer, number) =
                endpoint.list(put, &parts[done..], COOKIE, op_flags::REMOTE_COMPLETION);
            taken = number;
            answer
        })?;
        desk.synchronous(code, "list")?;
        let left = parts.len() - done;
        match code {
            Err(status) => {
                equal("the number of parts that a failed rma_list took", 0, taken)?;
                return Ok((done, Err(status)));
            }
            Ok(_) => holds((1..=left).contains(&taken), "taken", format!("1 to {left}"), taken)?,
        }
        let _ = succeeds("a list", desk.complete(code, COOKIE)?)?;
        done += taken;
    }
    Ok((done, Ok(())))
}

pub(super) fn a_list_moves_the_bytes_of_each_of_its_parts(case: &Case) -> Checked {
    let Bench { mut desk, target, packed, local, .. } = bench(case, ALL_RIGHTS)?;
    let other = case.memory(TARGET, ALL_RIGHTS)?;
    let second = succeeds("import_key", desk.import(&case.key_of(&other)?)?)?;
    let first = succeeds("import_key", desk.import(&packed)?)?;
    let keys: [&Key; 2] = [&first, &second];
    let (mut random, most) = (Random(11), most(case).min(SLOT));
    for n in 0..60 {
        let count = 1 + if n < 10 { n } else { random.below(TARGET / SLOT) };
        let lens: Vec<usize> = (0..count).map(|_| random.below(most + 1)).collect();
        let which: Vec<usize> = (0..count).map(|at| at / (1 + n % 7) % 2).collect();
        let data = random.bytes(TARGET);
        local.write(0, &data);
        target.write(0, &[0xee; TARGET]);
        other.write(0, &[0xee; TARGET]);
        let part = |at: usize| {
            let piece = local.piece(at * SLOT..at * SLOT + lens[at]);
            // The last part is the first one in the target.
            Part { piece, key: keys[which[at]], offset: ((count - 1 - at) * SLOT) as u64 }
        };
        let parts: Vec<_> = (0..count).map(part).collect();
        equal("a list of puts", (count, Ok(())), post(&mut desk, true, &parts)?)?;
        let mut models = [vec![0xee; TARGET], vec![0xee; TARGET]];
        for at in 0..count {
            let there = (count - 1 - at) * SLOT;
            models[which[at]][there..there + lens[at]]
                .copy_from_slice(&data[at * SLOT..at * SLOT + lens[at]]);
        }
        same_bytes("the first target after a list of puts", &models[0], &target.all())?;
        same_bytes("the second target after a list of puts", &models[1], &other.all())?;
        local.write(0, &[0x11; TARGET]);
        equal("a list of gets", (count, Ok(())), post(&mut desk, false, &parts)?)?;
        let mut model = vec![0x11; TARGET];
        for (at, len) in lens.iter().enumerate() {
            let range = at * SLOT..at * SLOT + len;
            model[range.clone()].copy_from_slice(&data[range]);
        }
        same_bytes("local memory after a list of gets", &model, &local.all())?;
    }
    Ok(())
}

pub(super) fn a_list_ends_before_a_part_that_fails(case: &Case) -> Checked {
    let Bench { mut desk, target, packed, local, .. } = bench(case, ALL_RIGHTS)?;
    let key = succeeds("import_key", desk.import(&packed)?)?;
    let len = most(case).min(8);
    local.write(0, &[0x77; TARGET]);
    for put in [true, false] {
        for before in [0, 1, 3] {
            target.write(0, &[0xee; TARGET]);
            let part = |at: usize, offset: u64| Part {
                piece: local.piece(at * SLOT..at * SLOT + len),
                key: &key,
                offset,
            };
            let mut parts: Vec<_> = (0..before).map(|at| part(at, (at * SLOT) as u64)).collect();
            parts.push(part(before, TARGET as u64 - len as u64 + 1));
            let behind = TARGET / 2;
            parts.push(part(before + 1, behind as u64));
            let expected = (before, Err(Status::OutOfRange));
            equal(
                "a list with a part outside its region",
                expected,
                post(&mut desk, put, &parts)?,
            )?;
            let behind = target.read(behind..behind + len);
            same_bytes("the target of the part behind it", &[0xee; 8][..len], &behind)?;
            if put && before > 0 {
                same_bytes("the first part", &[0x77; 8][..len], &target.read(0..len))?;
            }
            // The failure was that of the part: the endpoint goes on.
            let good = [part(0, 0)];
            equal("a list afterwards", (1, Ok(())), post(&mut desk, put, &good)?)?;
            local.write(0, &[0x77; TARGET]);
        }
    }
    Ok(())
}
