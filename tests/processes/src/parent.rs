//! A peer's side of the pipe to the test.

use crate::sys;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::Write;
use tieline::Worker;

/// The test that started this process: one line is one order, one line is one report. Lines that begin with
/// `deliver` are no orders: they bring datagrams, and may come at any time.
#[derive(Default)]
pub struct Parent {
    buffer: RefCell<Vec<u8>>,
    orders: RefCell<VecDeque<String>>,
    datagrams: RefCell<VecDeque<String>>,
    closed: Cell<bool>,
}

/// Where orders come from.
pub const STDIN: i32 = 0;

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
    pub fn hear(&self) -> Option<String> {
        loop {
            if let Some(line) = self.line() {
                return Some(line);
            }
            if self.closed.get() {
                return None;
            }
            self.read();
        }
    }

    /// Whether there is another order, or will never be one.
    pub fn wants_something(&self) -> bool {
        self.look();
        self.closed.get() || !self.orders.borrow().is_empty()
    }

    /// The next datagram, in text.
    pub fn datagram(&self) -> Option<String> {
        self.look();
        self.datagrams.borrow_mut().pop_front()
    }

    /// The next order, making progress until it comes and sleeping when there is nothing to do. Datagrams are
    /// given to the worker.
    ///
    /// # Panics
    /// When the worker cannot be waited for.
    pub fn serve(&self, worker: &Worker) -> Option<String> {
        loop {
            self.look();
            if let Some(line) = self.line() {
                return Some(line);
            }
            if self.closed.get() {
                return None;
            }
            self.pause(worker);
        }
    }

    /// Progress, with whatever datagrams came; when there is none to make, sleeps until something comes from
    /// the worker's side or from the test's.
    ///
    /// # Panics
    /// When the worker cannot be waited for.
    pub fn pause(&self, worker: &Worker) {
        while let Some(datagram) = self.datagram() {
            if let Err(e) = worker.deliver_out_of_band(&crate::interpreter::unhex(&datagram)) {
                panic!("a datagram of a peer's: {e}");
            }
        }
        if worker.progress() == 0 && worker.arm().expect("arming") {
            // What is queued for lack of room may have no descriptor that announces room.
            // And an order that has just been read is not announced once more.
            let read = !self.orders.borrow().is_empty();
            let nap = (worker.pending() > 0 || read).then_some(1);
            let _ = sys::readable(&[STDIN, worker.fd()], nap);
        }
    }

    fn line(&self) -> Option<String> {
        self.orders.borrow_mut().pop_front()
    }

    /// Reads what is there.
    fn look(&self) {
        while !self.closed.get() && sys::readable(&[STDIN], Some(0)) {
            self.read();
        }
    }

    fn read(&self) {
        let mut bytes = [0; 65536];
        let count = sys::read(STDIN, &mut bytes);
        if count == 0 {
            self.closed.set(true);
        }
        let mut buffer = self.buffer.borrow_mut();
        buffer.extend_from_slice(&bytes[..count]);
        while let Some(end) = buffer.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            match line.strip_prefix("deliver ") {
                Some(datagram) => self.datagrams.borrow_mut().push_back(datagram.to_string()),
                None => self.orders.borrow_mut().push_back(line),
            }
        }
    }
}
