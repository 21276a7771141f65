//! A peer's side of the pipe to the test.

use crate::sys;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::Write;
use tieline::Worker;

/// The connection to the test that started this process: each line is one order or one report. Lines that begin with `deliver` are
/// datagrams, and may arrive at any time.
#[derive(Default)]
pub struct Parent {
    buffer: RefCell<Vec<u8>>,
    orders: RefCell<VecDeque<String>>,
    datagrams: RefCell<VecDeque<String>>,
    closed: Cell<bool>,
}

/// The descriptor of the orders.
pub const STDIN: i32 = 0;

impl Parent {
    /// Sends a report.
    ///
    /// # Panics
    /// Panics if the test is gone.
    pub fn say(&self, line: &str) {
        let line = line.replace('\n', " / ") + "\n";
        std::io::stdout().lock().write_all(line.as_bytes()).expect("the test reads");
    }

    /// Returns the next order; `None` at the end of the orders. The call blocks, and makes no call of Tieline.
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

    /// Checks whether there is another order, or the end of the orders.
    pub fn wants_something(&self) -> bool {
        self.look();
        self.closed.get() || !self.orders.borrow().is_empty()
    }

    /// Returns the next datagram, as text.
    pub fn datagram(&self) -> Option<String> {
        self.look();
        self.datagrams.borrow_mut().pop_front()
    }

    /// Returns the next order. Makes progress until the order arrives, and sleeps when there is nothing to do. Datagrams are passed
    /// to the worker.
    ///
    /// # Panics
    /// Panics if the worker does not support waiting.
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

    /// Makes progress and passes datagrams to the worker. If there is no progress, sleeps until an event of the worker or a line of
    /// the test.
    ///
    /// # Panics
    /// Panics if the worker does not support waiting.
    pub fn pause(&self, worker: &Worker) {
        while let Some(datagram) = self.datagram() {
            if let Err(e) = worker.deliver_out_of_band(&crate::interpreter::unhex(&datagram)) {
                panic!("a datagram of a peer's: {e}");
            }
        }
        if worker.progress() == 0 && worker.arm().expect("arming") {
            // A queued operation may have no descriptor that reports free space. An order that was already read is not reported
            // again.
            let read = !self.orders.borrow().is_empty();
            let nap = (worker.pending() > 0 || read).then_some(1);
            let _ = sys::readable(&[STDIN, worker.fd()], nap);
        }
    }

    fn line(&self) -> Option<String> {
        self.orders.borrow_mut().pop_front()
    }

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
