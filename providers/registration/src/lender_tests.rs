//! Tests of the lender over a device that counts, and fails on demand.

use crate::{Device, Lender, Limits};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tieline_plugin_api::{Failure, Status};

/// A device that counts registrations. While `refuses` has a status, the device refuses them with this status.
#[derive(Default)]
struct Counting {
    made: AtomicUsize,
    refuses: Mutex<Option<Status>>,
}

impl Device for Counting {
    type Registration = ();

    fn register(&self, _: *mut u8, _: usize, _: bool) -> Result<(), Failure> {
        match *self.refuses.lock().expect("one thread") {
            Some(status) => Err(Failure::new(status, "refused")),
            None => {
                let _ = self.made.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

#[test]
fn unused_registrations_are_evicted_only_on_lack_of_memory() {
    let limits = Limits { keep: true, bytes: 1 << 20, entries: 8 };
    let lender = Arc::new(Lender::new(Counting::default(), Some(limits)));
    let mut memory = [0u8; 64];
    let mut lend = |lender: &Arc<Lender<Counting>>| {
        lender.lend(memory.as_mut_ptr(), memory.len(), true, |()| ()).map(drop)
    };
    assert_eq!(lend(&lender), Ok(()));
    let refused = |status| {
        *lender.device().refuses.lock().expect("one thread") = Some(status);
        let failure = lender.pressed(|| lender.device().register(std::ptr::null_mut(), 1, true));
        assert_eq!(failure.expect_err("refused").status, status);
        *lender.device().refuses.lock().expect("one thread") = None;
    };
    let made = || lender.device().made.load(Ordering::Relaxed);
    refused(Status::Invalid);
    assert_eq!((lend(&lender), made()), (Ok(()), 1), "it was kept");
    refused(Status::NoMemory);
    assert_eq!((lend(&lender), made()), (Ok(()), 2), "it made room");
}
