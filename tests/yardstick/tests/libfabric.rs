//! Compares the declarations of `integrations/libfabric-abi` with those of ofi-libfabric-sys.

// The declarations are those of another crate, where they are public.
#![allow(dead_code, missing_docs, unreachable_pub)]

use ofi_libfabric_sys::bindgen as theirs;
use tieline_yardstick::{
    Comparison, Declared, assert_fit, compare_constant, compare_field, compare_record,
    other_constants,
};

#[path = "../../../integrations/libfabric-abi/src/lib.rs"]
mod abi;

include!(concat!(env!("OUT_DIR"), "/libfabric.rs"));

#[test]
fn records_of_ofi_fit_those_of_ofi_libfabric_sys() {
    assert_fit(&records());
}

#[test]
fn constants_of_ofi_equal_those_of_ofi_libfabric_sys() {
    assert_fit(&constants());
    assert_eq!(abi::CONTEXT_LEN, size_of::<theirs::fi_context2>());
    let newest = abi::version(theirs::FI_MAJOR_VERSION, theirs::FI_MINOR_VERSION);
    assert!(abi::API <= newest, "the headers are older than the interface that is asked for");
}

#[test]
fn every_declaration_of_ofi_is_compared() {
    let texts = [
        include_str!("../../../integrations/libfabric-abi/src/atomic.rs"),
        include_str!("../../../integrations/libfabric-abi/src/attributes.rs"),
        include_str!("../../../integrations/libfabric-abi/src/endpoint.rs"),
        include_str!("../../../integrations/libfabric-abi/src/numbers.rs"),
        include_str!("../../../integrations/libfabric-abi/src/objects.rs"),
        include_str!("../../../integrations/libfabric-abi/src/tables.rs"),
    ];
    assert_eq!(FOUND, Declared::count(&texts, abi::numbers::NUMBERS.len()));
    assert!(other_constants(&texts).is_empty());
}
