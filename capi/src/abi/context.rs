//! Contexts.

use super::bytes::{Room, string};
use super::enter::{guarded, no_object, object};
use super::error::{Fault, done};
use super::numbers::{
    TIELINE_CONTEXT_KEYS_WITH_ADDRESSES as ADDRESSES, TIELINE_CONTEXT_OUT_OF_BAND as OUT_OF_BAND,
    TIELINE_CONTEXT_POLLS_OFTEN as POLLS_OFTEN, TIELINE_CONTEXT_PROGRESS_THREAD as PROGRESS_THREAD,
    TIELINE_CONTEXT_PUBLISH_KEYS as PUBLISH, TIELINE_REPORT_JSON, TIELINE_REPORT_TABLE,
    TIELINE_REPORT_WHY,
};
use super::records::{self, Params, null, out_handle};
use super::table::{self, Handle, Object};
use super::worker::WorkerState;
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use tieline::{Context, Status};

/// A context: the object in which workers and regions are opened.
pub struct ContextHandle(());

/// A setting: a variable and its value. The value overrides the environment and the files.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Setting {
    /// The name of the variable: TIELINE_*.
    pub name: *const c_char,
    /// The value, as in the environment.
    pub value: *const c_char,
}

/// The parameters of tieline_context_open. If the pointer is null, or all fields but `size` are zero, the environment and the
/// configuration files apply.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ContextParams {
    /// The size of this record in bytes.
    pub size: usize,
    /// Variables that override the environment and the files.
    pub settings: *const Setting,
    /// The number of settings.
    pub settings_count: usize,
    /// Flags of the context: TIELINE_CONTEXT_*.
    pub flags: u64,
}

// SAFETY: `ContextParams` consists of numbers and addresses only.
unsafe impl Params for ContextParams {}

pub(crate) struct ContextObject {
    pub(crate) context: Context,
}

impl Object for ContextObject {
    const KIND: u8 = 1;
    const NAME: &'static str = "a context";
}

/// Stores an object under a new handle. If no handle is left, drops the object.
pub(crate) fn keep<T: Object>(object: T) -> Result<Handle<T>, Fault> {
    let object = Box::into_raw(Box::new(object));
    // SAFETY: `object` comes from a box, so the address is not null.
    let kept = table::keep(unsafe { NonNull::new_unchecked(object) });
    kept.ok_or_else(|| {
        // SAFETY: the address comes from the box above, and there is no handle for the object.
        drop(unsafe { Box::from_raw(object) });
        no_handles()
    })
}

#[cold]
pub(crate) fn no_handles() -> Fault {
    let (what, why) = ("one more object", "there are 16 million handles of its kind already");
    Fault::new(Status::NoMemory, what, why, "close unused objects")
}

/// Ends a handle made by [`keep`] and returns the object.
pub(crate) fn take<T: Object, C>(given: *const C) -> Result<Box<T>, Fault> {
    let handle = Handle::<T>::of(given);
    let object = table::end(handle).ok_or_else(|| no_object(handle))?;
    // SAFETY: `keep` stored a box, and `end` returns its address to one caller only.
    Ok(unsafe { Box::from_raw(object.as_ptr()) })
}

/// Ends a handle of an object that belongs to a worker: runs `end` under the worker's mark. If a panic has ended the worker, only
/// the handle is released, because the state that the panic left must not be touched.
pub(crate) fn end_of_worker<T: Object, C>(
    given: *const C,
    worker: impl FnOnce(&T) -> Arc<WorkerState>,
    end: impl FnOnce(*const C) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let worker = worker(object::<T, _>(given)?);
    match worker.mark.post(|| end(given)) {
        Err(fault) if fault.error.status() == Status::ProviderFailed => {
            let handle = Handle::<T>::of(given);
            table::end(handle).map(drop).ok_or(fault)
        }
        ended => ended,
    }
}

