//! The type of what a provider does not have.

use crate::provider::{Connector, Endpoint, Interface};
use crate::{Events, Failure, Status};

/// A placeholder for a part that a provider does not have: a domain without connection-only modules sets
/// `type Connector = Absent`.
#[derive(Debug)]
pub enum Absent {}

impl Interface for Absent {
    type Endpoint = Absent;
    const PRESENT: bool = false;
    fn address(&self) -> Vec<u8> {
        match *self {}
    }
    fn reachable(&self, _: &[u8]) -> Result<(), Failure> {
        match *self {}
    }
    fn connect(&self, _: &[u8], _: &[u8], _: u64) -> Result<Absent, Failure> {
        match *self {}
    }
    fn poll(&self, _: &mut Events<'_>) -> Result<(), Status> {
        match *self {}
    }
}

impl Endpoint for Absent {
    type Key = Absent;
}

impl Connector for Absent {
    const PRESENT: bool = false;
    fn address(&self) -> Vec<u8> {
        match *self {}
    }
    fn reachable(&self, _: &[u8]) -> Result<(), Failure> {
        match *self {}
    }
    fn send(&self, _: &[u8], _: &[u8]) -> Result<(), Status> {
        match *self {}
    }
    fn poll(&self, _: &mut Events<'_>) -> Result<(), Status> {
        match *self {}
    }
}
