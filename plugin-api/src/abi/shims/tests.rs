//! Tests of the entry and the end of a provider, as the core calls them.

use super::super::host::HostHandle;
use super::super::{AsyncEvent, Host, ProviderOps};
use super::*;
use crate::abi::ModuleAttr;
use crate::provider::{Absent, Domain, DomainInfo, Posting, Provider};
use crate::{Failure, PENDING, Status};

thread_local! {
    /// The events of the provider of this thread's test.
    static STORY: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note(what: impl Into<String>) {
    STORY.with_borrow_mut(|story| story.push(what.into()));
}

fn story() -> Vec<String> {
    STORY.take()
}

const GOOD: u8 = 0;
const REFUSES: u8 = 1;
const PANICS_AT_THE_END: u8 = 2;
const NAMES_OF_63: u8 = 3;
const NAMES_OF_64: u8 = 4;

struct Plain<const MANNER: u8>;

impl<const MANNER: u8> Drop for Plain<MANNER> {
    fn drop(&mut self) {
        note("dropped");
    }
}

impl<const MANNER: u8> Provider for Plain<MANNER> {
    type Domain = Nothing;

    fn open(_: HostHandle) -> Result<Self, Failure> {
        match MANNER {
            REFUSES => Err(Failure::new(Status::NoDevice, "no such device")),
            _ => Ok(Plain),
        }
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        let len = match MANNER {
            NAMES_OF_63 => 63,
            NAMES_OF_64 => 64,
            _ => panic!("it lists nothing"),
        };
        let name = "n".repeat(len);
        let (max_key_len, register_ns, register_ns_per_byte) = (8, 0.0, 0.0);
        Ok(vec![DomainInfo { name, caps: 0, max_key_len, register_ns, register_ns_per_byte }])
    }

    fn open_domain(&self, name: &str, _: [u8; 16]) -> Result<Nothing, Failure> {
        Err(Failure::new(Status::Invalid, format!("there is no `{name}`")))
    }

    fn quiesce(&self) {
        note("quiesced");
        assert!(MANNER != PANICS_AT_THE_END, "a thread of its own is gone");
    }
}

struct Nothing;

impl Domain for Nothing {
    type Interface = Absent;
    type Connector = Absent;
    type Region = ();

    fn modules(&self) -> Vec<ModuleAttr> {
        Vec::new()
    }

    fn open_interface(&self, _: &str, _: [u8; 16]) -> Result<Absent, Failure> {
        Err(Status::Unsupported.into())
    }
}

unsafe extern "C" fn told(_: *mut c_void, event: *const AsyncEvent) {
    // SAFETY: the record and its text are borrowed for the call.
    let (status, text) =
        unsafe { ((*event).status, core::slice::from_raw_parts((*event).text, (*event).text_len)) };
    note(format!("{status}: {}", String::from_utf8_lossy(text)));
}

/// Returns a host that only records events.
fn host() -> &'static Host {
    Box::leak(Box::new(Host { async_event: Some(told), ..Host::empty() }))
}

fn empty_ops() -> ProviderOps {
    // SAFETY: the record consists of numbers, pointers and absent functions, for all of which zeros are valid.
    let zeros: ProviderOps = unsafe { core::mem::zeroed() };
    ProviderOps { size: size_of::<ProviderOps>(), ..zeros }
}

/// Opens a provider: returns its table, or the status.
fn open<const MANNER: u8>() -> Result<ProviderOps, i32> {
    let mut ops = empty_ops();
    // SAFETY: the table is never freed, and the record's size is set.
    let status = unsafe { entry::<Plain<MANNER>>(host(), &mut ops) };
    if status == OK { Ok(ops) } else { Err(status) }
}

fn end(ops: &ProviderOps) {
    let quiesce = ops.quiesce.expect("a slot");
    // SAFETY: the state belongs to this table and is ended once.
    unsafe { quiesce(ops.state) }
}

fn list(ops: &ProviderOps) -> i32 {
    let (list, mut count) = (ops.query_domains.expect("a slot"), 0);
    // SAFETY: the state belongs to this table and has not ended; the array has room for none.
    unsafe { list(ops.state, ptr::null_mut(), 0, &mut count) }
}

fn last_error(ops: &ProviderOps) -> String {
    let (last_error, mut text) = (ops.last_error.expect("a slot"), [0; 200]);
    // SAFETY: the buffer has room for the stated number of bytes.
    let len = unsafe { last_error(ops.state, text.as_mut_ptr(), text.len()) };
    String::from_utf8(text[..len as usize].to_vec()).expect("words")
}

#[test]
fn a_provider_is_asked_to_come_to_rest_before_it_goes() {
    let ops = open::<GOOD>().expect("it opens");
    assert_eq!(story(), Vec::<String>::new());
    end(&ops);
    assert_eq!(story(), ["quiesced", "dropped"]);
}

#[test]
fn a_provider_that_panicked_is_asked_nothing_more_and_does_not_go() {
    let ops = open::<GOOD>().expect("it opens");
    assert_eq!(list(&ops), Status::ProviderFailed as i32);
    assert_eq!(last_error(&ops), "the provider panicked: it lists nothing");
    assert_eq!(list(&ops), Status::ProviderFailed as i32);
    assert_eq!(last_error(&ops), "the provider panicked earlier and is not used any more");
    end(&ops);
    assert_eq!(story(), Vec::<String>::new(), "nobody knows what state it is in");
}

