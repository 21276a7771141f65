//! Remote keys, put and get.

use super::bytes::{bytes, some_bytes};
use super::context::{end_of_worker, keep, take};
use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::{Aside, guarded, live, object};
use super::error::{Fault, answer, done};
use super::how::{self, How, Told};
use super::memory::{Piece, RegionHandle, RegionObject, pieces, range};
use super::numbers::{TIELINE_HOW_LOCAL as LOCAL, TIELINE_HOW_NOTIFY as NOTIFY};
use super::records::out_handle;
use super::table::Object;
use std::ffi::c_void;
use std::rc::Rc;
use tieline::endpoint::{AtOnce, Tried};
use tieline::{Completion, Endpoint, Outcome, PostError, RemoteKey};

/// A peer's region, accessed through an endpoint.
pub struct KeyHandle(());

pub(crate) struct KeyObject {
    pub(crate) key: RemoteKey,
    pub(crate) endpoint: Rc<EndpointState>,
}

impl Object for KeyObject {
    const KIND: u8 = 5;
    const NAME: &'static str = "a remote key";
}

impl KeyObject {
    /// Runs `body`, which posts with this key.
    #[inline]
    pub(crate) fn post(
        &self,
        request: *mut u64,
        told: &Told,
        body: impl FnOnce(&Endpoint) -> Result<Outcome, PostError>,
    ) -> Result<i32, Fault> {
        self.endpoint.post(request, told, body)
    }
}

pub(crate) fn completion(told: &Told) -> Completion {
    if told.flags & LOCAL != 0 { Completion::Local } else { Completion::Remote }
}

/// Imports a peer's key for use on an endpoint. The bytes come from the peer's tieline_region_key. Each call parses the bytes
/// again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_import_key(
    endpoint: *const EndpointHandle,
    key: *const c_void,
    len: usize,
    imported: *mut *mut KeyHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(imported)?;
        let (endpoint, bytes) = (object::<EndpointState, _>(endpoint)?, bytes(key, len)?);
        endpoint.worker.mark.post(|| {
            let key = endpoint.get()?.import_key(bytes)?;
            out.set(keep(KeyObject { key, endpoint: endpoint.share() })?.to_c());
            Ok(())
        })
    }))
}

/// Releases a remote key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_key_drop(key: *mut KeyHandle) -> i32 {
    done(guarded(|| {
        let worker = |object: &KeyObject| object.endpoint.worker.clone();
        end_of_worker(key, worker, |key| take::<KeyObject, _>(key).map(drop))
    }))
}

/// Writes bytes from any memory to the peer's region at `offset`. The bytes may be reused when the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_put_bytes(
    key: *const KeyHandle,
    offset: u64,
    data: *const c_void,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    if let (Some(object), Some(bytes)) = (live::<KeyObject, _>(key), some_bytes(data, len)) {
        if how::is_usual(how, request) {
            let aside = (Aside::empty(), Aside::empty());
            let given = (aside.0.keep(key), aside.1.keep(request));
            match object.endpoint.at_once(|_| object.key.put_bytes_at_once(bytes, offset)) {
                AtOnce::Done => return 0,
                AtOnce::NotTried => {}
                AtOnce::Refused(tried, call) => {
                    let (data, how) = (call.start.cast(), std::ptr::null());
                    let (key, request) = (given.0.get(), given.1.get());
                    return put_bytes(key, call.offset, data, call.len, how, request, tried);
                }
            }
        }
    }
    put_bytes(key, offset, data, len, how, request, Tried::NOT)
}

/// Puts as `tieline_put_bytes` does, on the slow path, which handles every case.
#[cold]
#[inline(never)]
fn put_bytes(
    key: *const KeyHandle,
    offset: u64,
    data: *const c_void,
    len: usize,
    how: *const How,
    request: *mut u64,
    tried: Tried,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object| {
        let (data, told) = (bytes(data, len)?, how::read(how, NOTIFY, &object.endpoint.worker)?);
        let key = &object.key;
        object.post(request, &told, |endpoint| match told.flags & NOTIFY {
            0 => endpoint.put_bytes_further(tried, data, key, offset),
            _ => endpoint.put_bytes_notify(data, key, offset, told.word),
        })
    }))
}

/// Writes a part of a region to the peer's region at `offset`. After TIELINE_OK, or after the operation's completion, the bytes are
/// visible in the peer's region; with TIELINE_HOW_LOCAL, only the local bytes may be reused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_put(
    key: *const KeyHandle,
    offset: u64,
    local: *const RegionHandle,
    local_offset: usize,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object_| {
        let told = how::read(how, LOCAL | NOTIFY, &object_.endpoint.worker)?;
        let (key, local) = (&object_.key, &object::<RegionObject, _>(local)?.region);
        let (range, completion) = (range(local_offset, len), completion(&told));
        object_.post(request, &told, |endpoint| match told.flags & NOTIFY {
            0 => endpoint.put_with(local, range, key, offset, completion),
            _ => endpoint.put_notify_with(local, range, key, offset, told.word, completion),
        })
    }))
}

/// Reads the peer's region at `offset` into a part of a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_get(
    key: *const KeyHandle,
    offset: u64,
    local: *const RegionHandle,
    local_offset: usize,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object_| {
        let told = how::read(how, 0, &object_.endpoint.worker)?;
        let (key, local) = (&object_.key, &object::<RegionObject, _>(local)?.region);
        let range = range(local_offset, len);
        object_.post(request, &told, |endpoint| endpoint.get(local, range, key, offset))
    }))
}

/// Writes pieces of regions, concatenated, to the peer's region at `offset`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_put_pieces(
    key: *const KeyHandle,
    offset: u64,
    piece: *const Piece,
    count: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object| {
        let (told, pieces) =
            (how::read(how, NOTIFY, &object.endpoint.worker)?, pieces(piece, count)?);
        let key = &object.key;
        object.post(request, &told, |endpoint| match told.flags & NOTIFY {
            0 => endpoint.put_pieces(&pieces, key, offset),
            _ => endpoint.put_pieces_notify(&pieces, key, offset, told.word),
        })
    }))
}

/// Reads the peer's region at `offset` into pieces of regions, in order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_get_pieces(
    key: *const KeyHandle,
    offset: u64,
    piece: *const Piece,
    count: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object| {
        let (told, pieces) = (how::read(how, 0, &object.endpoint.worker)?, pieces(piece, count)?);
        object.post(request, &told, |endpoint| endpoint.get_pieces(&pieces, &object.key, offset))
    }))
}
