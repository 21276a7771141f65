use super::*;
use std::path::Path;
use std::path::PathBuf;
use tieline_plugin_api::{ConfigDoc, config::shared};

mod names;

fn env(variables: &[(&str, &str)]) -> ConfigBuilder {
    Config::builder().environment(variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())))
}

fn size(name: &'static str, default: &'static str) -> Declared {
    (&ConfigDoc::size(name, default, "Doc.")).into()
}

/// A file that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Scratch {
        let directory =
            std::env::temp_dir().join(format!("tieline-config-{}-{name}", std::process::id()));
        let path = directory.join("tieline").join("tieline.toml");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        Scratch(directory)
    }

    fn file(&self) -> PathBuf {
        self.0.join("tieline").join("tieline.toml")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_default_holds_when_nobody_says_otherwise() {
    let config = env(&[]).build().unwrap();
    assert_eq!(config.size(vars::QUEUE_BYTES).unwrap(), 256 << 10);
    assert_eq!(config.origin(vars::QUEUE_BYTES), Origin::Default);
    assert_eq!(config.count(vars::ANNOUNCED).unwrap(), 262_144);
    assert_eq!(config.get(vars::PROVIDERS), None);
    assert!(!config.bool(vars::STRICT).unwrap());
    assert_eq!(config.word(vars::CONNECT_POLICY).unwrap(), "fallback");
    assert_eq!(config.text(vars::CONNECT), "tcp-connect,oob,rdmacm");
}

#[test]
fn every_default_of_the_core_is_valid() {
    let config = env(&[]).build().unwrap();
    for var in vars::CORE {
        assert!(var.default.is_empty() || var.kind.admits(var.default), "{}", var.name);
        if var.kind == Kind::Selection {
            let _ = config.selection(var.name).unwrap();
        }
        assert!(var.doc.ends_with('.'), "{}", var.name);
    }
}

#[test]
fn program_beats_environment_beats_files_beats_default() {
    let system = Scratch::new(
        "order-system",
        "queue_bytes = \"1k\"\nlog = \"debug\"\nprobe = \"off\"\nselftest = true\n",
    );
    let user =
        Scratch::new("order-user", "queue_bytes = \"2k\"\nlog = \"info\"\nprobe = \"nocache\"\n");
    let named = Scratch::new("order-named", "queue_bytes = \"3k\"\nlog = \"error\"\n");
    let config = env(&[
        ("XDG_CONFIG_HOME", user.0.to_str().unwrap()),
        ("TIELINE_CONFIG", named.file().to_str().unwrap()),
        ("TIELINE_QUEUE_BYTES", "4k"),
    ])
    .system_file(&system.file())
    .set("TIELINE_QUEUE_BYTES", "5k")
    .build()
    .unwrap();
    assert_eq!(config.size(vars::QUEUE_BYTES).unwrap(), 5 << 10);
    assert_eq!(config.origin(vars::LOG), Origin::File(named.file(), 2));
    assert_eq!(config.origin(vars::PROBE), Origin::File(user.file(), 3));
    assert_eq!(config.origin(vars::SELFTEST), Origin::File(system.file(), 4));
    let views = config.views();
    let queue = views.iter().find(|view| view.name == vars::QUEUE_BYTES).unwrap();
    let lost: Vec<_> = queue.overridden.iter().map(|setting| setting.value.as_str()).collect();
    assert_eq!(lost, ["4k", "3k", "2k", "1k"]);
    assert!(config.files().iter().all(|file| file.state == "read"));
}

#[test]
fn an_empty_value_counts_as_not_set() {
    let config = env(&[("TIELINE_QUEUE_BYTES", " ")]).build().unwrap();
    assert_eq!(config.size(vars::QUEUE_BYTES).unwrap(), 256 << 10);
    assert_eq!(config.origin(vars::QUEUE_BYTES), Origin::Default);
}

#[test]
fn with_raised_rights_the_user_chooses_no_file() {
    let system = Scratch::new("rights-system", "log = \"debug\"\nprovider_path = \"/of/root\"\n");
    let user = Scratch::new("rights-user", "probe = \"off\"\n");
    let config = env(&[
        ("XDG_CONFIG_HOME", user.0.to_str().unwrap()),
        ("TIELINE_CONFIG", "/does/not/exist"),
        ("TIELINE_PROVIDER_PATH", "/tmp/evil"),
        ("TIELINE_SECRET_FILE", "/etc/shadow"),
        ("TIELINE_SHM_DIR", "/etc/here"),
        ("TIELINE_OF_A_PROVIDER_PATH", "/tmp/evil"),
        ("TIELINE_REPORT", "/tmp/evil"),
        ("TIELINE_QUEUE_BYTES", "4k"),
    ])
    .system_file(&system.file())
    .raised_rights(true)
    .build()
    .unwrap();
    assert_eq!(config.text(vars::PROBE), "on");
    assert_eq!(config.text(vars::LOG), "debug");
    assert_eq!(config.get(vars::PROVIDER_PATH).as_deref(), Some("/of/root"));
    assert_eq!(config.get(vars::SECRET_FILE), None);
    assert_eq!(config.get("TIELINE_SHM_DIR"), None);
    assert_eq!(config.get("TIELINE_OF_A_PROVIDER_PATH"), None);
    assert_eq!(config.text(vars::QUEUE_BYTES), "4k");
    assert_eq!(config.report_to().unwrap(), None);
    assert_eq!(config.warnings().len(), 6, "{:?}", config.warnings());
}

#[test]
fn report_goes_to_stderr_or_path_and_plain_word_is_refused() {
    let to = |value: &str| env(&[("TIELINE_REPORT", value)]).build().unwrap().report_to();
    assert_eq!(to("").unwrap(), None);
    assert_eq!(to("stderr").unwrap(), Some(ReportTo::Stderr));
    assert_eq!(to("./report.%p").unwrap(), Some(ReportTo::File("./report.%p".into())));
    for word in ["stdout", "on", "1"] {
        let error = to(word).unwrap_err();
        assert!(
            error.to_string().contains(&format!("TIELINE_REPORT={word} (environment)")),
            "{error}"
        );
    }
}

#[test]
fn with_raised_rights_the_environment_may_have_the_report_on_stderr_alone() {
    let under =
        |value: &str| env(&[("TIELINE_REPORT", value)]).raised_rights(true).build().unwrap();
    assert_eq!(under("stderr").report_to().unwrap(), Some(ReportTo::Stderr));
    let before = env(&[("TIELINE_REPORT", "/tmp/report")]).raised_rights(true);
    assert_eq!(before.report_to(), None);
    let config = under("/tmp/report");
    assert_eq!(config.report_to().unwrap(), None);
    assert!(config.warnings()[0].contains("TIELINE_REPORT is ignored"), "{:?}", config.warnings());
}

#[test]
fn a_named_file_that_is_missing_is_an_error() {
    let error = env(&[("TIELINE_CONFIG", "/does/not/exist.toml")]).build().unwrap_err();
    assert!(error.what().contains("/does/not/exist.toml"), "{error}");
    assert!(error.fix().contains("TIELINE_CONFIG"), "{error}");
}

#[test]
fn a_named_file_that_never_ends_is_an_error() {
    for odd in ["/dev/zero", "/dev/tty", "/"] {
        let error = env(&[("TIELINE_CONFIG", odd)]).build().unwrap_err();
        assert!(error.what().contains(odd) && error.fix().contains("TIELINE_CONFIG"), "{error}");
    }
    let secret = env(&[("TIELINE_SECRET_FILE", "/dev/zero")]).build().unwrap();
    let error = secret.secret().unwrap_err();
    assert!(error.what().contains("TIELINE_SECRET_FILE=/dev/zero (environment)"), "{error}");
    assert!(error.why().contains("not a regular file"), "{error}");
}

#[test]
fn a_file_that_names_another_is_warned_about_and_the_other_is_not_read() {
    let other = Scratch::new("chain-other", "queue_bytes = \"2k\"\n");
    let text = format!("log = \"debug\"\nconfig = \"{}\"\n", other.file().display());
    let first = Scratch::new("chain-first", &text);
    let config = env(&[("TIELINE_CONFIG", first.file().to_str().unwrap())]).build().unwrap();
    let place = format!("{}:2", first.file().display());
    let told = |warning: &&String| {
        warning.contains(&place)
            && warning.contains("TIELINE_CONFIG")
            && warning.contains("names no other file")
    };
    assert_eq!(config.warnings().iter().filter(told).count(), 1, "{:?}", config.warnings());
    assert_ne!(config.size(vars::QUEUE_BYTES).unwrap(), 2 << 10);
    assert_eq!(config.origin(vars::LOG), Origin::File(first.file(), 1), "the rest counts");
}

#[test]
fn uncommented_lines_of_packaged_settings_set_the_defaults() {
    let words: Declared =
        (&ConfigDoc::text("TIELINE_SHM_WAY", "a\\\"b", "A \"quoted\" word.")).into();
    let own = || vec![("shm", vec![size("TIELINE_SHM_BUFFER", "64k"), words.clone()])];
    let text = settings_file(own(), &[]);
    assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "{text}");
    let signs = |line: &str| {
        line.strip_prefix('#').filter(|rest| rest.starts_with("TIELINE_")).map(str::to_owned)
    };
    let lines: Vec<String> = text.lines().filter_map(signs).collect();
    assert!(lines.len() > 20, "{text}");
    assert!(!lines.iter().any(|line| line.starts_with("TIELINE_SECRET ")), "{text}");
    let file = Scratch::new("installed", &lines.join("\n"));
    let config = env(&[]).system_file(&file.file()).build().unwrap();
    config.declare("shm", own().remove(0).1);
    config.uses("shm");
    assert_eq!(config.check(&[]).unwrap(), [""; 0]);
    for view in config.views() {
        assert_eq!(view.value, view.default, "{}", view.name);
    }
    assert_eq!(config.origin("TIELINE_SHM_BUFFER"), Origin::File(file.file(), lines.len() - 1));
}

