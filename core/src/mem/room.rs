//! The amount of memory that may be allocated: a larger request is refused before a page is touched.
//!
//! Memory that peers can map is taken from the system at allocation, and ordinary memory when it is touched. Exhausting either can
//! kill this process or another one, where an error would be sufficient. So three limits are checked beforehand: the memory of the
//! machine, the memory control groups of this process, and the process's limit of address space. Several small allocations share
//! one check. The check reads control groups of versions 1 and 2; of nested groups the one with the least remaining memory counts.

use crate::sys;
use crate::{Error, Status};
use std::collections::HashMap;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum number of bytes allocated between two checks; a check reads some ten small files.
const UNSEEN: usize = 16 << 20;
/// The divisor of the remaining memory that also limits the allocations between two checks. Near a limit the checks are therefore
/// more frequent, because exceeding a control group's limit kills the process.
const PART: u64 = 8;
/// The divisor for the fraction of the remaining memory that is kept free for page tables and for other processes.
const KEPT: u64 = 32;
/// The divisor for the fraction of a limit that is kept free, at most [`MOST_RESERVED`] bytes. The pages that the kernel could drop
/// include those of running programs. A process that takes their last pages is not killed, but the programs read their pages again
/// on each use.
const RESERVED: u64 = 16;
const MOST_RESERVED: u64 = 64 << 20;

fn most_of(bytes: u64) -> u64 {
    bytes - bytes / KEPT
}

/// Returns the number of bytes below a limit that may be used.
fn most_below(limit: u64, left: u64) -> u64 {
    most_of(left).min(left.saturating_sub((limit / RESERVED).min(MOST_RESERVED)))
}

/// The memory that remains below a limit, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Room {
    bytes: u64,
    /// The name of the limit: `the machine (MemAvailable)`.
    by: String,
}

/// The check of the limits, which reads them only when `unseen` is used up.
#[derive(Default)]
pub(super) struct Gauge {
    /// The bytes that may be allocated before the next check.
    unseen: AtomicUsize,
}

impl Gauge {
    /// Checks that `len` more bytes may be allocated.
    ///
    /// # Errors
    /// `NoMemory`; the error names the limit.
    pub(super) fn check(&self, len: usize) -> Result<(), Error> {
        self.check_by(len, || smallest(Path::new("/"), sys::limits().address_space))
    }

    fn check_by(&self, len: usize, look: impl FnOnce() -> Option<Room>) -> Result<(), Error> {
        let known = |unseen: usize| unseen.checked_sub(len);
        if self.unseen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, known).is_ok() {
            return Ok(());
        }
        let room = look();
        let left = room.as_ref().map_or(u64::MAX, |room| room.bytes.saturating_sub(len as u64));
        fits(len, room)?;
        let unseen = usize::try_from(left / PART).unwrap_or(UNSEEN).min(UNSEEN);
        self.unseen.store(unseen, Ordering::Relaxed);
        Ok(())
    }
}

fn fits(len: usize, room: Option<Room>) -> Result<(), Error> {
    let Some(room) = room else { return Ok(()) };
    if len as u64 <= room.bytes {
        return Ok(());
    }
    Err(Error::new(
        Status::NoMemory,
        format!("memory of {len} bytes"),
        format!("there is room for {} bytes: {}", room.bytes, room.by),
        "ask for less, or raise the limit",
    ))
}

/// Returns the limit with the least remaining memory; `None` if no limit can be read.
fn smallest(root: &Path, address_space: Option<u64>) -> Option<Room> {
    let mut rooms = group_rooms(root);
    rooms.extend(machine_room(root));
    rooms.extend(address_space.and_then(|limit| address_space_room(root, limit)));
    rooms.into_iter().min_by_key(|room| room.bytes)
}

/// Parses lines `NAME: N kB` and `NAME N`.
fn fields(text: &str) -> HashMap<&str, u64> {
    let field = |line| {
        let mut words = str::split_whitespace(line);
        let (name, value) = (words.next()?.trim_end_matches(':'), words.next()?.parse().ok()?);
        Some((name, if words.next() == Some("kB") { value * 1024 } else { value }))
    };
    text.lines().filter_map(field).collect()
}

