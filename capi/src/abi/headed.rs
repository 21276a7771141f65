//! Messages with header bytes or a request for an acknowledgement, and receives of rendezvous messages into several pieces.

use super::bytes::bytes;
use super::context::{end_of_worker, keep, take, try_take};
use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::{guarded, object};
use super::error::{Fault, answer, done};
use super::how::{self, How};

use super::memory::{Piece, pieces};
use super::message::{AnnouncementHandle, AnnouncementObject, ArrivedMessage, message};
use super::numbers::{TIELINE_SEND_DELIVERED, TIELINE_SEND_RENDEZVOUS};
use super::records::{self, Params, out, out_handle};
use super::table::Object;
use super::worker::{WorkerState, share};
use std::ffi::c_void;
use std::sync::Arc;
use tieline::{Acknowledgement, MAX_HEADER_BYTES, NotReceived, SendOptions, Status};

/// Options of a message. If the pointer is null or all fields but `size` are zero, the message is sent as by tieline_send.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWith {
    /// The size of this record in bytes.
    pub size: usize,
    /// The header bytes, which the receiver's handler reads by tieline_message_header_bytes.
    pub header_bytes: *const c_void,
    /// The number of header bytes, at most TIELINE_MAX_HEADER_BYTES.
    pub header_len: usize,
    /// Flags of the message: TIELINE_SEND_*.
    pub flags: u32,
    /// A reserved field, which must be zero.
    pub reserved: u32,
}

// SAFETY: `SendWith` consists of numbers and addresses only.
unsafe impl Params for SendWith {}

/// Reads and validates the caller's options.
fn options<'a>(given: *const SendWith) -> Result<SendOptions<'a>, Fault> {
    let SendWith { header_bytes, header_len, flags, reserved, .. } = records::read(given)?;
    if flags & !(TIELINE_SEND_DELIVERED | TIELINE_SEND_RENDEZVOUS) != 0 || reserved != 0 {
        let why = format!("this library does not know the flags {flags:#x}");
        let fix = "pass TIELINE_SEND_* flags of this version, and leave reserved fields zero";
        return Err(Fault::new(Status::UnsupportedParam, "options of a message", why, fix));
    }
    let mut options = SendOptions::new().header_bytes(bytes(header_bytes, header_len)?);
    if flags & TIELINE_SEND_DELIVERED != 0 {
        options = options.delivered();
    }
    if flags & TIELINE_SEND_RENDEZVOUS != 0 {
        options = options.rendezvous();
    }
    Ok(options)
}

/// Sends a message like tieline_send, with header bytes or with a request for an acknowledgement. With TIELINE_SEND_DELIVERED, the
/// operation completes when the receiver's handler has returned, or when the handler's acknowledgement was given. The operation of
/// a rendezvous message ends when the receiver has the bytes that it requested. Returns TIELINE_UNSUPPORTED if the peer's version
/// does not support the options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_send_with(
    endpoint: *const EndpointHandle,
    id: u16,
    header: u64,
    payload: *const c_void,
    len: usize,
    with: *const SendWith,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let (payload, told) = (bytes(payload, len)?, how::read(how, 0, &state.worker)?);
        let options = options(with)?;
        state.post(request, &told, |endpoint| endpoint.send_with(id, header, payload, &options))
    }))
}

/// Sends a message of pieces like tieline_send_pieces, with the options of tieline_send_with. An eager message with options is sent
/// as a copy. With TIELINE_SEND_RENDEZVOUS the receiver copies the payload once, from the sender's memory to its place. This is faster
/// for messages longer than eager_limit (tieline_endpoint_limits) whose payload the receiver would copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_send_pieces_with(
    endpoint: *const EndpointHandle,
    id: u16,
    header: u64,
    piece: *const Piece,
    count: usize,
    with: *const SendWith,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let (told, pieces) = (how::read(how, 0, &state.worker)?, pieces(piece, count)?);
        let options = options(with)?;
        state.post(request, &told, |endpoint| {
            endpoint.send_regions_with(id, header, &pieces, &options)
        })
    }))
}