#[test]
fn a_missing_system_file_is_said_and_no_more() {
    let config = env(&[]).system_file(Path::new("/does/not/exist.toml")).build().unwrap();
    assert_eq!(config.files()[0].state, "not there");
    assert!(config.warnings().is_empty());
}

#[test]
fn a_bad_value_says_where_it_was_set_and_what_is_accepted() {
    let config = env(&[("TIELINE_ANNOUNCED", "inf")]).build().unwrap();
    assert_eq!(config.count(vars::ANNOUNCED).unwrap(), usize::MAX);
    let config = env(&[("TIELINE_ANNOUNCED", "many")]).build().unwrap();
    assert!(config.count(vars::ANNOUNCED).unwrap_err().why().contains("whole number"));
    let config = env(&[("TIELINE_QUEUE_BYTES", "many")]).build().unwrap();
    let error = config.size(vars::QUEUE_BYTES).unwrap_err();
    assert_eq!(error.what(), "TIELINE_QUEUE_BYTES=many (environment) is not valid");
    assert!(error.why().contains("64k"), "{error}");
    assert!(error.fix().contains("256k"), "{error}");
    assert_eq!(config.check(&[]).unwrap_err(), error);

    let file = Scratch::new("bad", "\nconnect_policy = \"always\"\n");
    let config = env(&[("TIELINE_CONFIG", file.file().to_str().unwrap())]).build().unwrap();
    let error = config.word(vars::CONNECT_POLICY).unwrap_err();
    assert!(error.what().contains(&format!("{}:2", file.file().display())), "{error}");
    assert_eq!(error.why(), "accepted are fallback, prefer");
}

