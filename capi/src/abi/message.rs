//! Messages, as handlers receive them; kept messages and rendezvous messages.

use super::context::{end_of_worker, keep, no_handles, take, try_take};
use super::driven;
use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::{guarded, live, object};
use super::error::{Fault, answer, done};
use super::how::{self, How};
use super::memory::{RegionHandle, RegionObject, range};
use super::records::{self, out, out_handle};
use super::table::{self, Handle, Object};
use super::worker::{Watch, WorkerHandle, WorkerState, share, state_of};
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use tieline::driven::{DrivenKept, DrivenMessage};
use tieline::{
    Acknowledgement, HeaderBytes, KeptMessage, Message, NotReceived, PeerId, Rendezvous, Status,
};

/// A message, valid during the handler. The handler may copy the record. After the handler has returned, the record and its copies
/// are refused with TIELINE_INVALID, and `payload` must not be read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrivedMessage {
    /// The size of this record in bytes.
    pub size: usize,
    /// The header passed by the sender.
    pub header: u64,
    /// The bytes of the message, valid during the handler; null for a rendezvous message.
    pub payload: *const c_void,
    /// The length of the message, including the length of a rendezvous message.
    pub len: usize,
    /// The id passed by the sender.
    pub id: u32,
    /// Not 0 for a rendezvous message: a message longer than the sender's max_message, whose bytes are still at the sender. The
    /// message is refused unless the handler calls tieline_message_announcement.
    pub is_announced: u32,
    /// The number of the handler, for internal use.
    pub reserved: *const c_void,
    /// The number of the message among the messages of the handler, for internal use; 0 between two messages.
    pub reserved_worker: *const c_void,
}

/// A handler of the caller, and the message that is being delivered. The record refers to both by numbers only, so a copy that is
/// used later is refused.
pub(super) struct Arrival {
    record: Record,
    /// The number of the latest message.
    number: Cell<usize>,
    /// The message, while its handler runs.
    message: Cell<*const c_void>,
    own: Watch,
}

impl Object for Arrival {
    const KIND: u8 = 13;
    const NAME: &'static str = "a handler of messages";
}

impl Arrival {
    #[inline(always)]
    fn is_about(&self, record: &mut ArrivedMessage, message: &Message<'_>) {
        self.message.set(std::ptr::from_ref(message).cast());
        self.number.set(self.number.get().wrapping_add(1));
        record.reserved_worker = std::ptr::without_provenance(self.number.get());
        record.header = message.header();
    }

    /// Delivers a message of a driven worker.
    pub(super) fn tell_driven(&self, message: &DrivenMessage, handler: Handler, user: *mut c_void) {
        // SAFETY: handlers run one at a time and never nested, so no other reference to the record is in use.
        let record = unsafe { &mut *self.record.get() };
        self.message.set(std::ptr::from_ref(message).cast());
        self.number.set(self.number.get().wrapping_add(1));
        record.reserved_worker = std::ptr::without_provenance(self.number.get());
        record.header = message.header();
        let payload = message.payload();
        record.payload = match payload {
            [] => std::ptr::null(),
            bytes => bytes.as_ptr().cast(),
        };
        record.len = message.len();
        record.is_announced = message.is_rendezvous().into();
        // SAFETY: `handler` is the caller's function, and the record is valid during the call.
        unsafe { handler(user, record) };
        record.reserved_worker = std::ptr::null();
    }

    /// Delivers a rendezvous message. Between two calls, the record has the values that other messages need.
    #[cold]
    #[inline(never)]
    fn tell_announced(&self, message: &Message<'_>, handler: Handler, user: *mut c_void) {
        // SAFETY: handlers run one at a time and never nested, so no other reference to the record is in use.
        let record = unsafe { &mut *self.record.get() };
        self.is_about(record, message);
        (record.payload, record.len, record.is_announced) = (std::ptr::null(), message.len(), 1);
        // SAFETY: `handler` is the caller's function, and the record is valid during the call.
        unsafe { handler(user, record) };
        (record.is_announced, record.reserved_worker) = (0, std::ptr::null());
    }
}

