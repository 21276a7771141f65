//! The lanes of an endpoint, as a part that owns them.

use crate::interface::LaneLimits;
use std::cell::RefCell;
use tieline_host::abi::RawEndpoint;

/// An open lane of an endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) interface: usize,
    pub(crate) raw: RawEndpoint,
    pub(crate) limits: LaneLimits,
    /// Whether the lane is closed with its endpoint; the worker owns circuits and closes them.
    pub(super) owned: bool,
}

/// The lanes of an endpoint, at most one in use over each interface.
#[derive(Default)]
pub(super) struct Lanes {
    open: RefCell<Vec<Lane>>,
    /// The lanes that the peer has refused. They are closed with the endpoint, because queued operations may still refer to them.
    refused: RefCell<Vec<Lane>>,
}

impl Lanes {
    /// Returns the lane over an interface.
    pub(super) fn over(&self, interface: usize) -> Option<Lane> {
        self.open.borrow().iter().find(|lane| lane.interface == interface).copied()
    }

    /// Checks whether the lane over an interface is this one.
    pub(super) fn has(&self, interface: usize, raw: &RawEndpoint) -> bool {
        self.over(interface).is_some_and(|lane| lane.raw.is(raw))
    }

    /// Returns the lanes in use, in the order in which they were opened.
    pub(super) fn all(&self) -> Vec<Lane> {
        self.open.borrow().clone()
    }

    /// Adds a lane; returns whether it is the only one.
    pub(super) fn add(&self, lane: Lane) -> bool {
        let mut open = self.open.borrow_mut();
        open.push(lane);
        open.len() == 1
    }

    /// Stops using the circuit over an interface.
    pub(super) fn leave_circuit(&self, interface: usize) {
        self.open.borrow_mut().retain(|lane| lane.owned || lane.interface != interface);
    }

    /// Stops using the lane over an interface, which the peer has refused.
    pub(super) fn refuse(&self, interface: usize) {
        let is_refused = |lane: &Lane| lane.owned && lane.interface == interface;
        let (refused, kept): (Vec<_>, Vec<_>) = self.open.take().into_iter().partition(is_refused);
        *self.open.borrow_mut() = kept;
        self.refused.borrow_mut().extend(refused);
    }

    /// Checks whether the peer has refused the lane over an interface.
    pub(super) fn was_refused(&self, interface: usize) -> bool {
        self.refused.borrow().iter().any(|lane| lane.interface == interface)
    }

    /// Calls no function of an interface's provider any more.
    pub(super) fn cut_off(&self, interface: usize) {
        for lanes in [&self.open, &self.refused] {
            let mut lanes = lanes.borrow_mut();
            lanes.iter_mut().filter(|l| l.interface == interface).for_each(|l| l.raw.fail());
        }
    }

    /// Closes the lanes of an endpoint that is dropped. Circuits belong to the worker.
    pub(super) fn close(&self) {
        let all = self.open.take().into_iter().chain(self.refused.take());
        all.filter(|lane| lane.owned).for_each(Lane::close);
    }
}
