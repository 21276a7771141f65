//! Tests of the memory limits, with folders as machines.

use super::*;
use std::cell::Cell;
use std::fs::{create_dir_all, write};

/// A folder that acts as `/`.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, files: &[(&str, &str)]) -> Machine {
        let place = format!("tieline-room-{}-{name}", std::process::id());
        let machine = Machine(std::env::temp_dir().join(place));
        machine
            .file("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable: 3000 kB\nSwapFree: 100 kB\n");
        machine.file("proc/self/statm", "10 5 3 1 0 2 0\n");
        for (path, text) in files {
            machine.file(path, text);
        }
        machine
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        create_dir_all(path.parent().unwrap()).unwrap();
        write(path, text).unwrap();
    }

    fn room(&self) -> Room {
        smallest(&self.0, None).unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const KIB: u64 = 1024;
const V2: &str = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
/// In version 1, each controller has its own mount.
const V1: &str = "35 25 0:29 /docker/abc /sys/fs/cgroup/cpu rw shared:8 - cgroup cgroup rw,cpu\n\
    36 25 0:30 /docker/abc /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";

#[test]
fn without_groups_there_is_what_the_machine_has() {
    assert_eq!(Machine::new("bare", &[]).room().bytes, most_of(3100 * KIB));
    assert_eq!(smallest(Path::new("/nowhere"), None), None);
}

#[test]
fn address_space_is_bounded_by_what_is_in_use_already() {
    let machine = Machine::new("space", &[]);
    let room = smallest(&machine.0, Some(1 << 20)).unwrap();
    assert_eq!(room.bytes, (1 << 20) - 10 * sys::page_bytes());
    assert!(room.by.contains("ulimit -v"), "{room:?}");
}

#[test]
fn smallest_room_of_nested_control_groups_counts() {
    let machine = Machine::new(
        "nested",
        &[
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/job/step/rank\n"),
            ("sys/fs/cgroup/job/memory.max", "1048576\n"),
            ("sys/fs/cgroup/job/memory.current", "614400\n"),
            ("sys/fs/cgroup/job/memory.stat", "anon 5\nactive_file 102400\ninactive_file 102400\n"),
            ("sys/fs/cgroup/job/memory.swap.max", "0\n"),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("sys/fs/cgroup/job/step/memory.current", "614400\n"),
            ("sys/fs/cgroup/job/step/rank/memory.max", "2097152\n"),
            ("sys/fs/cgroup/job/step/rank/memory.current", "4096\n"),
        ],
    );
    let room = machine.room();
    // File pages that the kernel can drop do not count as used.
    assert_eq!(room.bytes, 1_048_576 - (614_400 - 204_800) - 65_536);
    assert!(room.by.contains("/job with a limit of 1048576"), "{room:?}");
    // The innermost limit counts, because it is the smallest.
    machine.file("sys/fs/cgroup/job/step/rank/memory.max", "8192\n");
    machine.file("sys/fs/cgroup/job/step/rank/memory.swap.max", "4096\n");
    machine.file("sys/fs/cgroup/job/step/rank/memory.swap.current", "1024\n");
    assert_eq!(machine.room().bytes, 4096 + 3072 - 512);
}

#[test]
fn a_container_of_version_one_sees_its_group_at_the_mount() {
    let group = "sys/fs/cgroup/memory";
    let machine = Machine::new(
        "one",
        &[
            ("proc/self/mountinfo", V1),
            ("proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/docker/abc/inner\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "524288\n"),
            ("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 4096\n"),
            ("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "524288\n"),
        ],
    );
    assert_eq!(machine.room().bytes, 524_288 + 4096 + 100 * KIB - 65_536);
    // Memory and swap together have their own limit.
    machine.file(&format!("{group}/memory.memsw.limit_in_bytes"), "600000\n");
    machine.file(&format!("{group}/memory.memsw.usage_in_bytes"), "524288\n");
    let left = 600_000 - 524_288 + 4096 - 65_536;
    assert_eq!(machine.room().bytes, left);
    // A cgroup namespace shows a path outside of it, so only the mount is known.
    machine.file("proc/self/cgroup", "4:memory:/../elsewhere\n");
    assert_eq!(machine.room().bytes, left);
}

/// File pages that the kernel could drop count as free memory, including those of running programs.
#[test]
fn reserve_below_limit_is_kept_for_small_allocations_too() {
    const LIMIT: u64 = 256 << 20;
    let group = "sys/fs/cgroup/rank";
    let machine = Machine::new(
        "last",
        &[
            ("proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\nSwapFree: 0 kB\n"),
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/rank\n"),
            ("sys/fs/cgroup/rank/memory.max", "268435456\n"),
            ("sys/fs/cgroup/rank/memory.stat", "active_file 25165824\n"),
        ],
    );
    for piece in [4 << 10, 64 << 10, 512 << 10, 1 << 20] {
        let (gauge, mut given) = (Gauge::default(), 0);
        let look = |given: u64| {
            // The whole limit may be in use, after the kernel has dropped file pages.
            machine.file(&format!("{group}/memory.current"), &format!("{}\n", given + (24 << 20)));
            smallest(&machine.0, None)
        };
        while gauge.check_by(piece, || look(given)).is_ok() {
            given += piece as u64;
        }
        let left = LIMIT - given;
        assert!((LIMIT / 16..LIMIT / 8).contains(&left), "{left} are left by pieces of {piece}");
    }
    assert_eq!(most_below(64 << 30, 1 << 30), (1 << 30) - (64 << 20), "of a large one 64 MiB");
    assert_eq!(most_below(64 << 30, 32 << 30), 31 << 30, "and of what is left a part");
    assert_eq!(most_below(1 << 30, 1 << 20), 0);
}

#[test]
fn allocation_beyond_room_is_refused_with_text() {
    let room = Room { bytes: 3200, by: "a bound".into() };
    assert!(fits(3200, Some(room.clone())).is_ok());
    let error = fits(3201, Some(room)).unwrap_err();
    assert_eq!(error.status(), Status::NoMemory);
    assert!(error.why().contains("room for 3200 bytes: a bound"), "{error}");
    assert_eq!(most_of(3200), 3100);
    assert!(fits(usize::MAX, None).is_ok());
}

#[test]
fn allocations_share_checks_unless_limit_is_near() {
    let bound: u64 = 1 << 30;
    for piece in [1 << 10, 1 << 20, UNSEEN, 3 * UNSEEN] {
        let (gauge, looks, mut taken) = (Gauge::default(), Cell::new(0), 0);
        let take = |taken: &mut u64| {
            let look = || {
                looks.set(looks.get() + 1);
                Some(Room { bytes: bound - *taken, by: "a bound".into() })
            };
            let given = gauge.check_by(piece, look).is_ok();
            *taken += if given { piece as u64 } else { 0 };
            given
        };
        while take(&mut taken) {}
        let looks = looks.get();
        assert!(taken <= bound && taken + piece as u64 > bound, "{taken} of pieces of {piece}");
        let pieces = bound / piece as u64;
        if piece < UNSEEN {
            assert!(looks * 10 < pieces, "{looks} looks for {pieces} pieces of {piece}");
        }
    }
}

#[test]
fn every_allocation_fits_if_no_limit_is_known() {
    let gauge = Gauge::default();
    for len in [0, 1, UNSEEN, usize::MAX] {
        assert!(gauge.check_by(len, || None).is_ok(), "{len}");
    }
}

#[test]
fn small_pieces_are_looked_at_together() {
    let gauge = Gauge::default();
    for _ in 0..1000 {
        assert!(gauge.check(1 << 10).is_ok());
    }
    assert!(gauge.check(1 << 46).is_err());
    assert!(gauge.check(usize::MAX).is_err());
    assert!(gauge.check(1 << 10).is_ok());
}
