//! `tieline config`: prints variables with their values, the origin of each value, its default and its meaning; or
//! docs/configuration.md, or a file of settings.

use crate::info::print;
use std::process::ExitCode;
use tieline::report::{configuration, nearest_word, value_text_within, values_text_within};
use tieline::{Context, Error, configuration_file, configuration_markdown};

/// Show every variable: value, origin, default, meaning.
#[derive(clap::Args)]
#[command(after_help = "Example: tieline config fastbox")]
pub(crate) struct Args {
    /// Show only this variable, or the variables whose names contain this text.
    name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print docs/configuration.md: the variables of the core and of the providers that are found, without this process's values.
    #[arg(long, conflicts_with_all = ["json", "name"])]
    markdown: bool,
    /// Print the file of settings that packages install, each variable set to its default behind a `#`.
    #[arg(long, hide = true, conflicts_with_all = ["json", "name", "markdown"])]
    file: bool,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    if args.markdown || args.file {
        let (report, _) = Context::builder().load_all_providers(true).report()?;
        let text = if args.file { configuration_file } else { configuration_markdown };
        return print(&text(&report.config));
    }
    // A value that cannot be read stops the search for providers, but not this list, which shows the origin of the value.
    let (mut values, files, failure) = match Context::builder().load_all_providers(true).report() {
        Ok((report, _)) => (report.config, report.files, None),
        Err(error) => {
            let (values, files) = configuration()?;
            (values, files, Some(error))
        }
    };
    let width = crate::sys::width();
    let text = match &args.name {
        Some(name) => {
            let name = name.to_ascii_uppercase().replace('-', "_");
            let exact = |full: &str| full == name || full.strip_prefix("TIELINE_") == Some(&name);
            let near = nearest_word(&values, &name);
            let is_exact = values.iter().any(|value| exact(&value.name));
            values.retain(|v| if is_exact { exact(&v.name) } else { v.name.contains(&name) });
            match values.as_slice() {
                [] => {
                    return Err(crate::misuse(
                        format!("no variable has {name} in its name"),
                        "it is neither the core's nor that of a provider that is loaded",
                        match near {
                            Some(near) => {
                                format!("did you mean {near}? `tieline config` lists them all")
                            }
                            None => "`tieline config` lists them all".to_owned(),
                        },
                    ));
                }
                [one] => value_text_within(one, width),
                several => values_text_within(several, &[], width),
            }
        }
        None => values_text_within(&values, &files, width),
    };
    let json = || serde_json::to_string_pretty(&values).unwrap_or_default() + "\n";
    let code = print(&if args.json { json() } else { text })?;
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(code),
    }
}