/// Copies the header bytes of a message. `bytes` has space for TIELINE_MAX_HEADER_BYTES; `len` receives their number, which is 0
/// for a message without header bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_message_header_bytes(
    arrived: *const ArrivedMessage,
    bytes: *mut c_void,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let out = out(len, 0)?;
        if bytes.is_null() {
            return Err(records::null("the place for the header bytes"));
        }
        let header_bytes = message(arrived)?.0.header_bytes();
        debug_assert!(header_bytes.len() <= MAX_HEADER_BYTES);
        // SAFETY: the caller's place has space for TIELINE_MAX_HEADER_BYTES bytes, and no message has more.
        unsafe {
            bytes.cast::<u8>().copy_from_nonoverlapping(header_bytes.as_ptr(), header_bytes.len());
        }
        out.set(header_bytes.len());
        Ok(())
    }))
}

/// The acknowledgement of a message that was sent with TIELINE_SEND_DELIVERED.
pub struct AcknowledgementHandle(());

struct AcknowledgementObject {
    acknowledgement: Acknowledgement,
    worker: Arc<WorkerState>,
}

impl Object for AcknowledgementObject {
    const KIND: u8 = 15;
    const NAME: &'static str = "an acknowledgement";
}

/// Returns the handle by which a message is acknowledged, for a message that was sent with TIELINE_SEND_DELIVERED. The handle can be
/// requested once, in the message's handler; for other messages the call returns TIELINE_INVALID. If the handler does not call this
/// function, the message is acknowledged when the handler has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_message_acknowledgement(
    arrived: *const ArrivedMessage,
    acknowledgement: *mut *mut AcknowledgementHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(acknowledgement)?;
        let (message, state) = message(arrived)?;
        let acknowledgement = message.acknowledgement()?.ok_or_else(|| {
            let why = "its sender requests none, it is a rendezvous message, or this call was made before";
            Fault::new(Status::Invalid, "an acknowledgement", why, "call this once for a message")
        })?;
        let worker = share(state);
        out.set(keep(AcknowledgementObject { acknowledgement, worker })?.to_c());
        Ok(())
    }))
}

fn end(handle: *mut AcknowledgementHandle, with: impl FnOnce(Acknowledgement)) -> i32 {
    done(guarded(|| {
        let worker = |object: &AcknowledgementObject| object.worker.clone();
        end_of_worker(handle, worker, |handle| {
            let AcknowledgementObject { acknowledgement, .. } =
                *take::<AcknowledgementObject, _>(handle)?;
            with(acknowledgement);
            Ok(())
        })
    }))
}

/// Acknowledges a message: the sender's operation completes. The handle ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_acknowledgement_give(
    acknowledgement: *mut AcknowledgementHandle,
) -> i32 {
    end(acknowledgement, Acknowledgement::give)
}

/// Releases the handle without an acknowledgement: the sender's operation ends with TIELINE_CANCELED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_acknowledgement_drop(
    acknowledgement: *mut AcknowledgementHandle,
) -> i32 {
    end(acknowledgement, drop)
}

/// Receives the first bytes of a rendezvous message into pieces of regions, in sequence: as many bytes as the pieces have together.
/// TIELINE_OK or TIELINE_PENDING: the handle has ended. After any failure the handle remains valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_announcement_take_pieces(
    announcement: *mut AnnouncementHandle,
    piece: *const Piece,
    count: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<AnnouncementObject, _>(announcement).and_then(|object_| {
        let told = how::read(how, 0, &object_.worker)?;
        let pieces = pieces(piece, count)?;
        let worker = object_.worker.clone();
        worker.mark.post(|| {
            let take = |AnnouncementObject { announcement, worker }| {
                announcement.receive_into_pieces(&pieces).map_err(|untaken| {
                    let NotReceived { announcement, error } = untaken;
                    (AnnouncementObject { announcement, worker }, error.into())
                })
            };
            let outcome = try_take(announcement, take)?;
            how::posted(&worker, outcome, &told, request)
        })
    }))
}
