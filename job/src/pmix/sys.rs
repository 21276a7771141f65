//! The part of the PMIx standard (version 3 and later) that an exchange needs, loaded from `libpmix.so.2` at run time. A test
//! compares the layouts with the installed header.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;
use tieline_plugin_api::process::Mark;

const LIBRARY: &str = "libpmix.so.2";
tieline_plugin_api::dlopen_note!(
    br#"[{"feature":"pmix","description":"Jobs of launchers that speak PMIx","priority":"suggested","soname":["libpmix.so.2"]}]"#
);

const RANK_WILDCARD: u32 = u32::MAX - 1;
const SUCCESS: c_int = 0;
const OPERATION_SUCCEEDED: c_int = -157;
const SCOPE_GLOBAL: u8 = 3;
const TYPE_BOOL: u16 = 1;
const TYPE_INT: u16 = 6;
const TYPE_UINT16: u16 = 13;
const TYPE_UINT32: u16 = 14;
const TYPE_BYTE_OBJECT: u16 = 27;

/// `pmix_proc_t`: a process.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Proc {
    nspace: [c_char; 256],
    rank: u32,
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ByteObject {
    bytes: *mut c_char,
    size: usize,
}

/// The members of the union that are used here, and the union's full size.
#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    flag: bool,
    integer: c_int,
    uint16: u16,
    uint32: u32,
    bo: ByteObject,
    room: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawValue {
    kind: u16,
    data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    key: [c_char; 512],
    flags: u32,
    value: RawValue,
}

type OpCallback = extern "C" fn(c_int, *mut c_void);
type ValueCallback = extern "C" fn(c_int, *mut RawValue, *mut c_void);

/// The functions of libpmix that an exchange needs.
struct Table {
    init: unsafe extern "C" fn(*mut Proc, *const Info, usize) -> c_int,
    finalize: unsafe extern "C" fn(*const Info, usize) -> c_int,
    put: unsafe extern "C" fn(u8, *const c_char, *mut RawValue) -> c_int,
    commit: unsafe extern "C" fn() -> c_int,
    fence_nb: unsafe extern "C" fn(
        *const Proc,
        usize,
        *const Info,
        usize,
        Option<OpCallback>,
        *mut c_void,
    ) -> c_int,
    get_nb: unsafe extern "C" fn(
        *const Proc,
        *const c_char,
        *const Info,
        usize,
        Option<ValueCallback>,
        *mut c_void,
    ) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// The value of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Bytes(Vec<u8>),
    /// A value of a type that is not used here.
    Other,
}

/// The reason of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    Late,
    Code(c_int),
}

/// The library, and this process's membership after a successful [`Library::init`].
pub(super) struct Library {
    table: Table,
    me: Mutex<Option<Proc>>,
    /// The connection to the server belongs to one process.
    process: Mark,
}

