//! Parsing of a list, with errors that show the correct form.

use semver::VersionReq;
use tieline_plugin_api::Status;

use super::{Entry, Glob, Selection};
use crate::{Error, Setting, shown, vars};

impl Selection {
    /// Parses the value of a variable.
    ///
    /// # Errors
    /// Returns the part that is not understood, the reason, and the correct form.
    #[cfg(test)]
    pub fn parse(variable: &str, value: &str) -> Result<Selection, Error> {
        let setting = Setting { value: value.to_owned(), origin: crate::Origin::Default };
        Selection::parse_from(variable, setting)
    }

    /// Parses a setting.
    pub fn parse_from(variable: &str, setting: Setting) -> Result<Selection, Error> {
        let setting = Setting { value: setting.value.trim().to_owned(), ..setting };
        let mut selection = Selection { setting, ..Selection::all(variable) };
        let setting = selection.setting.clone();
        let value = setting.value.as_str();
        if value.is_empty() {
            return Ok(selection);
        }
        selection.quiet = false;
        let wrong = |why: String, fix: &str| {
            let what = format!("{} cannot be used", selection.cite());
            Error::new(Status::Invalid, what, why, fix).about(variable, setting.clone())
        };
        let (excludes, list) = match value.strip_prefix('^') {
            Some(rest) => (true, rest.trim_start()),
            None => (false, value),
        };
        let mut entries: Vec<Entry> = Vec::new();
        for part in list.split(',').map(str::trim) {
            if part.is_empty() {
                let why = if list.is_empty() {
                    "it excludes nothing"
                } else {
                    "a name is missing at a comma"
                };
                return Err(wrong(why.into(), "write names with single commas between them"));
            }
            if let Some(c) = part.chars().find(|c| c.is_control()) {
                let why = format!("`{}` has {c:?} in it", shown(variable, part));
                return Err(wrong(why, NO_BLANKS));
            }
            if let Some(name) = part.strip_prefix('^') {
                return Err(if excludes {
                    wrong(
                        format!("the first ^ holds for the whole list, `{part}` needs none"),
                        &format!("write `^{}`", shown(variable, &list.replace('^', ""))),
                    )
                } else {
                    wrong(
                        format!(
                            "a list either includes or excludes: `{part}` excludes, what comes before includes"
                        ),
                        &format!(
                            "leave `{part}` out (what the list does not name is not used), or write `^{name}` alone"
                        ),
                    )
                });
            }
            let entry = entry(variable, part, excludes).map_err(|(why, fix)| wrong(why, &fix))?;
            if entries.iter().any(|earlier| earlier.name == entry.name) {
                return Err(wrong(format!("`{}` is there twice", entry.name), "leave one out"));
            }
            entries.push(entry);
        }
        selection.excludes = excludes;
        selection.entries = entries;
        Ok(selection)
    }
}

const NO_BLANKS: &str = "write names with commas between them, no blanks";

/// Parses one entry; the error is (reason, remedy).
fn entry(variable: &str, part: &str, excludes: bool) -> Result<Entry, (String, String)> {
    let (required, rest) = match part.strip_prefix("required:") {
        Some(rest) => (true, rest.trim_start()),
        None => (false, part),
    };
    if required && excludes {
        return Err((
            format!("`{part}` is required and excluded at once"),
            "leave `required:` out of a list that begins with ^".into(),
        ));
    }
    let (name, version) = match rest.split_once('@') {
        None => (rest, None),
        Some(_) if variable != vars::PROVIDERS => {
            return Err((
                format!("`{part}` asks for a version, and only providers have one"),
                "put the version into TIELINE_PROVIDERS".into(),
            ));
        }
        Some((name, wanted)) => {
            let version = VersionReq::parse(wanted.trim()).map_err(|error| {
                (
                    format!("`{wanted}` is no version requirement: {error}"),
                    format!("write for example `{name}@^1.2` or `{name}@=1.2.3`"),
                )
            })?;
            (name.trim_end(), Some(version))
        }
    };
    if name.is_empty() {
        return Err((format!("`{part}` holds no name"), "write a name".into()));
    }
    if let Some(c) = name.chars().find(|c| c.is_whitespace()) {
        return Err((format!("`{name}` has {c:?} in it"), NO_BLANKS.into()));
    }
    let glob = Glob::parse(name).map_err(|why| {
        (format!("`{name}` is no glob: {why}"), "globs are *, ? and [a-c]".to_owned())
    })?;
    Ok(Entry { name: name.to_owned(), glob, required, version })
}
