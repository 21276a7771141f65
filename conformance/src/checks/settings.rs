//! Checks of the variables of a provider: their possible values, and their effect.

use super::rma::{Bench, TARGET, bench};
use crate::case::{ALL_RIGHTS, Case};
use crate::enter::modules;
use crate::load;
use crate::report::{Checked, Stop, Verdict, fail, holds, succeeds};
use crate::runner::{self, Plan};
use crate::sys::Provider;
use crate::watch::limit;
use tieline_plugin_api::abi::Declared;
use tieline_plugin_api::{Status, caps, config_kind};

/// Returns the smallest accepted value that is not 0, and the greatest accepted one, at most 64 MiB or a million.
fn values(variable: &Declared) -> Option<[String; 2]> {
    let accepts = variable.accepts();
    let enough = match accepts.kind {
        config_kind::SIZE => 64 << 20,
        config_kind::COUNT => 1_000_000,
        _ => return None,
    };
    let most = if accepts.most == 0 { enough } else { accepts.most.min(enough) };
    Some([accepts.least.max(1), most.max(accepts.least)].map(|value| value.to_string()))
}

fn tried(case: &Case) -> &'static str {
    match case.is_connector() {
        true => "a_datagram_to_oneself_arrives",
        false if case.has(caps::AM_SHORT) => {
            "a_peer_arrives_with_its_identity_before_its_first_message"
        }
        false if case.has(caps::PUT | caps::GET) => "an_iov_of_the_greatest_length_works",
        false => "an_endpoint_that_is_closed_at_once_harms_nobody",
    }
}

fn plan(case: &Case) -> Plan {
    Plan {
        path: case.path.clone(),
        module: None,
        filter: None,
        program: case.peer_program.clone(),
        limit: limit() / 2,
        until_failure: false,
    }
}

pub(super) fn settings_hold_or_are_refused_by_name(case: &Case) -> Checked {
    let mut any = false;
    for variable in load::declared() {
        for value in values(&variable).into_iter().flatten() {
            any = true;
            let setting = [(variable.name.as_str(), value.as_str())];
            let what = format!("{}={value}", variable.name);
            match runner::one(&plan(case), tried(case), &case.name(), &setting) {
                Verdict::Passed | Verdict::Skipped(_) => {}
                Verdict::Failed(words) if words.contains(&variable.name) => {}
                Verdict::Failed(words) => {
                    let expected =
                        "that it works, or is refused with a text that names the variable";
                    return Err(fail(what, expected, words));
                }
            }
        }
    }
    match any {
        true => Ok(()),
        false => Err(Stop::Skip("no variable is a size or a count".to_string())),
    }
}

pub(super) fn a_size_that_is_set_has_an_effect(case: &Case) -> Checked {
    let sizes = sizes();
    if sizes.is_empty() {
        return Err(Stop::Skip("no variable is a size".to_string()));
    }
    let mut same = Vec::new();
    for variable in &sizes {
        let seen: Vec<Option<String>> = ["4k", "16k", "256k", "1m"]
            .into_iter()
            .filter(|value| variable.accepts().read(value).is_some())
            .map(|value| runner::observe(&plan(case), &case.name(), &[(&variable.name, value)]))
            .collect();
        if seen.len() < 2 {
            continue;
        }
        // A value that the provider itself refuses also has an effect.
        if seen.iter().any(Option::is_none) || seen.iter().any(|one| one != &seen[0]) {
            return Ok(());
        }
        same.push(variable.name.as_str());
    }
    if same.is_empty() {
        return Err(Stop::Skip("no variable accepts two of the sizes that are tried".to_string()));
    }
    if modules(&case.path).is_ok_and(|all| all.len() > 1) {
        let why = format!("{} may be for another module", same.join(", "));
        return Err(Stop::Skip(why));
    }
    holds(
        false,
        format!("{} at sizes from 4k to 1m", same.join(", ")),
        "a difference in limits, queues or memory",
        "none: the setting is not used",
    )
}

fn sizes() -> Vec<Declared> {
    let mut sizes = load::declared();
    sizes.retain(|variable| variable.accepts().kind == config_kind::SIZE);
    sizes
}

fn nonsense(kind: u32) -> &'static [&'static str] {
    match kind {
        config_kind::SIZE => &["many", "-1", "4x"],
        config_kind::COUNT => &["many", "-1", "1.5"],
        config_kind::DURATION => &["soon", "20", "3 moons"],
        config_kind::BOOL => &["perhaps", "2"],
        _ => &[],
    }
}

