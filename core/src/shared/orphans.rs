//! Operations that outlive their endpoint. The endpoint was dropped while a provider had the operations, and their connections
//! belong to the worker and stay open. The core also treats its own flush of a circuit, for puts of a dropped endpoint, in this
//! way. Such an operation ends when the provider reports its outcome, or with its circuit, its interface, or the worker.

use super::Shared;
use crate::Error;
use crate::mem::local::LocalBuffer;
use std::cell::RefCell;
use std::collections::BTreeMap;
use tieline_order::Id;
use tieline_order::held::{Through, Unfinished};

/// An operation without an endpoint.
struct Orphan {
    id: Id,
    interface: usize,
    /// The circuits that the operation may have used.
    through: Vec<Through>,
}

/// The operations of a worker without an endpoint, including some that have ended. All are taken out of the cell before
/// `end_orphans` ends one.
#[derive(Default)]
pub(crate) struct Orphans(RefCell<Vec<Orphan>>);

/// The object whose end also ends operations.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Circuit(u64),
    /// An interface; `broken`: no function of its provider is called again.
    Interface {
        index: usize,
        broken: bool,
    },
    Worker,
}

impl Shared {
    /// Separates the operations of an endpoint that is dropped. Posted operations that use only circuits continue without the
    /// endpoint; `through` returns the circuits, by interface.
    pub(crate) fn orphan(&self, owner: usize, through: impl Fn(usize) -> Vec<Through>) {
        let posted = self.ops.borrow().posted_of(owner);
        let orphan = |(id, interface)| Orphan { id, interface, through: through(interface) };
        let over_circuits = |one: &Through| matches!(one, Through::Circuit(_));
        let mut left: Vec<Orphan> = posted.into_iter().map(orphan).collect();
        left.retain(|orphan| orphan.through.iter().all(over_circuits));
        self.with_ops(|ops| left.iter().for_each(|orphan| ops.orphan(orphan.id)));
        let mut all = self.orphans.0.borrow_mut();
        if all.len() + left.len() > all.capacity() {
            all.retain(|orphan| self.ops.borrow().is_open(orphan.id));
        }
        all.extend(left);
    }

    /// Registers an operation without an endpoint that uses only a circuit.
    pub(crate) fn orphan_one(&self, id: Id, interface: usize, circuit: u64) {
        self.with_ops(|ops| ops.orphan(id));
        let through = vec![Through::Circuit(circuit)];
        self.orphans.0.borrow_mut().push(Orphan { id, interface, through });
    }

    /// Ends the operations without an endpoint that use `what`. Providers may access the operations' memory until the circuits that
    /// the operations may have used are closed.
    pub(crate) fn end_orphans(&self, what: End, error: &Error) {
        let over_it = |orphan: &Orphan| match what {
            End::Circuit(number) => orphan.through.contains(&Through::Circuit(number)),
            End::Interface { index, .. } => orphan.interface == index,
            End::Worker => true,
        };
        let all = self.orphans.0.take();
        if all.is_empty() {
            return;
        }
        let (ended, left): (Vec<Orphan>, Vec<Orphan>) = all.into_iter().partition(over_it);
        *self.orphans.0.borrow_mut() = left;
        for Orphan { id, through, .. } in ended {
            if !self.ops.borrow().is_open(id) {
                continue;
            }
            let through = match what {
                End::Interface { broken: true, .. } => vec![Through::Interface],
                _ => through,
            };
            for op in self.with_ops(|ops| ops.fail(&[id], error, false)) {
                self.hold(op, through.clone());
            }
        }
    }

    /// Keeps the memory of an operation without an endpoint that has ended while the provider may still access it.
    pub(crate) fn hold_orphan(&self, op: Unfinished<LocalBuffer>) {
        let orphans = self.orphans.0.borrow();
        let through = orphans.iter().find(|orphan| orphan.id == op.id()).map(|o| o.through.clone());
        drop(orphans);
        self.hold(op, through.unwrap_or_else(|| vec![Through::Interface]));
    }

    /// Checks whether an operation without an endpoint is open; `None` while the tables are borrowed for a change.
    pub(crate) fn try_has_orphans(&self) -> Option<bool> {
        let (orphans, ops) = (self.orphans.0.try_borrow().ok()?, self.ops.try_borrow().ok()?);
        Some(orphans.iter().any(|orphan| ops.is_open(orphan.id)))
    }

    /// Returns the number of operations without an endpoint per circuit or interface.
    pub(crate) fn orphans_by_path(
        &self,
        circuit_name: impl Fn(u64) -> Option<String>,
    ) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for orphan in self.orphans.0.borrow().iter() {
            if self.ops.borrow().is_open(orphan.id) {
                let name = orphan.through.iter().find_map(|one| match one {
                    Through::Circuit(number) => circuit_name(*number),
                    _ => None,
                });
                let path = name.unwrap_or_else(|| self.interfaces[orphan.interface].path.clone());
                *counts.entry(path).or_default() += 1;
            }
        }
        counts
    }
}
