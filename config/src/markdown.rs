//! `docs/configuration.md`, and the settings file that packages install, generated from the tables of variables.

use std::fmt::Write as _;

use crate::{Config, Declared, ValueView};

/// Returns the text of `docs/configuration.md`: every variable of the core and of these providers, followed by the variables of
/// other providers in `loaded`. Settings of this process have no effect on the text.
#[must_use]
pub fn markdown(providers: Vec<(&'static str, Vec<Declared>)>, loaded: &[ValueView]) -> String {
    let views = views(providers, loaded);
    let mut text = String::from(INTRODUCTION);
    let mut owner = "";
    for view in &views {
        if view.owner != owner {
            owner = &view.owner;
            let title = if owner == "core" {
                "Variables of the core".into()
            } else {
                format!("Provider {owner}")
            };
            let _ = write!(
                text,
                "\n## {title}\n\n| variable | kind | default | meaning |\n|---|---|---|---|\n"
            );
        }
        row(&mut text, view);
    }
    text
}

/// Returns the text of the installed `/etc/tieline/tieline.toml`: the same variables except `TIELINE_CONFIG` and `TIELINE_SECRET`,
/// each set to its default in a line that begins with `#`.
#[must_use]
pub fn settings_file(
    providers: Vec<(&'static str, Vec<Declared>)>,
    loaded: &[ValueView],
) -> String {
    let mut text = String::from(FILE_INTRODUCTION);
    let mut owner = String::new();
    for view in views(providers, loaded) {
        if FILES_CANNOT.contains(&view.name.as_str()) {
            continue;
        }
        if view.owner != owner {
            owner.clone_from(&view.owner);
            let who = if owner == "core" { "The core".into() } else { format!("Provider {owner}") };
            let _ = write!(text, "\n# ---- {who} ----\n");
        }
        text.push('\n');
        for line in tieline_explain::text::wrap(&format!("{} ({})", view.doc, view.kind), 96) {
            let _ = writeln!(text, "# {line}");
        }
        // A name with `<...>` is a pattern and not a key, so a space after the `#` marks the line as a comment.
        let sign = if view.name.contains('<') { "# " } else { "#" };
        let value = view.default.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = writeln!(text, "{sign}{} = \"{value}\"", view.name);
    }
    text
}

/// Returns the declarations of these providers, and of other providers in `loaded`.
fn views(providers: Vec<(&'static str, Vec<Declared>)>, loaded: &[ValueView]) -> Vec<ValueView> {
    let Ok(config) = Config::builder().build() else { return Vec::new() };
    for (provider, variables) in providers {
        config.declare(provider, variables);
    }
    let mut views = config.views();
    let is_new = |view: &&ValueView| {
        let nobodys = ["core", "launcher", "unknown"].contains(&view.owner.as_str());
        !nobodys && views.iter().all(|known| known.name != view.name)
    };
    let more: Vec<ValueView> = loaded.iter().filter(is_new).cloned().collect();
    views.extend(more);
    views
}

/// Variables that the settings file omits: `TIELINE_CONFIG`, because a settings file cannot name further files, and
/// `TIELINE_SECRET`, because every user can read the file.
const FILES_CANNOT: [&str; 2] = ["TIELINE_CONFIG", "TIELINE_SECRET"];

const FILE_INTRODUCTION: &str = r##"# Settings of Tieline for every user of this machine. Each line shows a default: to change it, remove the # and edit the value.
#
# A user's ~/.config/tieline/tieline.toml, the file that TIELINE_CONFIG names, the environment and the program itself
# override this file. `tieline config` shows the effective values and their origins; see tieline-config(1).
"##;

fn row(text: &mut String, view: &ValueView) {
    let cell = |s: &str| s.replace('|', "\\|").replace('<', "&lt;");
    let default =
        if view.default.is_empty() { String::new() } else { format!("`{}`", cell(&view.default)) };
    let _ = writeln!(
        text,
        "| `{}` | {} | {default} | {} |",
        view.name.replace('|', "\\|"),
        cell(&view.kind).replace("\\|", " \\| "),
        cell(&view.doc)
    );
}

const INTRODUCTION: &str = r#"# Configuration

<!-- Written by `tieline config --markdown`. Do not edit: change the tables in the code. -->

```sh
TIELINE_PROVIDERS=^shm-cma ./program        # leave one provider out
tieline config                              # every variable: value, origin, default, meaning
tieline info --why                          # what was chosen, and the reasons against the rest
```

## Order of precedence

The first of these that sets a variable decides its value:

1. the program: `Context::builder().set("TIELINE_QUEUE_BYTES", "1m")`
2. the environment
3. the file that `TIELINE_CONFIG` names
4. `$XDG_CONFIG_HOME/tieline/tieline.toml`, or `~/.config/tieline/tieline.toml`
5. `/etc/tieline/tieline.toml`
6. the default

An empty value counts as not set. The current directory has no effect. A process that runs with raised rights (set-uid,
set-gid, file capabilities) does not read the user's file. It also ignores every variable of its environment that holds a path:
`TIELINE_CONFIG`, all names that end in `_PATH`, `_DIR` or `_FILE`, and `TIELINE_REPORT` if it names a file.

A file is a regular file of at most 1 MiB of TOML. Tables and keys join into the variable's name; the full name works too:

```toml
providers = "^shm-cma"        # TIELINE_PROVIDERS
TIELINE_STRICT = true
[shm]
fastbox_size = "4k"           # TIELINE_SHM_FASTBOX_SIZE
[priority]
shm-cma = 10                  # TIELINE_PRIORITY_SHM_CMA
```

An unknown name is a warning in the report, with the nearest known name; `TIELINE_STRICT=1` makes it an error. Names of
a provider that was found but not loaded are accepted. A value that is not valid is an error that names the place of the setting. So is
a value that a selected provider refuses. The variables of a provider that is left out are not checked. A name whose prefix is
close to `TIELINE_` (`TIELNE_PROVIDERS`) is a warning too.

## Kinds of value

| kind | examples |
|---|---|
| size | `4096`, `64k`, `2GiB`, `inf`; all units are powers of 1024 |
| duration | `10ms`, `2us`, `1s`, `5min`, `inf`; the unit is required |
| count | `16`, `inf` |
| integer | `50`, `-1` |
| bool | `y` `yes` `on` `true` `1`, `n` `no` `off` `false` `0` |
| list | names separated by commas |
| path | absolute directories separated by colons |
| selection | see below |

## Selections

`TIELINE_PROVIDERS`, `TIELINE_DOMAINS`, `TIELINE_MODULES` and `TIELINE_CONNECT` (also for one provider or domain:
`TIELINE_CONNECT_VERBS`) share one grammar:

| value | meaning |
|---|---|
| `verbs,shm` | these two, `verbs` preferred |
| `verbs:mlx5_*` | globs `*`, `?`, `[0-3]`, `[!0]`; they match the whole name |
| `^shm-cma,tcp` | all but these: the `^` applies to the whole list |
| `required:verbs,shm` | an error if `verbs` cannot be used |
| `verbs@^1.2` | a version requirement, for providers only |

Modules are written with their domain: `verbs:mlx5_0/rc`. A list either includes or excludes (`shm,^tcp` is an error), and a name
may appear only once. A plain name takes precedence over a glob: `*,tcp` means everything, with `tcp` last. A name that matches nothing
is a warning with the nearest spelling.
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, owner: &str) -> ValueView {
        ValueView {
            name: name.into(),
            value: "set".into(),
            origin: crate::Origin::Environment,
            default: "a|b".into(),
            kind: "on|off".into(),
            owner: owner.into(),
            doc: "See <this>.".into(),
            overridden: Vec::new(),
        }
    }

    #[test]
    fn variables_of_other_providers_follow_the_cores_once() {
        let loaded = [
            of("TIELINE_ODD_SIZE", "odd"),
            of("TIELINE_PROBE", "odd"),
            of("TIELINE_RANK", "launcher"),
            of("TIELINE_WHAT", "unknown"),
            of("TIELINE_NEW", "core"),
        ];
        let text = markdown(Vec::new(), &loaded);
        let table = "| variable | kind | default | meaning |\n|---|---|---|---|\n";
        let row = "| `TIELINE_ODD_SIZE` | on \\| off | `a\\|b` | See &lt;this>. |\n";
        assert!(text.ends_with(&format!("\n## Provider odd\n\n{table}{row}")), "{text}");
        assert_eq!(text.matches("## Variables of the core\n").count(), 1);
        assert_eq!(text.matches("| `TIELINE_PROBE` |").count(), 1);
        let text = settings_file(Vec::new(), &loaded);
        let end =
            "\n# ---- Provider odd ----\n\n# See <this>. (on|off)\n#TIELINE_ODD_SIZE = \"a|b\"\n";
        assert!(text.ends_with(end), "{text}");
        assert_eq!(text.matches("\n# ---- The core ----\n").count(), 1);
        assert!(text.contains("\n# TIELINE_PRIORITY_<NAME> = \"\"\n"), "{text}");
        assert!(text.contains("\n#TIELINE_SECRET_FILE = ") && !text.contains("#TIELINE_SECRET ="));
    }
}
