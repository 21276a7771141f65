//! Tests of a program with raised rights, started by a user who controls its environment.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use tieline_bad_providers::Directory;

const NOBODY: u32 = 65534;

fn said(program: &Path, user: u32, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(program);
    let _ = command.env_clear().envs(variables.iter().copied()).uid(user).gid(user);
    let output = command.output().expect("a program that everybody can run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}: {text}", output.status);
    println!("{text}");
    text
}

#[test]
fn environment_names_no_code_or_files_under_raised_rights() {
    let (home, place) = (Directory::new(), Directory::new());
    let program = place.path().join("program");
    let _ = fs::copy(Directory::example_program("bad_rights"), &program).expect("a copy");
    let mode = |mode| fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
    // The files of the user would leave a trace if they were loaded or read.
    let _ = place.compile("beside", &[]);
    let _ = home.compile("named", &[]);
    let settings = home.path().join("settings.toml");
    fs::write(&settings, "queue_bytes = \"77k\"\n").unwrap();
    let tieline = home.path().join("tieline");
    fs::create_dir(&tieline).unwrap();
    fs::write(tieline.join("tieline.toml"), "assist_size = \"77k\"\n").unwrap();
    let secret = home.path().join("secret");
    fs::write(&secret, "").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let (path, sockets) = (home.path().to_str().unwrap(), home.path().join("sockets"));
    let variables = [
        ("TIELINE_PROVIDER_PATH", path),
        ("TIELINE_PROBE", "off"),
        ("TIELINE_CONFIG", settings.to_str().unwrap()),
        ("TIELINE_SHM_DIR", sockets.to_str().unwrap()),
        ("XDG_CONFIG_HOME", path),
        ("XDG_RUNTIME_DIR", path),
        ("TMPDIR", path),
        ("HOME", path),
    ];
    let with_secret =
        [&variables[..], &[("TIELINE_SECRET_FILE", secret.to_str().unwrap())]].concat();
    let of_pmix = [("PMIX_NAMESPACE", "job"), ("PMIX_RANK", "0")];

    // Without raised rights the same program uses all values, so this test would detect values that are not ignored below.
    mode(0o755);
    let user = fs::metadata(&program).unwrap().uid();
    let but_sockets: Vec<_> =
        variables.iter().filter(|(name, _)| *name != "TIELINE_SHM_DIR").copied().collect();
    let text = said(&program, user, &but_sockets);
    for taken in ["raised rights: false", "provider: named", "provider: beside", "77k"] {
        assert!(text.contains(taken), "{taken}");
    }
    // The variable below names a directory that does not exist.
    let text = said(&program, user, &variables);
    assert!(text.contains("context: Invalid: TIELINE_SHM_DIR="), "{text}");

    mode(0o4755);
    if user != 0 {
        println!("skipped: only root can make a program that gives root's rights");
        return;
    }
    let before = fs::read_dir(home.path()).unwrap().count();
    let text = said(&program, NOBODY, &with_secret);
    if text.contains("raised rights: false") {
        println!("skipped: set-uid programs have no effect here (nosuid, or no new privileges)");
        return;
    }
    assert!(text.contains("job: rank 0 of 1"), "{text}");
    assert!(text.contains("worker: open"), "{text}");
    for trace in ["provider: named", "provider: beside", "77k", "TIELINE_SHM_DIR=", path] {
        assert!(!text.contains(trace), "{trace} in {text}");
    }
    for name in
        ["TIELINE_PROVIDER_PATH", "TIELINE_CONFIG", "TIELINE_SHM_DIR", "TIELINE_SECRET_FILE"]
    {
        let warning = format!("warning: {name} is ignored: this process runs with raised rights");
        assert!(text.contains(&warning), "{name}");
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), before, "nothing was made there");

    // libpmix loads code from places in PMIX_MCA_* variables.
    let text = said(&program, NOBODY, &of_pmix);
    assert!(text.contains("job: Permission") && text.contains("raised rights"), "{text}");
}
