//! libfabric's offers: lists of `fi_info` and hints, both allocated by the library.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::load::Library;
use core::ffi::{c_char, c_int};
use std::ffi::CStr;
use std::sync::Arc;
use tieline_plugin_api::{Failure, Status};

/// A list from `fi_getinfo`, which is never changed. Its records may be longer than the declared ones.
pub(crate) struct Infos {
    library: &'static Library,
    head: *mut fi_info,
}

// SAFETY: nothing writes the records any more, and they are freed once. The library's functions on them accept any thread.
unsafe impl Send for Infos {}
// SAFETY: nothing writes the records any more, and the library's functions on them accept any thread.
unsafe impl Sync for Infos {}

/// The requested features.
pub(crate) struct Hints {
    /// The requested version of the library's interface.
    pub(crate) api: u32,
    /// Whether completion at the target is required.
    pub(crate) delivery: bool,
    pub(crate) atomics: bool,
    /// The requested progress mode, `FI_PROGRESS_...`; 0 leaves the choice to the provider.
    pub(crate) progress: c_int,
}

/// The supported registration modes. The library need not list a provider that demands another mode.
pub(crate) const MR_MODES: c_int =
    FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

impl Infos {
    /// Queries the library, with the requirements of this provider as hints, or without hints.
    fn ask(library: &Library, hints: Option<&Hints>) -> Result<Raw, Failure> {
        // SAFETY: a null record asks for a new one, which is zero except for its sub-records.
        let wanted = match hints {
            None => core::ptr::null_mut(),
            // SAFETY: a null record asks for a new one.
            Some(_) => unsafe { (library.dupinfo)(core::ptr::null()) },
        };
        if let Some(hints) = hints {
            if wanted.is_null() {
                return Err(Failure::new(Status::NoMemory, "libfabric gives no record for hints"));
            }
            // SAFETY: the library has just made the record, with its sub-records, in the layout of the requested version. No other
            // reference to it exists.
            unsafe { fill(&mut *wanted, hints) };
        }
        let (none, mut head) = (core::ptr::null::<c_char>(), core::ptr::null_mut());
        let api = hints.map_or(API, |hints| hints.api);
        // SAFETY: the texts are terminated or null, the hints are the library's own, and `head` has room for one pointer.
        let code = unsafe { (library.getinfo)(api, none, none, 0, wanted, &raw mut head) };
        if !wanted.is_null() {
            // SAFETY: the matching function above made the record.
            unsafe { (library.freeinfo)(wanted) };
        }
        if code == -libc::ENODATA {
            return Ok(Raw(core::ptr::null_mut()));
        }
        if code != 0 {
            let text = format!("fi_getinfo failed: {}", std::io::Error::from_raw_os_error(-code));
            return Err(Failure::new(Status::NoDevice, text));
        }
        Ok(Raw(head))
    }

    /// Queries the library for the first time, and frees the list.
    pub(crate) fn ask_first(library: &Library) {
        if let Ok(Raw(head)) = Infos::ask(library, None) {
            if !head.is_null() {
                // SAFETY: `fi_getinfo` made the list, the function of the same version frees it, and nothing refers to it.
                unsafe { (library.freeinfo)(head) };
            }
        }
    }

    /// Queries a list and keeps it.
    pub(crate) fn new(library: &'static Library, hints: &Hints) -> Result<Arc<Infos>, Failure> {
        let Raw(head) = Infos::ask(library, Some(hints))?;
        Ok(Arc::new(Infos { library, head }))
    }

    /// Returns every record of the list, in the library's order.
    pub(crate) fn each(self: &Arc<Infos>) -> Vec<Info> {
        let (mut all, mut at) = (Vec::new(), self.head);
        while !at.is_null() {
            all.push(Info { list: self.clone(), raw: at });
            // SAFETY: the record belongs to the list, which lives.
            at = unsafe { (*at).next };
        }
        all
    }
}

/// A list without an owner yet, which is freed only if `Infos` takes it.
struct Raw(*mut fi_info);

