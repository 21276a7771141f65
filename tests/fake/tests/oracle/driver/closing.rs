//! The application's memory, and the guarantee of a closed region: no access after its close.

use super::sys;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tieline::{Context, Error, Region, Status, Worker};

/// The byte that fills memory whose region was closed.
const CLOSED: u8 = 0x5a;

pub(super) struct Own {
    memory: &'static [AtomicU8],
    pub(super) region: Region,
    /// Whether the operation has the memory by its address, so that the region's close does not say when the operation has ended.
    pub(super) raw: bool,
}

impl Own {
    pub(super) fn pieces(&self, from: usize, len: usize) -> Vec<(&Region, Range<usize>)> {
        let at = |part: usize| from + len * part / 5;
        let ends = [at(0), at(1), at(1), at(2), at(4), at(5), at(5)];
        ends.windows(2).map(|ends| (&self.region, ends[0]..ends[1])).collect()
    }

    pub(super) fn new(context: &Context, bytes: &[u8]) -> Result<Own, Error> {
        let (memory, region) = sys::register(context, bytes, false)?;
        Ok(Own { memory, region, raw: false })
    }

    /// Makes memory that an operation takes by its address.
    pub(super) fn by_address(context: &Context, bytes: &[u8]) -> Result<Own, Error> {
        let (memory, region) = sys::register(context, bytes, true)?;
        Ok(Own { memory, region, raw: true })
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.memory.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }
}

#[derive(Default)]
pub(super) struct Closing {
    open: Vec<Own>,
    closed: Vec<&'static [AtomicU8]>,
}

impl Closing {
    pub(super) fn add(&mut self, some: impl IntoIterator<Item = Option<Own>>) {
        // Memory by address belongs to its operation, whose end is not known here. It is never freed.
        self.open.extend(some.into_iter().flatten().filter(|own| !own.raw));
    }

    fn has_closed(&mut self, memory: &'static [AtomicU8]) {
        memory.iter().for_each(|byte| byte.store(CLOSED, Ordering::Relaxed));
        self.closed.push(memory);
    }

    pub(super) fn close(&mut self, own: Own) -> Result<(), String> {
        let Own { memory, region, .. } = own;
        region.close().map_err(|not| format!("its operation has ended: {not}"))?;
        self.has_closed(memory);
        Ok(())
    }

    /// Closes the regions that are not in use, with a worker if there is one.
    pub(super) fn try_all(&mut self, worker: Option<&Worker>) -> Result<(), String> {
        for Own { memory, region, raw } in std::mem::take(&mut self.open) {
            let closed = match worker {
                Some(worker) => worker.close_region(region, Duration::ZERO),
                None => region.close(),
            };
            match closed {
                Ok(()) => self.has_closed(memory),
                Err(not) if not.error.status() == Status::Busy => {
                    self.open.push(Own { memory, region: not.region, raw });
                }
                Err(not) => return Err(not.to_string()),
            }
        }
        Ok(())
    }

    pub(super) fn held(&mut self) -> Option<String> {
        let Own { memory, region, raw } = self.open.pop()?;
        match region.close() {
            Ok(()) => {
                self.has_closed(memory);
                self.held()
            }
            Err(not) => {
                let why = not.to_string();
                self.open.push(Own { memory, region: not.region, raw });
                Some(why)
            }
        }
    }

    pub(super) fn look(&self) -> Result<(), String> {
        let touched = |byte: &AtomicU8| byte.load(Ordering::Relaxed) != CLOSED;
        match self.closed.iter().any(|memory| memory.iter().any(touched)) {
            true => Err("memory of a region that was closed has changed".into()),
            false => Ok(()),
        }
    }
}