#[test]
fn a_relative_provider_path_is_refused() {
    let config = env(&[("TIELINE_PROVIDER_PATH", "/a:.")]).build().unwrap();
    assert!(config.check(&[]).unwrap_err().why().contains("absolute"));
}

#[test]
fn a_selection_that_cannot_be_read_is_found_by_the_check() {
    let config = env(&[("TIELINE_DOMAINS", "a,^b")]).build().unwrap();
    assert!(config.check(&[]).unwrap_err().why().contains("either includes or excludes"));
}

#[test]
fn a_selection_from_a_file_is_cited_with_its_line() {
    let file = Scratch::new("cite", "\nproviders = \"^shm\"\n");
    let path = file.file();
    let config = env(&[("TIELINE_CONFIG", path.to_str().unwrap())]).build().unwrap();
    let cited = config.selection(vars::PROVIDERS).unwrap().cite();
    assert_eq!(cited, format!("TIELINE_PROVIDERS=^shm ({}:2)", path.display()));
}

#[test]
fn the_program_may_set_only_variables() {
    assert!(env(&[]).set("PATH", "/bin").build().unwrap_err().what().contains("PATH"));
}

#[test]
fn launcher_variable_outside_environment_is_warned_about() {
    let config =
        env(&[("TIELINE_RANK", "0")]).set("TIELINE_BOOTSTRAP_TIMEOUT", "300s").build().unwrap();
    let warnings = config.check(&[]).unwrap();
    assert_eq!(
        warnings,
        [
            "TIELINE_BOOTSTRAP_TIMEOUT (program) has no effect: it is read from the environment alone"
        ]
    );
    assert!(config.check(&[]).unwrap().is_empty());
    assert!(!config.views().iter().any(|view| view.owner == "unknown"));
}

