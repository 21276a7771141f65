//! Lists and notifications of a driven worker's endpoints. Each call takes the worker's lock once.

use super::abi::Belonging;
use super::endpoint::{DrivenEndpoint, DrivenKey};
use super::engine::Entered;
use super::request::{DrivenCounter, DrivenOutcome};
use crate::endpoint::{After, Descriptor, Endpoint, PreparedList};
use crate::region::Region;
use crate::request::Outcome;
use crate::sys::Span;
use crate::{Error, PostError};
use std::fmt;
use std::ops::Range;

/// One put or get of a list of a driven worker; see [`Descriptor`] and [`DrivenEndpoint::put_list`].
#[derive(Clone, Copy)]
pub struct DrivenDescriptor<'a> {
    local: Place<'a>,
    key: &'a DrivenKey,
    offset: u64,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Region(&'a Region, usize, usize),
    Raw(Span),
}

impl<'a> DrivenDescriptor<'a> {
    /// Describes a transfer between a range of a local region and the peer's region at `offset`. The ranges are checked when the list
    /// is posted or prepared.
    #[must_use]
    pub fn new(
        local: &'a Region,
        range: Range<usize>,
        key: &'a DrivenKey,
        offset: u64,
    ) -> DrivenDescriptor<'a> {
        DrivenDescriptor { local: Place::Region(local, range.start, range.end), key, offset }
    }

    /// Describes a transfer of memory by its address. The caller upholds the contract of [`Descriptor::raw`].
    pub(super) fn with_memory(
        memory: Span,
        key: &'a DrivenKey,
        offset: u64,
    ) -> DrivenDescriptor<'a> {
        DrivenDescriptor { local: Place::Raw(memory), key, offset }
    }

    fn under<'b>(&self, entered: &'b Entered<'_>) -> Result<Descriptor<'b>, Error>
    where
        'a: 'b,
    {
        let (key, offset) = (self.key.inner.under(entered)?, self.offset);
        Ok(match self.local {
            Place::Region(region, start, end) => Descriptor::new(region, start..end, key, offset),
            Place::Raw(memory) => Descriptor::with_memory(memory, key, offset),
        })
    }
}

impl fmt::Debug for DrivenDescriptor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrivenDescriptor(at {} of the peer)", self.offset)
    }
}

/// A prepared list of a driven worker; see [`PreparedList`]. Any thread may post it.
pub struct DrivenList {
    inner: Belonging<PreparedList>,
    len: usize,
}

impl DrivenList {
    /// Returns the number of descriptors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Checks whether the list has no descriptors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for DrivenList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrivenList({} descriptors)", self.len)
    }
}

