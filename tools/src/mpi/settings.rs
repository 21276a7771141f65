//! The variables with which each MPI uses Tieline's provider for libfabric.

use super::recognize::Mpi;
use crate::misuse;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use tieline::Error;

/// The user's settings: the environment, the launcher's arguments, and the names of Tieline's variables in the environment.
pub(super) struct Given<'a> {
    pub(super) variable: &'a dyn Fn(&str) -> Option<OsString>,
    pub(super) words: &'a [OsString],
    pub(super) forwarded: Vec<String>,
}

impl Given<'_> {
    /// Returns a parameter of Open MPI: that of the command line, which takes precedence, or of the environment.
    fn parameter(&self, name: &str) -> Option<OsString> {
        const OPTIONS: [&str; 6] = ["--mca", "-mca", "--omca", "-omca", "--gmca", "-gmca"];
        let words = self.words.windows(3);
        let mut options = words.filter(|words| OPTIONS.iter().any(|option| words[0] == *option));
        let option = options.find(|words| words[1] == *name).map(|words| words[2].clone());
        option.or_else(|| (self.variable)(&format!("{PARAMETER}{name}")))
    }

    fn is_exported(&self, name: &str) -> bool {
        let mut pairs = self.words.windows(2);
        pairs.any(|words| {
            words[0] == *"-x" && words[1].to_string_lossy().split('=').next() == Some(name)
        })
    }
}

/// The changes to the launcher's environment and arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The variables that are set.
    pub(super) set: Vec<(String, OsString)>,
    /// The settings of the user that differ, and are kept.
    pub(super) kept: Vec<(String, OsString)>,
    /// The options that precede the launcher's own arguments.
    pub(super) options: Vec<OsString>,
}

/// The beginning of Open MPI's variables, before the name of a parameter.
const PARAMETER: &str = "OMPI_MCA_";

const NAME: &str = "tieline";

/// The condition under which Tieline is used although the user has given another value.
enum Suits {
    Any,
    /// The value is a list, separated by commas or colons, that has this entry.
    Has(&'static str),
}

/// Returns the changes for an MPI, or an error if a setting of the user excludes Tieline.
pub(super) fn plan(mpi: Mpi, given: &Given<'_>, directory: &Path) -> Result<Plan, Error> {
    let mut plan = Plan { set: Vec::new(), kept: Vec::new(), options: Vec::new() };
    plan.add("FI_PROVIDER", NAME, &Suits::Has(NAME), given)?;
    plan.add_directory(directory, given);
    match mpi {
        Mpi::Mpich => {
            plan.add("MPIR_CVAR_CH4_NETMOD", "ofi", &Suits::Has("ofi"), given)?;
            // MPICH's own shared memory would otherwise carry the traffic within a host.
            plan.add("MPIR_CVAR_NOLOCAL", "1", &Suits::Any, given)?;
        }
        Mpi::Intel => {
            plan.add("I_MPI_FABRICS", "ofi", &Suits::Has("ofi"), given)?;
            // This variable replaces FI_PROVIDER.
            let own = (given.variable)("I_MPI_OFI_PROVIDER").filter(|own| !lists(own, NAME));
            if let Some(own) = own {
                return Err(excluded("I_MPI_OFI_PROVIDER", &own, NAME));
            }
        }
        Mpi::Openmpi4 | Mpi::Openmpi5 => plan.add_open_mpi(mpi, given)?,
    }
    Ok(plan)
}

impl Plan {
    /// Sets a variable unless the user has set it. Fails if the user's value excludes Tieline.
    fn add(
        &mut self,
        name: &str,
        value: &str,
        suits: &Suits,
        given: &Given<'_>,
    ) -> Result<(), Error> {
        let own = match name.strip_prefix(PARAMETER) {
            Some(parameter) => given.parameter(parameter),
            None => (given.variable)(name),
        };
        let Some(own) = own else {
            self.set.push((name.to_owned(), value.into()));
            return Ok(());
        };
        if matches!(suits, Suits::Has(entry) if !lists(&own, entry)) {
            return Err(excluded(name, &own, value));
        }
        if own != *value {
            self.kept.push((name.to_owned(), own));
        }
        Ok(())
    }

