//! Tests of the report's texts and of its JSON.

use super::record_lines;
use crate::record::{Record, Verdict};
use crate::snapshot::{LaneView, LogView, ModuleView, PathView, ProviderView, Report};
use std::collections::BTreeMap;

/// Makes a report of two providers, with records of a refused provider and of a misspelt name.
fn sample() -> Report {
    let module = |domain: &str, module: &str, can: &[&str], used: &[&str], priority| ModuleView {
        provider: domain.split(':').next().unwrap().into(),
        domain: domain.into(),
        module: module.into(),
        role: "data path".into(),
        connects_to: if module == "rc" { "endpoint" } else { "interface" }.into(),
        can: can.iter().map(|s| (*s).into()).collect(),
        priority,
        priority_by: None,
        cost_ns: BTreeMap::new(),
        used_for: used.iter().map(|s| (*s).into()).collect(),
    };
    let path = |domain: &str, message: Option<&str>, rma: Option<&str>| PathView {
        domain: domain.into(),
        provider: domain.into(),
        message: message.map(Into::into),
        rma: rma.map(Into::into),
        atomic: message.map(|_| "emulated".into()),
        connection: None,
        connection_because: None,
        composed: format!("{{message of {domain}}}"),
        passive_target: rma.map(|_| "RMA".into()).into_iter().collect(),
        disabled: None,
    };
    Report {
        version: "0.1.0".into(),
        abi: "1.0".into(),
        searched: "/usr/lib/tieline-1/providers".into(),
        providers: vec![
            ProviderView {
                name: "shm".into(),
                version: "0.1.0".into(),
                origin: "built in".into(),
                not_used: None,
            },
            ProviderView {
                name: "shm-cma".into(),
                version: "0.1.0".into(),
                origin: "/usr/lib/tieline-1/providers/libtieline_shm_cma.so".into(),
                not_used: None,
            },
        ],
        domains: vec![],
        modules: vec![
            module(
                "shm",
                "mem",
                &["messages", "put", "get", "atomics", "own memory only", "local"],
                &["message", "RMA"],
                80,
            ),
            module("shm-cma", "copy", &["put", "get", "local"], &["RMA"], 70),
        ],
        paths: vec![
            path("shm", Some("shm/mem"), Some("shm/mem")),
            path("shm-cma", None, Some("shm-cma/copy")),
        ],
        lanes: vec![LaneView {
            role: "message".into(),
            via: "shm/mem".into(),
            memory: None,
            because: "priority 80".into(),
        }],
        waits: "spin for 100µs, then yield their processor, then sleep: 1 process of the job on this host, 2 processors".into(),
        records: vec![
            Record::provider(
                "shm",
                Verdict::Found { origin: "built in".into(), version: "0.1.0".into() },
            ),
            Record::provider(
                "verbs",
                Verdict::Refused {
                    phase: "note".into(),
                    expected: "ABI 1".into(),
                    found: "ABI 2 (/usr/lib/tieline-1/providers/libtieline_verbs.so)".into(),
                },
            ),
            Record::provider(
                "shm-cam",
                Verdict::NotFound {
                    looked: "/usr/lib/tieline-1/providers, for TIELINE_PROVIDERS=^shm-cam".into(),
                    nearest: Some("shm-cma".into()),
                },
            ),
            Record::module(
                "shm",
                "shm",
                "mem",
                Verdict::ChosenFor {
                    roles: vec!["message".into(), "RMA".into()],
                    because: "the only one of its domain".into(),
                },
            ),
        ],
        warnings: vec![
            "TIELINE_PROVIDRS=shm (environment) is not known; did you mean TIELINE_PROVIDERS?"
                .into(),
        ],
        log: vec![LogView {
            provider: "shm".into(),
            level: "warn".into(),
            text: "a line".into(),
            event: None,
        }],
        config: vec![],
        files: vec![],
    }
}