#[test]
fn an_unknown_name_is_warned_about_once_with_the_nearest_one() {
    let config =
        env(&[("TIELINE_PROVIDRS", "shm"), ("TIELINE_WHATEVER_IT_IS", "1")]).build().unwrap();
    let warnings = config.check(&[]).unwrap();
    assert_eq!(
        warnings,
        [
            "TIELINE_PROVIDRS=shm (environment) is not known; did you mean TIELINE_PROVIDERS?",
            "TIELINE_WHATEVER_IT_IS=1 (environment) is not known; it has no effect",
        ]
    );
    assert!(config.check(&[]).unwrap().is_empty());
    assert_eq!(config.warnings(), warnings);
}

#[test]
fn a_slip_for_the_name_of_the_secret_shows_no_secret() {
    for name in ["TIELINE_SECRTE", "TIELINE_JOB_SECRET"] {
        let warnings = env(&[(name, "hunter2")]).build().unwrap().check(&[]).unwrap();
        assert!(warnings[0].starts_with(&format!("{name}=(set) (environment) is not known")));
        let strict = env(&[(name, "hunter2"), ("TIELINE_STRICT", "on")]).build().unwrap();
        let error = strict.check(&[]).unwrap_err();
        assert!(!format!("{error} {:?}", error.setting()).contains("hunter2"), "{error}");
    }
    let shown = env(&[("TIELINE_SECRET_FILE", "/etc/shadow")]).build().unwrap();
    assert!(shown.cite(vars::SECRET_FILE).contains("/etc/shadow"), "a place is none");
}

#[test]
fn every_variable_whose_name_is_a_prefix_is_a_family() {
    let prefixes = vars::CORE.iter().filter(|var| var.is_family()).map(|var| var.name);
    let mut families = vars::FAMILIES.to_vec();
    families.sort_unstable();
    let mut prefixes: Vec<&str> = prefixes.collect();
    prefixes.sort_unstable();
    assert_eq!(families, prefixes);
    for family in families {
        let found = vars::core_var(&format!("{family}SHM")).map(|var| var.name);
        assert_eq!(found, Some(family));
    }
    assert!(vars::core_var("TIELINE_SHM_SIZE").is_none());
}

#[test]
fn misspelt_prefix_is_warned_about_and_another_word_is_not() {
    let config = env(&[
        ("TIELNE_PROVIDERS", "shm"),
        ("TIELLINE_X", "1"),
        ("TIMELINE_QUEUE_BYTES", "1"),
        ("TIMELINE_ZOOM", "1"),
        ("TILE_SIZE", "1"),
        ("PIPELINE_ID", "1"),
        ("TIELINE_LOG", "info"),
        ("TIELINE", "1"),
        ("LINES", "24"),
    ]);
    let warnings = config.build().unwrap().warnings();
    let meant = |name: &str| warnings.iter().filter(|text| text.contains(name)).count();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert_eq!(
        meant(
            "TIELNE_PROVIDERS (environment) is not a variable of Tieline; did you mean TIELINE_PROVIDERS?"
        ),
        1
    );
    assert_eq!((meant("TIELINE_X?"), meant("TIELINE_QUEUE_BYTES?")), (1, 1));
}

#[test]
fn many_unknown_names_are_listed_up_to_limit_and_then_counted() {
    let text: String = (0..1000).map(|n| format!("zebra{n} = 1\n")).collect();
    let file = Scratch::new("many", &text);
    let config = env(&[("TIELINE_CONFIG", file.file().to_str().unwrap())]).build().unwrap();
    let warnings = config.check(&[]).unwrap();
    assert_eq!(warnings.len(), 33);
    assert_eq!(warnings[32], "968 more names are not known");
    assert!(config.check(&[]).unwrap().is_empty());
    assert!(config.views().iter().filter(|view| view.owner == "unknown").count() == 1000);
}

