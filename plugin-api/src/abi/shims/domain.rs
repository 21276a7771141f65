//! The shims of a domain.

use super::*;
use crate::provider::{Domain, Revoked};
use crate::{access, register_flags};

pub(super) unsafe extern "C" fn query_modules<D: Domain>(
    domain: *mut c_void,
    out: *mut ModuleAttr,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: the handle is that of an open domain.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core guarantees its array.
        unsafe { write_list(&this.inner.modules(), out, capacity, count) }
    }))
}

/// Reads the parameters of `open_interface` and `open_connector` and stores the handle that `open` made.
///
/// # Safety
/// The arguments are those of the two slots.
unsafe fn open_with<D: Domain, T>(
    domain: *mut c_void,
    params: *const InterfaceParams,
    out: *mut *mut c_void,
    open: impl FnOnce(&D, &str, [u8; 16]) -> Result<T, Failure>,
) -> i32 {
    // SAFETY: the handle is that of an open domain.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core guarantees its record.
        let params = unsafe { read_params(params, InterfaceParams::empty()) }?;
        understood("flag", params.flags, 0)?;
        // SAFETY: the name is borrowed for the call.
        let module = unsafe { text(params.module, params.module_len) }?;
        let opened = open(&this.inner, module, params.worker_id)?;
        // SAFETY: the core guarantees the place for the handle.
        unsafe { *out = Shared::into_raw(opened, this.poisoned) };
        Ok(0)
    }))
}

pub(super) unsafe extern "C" fn open_interface<D: Domain>(
    domain: *mut c_void,
    params: *const InterfaceParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the core guarantees its arguments.
    unsafe { open_with::<D, _>(domain, params, out, |d, module, id| d.open_interface(module, id)) }
}

pub(super) unsafe extern "C" fn open_connector<D: Domain>(
    domain: *mut c_void,
    params: *const InterfaceParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the core guarantees its arguments.
    unsafe { open_with::<D, _>(domain, params, out, |d, module, id| d.open_connector(module, id)) }
}

pub(super) unsafe extern "C" fn alloc<D: Domain>(
    domain: *mut c_void,
    params: *const AllocParams,
    out: *mut MemoryRegion,
) -> i32 {
    // SAFETY: the handle is that of an open domain.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core guarantees its record.
        let params = unsafe { read_params(params, AllocParams::empty()) }?;
        rights(params.access)?;
        understood("flag of an allocation", params.flags, 0)?;
        let got = this.inner.alloc(&params)?;
        let region = MemoryRegion {
            handle: Registered::into_raw(got.region, got.len, params.access),
            base: got.base,
            len: got.len,
            ..MemoryRegion::empty()
        };
        // SAFETY: the core guarantees its record, whose `size` it has set.
        unsafe { write_attr(out, &region) };
        Ok(0)
    }))
}

pub(super) unsafe extern "C" fn register<D: Domain>(
    domain: *mut c_void,
    params: *const RegisterParams,
    out: *mut MemoryRegion,
) -> i32 {
    // SAFETY: the handle is that of an open domain.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core guarantees its record.
        let params = unsafe { read_params(params, RegisterParams::empty()) }?;
        rights(params.access)?;
        understood("flag of a registration", params.flags, register_flags::DMABUF)?;
        let region = this.inner.register(&params)?;
        let region = MemoryRegion {
            handle: Registered::into_raw(region, params.len, params.access),
            base: params.base,
            len: params.len,
            ..MemoryRegion::empty()
        };
        // SAFETY: the core guarantees its record, whose `size` it has set.
        unsafe { write_attr(out, &region) };
        Ok(0)
    }))
}

pub(super) unsafe extern "C" fn deregister<D: Domain>(
    domain: *mut c_void,
    region: *mut c_void,
) -> i32 {
    // SAFETY: the handle is that of an open domain.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        // SAFETY: the handle came from alloc or register of this domain, and stays valid until it is ended below.
        if this.inner.revoke(unsafe { &*region.cast::<D::Region>() }) == Revoked::Busy {
            return Err(still_inside());
        }
        // SAFETY: the handle came from alloc or register of this domain, and the core ends the region once: it has received no
        // final answer yet.
        let region = unsafe { Box::from_raw(region.cast::<Registered<D::Region>>()) };
        this.inner.deregister(region.region)?;
        Ok(0)
    }))
}