#[test]
fn a_record_reads_as_its_line_of_the_report() {
    let verdict = Verdict::Unreachable { because: "another host".into() };
    let record = Record::module("shm", "shm", "ring", verdict);
    assert_eq!(record.to_string(), "shm/ring: unreachable: another host");
}

#[test]
fn module_that_is_used_for_one_role_does_not_count_as_unused() {
    let mut report = sample();
    let (winner, rule) = ("tcp/stream".into(), "priority".into());
    let outranked = Verdict::OutrankedBy { winner, rule };
    report.records.push(Record::module("shm", "shm", "mem", outranked));
    assert!(report.table().contains("2 not used"), "{}", report.table());
}

#[test]
fn the_table_fits_a_terminal_and_shows_warnings() {
    let text = sample().table();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for part in [
        "shm-cma/copy  70",
        "WARNINGS",
        "did you mean TIELINE_PROVIDERS?",
        "shm-cam is not found",
        "2 not used",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn why_has_a_line_for_every_record() {
    let report = sample();
    let text = report.why();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for record in &report.records {
        assert!(
            text.contains(&record.subject()) && text.contains(record.verdict.state()),
            "{text}"
        );
    }
    assert!(text.contains("verbs    refused    note: ABI 2"), "{text}");
    assert!(text.contains("did you mean shm-cma?"), "{text}");
}

#[test]
fn a_provider_whose_device_is_not_here_is_not_used_and_says_so_in_a_line() {
    let mut report = sample();
    let because = "no device in /sys/class/infiniband".to_owned();
    report.providers.push(ProviderView {
        name: "verbs".into(),
        version: "0.1.0".into(),
        origin: "built in".into(),
        not_used: Some(because.clone()),
    });
    report.records = vec![Record::provider("verbs", Verdict::NotUsed { because })];
    let line = "not used: no device in /sys/class/infiniband";
    assert!(report.table().contains(&format!("verbs     0.1.0    {line}\n")), "{}", report.table());
    let line = line.replace("used: ", "used  ");
    assert!(report.why().contains(&format!("verbs  {line}\n")), "{}", report.why());
}

#[test]
fn a_composed_path_stands_in_one_line_and_its_trouble_under_it() {
    let mut report = sample();
    let composed = "{message rc, RMA rc, atomic rc, connect tcp-connect (fallback: no module of verbs:rxe0 can carry \
                    a connection)}";
    report.paths[0].domain = "verbs:rxe0".into();
    report.paths[0].composed = composed.into();
    report.paths[1].disabled = Some("nobody forms its connections".into());
    let text = report.why();
    assert!(text.contains(&format!("  verbs:rxe0  {composed}\n")), "{text}");
    let trouble = "  shm-cma     {message of shm-cma}\n              disabled: nobody forms its connections\n";
    assert!(text.contains(trouble), "{text}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["paths"][0]["composed"], composed);
}

#[test]
fn a_report_of_nothing_says_where_was_looked() {
    let mut report = sample();
    report.providers.clear();
    report.modules.clear();
    report.paths.clear();
    report.records.clear();
    report.warnings.clear();
    assert!(
        report.why().contains("none; looked in /usr/lib/tieline-1/providers"),
        "{}",
        report.why()
    );
    assert!(report.table().contains("PROVIDER\nnone\n"), "{}", report.table());
}

#[test]
fn the_json_is_the_same_report() {
    let value: serde_json::Value = serde_json::from_str(&sample().to_json()).unwrap();
    assert_eq!(value["records"][1]["verdict"]["is"], "refused");
    assert_eq!(value["paths"][1]["rma"], "shm-cma/copy");
    assert_eq!(value["modules"][0]["used_for"][0], "message");
}

/// Makes a report with everything that either text can contain.
fn rich() -> Report {
    let mut report = sample();
    report.providers[1].not_used = Some("no device".into());
    report.modules[1].used_for.clear();
    report.modules[1].can.clear();
    report.paths[1].disabled = Some("nobody forms its connections".into());
    report.paths[0].connection = Some("tcp-connect/stream".into());
    let lane = |role: &str, via: &str, because: &str| LaneView {
        role: role.into(),
        via: via.into(),
        memory: None,
        because: because.into(),
    };
    report.lanes.push(lane("message", "tcp/stream", "priority 10"));
    report.lanes.push(lane("RMA", "emulated", "no other"));
    report.log.push(LogView {
        provider: "tcp".into(),
        level: "error".into(),
        text: "eth0".into(),
        event: Some("port_down".into()),
    });
    report
}

#[test]
fn the_table_is_this_word_for_word() {
    assert_eq!(
        rich().table(),
        "Tieline 0.1.0, provider ABI 1.0\n\
         \n\
         PROVIDER  VERSION  FROM\n\
         shm       0.1.0    built in\n\
         shm-cma   0.1.0    not used: no device\n\
         \n\
         MODULE        PRIORITY  USED FOR      CONNECTS TO  CAN\n\
         shm/mem       80        message, RMA  interface    messages, put, get, atomics, own memory only,\n\
         \x20                                                  local\n\
         shm-cma/copy  70        -             interface    connect\n\
         \n\
         PATH     MESSAGE  RMA   ATOMIC    CONNECTION          PASSIVE TARGET\n\
         shm      mem      mem   emulated  tcp-connect/stream  RMA\n\
         shm-cma  -        copy  -         -                   disabled\n\
         \n\
         WARNINGS\n\
         \x20 TIELINE_PROVIDRS=shm (environment) is not known; did you mean TIELINE_PROVIDERS?\n\
         \x20 shm-cam is not found: did you mean shm-cma? looked in /usr/lib/tieline-1/providers, for\n\
         \x20 TIELINE_PROVIDERS=^shm-cam\n\
         \n\
         2 not used: `tieline info --why` says why\n"
    );
}

#[test]
fn why_is_this_word_for_word() {
    assert_eq!(
        rich().why(),
        "Tieline 0.1.0, provider ABI 1.0\n\
         \n\
         PROVIDERS\n\
         \x20 shm      found      version 0.1.0, built in\n\
         \x20 shm-cam  not found  did you mean shm-cma? looked in /usr/lib/tieline-1/providers, for\n\
         \x20                     TIELINE_PROVIDERS=^shm-cam\n\
         \x20 verbs    refused    note: ABI 2 (/usr/lib/tieline-1/providers/libtieline_verbs.so); expected ABI 1\n\
         \n\
         DIRECTORIES SEARCHED FOR PROVIDERS, IN ORDER\n\
         \x20 /usr/lib/tieline-1/providers\n\
         \n\
         DOMAINS AND MODULES\n\
         \x20 shm/mem  used  for message, RMA: the only one of its domain\n\
         \n\
         PATHS\n\
         \x20 shm      {message of shm}\n\
         \x20 shm-cma  {message of shm-cma}\n\
         \x20          disabled: nobody forms its connections\n\
         \n\
         ORDER, FOR A PEER THAT EVERY MODULE REACHES\n\
         \x20 message  shm/mem     priority 80\n\
         \x20          tcp/stream  priority 10\n\
         \x20 RMA      emulated    no other\n\
         \n\
         WAITS\n\
         \x20 spin for 100µs, then yield their processor, then sleep: 1 process of the job on this host, 2\n\
         \x20 processors\n\
         \n\
         WARNINGS\n\
         \x20 TIELINE_PROVIDRS=shm (environment) is not known; did you mean TIELINE_PROVIDERS?\n\
         \n\
         LOG\n\
         \x20 warn   shm  a line\n\
         \x20 error  tcp  port down: eth0\n"
    );
}

#[test]
fn short_report_names_folder_once_and_omits_normal_reasons() {
    let mut report = rich();
    let file = |name: &str| Verdict::Found {
        origin: format!("/usr/lib/tieline-1/providers/libtieline_{name}.so"),
        version: "0.1.0".into(),
    };
    let because =
        "there is no /dev/knem: the kernel module knem is not loaded; version 0.1.0, /a.so";
    report.records = vec![
        Record::provider("shm", file("shm")),
        Record::provider("tcp", file("tcp")),
        Record::provider("shm-knem", Verdict::NotUsed { because: because.into() }),
        Record::module(
            "shm",
            "shm",
            "mem",
            Verdict::ChosenFor { roles: vec![], because: "it is".into() },
        ),
        Record::module("tcp", "tcp", "mem", Verdict::Disabled { because: "by a list".into() }),
    ];
    let lane = |via: &str, memory: Option<&str>| LaneView {
        role: "RMA".into(),
        via: via.into(),
        memory: memory.map(str::to_owned),
        because: "priority 70".into(),
    };
    report.lanes = vec![lane("shm-cma/copy", Some("any")), lane("emulated", Some("any"))];
    let info = |text: &str| LogView {
        provider: "tcp".into(),
        level: "info".into(),
        text: text.into(),
        event: None,
    };
    report.log = vec![info("a line of no weight")];
    report.warnings.clear();
    assert_eq!(
        report.why_briefly_within(100),
        "Tieline 0.1.0, provider ABI 1.0\n\
         \n\
         PROVIDERS, files in /usr/lib/tieline-1/providers\n\
         \x20 shm       found     version 0.1.0, libtieline_shm.so\n\
         \x20 shm-knem  not used  there is no /dev/knem\n\
         \x20 tcp       found     version 0.1.0, libtieline_tcp.so\n\
         \n\
         DOMAINS AND MODULES THAT ARE NOT USED\n\
         \x20 tcp/mem  disabled  by a list\n\
         \n\
         PATHS\n\
         \x20 shm      {message of shm}\n\
         \x20 shm-cma  {message of shm-cma}\n\
         \x20          disabled: nobody forms its connections\n\
         \n\
         ORDER, FOR A PEER THAT EVERY MODULE REACHES\n\
         \x20 RMA  shm-cma/copy  priority 70\n\
         \n\
         `tieline info --why --all` shows the rest\n"
    );
    // A file in another folder is shown with its path.
    let origin = "/opt/libtieline_mine.so".to_owned();
    let elsewhere = Verdict::Found { origin, version: "1.0.0".into() };
    report.records.push(Record::provider("mine", elsewhere));
    let said = report.why_briefly_within(100);
    assert!(said.contains("PROVIDERS\n") && said.contains("/opt/libtieline_mine.so\n"), "{said}");
}

#[test]
fn records_of_one_subject_share_its_name_and_keep_order() {
    let because = |words: &str| Verdict::NotUsed { because: words.into() };
    let records = [
        Record::provider("verbs", because("second by name")),
        Record::provider("shm", because("one")),
        Record::provider("shm", because("another")),
        Record::provider("shm", because("a third")),
    ];
    assert_eq!(
        record_lines(&records),
        "\x20 shm    not used  one\n\
         \x20        not used  another\n\
         \x20        not used  a third\n\
         \x20 verbs  not used  second by name\n"
    );
}

#[test]
fn two_files_with_one_short_reason_are_one_line_and_all_shows_both() {
    let at = |origin: &str| {
        let because = format!("no device: none is there; version 0.1.0, {origin}");
        Record::provider("verbs", Verdict::NotUsed { because })
    };
    let mut report = sample();
    report.records = vec![at("/usr/lib/a.so"), at("/opt/b.so")];
    let short = report.why_briefly_within(100);
    assert_eq!(short.matches("no device").count(), 1, "{short}");
    let whole = report.why_within(100);
    assert!(whole.contains("/usr/lib/a.so") && whole.contains("/opt/b.so"), "{whole}");
}