#[test]
fn a_value_of_several_lines_is_cited_in_one() {
    let config = env(&[("TIELINE_QUEUE_BYTES", "5\nok"), ("TIELINE_PROVIDERS", "shm,a\tb\n")]);
    let config = config.build().unwrap();
    let error = config.size("TIELINE_QUEUE_BYTES").unwrap_err();
    assert!(error.what().contains("TIELINE_QUEUE_BYTES=5\\nok (environment)"), "{error}");
    let error = config.selection("TIELINE_PROVIDERS").unwrap_err();
    assert!(!error.to_string().contains(char::is_control), "{error:?}");
    assert!(config.views().iter().all(|view| !view.value.contains(char::is_control)));
}

#[test]
fn a_value_that_a_provider_refuses_is_cited_when_somebody_set_it() {
    let file = Scratch::new("refused", "\n[shm]\nfastbox_size = \"5k\"\n");
    let path = file.file();
    let config = env(&[("TIELINE_CONFIG", path.to_str().unwrap())]).build().unwrap();
    let words = "TIELINE_SHM_FASTBOX_SIZE=\"5k\" is not a power of two";
    let error = config.refused_by("shm", words).unwrap();
    let what = format!("TIELINE_SHM_FASTBOX_SIZE=5k ({}:3) is not valid", path.display());
    assert_eq!((error.status(), error.what()), (Status::Invalid, what.as_str()));
    assert!(error.why().contains(words), "{error}");
    assert!(error.why().starts_with("provider shm: "), "{error}");
    // A refused variable that several providers read is not attributed to the first reader.
    let error = config.refused_by("ofi", words).unwrap();
    assert_eq!(error.why(), words);
    // The user cannot correct a value that is not set.
    assert_eq!(config.refused_by("shm", "TIELINE_SHM_FASTBOX_MAX=32 is odd"), None);
    assert_eq!(config.refused_by("shm", "TIELINE_SHM_FASTBOX_SIZES are odd"), None);
}

#[test]
fn strict_turns_an_unknown_name_into_an_error() {
    let config = env(&[("TIELINE_PROVIDRS", "shm"), ("TIELINE_STRICT", "1")]).build().unwrap();
    let error = config.check(&[]).unwrap_err();
    assert!(error.fix().contains("TIELINE_PROVIDERS"), "{error}");
}

#[test]
fn names_of_providers_that_were_not_loaded_pass() {
    let set = [
        ("TIELINE_VERBS_QP_DEPTH", "8"),
        ("TIELINE_SHM_CMA_CHUNK", "1k"),
        ("TIELINE_PRIORITY_VERBS", "3"),
        ("TIELINE_PRIORITY_VERBS_RC", "3"),
        ("TIELINE_STRICT", "1"),
    ];
    let config = env(&set).build().unwrap();
    config.uses("shm");
    assert!(config.check(&["verbs", "shm-cma"]).unwrap().is_empty());
    // The provider shm-cma is loaded and has no such variable. The variable is unknown although shm is not loaded.
    let config = env(&set).build().unwrap();
    config.declare("shm-cma", vec![size("TIELINE_SHM_CMA_CHUNKS", "1k")]);
    config.uses("shm-cma");
    let error = config.check(&["verbs", "shm"]).unwrap_err();
    assert!(error.fix().contains("TIELINE_SHM_CMA_CHUNKS"), "{error}");
}

#[test]
fn a_provider_that_declared_and_did_not_start_excuses_its_families() {
    let set = [
        ("TIELINE_PRIORITY_VERBS", "3"),
        ("TIELINE_CONNECT_VERBS", "tcp-connect"),
        ("TIELINE_STRICT", "1"),
    ];
    let config = env(&set).build().unwrap();
    config.declare("verbs", vec![size("TIELINE_VERBS_SEGMENT", "8k")]);
    assert!(config.check(&["verbs"]).unwrap().is_empty());
}

#[test]
fn a_providers_variable_is_known_and_checked_once_declared() {
    let config = env(&[("TIELINE_SHM_FASTBOX_SIZE", "8k")]).build().unwrap();
    assert_eq!(config.get("TIELINE_SHM_FASTBOX_MAX"), None);
    config.declare(
        "shm",
        vec![
            size("TIELINE_SHM_FASTBOX_SIZE", "4k"),
            (&ConfigDoc::count("TIELINE_SHM_FASTBOX_MAX", "32", "Doc.")).into(),
        ],
    );
    assert!(config.check(&[]).unwrap().is_empty());
    assert_eq!(config.size("TIELINE_SHM_FASTBOX_SIZE").unwrap(), 8 << 10);
    assert_eq!(config.get("TIELINE_SHM_FASTBOX_MAX").as_deref(), Some("32"));
    let config = env(&[("TIELINE_SHM_FASTBOX_SIZE", "big")]).build().unwrap();
    config.declare("shm", vec![size("TIELINE_SHM_FASTBOX_SIZE", "4k")]);
    assert!(config.check(&[]).is_err());
}

