//! A sender and a receiver in one thread, over each available transport of one host.

use std::cell::RefCell;
use std::rc::Rc;
use tieline::{CompletionError, Context, Endpoint, Outcome, Rendezvous, Request, Worker};
use tieline_testing::built;

/// Returns the available transports by name, and the settings under which each is the only one.
pub(crate) fn transports() -> Vec<(&'static str, Vec<(&'static str, String)>)> {
    let mut all = vec![
        ("shm and shm-cma", vec![("TIELINE_PROVIDERS", "shm,shm-cma".to_string())]),
        ("shm alone", vec![("TIELINE_PROVIDERS", "shm".to_string())]),
    ];
    match built::folder(&built::TCP) {
        Ok(folder) => all.push((
            "tcp",
            vec![
                ("TIELINE_PROVIDER_PATH", folder.to_str().unwrap().to_string()),
                ("TIELINE_PROVIDERS", "tcp,tcp-connect".to_string()),
                ("TIELINE_TCP_INTERFACES", "127.0.0.0/8".to_string()),
            ],
        )),
        Err(reason) => println!("skipped: over tcp: {reason}"),
    }
    all
}

/// The message that the receiver's handler got.
#[derive(Debug)]
pub(crate) enum Came {
    Whole(u64, Vec<u8>),
    Announced(Rendezvous),
}

/// A sender and a receiver in separate contexts, in one thread.
pub(crate) struct Pair {
    pub(crate) came: Rc<RefCell<Vec<Came>>>,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) sender: Worker,
    pub(crate) receiver: Worker,
    pub(crate) here: Context,
    pub(crate) there: Context,
}

pub(crate) const ID: u16 = 7;

impl Pair {
    pub(crate) fn new(settings: &[(&str, String)]) -> Pair {
        Pair::with(settings, false)
    }

    pub(crate) fn with(settings: &[(&str, String)], publish_keys: bool) -> Pair {
        let open = || {
            let room = Context::builder().set("TIELINE_QUEUE_BYTES", "16m");
            let room = room.publish_keys(publish_keys);
            settings.iter().fold(room, |b, (name, to)| b.set(name, to)).open().unwrap()
        };
        let (here, there) = (open(), open());
        let (sender, receiver) = (here.worker().unwrap(), there.worker().unwrap());
        let came: Rc<RefCell<Vec<Came>>> = Rc::default();
        let log = came.clone();
        receiver
            .on_message(ID, move |message| {
                let next = match message.rendezvous() {
                    Some(announcement) => {
                        assert!(message.is_rendezvous() && message.payload().is_empty());
                        assert!(message.rendezvous().is_none(), "it is given once");
                        assert_eq!(message.len(), announcement.len());
                        assert_eq!(message.header(), announcement.header());
                        assert_eq!((message.id(), announcement.id()), (ID, ID));
                        assert_eq!(message.peer(), announcement.peer());
                        Came::Announced(announcement)
                    }
                    None => {
                        assert_eq!(message.len(), message.payload().len());
                        Came::Whole(message.header(), message.payload().to_vec())
                    }
                };
                log.borrow_mut().push(next);
            })
            .unwrap();
        let endpoint = Some(sender.connect(&receiver.address().unwrap()).unwrap());
        Pair { came, endpoint, sender, receiver, here, there }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        self.endpoint.as_ref().unwrap()
    }

    /// Makes progress on both sides until a condition holds.
    pub(crate) fn until<T>(&self, mut done: impl FnMut() -> Option<T>) -> T {
        loop {
            let _ = (self.sender.progress(), self.receiver.progress());
            if let Some(result) = done() {
                return result;
            }
        }
    }

    /// Returns the next message, which must be a rendezvous message.
    pub(crate) fn announced(&self) -> Rendezvous {
        let next = || {
            let mut came = self.came.borrow_mut();
            if came.is_empty() { None } else { Some(came.remove(0)) }
        };
        match self.until(next) {
            Came::Announced(announcement) => announcement,
            came => panic!("{came:?}"),
        }
    }

    /// Returns the result of an operation of one of the two sides.
    pub(crate) fn end(&self, worker: &Worker, outcome: Outcome) -> Result<u64, CompletionError> {
        match outcome {
            Outcome::Done(value) => Ok(value),
            Outcome::Pending(request) => self.until(|| worker.test(&request)),
        }
    }
}

/// Returns the contents for `mark`: bytes in which any two neighbouring words differ.
pub(crate) fn bytes(mark: u64, len: usize) -> Vec<u8> {
    let words = (0..len as u64 / 8 + 1).flat_map(|at| ((at * 0x9e37_79b9) ^ mark).to_le_bytes());
    words.take(len).collect()
}

pub(crate) fn pending(outcome: Outcome) -> Request {
    match outcome {
        Outcome::Pending(request) => request,
        Outcome::Done(value) => panic!("it has ended with {value}"),
    }
}
