//! Lists: many puts or gets with one call and one completion.

use super::context::{end_of_worker, keep, take};
use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::{guarded, object};
use super::error::{Fault, answer, done};
use super::how::{self, How};
use super::memory::{RegionHandle, RegionObject, given, range};
use super::numbers::{TIELINE_LIST_GET, TIELINE_LIST_PUT};
use super::put::{KeyHandle, KeyObject};
use super::records::{null, out_handle};
use super::table::Object;
use std::ffi::c_void;
use std::rc::Rc;
use tieline::{Descriptor, PreparedList, Status};

/// A prepared list of puts or gets.
pub struct ListHandle(());

struct ListObject {
    list: PreparedList,
    endpoint: Rc<EndpointState>,
}

impl Object for ListObject {
    const KIND: u8 = 18;
    const NAME: &'static str = "a prepared list";
}

/// One put or get of a list: local memory, and its counterpart in the peer's memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CDescriptor {
    /// The region of the local memory. If this field is null, `memory` is the address of the local memory.
    pub region: *const RegionHandle,
    /// The offset of the first byte in `region`. If `region` is null, this field must be zero.
    pub local_offset: usize,
    /// The address of local memory that is in no region, with the rules of tieline_put_raw and tieline_get_raw. If `region` is not
    /// null, this field is not used.
    pub memory: *mut c_void,
    /// The number of bytes.
    pub len: usize,
    /// The key of the peer's region, which was imported on the endpoint of the list.
    pub key: *const KeyHandle,
    /// The offset in the peer's region.
    pub offset: u64,
}

/// Reads the caller's list; the result borrows the objects of the handles.
fn descriptors<'a>(list: *const CDescriptor, count: usize) -> Result<Vec<Descriptor<'a>>, Fault> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if list.is_null() || count > isize::MAX as usize / size_of::<CDescriptor>() {
        return Err(null("the list of descriptors"));
    }
    let mut all = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: the caller's list has `count` elements.
        let one = unsafe { list.add(index).read() };
        let read = descriptor(&one).map_err(|mut fault| {
            fault.error = fault.error.at_index(Some(index));
            fault
        });
        all.push(read?);
    }
    Ok(all)
}

#[inline]
fn descriptor<'a>(one: &CDescriptor) -> Result<Descriptor<'a>, Fault> {
    let CDescriptor { region, local_offset, memory, len, key, offset } = *one;
    let key = &object::<KeyObject, _>(key)?.key;
    if region.is_null() {
        if local_offset != 0 {
            let why = format!("its local offset is {local_offset}, and it has no region");
            let fix = "add the offset to the address";
            return Err(Fault::new(Status::Invalid, "a descriptor", why, fix));
        }
        // SAFETY: the caller keeps the memory until every operation of the list has ended.
        return Ok(unsafe { Descriptor::raw(given(memory, len)?, len, key, offset) });
    }
    let region = &object::<RegionObject, _>(region)?.region;
    Ok(Descriptor::new(region, range(local_offset, len), key, offset))
}

/// Posts `count` puts with one call and one completion. There is no order between the descriptors. If descriptors fail, the operation
/// fails with the error of the one with the lowest index, which is `index` of tieline_error: all descriptors before it have succeeded,
/// and those after it may have been executed or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_put_list(
    endpoint: *const EndpointHandle,
    list: *const CDescriptor,
    count: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let (told, list) = (how::read(how, 0, &state.worker)?, descriptors(list, count)?);
        state.post(request, &told, |endpoint| endpoint.put_list(&list))
    }))
}

/// Posts `count` gets with one call and one completion, with the rules of tieline_put_list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_get_list(
    endpoint: *const EndpointHandle,
    list: *const CDescriptor,
    count: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let (told, list) = (how::read(how, 0, &state.worker)?, descriptors(list, count)?);
        state.post(request, &told, |endpoint| endpoint.get_list(&list))
    }))
}

/// Checks a list and prepares it for tieline_list_post; `kind` is TIELINE_LIST_*. The prepared list keeps its regions open:
/// tieline_region_close returns TIELINE_BUSY until the list is dropped. Memory by address must stay valid until the list is dropped and
/// all of its operations have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_list_prepare(
    endpoint: *const EndpointHandle,
    kind: u32,
    list: *const CDescriptor,
    count: usize,
    prepared: *mut *mut ListHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(prepared)?;
        let (state, list) = (object::<EndpointState, _>(endpoint)?, descriptors(list, count)?);
        state.worker.mark.post(|| {
            let endpoint = state.get()?;
            let list = match kind {
                TIELINE_LIST_PUT => endpoint.prepare_put_list(&list)?,
                TIELINE_LIST_GET => endpoint.prepare_get_list(&list)?,
                _ => {
                    let why = format!("{kind} is not a kind of list");
                    let fix = "use TIELINE_LIST_*";
                    return Err(Fault::new(Status::Invalid, "a prepared list", why, fix));
                }
            };
            out.set(keep(ListObject { list, endpoint: state.share() })?.to_c());
            Ok(())
        })
    }))
}

/// Posts a prepared list. Each post is an operation of its own. A list may be posted again while an earlier post is pending.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_list_post(
    list: *const ListHandle,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<ListObject, _>(list).and_then(|object| {
        let told = how::read(how, 0, &object.endpoint.worker)?;
        object.endpoint.post(request, &told, |endpoint| endpoint.post_list(&object.list))
    }))
}

/// Releases a prepared list. Its pending operations continue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_list_drop(list: *mut ListHandle) -> i32 {
    done(guarded(|| {
        let worker = |object: &ListObject| object.endpoint.worker.clone();
        end_of_worker(list, worker, |list| take::<ListObject, _>(list).map(drop))
    }))
}
