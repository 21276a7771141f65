//! The calls by which a context starts a provider and opens domains, made in the child process that tries the provider's file.

use super::Tables;
use super::grown::{Unlisted, listed};
use super::guarded::Guarded;
use super::watched::{Broke, watched};
use crate::room::Room;
use std::ffi::c_void;
use tieline_plugin_api::abi::{
    DomainAttr, DomainParams, EntryFn, Host, ModuleAttr, ProviderOps, fixed_str,
};

/// The maximum number of domains that a trial opens. Domains of one provider usually run the same code.
const MOST_DOMAINS: usize = 4;

/// The capacity of the buffer for `last_error`, in bytes.
const WORDS: usize = 1024;

/// Calls the entry function and returns whether it reported success.
///
/// # Safety
/// `entry` is an entry function. Only this thread calls the provider.
pub(crate) unsafe fn start(
    entry: EntryFn,
    host: &'static Host,
    room: &mut Room,
) -> Result<bool, Broke> {
    let arguments = [std::ptr::from_ref(host) as usize, room.place() as usize];
    // SAFETY: the caller's promise; the room is larger than any minor's table.
    let code = unsafe { watched(entry as *const c_void, arguments)? } as i32;
    if room.is_whole() { Ok(code >= 0) } else { Err(Broke::Memory) }
}

/// Opens up to `MOST_DOMAINS` domains, lists their modules, closes them, and calls `quiesce` if it exists. Refusals are ignored:
/// the parent makes these calls itself later.
///
/// # Safety
/// The entry function has written `ops`. Only this thread calls the provider.
pub(crate) unsafe fn open_and_close(ops: &ProviderOps) -> Result<(), Broke> {
    // SAFETY: the caller's promise.
    let tables = unsafe { Tables::complete(ops) };
    if let Ok(tables) = tables {
        let provider = Provider { ops, tables };
        provider.open_domains()?;
    }
    let Some(quiesce) = ops.quiesce else { return Ok(()) };
    // SAFETY: the provider's function with its own state; nothing else of it is called any more.
    unsafe { watched(quiesce as *const c_void, [ops.state as usize]) }.map(|_| ())
}

struct Provider<'a> {
    ops: &'a ProviderOps,
    tables: Tables,
}

impl Provider<'_> {
    fn domains(&self) -> Result<Vec<DomainAttr>, Broke> {
        let query = self.tables.provider.query_domains as *const c_void;
        // SAFETY: the provider's function with its own state.
        unsafe { self.list(DomainAttr::empty(), query, self.ops.state) }
    }

    fn open_domains(&self) -> Result<(), Broke> {
        // As in the parent, no other context has this number.
        let Some(context_id) = crate::sys::random_id() else { return Ok(()) };
        for domain in self.domains()?.iter().take(MOST_DOMAINS) {
            let Some(name) = fixed_str(&domain.name) else { continue };
            // The parent asks again before it opens one.
            let _ = self.domains()?;
            let params = DomainParams {
                name: name.as_ptr(),
                name_len: name.len(),
                context_id,
                ..DomainParams::empty()
            };
            let mut params = Guarded::new(params, 1);
            let mut handle = Guarded::new(std::ptr::null_mut::<c_void>(), 1);
            let open = self.tables.provider.open_domain as *const c_void;
            let arguments = [self.ops.state as usize, params.at() as usize, handle.at() as usize];
            // SAFETY: the provider's function with its own state; the record and the place live for the call.
            let code = unsafe { watched(open, arguments)? } as i32;
            params.check()?;
            handle.check()?;
            let (Some(handle), true) = (handle.first(1).pop(), code >= 0) else {
                self.take_words()?;
                continue;
            };
            let query = self.tables.domain.query_modules as *const c_void;
            // SAFETY: the domain's function with its own handle.
            let _ = unsafe { self.list(ModuleAttr::empty(), query, handle)? };
            let close = self.tables.domain.close as *const c_void;
            // SAFETY: the handle from above, which ends here.
            let _ = unsafe { watched(close, [handle as usize])? };
        }
        Ok(())
    }

    /// Calls a slot that writes a list. A failure gives an empty list.
    ///
    /// # Safety
    /// `query` is a slot that writes a list of these records, and `of` is its handle.
    unsafe fn list<T: Copy>(
        &self,
        empty: T,
        query: *const c_void,
        of: *mut c_void,
    ) -> Result<Vec<T>, Broke> {
        let mut broke = None;
        let list = listed(empty, |out, capacity, count| {
            let arguments = [of as usize, out as usize, capacity, count as usize];
            // SAFETY: the caller's promise; `out` has room for `capacity` records.
            match unsafe { watched(query, arguments) } {
                Ok(code) => code as i32,
                Err(error) => {
                    broke = Some(error);
                    -1
                }
            }
        });
        match (list, broke) {
            (_, Some(broke)) => Err(broke),
            (Ok(list), None) => Ok(list),
            (Err(Unlisted::Overrun), None) => Err(Broke::Memory),
            (Err(Unlisted::Code(_)), None) => self.take_words().map(|()| Vec::new()),
        }
    }

    /// Calls `last_error`, as the parent does after a failure.
    fn take_words(&self) -> Result<(), Broke> {
        let mut words = Guarded::new(0u8, WORDS);
        let last_error = self.tables.provider.last_error as *const c_void;
        let arguments = [self.ops.state as usize, words.at() as usize, WORDS];
        // SAFETY: the provider's function with its own state; the buffer has that capacity.
        let _ = unsafe { watched(last_error, arguments)? };
        words.check()
    }
}
