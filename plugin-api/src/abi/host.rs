//! The host's services for a provider in Rust.

use super::{AsyncEvent, ConfigValue, ConfigVar, Host};
use crate::config::{ConfigDoc, Value};
use crate::flags::{async_kind, log_level};
use crate::{Failure, OK, Status};

/// The host: log, configuration, clock, asynchronous events. A handle is cheap to copy.
#[derive(Clone, Copy)]
pub struct HostHandle {
    host: *const Host,
    /// The table's context at the start of the provider. A later provider may get the same table with another context.
    context: *mut core::ffi::c_void,
    declared: &'static [ConfigDoc],
}

// SAFETY: the host table stays valid for the life of the process and its functions may be called from any thread; the documentation
// of `Host` promises both.
unsafe impl Send for HostHandle {}
// SAFETY: the functions of the host table may be called from any thread.
unsafe impl Sync for HostHandle {}

macro_rules! slot {
    ($self:ident, $name:ident) => {{
        // SAFETY: `HostHandle::new` got a table that stays valid for the life of the process.
        let host = unsafe { &*$self.host };
        // A slot beyond the end of a shorter (older) table is absent.
        if host.size >= core::mem::offset_of!(Host, $name) + size_of::<usize>() {
            host.$name.map(|f| ($self.context, f))
        } else {
            None
        }
    }};
}

impl HostHandle {
    /// Wraps the table that the entry function received. Returns `None` if the table is null or too short.
    ///
    /// # Safety
    /// `host` is null or points to a host table that stays valid for the life of the process.
    #[must_use]
    pub unsafe fn new(host: *const Host) -> Option<HostHandle> {
        if host.is_null() {
            return None;
        }
        // SAFETY: the pointer is not null, and the caller promises a table, whose first field is `size`.
        let size = unsafe { (*host).size };
        if size < core::mem::offset_of!(Host, context) {
            return None;
        }
        let mut context = core::ptr::null_mut();
        // A table that ends before this field has no functions.
        if size > core::mem::offset_of!(Host, context) {
            // SAFETY: the pointer is not null, the caller promises a table, and the field is inside the table's stated size.
            context = unsafe { (*host).context };
        }
        Some(HostHandle { host, context, declared: &[] })
    }

    /// Returns the host's ABI minor. The host knows the event kinds of that minor.
    #[must_use]
    pub fn abi_minor(&self) -> u32 {
        // SAFETY: `HostHandle::new` got a table that stays valid for the life of the process and has this field.
        unsafe { (*self.host).abi_minor }
    }

    /// Logs one line at a [`log_level`].
    pub fn log(&self, level: u32, text: &str) {
        if let Some((context, f)) = slot!(self, log) {
            // SAFETY: the host's function with the host's context; the text is borrowed for the call.
            unsafe { f(context, level, text.as_ptr(), text.len()) }
        }
    }

    /// Logs a line for the author of the provider.
    pub fn debug(&self, text: &str) {
        self.log(log_level::DEBUG, text);
    }

    /// Declares the variables that [`HostHandle::config`] reads. For a provider of [`crate::export_provider`], the entry function
    /// calls it with [`crate::Provider::config`]. A host without variables accepts the list, and the defaults apply.
    ///
    /// # Errors
    /// A variable is set to a value that the variable does not accept, or the host refuses the list. The host keeps the error text.
    pub fn declare(mut self, variables: &'static [ConfigDoc]) -> Result<HostHandle, Failure> {
        self.declared = variables;
        let Some((context, f)) = slot!(self, config_declare) else { return Ok(self) };
        let records: Vec<ConfigVar> = variables.iter().map(record).collect();
        // SAFETY: the host's function with the host's context; the records and their texts live for the call.
        match unsafe { f(context, records.as_ptr(), records.len()) } {
            OK => Ok(self),
            code => Err(Status::from_code(code).into()),
        }
    }

    /// Returns the value of a declared variable, from the program, the environment or a file, or its default. An undeclared
    /// variable has an empty value.
    #[must_use]
    pub fn config(&self, name: &str) -> Value {
        self.asked(name).unwrap_or_else(|| {
            let declared = self.declared.iter().find(|doc| doc.name == name);
            let default = declared.and_then(|doc| doc.read(doc.default).ok()).unwrap_or_default();
            Value { is_default: true, ..default }
        })
    }

