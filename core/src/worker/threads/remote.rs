//! Work that other threads hand to a worker's thread.

use super::Waker;
use crate::error::Scope;
use crate::worker::Worker;
use crate::worker::inner::{Inner, Mailbox};
use crate::{Error, PostError, Status};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Task<S> = Box<dyn FnOnce(&Worker, &S) + Send>;

/// Hands work to a worker's thread, from any thread: [`Worker::remote`].
pub struct Remote<S: 'static = ()> {
    mail: Arc<Mail<S>>,
}

/// A task that was not taken: the worker's thread will not run it.
pub struct NotTaken<F> {
    /// The task.
    pub task: F,
    /// Why. [`PostError::Retry`]: as many wait as may, and the worker's thread has to make progress. Otherwise the worker is gone, or
    /// this is a forked child.
    pub error: PostError,
}

impl<F> fmt::Debug for NotTaken<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotTaken({:?})", self.error)
    }
}

/// What both sides have.
struct Mail<S> {
    queue: Mutex<Queue<S>>,
    /// How many tasks are in it, so that the worker need not lock it to see that there are none.
    waiting: AtomicUsize,
    /// How many can hand over tasks: what the last of them had handed over is in the queue before this is 0.
    remotes: AtomicUsize,
    waker: Waker,
}

struct Queue<S> {
    open: bool,
    most: usize,
    tasks: VecDeque<Task<S>>,
}

/// The worker's side.
struct Tasks<S> {
    mail: Arc<Mail<S>>,
    state: S,
    /// Those that are to be run by now.
    taken: RefCell<VecDeque<Task<S>>>,
}

impl<S> Clone for Remote<S> {
    fn clone(&self) -> Remote<S> {
        let _ = self.mail.remotes.fetch_add(1, Ordering::Relaxed);
        Remote { mail: self.mail.clone() }
    }
}

impl<S> Drop for Remote<S> {
    fn drop(&mut self) {
        if self.mail.remotes.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The state is the worker's to drop, which may sleep for ever.
            self.mail.waker.wake();
        }
    }
}

impl<S> Remote<S> {
    /// Has the worker's thread run a task, in one of its next progress calls: it gets the worker, and the state that
    /// [`Worker::remote`] was given. A worker that sleeps is woken, as by a [`Waker`]. Tasks of one thread run in their order.
    ///
    /// For a task holds what holds for handlers: it posts, connects and drops what it likes, and waits for nothing. One that panics
    /// does so through the progress call; those behind it are run by the next. This call takes a lock and allocates, so that no signal
    /// handler may make it: it has a [`Waker`].
    ///
    /// # Errors
    /// [`NotTaken`] gives the task back. What was taken is run, or dropped when the worker ends before: a task that holds one end of a
    /// channel tells by that.
    pub fn run<F>(&self, task: F) -> Result<(), NotTaken<F>>
    where
        F: FnOnce(&Worker, &S) + Send + 'static,
    {
        // Before the lock, which somebody may have held when this process was forked.
        if let Err(error) = self.mail.waker.check_process() {
            return Err(NotTaken { task, error: error.into() });
        }
        let mut queue = self.mail.lock();
        if !queue.open {
            drop(queue);
            return Err(NotTaken { task, error: gone().into() });
        }
        if queue.tasks.len() >= queue.most {
            drop(queue);
            return Err(NotTaken { task, error: Status::Again.into() });
        }
        queue.tasks.push_back(Box::new(task));
        self.mail.waiting.store(queue.tasks.len(), Ordering::Relaxed);
        drop(queue);
        self.mail.waker.wake();
        Ok(())
    }
}

#[cold]
fn gone() -> Error {
    Error::new(
        Status::Closed,
        "work for a worker of another thread",
        "the worker has ended",
        "keep the worker as long as its remotes",
    )
    .of(Scope::Worker)
}

