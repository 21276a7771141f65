//! Variables with their values, as `tieline config` shows them.

use super::columns::{WIDTH, columns};
use crate::setting::{FileView, Origin, ValueView};

/// Formats variables under the headings of their owners: name and value, and below them origin and meaning. The files follow.
#[must_use]
pub fn values_text(values: &[ValueView], files: &[FileView]) -> String {
    values_text_within(values, files, WIDTH)
}

/// Does the same as [`values_text`], for a terminal of `width` columns.
#[must_use]
pub fn values_text_within(values: &[ValueView], files: &[FileView], width: usize) -> String {
    let mut text = String::new();
    let mut owner = "";
    for value in values {
        if value.owner != owner {
            owner = &value.owner;
            let gap = if text.is_empty() { "" } else { "\n" };
            text += &format!("{gap}{}\n", title(owner));
        }
        let set = format!("{} = {}", value.name, or_none(&value.value));
        text += &columns(&[vec![set]], 2, width);
        text += &columns(&[vec![format!("{}. {}", origin(value), value.doc)]], 6, width);
    }
    let row = |file: &FileView| vec![file.path.display().to_string(), file.state.clone()];
    let files: Vec<Vec<String>> = files.iter().map(row).collect();
    if !files.is_empty() {
        text += "\nFILES\n";
        text += &columns(&files, 2, width);
    }
    text
}

/// Formats the facts about one variable in rows.
#[must_use]
pub fn value_text(value: &ValueView) -> String {
    value_text_within(value, WIDTH)
}

/// Does the same as [`value_text`], for a terminal of `width` columns.
#[must_use]
pub fn value_text_within(value: &ValueView, width: usize) -> String {
    let row = |name: &str, text: String| vec![name.to_owned(), text];
    let lost = value.overridden.iter().map(|lost| format!("{} ({})", lost.value, lost.origin));
    let rows: Vec<Vec<String>> = [
        row("value", or_none(&value.value)),
        row("origin", value.origin.to_string()),
        row("default", or_none(&value.default)),
        row("kind", value.kind.clone()),
        row("read by", value.owner.clone()),
        row("meaning", value.doc.clone()),
    ]
    .into_iter()
    .chain(lost.map(|lost| row("overridden", lost)))
    .collect();
    format!("{}\n{}", value.name, columns(&rows, 2, width))
}

fn title(owner: &str) -> String {
    match owner {
        "core" => "CORE".into(),
        "launcher" => "SET BY THE LAUNCHER".into(),
        "unknown" => "UNKNOWN VARIABLES".into(),
        provider => format!("PROVIDER {provider}"),
    }
}

/// Describes the origin of the value, a default that it replaces, and the strongest setting that it overrides.
fn origin(value: &ValueView) -> String {
    let mut text = match &value.origin {
        Origin::Default => "Default".to_owned(),
        Origin::Program => "Set by the program".to_owned(),
        Origin::Environment => "Set in the environment".to_owned(),
        Origin::File(path, line) => format!("Set in {}:{line}", path.display()),
    };
    if value.origin != Origin::Default && !value.default.is_empty() {
        text.push_str(&format!("; default {}", value.default));
    }
    if let Some(lost) = value.overridden.first() {
        text.push_str(&format!("; beats {} ({})", lost.value, lost.origin));
    }
    text
}

fn or_none(value: &str) -> String {
    if value.is_empty() { "(none)".into() } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Setting;

    fn queue_bytes() -> ValueView {
        ValueView {
            name: "TIELINE_QUEUE_BYTES".into(),
            value: "1m".into(),
            origin: Origin::Environment,
            default: "256k".into(),
            kind: "size".into(),
            owner: "core".into(),
            doc: "Most bytes that wait.".into(),
            overridden: vec![Setting {
                value: "2m".into(),
                origin: Origin::File("/etc/tieline/tieline.toml".into(), 3),
            }],
        }
    }

    #[test]
    fn a_value_is_told_with_its_origin_and_what_it_beats() {
        let text = values_text(&[queue_bytes()], &[]);
        assert_eq!(
            text,
            "CORE\n  TIELINE_QUEUE_BYTES = 1m\n      Set in the environment; default 256k; beats 2m \
             (/etc/tieline/tieline.toml:3). Most bytes that\n      wait.\n"
        );
        assert!(
            value_text(&queue_bytes()).contains("overridden  2m (/etc/tieline/tieline.toml:3)")
        );
    }

    #[test]
    fn values_stand_under_their_owner_and_everything_about_one_in_its_lines() {
        let of = |name: &str, owner: &str, origin: Origin| ValueView {
            name: name.into(),
            value: String::new(),
            origin,
            default: String::new(),
            kind: "text".into(),
            owner: owner.into(),
            doc: "Doc.".into(),
            overridden: Vec::new(),
        };
        let views = [
            of("A", "core", Origin::Default),
            of("B", "core", Origin::Program),
            of("C", "shm", Origin::File("/a".into(), 3)),
            of("D", "launcher", Origin::Environment),
            of("E", "unknown", Origin::Environment),
        ];
        let files = [FileView { path: "/etc/a".into(), state: "not there".into() }];
        assert_eq!(
            values_text(&views, &files),
            "CORE\n\
             \x20 A = (none)\n\
             \x20     Default. Doc.\n\
             \x20 B = (none)\n\
             \x20     Set by the program. Doc.\n\
             \n\
             PROVIDER shm\n\
             \x20 C = (none)\n\
             \x20     Set in /a:3. Doc.\n\
             \n\
             SET BY THE LAUNCHER\n\
             \x20 D = (none)\n\
             \x20     Set in the environment. Doc.\n\
             \n\
             UNKNOWN VARIABLES\n\
             \x20 E = (none)\n\
             \x20     Set in the environment. Doc.\n\
             \n\
             FILES\n\
             \x20 /etc/a  not there\n"
        );
        // If the value is the default, the text does not repeat the default.
        let default = ValueView { default: "x".into(), ..of("A", "core", Origin::Default) };
        assert_eq!(values_text(&[default], &[]), "CORE\n  A = (none)\n      Default. Doc.\n");
        assert_eq!(
            value_text(&queue_bytes()),
            "TIELINE_QUEUE_BYTES\n\
             \x20 value       1m\n\
             \x20 origin      environment\n\
             \x20 default     256k\n\
             \x20 kind        size\n\
             \x20 read by     core\n\
             \x20 meaning     Most bytes that wait.\n\
             \x20 overridden  2m (/etc/tieline/tieline.toml:3)\n"
        );
    }
}
