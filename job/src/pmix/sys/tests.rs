//! Tests of the layouts, of late answers, and of the library in a forked child.

use super::*;
use std::mem::{offset_of, size_of};
use std::process::Command;

/// Compares the header with the constants above: a C program prints the header's values, and the test prints the values of this
/// file.
#[test]
fn layouts_and_numbers_are_those_of_the_installed_header() {
    const PROGRAM: &str = r#"
        #include <stdio.h>
        #include <stddef.h>
        #include <pmix.h>
        int main(void) {
            printf("%zu %zu %zu ", sizeof(pmix_proc_t), offsetof(pmix_proc_t, nspace), offsetof(pmix_proc_t, rank));
            printf("%zu %zu %zu ", sizeof(pmix_byte_object_t), offsetof(pmix_byte_object_t, bytes), offsetof(pmix_byte_object_t, size));
            printf("%zu %zu %zu ", sizeof(pmix_value_t), offsetof(pmix_value_t, type), offsetof(pmix_value_t, data));
            printf("%zu %zu %zu %zu ", sizeof(pmix_info_t), offsetof(pmix_info_t, key), offsetof(pmix_info_t, flags), offsetof(pmix_info_t, value));
            printf("%u %d %d %d ", (unsigned)(PMIX_RANK_WILDCARD), PMIX_SUCCESS, PMIX_OPERATION_SUCCEEDED, PMIX_GLOBAL);
            printf("%d %d %d %d %d ", PMIX_BOOL, PMIX_INT, PMIX_UINT16, PMIX_UINT32, PMIX_BYTE_OBJECT);
            printf("%s %s %s ", PMIX_COLLECT_DATA, PMIX_IMMEDIATE, PMIX_TIMEOUT);
            printf("%s %s %s ", PMIX_JOB_SIZE, PMIX_LOCAL_RANK, PMIX_LOCAL_SIZE);
            return 0;
        }"#;
    let dir = std::env::temp_dir().join(format!("tieline-pmix-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, program) = (dir.join("layout.c"), dir.join("layout"));
    std::fs::write(&source, PROGRAM).unwrap();
    let debian = "/usr/lib/x86_64-linux-gnu/pmix2/include";
    let built = Command::new("cc")
        .args(["-I", debian, "-o"])
        .args([&program, &source])
        .stderr(std::process::Stdio::null())
        .status();
    let printed = built.ok().filter(std::process::ExitStatus::success);
    let printed = printed.and_then(|_| Command::new(&program).output().ok());
    std::fs::remove_dir_all(&dir).unwrap();
    let Some(printed) = printed else {
        println!("skipped: pmix.h or a C compiler is not installed (libpmix-dev, gcc)");
        return;
    };
    let numbers = [
        size_of::<Proc>(),
        offset_of!(Proc, nspace),
        offset_of!(Proc, rank),
        size_of::<ByteObject>(),
        offset_of!(ByteObject, bytes),
        offset_of!(ByteObject, size),
        size_of::<RawValue>(),
        offset_of!(RawValue, kind),
        offset_of!(RawValue, data),
        size_of::<Info>(),
        offset_of!(Info, key),
        offset_of!(Info, flags),
        offset_of!(Info, value),
    ];
    let ours = format!(
        "{} {RANK_WILDCARD} {SUCCESS} {OPERATION_SUCCEEDED} {SCOPE_GLOBAL} {TYPE_BOOL} {TYPE_INT} \
         {TYPE_UINT16} {TYPE_UINT32} {TYPE_BYTE_OBJECT} pmix.collect pmix.immediate pmix.timeout \
         pmix.job.size pmix.lrank pmix.local.size ",
        numbers.map(|n| n.to_string()).join(" ")
    );
    assert_eq!(ours, String::from_utf8_lossy(&printed.stdout));
}

#[test]
fn an_answer_that_comes_after_nobody_waits_does_no_harm() {
    let waiting = Waiting::<()>::new();
    let cookie = waiting.hand_over();
    assert_eq!(waiting.wait(Instant::now()), Err(Failed::Late));
    fenced(0, cookie);
}

/// A server would regard the parent as gone.
#[test]
fn a_child_that_drops_the_library_does_not_leave_the_parents_job() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static FINALIZED: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn finalize(_: *const Info, _: usize) -> c_int {
        let _ = FINALIZED.fetch_add(1, Ordering::Relaxed);
        SUCCESS
    }
    let me = Mutex::new(Some(Proc { nspace: [0; 256], rank: 0 }));
    let mut library = Some(Library { table: Table::without(finalize), me, process: Mark::new() });
    assert!(tieline_testing::holds_in_child(|| {
        drop(library.take());
        FINALIZED.load(Ordering::Relaxed) == 0
    }));
    drop(library.take());
    assert_eq!(FINALIZED.load(Ordering::Relaxed), 1);
}

impl Table {
    /// Makes a table whose functions fail, except for this one.
    fn without(finalize: unsafe extern "C" fn(*const Info, usize) -> c_int) -> Table {
        unsafe extern "C" fn fence(
            _: *const Proc,
            _: usize,
            _: *const Info,
            _: usize,
            _: Option<OpCallback>,
            _: *mut c_void,
        ) -> c_int {
            -1
        }
        unsafe extern "C" fn get(
            _: *const Proc,
            _: *const c_char,
            _: *const Info,
            _: usize,
            _: Option<ValueCallback>,
            _: *mut c_void,
        ) -> c_int {
            -1
        }
        unsafe extern "C" fn init(_: *mut Proc, _: *const Info, _: usize) -> c_int {
            -1
        }
        unsafe extern "C" fn put(_: u8, _: *const c_char, _: *mut RawValue) -> c_int {
            -1
        }
        unsafe extern "C" fn commit() -> c_int {
            -1
        }
        unsafe extern "C" fn error_string(_: c_int) -> *const c_char {
            std::ptr::null()
        }
        Table { init, finalize, put, commit, fence_nb: fence, get_nb: get, error_string }
    }
}