#[test]
fn a_name_that_has_no_room_is_an_error_and_not_cut() {
    let ops = open::<NAMES_OF_63>().expect("it opens");
    assert_eq!(list(&ops), OK);
    end(&ops);
    let ops = open::<NAMES_OF_64>().expect("it opens");
    assert_eq!(list(&ops), Status::Invalid as i32);
    let said = last_error(&ops);
    assert!(said.ends_with("n\" has a name of 64 bytes: at most 63 are allowed"), "{said}");
    end(&ops);
}

#[test]
fn a_panic_at_the_end_stays_on_its_side() {
    let ops = open::<PANICS_AT_THE_END>().expect("it opens");
    end(&ops);
    assert_eq!(story(), ["quiesced", "dropped"]);
    assert!(last_error(&ops).ends_with("a thread of its own is gone"), "{}", last_error(&ops));
}

#[test]
fn a_provider_that_cannot_be_used_says_why_to_the_host() {
    assert_eq!(open::<REFUSES>().err(), Some(Status::NoDevice as i32));
    assert_eq!(story(), [format!("{}: no such device", Status::NoDevice as i32)]);
}

#[test]
fn an_entry_without_a_host_or_a_place_for_its_table_is_refused() {
    let mut ops = empty_ops();
    // SAFETY: the test is for a missing host.
    let without_host = unsafe { entry::<Plain<GOOD>>(ptr::null(), &mut ops) };
    // SAFETY: the test is for a missing place.
    let without_place = unsafe { entry::<Plain<GOOD>>(host(), ptr::null_mut()) };
    assert_eq!([without_host, without_place], [Status::Invalid as i32; 2]);
    assert!(ops.quiesce.is_none(), "nothing was opened");
    assert_eq!(story(), Vec::<String>::new());
}

/// Every slot of a host may be missing, as in an older host; the fields before the slots may not.
#[test]
fn a_host_is_at_least_as_long_as_what_stands_before_its_slots() {
    let least = core::mem::offset_of!(Host, context);
    for (size, is_one) in [(0, false), (least - 1, false), (least, true), (size_of::<Host>(), true)]
    {
        // SAFETY: all-zero is a valid table: its slots may be missing, and no other pointer is followed.
        let mut table: Host = unsafe { core::mem::zeroed() };
        table.size = size;
        // SAFETY: the table outlives the handle.
        let handle = unsafe { HostHandle::new(&table) };
        assert_eq!(handle.is_some(), is_one, "{size} bytes");
    }
}

#[test]
fn a_provider_has_tables_for_what_it_has_and_none_for_what_is_absent() {
    let ops = open::<GOOD>().expect("it opens");
    assert!(!ops.domain.is_null());
    assert!(ops.interface.is_null() && ops.endpoint.is_null() && ops.connector.is_null());
    assert_eq!(ops.size, size_of::<ProviderOps>());
    end(&ops);
}

#[test]
fn bytes_of_no_place_are_none_and_so_are_none_of_any_place() {
    let one = [7];
    // SAFETY: the pointer is null, or readable for the stated number of bytes.
    unsafe {
        assert_eq!(bytes(ptr::null(), 5), [0; 0]);
        assert_eq!(bytes(one.as_ptr().wrapping_add(1), 0), [0; 0]);
        assert_eq!(bytes(one.as_ptr(), 1), [7]);
    }
}

#[test]
fn posting_crosses_boundary_as_its_code() {
    assert_eq!(posted(Ok(Posting::Done)), i64::from(OK));
    assert_eq!(posted(Ok(Posting::Pending)), i64::from(PENDING));
    for status in Status::ALL {
        assert_eq!(posted(Err(*status)), i64::from(*status as i32));
    }
}

/// The variable with the text has ended then: a call fails with its status alone.
#[test]
fn a_call_that_fails_in_an_ending_thread_returns_its_status() {
    use std::sync::mpsc::{Sender, channel};
    type LastError = unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> i64;
    struct AtEnd(Sender<[i64; 2]>, LastError);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            static HEALTHY: AtomicBool = AtomicBool::new(false);
            let refused = guarded(&HEALTHY, || Err(Status::NoDevice.into()));
            // SAFETY: the function reads no state, and there is no place for a text.
            let len = unsafe { self.1(ptr::null_mut(), ptr::null_mut(), 0) };
            let _ = self.0.send([refused, len]);
        }
    }
    thread_local! { static FIRST: RefCell<Option<AtEnd>> = const { RefCell::new(None) }; }
    let (to, ended) = channel();
    let thread = std::thread::spawn(|| {
        // A thread-local variable that is created first ends last.
        let ops = open::<GOOD>().expect("it opens");
        FIRST.set(Some(AtEnd(to, ops.last_error.expect("a slot"))));
        end(&ops);
        explain("a text that ends before it");
    });
    thread.join().expect("no panic");
    assert_eq!(ended.recv(), Ok([i64::from(Status::NoDevice as i32), 0]));
}
