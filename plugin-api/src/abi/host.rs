//! The host's services as a provider in Rust sees them.

use super::Host;
use crate::flags::log_level;

/// The host: log, configuration, clock, asynchronous events. Copy it wherever it is needed.
#[derive(Clone, Copy)]
pub struct HostHandle {
    host: *const Host,
}

// SAFETY: the host table is constant for the life of the process and its functions may be called from any
// thread; the core promises both in the documentation of `Host`.
unsafe impl Send for HostHandle {}
// SAFETY: as above.
unsafe impl Sync for HostHandle {}

macro_rules! slot {
    ($self:ident, $name:ident) => {{
        // SAFETY: `HostHandle::new` got a table that stays valid for the life of the process.
        let host = unsafe { &*$self.host };
        // A slot beyond the end of a shorter (older) table is absent.
        if host.size >= core::mem::offset_of!(Host, $name) + size_of::<usize>() {
            host.$name.map(|f| (host.context, f))
        } else {
            None
        }
    }};
}

impl HostHandle {
    /// Wraps the table that the entry function was given; `None` when it is null or too short to be one.
    ///
    /// # Safety
    /// `host` is null or points to a host table that stays valid for the life of the process.
    #[must_use]
    pub unsafe fn new(host: *const Host) -> Option<HostHandle> {
        if host.is_null() {
            return None;
        }
        // SAFETY: not null, and the caller promises a table, of which `size` is the first field.
        let size = unsafe { (*host).size };
        (size >= core::mem::offset_of!(Host, context)).then_some(HostHandle { host })
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

    /// The value of a configuration variable, from the environment, a file, or the declared default.
    #[must_use]
    pub fn config(&self, name: &str) -> Option<String> {
        let (context, f) = slot!(self, config_get)?;
        let mut buffer = vec![0u8; 256];
        loop {
            // SAFETY: the host's function with the host's context; it writes at most the capacity given.
            let len =
                unsafe { f(context, name.as_ptr(), name.len(), buffer.as_mut_ptr(), buffer.len()) };
            let len = usize::try_from(len).ok()?;
            if len <= buffer.len() {
                buffer.truncate(len);
                return String::from_utf8(buffer).ok();
            }
            buffer.resize(len, 0);
        }
    }

    /// Nanoseconds of a clock that never goes backwards.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        match slot!(self, clock_ns) {
            // SAFETY: the host's function with the host's context.
            Some((context, f)) => unsafe { f(context) },
            None => 0,
        }
    }

    /// Reports something that no call is waiting for.
    pub fn async_event(&self, status: i32, text: &str) {
        if let Some((context, f)) = slot!(self, async_event) {
            // SAFETY: the host's function with the host's context; the text is borrowed for the call.
            unsafe { f(context, status, text.as_ptr(), text.len()) }
        }
    }
}

impl core::fmt::Debug for HostHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HostHandle")
    }
}
