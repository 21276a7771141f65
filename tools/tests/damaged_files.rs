//! Provider files with changed bytes: the trial in a child process should detect files that would end the process that loads them.
//! A function that uses an unset value may return by chance in the trial and not in the process. So one death in 10 000 files is
//! allowed.
//!
//! `TESTS_WHOLE=1` tries 10 000 files; otherwise the test tries the first files of the same sequence, until its time is used up.

use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Compiles an undamaged file; returns `None` if there is no compiler.
fn whole_file(place: &Path) -> Option<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (extra, file) = (place.join("ends.c"), place.join("whole.so"));
    // The file has finalizers, with and without a priority.
    let text = "static volatile int ended;\n__attribute__((destructor)) static void end(void) { ended++; }\n\
                __attribute__((destructor(200))) static void last(void) { ended += 2; }\n";
    std::fs::write(&extra, text).unwrap();
    let mut cc = Command::new("cc");
    let _ = cc.args(["-std=c11", "-O1", "-w", "-shared", "-fPIC", "-s", "-I"]);
    let _ = cc.arg(source.join("include")).arg("-o").arg(&file);
    match cc.arg(source.join("conformance/subjects/rings.c")).arg(extra).status() {
        Ok(status) => assert!(status.success(), "{cc:?}"),
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            return None;
        }
    }
    Some(std::fs::read(file).unwrap())
}

fn dynamic_section(file: &[u8]) -> std::ops::Range<usize> {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
    let (headers, count) = (word(32), usize::from(file[56]));
    let found = (0..count).map(|number| headers + number * 56).find(|at| file[*at] == 2).unwrap();
    word(found + 8)..word(found + 8) + word(found + 32)
}

/// A random number generator that is determined by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Returns file number `seed`: one to four bytes are changed, some of them in the headers and the dynamic section.
fn damaged(whole: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut file = whole.to_vec();
    let dynamic = dynamic_section(whole);
    for _ in 0..=random.below(4) {
        let at = match random.below(4) {
            0 => random.below(0x400),
            1 => dynamic.start + random.below(dynamic.len()),
            _ => random.below(file.len()),
        };
        file[at] = match random.below(3) {
            0 => random.below(256) as u8,
            1 => file[at] ^ 1 << random.below(8),
            _ => file[at].wrapping_add(8),
        };
    }
    file
}

/// The status with which `timeout` ends after it has ended a process.
const ENDED_BY_TIMEOUT: i32 = 124;

fn opened(place: &Path) -> ExitStatus {
    // A signal that ends the process ends `timeout` likewise.
    let mut command = Command::new("timeout");
    let _ = command.args(["60", env!("CARGO_BIN_EXE_tieline")]);
    let _ = command.arg("info").env("TIELINE_PROVIDER_PATH", place);
    let _ = command.env("TIELINE_PROBE", "nocache").env("TIELINE_PROVIDERS", "rings");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
}

fn folder(name: String) -> PathBuf {
    let place = std::env::temp_dir().join(name);
    std::fs::DirBuilder::new().mode(0o700).create(&place).unwrap();
    place
}

#[test]
fn a_damaged_provider_file_ends_no_process_that_opens_a_context() {
    let is_whole = tieline_testing::is_whole();
    let (count, time) =
        if is_whole { (10_000, Duration::MAX) } else { (500, Duration::from_secs(8)) };
    let base = folder(format!("tieline-damaged-{}", std::process::id()));
    let Some(whole) = whole_file(&base) else { return std::fs::remove_dir_all(&base).unwrap() };
    std::fs::write(base.join("libtieline_rings.so"), &whole).unwrap();
    assert!(opened(&base).success(), "the file works as it is");
    let (next, tried, begun) = (AtomicUsize::new(0), AtomicUsize::new(0), Instant::now());
    let (killed, waited) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (next, tried, whole, base) = (&next, &tried, &whole, &base);
            let (killed, waited) = (&killed, &waited);
            let _ = scope.spawn(move || {
                let place = base.join(number.to_string());
                std::fs::DirBuilder::new().mode(0o700).create(&place).unwrap();
                while begun.elapsed() < time {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    // Each file is new, because a file that a process executes cannot be written.
                    let file = place.join("libtieline_rings.so");
                    let _ = std::fs::remove_file(&file);
                    std::fs::write(&file, damaged(whole, seed as u64)).unwrap();
                    let ended = opened(&place);
                    let _ = tried.fetch_add(1, Ordering::Relaxed);
                    if let Some(signal) = ended.signal() {
                        killed.lock().unwrap().push((seed, signal));
                    }
                    if ended.code() == Some(ENDED_BY_TIMEOUT) {
                        waited.lock().unwrap().push(seed);
                    }
                }
            });
        }
    });
    std::fs::remove_dir_all(&base).unwrap();
    let (tried, killed) = (tried.into_inner(), killed.into_inner().unwrap());
    let waited = waited.into_inner().unwrap();
    println!("{tried} damaged files; number and signal of those that ended a process: {killed:?}");
    assert!(tried > 0 && killed.len() <= tried.div_ceil(10_000), "{killed:?}");
    assert!(waited.is_empty(), "a process with these files does not end: {waited:?}");
}