/// The memory of a handler's record. The memory is reused by a later handler and never freed, since a caller may still have its
/// address.
struct Record(&'static UnsafeCell<ArrivedMessage>);

// SAFETY: only the list that contains the record refers to the record's memory.
unsafe impl Send for Record {}

/// Records of handlers that were removed. Threads only try to take the lock and never wait: in a forked child it may be held
/// forever.
static UNUSED: Mutex<Vec<Record>> = Mutex::new(Vec::new());

impl Record {
    fn new(id: u16) -> Record {
        let record = ArrivedMessage {
            size: size_of::<ArrivedMessage>(),
            header: 0,
            payload: std::ptr::null(),
            len: 0,
            id: id.into(),
            is_announced: 0,
            reserved: std::ptr::null(),
            reserved_worker: std::ptr::null(),
        };
        let unused = UNUSED.try_lock().ok().and_then(|mut unused| unused.pop());
        let place = unused.unwrap_or_else(|| Record(Box::leak(Box::new(UnsafeCell::new(record)))));
        // SAFETY: no other reference to this record exists.
        unsafe { place.get().write(record) };
        place
    }

    #[inline(always)]
    fn get(&self) -> *mut ArrivedMessage {
        self.0.get()
    }
}

/// The table's handle of an [`Arrival`]. The handle ends when the core drops the handler function.
pub(super) struct Arrivals(NonNull<Arrival>);

impl Arrivals {
    pub(super) fn open(id: u16, own: Watch) -> Result<Arrivals, Fault> {
        let (number, message) = (Cell::new(0), Cell::new(std::ptr::null()));
        let handle = keep(Arrival { record: Record::new(id), number, message, own })?;
        // SAFETY: the object was stored above, which lives until this value is dropped.
        let arrival = unsafe { table::look(handle) }.ok_or_else(no_handles)?;
        // SAFETY: no other reference to the record exists yet.
        unsafe { (*arrival.record.get()).reserved = handle.to_c::<c_void>() };
        Ok(Arrivals(NonNull::from(arrival)))
    }

    #[inline(always)]
    pub(super) fn get(&self) -> &Arrival {
        // SAFETY: the object lives until this value is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        // SAFETY: the object lives until this value is dropped.
        let handle = unsafe { (*self.get().record.get()).reserved };
        let Ok(arrival) = take::<Arrival, _>(handle) else { return };
        // SAFETY: no handler runs with this record.
        unsafe { (*arrival.record.get()).reserved = std::ptr::null() };
        if let Ok(mut unused) = UNUSED.try_lock() {
            unused.push(arrival.record);
        }
    }
}

/// The type of a handler that is not null.
pub(super) type Handler = unsafe extern "C" fn(user: *mut c_void, message: *const ArrivedMessage);

/// A message handler. The handler runs in the thread that makes progress, and must not throw.
pub type MessageFn =
    Option<unsafe extern "C" fn(user: *mut c_void, message: *const ArrivedMessage)>;

/// Registers the handler for messages of one id, below 0xf000. The new handler replaces the previous handler; in a handler, the
/// replacement takes effect at the latest when the current progress call has ended. If the handler is null, eager messages of this
/// id are dropped, and rendezvous messages are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_on_message(
    worker: *const WorkerHandle,
    id: u16,
    handler: MessageFn,
    user: *mut c_void,
) -> i32 {
    done(guarded(|| {
        let state = state_of(worker)?;
        let own = state.watch();
        if let Some(driven) = state.driven_one()? {
            return driven::on_message(&state, driven, id, handler, user);
        }
        state.post(|worker| {
            let registered = match handler {
                Some(handler) => {
                    let arrivals = Arrivals::open(id, own)?;
                    worker.on_message(id, move |message| {
                        if own.has_ended() {
                            return;
                        }
                        let arrival = arrivals.get();
                        if message.is_rendezvous() {
                            return arrival.tell_announced(message, handler, user);
                        }
                        // SAFETY: handlers run one at a time and never nested, and this handler stays alive until it has returned.
                        let record = unsafe { &mut *arrival.record.get() };
                        arrival.is_about(record, message);
                        (record.payload, record.len) = message.raw_payload();
                        // SAFETY: `handler` is the caller's function, and the record is valid during the call.
                        unsafe { handler(user, record) };
                        // From here on, the record and its copies are refused.
                        record.reserved_worker = std::ptr::null();
                    })
                }
                None => worker.on_message(id, |_| ()),
            };
            Ok(registered?)
        })
    }))
}

/// A message while its handler runs.
pub(super) enum InHandler<'a> {
    Ordinary(&'a Message<'a>),
    /// The message of a driven worker, and that worker's state.
    Driven(&'a DrivenMessage, &'a WorkerState),
}

