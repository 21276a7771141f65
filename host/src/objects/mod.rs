//! Objects in the loader's list.

mod sys;

pub(crate) use sys::{base_of, defined_in, object_of, run_finalizers};
