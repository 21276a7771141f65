//! Errors: the event, its reason, and the remedy.

use crate::Setting;
use std::fmt;
use tieline_plugin_api::{Failure, Status};

/// The extent of a failure: the object that has ended. The same status may mean one refused call, or the end of everything on a
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Only this call, or this operation.
    Call,
    /// The connection and all operations on it.
    Connection,
    /// The worker, because this process closed it.
    Worker,
    /// The context, because its progress thread has stopped, or because this process is a forked child, which cannot use the
    /// context.
    Context,
}

/// A failure with its event, and its reason and remedy if they are known. [`Error::from_status`] allocates no memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    status: Status,
    facts: Option<Box<Facts>>,
}

#[derive(Clone, PartialEq, Eq)]
struct Facts {
    what: String,
    why: String,
    fix: String,
    scope: Scope,
    setting: Option<(String, Setting)>,
    /// The index of a list's descriptor.
    index: Option<usize>,
}

impl Error {
    /// Makes an error from its three facts.
    #[must_use]
    pub fn new(
        status: Status,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Error {
        let (what, why, fix) = (what.into(), why.into(), fix.into());
        let facts = Facts { what, why, fix, scope: Scope::Call, setting: None, index: None };
        Error { status, facts: Some(Box::new(facts)) }
    }

    /// Makes an error with only a status, whose text is the event.
    #[inline]
    #[must_use]
    pub const fn from_status(status: Status) -> Error {
        Error { status, facts: None }
    }

    /// Returns the same error with this scope, unless the present scope is wider.
    #[must_use]
    pub fn of(mut self, scope: Scope) -> Error {
        let facts = self.facts_mut();
        facts.scope = facts.scope.max(scope);
        self
    }

    /// Returns the facts, which an error with only a status gets by this call.
    fn facts_mut(&mut self) -> &mut Facts {
        self.facts.get_or_insert_with(|| {
            Box::new(Facts {
                what: self.status.text().to_owned(),
                why: String::new(),
                fix: String::new(),
                scope: Scope::Call,
                setting: None,
                index: None,
            })
        })
    }

    /// Returns the same error, with the setting that caused it. An error with only a status is returned unchanged.
    #[must_use]
    pub fn about(mut self, name: &str, setting: Setting) -> Error {
        if let Some(facts) = &mut self.facts {
            facts.setting = Some((name.to_owned(), setting));
        }
        self
    }

    /// Returns the same error, as that of the descriptor with this index in a list.
    #[must_use]
    pub fn at_index(mut self, index: Option<usize>) -> Error {
        if self.index() != index {
            self.facts_mut().index = index;
        }
        self
    }

    /// Returns the index of the descriptor that has failed, if the operation was a list. If several descriptors have failed, this is
    /// the lowest index. `None`: the operation was no list, or the whole list failed, for example with its endpoint.
    #[must_use]
    pub fn index(&self) -> Option<usize> {
        self.facts.as_ref()?.index
    }

    /// Returns the status of the failure, as it crosses the provider ABI.
    #[inline]
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the object that the failure has ended.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.facts.as_ref().map_or(Scope::Call, |f| f.scope)
    }

    /// Returns the setting that caused the failure, with its name, if there is one. The name is empty for a malformed line of a
    /// file.
    #[must_use]
    pub fn setting(&self) -> Option<(&str, &Setting)> {
        let (name, setting) = self.facts.as_ref()?.setting.as_ref()?;
        Some((name, setting))
    }

    /// Returns the text of the event.
    #[must_use]
    pub fn what(&self) -> &str {
        self.facts.as_ref().map_or(self.status.text(), |f| &f.what)
    }

    /// Returns the text of the reason; empty if there is none.
    #[must_use]
    pub fn why(&self) -> &str {
        self.facts.as_ref().map_or("", |f| &f.why)
    }

    /// Returns the text of the remedy; empty if there is none.
    #[must_use]
    pub fn fix(&self) -> &str {
        self.facts.as_ref().map_or("", |f| &f.fix)
    }
}

impl From<Status> for Error {
    #[inline]
    fn from(status: Status) -> Error {
        Error::from_status(status)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        if failure.text.is_empty() {
            Error::from_status(failure.status)
        } else {
            Error::new(failure.status, failure.text, failure.status.text(), "")
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.index() {
            write!(f, "descriptor {index} of a list: ")?;
        }
        f.write_str(self.what())?;
        if !self.why().is_empty() {
            write!(f, ": {}", self.why())?;
        }
        if !self.fix().is_empty() {
            write!(f, "; {}", self.fix())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error[{:?}]({self})", self.status)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_descriptor_names_its_index_and_keeps_its_other_facts() {
        let plain = Error::new(Status::OutOfRange, "a put", "it has 8 bytes", "use fewer");
        assert_eq!((plain.index(), Error::from_status(Status::Io).index()), (None, None));
        for index in [0, 7, u32::MAX as usize - 1] {
            let error = plain.clone().at_index(Some(index));
            assert_eq!((error.index(), error.status()), (Some(index), Status::OutOfRange));
            assert_eq!(error.to_string(), format!("descriptor {index} of a list: {plain}"));
            assert_eq!(error.of(Scope::Connection).index(), Some(index));
        }
        assert_eq!(plain.clone().at_index(Some(3)).at_index(None), plain);
        assert_eq!(size_of::<Error>(), 16, "an error is returned in two registers");
    }
}