/// The operations that a notification follows; see [`After`] and [`DrivenEndpoint::notify`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum DrivenAfter<'a> {
    /// Everything that was posted to the endpoint before the notification; see [`After::Everything`].
    Everything,
    /// These operations of the endpoint's worker.
    Operations(&'a [&'a DrivenOutcome]),
    /// The operations with these numbers ([`DrivenRequest::number`](super::DrivenRequest::number)).
    Numbers(&'a [u64]),
    /// The operations that this counter counts; see [`After::Counted`].
    Counted(&'a DrivenCounter),
}

impl DrivenEndpoint {
    /// Posts many puts with one call and one completion, as [`Endpoint::put_list`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_list`]; [`PostError::Correct`] also for a key of another worker.
    pub fn put_list(&self, list: &[DrivenDescriptor<'_>]) -> Result<DrivenOutcome, PostError> {
        self.post_descriptors(list, Endpoint::put_list)
    }

    /// Posts many gets with one call and one completion, as [`Endpoint::get_list`] does.
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::put_list`].
    pub fn get_list(&self, list: &[DrivenDescriptor<'_>]) -> Result<DrivenOutcome, PostError> {
        self.post_descriptors(list, Endpoint::get_list)
    }

    /// Checks a list of puts, and prepares it for [`DrivenEndpoint::post_list`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::prepare_put_list`]; [`PostError::Correct`] also for a key of another worker.
    pub fn prepare_put_list(&self, list: &[DrivenDescriptor<'_>]) -> Result<DrivenList, PostError> {
        self.prepare(list, Endpoint::prepare_put_list)
    }

    /// Checks a list of gets, and prepares it for [`DrivenEndpoint::post_list`].
    ///
    /// # Errors
    /// The errors of [`DrivenEndpoint::prepare_put_list`].
    pub fn prepare_get_list(&self, list: &[DrivenDescriptor<'_>]) -> Result<DrivenList, PostError> {
        self.prepare(list, Endpoint::prepare_get_list)
    }

    /// Posts a list that was prepared on this endpoint, as [`Endpoint::post_list`] does. Several threads may post one list.
    ///
    /// # Errors
    /// The errors of [`Endpoint::post_list`]; [`PostError::Correct`] also for a list of another worker.
    pub fn post_list(&self, list: &DrivenList) -> Result<DrivenOutcome, PostError> {
        let held = self.enter()?;
        let outcome = held.post_list(list.inner.under(&held.entered)?)?;
        Ok(DrivenOutcome::new(&held.entered, outcome))
    }

    /// Sends a message when other operations are complete at the target, as [`Endpoint::notify`] does.
    ///
    /// # Errors
    /// The errors of [`Endpoint::notify`].
    pub fn notify(
        &self,
        after: DrivenAfter<'_>,
        id: u16,
        header: u64,
        payload: &[u8],
    ) -> Result<DrivenOutcome, PostError> {
        let held = self.enter()?;
        let notify = |after: After<'_>| held.notify(after, id, header, payload);
        let outcome = match after {
            DrivenAfter::Everything => notify(After::Everything),
            DrivenAfter::Numbers(numbers) => notify(After::Numbers(numbers)),
            DrivenAfter::Counted(counter) => {
                notify(After::Counted(counter.inner.under(&held.entered)?))
            }
            DrivenAfter::Operations(outcomes) => {
                let mut numbers = Vec::with_capacity(outcomes.len());
                for outcome in outcomes {
                    if let DrivenOutcome::Pending(request) = outcome {
                        numbers.push(request.inner.under(&held.entered)?.number());
                    }
                }
                notify(After::Numbers(&numbers))
            }
        };
        Ok(DrivenOutcome::new(&held.entered, outcome?))
    }

    fn post_descriptors(
        &self,
        list: &[DrivenDescriptor<'_>],
        post: impl FnOnce(&Endpoint, &[Descriptor<'_>]) -> Result<Outcome, PostError>,
    ) -> Result<DrivenOutcome, PostError> {
        let held = self.enter()?;
        let outcome = post(&held, &descriptors(list, &held.entered)?)?;
        Ok(DrivenOutcome::new(&held.entered, outcome))
    }

    fn prepare(
        &self,
        list: &[DrivenDescriptor<'_>],
        prepare: impl FnOnce(&Endpoint, &[Descriptor<'_>]) -> Result<PreparedList, PostError>,
    ) -> Result<DrivenList, PostError> {
        let held = self.enter()?;
        let prepared = prepare(&held, &descriptors(list, &held.entered)?)?;
        Ok(DrivenList { len: prepared.len(), inner: Belonging::new(&held.entered, prepared) })
    }
}

/// Returns the ordinary descriptors. An error names the index of the descriptor whose key is of another worker.
fn descriptors<'a>(
    list: &[DrivenDescriptor<'a>],
    entered: &'a Entered<'_>,
) -> Result<Vec<Descriptor<'a>>, Error> {
    let one = |(index, one): (usize, &DrivenDescriptor<'a>)| {
        one.under(entered).map_err(|error| error.at_index(Some(index)))
    };
    list.iter().enumerate().map(one).collect()
}
