//! Moves the file from rank 0 to rank 1 by message, by put and by get, and compares the checksums.

use super::hash::hash;
use super::pair::{PIECE, Pair};
use super::show::Show;
use std::time::Instant;
use tieline::{Access, Error, Region};

/// The length in bytes of one put or get: the file is split, so that progress can be shown.
const STRIDE: usize = 8 << 20;

pub(super) fn by_message(pair: &Pair<'_>, show: &Show, file: &[u8]) -> Result<(), Error> {
    let what = "message";
    let len = pair.agree(file.len() as u64)?.0 as usize;
    if !pair.is_source() {
        *pair.arriving.borrow_mut() = vec![0; len];
    }
    let sum = pair.agree(hash(file))?.0;
    let began = Instant::now();
    if pair.is_source() {
        let most = pair.endpoint.max_message()?.min(64 << 10);
        let mut progress = show.progress(what, len);
        for (number, piece) in file.chunks(most).enumerate() {
            pair.send(PIECE, (number * most) as u64, piece)?;
            progress.at(number * most);
        }
    } else {
        while pair.arrived.get() < len {
            pair.step()?;
        }
    }
    let _ = pair.agree(0)?;
    let took = began.elapsed();
    let arrived = pair.agree(hash(&pair.arriving.borrow()))?.1;
    pair.arriving.borrow_mut().clear();
    let path = pair.chosen_for("message");
    let why = pair.why(&path, true);
    verified(what, sum, arrived, || show.moved(what, len, took, &path, &why))
}

/// Puts the file from rank 0 into memory of rank 1: once into memory that the library has allocated, once into memory of rank 1
/// itself.
pub(super) fn by_put(pair: &Pair<'_>, show: &Show, file: &[u8]) -> Result<(), Error> {
    let (len, sum) = (pair.agree(file.len() as u64)?.0 as usize, pair.agree(hash(file))?.0);
    for (what, alloc) in [("put, memory of alloc", true), ("put, ordinary memory", false)] {
        let target = match (pair.is_source(), alloc) {
            (true, _) => pair.context.register_with(file.to_vec(), Access::ALL)?,
            (false, true) => pair.context.alloc(len)?,
            (false, false) => pair.context.register(vec![0; len])?,
        };
        one_sided(pair, show, what, &target, pair.is_source(), sum)?;
    }
    Ok(())
}

pub(super) fn by_get(pair: &Pair<'_>, show: &Show, file: &[u8]) -> Result<(), Error> {
    let (len, sum) = (pair.agree(file.len() as u64)?.0 as usize, pair.agree(hash(file))?.0);
    let memory = if pair.is_source() { file.to_vec() } else { vec![0; len] };
    let region = pair.context.register(memory)?;
    one_sided(pair, show, "get, ordinary memory", &region, !pair.is_source(), sum)
}

/// Puts or gets the whole region in pieces, in the process that `acts`; the other process only makes progress.
fn one_sided(
    pair: &Pair<'_>,
    show: &Show,
    what: &str,
    region: &Region,
    acts: bool,
    sum: u64,
) -> Result<(), Error> {
    let key = pair.exchange_keys(region)?;
    let _ = pair.agree(0)?;
    let began = Instant::now();
    if acts {
        let mut progress = show.progress(what, region.len());
        for start in (0..region.len()).step_by(STRIDE) {
            let range = start..(start + STRIDE).min(region.len());
            let outcome = pair.post(|| match pair.is_source() {
                true => pair.endpoint.put(region, range.clone(), &key, start as u64),
                false => pair.endpoint.get(region, range.clone(), &key, start as u64),
            })?;
            let _ = pair.finish(outcome)?;
            progress.at(range.end);
        }
    }
    let _ = pair.agree(0)?;
    let took = began.elapsed();
    let arrived = match pair.is_source() {
        true => 0,
        false => hash(&region.to_vec(0..region.len())?),
    };
    let arrived = pair.agree(arrived)?.1;
    // The path is that of the acting side. For a get, the acting side is the other process, whose choice mirrors that of this
    // process.
    let path = key.path();
    verified(what, sum, arrived, || {
        show.moved(what, region.len(), took, &path, &pair.why(&path, false))
    })
}

fn verified(what: &str, sent: u64, arrived: u64, say: impl FnOnce()) -> Result<(), Error> {
    if sent != arrived {
        return Err(super::differs(what, sent, arrived));
    }
    say();
    Ok(())
}
