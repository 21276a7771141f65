//! Checks two parts of a file that the loader does not check: the range that becomes read-only, and the version numbers.
//!
//! Wrong values may lead the loader out of the file's own memory. The contents of that other memory then decide whether the process
//! ends. They may differ between this process and a child that tries the file.

use super::{Bytes, Fields, Unfit, inside, unfit};

/// A loadable segment.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) file_len: u64,
    pub(crate) memory_len: u64,
}

/// Checks that the memory that becomes read-only after relocation lies in a loadable segment. It may reach to the end of the last
/// page, or to the next segment.
pub(crate) fn check_relro(address: u64, len: u64, loads: &[Load], page: u64) -> Result<(), Unfit> {
    let is_inside = |load: &Load| {
        let next = loads.iter().map(|it| it.address).filter(|start| *start > load.address).min();
        let end = load.address.checked_add(load.memory_len)?.checked_next_multiple_of(page)?;
        let end = next.map_or(end, |next| next.max(end));
        // The loader leaves out what does not fill a page.
        let last = address.checked_add(len)? / page * page;
        Some(address >= load.address && last <= end)
    };
    if len == 0 || loads.iter().any(|load| is_inside(load) == Some(true)) {
        return Ok(());
    }
    unfit(
        "memory that becomes read-only within a loadable segment",
        format!("{len} bytes at address {address:#x}, outside of all of them"),
    )
}

const DT_HASH: u64 = 4;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
const DT_VERDEF: u64 = 0x6fff_fffc;
const DT_VERNEED: u64 = 0x6fff_fffe;

/// More entries than any real file has, of each table.
const MOST: u64 = 1 << 20;
/// The bit of a version that hides its symbol.
const HIDDEN: u16 = 0x8000;

/// Checks that no symbol's version number exceeds the highest one that the file declares. Tables that cannot be read are left to
/// the loader.
pub(crate) fn check_versions(
    bytes: &(impl Bytes + ?Sized),
    loads: &[Load],
    dynamic: (u64, u64),
) -> Result<(), Unfit> {
    let memory = Memory { bytes, loads };
    let Some((versions, most)) = memory.versions(dynamic) else { return Ok(()) };
    match versions.iter().position(|number| number & !HIDDEN > most) {
        None => Ok(()),
        Some(symbol) => unfit(
            format!("symbols of versions that the file declares, the last of them number {most}"),
            format!("number {} for symbol {symbol}", versions[symbol] & !HIDDEN),
        ),
    }
}

/// The file as it is in memory, before relocation.
struct Memory<'a, B: ?Sized> {
    bytes: &'a B,
    loads: &'a [Load],
}

impl<B: Bytes + ?Sized> Memory<'_, B> {
    fn read(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        let load = self.loads.iter().find(|load| {
            address >= load.address && inside(address - load.address, len, load.file_len)
        })?;
        let offset = load.offset.checked_add(address - load.address)?;
        if !inside(offset, len, self.bytes.len()) {
            return None;
        }
        let mut out = vec![0; usize::try_from(len).ok()?];
        self.bytes.read(offset, &mut out).then_some(out)
    }

    fn array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        self.read(address, N as u64)?.try_into().ok()
    }

    /// Reads `count` words of four bytes.
    fn words(&self, address: u64, count: u64) -> Option<Vec<u32>> {
        let raw = self.read(address, count.checked_mul(4).filter(|_| count <= MOST)?)?;
        Some(raw.chunks_exact(4).map(|word| Fields(word).u32(0)).collect())
    }

    /// Returns the version number of each symbol, and the highest number that is declared; `None` without a readable version table.
    fn versions(&self, (address, len): (u64, u64)) -> Option<(Vec<u16>, u16)> {
        let entries = self.read(address, len)?;
        let entries: Vec<(u64, u64)> = entries
            .chunks_exact(16)
            .map(|entry| (Fields(entry).u64(0), Fields(entry).u64(8)))
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let of = |wanted| entries.iter().rfind(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
        let table = of(DT_VERSYM)?;
        let count = match (of(DT_GNU_HASH), of(DT_HASH)) {
            (Some(hash), _) => self.hashed(hash)?,
            (None, Some(hash)) => u64::from(*self.words(hash, 2)?.get(1)?),
            (None, None) => return None,
        };
        let raw = self.read(table, count.checked_mul(2).filter(|_| count <= MOST)?)?;
        // Numbers 0 and 1 are of symbols without a version.
        let mut most = 1;
        if let Some(needed) = of(DT_VERNEED) {
            most = most.max(self.last_needed(needed)?);
        }
        if let Some(defined) = of(DT_VERDEF) {
            most = most.max(self.last_defined(defined)?);
        }
        Some((raw.chunks_exact(2).map(|number| Fields(number).u16(0)).collect(), most))
    }

    /// Returns the number of symbols by a hash table of the GNU kind: those in front of it, and those in its chains.
    fn hashed(&self, at: u64) -> Option<u64> {
        let head = self.words(at, 4)?;
        let (buckets, first, filter) = (u64::from(head[0]), u64::from(head[1]), u64::from(head[2]));
        let buckets_at = at.checked_add(16)?.checked_add(filter.checked_mul(8)?)?;
        let last = u64::from(self.words(buckets_at, buckets)?.into_iter().max()?);
        if last < first {
            return Some(first);
        }
        let chains = buckets_at.checked_add(buckets * 4)?;
        // The last word of a chain is odd.
        let mut symbol = last;
        while symbol <= MOST {
            let word = chains.checked_add((symbol - first) * 4)?;
            symbol += 1;
            if self.words(word, 1)?[0] & 1 == 1 {
                return Some(symbol);
            }
        }
        None
    }

    /// Returns the highest number among the versions of other files.
    fn last_needed(&self, mut at: u64) -> Option<u16> {
        let (mut most, mut left) = (0, MOST);
        for _ in 0..MOST {
            let file = self.array::<16>(at)?;
            let file = Fields(&file);
            let mut version = at.checked_add(u64::from(file.u32(8)))?;
            // As the loader does, the chain is followed to its end, whatever its count is.
            loop {
                left = left.checked_sub(1)?;
                let raw = self.array::<16>(version)?;
                most = most.max(Fields(&raw).u16(6) & !HIDDEN);
                match Fields(&raw).u32(12) {
                    0 => break,
                    next => version = version.checked_add(u64::from(next))?,
                }
            }
            match file.u32(12) {
                0 => return Some(most),
                next => at = at.checked_add(u64::from(next))?,
            }
        }
        None
    }

    /// Returns the highest number among the file's own versions.
    fn last_defined(&self, mut at: u64) -> Option<u16> {
        let mut most = 0;
        for _ in 0..MOST {
            let raw = self.array::<20>(at)?;
            most = most.max(Fields(&raw).u16(4) & !HIDDEN);
            match Fields(&raw).u32(16) {
                0 => return Some(most),
                next => at = at.checked_add(u64::from(next))?,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
