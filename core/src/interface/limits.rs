//! The limits of one endpoint of a provider: the lesser of the module's limits and the endpoint's own.

use super::InterfaceSlot;
use crate::{Error, Status};
use tieline_host::LEAST_PACKED;
use tieline_host::abi::RawEndpoint;
use tieline_plugin_api::abi::{EndpointLimits, ModuleAttr};
use tieline_plugin_api::caps;

/// The limits of one endpoint. For `max_put` and `max_get`, 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneLimits {
    pub(crate) max_short: usize,
    pub(crate) max_packed: usize,
    /// The maximum length of zero-copy messages; 0: not supported.
    pub(crate) max_zcopy: usize,
    pub(crate) max_put: usize,
    pub(crate) max_get: usize,
    /// The maximum length of puts whose bytes are copied before the call returns; 0: not supported.
    pub(crate) max_short_put: usize,
}

impl LaneLimits {
    /// Returns the limits of every endpoint of a module, unless the endpoint reports its own.
    pub(crate) fn from_module(attr: &ModuleAttr) -> LaneLimits {
        LaneLimits {
            max_short: attr.max_short,
            max_packed: if attr.caps & caps::AM_PACKED == 0 { 0 } else { attr.max_packed },
            max_zcopy: if attr.caps & caps::AM_ZCOPY == 0 { 0 } else { attr.max_zcopy },
            max_put: attr.max_put,
            max_get: attr.max_get,
            max_short_put: if attr.caps & caps::PUT == 0 { 0 } else { attr.max_short_put },
        }
        .within_packed()
    }

    /// Returns the limits for messages that may take either of two lanes.
    pub(crate) fn for_messages_of_either(self, other: LaneLimits) -> LaneLimits {
        LaneLimits {
            max_short: self.max_short.min(other.max_short),
            max_packed: self.max_packed.min(other.max_packed),
            ..self
        }
    }

    /// Limits inline messages to the packed limit, if the module packs messages: the application sees one maximum length and may
    /// pack a message of that length.
    fn within_packed(self) -> LaneLimits {
        let most = if self.max_packed == 0 { usize::MAX } else { self.max_packed };
        LaneLimits { max_short: self.max_short.min(most), ..self }
    }

    /// Reduces the limits to those that this endpoint reports.
    fn and(self, own: &EndpointLimits) -> LaneLimits {
        let message = |module: usize, own: usize| if own == 0 { module } else { module.min(own) };
        let memory =
            |module: usize, own: usize| if module == 0 { own } else { message(module, own) };
        LaneLimits {
            max_short: message(self.max_short, own.max_short),
            max_packed: message(self.max_packed, own.max_packed),
            max_zcopy: message(self.max_zcopy, own.max_zcopy),
            max_put: memory(self.max_put, own.max_put),
            max_get: memory(self.max_get, own.max_get),
            max_short_put: message(self.max_short_put, own.max_put),
        }
        .within_packed()
    }
}

impl InterfaceSlot {
    /// Queries the limits of an endpoint that has just been connected; if the query fails, those of its module count. Fails for an
    /// endpoint that cannot carry the library's own messages.
    pub(crate) fn limits(&self, raw: &RawEndpoint) -> Result<LaneLimits, Error> {
        let own = raw.limits().unwrap_or_else(|code| {
            self.provider.heard(code);
            EndpointLimits::empty()
        });
        let limits = LaneLimits::from_module(&self.attr).and(&own);
        if self.attr.caps & caps::AM_PACKED != 0 && limits.max_packed < LEAST_PACKED {
            return Err(Error::new(
                Status::Unsupported,
                format!(
                    "an endpoint of {} carries messages of {} bytes",
                    self.path, limits.max_packed
                ),
                format!("the library needs {LEAST_PACKED}"),
                "",
            ));
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lesser_counts_and_0_is_what_the_module_says() {
        let (max_packed, max_zcopy) = (2048, 4096);
        let (max_put, max_get, max_short_put) = (0, 1000, 96);
        let module =
            LaneLimits { max_short: 64, max_packed, max_zcopy, max_put, max_get, max_short_put };
        assert_eq!(module.and(&EndpointLimits::empty()), module);
        let own = EndpointLimits {
            max_short: 8,
            max_packed: 4096,
            max_zcopy: 100,
            max_put: 10,
            max_get: 2000,
            ..EndpointLimits::empty()
        };
        let least =
            LaneLimits { max_short: 8, max_zcopy: 100, max_put: 10, max_short_put: 10, ..module };
        assert_eq!(module.and(&own), least);
        let without = LaneLimits { max_short: 0, ..module };
        assert_eq!(without.and(&own).max_short, 0, "what the module does not do no endpoint does");
        let packs = EndpointLimits { max_packed: 40, ..EndpointLimits::empty() };
        assert_eq!(module.and(&packs).max_short, 40, "a message of any length may be packed");
        let attr = ModuleAttr { max_zcopy: 9, ..ModuleAttr::empty() };
        assert_eq!(LaneLimits::from_module(&attr).max_zcopy, 0, "it does not say that it gathers");
    }

    #[test]
    fn a_module_carries_what_it_says_that_it_does() {
        let attr = ModuleAttr {
            caps: caps::AM_SHORT | caps::AM_PACKED | caps::AM_ZCOPY | caps::PUT,
            max_short: 100,
            max_packed: 80,
            max_zcopy: 900,
            max_put: 7,
            max_get: 8,
            max_short_put: 6,
            ..ModuleAttr::empty()
        };
        let all = LaneLimits {
            max_short: 80,
            max_packed: 80,
            max_zcopy: 900,
            max_put: 7,
            max_get: 8,
            max_short_put: 6,
        };
        let of = |caps| LaneLimits::from_module(&ModuleAttr { caps, ..attr });
        assert_eq!(of(attr.caps), all);
        let less = LaneLimits { max_short: 100, max_packed: 0, ..all };
        assert_eq!(of(attr.caps & !caps::AM_PACKED), less, "it packs none");
        assert_eq!(of(attr.caps & !caps::AM_ZCOPY), LaneLimits { max_zcopy: 0, ..all });
        assert_eq!(of(attr.caps & !caps::PUT), LaneLimits { max_short_put: 0, ..all });
        let other = LaneLimits { max_short: 50, max_packed: 90, max_zcopy: 1, max_put: 1, ..all };
        let either = all.for_messages_of_either(other);
        assert_eq!(either, LaneLimits { max_short: 50, ..all }, "only messages go by either");
    }
}
