//! Reading the values of settings from the program, the environment and files.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::RwLock;

use tieline_plugin_api::{Status, raised_rights};

use super::{Config, FileView, Known, Origin, ReportTo, Setting, files, vars};
use crate::Error;

/// A builder that collects values. A new builder reads neither the environment nor any file.
#[derive(Clone, Debug, Default)]
pub struct ConfigBuilder {
    program: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
    system_file: Option<PathBuf>,
    raised_rights: bool,
    /// Misspelt names in the environment, with the probable `TIELINE_` name.
    misspelt: Vec<(String, String)>,
}

impl ConfigBuilder {
    /// Sets a value from the program. The value overrides the environment and the files.
    pub fn set(mut self, name: &str, value: &str) -> ConfigBuilder {
        let _ = self.program.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Uses the environment of this process and the file `/etc/tieline/tieline.toml`, and checks whether the process has raised
    /// rights.
    pub fn process_environment(self) -> ConfigBuilder {
        let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
        self.environment(std::env::vars_os().map(|(name, value)| (text(name), text(value))))
            .system_file(Path::new("/etc/tieline/tieline.toml"))
            .raised_rights(raised_rights())
    }

    /// Uses the given variables as the environment.
    pub fn environment(
        mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> ConfigBuilder {
        let variables: Vec<_> = variables.into_iter().collect();
        let misspelt = |name: &str| Some((name.to_owned(), vars::misspelt(name)?));
        self.misspelt = variables.iter().filter_map(|(name, _)| misspelt(name)).collect();
        self.environment = variables
            .into_iter()
            .filter(|(name, value)| {
                let ours =
                    name.starts_with("TIELINE_") || name == "HOME" || name == "XDG_CONFIG_HOME";
                ours && !value.trim().is_empty()
            })
            .collect();
        self
    }

    /// Sets the path of the system's settings file.
    pub fn system_file(mut self, path: &Path) -> ConfigBuilder {
        self.system_file = Some(path.to_owned());
        self
    }

    /// Sets whether the process has more rights than its user. If it has, the user's environment must not choose files.
    pub fn raised_rights(mut self, raised: bool) -> ConfigBuilder {
        self.raised_rights = raised;
        self
    }

    /// Returns the destination of the report, from the program and the environment only. Errors that keep the files from being read
    /// need this destination.
    pub fn report_to(&self) -> Option<ReportTo> {
        let in_environment = || {
            let value = self.environment.get(vars::REPORT)?;
            let may = !self.raised_rights || !vars::chooses_a_place(vars::REPORT, value);
            may.then_some(value)
        };
        let said = |value: &&String| !value.trim().is_empty();
        let value = self.program.get(vars::REPORT).filter(said).or_else(in_environment)?;
        ReportTo::read(value.trim())
    }

    /// Reads the files and sorts all values by precedence.
    ///
    /// # Errors
    /// Returns an error for a malformed file, for an unreadable file that `TIELINE_CONFIG` names, and for a name from the program
    /// that does not begin with `TIELINE_`.
    pub fn build(mut self) -> Result<Config, Error> {
        let is_foreign = |(name, _): &(&String, &String)| !name.starts_with("TIELINE_");
        if let Some((name, value)) = self.program.iter().find(is_foreign) {
            let error = Error::new(
                Status::Invalid,
                format!("the program set `{name}`"),
                "every variable's name begins with TIELINE_",
                "see `tieline config` for the names",
            );
            let setting = Setting { value: value.clone(), origin: Origin::Program };
            return Err(error.about(name, setting));
        }
        let is_misspelt = |(name, meant): &(String, String)| {
            format!("{name} (environment) is not a variable of Tieline; did you mean {meant}?")
        };
        let mut warnings: Vec<String> = self.misspelt.iter().map(is_misspelt).collect();
        if self.raised_rights {
            self.environment.retain(|name, value| {
                let drop = vars::chooses_a_place(name, value);
                if drop {
                    warnings
                        .push(format!("{name} is ignored: this process runs with raised rights"));
                }
                !drop
            });
        }

        let mut set: BTreeMap<String, Vec<Setting>> = BTreeMap::new();
        let mut add = |name: &str, value: &str, origin: Origin| {
            let value = value.trim();
            if !value.is_empty() {
                let setting = Setting { value: value.to_owned(), origin };
                set.entry(name.to_owned()).or_default().push(setting);
            }
        };
        for (name, value) in &self.program {
            add(name, value, Origin::Program);
        }
        for (name, value) in
            self.environment.iter().filter(|(name, _)| name.starts_with("TIELINE_"))
        {
            add(name, value, Origin::Environment);
        }

        let mut views = Vec::new();
        for (path, is_named) in self.files() {
            let state = match files::read_text(&path, files::MOST_BYTES) {
                Ok((text, _)) => {
                    for line in files::parse(&path, &text)? {
                        let origin = Origin::File(path.clone(), line.line);
                        if line.name == vars::CONFIG {
                            warnings.push(format!(
                                "{} in {origin} is ignored: a file names no other file",
                                vars::CONFIG
                            ));
                        } else {
                            add(&line.name, &line.value, origin);
                        }
                    }
                    "read".to_owned()
                }
                Err(error) if is_named => {
                    let by_program = self.program.contains_key(vars::CONFIG);
                    let origin = if by_program { Origin::Program } else { Origin::Environment };
                    let setting = Setting { value: path.display().to_string(), origin };
                    return Err(unreadable(&path, &error).about(vars::CONFIG, setting));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => "not there".to_owned(),
                Err(error) => {
                    warnings.push(format!("{} is not read: {error}", path.display()));
                    error.to_string()
                }
            };
            views.push(FileView { path, state });
        }
        let known = RwLock::new(Known { warnings, ..Known::default() });
        Ok(Config { set, files: views, known })
    }

    /// Returns the files, strongest first, each with whether `TIELINE_CONFIG` names it.
    fn files(&self) -> Vec<(PathBuf, bool)> {
        let mut files = Vec::new();
        if let Some(path) = self.program.get(vars::CONFIG).or(self.environment.get(vars::CONFIG)) {
            files.push((PathBuf::from(path), true));
        }
        if self.system_file.is_some() && !self.raised_rights {
            let user = files::user_file(|name| self.environment.get(name).cloned());
            files.extend(user.map(|path| (path, false)));
        }
        files.extend(self.system_file.clone().map(|path| (path, false)));
        files
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    let status = match error.kind() {
        ErrorKind::PermissionDenied => Status::Permission,
        _ => Status::Invalid,
    };
    Error::new(
        status,
        format!("the file {} that {} names cannot be read", path.display(), vars::CONFIG),
        error.to_string(),
        format!("correct or unset {}", vars::CONFIG),
    )
}
