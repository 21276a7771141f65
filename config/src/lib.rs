//! Configuration: all settings, their origins, and the effective values.
//!
//! A value comes from the program (`Context::builder().set(..)`), else the environment, else a file, else the variable's default;
//! every value records its origin. Files are `/etc/tieline/tieline.toml`, the user's `tieline/tieline.toml` under
//! `$XDG_CONFIG_HOME` or `~/.config`, and the file that `TIELINE_CONFIG` names; a later file overrides an earlier one. An empty
//! value counts as not set. A process that runs with raised rights does not read the user's file, and ignores the environment
//! variables that name a file or a directory ([`vars::chooses_a_place`]).
//!
//! ```text
//! let config = Config::builder().process_environment().set("TIELINE_QUEUE_BYTES", "1m").build()?;
//! assert_eq!(config.size(vars::QUEUE_BYTES)?, 1 << 20);
//! config.declare("shm", provider_variables);        // when its entry function declares them
//! config.uses("shm");                               // once it has started
//! let warnings = config.check(&["verbs"])?;         // verbs: found, but not loaded
//! ```

mod builder;
mod check;
mod files;
mod markdown;
mod nearest;
mod secret;
pub mod select;
mod units;
pub mod vars;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tieline_plugin_api::config::{self, Accepts};
use tieline_plugin_api::{Status, config_kind};

use select::Selection;
use tieline_explain::{Error, Origin, Setting};

pub use builder::ConfigBuilder;
pub use nearest::nearest;
pub use tieline_explain::journal::ReportTo;
pub use tieline_explain::{FileView, ValueView};
pub use tieline_plugin_api::abi::Declared;
pub use units::Kind;

pub use markdown::{markdown, settings_file};
pub use tieline_explain::upper;

/// All settings and all variables. The users of a configuration share one object; `declare` adds variables while providers are
/// loaded.
#[derive(Debug)]
pub struct Config {
    /// The settings of each name, strongest first.
    set: BTreeMap<String, Vec<Setting>>,
    files: Vec<FileView>,
    known: RwLock<Known>,
}

/// State that is added after the values were read.
#[derive(Debug, Default)]
struct Known {
    /// The declaration of each name, with its provider.
    declared: BTreeMap<String, (String, Declared)>,
    /// The providers that are in use.
    providers: BTreeSet<String>,
    /// The names of families (priorities, connection lists) that were looked up.
    asked: BTreeSet<String>,
    /// The names for which a warning was reported.
    reported: BTreeSet<String>,
    warnings: Vec<String>,
}

