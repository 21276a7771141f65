//! The resources of this process, as the kernel and the allocator count them, and files that may have been left behind.

mod sys;

use crate::report::{Checked, holds};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

pub(crate) struct Held {
    heap: usize,
    mappings: usize,
    mapped: usize,
    descriptors: usize,
    threads: usize,
}

/// The tolerance for heap memory that is freed later, in bytes.
const HEAP: usize = 12 << 10;
const MAPPINGS: usize = 4;
const MAPPED: usize = 4 << 20;
const FEW: usize = 2;

/// Returns the bytes of this process's mappings, with or without memory behind them.
pub(crate) fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

impl Held {
    pub(crate) fn now() -> Held {
        let text = |file| std::fs::read_to_string(file).unwrap_or_default();
        let count = |folder| std::fs::read_dir(folder).map_or(0, Iterator::count);
        let maps = text("/proc/self/maps");
        Held {
            heap: sys::heap(),
            mappings: maps.lines().count(),
            mapped: maps.lines().filter_map(readable_bytes).sum(),
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
        }
    }

    /// Checks that no resource has grown since `self` was taken by the amount that `times` leaks would have caused.
    pub(crate) fn is_as_it_was(&self, what: &str, times: usize) -> Checked {
        let now = Held::now();
        let kinds = [
            ("bytes of the heap", self.heap, now.heap, HEAP, "free what was allocated for each"),
            ("mappings", self.mappings, now.mappings, MAPPINGS, "unmap what was mapped for each"),
            ("bytes mapped", self.mapped, now.mapped, MAPPED, "unmap what was mapped for each"),
            (
                "open descriptors",
                self.descriptors,
                now.descriptors,
                FEW,
                "close what was opened for each",
            ),
            ("threads", self.threads, now.threads, FEW, "end what was started for each"),
        ];
        for (kind, before, after, slack, remedy) in kinds {
            let each = after.saturating_sub(before) / times.max(1);
            let found = format!("{after}, about {each} more for each: {remedy}");
            holds(
                after <= before + slack,
                format!("{kind} after {what}"),
                format!("about {before}"),
                found,
            )?;
        }
        Ok(())
    }
}

/// Returns the length of a readable mapping: the reservations of allocators for threads are not readable.
fn readable_bytes(line: &str) -> Option<usize> {
    let (range, rights) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    rights.starts_with('r').then_some(address(to)?.checked_sub(address(from)?)?)
}

/// A file of this user in a directory where files are left behind.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Left {
    pub(crate) path: PathBuf,
}

impl Left {
    /// Returns the file's name without the varying part.
    pub(crate) fn kind(&self) -> String {
        let name = self.path.to_string_lossy();
        let words = name.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
        let word = |word: &str| match word.contains(|c: char| c.is_ascii_digit()) {
            true => "#".to_string(),
            false => word.to_string(),
        };
        words.map(word).collect()
    }
}

pub(crate) fn files_of() -> BTreeSet<Left> {
    let variables = ["TMPDIR", "XDG_RUNTIME_DIR", "HOME"].map(std::env::var_os);
    let mut places: BTreeSet<PathBuf> =
        variables.into_iter().flatten().map(PathBuf::from).collect();
    places.extend(["/tmp", "/dev/shm", "/var/tmp", "/run"].map(PathBuf::from));
    places.extend(std::env::current_dir());
    let own = std::fs::metadata("/proc/self").map_or(0, |own| own.uid());
    let mut found = BTreeSet::new();
    for entry in places.iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten()
    {
        if entry.metadata().is_ok_and(|data| data.uid() == own) {
            let _ = found.insert(Left { path: entry.path() });
        }
    }
    found
}