impl InHandler<'_> {
    fn peer(&self) -> PeerId {
        match self {
            InHandler::Ordinary(message) => message.peer(),
            InHandler::Driven(message, _) => message.peer(),
        }
    }

    pub(super) fn header_bytes(&self) -> HeaderBytes {
        match self {
            InHandler::Ordinary(message) => message.header_bytes(),
            InHandler::Driven(message, _) => message.header_bytes(),
        }
    }

    fn keep(&self) -> Kept {
        match self {
            InHandler::Ordinary(message) => Kept::Ordinary(message.keep()),
            InHandler::Driven(message, _) => Kept::Driven(message.keep()),
        }
    }

    fn rendezvous(&self) -> Result<Option<Rendezvous>, Fault> {
        match self {
            InHandler::Ordinary(message) => Ok(message.rendezvous()),
            InHandler::Driven(message, state) => {
                // SAFETY: the object is used and dropped under the lock, by its handle.
                state.mark.post(|| Ok(unsafe { message.ordinary_rendezvous() }))
            }
        }
    }

    pub(super) fn acknowledgement(&self) -> Result<Option<Acknowledgement>, Fault> {
        match self {
            InHandler::Ordinary(message) => Ok(message.acknowledgement()),
            InHandler::Driven(message, state) => {
                // SAFETY: the object is used and dropped under the lock, by its handle.
                state.mark.post(|| Ok(unsafe { message.ordinary_acknowledgement() }))
            }
        }
    }
}

/// Returns the message of a record while its handler runs, and the worker's state.
pub(super) fn message<'a>(
    arrived: *const ArrivedMessage,
) -> Result<(InHandler<'a>, &'a WorkerState), Fault> {
    if arrived.is_null() {
        return Err(records::null("the message"));
    }
    // SAFETY: the caller passes the record of a handler, or a copy of such a record.
    let arrived = unsafe { &*arrived };
    let found = live::<Arrival, _>(arrived.reserved).filter(|arrival| {
        // SAFETY: the record belongs to the handler, and is written only in a call of its worker.
        let now = unsafe { (*arrival.record.get()).reserved_worker };
        !now.is_null() && now == arrived.reserved_worker && arrived.size == size_of_val(arrived)
    });
    let Some(arrival) = found else {
        let why = "its handler has returned, or this is not a record from a handler";
        let fix = "pass the record or a copy in the handler; tieline_message_keep keeps the message for longer";
        return Err(Fault::new(Status::Invalid, "a message", why, fix));
    };
    // SAFETY: the handler runs in a call of the worker, which keeps the state alive.
    let state = unsafe { &*arrival.own.state() };
    if !state.mark.is_in_handler() {
        let (why, fix) = ("its handler runs in another thread", "call this in the handler itself");
        return Err(Fault::new(Status::Busy, "a message", why, fix));
    }
    let address = arrival.message.get();
    // SAFETY: the address of the message is set for the duration of the handler's call, and this call is inside the handler's. A
    // driven worker's handlers get messages of a driven worker.
    let message = unsafe {
        match state.mark.driven() {
            None => InHandler::Ordinary(&*address.cast()),
            Some(_) => InHandler::Driven(&*address.cast(), state),
        }
    };
    Ok((message, state))
}

/// Reports the sender of a message: the sender's peer number in this worker. An endpoint to the sender has the same number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_message_peer(
    arrived: *const ArrivedMessage,
    peer: *mut u32,
) -> i32 {
    done(guarded(|| {
        let out = out(peer, 0)?;
        out.set(message(arrived)?.0.peer().get());
        Ok(())
    }))
}

/// A message that a handler has kept.
pub struct KeptHandle(());

enum Kept {
    Ordinary(KeptMessage),
    Driven(DrivenKept),
}

impl Kept {
    fn payload(&self) -> &[u8] {
        match self {
            Kept::Ordinary(kept) => kept.payload(),
            Kept::Driven(kept) => kept.payload(),
        }
    }
}

struct KeptObject {
    kept: Kept,
    worker: Arc<WorkerState>,
}

impl Object for KeptObject {
    const KIND: u8 = 9;
    const NAME: &'static str = "a kept message";
}

/// A rendezvous message, whose bytes are still at the sender.
pub struct AnnouncementHandle(());

pub(super) struct AnnouncementObject {
    pub(super) announcement: Rendezvous,
    pub(super) worker: Arc<WorkerState>,
}

