//! The state of a worker, and the order in which it is dropped.

use super::abi::{Alone, LeftOver};
use super::announced::Announcements;
use super::arrivals::{Doubt, PeerEvent};
use super::delivering::Deliveries;
use super::notices::Notices;
use super::schedule::Schedule;
use super::shown::Shown;
use super::threads::Signal;
use super::watched::Watched;
use super::wireup_transports::{Opening, WireupTransports};
use super::wiring::Wiring;
use super::{Counters, backoff, help, owed, peers};
use crate::endpoint::{Endpoint, EndpointState, queued::SharedCopy};
use crate::exit;
use crate::interface::{InterfaceSlot, PeerId, Said};
use crate::message::{Inbox, Message};
use crate::proto::torn::Torn;
use crate::setup::{Core, ModuleUse};
use crate::shared::{Lease, Shared};
use crate::sys::{Poller, Timer};
use crate::{ConnectError, Error, Status};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tieline_lookup::{Arrival, NameService, ServiceLimits, Services};
use tieline_order::Id;
use tieline_order::slab::Slab;
use tieline_plugin_api::caps;

pub(super) type Handler = Box<dyn Fn(&Message<'_>)>;
type FailureHandler = Rc<dyn Fn(PeerId, &Error)>;
type EndpointFailureHandler = Rc<dyn Fn(&Endpoint, &ConnectError)>;
type LeftHandler = Rc<dyn Fn(PeerId)>;
pub(super) type NotificationHandler = Rc<dyn Fn(PeerId, u32)>;

/// The state of a worker. Each cell is borrowed only to read or change it. During a borrow no function of the application runs, and
/// no object of the application is dropped: both may access this state again. There is one exception: `handlers` stays borrowed
/// while message handlers run, and code that cannot borrow it leaves the change to `work`.
pub(crate) struct WorkerState {
    /// Whether the `Worker` was dropped or closed, so that no new work begins, even if other objects still hold this state.
    pub(super) closed: Cell<bool>,
    /// Whether the end of the context's progress thread has been reported to the application.
    pub(super) heard_of_service: Cell<bool>,
    pub(super) handlers: RefCell<Vec<Option<Handler>>>,
    pub(super) late_handlers: RefCell<Vec<(u16, Handler)>>,
    pub(super) on_failure: RefCell<Option<FailureHandler>>,
    pub(super) on_endpoint_failure: RefCell<Option<EndpointFailureHandler>>,
    pub(super) on_left: RefCell<Option<LeftHandler>>,
    pub(super) on_notification: RefCell<Option<NotificationHandler>>,
    /// The peer events that have not been reported to the handlers.
    pub(super) news: RefCell<VecDeque<PeerEvent>>,
    /// Failed endpoints whose peer may be leaving.
    pub(super) doubted: RefCell<Vec<Doubt>>,
    pub(super) peers: RefCell<peers::Peers>,
    /// Endpoints whose peer, by its number, has answered over a module without circuits, each at the place of its index. The number
    /// of a peer stays the same worker's.
    pub(super) answering: [Cell<Option<(Id, u32)>>; 8],
    /// Which interfaces a progress call polls.
    pub(super) schedule: Schedule,
    pub(super) timer: Timer,
    pub(super) wiring: Wiring,
    pub(super) services: RefCell<Services<Listener>>,
    pub(super) endpoints: RefCell<Slab<(), Weak<EndpointState>>>,
    /// The backlog of handlers that panicked.
    pub(super) left_over: LeftOver,
    /// The interface that is polled without any other step.
    pub(super) alone: Alone,
    /// The answers that could not be sent yet.
    pub(super) owed: owed::Owed,
    /// The rendezvous messages of peers.
    pub(super) announcements: Announcements,
    /// The acknowledgements that the running or next progress call sends.
    pub(super) deliveries: RefCell<Vec<Deliveries>>,
    /// The notifications whose operations have not ended.
    pub(super) notices: Notices,
    /// The endpoints that are kept until a flush (its number) or their rendezvous messages have ended, even if all handles are
    /// dropped.
    pub(super) kept: RefCell<Vec<(Option<Id>, Rc<EndpointState>)>>,
    pub(super) busy: RefCell<VecDeque<Rc<EndpointState>>>,
    /// Whether an endpoint has used up its budget in the last round and could continue.
    pub(super) turn_was_over: Cell<bool>,
    /// The large transfers of this worker of which a peer still copies a part, and peers' transfers with which this worker helps.
    pub(super) copies: RefCell<Vec<SharedCopy>>,
    pub(super) helps: help::Helps,
    /// The peers' puts in several messages of which one hit missing memory.
    pub(super) torn: RefCell<Torn>,
    pub(super) counters: Cell<Counters>,
    /// The number of reports of messages and notifications without a handler so far.
    pub(super) told_unhandled: Cell<u32>,
    pub(super) poller: Rc<Poller>,
    /// Whether events of interfaces wake the worker.
    pub(super) watched: Watched,
    pub(super) backoff: backoff::Backoff,
    /// The object by which other threads end a sleep, once requested.
    pub(super) signal: OnceCell<Signal>,
    /// Whether another thread has woken this worker and no `wait` or `arm` has consumed that yet.
    pub(super) woken: Cell<bool>,
    /// The queues through which other threads submit tasks.
    pub(super) mailboxes: RefCell<Vec<Rc<dyn Mailbox>>>,
    /// The state for answering lookups of worker names.
    pub(super) names: Answers,
    /// The published state.
    pub(super) shown: Shown,
    /// The last address of each interface. The addresses are separate from the interfaces, so that a poll touches little memory.
    pub(super) said: Vec<Said>,
    /// The part that messages use.
    pub(crate) inbox: Inbox,
    /// The shared state, declared last: the fields above that point into providers are dropped before the interfaces.
    pub(crate) shared: Rc<Shared>,
}

/// The lookups that a worker answers, and its own lookups.
#[derive(Default)]
pub(super) struct Answers {
    /// The context's listener, if the worker has a name; the worker then answers for all names of the context.
    pub(super) own: RefCell<Option<Arc<NameService>>>,
    /// Whether peers may know the worker by an address without a name.
    pub(super) nameless: Cell<bool>,
    /// The peers that are to be told the worker's name.
    pub(super) untold: RefCell<Vec<u32>>,
    /// Whether this is the progress thread's worker, which answers for every name of the context.
    pub(super) for_all: Cell<bool>,
    /// The number of this worker's open lookups. Their sockets are not in the worker's poller.
    pub(super) open: Cell<usize>,
}

/// The listener of a service. While the services are borrowed, nothing is sent, and no listener runs or is dropped: all of these may
/// access the services again.
pub(super) type Listener = Rc<dyn Fn(PeerId, Arrival)>;

/// A queue through which other threads submit tasks. `run` and `drop_tasks` may call any function of the application; the other
/// functions borrow nothing of the worker.
pub(super) trait Mailbox {
    fn has_tasks(&self) -> bool;
    /// Runs the waiting tasks, and returns their number.
    fn run(&self, worker: &Rc<WorkerState>) -> usize;
    /// Checks whether no thread can submit a task any more, and the queue is empty.
    fn is_abandoned(&self) -> bool;
    /// Closes the queue when the worker ends, so that no more tasks are accepted. No function of the application runs in this call.
    fn close(&self);
    /// Drops the tasks that were accepted and not run.
    fn drop_tasks(&self);
}

/// The modules that a worker opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Modules {
    All,
    /// Those that any thread may call.
    OfAnyThread,
}

