//! Tests of `tieline info --why` on a host on which libfabric lists every kind of network. Each network that is used or not used
//! must be listed once, with the reason.

use std::path::{Path, PathBuf};
use std::process::Command;
use tieline_testing::built;

/// The versions of functions; the functions of the newer version end the process.
const VERSIONS: &str = "FABRIC_1.0 { global: fi_version; local: *; };\n\
    FABRIC_1.1 { global: fi_fabric; } FABRIC_1.0;\n\
    FABRIC_1.3 { } FABRIC_1.1;\n\
    FABRIC_1.9 { } FABRIC_1.3;\n";

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn library(folder: &Path) -> Result<PathBuf, String> {
    if !Path::new("/usr/include/rdma/fabric.h").exists() {
        return Err("libfabric's headers are not installed (libfabric-dev)".into());
    }
    std::fs::create_dir_all(folder).unwrap();
    let (versions, library) = (folder.join("versions"), folder.join("libfabric-twenty.so"));
    std::fs::write(&versions, VERSIONS).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/libfabric.c");
    let mut cc = Command::new("cc");
    let _ = cc.args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&library);
    let _ = cc.arg(source).arg(format!("-Wl,--version-script={}", versions.display())).arg("-ldl");
    match cc.output() {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
        Err(error) => return Err(format!("no C compiler: {error}")),
    }
    Ok(library)
}

/// Returns the output of `tieline info --why` without its line breaks, or the reason why the command cannot run.
fn told(settings: &[(&str, &str)]) -> Result<String, String> {
    let providers = built::libfabric()?;
    let name = format!("tieline-twenty-{}-{}", std::process::id(), settings.len());
    let folder = Folder(std::env::temp_dir().join(name));
    let library = library(&folder.0)?;
    let mut info = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let _ = info.args(["info", "--why", "--all"]).env("TIELINE_PROVIDER_PATH", providers);
    let _ = info.env("XDG_CACHE_HOME", &folder.0).env("TIELINE_OFI_LIBRARY", &library);
    let _ = info.env("TIELINE_PROVIDERS", "shm,ofi").envs(settings.iter().copied());
    let output = info.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    println!("{text}");
    for line in text.lines() {
        let named = ["/", "TIELINE_"].iter().any(|word| line.contains(word));
        assert!(named || line.chars().count() <= 100, "a line of a terminal: {line}");
    }
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn twenty_devices_are_used_or_refused_by_name_and_others_once_per_reason() {
    let settings =
        [("TIELINE_OFI_PROVIDERS", "^sockets,usnic"), ("TIELINE_OFI_INTERFACES", "^eth*")];
    let text = match told(&settings) {
        Ok(text) => text,
        Err(why) => return println!("skipped: {why}"),
    };
    // One device exists; the other devices are listed by the library but cannot be opened, each with a reason.
    assert!(text.contains("ofi:tcp:lo/rdm used for message, RMA"), "{text}");
    for device in ["cxi:cxi0", "cxi:cxi3", "efa:rdmap0s6-rdm", "opx:hfi1_0", "verbs:mlx5_1"] {
        let refused = format!("ofi:{device}: it is left out: fi_fabric of libfabric: No such");
        assert_eq!(text.matches(&refused).count(), 1, "{device}: {text}");
    }
    for left_out in [
        "left out: psm3 on irdma0: it ends the process where a peer does not answer",
        "left out: shm on shm: the provider shm is better",
        "left out: sm2 on sm2: the provider shm is better",
        "left out: lnx on shm+cxi0: it would join what the core joins itself",
        "left out: tieline on tieline: it is this library itself",
        "left out: ucx on mlx5_0:1: it demands FI_MR_RAW with keys of 512 bytes",
        "left out: lpp on lpp0: it demands FI_MR_RMA_EVENT",
        "left out: usnic on usnic_0: by TIELINE_OFI_PROVIDERS=^sockets,usnic",
        "left out: efa on rdmap0s7-rdm: it does not keep the order of messages",
    ] {
        let begins = left_out.split(" on ").next().unwrap();
        assert_eq!(text.matches(left_out).count(), 1, "{left_out}: {text}");
        assert!(text.matches(begins).count() <= 2, "{begins}: {text}");
    }
    // The list follows the devices that this host has.
    for left_out in ["fab0, fab1: it claims atomics", "fab0: ofi_rxd never tells"] {
        assert_eq!(text.matches(left_out).count(), 1, "{left_out}: {text}");
    }
    let refused = text.matches("it is left out: ").count();
    assert!(text.matches("left out: ").count() - refused < 25, "{text}");
}

#[test]
fn libfabric_is_unused_if_all_is_left_out_and_reasons_are_reported() {
    let text = match told(&[("TIELINE_OFI_PROVIDERS", "tieline,shm,net")]) {
        Ok(text) => text,
        Err(why) => return println!("skipped: {why}"),
    };
    assert!(text.contains("ofi not used"), "{text}");
    for words in [
        "libfabric offers nothing that is used",
        "cxi on cxi0, cxi1, cxi2, cxi3: by TIELINE_OFI_PROVIDERS=tieline,shm,net",
        "tieline on tieline: it is this library itself",
        "shm on shm: the provider shm is better",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
