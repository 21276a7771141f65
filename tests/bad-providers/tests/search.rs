//! Tests of directories: their permissions, their order, and two files of one name.

mod common;

use common::{assert_refused, assert_the_rest_works, is_found, open, open_with, verdicts};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;
use tieline::explain::Verdict;
use tieline_bad_providers::Directory;

const NOBODY: u32 = 65534;

fn set_mode(directory: &Directory, mode: u32) {
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
}

fn subject(directory: &Directory) -> String {
    directory.path().display().to_string()
}

#[test]
fn world_writable_directory_is_refused_and_others_are_searched() {
    let (open_to_all, fine) = (Directory::new(), Directory::new());
    let _ = open_to_all.compile("trap", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    let _ = fine.compile("good", &[]);
    set_mode(&open_to_all, 0o777);
    let context = open(&[&open_to_all, &fine]);
    assert_refused(
        &context,
        &subject(&open_to_all),
        "permissions",
        "",
        "mode 0777: world-writable",
    );
    assert!(verdicts(&context, "trap").is_empty());
    assert!(is_found(&context, "good"));
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let directory = Directory::new();
    let _ = directory.compile("trap", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    if let Err(error) = chown(directory.path(), Some(NOBODY), None) {
        println!("skipped: a directory cannot be given away: {error}");
        return;
    }
    let context = open(&[&directory]);
    assert_refused(&context, &subject(&directory), "permissions", "belongs to root", "user 65534");
}

#[test]
fn a_directory_that_is_not_there_is_recorded() {
    let directory = Directory::new();
    let gone = directory.inner("gone");
    fs::remove_dir(gone.path()).unwrap();
    let context = open(&[&gone, &directory]);
    assert_refused(&context, &subject(&gone), "search", "can be read", "No such file");
}

/// The variable with the unreadable directory and the readable one, for the process that this test starts.
const DIRECTORIES: &str = "TIELINE_TEST_DIRECTORIES";

#[test]
fn unreadable_directory_is_recorded_and_others_are_searched() {
    if let Ok(directories) = std::env::var(DIRECTORIES) {
        return without_rights(&directories);
    }
    let (closed, fine) = (Directory::new(), Directory::new());
    let _ = closed.compile("good", &[]);
    let _ = fine.compile("good", &[]);
    set_mode(&closed, 0o000);
    let directories = format!("{}:{}", subject(&closed), subject(&fine));
    // Root can read every directory: the test runs again as another user.
    let is_root = fs::read_dir(closed.path()).is_ok();
    let name = "unreadable_directory_is_recorded_and_others_are_searched";
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    let _ = command.args(["--exact", name, "--nocapture"]).env(DIRECTORIES, directories);
    if is_root {
        let _ = command.uid(NOBODY).gid(NOBODY);
    }
    match command.output() {
        Err(error) => println!("skipped: another user cannot run this program: {error}"),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
    }
    set_mode(&closed, 0o755);
}

fn without_rights(directories: &str) {
    let context = tieline::Context::builder()
        .set("TIELINE_PROVIDER_PATH", directories)
        .set("TIELINE_PROBE", "nocache")
        .open()
        .expect("a context");
    let closed = directories.split(':').next().unwrap();
    assert_refused(&context, closed, "search", "can be read", "Permission denied");
    assert!(is_found(&context, "good"));
}

#[test]
fn the_first_of_two_files_of_one_name_wins_and_the_other_is_never_opened() {
    let (first, second) = (Directory::new(), Directory::new());
    let winner = first.compile("twice", &["VERSION=\"1.0.0\""]);
    let loser = second.compile("twice", &["VERSION=\"2.0.0\"", "CONSTRUCTOR=raise(SIGSEGV)"]);
    let context = open(&[&first, &second]);
    let verdicts = verdicts(&context, "twice");
    assert!(
        verdicts
            .iter()
            .any(|verdict| matches!(verdict, Verdict::Found { version, .. } if version == "1.0.0"))
    );
    let Some(Verdict::OutrankedBy { winner: by, rule }) =
        verdicts.iter().find(|verdict| matches!(verdict, Verdict::OutrankedBy { .. }))
    else {
        panic!("{verdicts:?}")
    };
    assert!(by.contains(winner.to_str().unwrap()), "{by}");
    assert!(rule.contains("first of its name") && rule.contains(loser.to_str().unwrap()), "{rule}");
    assert!(rule.contains("twice 2.0.0"), "{rule}");
    assert_the_rest_works(&context);
}

#[test]
fn two_spellings_of_one_name_in_one_directory_are_one_name() {
    let directory = Directory::new();
    let first = directory.compile("two-words", &[]);
    let _ = fs::copy(&first, directory.path().join("libtieline_two-words.so")).unwrap();
    let context = open(&[&directory]);
    let verdicts = verdicts(&context, "two-words");
    let count = |wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|v| wanted(v)).count();
    assert_eq!(count(|v| matches!(v, Verdict::Found { .. })), 1, "{verdicts:?}");
    assert!(count(|v| matches!(v, Verdict::OutrankedBy { .. })) >= 1, "{verdicts:?}");
}

#[test]
fn when_the_first_of_a_name_fails_the_next_one_is_used() {
    let (first, second) = (Directory::new(), Directory::new());
    let _ = first.compile("twice", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    let used = second.compile("twice", &[]);
    let context = open(&[&first, &second]);
    let loaded = context.report().providers;
    let view = loaded.iter().find(|view| view.name == "twice").expect("a provider");
    assert_eq!(view.origin, used.to_str().unwrap());
}

#[test]
fn a_version_that_is_asked_for_is_found_behind_another_one() {
    let (first, second) = (Directory::new(), Directory::new());
    let _ = first.compile("twice", &["VERSION=\"1.0.0\""]);
    let _ = second.compile("twice", &["VERSION=\"2.1.0\""]);
    let context = open_with(&[&first, &second], &[("TIELINE_PROVIDERS", "twice@^2.0,shm")]);
    let loaded = context.report().providers;
    let view = loaded.iter().find(|view| view.name == "twice").expect("a provider");
    assert_eq!(view.version, "2.1.0");
}
