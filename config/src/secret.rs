//! The job's secret in a file, and the check of the file's owner and mode.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::files;
use tieline_plugin_api::effective_uid;

/// The maximum size of a secret file, in bytes. A longer file is taken for a mistake in the variable.
pub(super) const MOST_BYTES: u64 = 64 * 1024;

/// Reads the secret from a file. Returns the secret, with a warning if there is one, or the reason of the failure and the remedy.
pub(super) fn read(path: &Path) -> Result<(String, Option<String>), (String, String)> {
    let fix = "name a readable file that holds the secret, the same for all processes";
    let unusable = |why: String| (why, fix.to_owned());
    let (text, meta) =
        files::read_text(path, MOST_BYTES).map_err(|error| unusable(error.to_string()))?;
    let warning = guarded(path, &meta, effective_uid())?;
    match text.trim() {
        "" => Err(unusable("the file is empty".into())),
        secret => Ok((secret.to_owned(), warning)),
    }
}

/// Checks the owner and the mode of the secret's file. If the file belongs to the user of the process, others must have no access
/// to it. If the file belongs to root, others must not be able to write it; a group may read such a file, and if all users can read
/// it, there is a warning. A file of any other user is refused.
fn guarded(path: &Path, meta: &Metadata, user: u32) -> Result<Option<String>, (String, String)> {
    let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
    let path = path.display();
    if owner != user && owner != 0 {
        let fix = format!("make a copy that belongs to user {user}, with mode 600");
        return Err((format!("it belongs to user {owner}, who can read the secret"), fix));
    }
    let forbidden = if owner == user { 0o077 } else { 0o022 };
    if mode & forbidden != 0 {
        let what = if mode & forbidden & 0o022 != 0 { "write" } else { "read" };
        return Err((
            format!("mode {mode:04o}: others than its owner can {what} it"),
            format!(
                "chmod 600 {path}; give the job another secret if somebody may have read this one"
            ),
        ));
    }
    let open = mode & 0o004 != 0;
    Ok(open
        .then(|| format!("everybody on this host can read the secret in {path} (mode {mode:04o})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    /// Runs `test` with a new file of this mode.
    fn with_mode<R>(mode: u32, test: impl FnOnce(&Path, &Metadata) -> R) -> R {
        let place = |n| std::env::temp_dir().join(format!("tieline-mode-{mode:o}-{n}"));
        let new = |path: &PathBuf| {
            fs::File::create_new(path).and_then(|mut file| file.write_all(b"open sesame")).is_ok()
        };
        let path = (0..1_000_000).map(place).find(new).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let result = test(&path, &fs::metadata(&path).unwrap());
        fs::remove_file(&path).unwrap();
        result
    }

    #[test]
    fn a_secret_of_the_user_is_for_the_user_alone() {
        for (mode, why) in
            [(0o644, "read"), (0o640, "read"), (0o604, "read"), (0o620, "write"), (0o666, "write")]
        {
            let (found, fix) = with_mode(mode, |path, _| read(path)).unwrap_err();
            assert!(
                found.contains(&format!("{mode:04o}: others than its owner can {why} it")),
                "{found}"
            );
            assert!(fix.starts_with("chmod 600 /"), "{fix}");
        }
        for mode in [0o600, 0o400] {
            assert_eq!(with_mode(mode, |path, _| read(path)), Ok(("open sesame".to_owned(), None)));
        }
    }

    #[test]
    fn secret_file_of_root_may_be_group_readable_and_warns_if_public() {
        let judged = |mode, user| with_mode(mode, |path, meta| guarded(path, meta, user));
        let owner = with_mode(0o600, |_, meta| meta.uid());
        if owner != 0 {
            println!("skipped: only root has files that root gave");
            return;
        }
        assert_eq!(judged(0o440, 1000), Ok(None));
        assert!(judged(0o444, 1000).unwrap().unwrap().contains("everybody on this host"));
        assert!(judged(0o460, 1000).is_err() && judged(0o446, 1000).is_err());
        assert!(judged(0o440, 0).is_err(), "root can make it its own");
    }

    #[test]
    fn a_secret_of_another_user_is_none() {
        let (why, _) = with_mode(0o600, |path, meta| {
            guarded(path, meta, meta.uid() + 1_000)
                .err()
                .or_else(|| (meta.uid() == 0).then(|| ("it belongs to user".into(), String::new())))
        })
        .unwrap();
        assert!(why.contains("it belongs to user"), "{why}");
    }
}