impl Config {
    /// Returns an empty builder.
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder::default()
    }

    /// Returns the effective value, including the default; `None` if the variable is not set and has no default.
    pub fn get(&self, name: &str) -> Option<String> {
        let value = match self.setting(name) {
            Some(setting) => setting.value.clone(),
            // An unreadable file was an error when the context was opened.
            None if name == vars::SECRET => self.secret().ok().flatten()?,
            None => self.default_of(name)?,
        };
        Some(value).filter(|value| !value.is_empty())
    }

    /// Returns the origin of the effective value.
    pub fn origin(&self, name: &str) -> Origin {
        match self.setting(name) {
            Some(setting) => setting.origin.clone(),
            None if name == vars::SECRET => self.origin(vars::SECRET_FILE),
            None => Origin::Default,
        }
    }

    /// Returns a description of the origin; `None` for a default.
    pub fn origin_text(&self, name: &str) -> Option<String> {
        Some(self.origin(name)).filter(|it| *it != Origin::Default).map(|it| it.to_string())
    }

    /// Returns a citation for messages: `TIELINE_QUEUE_BYTES=1m (environment)`.
    pub fn cite(&self, name: &str) -> String {
        let value = self.get(name).unwrap_or_default();
        format!("{name}={} ({})", shown(name, &value), self.origin(name))
    }

    /// Returns a text; empty if the variable is not set and has no default.
    pub fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default()
    }

    /// Returns a number of bytes; `inf` is `usize::MAX`.
    ///
    /// # Errors
    /// Returns an error that contains the variable, its value, its origin, and the accepted values. The other typed getters return
    /// the same kind of error.
    pub fn size(&self, name: &str) -> Result<usize, Error> {
        tieline_plugin_api::units::size(&self.text(name))
            .ok_or_else(|| self.not_a(name, &Kind::SIZE.accepted()))
    }

    /// Returns a number; `inf` is `usize::MAX`.
    pub fn count(&self, name: &str) -> Result<usize, Error> {
        let count = tieline_plugin_api::units::count(&self.text(name));
        let count = count.ok_or_else(|| self.not_a(name, &Kind::COUNT.accepted()))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Returns whether the variable is on.
    pub fn bool(&self, name: &str) -> Result<bool, Error> {
        tieline_plugin_api::units::boolean(&self.text(name))
            .ok_or_else(|| self.not_a(name, &Kind::BOOL.accepted()))
    }

    /// Returns a duration; `inf` is [`Duration::MAX`].
    pub fn duration(&self, name: &str) -> Result<Duration, Error> {
        tieline_plugin_api::units::duration(&self.text(name))
            .ok_or_else(|| self.not_a(name, &Kind::DURATION.accepted()))
    }

    /// Returns the destination of the context's report, if one is set.
    ///
    /// # Errors
    /// Returns an error for a word that is neither `stderr` nor a path. The word would otherwise become a file of that name in the
    /// current directory.
    pub fn report_to(&self) -> Result<Option<ReportTo>, Error> {
        let text = self.text(vars::REPORT);
        match ReportTo::read(&text) {
            None if !text.is_empty() => Err(self.not_a(
                vars::REPORT,
                "it is stderr, or a path with a / in it, such as ./report.%p",
            )),
            to => Ok(to),
        }
    }

    /// Returns the job's secret, from `TIELINE_SECRET`, else from the file that `TIELINE_SECRET_FILE` names.
    ///
    /// # Errors
    /// Returns an error for a file that cannot be read, is empty, is longer than 64 KiB, or has the wrong owner or mode. A file of
    /// this process's user must deny all access to others. A file of root must not be writable by others, and may be readable. A
    /// file of another user is refused.
    pub fn secret(&self) -> Result<Option<String>, Error> {
        if let Some(setting) = self.setting(vars::SECRET) {
            return Ok(Some(setting.value.clone()));
        }
        let file = self.text(vars::SECRET_FILE);
        if file.is_empty() {
            return Ok(None);
        }
        match secret::read(Path::new(&file)) {
            Ok((secret, warning)) => {
                let mut known = self.known_mut();
                let news = warning.filter(|text| !known.warnings.contains(text));
                known.warnings.extend(news);
                Ok(Some(secret))
            }
            Err((why, fix)) => {
                let error = Error::new(Status::Invalid, self.cite(vars::SECRET_FILE), why, fix);
                Err(self.blamed(vars::SECRET_FILE, error))
            }
        }
    }

    /// Returns the names of the variables that are set.
    pub fn names_set(&self) -> impl Iterator<Item = &str> {
        self.set.keys().map(String::as_str)
    }

    /// Returns each core variable and each set variable that has a value, with the result of [`Config::get`].
    pub fn all(&self) -> Vec<(String, String)> {
        let core = vars::CORE.iter().filter(|var| !var.is_family()).map(|var| var.name);
        let names: BTreeSet<&str> = core.chain(self.set.keys().map(String::as_str)).collect();
        names.into_iter().filter_map(|name| Some((name.to_owned(), self.get(name)?))).collect()
    }

    /// Makes the error for a value that a provider refuses, if the provider's text names a variable that is set.
    pub fn refused_by(&self, provider: &str, words: &str) -> Option<Error> {
        let mut names = words.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let name = names.find(|name| self.setting(name).is_some())?;
        if let Some(error) = self.refused(name) {
            return Some(error);
        }
        let text = self.text(name);
        let words = words.replace(&text, &shown(name, &text));
        // For a variable that several providers read, the error does not name the provider that read it first.
        let is_own = name.starts_with(&format!("TIELINE_{}_", upper(provider)));
        let error = Error::new(
            Status::Invalid,
            format!("{} is not valid", self.cite(name)),
            if is_own { format!("provider {provider}: {words}") } else { words },
            self.how_to_correct(name),
        );
        Some(self.blamed(name, error))
    }

    /// Returns one of the words that the variable's declaration lists, in lower case.
    pub fn word(&self, name: &str) -> Result<String, Error> {
        match self.refused(name) {
            None => Ok(self.text(name).to_ascii_lowercase()),
            Some(error) => Err(error),
        }
    }

    /// Returns a selection. A default selection causes no warnings about missing names.
    pub fn selection(&self, name: &str) -> Result<Selection, Error> {
        let setting = Setting { value: self.text(name), origin: self.origin(name) };
        let selection = Selection::parse_from(name, setting)?;
        let asked = self.setting(name).is_some();
        Ok(if asked { selection } else { selection.quiet() })
    }

    /// Returns the priority that was set for a module, else for its provider, with a citation of the variable.
    pub fn priority(&self, provider: &str, module: &str) -> Result<Option<(i32, String)>, Error> {
        let of_provider = format!("{}{}", vars::PRIORITY, upper(provider));
        let of_module = format!("{of_provider}_{}", upper(module));
        let mut known = self.known_mut();
        let _ = known.asked.insert(of_provider.clone());
        let _ = known.asked.insert(of_module.clone());
        drop(known);
        for name in [of_module, of_provider] {
            if let Some(setting) = self.setting(&name) {
                let priority = setting
                    .value
                    .parse()
                    .map_err(|_| self.not_a(&name, &Kind::Integer.accepted()))?;
                return Ok(Some((priority, self.cite(&name))));
            }
        }
        Ok(None)
    }

    /// Returns the list that replaces `TIELINE_CONNECT` in a domain: the list that was set for the domain, else for its provider.
    ///
    /// # Errors
    /// Returns the errors of [`Config::selection`].
    pub fn connect_of(&self, provider: &str, domain: &str) -> Result<Option<Selection>, Error> {
        let names = [domain, provider].map(|name| format!("{}{}", vars::CONNECT_OF, upper(name)));
        // If a provider's name equals the suffix of another core variable, the variable's name refers to that core variable.
        let free = |name: &&String| vars::CORE.iter().all(|var| var.name != **name);
        let names: Vec<&String> = names.iter().filter(free).collect();
        self.known_mut().asked.extend(names.iter().map(|name| (*name).clone()));
        let set = names.into_iter().find(|name| self.setting(name).is_some());
        set.map(|name| self.selection(name)).transpose()
    }

    /// Returns the core's declaration of a core variable, which overrides a provider's declaration; `None` for any other variable.
    pub fn core_declaration(&self, name: &str) -> Option<Declared> {
        let var = vars::core_var(name)?;
        let accepts = match var.kind {
            Kind::Value(accepts) => accepts,
            // A provider gets the values of these kinds as texts: the core checks the values itself.
            Kind::Integer | Kind::Selection | Kind::Path => Accepts::any(config_kind::TEXT),
        };
        Some(Declared::new(name, var.default, var.doc, accepts))
    }

    /// Records that a provider is in use: an undeclared name with the provider's prefix is then a misspelling.
    pub fn uses(&self, provider: &str) {
        let _ = self.known_mut().providers.insert(provider.to_owned());
    }

    /// Adds the variables of a provider that is in use, or whose only obstacle is a refused value. The core's own variables are
    /// ignored.
    pub fn declare(&self, provider: &str, variables: impl IntoIterator<Item = Declared>) {
        let mut known = self.known_mut();
        for variable in variables {
            if self.core_declaration(&variable.name).is_none() {
                let entry = known.declared.entry(variable.name.clone());
                let owner = entry.or_insert_with(|| (provider.to_owned(), variable.clone()));
                if owner.0 == provider {
                    owner.1 = variable;
                }
            }
        }
    }

    /// Returns every variable: the core's in the order of the documentation, with the names of families that are set, the
    /// providers' variables, and the other names that are set.
    pub fn views(&self) -> Vec<ValueView> {
        let mut views = Vec::new();
        for core in vars::CORE {
            if !core.is_family() {
                views.push(self.view(core.name, core.default, &core.kind.name(), "core", core.doc));
                continue;
            }
            let pattern = format!("{}<NAME>", core.name);
            views.push(self.view(&pattern, "", &core.kind.name(), "core", core.doc));
            let of_family = |name: &&String| {
                name.starts_with(core.name) && vars::CORE.iter().all(|var| var.name != **name)
            };
            for name in self.set.keys().filter(of_family) {
                let doc = format!("See {pattern}.");
                views.push(self.view(name, "", &core.kind.name(), "core", &doc));
            }
        }
        let known = self.known();
        let mut declared: Vec<_> = known.declared.values().collect();
        declared.sort_by(|a, b| (&a.0, &a.1.name).cmp(&(&b.0, &b.1.name)));
        for (provider, var) in declared {
            let kind = var.accepts().name();
            views.push(self.view(&var.name, &var.default, &kind, provider, &var.doc));
        }
        let seen: BTreeSet<String> = views.iter().map(|view| view.name.clone()).collect();
        for name in self.set.keys() {
            if !seen.contains(name) {
                let launcher = vars::is_of_the_launcher(name);
                let owner = if launcher { "launcher" } else { "unknown" };
                let doc = if launcher {
                    "For launchers such as `tieline run`; read only from the environment."
                } else {
                    ""
                };
                views.push(self.view(name, "", "text", owner, doc));
            }
        }
        views
    }

    /// Returns the settings files that were searched for.
    pub fn files(&self) -> Vec<FileView> {
        self.files.clone()
    }

    /// Returns all warnings that were reported.
    pub fn warnings(&self) -> Vec<String> {
        self.known().warnings.clone()
    }

    fn view(&self, name: &str, default: &str, kind: &str, owner: &str, doc: &str) -> ValueView {
        let settings = self.set.get(name).map_or(&[][..], Vec::as_slice);
        let (value, origin) = match settings.first() {
            Some(setting) => (setting.value.clone(), setting.origin.clone()),
            None => (default.to_owned(), Origin::Default),
        };
        let hidden = |setting: &Setting| Setting {
            value: shown(name, &setting.value).into_owned(),
            origin: setting.origin.clone(),
        };
        ValueView {
            name: name.to_owned(),
            value: shown(name, &value).into_owned(),
            origin,
            default: default.to_owned(),
            kind: kind.to_owned(),
            owner: owner.to_owned(),
            doc: doc.to_owned(),
            overridden: settings.iter().skip(1).map(hidden).collect(),
        }
    }

    fn setting(&self, name: &str) -> Option<&Setting> {
        self.set.get(name)?.first()
    }

    fn default_of(&self, name: &str) -> Option<String> {
        match vars::CORE.iter().find(|var| var.name == name) {
            Some(var) => Some(var.default.to_owned()),
            None => self.known().declared.get(name).map(|(_, var)| var.default.clone()),
        }
    }

    /// Checks whether a variable's value is a selection, which has its own parser.
    fn is_selection(&self, name: &str) -> bool {
        self.with_kind(name, |kind| kind == Kind::Selection)
    }

    /// Returns the error for a value that its variable does not accept.
    fn refused(&self, name: &str) -> Option<Error> {
        let text = self.text(name);
        let accepted = |kind: Kind| (!kind.admits(&text)).then(|| kind.accepted());
        Some(self.not_a(name, &self.with_kind(name, accepted)?))
    }

    fn with_kind<R>(&self, name: &str, ask: impl FnOnce(Kind) -> R) -> R {
        let known = self.known();
        let declared = || known.declared.get(name).map(|(_, var)| Kind::Value(var.accepts()));
        ask(match vars::CORE.iter().find(|var| var.name == name) {
            Some(var) => var.kind,
            None if name.starts_with(vars::PRIORITY) => Kind::Integer,
            None if name.starts_with(vars::CONNECT_OF) => Kind::Selection,
            None => declared().unwrap_or(Kind::TEXT),
        })
    }

    fn not_a(&self, name: &str, accepted: &str) -> Error {
        let error = Error::new(
            Status::Invalid,
            format!("{} is not valid", self.cite(name)),
            accepted,
            self.how_to_correct(name),
        );
        self.blamed(name, error)
    }

    fn blamed(&self, name: &str, error: Error) -> Error {
        let value = shown(name, &self.text(name)).into_owned();
        error.about(name, Setting { value, origin: self.origin(name) })
    }

    fn how_to_correct(&self, name: &str) -> String {
        match self.default_of(name).filter(|default| !default.is_empty()) {
            None => "correct it or unset it".to_owned(),
            Some(default) => format!("correct it, or unset it for the default, {default}"),
        }
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a value in a form that may be shown. The value of a variable whose name contains `SECRET` is hidden, unless the name
/// ends in `_FILE`.
fn shown<'a>(name: &str, value: &'a str) -> Cow<'a, str> {
    let is_secret = name.contains("SECRET") && !name.ends_with("_FILE") && !value.is_empty();
    if is_secret { HIDDEN.into() } else { config::shown(name, value) }
}

/// The placeholder of a hidden value.
const HIDDEN: &str = "(set)";

#[cfg(test)]
mod tests;
