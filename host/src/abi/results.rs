//! Conversions of the results of provider calls.

use super::events::BATCH;
use crate::load::LoadedProvider;
use tieline_plugin_api::{Armed, Failure, Status};

/// Converts a poll's result. A provider that reports more events than the capacity has broken its contract: `ProviderFailed`.
#[inline]
pub(super) fn polled(count: i64) -> Result<usize, Status> {
    if count as u64 <= BATCH as u64 {
        return Ok(count as usize);
    }
    Err(impossible(count))
}

#[cold]
fn impossible(count: i64) -> Status {
    if count < 0 { Status::from_code(count as i32) } else { Status::ProviderFailed }
}

pub(super) fn armed(code: i32) -> Result<Armed, Status> {
    match code {
        0 => Ok(Armed::Sleep),
        1.. => Ok(Armed::Ready),
        _ => Err(Status::from_code(code)),
    }
}

/// Converts the result of `reachable`, with the provider's text.
pub(super) fn reached(provider: &LoadedProvider, code: i32) -> Result<(), Failure> {
    if code >= 0 {
        return Ok(());
    }
    provider.heard(code);
    Err(Failure::new(Status::from_code(code), provider.last_error()))
}
