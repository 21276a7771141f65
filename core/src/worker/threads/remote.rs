//! Tasks that other threads submit to a worker's thread.

use super::Waker;
use crate::error::Scope;
use crate::worker::Worker;
use crate::worker::inner::{Mailbox, WorkerState};
use crate::{Error, PostError, Status};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Task<S> = Box<dyn FnOnce(&Worker, &S) + Send>;

/// A handle by which any thread submits tasks to a worker's thread. [`Worker::remote`] makes the handle.
pub struct Remote<S: 'static = ()> {
    mail: Arc<Mail<S>>,
}

/// A task that was not accepted: the worker's thread will not run it.
pub struct NotTaken<F> {
    /// The task.
    pub task: F,
    /// The reason. [`PostError::Retry`]: the queue is full, and the worker's thread has to make progress. Otherwise the worker is
    /// gone, or this is a forked child.
    pub error: PostError,
}

impl<F> fmt::Debug for NotTaken<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotTaken({:?})", self.error)
    }
}

/// The state that both sides share.
struct Mail<S> {
    queue: Mutex<Queue<S>>,
    /// The number of tasks in the queue. The worker reads the number without the lock, to see whether there are tasks.
    waiting: AtomicUsize,
    /// The number of `Remote`s of this queue. The tasks of the last `Remote` are in the queue before the number becomes 0.
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
    /// The tasks taken from the queue, which the current progress call runs, or the next one after a panic.
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
            // The wake-up makes the worker drop the state, although it may be sleeping without a timeout.
            self.mail.waker.wake();
        }
    }
}

impl<S> Remote<S> {
    /// Submits a task to the worker's thread, which runs it in one of its next progress calls. The task receives the worker, and
    /// the state given to [`Worker::remote`]. A sleeping worker is woken, as by a [`Waker`]. Tasks that one thread submits through
    /// one `Remote` or its clones run in their order.
    ///
    /// The rules for handlers apply to tasks: a task may post, connect and drop objects, but must not wait. A panic unwinds through
    /// the progress call; the next call runs the remaining tasks. This method takes a lock and allocates. The method must not be
    /// called in a signal handler; use a [`Waker`] in a signal handler.
    ///
    /// # Errors
    /// [`NotTaken`] returns the task. An accepted task is run, or dropped if the worker ends first. A task that holds one end of a
    /// channel reports both cases through that channel.
    pub fn run<F>(&self, task: F) -> Result<(), NotTaken<F>>
    where
        F: FnOnce(&Worker, &S) + Send + 'static,
    {
        // The process is checked before the lock, which another thread may have held when this process was forked.
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
    /// Runs `what` while the lock is held, as if another thread were submitting a task.
    pub(in crate::worker) fn locked<T>(&self, what: impl FnOnce() -> T) -> T {
        let _locked = self.mail.lock();
        what()
    }
}

impl<S> Mail<S> {
    fn lock(&self) -> MutexGuard<'_, Queue<S>> {
        // The lock cannot be poisoned, because no code panics while it is held.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Mailbox for Tasks<S> {
    fn has_tasks(&self) -> bool {
        self.mail.waiting.load(Ordering::Relaxed) > 0 || !self.taken.borrow().is_empty()
    }

    fn run(&self, inner: &Rc<WorkerState>) -> usize {
        if !self.has_tasks() {
            return 0;
        }
        // Tasks submitted during this call are left for the next call. Tasks that an earlier panic left run in this call.
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
        // In a forked child, a thread that does not exist may hold the lock.
        if self.mail.waker.check_process().is_err() {
            return;
        }
        let tasks = std::mem::take(&mut self.mail.lock().tasks);
        drop((tasks, self.taken.take()));
    }
}

impl<S> Drop for Tasks<S> {
    fn drop(&mut self) {
        // The queue is closed in every case, because a thread that waits for a task would otherwise wait forever.
        self.close();
        self.drop_tasks();
    }
}

impl Worker {
    /// Returns a handle by which other threads submit tasks to this worker's thread; at most `most` tasks wait at a time. `state`
    /// stays on this thread and is passed to every task: use it for endpoints and other values that are not `Send`.
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
    /// A worker that spins checks for tasks at least in every 64th progress call. A worker without a `Remote` does not check. At
    /// most `most` tasks wait in the queue, not counting tasks that the worker has removed from it to run. With a `most` of 0, no
    /// task is accepted.
    ///
    /// Dropping the last clone wakes the worker. After its tasks have run, one of the next progress calls drops the state; the
    /// worker's end drops it as well. A state that holds the last `Remote` itself stays until the worker ends. A state that holds
    /// the [`Worker`] keeps it open until [`Worker::close`] is called.
    ///
    /// # Errors
    /// The errors of [`Worker::waker`].
    pub fn remote<S: 'static>(&self, most: usize, state: S) -> Result<Remote<S>, Error> {
        let waker = self.waker()?;
        let queue = Mutex::new(Queue { open: true, most, tasks: VecDeque::new() });
        let (waiting, remotes) = (AtomicUsize::new(0), AtomicUsize::new(1));
        let mail = Arc::new(Mail { queue, waiting, remotes, waker });
        let tasks = Tasks { mail: mail.clone(), state, taken: RefCell::default() };
        self.inner.mailboxes.borrow_mut().push(Rc::new(tasks));
        // An idle worker might make its next check only after thousands of calls.
        self.inner.look_at_all();
        Ok(Remote { mail })
    }
}