impl Object for AnnouncementObject {
    const KIND: u8 = 10;
    const NAME: &'static str = "a rendezvous message";
}

/// Keeps a message beyond its handler. If the transport can hand over its receive buffer, nothing is copied. The bytes stay valid
/// until the kept message is dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_message_keep(
    arrived: *const ArrivedMessage,
    kept: *mut *mut KeptHandle,
    payload: *mut *const c_void,
) -> i32 {
    done(guarded(|| {
        let (out, start) = (out_handle(kept)?, out(payload, std::ptr::null())?);
        let (message, state) = message(arrived)?;
        let (kept, worker) = (message.keep(), share(state));
        let bytes = kept.payload();
        let bytes = (bytes.as_ptr().cast(), bytes.len());
        out.set(keep(KeptObject { kept, worker })?.to_c());
        start.set(if bytes.1 == 0 { std::ptr::null() } else { bytes.0 });
        Ok(())
    }))
}

/// Releases a kept message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_kept_drop(kept: *mut KeptHandle) -> i32 {
    done(guarded(|| {
        let worker = |object: &KeptObject| object.worker.clone();
        // The kept message of a driven worker takes the lock itself.
        let mut outside = None;
        let ended = end_of_worker(kept, worker, |kept| {
            let KeptObject { kept, .. } = *take::<KeptObject, _>(kept)?;
            match kept {
                Kept::Ordinary(kept) => drop(kept),
                Kept::Driven(kept) => outside = Some(kept),
            }
            Ok(())
        });
        drop(outside);
        ended
    }))
}

/// Returns a handle that receives or refuses a rendezvous message. The handle can be requested once, in the message's handler; the
/// call returns TIELINE_INVALID for an eager message. The handle has no time limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_message_announcement(
    arrived: *const ArrivedMessage,
    announcement: *mut *mut AnnouncementHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(announcement)?;
        let (message, state) = message(arrived)?;
        let taken = message.rendezvous()?.ok_or_else(|| {
            let why = "it is no rendezvous message, or this call was made before";
            Fault::new(Status::Invalid, "an announcement", why, "check is_announced, call once")
        })?;
        let worker = share(state);
        out.set(keep(AnnouncementObject { announcement: taken, worker })?.to_c());
        Ok(())
    }))
}

/// Receives the first `len` bytes of a rendezvous message into a part of a region. TIELINE_OK or TIELINE_PENDING: the handle has
/// ended. After any failure the handle remains valid: receive the message again, or refuse it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_announcement_take(
    announcement: *mut AnnouncementHandle,
    local: *const RegionHandle,
    offset: usize,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<AnnouncementObject, _>(announcement).and_then(|object_| {
        let told = how::read(how, 0, &object_.worker)?;
        let local = &object::<RegionObject, _>(local)?.region;
        let worker = object_.worker.clone();
        worker.mark.post(|| {
            let take = |AnnouncementObject { announcement, worker }| {
                announcement.receive_into(local, range(offset, len)).map_err(|untaken| {
                    let NotReceived { announcement, error } = untaken;
                    (AnnouncementObject { announcement, worker }, error.into())
                })
            };
            let outcome = try_take(announcement, take)?;
            how::posted(&worker, outcome, &told, request)
        })
    }))
}

/// Refuses a rendezvous message; the sender is notified.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_announcement_refuse(announcement: *mut AnnouncementHandle) -> i32 {
    done(guarded(|| {
        let worker = |object: &AnnouncementObject| object.worker.clone();
        end_of_worker(announcement, worker, |announcement| {
            let AnnouncementObject { announcement, .. } =
                *take::<AnnouncementObject, _>(announcement)?;
            announcement.refuse();
            Ok(())
        })
    }))
}

/// Returns the endpoint to the sender of a message, if the caller holds one; otherwise null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_message_endpoint(
    arrived: *const ArrivedMessage,
    endpoint: *mut *mut EndpointHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(endpoint)?;
        let (message, state) = message(arrived)?;
        let bits = match message {
            InHandler::Ordinary(message) => {
                message.endpoint().map(|found| share(state).endpoint(found)).transpose()?
            }
            InHandler::Driven(message, _) => state.post(|worker| {
                let known = worker.known_endpoint(message.peer());
                known.map(|found| share(state).endpoint(found)).transpose()
            })?,
        };
        if let Some(bits) = bits {
            out.set(Handle::<EndpointState>::from_bits(bits).to_c());
        }
        Ok(())
    }))
}