pub(super) unsafe extern "C" fn revoke<D: Domain>(domain: *mut c_void, region: *mut c_void) -> i32 {
    // SAFETY: the handle is that of an open domain.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        // SAFETY: the handle came from alloc or register of this domain, and has not been ended.
        match this.inner.revoke(unsafe { &*region.cast::<D::Region>() }) {
            Revoked::Quiet => Ok(0),
            Revoked::Busy => Err(still_inside()),
        }
    }))
}

/// A length above that of any key, for the buffer in which a provider measures a key that did not fit.
const LONGEST_KEY: usize = 1 << 16;

/// Refuses unknown rights: no right is a hint.
fn rights(asked: u64) -> Result<(), Failure> {
    let known = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    match asked & !known {
        0 => Ok(()),
        bits => {
            let text =
                format!("unknown access right: {bits:#x}; the provider is older than its core");
            Err(Failure::new(Status::UnsupportedParam, text))
        }
    }
}

/// Returns the failure with the reason why a region is not free yet.
fn still_inside() -> Failure {
    Failure::new(Status::Again, "an access that a peer began before is not complete yet")
}

/// A region behind its handle. The provider's own record comes first, because pieces of memory that carry the handle point to it.
#[repr(C)]
struct Registered<R> {
    region: R,
    len: usize,
    access: u64,
}

impl<R> Registered<R> {
    fn into_raw(region: R, len: usize, access: u64) -> *mut c_void {
        Box::into_raw(Box::new(Registered { region, len, access })).cast()
    }

    /// Checks the part and the rights of a key. Sets `len` to 0 for a key to the whole region, and `access` to 0 for a key with all
    /// of its rights.
    fn key_to(&self, key: &mut KeyParams) -> Result<(), Failure> {
        if key.access & !self.access != 0 {
            return Err(Failure::new(
                Status::Invalid,
                "a key with a right that its region does not have",
            ));
        }
        let len = self.len as u64;
        if key.offset > len || key.len > len - key.offset {
            return Err(Failure::new(
                Status::OutOfRange,
                "a key to a part that exceeds its region",
            ));
        }
        if key.offset == 0 && key.len == len {
            key.len = 0;
        }
        if key.access == self.access {
            key.access = 0;
        }
        Ok(())
    }
}

pub(super) unsafe extern "C" fn pack_key<D: Domain>(
    domain: *mut c_void,
    params: *const KeyParams,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    // SAFETY: the handle is that of an open domain.
    let this = unsafe { shared::<D>(domain) };
    guarded(this.poisoned, || {
        // SAFETY: the core guarantees its record.
        let mut params = unsafe { read_params(params, KeyParams::empty()) }?;
        understood("flag", params.flags, 0)?;
        rights(params.access)?;
        if params.region.is_null() {
            return Err(Failure::new(Status::Invalid, "a key without a region"));
        }
        // SAFETY: the handle is that of a registered region.
        let region = unsafe { &*params.region.cast::<Registered<D::Region>>() };
        region.key_to(&mut params)?;
        let region = &region.region;
        // SAFETY: the core guarantees its buffer, which it zeroed.
        let room = unsafe { room(out, capacity) };
        match this.inner.pack_key(region, &params, room) {
            // The result is the length of the key.
            Err(failure) if failure.status == Status::TooLarge => {
                let mut bytes = vec![0; LONGEST_KEY];
                Ok(this.inner.pack_key(region, &params, &mut bytes)? as i64)
            }
            packed => Ok(packed? as i64),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_to_all_of_a_region_is_one_however_it_is_asked_for() {
        let region = Registered { region: (), len: 4096, access: 3 };
        let key = |offset, len, access| {
            let mut key = KeyParams { offset, len, access, ..KeyParams::empty() };
            region.key_to(&mut key).map_err(|failure| failure.status)?;
            key.whole().map_err(|failure| failure.status)
        };
        assert_eq!([key(0, 0, 0), key(0, 4096, 0), key(0, 4096, 3)], [Ok(()); 3]);
        assert_eq!([key(0, 64, 0), key(64, 0, 0), key(0, 0, 1)], [Err(Status::Unsupported); 3]);
        assert_eq!([key(0, 0, 4), key(0, 0, 7)], [Err(Status::Invalid); 2]);
        assert_eq!([key(1, 4096, 0), key(4097, 0, 0)], [Err(Status::OutOfRange); 2]);
    }
}
