//! Logs: shown as they grow, and their ends when a test has failed.

use super::test::Test;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A file that somebody else writes, read line by line.
pub(super) struct Growing {
    path: PathBuf,
    read: u64,
    rest: Vec<u8>,
}

impl Growing {
    pub(super) fn new(path: PathBuf) -> Growing {
        Growing { path, read: 0, rest: Vec::new() }
    }

    /// Hands over the lines that have come since the last call; with `last`, an unfinished one too.
    pub(super) fn lines(&mut self, last: bool, mut each: impl FnMut(&str)) {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.path) {
            let there = file.seek(SeekFrom::Start(self.read)).is_ok();
            if there && file.read_to_end(&mut bytes).is_ok() {
                self.read += bytes.len() as u64;
            }
        }
        self.rest.extend(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            each(String::from_utf8_lossy(&line).trim_end());
        }
        if last && !self.rest.is_empty() {
            each(String::from_utf8_lossy(&std::mem::take(&mut self.rest)).trim_end());
        }
    }
}

/// Prints the end of what a test said on each host.
pub(super) fn logs(folder: &Path, test: &Test, most: usize) {
    for host in 0..test.hosts {
        let log = folder.join(&test.name).join(format!("h{host}.log"));
        print_tail(&format!("h{host}"), &log, most);
    }
}

/// Prints the last lines of a file.
pub(super) fn print_tail(name: &str, file: &Path, most: usize) {
    let bytes = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(most)..] {
        println!("    {name}| {}", line.trim_end());
    }
}
