//! The check of all settings, once all providers are known.

use tieline_plugin_api::Status;

use super::{Config, HIDDEN, Origin, Setting, nearest, upper, vars};
use crate::Error;

/// The maximum number of unknown names that are reported one by one.
const MOST_NAMES: usize = 32;

impl Config {
    /// Checks every value against its variable's kind, and every name against the known ones. `idle` lists the providers that were
    /// found but not loaded. The variables of these providers are not known, so names with their prefix are accepted, unless a
    /// loaded provider has a longer name that also fits. Returns the new warnings: at most one for each name, and a count in place
    /// of further unknown names when there are 32 warnings.
    ///
    /// # Errors
    /// Returns an error for a value that its variable does not accept and, with `TIELINE_STRICT`, for an unknown name.
    pub fn check(&self, idle: &[&str]) -> Result<Vec<String>, Error> {
        let strict = self.bool(vars::STRICT)?;
        let mut news = Vec::new();
        let mut untold = 0;
        for name in self.set.keys() {
            if self.is_selection(name) {
                let _ = self.selection(name)?;
            } else if let Some(error) = self.refused(name) {
                return Err(error);
            }
            if self.is_known(name, idle) {
                news.extend(self.swallowed(name));
                continue;
            }
            if !strict && (news.len() == MOST_NAMES || self.known().reported.contains(name)) {
                untold += usize::from(self.known_mut().reported.insert(name.clone()));
                continue;
            }
            let near = self.nearest_name(name);
            // The value of a misspelt secret variable is the secret.
            let hides = near.as_deref() == Some(vars::SECRET);
            let cited = match hides {
                true => format!("{name}={HIDDEN} ({})", self.origin(name)),
                false => self.cite(name),
            };
            if strict {
                let fix = match near {
                    Some(near) => {
                        format!("did you mean {near}? If not, unset it or {}", vars::STRICT)
                    }
                    None => {
                        format!("unset it or {}; `tieline config` lists the names", vars::STRICT)
                    }
                };
                let error = Error::new(
                    Status::Invalid,
                    format!("{cited} is not known"),
                    format!("no variable has that name and {} holds", self.cite(vars::STRICT)),
                    fix,
                );
                let setting = Setting { value: HIDDEN.into(), origin: self.origin(name) };
                return Err(match hides {
                    true => error.about(name, setting),
                    false => self.blamed(name, error),
                });
            }
            let hint = match near {
                Some(near) => format!("did you mean {near}?"),
                None => "it has no effect".to_owned(),
            };
            if self.known_mut().reported.insert(name.clone()) {
                news.push(format!("{cited} is not known; {hint}"));
            }
        }
        if untold > 0 {
            news.push(format!("{untold} more names are not known"));
        }
        self.known_mut().warnings.extend(news.iter().cloned());
        Ok(news)
    }

    /// Returns the warning for a launcher's variable that the program or a file sets, which has no effect. Variables of a launcher
    /// are read only from the environment, before the configuration exists.
    fn swallowed(&self, name: &str) -> Option<String> {
        let elsewhere =
            self.set.get(name)?.iter().find(|said| said.origin != Origin::Environment)?;
        let news =
            vars::is_of_the_launcher(name) && self.known_mut().reported.insert(name.to_owned());
        news.then(|| {
            format!(
                "{name} ({}) has no effect: it is read from the environment alone",
                elsewhere.origin
            )
        })
    }

    fn is_known(&self, name: &str, idle: &[&str]) -> bool {
        let known = self.known();
        if vars::CORE.iter().any(|var| var.name == name && !var.is_family())
            || known.declared.contains_key(name)
            || known.asked.contains(name)
            || vars::is_of_the_launcher(name)
        {
            return true;
        }
        // The provider with the longest matching name owns the variable: shm-cma, not shm, reads
        // TIELINE_SHM_CMA_...
        let of_family = vars::FAMILIES.into_iter().find_map(|family| name.strip_prefix(family));
        let stem = of_family.or(name.strip_prefix("TIELINE_")).unwrap_or(name);
        let fits = |provider: &str| match stem.strip_prefix(upper(provider).as_str()) {
            Some(rest) => rest.starts_with('_') || (of_family.is_some() && rest.is_empty()),
            None => false,
        };
        let longest_idle = idle.iter().filter(|p| fits(p)).map(|p| p.len()).max();
        let longest_loaded = known.providers.iter().filter(|p| fits(p)).map(|p| p.len()).max();
        longest_idle > longest_loaded
    }

    fn nearest_name(&self, name: &str) -> Option<String> {
        let known = self.known();
        let stem = |name: &str| name.strip_prefix("TIELINE_").unwrap_or(name).to_owned();
        let names: Vec<String> = vars::CORE
            .iter()
            .filter(|var| !var.is_family())
            .map(|var| var.name)
            .chain(known.declared.keys().map(String::as_str))
            .chain(known.asked.iter().map(String::as_str))
            .map(stem)
            .collect();
        nearest(&stem(name), names.iter().map(String::as_str)).map(|near| format!("TIELINE_{near}"))
    }
}
