//! Tests of the report of real contexts over the built-in providers.

#![cfg(feature = "builtin")]

use tieline::Context;
use tieline::explain::Verdict;
use tieline::report::Report;

fn states<'a>(report: &'a Report, subject: &str) -> Vec<&'a str> {
    let about = report.records.iter().filter(|record| record.subject() == subject);
    about.map(|record| record.verdict.state()).collect()
}

#[test]
fn everything_that_is_used_has_a_record_and_a_path() {
    let report = Context::open().unwrap().report();
    assert!(report.providers.iter().any(|provider| provider.name == "shm"));
    for module in &report.modules {
        let subject = format!("{}/{}", module.domain, module.module);
        assert!(!states(&report, &subject).is_empty(), "{subject} has no record");
    }
    let shm = report.paths.iter().find(|path| path.domain == "shm").unwrap();
    assert!(shm.message.is_some() && shm.disabled.is_none());
    assert_eq!(report.lanes[0].role, "message");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["abi"], "1.1");
}

#[test]
fn provider_excluded_by_variable_is_reported_with_it() {
    let context = Context::builder().set("TIELINE_PROVIDERS", "^shm-cma").open().unwrap();
    let report = context.report();
    assert_eq!(states(&report, "shm-cma"), ["left out"]);
    assert!(report.why().contains("by TIELINE_PROVIDERS=^shm-cma (program)"), "{}", report.why());
    assert!(report.paths.iter().all(|path| path.domain != "shm-cma"));
}

#[test]
fn a_context_that_cannot_be_used_can_still_be_explained() {
    let builder = || Context::builder().set("TIELINE_PROVIDERS", "^shm,tcp");
    let (report, error) = builder().report().unwrap();
    assert_eq!(states(&report, "shm"), ["left out"]);
    let error = error.unwrap();
    assert!(error.why().contains("shm: left out by TIELINE_PROVIDERS=^shm,tcp"), "{error}");
    assert_eq!(builder().open().err(), Some(error));
}

#[test]
fn a_required_provider_that_is_missing_is_an_error() {
    let open = |list: &str| Context::builder().set("TIELINE_PROVIDERS", list).open().map(|_| ());
    assert_eq!(open("required:shm,shm-cma"), Ok(()));
    let error = open("shm,required:no-such-thing").unwrap_err();
    assert!(error.what().contains("no-such-thing is required"), "{error}");
}

#[test]
fn a_misspelt_name_is_found_and_the_right_one_suggested() {
    let report = Context::builder()
        .set("TIELINE_PROVIDERS", "^shm-cam")
        .set("TIELINE_SHM_FASTBOX_SIZ", "4k")
        .open()
        .unwrap()
        .report();
    let nearest = report.records.iter().find_map(|record| match &record.verdict {
        Verdict::NotFound { nearest, .. } => nearest.as_deref(),
        _ => None,
    });
    assert_eq!(nearest, Some("shm-cma"));
    let warning = &report.warnings[0];
    assert!(warning.contains("did you mean TIELINE_SHM_FASTBOX_SIZE?"), "{warning}");
}

#[test]
fn the_configuration_lists_the_providers_variables_with_their_origin() {
    let context = Context::builder().set("TIELINE_SHM_FASTBOX_SIZE", "8k").open().unwrap();
    let config = context.report().config;
    let size = config.iter().find(|value| value.name == "TIELINE_SHM_FASTBOX_SIZE").unwrap();
    assert_eq!((size.value.as_str(), size.owner.as_str()), ("8k", "shm"));
    assert_eq!(size.origin.to_string(), "program");
    assert_eq!(size.default, "4k");
}

/// A file that is removed with its test.
struct Told(std::path::PathBuf);

impl Told {
    fn new(name: &str) -> Told {
        let file = format!("tieline-report-{name}-{}", std::process::id());
        Told(std::env::temp_dir().join(file))
    }

    fn context(&self) -> Context {
        // Providers without a device are loaded too, so that they log.
        let builder = Context::builder()
            .load_all_providers(true)
            .set("TIELINE_REPORT", &self.0.display().to_string());
        builder.set("TIELINE_LOG", "debug").open().unwrap()
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn provider_log_is_in_file_of_tieline_report() {
    let told = Told::new("log");
    let report = told.context().report();
    assert!(!report.log.is_empty(), "they say something at this level");
    let lines = told.lines();
    for line in &report.log {
        let text = format!("{}: {}", line.provider, line.text.lines().next().unwrap_or(""));
        assert!(lines.iter().any(|told| told.contains(&text)), "{text}: {lines:#?}");
    }
}

#[test]
fn peer_lost_with_open_operations_is_in_file_with_reason() {
    let told = Told::new("failure");
    let (here, there) = (told.context(), Context::open().unwrap());
    let (us, them) = (here.worker().unwrap(), there.worker().unwrap());
    let endpoint = us.connect(&them.address().unwrap()).unwrap();
    let sent = endpoint.flush_messages().unwrap();
    let before = told.lines();
    drop((them, there));
    let error = us.finish(sent).unwrap_err();
    let after = told.lines();
    let ended: Vec<&String> = after.iter().filter(|line| !before.contains(line)).collect();
    let words = endpoint.error().unwrap_or_else(|| panic!("{error}")).to_string();
    assert!(ended.iter().any(|line| line.contains(&words)), "{words}: {ended:#?}");
}