impl Modules {
    /// Checks whether a worker may open this module.
    pub(super) fn check(self, module: &ModuleUse) -> Result<(), Error> {
        match self {
            Modules::OfAnyThread if module.attr.caps & caps::ANY_THREAD == 0 => Err(Error::new(
                Status::Unsupported,
                "a driven worker",
                format!("{} belongs to the thread that opens it", module.path),
                "use an ordinary worker for that module, or a provider whose modules any thread may call (ANY_THREAD)",
            )),
            _ => Ok(()),
        }
    }
}

/// Sets a handler. Returns the previous handler, which the caller drops while nothing is borrowed.
pub(super) fn set_handler(
    handlers: &mut Vec<Option<Handler>>,
    id: u16,
    handler: Handler,
) -> Option<Handler> {
    let index = usize::from(id);
    if handlers.len() <= index {
        handlers.resize_with(index + 1, || None);
    }
    handlers[index].replace(handler)
}

impl WorkerState {
    pub(super) fn open(
        core: Arc<Core>,
        lease: Option<Arc<Lease>>,
        which: Modules,
    ) -> Result<WorkerState, Error> {
        core.check_process("a context")?;
        let mut tested = core.take_tested();
        let id = match &tested {
            Some(tested) => tested.worker,
            None => crate::sys::random_id()?,
        };
        // The worker's own descriptors are opened first, because the worker needs them even if a provider then finds no free
        // descriptor.
        let poller = Rc::new(Poller::new()?);
        let timer = Timer::new()?;
        poller.add(timer.as_raw_fd())?;
        let mut interfaces: Vec<InterfaceSlot> = Vec::new();
        let mut words = Vec::new();
        let (mut refused, mut not_opened) = (None, Vec::new());
        for module in &core.modules {
            let domain = &core.memory.domains[module.domain];
            let open = || InterfaceSlot::open(module, domain, id, &poller);
            match which.check(module).and_then(|()| open()) {
                Ok((slot, said)) => {
                    interfaces.push(slot);
                    words.push(said);
                }
                // The other modules may work without this one; the report contains the reason.
                Err(error) => {
                    core.note(format!("{} is not used: {error}", module.path));
                    not_opened.push((module.path.clone(), error.clone()));
                    refused = Some(error);
                }
            }
        }
        if let (Some(error), false) = (refused, interfaces.iter().any(|i| i.roles.message)) {
            return Err(error);
        }
        let mut open = Opening { worker: id, which, tested: tested.as_mut() };
        let transports = WireupTransports::open(&core, &mut open, &poller, not_opened);
        transports.check_connections(&core, &interfaces)?;
        let wiring = Wiring::new(id, transports, core.connect_timeout);
        let services = RefCell::new(Services::new(ServiceLimits::of(core.connect_timeout)));
        let polled = |slow: bool| {
            let asks = move |caps: u64| {
                caps & caps::NEEDS_POLL != 0 && (caps & caps::SLOW_POLL != 0) == slow
            };
            let all = interfaces.iter().enumerate();
            all.filter(|(_, slot)| asks(slot.attr.caps)).map(|(index, _)| index).collect::<Vec<_>>()
        };
        // The progress thread's worker holds no lease on the thread itself.
        let shown = Shown::new(core.live_page(), lease.is_none());
        let schedule = Schedule::of(polled(false), polled(true));
        let shared = Rc::new(Shared::new(core.clone(), lease, id, interfaces)?);
        let inner = WorkerState {
            closed: Cell::new(false),
            heard_of_service: Cell::new(false),
            handlers: RefCell::default(),
            late_handlers: RefCell::default(),
            on_failure: RefCell::default(),
            on_endpoint_failure: RefCell::default(),
            on_left: RefCell::default(),
            on_notification: RefCell::default(),
            news: RefCell::default(),
            doubted: RefCell::default(),
            peers: RefCell::default(),
            answering: Default::default(),
            schedule,
            timer,
            wiring,
            services,
            endpoints: RefCell::default(),
            left_over: LeftOver::new(shared.clone()),
            alone: Alone::new(shared.clone()),
            owed: owed::Owed::default(),
            announcements: Announcements::new(core.announced),
            deliveries: RefCell::default(),
            notices: Notices::default(),
            kept: RefCell::default(),
            busy: RefCell::default(),
            turn_was_over: Cell::new(false),
            copies: RefCell::default(),
            helps: help::Helps::default(),
            torn: RefCell::default(),
            counters: Cell::default(),
            told_unhandled: Cell::default(),
            poller,
            watched: Watched::new(),
            backoff: backoff::Backoff::new(core.spin.clone()),
            signal: OnceCell::new(),
            woken: Cell::new(false),
            mailboxes: RefCell::default(),
            names: Answers::default(),
            shown,
            said: words,
            inbox: Inbox::new(shared.clone()),
            shared,
        };
        inner.choose_watch();
        inner.show();
        Ok(inner)
    }

    /// Checks that the worker is open. Objects added to a closed worker (`Closed`) might never be released.
    pub(super) fn check_open(&self) -> Result<(), Error> {
        self.shared.check_process("a worker")?;
        if self.closed.get() { Err(Status::Closed.into()) } else { Ok(()) }
    }

    /// Checks that an operation belongs to this worker, by the shared state.
    pub(crate) fn check_owner(&self, shared: &Rc<Shared>) -> Result<(), Error> {
        self.shared.check_process("a worker")?;
        if Rc::ptr_eq(&self.shared, shared) {
            return Ok(());
        }
        Err(Error::new(
            Status::Invalid,
            "an operation of another worker",
            "only the worker that it was posted on knows it",
            "ask that worker",
        ))
    }

    /// Checks whether a copy is shared with a peer.
    pub(super) fn shares_copies(&self) -> bool {
        !self.copies.borrow().is_empty() || !self.helps.is_empty()
    }
}

impl Drop for WorkerState {
    fn drop(&mut self) {
        exit::forget(&self.shared.entrance);
        if self.shared.same_process() {
            self.left_over.give_back();
            self.wiring.close();
        } else {
            // If a forked child closed the transports, they would say goodbye in the parent's name.
            self.wiring.forget();
        }
    }
}
