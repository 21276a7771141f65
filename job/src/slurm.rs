//! A step of Slurm without PMIx. The step's nodes and number determine a common address for the bootstrap, and the job's identity.

use super::bootstrap::Bootstrap;
use super::gather::SLURM;
use super::process_info::{Get, PORT, ProcessInfo, Secret, check_id, refuse, renamed};
use crate::Error;
use tieline_plugin_api::address_hash;

/// The first of the ports for bootstraps. Unless a variable sets the port, the numbers of the job and the step select it.
const FIRST_PORT: u64 = 20_000;
/// The number of ports for bootstraps.
const PORTS: u64 = 10_000;

/// The variable that names the nodes.
const NODES: &str = "SLURM_STEP_NODELIST";

/// Returns the identity. It includes TIELINE_JOB and, as far as Slurm states them, the cluster, the job and the step, which
/// distinguish a step from other steps. The distinction is needed because the range of ports is small, and two steps may get the
/// same port.
pub(super) fn identity(get: Get<'_>, own: &str) -> Result<String, Error> {
    let Some(job) = get("SLURM_JOB_ID") else { return Ok(own.to_owned()) };
    let or = |name: &str, otherwise: &str| get(name).unwrap_or_else(|| otherwise.to_owned());
    let (cluster, step) = (or("SLURM_CLUSTER_NAME", "-"), or("SLURM_STEP_ID", "-"));
    let id = format!("{own} {SLURM}{cluster} {job}.{step}").trim_start().to_owned();
    check_id(&id)?;
    Ok(id)
}

/// Makes the bootstrap of the step. If the step has one node, the bootstrap is a local socket, whose ends check each other's user:
/// it needs no secret, and no port that another step might use.
pub(super) fn bootstrap(
    get: Get<'_>,
    info: &ProcessInfo,
    secret: Secret<'_>,
) -> Result<Bootstrap, Error> {
    let address = if info.size > 1 { address(get)? } else { "127.0.0.1:1".into() };
    if get("SLURM_STEP_NUM_NODES").as_deref() == Some("1") {
        // If two identities have the same hash, their hellos distinguish them.
        let name = format!("{address}-{:016x}", address_hash(info.id.as_bytes()));
        return Ok(Bootstrap::on_this_host(address, NODES, &name));
    }
    Bootstrap::new(address, NODES, secret)
}

/// Returns an address such as `node07:23456`: the step's first node, where Slurm starts rank 0, and TIELINE_BOOTSTRAP_PORT or a
/// port derived from the step.
fn address(get: Get<'_>) -> Result<String, Error> {
    let port = match renamed(get, PORT) {
        Some((name, text)) => text
            .trim()
            .parse::<u16>()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| refuse(format!("{name} is `{text}`, and should be a port")))?,
        None => {
            let number = |name| get(name).and_then(|text| text.parse::<u64>().ok());
            let (Some(job), step) = (number("SLURM_JOB_ID"), number("SLURM_STEP_ID")) else {
                return Err(refuse("SLURM_JOB_ID is not a number".into()));
            };
            let port = FIRST_PORT + job.wrapping_mul(64).wrapping_add(step.unwrap_or(0)) % PORTS;
            u16::try_from(port).unwrap_or(u16::MAX)
        }
    };
    if get("SLURM_STEP_NUM_NODES").as_deref() == Some("1") {
        return Ok(format!("127.0.0.1:{port}"));
    }
    let list = get(NODES).unwrap_or_default();
    match first(&list) {
        Some(node) => Ok(format!("{node}:{port}")),
        None => Err(refuse(format!("{NODES} is `{list}`, which names no first node"))),
    }
}

/// Returns the first name of a list such as `node[07-12,15],login` or `rack[1-2]n[01-04]`.
fn first(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list.trim();
    loop {
        let stop = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..stop]);
        rest = &rest[stop..];
        if !rest.starts_with('[') {
            let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            return (!name.is_empty() && name.chars().all(good)).then_some(name);
        }
        let (inside, after) = rest[1..].split_once(']')?;
        // The first number keeps its zeros: `[07-12]` begins with 07.
        let number = inside.split([',', '-']).next()?;
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        name.push_str(number);
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_of_every_kind_of_list() {
        for (list, node) in [
            ("alpha", "alpha"),
            ("alpha,beta", "alpha"),
            ("node[07-12,15],login", "node07"),
            ("node[3]", "node3"),
            ("rack[1-2]n[01-04]", "rack1n01"),
            ("gpu[10,12]-ib.example.org", "gpu10-ib.example.org"),
        ] {
            assert_eq!(first(list).as_deref(), Some(node), "{list}");
        }
        for list in ["", ",", "a[", "a[]", "a[x-y]", "a]b", "a b", "$(reboot)", "[-3]"] {
            assert_eq!(first(list), None, "{list}");
        }
    }

    #[test]
    fn a_step_meets_at_its_first_node_and_steps_at_different_ports() {
        let step = |job: &str, step: &str, nodes: &str, port: &str| {
            let set = [
                ("SLURM_JOB_ID", job.to_owned()),
                ("SLURM_STEP_ID", step.to_owned()),
                (NODES, "n[1-2]".to_owned()),
                ("SLURM_STEP_NUM_NODES", nodes.to_owned()),
                ("TIELINE_BOOTSTRAP_PORT", port.to_owned()),
            ];
            address(&move |name| {
                let found = set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
                found.filter(|value| !value.is_empty())
            })
        };
        assert_eq!(step("7", "0", "2", "").unwrap(), "n1:20448");
        assert_ne!(step("7", "1", "2", "").unwrap(), step("7", "0", "2", "").unwrap());
        assert_eq!(step("7", "0", "2", "4000").unwrap(), "n1:4000");
        assert_eq!(step("7", "0", "1", "").unwrap(), "127.0.0.1:20448");
        assert!(step("7", "0", "2", "x").is_err());
        assert!(step("18446744073709551615", "3", "2", "").is_ok());
    }

    #[test]
    fn identity_distinguishes_jobs_and_steps_and_keeps_tieline_job() {
        let identity = |own: &str, job: &'static str, step: &'static str| {
            let get = |name: &str| match name {
                "SLURM_JOB_ID" => Some(job.to_owned()),
                "SLURM_STEP_ID" => Some(step.to_owned()),
                "SLURM_CLUSTER_NAME" => Some("alpha".to_owned()),
                _ => None,
            };
            super::identity(&get, own).unwrap()
        };
        assert_eq!(identity("", "1", "0"), "slurm alpha 1.0");
        assert_eq!(identity("mine", "1", "0"), "mine slurm alpha 1.0");
        assert_ne!(identity("", "1", "0"), identity("", "626", "0"));
        assert_ne!(identity("", "1", "0"), identity("", "1", "1"));
        assert_eq!(super::identity(&|_| None, "mine").unwrap(), "mine");
        assert_eq!(address_hash(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
