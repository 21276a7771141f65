//! What a worker shares with its endpoints, requests and kept messages: the interfaces, the operations that have not ended,
//! and the little that posting one asks of the worker.

mod orphans;
mod unanswered;

pub(crate) use orphans::End;
pub(crate) use unanswered::Unanswered;

use crate::interface::InterfaceSlot;
use crate::op::held::{Held, Through, Unfinished};
use crate::op::{Id, Table};
use crate::proto::shared_copy::Slots;
use crate::rank::ModuleRef;
use crate::setup::Core;
use crate::sys::ForkGuard;
use crate::{Error, Status};
use orphans::Orphans;
use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tieline_net::touch::Touch;
use tieline_plugin_api::abi::Iov;
use unanswered::AllUnanswered;

/// What a pending operation counts beside the bytes that were copied for it.
pub(crate) const OPERATION_BYTES: usize = 64;

/// What a worker keeps alive while it is there: the context's progress thread, which ends with the last who holds it.
pub(crate) type Lease = dyn Any + Send + Sync;

/// Who knows what stands behind a message that its handler has: the worker.
pub(crate) trait Senders {
    /// The endpoint (the endpoints' `Inner`, a type that is made of this) of the application's that leads to a peer.
    fn endpoint_to(&self, peer: u32) -> Option<Rc<dyn Any>>;

    /// The announced message (an `Announcement`) whose handler runs, once.
    fn take_announcement(&self) -> Option<Box<dyn Any>>;
}

/// Whoever holds this keeps the worker's interfaces open, also when the worker is closed.
pub(crate) struct Shared {
    pub(crate) core: Arc<Core>,
    _lease: Option<Arc<Lease>>,
    /// The worker's number.
    pub(crate) id: [u8; 16],
    guard: ForkGuard,
    /// The worker itself, for messages.
    pub(crate) senders: OnceCell<Weak<dyn Senders>>,
    /// A progress call is running, and may be inside of a handler.
    pub(crate) in_progress: Cell<bool>,
    /// The next progress call has something to do beside polling.
    pub(crate) has_work: Cell<bool>,
    /// Somebody asked for a key that a provider still fetches; its arrival is no event.
    pub(crate) settling: Cell<bool>,
    /// Every operation that has not ended. Not borrowed while memory of the application's is let go.
    pub(crate) ops: RefCell<Table>,
    /// Those of endpoints that are gone.
    orphans: Orphans,
    /// What peers' workers have yet to answer of what is small.
    unanswered: AllUnanswered,
    /// Where copies are shared with peers.
    pub(crate) slots: Slots,
    /// What peers' accesses to memory of the application's go through.
    pub(crate) touch: Touch,
    /// Room for a list of pieces while it is posted.
    pub(crate) iov: Cell<Vec<Iov>>,
    /// Late, so that everything above that points into providers goes first.
    pub(crate) interfaces: Vec<InterfaceSlot>,
    /// Memory of ended operations that providers may still touch; what is left goes when the interfaces are closed.
    pub(crate) held: RefCell<Held>,
}

impl Shared {
    pub(crate) fn new(
        core: Arc<Core>,
        lease: Option<Arc<Lease>>,
        id: [u8; 16],
        interfaces: Vec<InterfaceSlot>,
    ) -> Result<Shared, Error> {
        let operations = core.queue_bytes / OPERATION_BYTES;
        Ok(Shared {
            core,
            _lease: lease,
            id,
            guard: ForkGuard::new(),
            senders: OnceCell::new(),
            in_progress: Cell::new(false),
            has_work: Cell::new(false),
            settling: Cell::new(false),
            ops: RefCell::new(Table::new(operations)),
            orphans: Orphans::default(),
            unanswered: AllUnanswered::default(),
            slots: Slots::default(),
            touch: Touch::default(),
            iov: Cell::default(),
            interfaces,
            held: RefCell::default(),
        })
    }

    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        self.guard.same_process()
    }

    /// The place of a module among the interfaces, if it could be opened.
    pub(crate) fn interface(&self, at: &ModuleRef) -> Option<usize> {
        self.interfaces.iter().position(|slot| slot.is(at))
    }

    /// What waits for something has no place in a handler: it would wait for the call that it is in.
    #[inline]
    pub(crate) fn check_no_handler(&self, what: &str) -> Result<(), Error> {
        if self.in_progress.get() { Err(inside_a_handler(what)) } else { Ok(()) }
    }

    /// What a peer's worker has yet to answer of what is small.
    pub(crate) fn unanswered_by(&self, worker: &[u8; 16]) -> Rc<Unanswered> {
        self.unanswered.by(worker)
    }

    /// There is something to do for the next progress call.
    pub(crate) fn note_work(&self) {
        self.has_work.set(true);
    }

    // ---- operations ----

    /// Changes the table of operations. What thereby ends may hold an application's buffer, whose drop may do anything:
    /// it is let go when nothing is borrowed.
    #[inline]
    pub(crate) fn with_ops<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let (result, mut freed, due) = {
            let mut ops = self.ops.borrow_mut();
            (change(&mut ops), ops.take_freed(), ops.has_due())
        };
        if due {
            self.note_work();
        }
        while let Some(local_buffer) = freed {
            drop(local_buffer);
            freed = self.ops.borrow_mut().take_freed();
        }
        result
    }

    /// One event of an operation has come.
    #[inline]
    pub(crate) fn part(&self, id: Id, result: Result<u64, Error>) {
        let _ = self.with_ops(|ops| ops.part(id, result));
    }

    /// Keeps the memory of an operation that has ended here while a provider may still touch it.
    pub(crate) fn hold(&self, op: Unfinished, through: Vec<Through>) {
        self.held.borrow_mut().keep(op, through);
    }

    /// From here on no provider touches what was posted on this.
    pub(crate) fn provider_closed(&self, what: Through) {
        // Dropped when nothing is borrowed: it may hold an application's buffer.
        let free = self.held.borrow_mut().closed(what);
        drop(free);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.same_process() {
            // Closed in a forked child, they would say good-bye in the parent's name.
            std::mem::forget(std::mem::take(&mut self.interfaces));
        }
    }
}

#[cold]
fn inside_a_handler(what: &str) -> Error {
    Error::new(
        Status::Busy,
        format!("{what} inside a handler"),
        "handlers run inside progress",
        "return from the handler first",
    )
}
