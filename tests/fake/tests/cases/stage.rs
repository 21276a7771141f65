//! Two contexts of one process with one worker each, and helper functions of the cases.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use tieline::{
    Access, CompletionError, Context, Endpoint, Error, OpenError, Outcome, PostError, Region,
    RemoteKey, Request, Status, Worker,
};
use tieline_fake::{Lane, World};

/// The number of polls after which an event counts as never happening.
const NEVER: usize = 5_000;

pub(crate) fn context(world: &'static World, settings: &[(&str, &str)]) -> Context {
    try_context(world, settings).expect("a context over the fake")
}

pub(crate) fn try_context(
    world: &'static World,
    settings: &[(&str, &str)],
) -> Result<Context, OpenError> {
    let mut builder = Context::builder();
    for (name, value) in world.settings() {
        builder = builder.set(name, &value);
    }
    for (name, value) in settings {
        builder = builder.set(name, value);
    }
    builder.out_of_band(world.has_circuits()).publish_keys(true).open()
}

/// Wire-up datagrams, each with the name of the worker to which it is addressed.
type Mail = Rc<RefCell<VecDeque<(u8, Vec<u8>)>>>;

fn carry(worker: &Worker, name: u8, mail: &Mail) -> Result<(), Error> {
    let post = mail.clone();
    worker.set_out_of_band(&[name], move |to, datagram| {
        post.borrow_mut().push_back((to[0], datagram.to_vec()));
        true
    })
}

/// A worker `a` with an endpoint to a worker `b` of another context, which has an endpoint back.
///
/// The order of the fields is the order in which they are dropped.
pub(crate) struct Stage {
    pub(crate) ab: Endpoint,
    pub(crate) ba: Endpoint,
    pub(crate) a: Worker,
    pub(crate) b: Worker,
    pub(crate) at_a: Context,
    pub(crate) at_b: Context,
    pub(crate) world: &'static World,
    mail: Mail,
}

impl Stage {
    pub(crate) fn new(lanes: Vec<Lane>) -> Stage {
        Stage::with(lanes, &[])
    }

    pub(crate) fn with(lanes: Vec<Lane>, settings: &[(&str, &str)]) -> Stage {
        Stage::with_each(lanes, settings, settings)
    }

    pub(crate) fn with_each(
        lanes: Vec<Lane>,
        of_a: &[(&str, &str)],
        of_b: &[(&str, &str)],
    ) -> Stage {
        let world = World::new(1, lanes);
        let (at_a, at_b) = (context(world, of_a), context(world, of_b));
        let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
        let mail = Mail::default();
        for (worker, name) in [(&a, 0), (&b, 1)].into_iter().filter(|_| world.has_circuits()) {
            match carry(worker, name, &mail) {
                // If this is unsupported, messages carry the datagrams.
                Err(error) if error.status() == Status::Unsupported => {}
                carried => carried.unwrap(),
            }
        }
        let ab = a.connect(&b.address().unwrap()).unwrap();
        let ba = b.connect(&a.address().unwrap()).unwrap();
        let stage = Stage { ab, ba, a, b, at_a, at_b, world, mail };
        // After this flush each worker knows the other's peer number.
        let _ = stage.finish(stage.ab.flush_messages().unwrap()).unwrap();
        let back = pending(stage.ba.flush_messages());
        assert!(stage.until(|| stage.b.test(&back) == Some(Ok(0))));
        drop(back);
        stage
    }

    pub(crate) fn carry_for_a(&self) -> Result<(), Error> {
        carry(&self.a, 0, &self.mail)
    }

    pub(crate) fn turn(&self) -> usize {
        let datagram = self.mail.borrow_mut().pop_front();
        if let Some((to, datagram)) = datagram {
            [&self.a, &self.b][usize::from(to)].deliver_out_of_band(&datagram).unwrap();
        }
        self.a.progress() + self.b.progress()
    }

    /// Makes 200 progress calls on each worker.
    pub(crate) fn settle(&self) {
        for _ in 0..200 {
            let _ = self.turn();
        }
    }

    /// Makes progress on both workers until `done` returns true, or for [`NEVER`] turns. Returns the last result of `done`.
    #[must_use]
    pub(crate) fn until(&self, done: impl Fn() -> bool) -> bool {
        for _ in 0..NEVER {
            if done() {
                return true;
            }
            let _ = self.turn();
        }
        done()
    }

    #[track_caller]
    pub(crate) fn finish(&self, outcome: Outcome) -> Result<u64, CompletionError> {
        let request = match outcome {
            Outcome::Done(value) => return Ok(value),
            Outcome::Pending(request) => request,
        };
        self.end_of(&request).expect("an operation that ends")
    }

    #[track_caller]
    pub(crate) fn ended(&self, posted: Result<Outcome, PostError>) -> Result<u64, Error> {
        Ok(self.finish(posted?)?)
    }

    /// Returns the result of a pending operation of `a`, if the operation ends.
    pub(crate) fn end_of(&self, request: &Request) -> Option<Result<u64, CompletionError>> {
        let result = RefCell::new(None);
        let ended = self.until(|| {
            *result.borrow_mut() = self.a.test(request);
            result.borrow().is_some()
        });
        if ended { result.into_inner() } else { None }
    }

    /// Makes a region of `b` that holds `bytes`, and the region's key at `a`.
    pub(crate) fn target(&self, bytes: Vec<u8>) -> (Region, RemoteKey) {
        let region = self.at_b.register_with(bytes, Access::ALL).unwrap();
        let key = self.ab.import_key(&region.remote_key().unwrap()).unwrap();
        (region, key)
    }

    pub(crate) fn local(&self, bytes: Vec<u8>) -> Region {
        self.at_a.register(bytes).unwrap()
    }

    #[track_caller]
    pub(crate) fn assert_no_faults(&self) {
        assert_eq!(self.world.faults(), Vec::<String>::new());
    }

    pub(crate) fn log_at_b(&self, id: u16) -> Rc<RefCell<Vec<u64>>> {
        let log: Rc<RefCell<Vec<u64>>> = Rc::default();
        let seen = log.clone();
        self.b.on_message(id, move |m| seen.borrow_mut().push(m.header())).unwrap();
        log
    }
}

/// Returns the request of an operation that must still be pending.
#[track_caller]
pub(crate) fn pending(outcome: Result<Outcome, PostError>) -> Request {
    match outcome.unwrap() {
        Outcome::Pending(request) => request,
        Outcome::Done(_) => panic!("the operation ended at once, although the provider has it"),
    }
}

/// Posts until a post returns `Again`. Returns the number of accepted posts, or `None` if `most` posts were accepted.
pub(crate) fn posts_until_again(
    most: usize,
    mut post: impl FnMut() -> Result<Outcome, PostError>,
) -> (Option<usize>, Vec<Request>) {
    let mut requests = Vec::new();
    for taken in 0..most {
        match post() {
            Ok(Outcome::Pending(request)) => requests.push(request),
            Ok(Outcome::Done(_)) => {}
            Err(error) if error.status() == Status::Again => return (Some(taken), requests),
            Err(error) => panic!("{error}"),
        }
    }
    (None, requests)
}