impl Proc {
    fn of(&self, rank: Option<u32>) -> Proc {
        Proc { rank: rank.unwrap_or(RANK_WILDCARD), ..*self }
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    pub(super) fn namespace(&self) -> String {
        let bytes: Vec<u8> =
            self.nspace.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Library {
    /// Loads the library. The library is never unloaded, because it runs a thread.
    pub(super) fn load() -> Result<Library, String> {
        if tieline_plugin_api::is_static_program() {
            return Err(format!("this program is linked statically and cannot load {LIBRARY}"));
        }
        // SAFETY: the constructors of libpmix have no effects on this process that a caller must prevent.
        let library = unsafe { libloading::Library::new(LIBRARY) }.map_err(|e| e.to_string())?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the types in the table are the standard's types for the functions of these names.
                *unsafe { library.get($name) }.map_err(|e| e.to_string())?
            };
        }
        let table = Table {
            init: symbol!(b"PMIx_Init\0"),
            finalize: symbol!(b"PMIx_Finalize\0"),
            put: symbol!(b"PMIx_Put\0"),
            commit: symbol!(b"PMIx_Commit\0"),
            fence_nb: symbol!(b"PMIx_Fence_nb\0"),
            get_nb: symbol!(b"PMIx_Get_nb\0"),
            error_string: symbol!(b"PMIx_Error_string\0"),
        };
        Ok(Library { table, me: Mutex::new(None), process: Mark::new() })
    }

    /// Connects to this host's server.
    pub(super) fn init(&self) -> Result<Proc, c_int> {
        let mut me = Proc { nspace: [0; 256], rank: 0 };
        // SAFETY: the pointer is that of a local variable; no infos are passed.
        match unsafe { (self.table.init)(&mut me, std::ptr::null(), 0) } {
            SUCCESS => {
                *self.me.lock().unwrap_or_else(PoisonError::into_inner) = Some(me);
                Ok(me)
            }
            code => Err(code),
        }
    }

    /// Stores a value of this process.
    pub(super) fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Failed> {
        let key = c_string(key)?;
        let bo = ByteObject { bytes: bytes.as_ptr().cast_mut().cast(), size: bytes.len() };
        let mut value = RawValue { kind: TYPE_BYTE_OBJECT, data: Data { bo } };
        // SAFETY: the key and the value outlive the call, which copies them.
        check(unsafe { (self.table.put)(SCOPE_GLOBAL, key.as_ptr(), &mut value) })
    }

    /// Passes the stored values to the server.
    pub(super) fn commit(&self) -> Result<(), Failed> {
        // SAFETY: the function takes no argument.
        check(unsafe { (self.table.commit)() })
    }

    /// Waits for the fence of the whole job, which collects the values of all ranks.
    pub(super) fn fence(&self, until: Instant) -> Result<(), Failed> {
        let all = self.me()?.of(None);
        let infos = [Info::collect(), Info::timeout(until)];
        let waiting = Waiting::new();
        let cookie = waiting.hand_over();
        // SAFETY: the process and the infos outlive the call, and the library copies the data that it keeps. The cookie is taken
        // back once: by the callback, or below if there is no callback.
        let code = unsafe {
            (self.table.fence_nb)(&all, 1, infos.as_ptr(), infos.len(), Some(fenced), cookie)
        };
        if code != SUCCESS {
            drop(take_back::<()>(cookie));
            return if code == OPERATION_SUCCEEDED { Ok(()) } else { Err(Failed::Code(code)) };
        }
        waiting.wait(until)
    }

    /// Gets the value of a key, of one rank or of the job.
    pub(super) fn get(
        &self,
        rank: Option<u32>,
        key: &str,
        how: How,
        until: Instant,
    ) -> Result<Value, Failed> {
        let of = self.me()?.of(rank);
        let key = c_string(key)?;
        let late = || Info::timeout(until);
        let infos = match how {
            How::Known => vec![Info::immediate()],
            How::Wait => vec![late()],
            How::Anew => vec![late(), Info::flag("pmix.get.refresh")],
        };
        let waiting = Waiting::new();
        let cookie = waiting.hand_over();
        // SAFETY: the arguments outlive the call, and the cookie is taken back once, as in `fence`.
        let code = unsafe {
            (self.table.get_nb)(&of, key.as_ptr(), infos.as_ptr(), infos.len(), Some(got), cookie)
        };
        if code != SUCCESS {
            drop(take_back::<Value>(cookie));
            return Err(Failed::Code(code));
        }
        waiting.wait(until)
    }

    /// Returns the name of a code: `PMIX_ERR_UNREACH (-25)`.
    pub(super) fn text(&self, code: c_int) -> String {
        // SAFETY: the function takes a number by value.
        let text = unsafe { (self.table.error_string)(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: the pointer is not null, and refers to a constant string of the library.
        let text = unsafe { CStr::from_ptr(text) };
        format!("{} ({code})", text.to_string_lossy())
    }

    fn me(&self) -> Result<Proc, Failed> {
        let me = *self.me.lock().unwrap_or_else(PoisonError::into_inner);
        me.ok_or(Failed::Code(-31)) // PMIX_ERR_INIT
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.process.is_here() && self.me().is_ok() {
            // SAFETY: initialised by `init`, and finalized once; no infos are passed.
            let _ = unsafe { (self.table.finalize)(std::ptr::null(), 0) };
        }
    }
}

/// The place where a value is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// A lookup in this host's server only, which answers immediately.
    Known,
    /// A lookup for which this host's server may ask the server of the rank.
    Wait,
    /// A lookup for which this host's server asks the server of the rank again. The server caches everything that a rank had
    /// published at the last request, and would otherwise answer from this cache. (`PMIX_GET_REFRESH_CACHE` of the standard's
    /// version 4.1; an older server ignores it.)
    Anew,
}

impl Info {
    fn new(key: &str, value: RawValue) -> Info {
        let mut info = Info { key: [0; 512], flags: 0, value };
        for (to, from) in info.key.iter_mut().take(511).zip(key.bytes()) {
            *to = from as c_char;
        }
        info
    }

    fn flag(key: &str) -> Info {
        let mut data = Data { room: [0; 3] };
        data.flag = true;
        Info::new(key, RawValue { kind: TYPE_BOOL, data })
    }

    fn collect() -> Info {
        Info::flag("pmix.collect")
    }

    fn immediate() -> Info {
        Info::flag("pmix.immediate")
    }

    /// Makes the server's own time limit, in whole seconds and later than `until`, so that the server drops requests whose caller
    /// has stopped waiting.
    fn timeout(until: Instant) -> Info {
        let left = until.saturating_duration_since(Instant::now()).as_secs() + 2;
        let mut data = Data { room: [0; 3] };
        data.integer = c_int::try_from(left).unwrap_or(c_int::MAX);
        Info::new("pmix.timeout", RawValue { kind: TYPE_INT, data })
    }
}

/// A result that the library's thread stores, perhaps after the wait has ended.
struct Waiting<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    answer: Mutex<Option<Result<T, Failed>>>,
    came: Condvar,
}

impl<T> Waiting<T> {
    fn new() -> Waiting<T> {
        Waiting { shared: Arc::new(Shared { answer: Mutex::new(None), came: Condvar::new() }) }
    }