    fn asked(&self, name: &str) -> Option<Value> {
        let (context, f) = slot!(self, config_get)?;
        let mut out = ConfigValue::empty();
        // SAFETY: the host's function with the host's context; the name lives for the call, and `out` is a whole record.
        if unsafe { f(context, name.as_ptr(), name.len(), &mut out) } != OK {
            return None;
        }
        let text = |at: *const u8, len: usize| {
            if at.is_null() || len == 0 {
                return String::new();
            }
            // SAFETY: the text belongs to the host and stays valid longer than this call.
            let bytes = unsafe { core::slice::from_raw_parts(at, len) };
            String::from_utf8_lossy(bytes).into_owned()
        };
        Some(Value {
            number: out.number,
            word: out.word,
            text: text(out.text, out.text_len),
            origin: text(out.origin, out.origin_len),
            is_default: out.is_default != 0,
        })
    }

    /// Returns the nanoseconds of a clock that never goes backwards; 0 if the host has none.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        match slot!(self, clock_ns) {
            // SAFETY: the host's function with the host's context.
            Some((context, f)) => unsafe { f(context) },
            None => 0,
        }
    }

    /// Reports an event that no call waits for, in words.
    pub fn message(&self, status: i32, text: &str) {
        self.async_event(async_kind::MESSAGE, status, "", text);
    }

    /// Reports an event of a domain's device: [`async_kind`].
    pub fn async_event(&self, kind: u32, status: i32, domain: &str, text: &str) {
        let Some((context, f)) = slot!(self, async_event) else { return };
        let event = AsyncEvent {
            kind,
            status,
            domain: domain.as_ptr(),
            domain_len: domain.len(),
            text: text.as_ptr(),
            text_len: text.len(),
            ..AsyncEvent::empty()
        };
        // SAFETY: the host's function with the host's context; the record and its texts live for the call.
        unsafe { f(context, &event) }
    }
}

pub(super) fn record(doc: &ConfigDoc) -> ConfigVar {
    ConfigVar {
        size: size_of::<ConfigVar>(),
        name: doc.name.as_ptr(),
        name_len: doc.name.len(),
        default_value: doc.default.as_ptr(),
        default_value_len: doc.default.len(),
        doc: doc.doc.as_ptr(),
        doc_len: doc.doc.len(),
        kind: doc.accepts.kind,
        reserved: 0,
        least: doc.accepts.least,
        most: doc.accepts.most,
        words: doc.accepts.words.as_ptr(),
        words_len: doc.accepts.words.len(),
    }
}

impl core::fmt::Debug for HostHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HostHandle")
    }
}

#[cfg(test)]
mod tests {
    use super::super::declared::played_host;
    use super::*;

    const VARIABLES: &[ConfigDoc] = &[ConfigDoc::count("TIELINE_A", "4", "")];

    fn handle(host: Host) -> Option<HostHandle> {
        // SAFETY: the table is never freed.
        unsafe { HostHandle::new(Box::leak(Box::new(host))) }
    }

    #[test]
    fn a_table_that_is_too_short_is_none_and_what_one_lacks_is_done_without() {
        let least = core::mem::offset_of!(Host, context);
        let of = |size| handle(Host { size, ..Host::empty() });
        assert!(of(least - 1).is_none() && of(least).is_some());
        // SAFETY: null is no table.
        assert!(unsafe { HostHandle::new(core::ptr::null()) }.is_none());
        let bare = of(least).unwrap().declare(VARIABLES).unwrap();
        bare.message(0, "to nobody");
        assert_eq!(bare.clock_ns(), 0);
        let value = bare.config("TIELINE_A");
        assert_eq!((value.number, &*value.text, value.is_default), (4, "4", true));
        let value = bare.config("TIELINE_B");
        assert_eq!((value.number, &*value.text, value.is_default), (0, "", true));
    }

    #[test]
    fn host_value_is_returned_and_refused_value_is_failure() {
        let set = |text: &'static str| {
            handle(played_host(move |_| Some(text.to_owned()))).unwrap().declare(VARIABLES)
        };
        let value = set(" 7 ").unwrap().config("TIELINE_A");
        assert_eq!((value.number, &*value.text, &*value.origin), (7, "7", "here"));
        assert!(!value.is_default);
        assert_eq!(set("none").unwrap_err().status, Status::Invalid);
        let value = set("7").unwrap().config("TIELINE_B");
        assert_eq!((value.number, value.is_default), (0, true), "it was not declared");
    }
}