fn machine_room(root: &Path) -> Option<Room> {
    let text = read_to_string(root.join("proc/meminfo")).ok()?;
    let fields = fields(&text);
    let free = fields.get("SwapFree").copied().unwrap_or(0);
    let bytes = most_of(fields.get("MemAvailable")?.saturating_add(free));
    Some(Room { bytes, by: "what the machine has available (MemAvailable and SwapFree)".into() })
}

fn free_swap(root: &Path) -> u64 {
    let text = read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    fields(&text).get("SwapFree").copied().unwrap_or(0)
}

fn address_space_room(root: &Path, limit: u64) -> Option<Room> {
    let text = read_to_string(root.join("proc/self/statm")).ok()?;
    let pages: u64 = text.split_whitespace().next()?.parse().ok()?;
    let bytes = limit.saturating_sub(pages.saturating_mul(sys::page_bytes()));
    Some(Room { bytes, by: "the limit of address space (ulimit -v)".into() })
}

/// The two file formats of the memory controller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Returns the remaining memory in each control group of this process, up to the topmost visible one.
fn group_rooms(root: &Path) -> Vec<Room> {
    let read = |name: &str| read_to_string(root.join(name)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut rooms = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let version = match controllers {
            "" => Version::Two,
            list if list.split(',').any(|c| c == "memory") => Version::One,
            _ => continue,
        };
        let Some((top, inside)) = mounted(root, &mounts, version, path) else { continue };
        let mut group = top.join(inside);
        loop {
            rooms.extend(group_room(root, &group, version));
            if group == top || !group.pop() {
                break;
            }
        }
    }
    rooms
}

/// Returns the mount point of the hierarchy, and the group's path below it.
fn mounted<'a>(
    root: &Path,
    mounts: &str,
    version: Version,
    path: &'a str,
) -> Option<(PathBuf, &'a str)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (shown, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1).unwrap_or(""));
        let fits = match version {
            Version::Two => kind == "cgroup2",
            Version::One => kind == "cgroup" && options.split(',').any(|o| o == "memory"),
        };
        if !fits {
            return None;
        }
        // A container finds its own group at the mount point, regardless of the group's path outside.
        let inside = path.strip_prefix(shown.trim_end_matches('/')).unwrap_or("");
        let inside = inside.trim_start_matches('/');
        let inside = if inside.split('/').any(|part| part == "..") { "" } else { inside };
        Some((root.join(point.trim_start_matches('/')), inside))
    })
}

/// Returns the remaining memory in one group: up to its limit, including file pages that the kernel can drop, and swap.
fn group_room(root: &Path, group: &Path, version: Version) -> Option<Room> {
    let number =
        |name: &str| -> Option<u64> { read_to_string(group.join(name)).ok()?.trim().parse().ok() };
    let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let stat = fields(&stat);
    let sum = |names: [&str; 2]| names.iter().filter_map(|n| stat.get(n)).sum::<u64>();
    // A missing limit, or `max`, means no limit.
    let (limit, left) = match version {
        Version::Two => {
            let limit = number("memory.max")?;
            let files = sum(["active_file", "inactive_file"]);
            let used = number("memory.current")?.saturating_sub(files);
            let swap = match number("memory.swap.max") {
                Some(most) => most
                    .saturating_sub(number("memory.swap.current").unwrap_or(0))
                    .min(free_swap(root)),
                None => free_swap(root),
            };
            (limit, limit.saturating_sub(used).saturating_add(swap))
        }
        Version::One => {
            let limit = number("memory.limit_in_bytes")?;
            let files = sum(["total_active_file", "total_inactive_file"]);
            let used = number("memory.usage_in_bytes")?.saturating_sub(files);
            let memory = limit.saturating_sub(used).saturating_add(free_swap(root));
            let with_swap = number("memory.memsw.limit_in_bytes").map_or(u64::MAX, |both| {
                let used = number("memory.memsw.usage_in_bytes").unwrap_or(0);
                both.saturating_sub(used.saturating_sub(files))
            });
            (limit, memory.min(with_swap))
        }
    };
    let by = format!("the control group {} with a limit of {limit} bytes", group.display());
    Some(Room { bytes: most_below(limit, left), by })
}

#[cfg(test)]
mod tests;