#[cfg(test)]
impl<S> Remote<S> {
    /// Does something while another thread, as far as anybody can tell, hands over a task.
    pub(in crate::worker) fn locked<T>(&self, what: impl FnOnce() -> T) -> T {
        let _locked = self.mail.lock();
        what()
    }
}

impl<S> Mail<S> {
    fn lock(&self) -> MutexGuard<'_, Queue<S>> {
        // Nothing panics while it is locked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Mailbox for Tasks<S> {
    fn has_tasks(&self) -> bool {
        self.mail.waiting.load(Ordering::Relaxed) > 0 || !self.taken.borrow().is_empty()
    }

    fn run(&self, inner: &Rc<Inner>) -> usize {
        if !self.has_tasks() {
            return 0;
        }
        // What is handed over meanwhile is for the next call, and what a panic has left is for this one.
        let mut queue = self.mail.lock();
        self.taken.borrow_mut().append(&mut queue.tasks);
        self.mail.waiting.store(0, Ordering::Relaxed);
        drop(queue);
        let worker = Worker::lent(inner.clone());
        let mut count = 0;
        loop {
            let next = self.taken.borrow_mut().pop_front();
            let Some(task) = next else { return count };
            count += 1;
            task(&worker, &self.state);
        }
    }

    fn is_abandoned(&self) -> bool {
        self.mail.remotes.load(Ordering::Acquire) == 0 && !self.has_tasks()
    }

    fn close(&self) {
        if self.mail.waker.check_process().is_ok() {
            self.mail.lock().open = false;
        }
    }

    fn drop_tasks(&self) {
        // In a forked child somebody who is not there may have it locked.
        if self.mail.waker.check_process().is_err() {
            return;
        }
        let tasks = std::mem::take(&mut self.mail.lock().tasks);
        drop((tasks, self.taken.take()));
    }
}

impl<S> Drop for Tasks<S> {
    fn drop(&mut self) {
        // Whatever kept the worker from it: who waits for a task would wait for ever.
        self.close();
        self.drop_tasks();
    }
}

impl Worker {
    /// A way for other threads to have something done by this worker's thread, at most `most` tasks at a time. `state` stays with
    /// this thread, and every task gets it: endpoints and whatever else cannot be sent.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// let worker = context.worker()?;
    /// let me = worker.connect(&worker.address()?)?;
    /// let remote = worker.remote(64, me)?;
    /// let other = std::thread::spawn(move || {
    ///     remote.run(|_worker, me| drop(me.send(1, 7, b"in another's name"))).unwrap();
    /// });
    /// # worker.on_message(1, |_| {})?;
    /// worker.wait(None)?; // runs the task
    /// # other.join().unwrap();
    /// # Ok(()) }
    /// ```
    ///
    /// A worker that spins looks for tasks every 64th progress call. It costs nothing else, and nothing at all as long as nobody asks
    /// for it. At most `most` wait in the queue, beside those that the worker has taken out of it to run them; with 0 none is ever taken.
    ///
    /// When the last clone is gone, which wakes the worker, and what it had handed over has been run, the next progress call drops the
    /// state; so does the worker's end. A state that has the last `Remote` itself stays until then, and one that has the [`Worker`]
    /// keeps it open until somebody [closes](Worker::close) it.
    ///
    /// # Errors
    /// As [`Worker::waker`].
    pub fn remote<S: 'static>(&self, most: usize, state: S) -> Result<Remote<S>, Error> {
        let waker = self.waker()?;
        let queue = Mutex::new(Queue { open: true, most, tasks: VecDeque::new() });
        let (waiting, remotes) = (AtomicUsize::new(0), AtomicUsize::new(1));
        let mail = Arc::new(Mail { queue, waiting, remotes, waker });
        let tasks = Tasks { mail: mail.clone(), state, taken: RefCell::default() };
        self.inner.mailboxes.borrow_mut().push(Rc::new(tasks));
        // A quiet worker's next look may be thousands of calls away.
        self.inner.look_at_all();
        Ok(Remote { mail })
    }
}
