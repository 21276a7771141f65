//! Messages, as a handler of the caller's sees them.

use super::context::{end_of_worker, keep, take, try_take};
use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::{guarded, object};
use super::error::{Fault, answer, done};
use super::how::{self, How};
use super::memory::{RegionHandle, RegionObject, range};
use super::records::{self, out, out_handle};
use super::table::{Handle, Object};
use super::worker::{Watch, WorkerHandle, WorkerState, share, state_of};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Arc;
use tieline::{Announcement, KeptMessage, Message, Status, Untaken};

/// A message, for the length of the handler's call.
#[repr(C)]
pub struct ArrivedMessage {
    /// Bytes of this record.
    pub size: usize,
    /// The header that it was sent with.
    pub header: u64,
    /// Its bytes, for the length of the call; null where it is announced.
    pub payload: *const c_void,
    /// How long it is, whether its bytes are here or announced.
    pub len: usize,
    /// The id that it was sent with.
    pub id: u32,
    /// Whether it is announced: not 0, it is longer than is sent at once, its bytes are still with the sender, and it is refused unless
    /// the handler asks for them.
    pub is_announced: u32,
    /// The library's.
    pub reserved: *const c_void,
    /// The library's.
    pub reserved_worker: *const c_void,
}

impl ArrivedMessage {
    /// What all messages of one handler have in common.
    fn of(id: u16, own: Watch) -> ArrivedMessage {
        ArrivedMessage {
            size: size_of::<ArrivedMessage>(),
            header: 0,
            payload: std::ptr::null(),
            len: 0,
            id: id.into(),
            is_announced: 0,
            reserved: std::ptr::null(),
            reserved_worker: own.state().cast(),
        }
    }

    #[inline(always)]
    fn is_about(&mut self, message: &Message<'_>) {
        self.reserved = std::ptr::from_ref(message).cast();
        self.header = message.header();
    }

    /// Hands on what has no payload yet. Between two calls the record is as other messages want it.
    #[cold]
    #[inline(never)]
    fn tell_announced(&mut self, message: &Message<'_>, handler: Handler, user: *mut c_void) {
        self.is_about(message);
        (self.payload, self.len, self.is_announced) = (std::ptr::null(), message.len(), 1);
        // SAFETY: the caller's function, and its record for the length of the call.
        unsafe { handler(user, self) };
        (self.is_announced, self.reserved) = (0, std::ptr::null());
    }
}

/// A handler that is there.
type Handler = unsafe extern "C" fn(user: *mut c_void, message: *const ArrivedMessage);

/// What to do with a message, in the thread that makes progress. It must not throw.
pub type MessageFn =
    Option<unsafe extern "C" fn(user: *mut c_void, message: *const ArrivedMessage)>;

/// Registers what to do with messages of one id, below 0xf000. It takes the place of the one before it; from inside of a handler when
/// that progress call has ended. A null handler drops what comes.
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
        state.post(|worker| {
            let registered = match handler {
                Some(handler) => {
                    let record = UnsafeCell::new(ArrivedMessage::of(id, own));
                    worker.on_message(id, move |message| {
                        if own.has_ended() {
                            return;
                        }
                        // SAFETY: handlers run one at a time and never inside of each other, and this one stays until it has returned.
                        let record = unsafe { &mut *record.get() };
                        if message.is_announced() {
                            return record.tell_announced(message, handler, user);
                        }
                        record.is_about(message);
                        (record.payload, record.len) = message.raw_payload();
                        // SAFETY: the caller's function, and its record for the length of the call.
                        unsafe { handler(user, record) };
                        // Who asks later, with this record, is refused.
                        record.reserved = std::ptr::null();
                    })
                }
                None => worker.on_message(id, |_| ()),
            };
            Ok(registered?)
        })
    }))
}

/// The message itself, which its record leads to while its handler runs.
fn message<'a>(arrived: *const ArrivedMessage) -> Result<&'a Message<'a>, Fault> {
    if arrived.is_null() {
        return Err(records::null("the message"));
    }
    // SAFETY: the caller passes what its handler was given, inside of that call.
    let arrived = unsafe { &*arrived };
    if arrived.reserved.is_null() || arrived.size != size_of::<ArrivedMessage>() {
        let why = "this is not the record that a handler was given";
        return Err(Fault::new(Status::Invalid, "a message", why, "pass that one, in its handler"));
    }
    // SAFETY: put there for the length of the handler's call.
    Ok(unsafe { &*arrived.reserved.cast() })
}

