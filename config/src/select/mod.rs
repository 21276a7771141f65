//! The selection grammar: one for providers, domains, modules and connection modules.
//!
//! ```text
//! TIELINE_PROVIDERS=verbs,shm            these two, verbs preferred
//! TIELINE_DOMAINS=verbs:mlx5_*           globs: * ? [a-c], which match the whole name
//! TIELINE_PROVIDERS=^shm-cma,tcp         all but these
//! TIELINE_PROVIDERS=required:verbs,shm   an error if verbs is missing
//! TIELINE_PROVIDERS=verbs@^1.2           a version requirement (providers only)
//! ```
//!
//! A `^` in front of the list excludes all names of the list; a list either includes or excludes. For a name, an entry with
//! exactly that name takes precedence over globs; among globs the first match decides.

mod glob;
mod parse;

use semver::{Version, VersionReq};
use tieline_plugin_api::Status;

use crate::explain::{Record, Verdict};
use crate::{Error, Origin, Setting, nearest, shown, vars};
use glob::Glob;

/// The end of the verdict on a name that a list does not contain, behind the citation of the list.
pub const UNNAMED: &str = ", which does not name it";

/// A parsed list. The empty one admits everything.
#[derive(Clone, Debug)]
pub struct Selection {
    variable: String,
    setting: Setting,
    excludes: bool,
    quiet: bool,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    glob: Glob,
    required: bool,
    version: Option<VersionReq>,
}

impl Entry {
    fn admits_version(&self, version: Option<&Version>) -> bool {
        match (&self.version, version) {
            (None, _) => true,
            (Some(wanted), Some(version)) => wanted.matches(version),
            (Some(_), None) => false,
        }
    }
}

impl Selection {
    /// The list that admits everything.
    pub fn all(variable: &str) -> Selection {
        Selection {
            variable: variable.to_owned(),
            setting: Setting { value: String::new(), origin: Origin::Default },
            excludes: false,
            quiet: true,
            entries: Vec::new(),
        }
    }

    /// The same list without warnings, for a default.
    pub fn quiet(mut self) -> Selection {
        self.quiet = true;
        self
    }

    /// `TIELINE_PROVIDERS=^shm-cma (/etc/tieline/tieline.toml:3)`, for messages.
    pub fn cite(&self) -> String {
        let Setting { value, origin } = &self.setting;
        let value = shown(&self.variable, value);
        match origin {
            Origin::File(..) | Origin::Program => format!("{}={value} ({origin})", self.variable),
            Origin::Environment | Origin::Default => format!("{}={value}", self.variable),
        }
    }

    /// Whether the order of this list has a meaning.
    pub fn includes(&self) -> bool {
        !self.excludes && !self.entries.is_empty()
    }

    /// Whether the list contains exactly this name, not a glob that matches it.
    pub fn asks_for(&self, name: &str) -> bool {
        !self.excludes && self.entries.iter().any(|entry| entry.name == name)
    }

    /// Whether an excluding list names it.
    pub fn bars(&self, name: &str) -> bool {
        self.excludes && self.deciding(name).is_some()
    }

    /// Whether an including list does not contain it.
    pub fn passes_over(&self, name: &str) -> bool {
        self.includes() && self.deciding(name).is_none()
    }

    /// The preference of an admitted name, 0 first, or the reason why it is not admitted. A version applies only to
    /// providers.
    ///
    /// # Errors
    /// [`Verdict::Filtered`] with the variable that filters.
    pub fn admits(&self, name: &str, version: Option<&Version>) -> Result<usize, Verdict> {
        let filtered = |why: &str| Err(Verdict::Filtered { by: format!("{}{why}", self.cite()) });
        if self.entries.is_empty() {
            return Ok(0);
        }
        let Some((place, entry)) = self.deciding(name) else {
            return if self.excludes { Ok(0) } else { filtered(UNNAMED) };
        };
        match (self.excludes, entry.admits_version(version)) {
            (false, true) => Ok(place),
            (true, false) => Ok(0),
            (true, true) => filtered(""),
            (false, false) => match version {
                Some(version) => filtered(&format!("; its version is {version}")),
                None => filtered("; its version is not known"),
            },
        }
    }

    /// The entries of the list that nothing in `seen` matches, each with the nearest spelling. `looked` names the places
    /// that were searched. `seen` holds everything that exists, including refused names.
    pub fn unmatched(&self, seen: &[&str], looked: &str) -> Vec<Record> {
        if self.quiet {
            return Vec::new();
        }
        let missing = self.entries.iter().filter(|e| !seen.iter().any(|name| e.glob.fits(name)));
        missing
            .map(|entry| {
                let near = nearest(&entry.name, seen.iter().copied()).map(str::to_owned);
                let looked = format!("{looked}, for {}", self.cite());
                let verdict = Verdict::NotFound { looked, nearest: near };
                let mut record = Record::provider(entry.name.clone(), verdict);
                if let Some((domain, module)) = entry.name.rsplit_once('/') {
                    record.provider = provider_of(domain);
                    record.domain = Some(domain.to_owned());
                    record.module = Some(module.to_owned());
                } else if self.variable == vars::DOMAINS {
                    record.provider = provider_of(&entry.name);
                    record.domain = Some(entry.name.clone());
                }
                record
            })
            .collect()
    }

    /// Whether one of `usable` matches every `required:` entry. `reason` returns the reason why a name is missing.
    ///
    /// # Errors
    /// The missing name, and the reason.
    pub fn check_required(
        &self,
        usable: &[&str],
        reason: impl Fn(&str) -> Option<String>,
    ) -> Result<(), Error> {
        let missing =
            |entry: &&Entry| entry.required && !usable.iter().any(|name| entry.glob.fits(name));
        let Some(entry) = self.entries.iter().find(missing) else { return Ok(()) };
        let near = nearest(&entry.name, usable.iter().copied());
        let why = reason(&entry.name).unwrap_or_else(|| match usable {
            [] => "nothing was found".to_owned(),
            names => format!("there are only {}", names.join(", ")),
        });
        let fix = match near {
            Some(near) => {
                format!("did you mean {near}? Otherwise make it available, or drop `required:`")
            }
            None => "make it available, or drop `required:`".to_owned(),
        };
        let error = Error::new(
            Status::NoDevice,
            format!("{} is required by {} and cannot be used", entry.name, self.cite()),
            why,
            fix,
        );
        Err(error.about(&self.variable, self.setting.clone()))
    }

    /// The entry that decides about a name, and its place in the list.
    fn deciding(&self, name: &str) -> Option<(usize, &Entry)> {
        let entries = || self.entries.iter().enumerate();
        entries()
            .find(|(_, e)| e.name == name)
            .or_else(|| entries().find(|(_, e)| e.glob.fits(name)))
    }
}

/// `verbs` for `verbs:mlx5_0`: a domain's name begins with its provider's.
fn provider_of(domain: &str) -> String {
    domain.split(':').next().unwrap_or(domain).to_owned()
}

#[cfg(test)]
mod tests;
