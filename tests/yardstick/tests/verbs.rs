//! Compares the declarations of `providers/verbs` with those of rdma-sys.

#![allow(dead_code, missing_docs)]

use rdma_sys as theirs;
use tieline_yardstick::{
    Comparison, Declared, assert_fit, compare_constant, compare_field, compare_record,
    other_constants,
};
use verbs::{abi, cm};

#[path = "../../../providers/verbs/src"]
mod verbs {
    pub(crate) mod abi;
    pub(crate) mod cm {
        pub(crate) mod abi;
    }
}

include!(concat!(env!("OUT_DIR"), "/verbs.rs"));

#[test]
fn records_of_verbs_equal_those_of_rdma_sys() {
    assert_fit(&records());
}

#[test]
fn constants_of_verbs_equal_those_of_rdma_sys() {
    assert_fit(&constants());
}

#[test]
fn every_declaration_of_verbs_is_compared() {
    let texts = [
        include_str!("../../../providers/verbs/src/abi.rs"),
        include_str!("../../../providers/verbs/src/cm/abi.rs"),
    ];
    let constants = abi::NUMBERS.len() + cm::abi::NUMBERS.len();
    assert_eq!(FOUND, Declared::count(&texts, constants));
    assert_eq!(other_constants(&texts), [""; 0]);
}