    /// Returns a reference for the callback.
    fn hand_over(&self) -> *mut c_void {
        Arc::into_raw(self.shared.clone()).cast_mut().cast()
    }

    fn wait(self, until: Instant) -> Result<T, Failed> {
        let mut answer = self.shared.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(answer) = answer.take() {
                return answer;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failed::Late);
            }
            let waited = self.shared.came.wait_timeout(answer, left);
            answer = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn take_back<T>(cookie: *mut c_void) -> Arc<Shared<T>> {
    // SAFETY: every caller passes the result of `hand_over` of a `Waiting<T>`, once.
    unsafe { Arc::from_raw(cookie.cast::<Shared<T>>()) }
}

fn answer<T>(cookie: *mut c_void, answer: Result<T, Failed>) {
    let shared = take_back::<T>(cookie);
    *shared.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    shared.came.notify_all();
}

extern "C" fn fenced(status: c_int, cookie: *mut c_void) {
    answer(cookie, check(status));
}

extern "C" fn got(status: c_int, value: *mut RawValue, cookie: *mut c_void) {
    let outcome = check(status).map(|()| {
        // SAFETY: on success the library passes null, or a value of its own that outlives this call.
        match unsafe { value.as_ref() } {
            None => Value::Other,
            Some(value) => read(value),
        }
    });
    answer(cookie, outcome);
}

fn read(value: &RawValue) -> Value {
    match value.kind {
        // SAFETY: the kind states which member of the union is valid.
        TYPE_UINT16 => Value::Number(unsafe { value.data.uint16 }.into()),
        // SAFETY: the kind states which member of the union is valid.
        TYPE_UINT32 => Value::Number(unsafe { value.data.uint32 }.into()),
        TYPE_BYTE_OBJECT => {
            // SAFETY: the kind states which member of the union is valid.
            let bo = unsafe { value.data.bo };
            if bo.bytes.is_null() {
                return Value::Bytes(Vec::new());
            }
            // SAFETY: a byte object's pointer refers to `size` bytes.
            Value::Bytes(unsafe { std::slice::from_raw_parts(bo.bytes.cast(), bo.size) }.to_vec())
        }
        _ => Value::Other,
    }
}

fn check(code: c_int) -> Result<(), Failed> {
    if code == SUCCESS { Ok(()) } else { Err(Failed::Code(code)) }
}

fn c_string(text: &str) -> Result<CString, Failed> {
    CString::new(text).map_err(|_| Failed::Code(-27)) // PMIX_ERR_BAD_PARAM
}

#[cfg(test)]
mod tests;
