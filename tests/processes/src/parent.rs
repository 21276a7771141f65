//! A peer's side of the pipe to the test.

use crate::sys;
use std::io::Write;
use tieline::Worker;

/// The test that started this process: one line is one order, one line is one report.
#[derive(Default)]
pub struct Parent {
    buffer: Vec<u8>,
    closed: bool,
}

const STDIN: i32 = 0;

impl Parent {
    /// Reports something.
    ///
    /// # Panics
    /// When the test is gone.
    pub fn say(&self, line: &str) {
        let line = line.replace('\n', " / ") + "\n";
        std::io::stdout().lock().write_all(line.as_bytes()).expect("the test reads");
    }

    /// The next order; `None` when there will be no more. Blocks, and calls nothing of Tieline meanwhile.
    pub fn hear(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.line() {
                return Some(line);
            }
            if self.closed {
                return None;
            }
            self.read();
        }
    }

    /// The next order if it is there.
    pub fn hear_now(&mut self) -> Option<String> {
        if let Some(line) = self.line() {
            return Some(line);
        }
        while !self.closed && sys::readable(&[STDIN], Some(0)) {
            self.read();
            if let Some(line) = self.line() {
                return Some(line);
            }
        }
        None
    }

    /// The next order, making progress until it comes and sleeping when there is nothing to do.
    ///
    /// # Panics
    /// When the worker cannot be waited for.
    pub fn serve(&mut self, worker: &Worker) -> Option<String> {
        loop {
            if let Some(line) = self.hear_now() {
                return Some(line);
            }
            if self.closed {
                return None;
            }
            if worker.progress() == 0 && worker.arm().expect("arming") {
                // What is queued for lack of room may have no descriptor that announces room.
                let nap = (worker.pending() > 0).then_some(1);
                let _ = sys::readable(&[STDIN, worker.fd()], nap);
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        let end = self.buffer.iter().position(|&b| b == b'\n')?;
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    fn read(&mut self) {
        let mut bytes = [0; 65536];
        match sys::read(STDIN, &mut bytes) {
            0 => self.closed = true,
            n => self.buffer.extend_from_slice(&bytes[..n]),
        }
    }
}
