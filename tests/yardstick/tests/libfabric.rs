//! Compares the declarations of `providers/ofi` with those of ofi-libfabric-sys.

#![allow(dead_code, missing_docs)]

use ofi::abi;
use ofi_libfabric_sys::bindgen as theirs;
use tieline_yardstick::{
    Comparison, Declared, assert_fit, compare_constant, compare_field, compare_record,
    other_constants,
};

#[path = "../../../providers/ofi/src"]
mod ofi {
    pub(crate) mod abi;
}

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
        include_str!("../../../providers/ofi/src/abi.rs"),
        include_str!("../../../providers/ofi/src/abi/atomic.rs"),
    ];
    assert_eq!(FOUND, Declared::count(&texts, abi::NUMBERS.len()));
    assert_eq!(other_constants(&texts), ["API", "CONTEXT_LEN"]);
}
