//! The registrations of an operation.

use std::ops::Range;
use tieline::Region;

/// Registrations that end with an operation. Most operations have at most one, which takes no memory of its own.
#[derive(Default)]
pub(crate) struct Regions {
    first: Option<Region>,
    rest: Vec<Region>,
}

impl Regions {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn push(&mut self, region: Region) {
        match self.first {
            None => self.first = Some(region),
            Some(_) => self.rest.push(region),
        }
    }

    /// Takes the last registration.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Region> {
        self.rest.pop().or_else(|| self.first.take())
    }

    /// Moves all registrations of another operation to the end.
    pub(crate) fn append(&mut self, other: Regions) {
        other.first.into_iter().chain(other.rest).for_each(|region| self.push(region));
    }

    /// Calls a function with all registrations, each with its whole range.
    pub(crate) fn with_pieces<R>(&self, body: impl FnOnce(&[(&Region, Range<usize>)]) -> R) -> R {
        let Some(first) = &self.first else { return body(&[]) };
        if self.rest.is_empty() {
            return body(&[(first, 0..first.len())]);
        }
        let all = std::iter::once(first).chain(&self.rest);
        let pieces: Vec<_> = all.map(|region| (region, 0..region.len())).collect();
        body(&pieces)
    }
}