#[test]
fn a_provider_cannot_take_over_a_variable_of_the_core() {
    let config = env(&[]).build().unwrap();
    config.declare("evil", vec![size("TIELINE_QUEUE_BYTES", "1")]);
    assert_eq!(config.size(vars::QUEUE_BYTES).unwrap(), 256 << 10);
}

#[test]
fn a_modules_priority_beats_its_providers() {
    let config = env(&[
        ("TIELINE_PRIORITY_SHM_CMA", "7"),
        ("TIELINE_PRIORITY_VERBS_RC", "-1"),
        ("TIELINE_PRIORITY_VERBS", "9"),
    ])
    .build()
    .unwrap();
    let priority = |provider, module| config.priority(provider, module).unwrap().map(|p| p.0);
    assert_eq!(priority("shm-cma", "copy"), Some(7));
    assert_eq!(priority("verbs", "rc"), Some(-1));
    assert_eq!(priority("verbs", "ud"), Some(9));
    assert_eq!(priority("tcp", "tcp"), None);
    assert!(config.check(&[]).unwrap().is_empty());
}

#[test]
fn a_priority_of_nobody_is_not_known() {
    let config = env(&[("TIELINE_PRIORITY_VERSB", "1")]).build().unwrap();
    config.uses("verbs");
    let _ = config.priority("verbs", "rc").unwrap();
    let warnings = config.check(&[]).unwrap();
    assert!(warnings[0].contains("did you mean TIELINE_PRIORITY_VERBS?"), "{warnings:?}");
}

#[test]
fn launcher_variables_are_not_reported_as_unknown() {
    let config = env(&[("TIELINE_RANK", "0"), ("TIELINE_STRICT", "1")]).build().unwrap();
    assert!(config.check(&[]).unwrap().is_empty());
}

#[test]
fn a_secret_is_read_from_its_file_and_never_shown() {
    let directory = std::env::temp_dir().join(format!("tieline-secret-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("secret");
    std::fs::write(&file, "  open sesame\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let config = Config::builder().set(vars::SECRET_FILE, file.to_str().unwrap()).build().unwrap();
    assert_eq!(config.get(vars::SECRET).as_deref(), Some("open sesame"));
    std::fs::write(&file, "\n").unwrap();
    let error = config.secret().unwrap_err().to_string();
    assert!(error.contains("the file is empty"), "{error}");
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(config.secret().is_err());

    let config = Config::builder().set(vars::SECRET, "open sesame").build().unwrap();
    assert_eq!(config.get(vars::SECRET).as_deref(), Some("open sesame"));
    assert!(!config.cite(vars::SECRET).contains("sesame"));
    assert!(!format!("{:?}", config.views()).contains("sesame"));
    let error = config.refused_by("tcp", "TIELINE_SECRET=open sesame is too short").unwrap();
    assert!(!format!("{error:?}").contains("sesame"), "{error:?}");
    assert!(error.why().contains("TIELINE_SECRET=(set) is too short"), "{error}");
}

#[test]
fn the_core_knows_its_own_variables_and_no_others() {
    let config = env(&[]).build().unwrap();
    let kind = |name: &str| config.core_declaration(name).map(|it| it.accepts().name());
    assert_eq!(kind(vars::FAILURE_TIMEOUT).as_deref(), Some("duration"));
    assert_eq!(kind(vars::PROBE).as_deref(), Some("on|off|nocache"));
    assert_eq!(kind("TIELINE_PRIORITY_SHM").as_deref(), Some("text"));
    assert_eq!(kind("TIELINE_SHM_WINDOW"), None);
}

#[test]
fn shared_declarations_match_those_of_the_core() {
    for doc in [
        shared::SECRET,
        shared::TCP_INTERFACES,
        shared::TCP_PORTS,
        shared::FAILURE_TIMEOUT,
        shared::CONNECT_TIMEOUT,
        shared::CLOSE_TIMEOUT,
    ] {
        let core = vars::CORE.iter().find(|var| var.name == doc.name).expect(doc.name);
        assert_eq!((core.default, core.kind), (doc.default, Kind::Value(doc.accepts)));
    }
}
