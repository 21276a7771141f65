//! Tests of long messages that are sent from the same memory again and again.

mod sys;

use std::cell::RefCell;
use std::rc::Rc;
use tieline::{Context, Endpoint, Error, Outcome, Region, Rendezvous, Worker};

const ID: u16 = 7;

/// A sender and a receiver in separate contexts, in one thread.
struct Pair {
    came: Rc<RefCell<Option<Rendezvous>>>,
    endpoint: Endpoint,
    sender: Worker,
    receiver: Worker,
    here: Context,
    there: Context,
    /// The sender learns of the end of its messages by [`Worker::track`].
    tracks: bool,
}

impl Pair {
    fn new(providers: &str) -> Result<Pair, Error> {
        let open = || Context::builder().set("TIELINE_PROVIDERS", providers).open();
        let (here, there) = (open()?, open()?);
        let (sender, receiver) = (here.worker()?, there.worker()?);
        let came: Rc<RefCell<Option<Rendezvous>>> = Rc::default();
        let slot = came.clone();
        receiver.on_message(ID, move |message| *slot.borrow_mut() = message.rendezvous())?;
        let endpoint = sender.connect(&receiver.address()?)?;
        Ok(Pair { came, endpoint, sender, receiver, here, there, tracks: false })
    }

    /// Sends a part of `from` that starts at `at`, and receives it into all of `to`.
    fn pass(&self, from: &Region, at: usize, to: &Region) -> Result<(), Error> {
        let sent = self.endpoint.send_regions(ID, 0, &[(from, at..at + to.len())])?;
        if self.tracks {
            self.sender.track(&sent, 1)?;
        }
        let rendezvous = loop {
            let _ = (self.sender.progress(), self.receiver.progress());
            if let Some(rendezvous) = self.came.take() {
                break rendezvous;
            }
        };
        let received = rendezvous.receive_into(to, 0..to.len())?;
        let mut is_over = [received.is_done(), false];
        while is_over != [true; 2] {
            let _ = (self.sender.progress(), self.receiver.progress());
            if self.tracks {
                is_over[1] |= self.sender.take_completed(1, |_, end| assert_eq!(end, Ok(0))) == 1;
            }
            let asked = if self.tracks { 1 } else { 2 };
            for (is_over, (worker, outcome)) in is_over[..asked]
                .iter_mut()
                .zip([(&self.receiver, &received), (&self.sender, &sent)])
            {
                if let Outcome::Pending(request) = outcome {
                    *is_over = worker.test(request).transpose()?.is_some();
                }
            }
        }
        Ok(())
    }

    /// Passes a part as `pass` does, with new contents, and compares the contents.
    fn check(&self, from: &Region, at: usize, to: &Region, mark: u64) -> Result<(), Error> {
        let words = (0..to.len() as u64 / 8).flat_map(|n| ((n * 0x9e37_79b9) ^ mark).to_le_bytes());
        let bytes: Vec<u8> = words.collect();
        from.write(at, &bytes)?;
        self.pass(from, at, to)?;
        assert!(to.to_vec(0..to.len())? == bytes, "message {mark} at {at}");
        Ok(())
    }

    /// Returns a length above that of eager messages.
    fn long(&self) -> Result<usize, Error> {
        Ok((self.endpoint.max_message()? + 1).next_multiple_of(8))
    }
}

#[test]
fn long_messages_from_the_same_memory_allocate_nothing() -> Result<(), Error> {
    [false, true]
        .into_iter()
        .try_for_each(|tracks| check_allocations(&Pair { tracks, ..Pair::new("shm,shm-cma")? }))
}

fn check_allocations(pair: &Pair) -> Result<(), Error> {
    let len = pair.long()?;
    let sources = [
        pair.here.alloc(len)?,
        pair.here.register(vec![0; len])?,
        pair.here.register_transient(vec![0; len])?,
    ];
    let targets = [pair.there.alloc(len)?, pair.there.register_transient(vec![0; len])?];
    for from in &sources {
        for to in &targets {
            (0..100).try_for_each(|_| pair.pass(from, 0, to))?;
            let mut allocating = 0;
            for _ in 0..1000 {
                let before = sys::allocations();
                pair.pass(from, 0, to)?;
                allocating += u32::from(sys::allocations() > before);
            }
            // Progress publishes the worker's state from time to time, which no message causes.
            assert!(allocating <= 3, "{allocating} messages from {from:?} to {to:?}");
        }
    }
    Ok(())
}

#[test]
fn repeated_long_messages_carry_the_bytes_of_their_time() -> Result<(), Error> {
    for providers in ["shm,shm-cma", "shm"] {
        let pair = Pair::new(providers)?;
        let len = pair.long()?;
        let (from, to) = (pair.here.alloc(40 * 64 + len)?, pair.there.alloc(len)?);
        // More parts are sent in turn than wait for their next message.
        for mark in 0..120 {
            pair.check(&from, mark as usize % 40 * 64, &to, mark)?;
        }
        for mark in 200..210 {
            pair.check(&from, 64, &to, mark)?;
        }
    }
    Ok(())
}

#[test]
fn receiver_that_has_lost_a_kept_key_gets_the_bytes_by_messages_once() -> Result<(), Error> {
    let pair = Pair::new("shm,shm-cma")?;
    let len = pair.long()?;
    let (from, to) = (pair.here.alloc(len)?, pair.there.alloc(len)?);
    let emulated = || pair.sender.counters().emulated;
    (0..4).try_for_each(|mark| pair.check(&from, 0, &to, mark))?;
    assert_eq!(emulated(), 0);
    // From now on, the receiver uses this endpoint, which has not kept the key.
    let _back = pair.receiver.connect(&pair.sender.address()?)?;
    (4..8).try_for_each(|mark| pair.check(&from, 0, &to, mark))?;
    assert_eq!(emulated(), 1);
    Ok(())
}

#[test]
fn region_of_repeated_messages_closes_as_soon_as_the_last_one_has_ended() -> Result<(), Error> {
    let pair = Pair::new("shm,shm-cma")?;
    let len = pair.long()?;
    let to = pair.there.alloc(len)?;
    let sources = [pair.here.alloc(len)?, pair.here.register_transient(vec![0; len])?];
    for from in sources {
        let clone = from.clone();
        (0..3).try_for_each(|mark| pair.check(&from, 0, &to, mark))?;
        let not = from.close().expect_err("a clone exists");
        assert_eq!(not.error.why(), "1 other handle");
        drop(clone);
        not.region.close()?;
    }
    Ok(())
}
