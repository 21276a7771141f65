//! The data that a worker keeps in order to publish its state.

use std::cell::RefCell;
use std::collections::HashMap;
use tieline_explain::live::{Page, Publisher};

/// A wait whose start time is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    /// An endpoint's oldest operation.
    Operation(u64, u64),
    /// The answers of an endpoint.
    Answers(u64),
    /// A connection being formed.
    Circuit(u64),
}

/// The state kept between two texts.
pub(super) struct Shown {
    pub(super) publisher: Publisher,
    pub(super) service: bool,
    pub(super) since: RefCell<HashMap<Standing, u64>>,
}

impl Shown {
    pub(super) fn new(page: Option<Page>, service: bool) -> Shown {
        Shown { publisher: Publisher::new(page), service, since: RefCell::default() }
    }
}