    /// Adds the provider's directory to those in which libfabric searches, unless it is one of them.
    fn add_directory(&mut self, directory: &Path, given: &Given<'_>) {
        const VARIABLE: &str = "FI_PROVIDER_PATH";
        let before = (given.variable)(VARIABLE);
        let mut value = before.clone().unwrap_or_default();
        if std::env::split_paths(&value).any(|one| one == directory) {
            return;
        }
        if before.is_some() {
            value.push(":");
        }
        value.push(directory);
        self.set.push((VARIABLE.to_owned(), value));
    }

    fn add_open_mpi(&mut self, mpi: Mpi, given: &Given<'_>) -> Result<(), Error> {
        let include = match mpi {
            Mpi::Openmpi5 => "opal_common_ofi_provider_include",
            _ if given.parameter("pml").is_some_and(|pml| pml == *"ob1") => {
                "btl_ofi_provider_include"
            }
            _ => "mtl_ofi_provider_include",
        };
        let parameters: &[(&str, &str, Suits)] = match given.parameter("pml") {
            Some(pml) if pml == *"ob1" => &[
                ("btl", "ofi,self", Suits::Has("ofi")),
                ("btl_ofi_mode", "2", Suits::Any),
                ("osc", "rdma", Suits::Any),
            ],
            _ => &[("pml", "cm", Suits::Has("cm")), ("mtl", "ofi", Suits::Has("ofi"))],
        };
        for (name, value, suits) in parameters {
            self.add(&format!("{PARAMETER}{name}"), value, suits, given)?;
        }
        self.add(&format!("{PARAMETER}{include}"), NAME, &Suits::Has(NAME), given)?;
        // Open MPI forwards its parameters to other hosts, but no other variables.
        let own = ["FI_PROVIDER".to_owned(), "FI_PROVIDER_PATH".to_owned()];
        for name in own.into_iter().chain(given.forwarded.iter().cloned()) {
            if !given.is_exported(&name) {
                self.options.extend(["-x".into(), name.into()]);
            }
        }
        Ok(())
    }
}

fn excluded(name: &str, own: &OsStr, value: &str) -> Error {
    misuse(
        format!("{name} is `{}`", own.to_string_lossy()),
        format!("Tieline is used only with `{value}`"),
        format!("unset {name}, or start the launcher without `tieline mpi`"),
    )
}

fn lists(value: &OsStr, entry: &str) -> bool {
    value.to_string_lossy().split([',', ':']).any(|one| one.trim() == entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: &str = "/usr/lib/libfabric-tieline";

    fn planned(mpi: Mpi, variables: &[(&str, &str)], words: &[&str]) -> Result<Plan, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let variable = |name: &str| {
            variables.iter().find(|(one, _)| *one == name).map(|(_, value)| OsString::from(value))
        };
        let own = variables.iter().map(|(name, _)| (*name).to_owned());
        let forwarded = own.filter(|name| name.starts_with("TIELINE_")).collect();
        let given = Given { variable: &variable, words: &words, forwarded };
        plan(mpi, &given, Path::new(PLACE)).map_err(|error| error.to_string())
    }

    fn shown(all: &[(String, OsString)]) -> Vec<String> {
        all.iter().map(|(name, value)| format!("{name}={}", value.to_string_lossy())).collect()
    }

    const COMMON: [&str; 2] =
        ["FI_PROVIDER=tieline", "FI_PROVIDER_PATH=/usr/lib/libfabric-tieline"];

    #[test]
    fn each_mpi_gets_its_variables() {
        for (mpi, own) in [
            (Mpi::Mpich, &["MPIR_CVAR_CH4_NETMOD=ofi", "MPIR_CVAR_NOLOCAL=1"][..]),
            (Mpi::Intel, &["I_MPI_FABRICS=ofi"]),
            (
                Mpi::Openmpi4,
                &[
                    "OMPI_MCA_pml=cm",
                    "OMPI_MCA_mtl=ofi",
                    "OMPI_MCA_mtl_ofi_provider_include=tieline",
                ],
            ),
            (
                Mpi::Openmpi5,
                &[
                    "OMPI_MCA_pml=cm",
                    "OMPI_MCA_mtl=ofi",
                    "OMPI_MCA_opal_common_ofi_provider_include=tieline",
                ],
            ),
        ] {
            let plan = planned(mpi, &[], &["-n", "2", "./program"]).unwrap();
            assert_eq!(shown(&plan.set), [&COMMON, own].concat());
            assert!(plan.kept.is_empty());
            let forwards: Vec<_> =
                ["-x", "FI_PROVIDER", "-x", "FI_PROVIDER_PATH"].map(OsString::from).into();
            let is_open = matches!(mpi, Mpi::Openmpi4 | Mpi::Openmpi5);
            assert_eq!(plan.options, if is_open { forwards } else { Vec::new() });
        }
    }

    #[test]
    fn open_mpi_with_ob1_uses_the_component_for_puts_and_gets() {
        let btl = ["OMPI_MCA_btl=ofi,self", "OMPI_MCA_btl_ofi_mode=2", "OMPI_MCA_osc=rdma"];
        for (mpi, include) in [
            (Mpi::Openmpi4, "OMPI_MCA_btl_ofi_provider_include=tieline"),
            (Mpi::Openmpi5, "OMPI_MCA_opal_common_ofi_provider_include=tieline"),
        ] {
            let wanted = [&COMMON[..], &btl, &[include]].concat();
            let option = planned(mpi, &[], &["--mca", "pml", "ob1", "./program"]).unwrap();
            assert_eq!(
                (shown(&option.set), option.kept.len()),
                (wanted.clone().into_iter().map(str::to_owned).collect(), 0)
            );
            let variable = planned(mpi, &[("OMPI_MCA_pml", "ob1")], &["./program"]).unwrap();
            assert_eq!(shown(&variable.set), wanted);
        }
    }

    #[test]
    fn values_of_the_user_stay_and_directories_are_added() {
        let own = [
            ("FI_PROVIDER", "tieline,tcp"),
            ("FI_PROVIDER_PATH", "/opt/more"),
            ("MPIR_CVAR_CH4_NETMOD", "ofi"),
            ("MPIR_CVAR_NOLOCAL", "0"),
        ];
        let plan = planned(Mpi::Mpich, &own, &[]).unwrap();
        assert_eq!(shown(&plan.set), [format!("FI_PROVIDER_PATH=/opt/more:{PLACE}")]);
        assert_eq!(shown(&plan.kept), ["FI_PROVIDER=tieline,tcp", "MPIR_CVAR_NOLOCAL=0"]);
        let again =
            planned(Mpi::Mpich, &[("FI_PROVIDER_PATH", &format!("/a:{PLACE}"))], &[]).unwrap();
        assert!(!shown(&again.set).iter().any(|line| line.starts_with("FI_PROVIDER_PATH")));
    }

    #[test]
    fn value_that_excludes_tieline_is_refused_by_name() {
        for (mpi, name, value) in [
            (Mpi::Mpich, "FI_PROVIDER", "tcp"),
            (Mpi::Mpich, "MPIR_CVAR_CH4_NETMOD", "ucx"),
            (Mpi::Intel, "I_MPI_FABRICS", "shm"),
            (Mpi::Intel, "I_MPI_OFI_PROVIDER", "tcp"),
            (Mpi::Openmpi4, "OMPI_MCA_pml", "ucx"),
            (Mpi::Openmpi5, "OMPI_MCA_mtl", "^ofi"),
            (Mpi::Openmpi5, "OMPI_MCA_opal_common_ofi_provider_include", "tcp"),
        ] {
            let refusal = planned(mpi, &[(name, value)], &[]).unwrap_err();
            assert!(refusal.contains(&format!("{name} is `{value}`")), "{refusal}");
            assert!(refusal.contains(&format!("unset {name}")), "{refusal}");
        }
        let both = planned(Mpi::Intel, &[("I_MPI_FABRICS", "shm:ofi")], &[]).unwrap();
        assert_eq!(shown(&both.kept), ["I_MPI_FABRICS=shm:ofi"]);
        let option = planned(Mpi::Openmpi4, &[("OMPI_MCA_pml", "cm")], &["--mca", "pml", "ucx"]);
        assert!(option.unwrap_err().contains("pml is `ucx`"));
    }

    #[test]
    fn open_mpi_forwards_variables_once() {
        let own = [("TIELINE_PROVIDERS", "tcp")];
        let plan = planned(Mpi::Openmpi4, &own, &["-x", "FI_PROVIDER=tieline", "-n", "2"]).unwrap();
        assert_eq!(
            plan.options,
            ["-x", "FI_PROVIDER_PATH", "-x", "TIELINE_PROVIDERS"].map(OsString::from)
        );
        assert!(planned(Mpi::Mpich, &own, &[]).unwrap().options.is_empty());
    }
}