impl Drop for Infos {
    fn drop(&mut self) {
        if !self.head.is_null() {
            // SAFETY: `fi_getinfo` made the list, and the function of the same version frees it. No other reference to it exists.
            unsafe { (self.library.freeinfo)(self.head) };
        }
    }
}

/// Sets the requested features.
///
/// # Safety
/// The library made the record and its sub-records.
unsafe fn fill(info: &mut fi_info, hints: &Hints) {
    info.caps = FI_MSG | FI_RMA | FI_MULTI_RECV | if hints.atomics { FI_ATOMIC } else { 0 };
    info.mode = FI_CONTEXT | FI_CONTEXT2;
    // SAFETY: the library made the sub-records with the record; each is null or complete.
    unsafe {
        if let Some(ep) = info.ep_attr.as_mut() {
            ep.kind = FI_EP_RDM;
        }
        if let Some(domain) = info.domain_attr.as_mut() {
            domain.mr_mode = MR_MODES;
            domain.threading = FI_THREAD_SAFE;
            domain.resource_mgmt = FI_RM_ENABLED;
            domain.data_progress = hints.progress;
        }
        if let Some(tx) = info.tx_attr.as_mut() {
            tx.msg_order = FI_ORDER_SAS;
            tx.op_flags = if hints.delivery { FI_DELIVERY_COMPLETE } else { 0 };
        }
        if let Some(rx) = info.rx_attr.as_mut() {
            rx.msg_order = FI_ORDER_SAS;
        }
    }
}

/// One record of a list.
#[derive(Clone)]
pub(crate) struct Info {
    list: Arc<Infos>,
    raw: *mut fi_info,
}

// SAFETY: the record belongs to a list that lives at least as long; see `Infos`.
unsafe impl Send for Info {}
// SAFETY: the record belongs to a list that lives at least as long; see `Infos`.
unsafe impl Sync for Info {}

macro_rules! part {
    ($self:ident, $part:ident) => {
        // SAFETY: `fi_getinfo` filled the record: all of its sub-records exist (fi_getinfo(3)) and live as long as the list.
        unsafe { &*(*$self.raw).$part }
    };
}

impl Info {
    pub(crate) fn library(&self) -> &'static Library {
        self.list.library
    }

    /// Returns the raw pointer, for calls of the library.
    pub(crate) fn raw(&self) -> *mut fi_info {
        self.raw
    }

    pub(crate) fn tx(&self) -> &fi_tx_attr {
        part!(self, tx_attr)
    }

    pub(crate) fn rx(&self) -> &fi_rx_attr {
        part!(self, rx_attr)
    }

    pub(crate) fn ep(&self) -> &fi_ep_attr {
        part!(self, ep_attr)
    }

    pub(crate) fn domain(&self) -> &fi_domain_attr {
        part!(self, domain_attr)
    }

    pub(crate) fn fabric(&self) -> &fi_fabric_attr {
        part!(self, fabric_attr)
    }

    /// Returns the format of the addresses, `FI_SOCKADDR_IN` and so on.
    pub(crate) fn address_format(&self) -> u32 {
        // SAFETY: the record belongs to the list.
        unsafe { (*self.raw).addr_format }
    }

    pub(crate) fn caps(&self) -> u64 {
        // SAFETY: the record belongs to the list.
        unsafe { (*self.raw).caps }
    }

    /// Returns the mode bits that the provider demands of its user.
    pub(crate) fn mode(&self) -> u64 {
        // SAFETY: the record belongs to the list.
        unsafe { (*self.raw).mode }
    }

    /// Returns the local address.
    pub(crate) fn source(&self) -> &[u8] {
        // SAFETY: the record belongs to the list; its address has the length in the field beside it.
        unsafe {
            let (at, len) = ((*self.raw).src_addr, (*self.raw).src_addrlen);
            if at.is_null() { &[] } else { core::slice::from_raw_parts(at.cast::<u8>(), len) }
        }
    }
}

/// Returns a text of the library.
pub(crate) fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: the library's text is terminated and lives as long as the record that contains it.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}