/// Ends a handle made by [`keep`], if `end` accepts the object. If `end` returns the object, the object keeps its handle and its
/// address. Other calls with that handle return `Busy` while `end` runs.
pub(crate) fn try_take<T: Object, C, R>(
    given: *const C,
    end: impl FnOnce(T) -> Result<R, (T, Fault)>,
) -> Result<R, Fault> {
    let handle = Handle::<T>::of(given);
    let place = table::hold(handle).ok_or_else(|| no_object(handle))?;
    // SAFETY: `keep` stored a box, and no other thread takes the object out while this call holds the object.
    match end(unsafe { place.read() }) {
        Ok(result) => {
            // SAFETY: the address comes from that box, whose object was moved out.
            drop(unsafe { Box::from_raw(place.as_ptr().cast::<MaybeUninit<T>>()) });
            table::release(handle);
            Ok(result)
        }
        Err((object, fault)) => {
            // SAFETY: the address comes from the box that `keep` stored, whose object was moved out, and no other thread takes the
            // object while this call holds the handle.
            unsafe { place.write(object) };
            table::restore(handle);
            Err(fault)
        }
    }
}

/// Runs `body` with exclusive access to an object.
pub(crate) fn change<T: Object, C>(
    given: *const C,
    body: impl FnOnce(&mut T) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let handle = Handle::<T>::of(given);
    let mut place = table::hold(handle).ok_or_else(|| no_object(handle))?;
    // SAFETY: `keep` stored a box, and no other thread has access while this call holds the object.
    let changed = body(unsafe { place.as_mut() });
    table::restore(handle);
    changed
}

fn open(params: *const ContextParams) -> Result<Context, Fault> {
    let params = records::read(params)?;
    let known = PROGRESS_THREAD | POLLS_OFTEN | OUT_OF_BAND | ADDRESSES | PUBLISH;
    if params.flags & !known != 0 {
        let why = format!("{:#x} has unknown flags", params.flags);
        return Err(Fault::new(Status::UnsupportedParam, "a context", why, "leave them out"));
    }
    let mut builder = Context::builder();
    if params.settings.is_null() && params.settings_count > 0 {
        return Err(null("settings"));
    }
    for number in 0..params.settings_count {
        // SAFETY: the caller's array has `settings_count` elements.
        let setting = unsafe { params.settings.add(number).read() };
        let name = string(setting.name, "a setting's name")?;
        builder = builder.set(name, string(setting.value, name)?);
    }
    let asked = |flag| params.flags & flag != 0;
    if asked(PROGRESS_THREAD) {
        builder = builder.progress_thread(true);
    }
    if asked(POLLS_OFTEN) {
        builder = builder.polls_often(true);
    }
    let builder = builder.keys_with_addresses(asked(ADDRESSES)).publish_keys(asked(PUBLISH));
    Ok(builder.out_of_band(asked(OUT_OF_BAND)).open()?)
}

/// Opens a context: finds providers, ranks them and composes paths. `params` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_context_open(
    params: *const ContextParams,
    context: *mut *mut ContextHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(context)?;
        out.set(keep(ContextObject { context: open(params)? })?.to_c());
        Ok(())
    }))
}

/// Releases a context. Objects that were opened in the context remain valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_context_close(context: *mut ContextHandle) -> i32 {
    done(guarded(|| take::<ContextObject, _>(context).map(drop)))
}

/// Reports which modules were found, which modules are used, and why a module is not used. `which` is TIELINE_REPORT_*. The report
/// is a string that ends with a zero. `len` holds the size of `text`, and receives the length of the string without its zero.
/// Returns TIELINE_TOO_LARGE if the string does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_context_report(
    context: *const ContextHandle,
    which: u32,
    text: *mut c_char,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(text.cast::<c_void>(), len)?;
        let report = object::<ContextObject, _>(context)?.context.report();
        let text = match which {
            TIELINE_REPORT_TABLE => report.table(),
            TIELINE_REPORT_WHY => report.why(),
            TIELINE_REPORT_JSON => report.to_json(),
            _ => {
                let why = format!("there is no report {which}");
                return Err(Fault::new(Status::Invalid, "a report", why, "use TIELINE_REPORT_*"));
            }
        };
        room.write(&text)
    }))
}