pub(super) fn impossible_values_are_refused_by_name(case: &Case) -> Checked {
    let mut any = false;
    for variable in load::declared() {
        for value in nonsense(variable.accepts().kind) {
            any = true;
            // Only the host sets this variable.
            load::set(&variable.name, value);
            let entered = load::entry(&case.path).map_err(Stop::Fail).map(Provider::enter)?;
            load::forget();
            let kind = variable.accepts().name();
            let what = format!("{}={value}, which is a {kind}", variable.name);
            let expected = "INVALID from the entry function, with a text that names the variable";
            match entered {
                Ok(_) => return Err(fail(what, expected, "success")),
                Err(why) => {
                    let named = why.status == Status::Invalid && why.text.contains(&variable.name);
                    holds(named, what, expected, why)?;
                }
            }
        }
    }
    match any {
        true => Ok(()),
        false => Err(Stop::Skip("no variable is of a kind that can be wrong".to_string())),
    }
}

pub(super) fn contexts_have_each_their_own_settings(case: &Case) -> Checked {
    for variable in sizes() {
        let enter = |value: &str| {
            load::set(&variable.name, value);
            let case = Case::open(&case.path, &case.name(), &case.peer_program);
            load::forget();
            case.map_err(Stop::Skip)
        };
        for (small, large) in [("2k", "4k"), ("8k", "512k")] {
            let Ok(first) = enter(small) else { continue };
            let before = observed(&first)?;
            let Ok(second) = enter(large) else { continue };
            if alike(&observed(&second)?, &before) {
                continue;
            }
            // The effects are read again after the other context was opened: the first context's own settings still apply.
            let what = format!(
                "a context with {}={small}, after another one was opened with {large}",
                variable.name
            );
            let after = observed(&reopened(first)?)?;
            return holds(alike(&after, &before), what, format!("about {before}"), after);
        }
    }
    Err(Stop::Skip("no variable is a size that can be seen".to_string()))
}

/// Checks whether the numbers in two texts differ by an eighth at most: the number of posts before AGAIN depends on the timing of
/// the peer's answers.
fn alike(one: &str, other: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    let (one, other) = (numbers(one), numbers(other));
    let near = |(a, b): (&u64, &u64)| a.abs_diff(*b) <= *a.max(b) / 8;
    one.len() == other.len() && one.iter().zip(&other).all(near)
}

/// Returns the same module of the same context, with the present settings of a newly opened domain.
fn reopened(case: Case) -> Result<Case, Stop> {
    let name = tieline_plugin_api::abi::fixed_str(&case.domain_attr.name).unwrap_or("");
    let domain = succeeds("open_domain", case.provider.open_domain(name))?;
    let modules = succeeds("query_modules", domain.modules())?;
    let attr = modules.into_iter().find(|module| module.name == case.attr.name);
    let attr = attr.ok_or_else(|| fail("query_modules", "the module from before", "others"))?;
    Ok(Case { domain, attr, ..case }.limited())
}

/// Returns the visible effects of sizes: limits, the number of sends before AGAIN, and the memory report. A module without messages
/// makes a put before the report.
pub(crate) fn observed(case: &Case) -> Result<String, Stop> {
    let attr = &case.attr;
    let mut seen =
        vec![attr.max_short, attr.max_packed, attr.max_zcopy, attr.max_put, attr.max_get];
    if case.has(caps::AM_SHORT) {
        let mut desk = case.desk()?;
        let endpoint = desk.endpoint();
        desk.send(1, 0, b"")?;
        let _ = desk.receive()?;
        for len in [0, attr.max_short.min(1024)] {
            let (data, mut sent) = (vec![0; len], 0);
            while sent < 1 << 18 && endpoint.am_short(1, 0, &data) != Err(Status::Again) {
                sent += 1;
            }
            seen.push(sent);
            for _ in 0..sent {
                let _ = desk.receive()?;
            }
        }
        if let Ok(used) = desk.boxes[0].interface.memory_use() {
            seen.extend([used.base_bytes, used.peer_bytes, used.buffer_bytes].map(|n| n as usize));
        }
    }
    if case.has(caps::PUT) && !case.has(caps::AM_SHORT) {
        let Bench { mut desk, target: _target, key, local, .. } = bench(case, ALL_RIGHTS)?;
        // The operation is in the middle of the region, with the same length on both sides, wherever the region lies.
        let _ = desk.rma(true, &[local.piece(0..8)], &key, TARGET as u64 / 2)?;
        if let Ok(used) = desk.boxes[0].interface.memory_use() {
            seen.extend([used.base_bytes, used.peer_bytes, used.buffer_bytes].map(|n| n as usize));
        }
    }
    Ok(format!("{seen:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_observations_are_alike_and_doubled_ones_are_not() {
        assert!(alike("[2048, 0, 32]", "[2048, 0, 31]"));
        assert!(alike("[8]", "[9]") && !alike("[6]", "[7]") && !alike("[0]", "[1]"));
        assert!(!alike("[2048]", "[4096]") && !alike("[1, 2]", "[1]"));
    }
}
