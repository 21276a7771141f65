//! The selection grammar of providers, domains, modules and connection modules. Only providers have version requirements.
//!
//! ```text
//! TIELINE_PROVIDERS=verbs,shm            these two, verbs preferred
//! TIELINE_DOMAINS=verbs:mlx5_*           globs: * ? [a-c], which match the whole name
//! TIELINE_PROVIDERS=^shm-cma,tcp         all but these
//! TIELINE_PROVIDERS=required:verbs,shm   an error if verbs is missing
//! TIELINE_PROVIDERS=verbs@^1.2           a version requirement (providers only)
//! ```
//!
//! A `^` in front of the list excludes all names of the list; a list either includes or excludes. An entry that equals the name
//! takes precedence over globs; among globs the first match decides.

mod glob;
mod parse;

use semver::{Version, VersionReq};
use tieline_plugin_api::Status;

use crate::{Error, Origin, Setting, nearest, shown, vars};
use glob::Glob;
use tieline_explain::{Record, Verdict};

/// The end of the verdict on a name that a list does not contain. A citation of the list precedes this text.
pub const UNNAMED: &str = ", which does not name it";

/// A parsed list. An empty list admits every name.
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
    /// Returns a list that admits every name.
    pub fn all(variable: &str) -> Selection {
        Selection {
            variable: variable.to_owned(),
            setting: Setting { value: String::new(), origin: Origin::Default },
            excludes: false,
            quiet: true,
            entries: Vec::new(),
        }
    }

    /// Returns the same list without warnings, for a default.
    pub fn quiet(mut self) -> Selection {
        self.quiet = true;
        self
    }

    /// Returns a citation for messages: `TIELINE_PROVIDERS=^shm-cma (/etc/tieline/tieline.toml:3)`.
    pub fn cite(&self) -> String {
        let Setting { value, origin } = &self.setting;
        let value = shown(&self.variable, value);
        match origin {
            Origin::File(..) | Origin::Program => format!("{}={value} ({origin})", self.variable),
            Origin::Environment | Origin::Default => format!("{}={value}", self.variable),
        }
    }

    /// Checks whether the order of this list has a meaning, as it has for an including list.
    pub fn includes(&self) -> bool {
        !self.excludes && !self.entries.is_empty()
    }

    /// Checks whether this including list contains exactly this name, and not only a glob that matches the name.
    pub fn asks_for(&self, name: &str) -> bool {
        !self.excludes && self.entries.iter().any(|entry| entry.name == name)
    }

    /// Checks whether an excluding list has an entry that matches this name.
    pub fn bars(&self, name: &str) -> bool {
        self.excludes && self.deciding(name).is_some()
    }

    /// Checks whether an including list has no entry that matches this name.
    pub fn passes_over(&self, name: &str) -> bool {
        self.includes() && self.deciding(name).is_none()
    }

    /// Returns the preference of an admitted name, 0 first, or the reason why the name is not admitted. `version` applies only to
    /// providers.
    ///
    /// # Errors
    /// Returns [`Verdict::Filtered`] with the variable that excludes the name.
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

    /// Returns the entries of the list that match nothing in `seen`, each with the nearest spelling. `looked` names the places that
    /// were searched. `seen` holds the names that were found, also those that the list itself excludes. The list of a default
    /// returns no entries.
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

    /// Checks that every `required:` entry matches one of `usable`. `reason` returns the reason why a name is missing.
    ///
    /// # Errors
    /// Returns the missing name and the reason.
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

    /// Returns the entry that decides about a name, and its position in the list.
    fn deciding(&self, name: &str) -> Option<(usize, &Entry)> {
        let entries = || self.entries.iter().enumerate();
        entries()
            .find(|(_, e)| e.name == name)
            .or_else(|| entries().find(|(_, e)| e.glob.fits(name)))
    }
}

/// Returns the provider of a domain, which is the beginning of the domain's name: `verbs` for `verbs:mlx5_0`.
fn provider_of(domain: &str) -> String {
    domain.split(':').next().unwrap_or(domain).to_owned()
}

#[cfg(test)]
mod tests;