/// Who sent a message: the number of that worker here, which an endpoint to it has too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_message_peer(
    arrived: *const ArrivedMessage,
    peer: *mut u32,
) -> i32 {
    done(guarded(|| {
        let out = out(peer, 0)?;
        out.set(message(arrived)?.peer().get());
        Ok(())
    }))
}

/// A message that a handler has kept.
pub struct KeptHandle(());

struct KeptObject {
    kept: KeptMessage,
    worker: Arc<WorkerState>,
}

impl Object for KeptObject {
    const KIND: u8 = 9;
    const NAME: &'static str = "a kept message";
}

/// A message that is longer than is sent at once, whose bytes are with the sender.
pub struct AnnouncementHandle(());

struct AnnouncementObject {
    announcement: Announcement,
    worker: Arc<WorkerState>,
}

impl Object for AnnouncementObject {
    const KIND: u8 = 10;
    const NAME: &'static str = "an announced message";
}

/// The state of the worker whose handler this is called in.
fn handlers_worker(arrived: *const ArrivedMessage) -> Result<Arc<WorkerState>, Fault> {
    // SAFETY: as `message`, which was asked before.
    let state = unsafe { (*arrived).reserved_worker };
    // SAFETY: put there for the length of the handler's call, from the table's own.
    Ok(share(unsafe { &*state.cast::<WorkerState>() }))
}

/// Keeps a message beyond its handler: where the transport lends its buffers, nothing is copied. Its bytes stay until it is dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_message_keep(
    arrived: *const ArrivedMessage,
    kept: *mut *mut KeptHandle,
    payload: *mut *const c_void,
) -> i32 {
    done(guarded(|| {
        let (out, start) = (out_handle(kept)?, out(payload, std::ptr::null())?);
        let kept = message(arrived)?.keep();
        let worker = handlers_worker(arrived)?;
        let bytes = kept.payload();
        let bytes = (bytes.as_ptr().cast(), bytes.len());
        out.set(keep(KeptObject { kept, worker })?.to_c());
        start.set(if bytes.1 == 0 { std::ptr::null() } else { bytes.0 });
        Ok(())
    }))
}

/// Lets go of a message that was kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_kept_drop(kept: *mut KeptHandle) -> i32 {
    done(guarded(|| {
        let worker = |object: &KeptObject| object.worker.clone();
        end_of_worker(kept, worker, |kept| {
            let KeptObject { kept, .. } = *take::<KeptObject, _>(kept)?;
            drop(kept);
            Ok(())
        })
    }))
}

/// What is to be taken of a message that is announced, or refused: once, and to be asked for in its handler; TIELINE_INVALID of one that is not
/// announced. It may be kept for any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_message_announcement(
    arrived: *const ArrivedMessage,
    announcement: *mut *mut AnnouncementHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(announcement)?;
        let taken = message(arrived)?.announcement().ok_or_else(|| {
            let why = "it is not announced, or was asked for before";
            Fault::new(Status::Invalid, "an announcement", why, "look at is_announced, ask once")
        })?;
        let worker = handlers_worker(arrived)?;
        out.set(keep(AnnouncementObject { announcement: taken, worker })?.to_c());
        Ok(())
    }))
}

/// Takes the first `len` bytes of an announced message into a part of a region: TIELINE_OK or TIELINE_PENDING, and the handle has ended. With
/// any failure it has not: take it again, or refuse it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_announcement_take(
    announcement: *mut AnnouncementHandle,
    local: *const RegionHandle,
    offset: usize,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    answer(object::<AnnouncementObject, _>(announcement).and_then(|object_| {
        let told = how::read(how, 0, &object_.worker)?;
        let local = &object::<RegionObject, _>(local)?.region;
        let worker = object_.worker.clone();
        worker.mark.post(|| {
            how::no_number(request);
            let take = |AnnouncementObject { announcement, worker }| {
                announcement.take_into(local, range(offset, len)).map_err(|untaken| {
                    let Untaken { announcement, error } = untaken;
                    (AnnouncementObject { announcement, worker }, error.into())
                })
            };
            let outcome = try_take(announcement, take)?;
            how::posted(&worker, outcome, &told, request)
        })
    }))
}

/// Refuses an announced message: its sender hears it.
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

/// The endpoint back to who sent a message, where the caller holds one that leads there; null where not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_message_endpoint(
    arrived: *const ArrivedMessage,
    endpoint: *mut *mut EndpointHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(endpoint)?;
        if let Some(found) = message(arrived)?.endpoint() {
            let bits = handlers_worker(arrived)?.endpoint(found)?;
            out.set(Handle::<EndpointState>::from_bits(bits).to_c());
        }
        Ok(())
    }))
}
