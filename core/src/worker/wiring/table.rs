//! The circuits of a worker, by number. Tests count the accesses.

use super::Circuit;
use std::collections::BTreeMap;
use tieline_order::slab::look;

#[derive(Default)]
pub(super) struct Table(BTreeMap<u64, Circuit>);

impl Table {
    pub(super) fn get(&self, number: &u64) -> Option<&Circuit> {
        look();
        self.0.get(number)
    }

    pub(super) fn get_mut(&mut self, number: &u64) -> Option<&mut Circuit> {
        look();
        self.0.get_mut(number)
    }

    pub(super) fn insert(&mut self, number: u64, circuit: Circuit) -> Option<Circuit> {
        look();
        self.0.insert(number, circuit)
    }

    pub(super) fn remove(&mut self, number: &u64) -> Option<Circuit> {
        look();
        self.0.remove(number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&u64, &Circuit)> {
        self.0.iter().inspect(|_| look())
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Circuit> {
        self.0.values().inspect(|_| look())
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Circuit> {
        self.0.values_mut().inspect(|_| look())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all circuits.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Circuit> + use<> {
        std::mem::take(&mut self.0).into_values()
    }
}
