//! The state that a worker shares with its endpoints, requests and kept messages: the interfaces, the open operations, and the
//! worker's fields that posting needs.

mod orphans;
mod unanswered;

pub(crate) use orphans::End;
pub(crate) use unanswered::Unanswered;

use crate::exit::Entrance;
use crate::interface::InterfaceSlot;
use crate::mem::local::LocalBuffer;
use crate::proto::shared_copy::Slots;
use crate::rank::ModuleRef;
use crate::setup::Core;
use crate::{Error, Status};
use orphans::Orphans;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tieline_host::abi::WatchWords;
use tieline_net::touch::Touch;
use tieline_order::held::{Held, Through, Unfinished};
use tieline_order::{Id, Table};
use tieline_plugin_api::abi::{Iov, RmaPart};
use unanswered::AllUnanswered;

/// The bytes of `queue_bytes` that each pending operation takes, besides the bytes that were copied for it.
pub(crate) const OPERATION_BYTES: usize = 64;

/// The lease of a worker on the context's progress thread, which ends with its last lease.
pub(crate) type Lease = dyn Any + Send + Sync;

/// The shared state of a worker. A holder of this value keeps the worker's interfaces open, even after the worker is closed.
pub(crate) struct Shared {
    pub(crate) core: Arc<Core>,
    _lease: Option<Arc<Lease>>,
    /// The id of the worker.
    pub(crate) id: [u8; 16],
    /// The marks that calls of the worker check first.
    pub(crate) entrance: Entrance,
    /// Whether the next progress call has work besides polling.
    pub(crate) has_work: Cell<bool>,
    /// The words that a progress call compares before any other step; none if the next call has to do more than polling the only
    /// active interface.
    pub(crate) watch: Cell<WatchWords>,
    /// Whether an imported key has lanes that providers may still find, which causes no event.
    pub(crate) settling: Cell<bool>,
    /// All open operations. The table is not borrowed while memory of the application is released.
    pub(crate) ops: RefCell<Table<LocalBuffer>>,
    /// The operations of dropped endpoints that providers still have.
    orphans: Orphans,
    /// The small requests that peers' workers have not answered yet.
    unanswered: AllUnanswered,
    /// The slots for copies shared with peers.
    pub(crate) slots: Slots,
    /// The object through which peers' accesses to the application's memory are made.
    pub(crate) touch: Touch,
    /// The buffer for a list of pieces while the list is posted.
    pub(crate) iov: Cell<Vec<Iov>>,
    /// The buffer for the parts of a list while the list is posted.
    pub(crate) parts: Cell<Vec<RmaPart>>,
    /// The buffer in which an RTS is written.
    pub(crate) rts: Cell<Vec<u8>>,
    /// The interfaces, declared late, so that all fields above that point into providers are dropped first.
    pub(crate) interfaces: Vec<InterfaceSlot>,
    /// The memory of ended operations that providers may still access. The rest of this memory is released when the interfaces are
    /// closed.
    pub(crate) held: RefCell<Held<LocalBuffer>>,
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
            entrance: Entrance::new(),
            has_work: Cell::new(false),
            watch: Cell::new(WatchWords::NONE),
            settling: Cell::new(false),
            ops: RefCell::new(Table::new(operations)),
            orphans: Orphans::default(),
            unanswered: AllUnanswered::default(),
            slots: Slots::default(),
            touch: Touch::default(),
            iov: Cell::default(),
            parts: Cell::default(),
            rts: Cell::default(),
            interfaces,
            held: RefCell::default(),
        })
    }

    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        self.entrance.is_open()
    }

    /// Fails in a forked child, and while the exit of the process keeps this thread out.
    pub(crate) fn check_process(&self, what: &str) -> Result<(), Error> {
        self.core.check_process(what)?;
        self.entrance.check(what)
    }

    /// Returns the index of a module among the interfaces, if the module could be opened.
    pub(crate) fn interface(&self, at: &ModuleRef) -> Option<usize> {
        self.interfaces.iter().position(|slot| slot.is(at))
    }

    /// Refuses a call during a progress call, and thus in a handler, because the call's completion may depend on the return of that
    /// progress call.
    #[inline]
    pub(crate) fn check_no_handler(&self, what: &str) -> Result<(), Error> {
        if self.entrance.is_in_progress() { Err(inside_a_handler(what)) } else { Ok(()) }
    }

    /// Returns the small requests that a peer's worker has not answered yet.
    pub(crate) fn unanswered_by(&self, worker: &[u8; 16]) -> Rc<Unanswered> {
        self.unanswered.by(worker)
    }

    /// Records that the next progress call has work to do.
    pub(crate) fn note_work(&self) {
        self.has_work.set(true);
        self.watch.set(WatchWords::NONE);
    }

    /// Changes the table of operations. An operation that ends may hold an application's buffer, whose drop may run any code. Such
    /// buffers are dropped while nothing is borrowed.
    #[inline]
    pub(crate) fn with_ops<T>(&self, change: impl FnOnce(&mut Table<LocalBuffer>) -> T) -> T {
        let (result, mut freed, due) = {
            let mut ops = self.ops.borrow_mut();
            (change(&mut ops), ops.take_freed(), ops.has_due())
        };
        if due {
            self.note_work();
        }
        while let Some((local_buffer, value)) = freed {
            if let Some(value) = value {
                local_buffer.store(value);
            }
            drop(local_buffer);
            freed = self.ops.borrow_mut().take_freed();
        }
        result
    }

    /// Records one event of an operation.
    #[inline]
    pub(crate) fn part(&self, id: Id, result: Result<u64, Error>) {
        let _ = self.with_ops(|ops| ops.part(id, result));
    }

    /// Keeps the memory of an operation that has ended for its caller while a provider may still access the memory.
    pub(crate) fn hold(&self, op: Unfinished<LocalBuffer>, through: Vec<Through>) {
        self.held.borrow_mut().keep(op, through);
    }

    /// Handles the closing of `what`: releases the memory of operations that used no other open connection.
    pub(crate) fn provider_closed(&self, what: Through) {
        // The memory is dropped while nothing is borrowed: it may be an application's buffer.
        let free = self.held.borrow_mut().closed(what);
        drop(free);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.same_process() {
            // If a forked child closed the interfaces, they would say goodbye in the parent's name.
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
