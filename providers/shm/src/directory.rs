//! The directory of the sockets, which no other user can enter.
//!
//! If `TIELINE_SHM_DIR` names a directory, it is used or refused. Otherwise the first usable one of these is used:
//!
//! 1. `tieline` in `XDG_RUNTIME_DIR`
//! 2. `tieline` in `/run/user/UID`
//! 3. `tieline-UID` in `TMPDIR`
//! 4. `tieline-UID` in `/tmp`
//!
//! The directory must belong to this user, and must permit nothing to group and others. In the last two places any user can create
//! a directory of that name first; then a name with a random suffix is used. A directory is held open after it was checked, and a
//! socket counts only if it is found *in it*. An attacker who replaces a part of the path meanwhile only gains a socket that never
//! listens.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tieline_plugin_api::{Failure, Status, raised_rights};

use crate::sys;

/// The longest path of a directory that this provider uses, in bytes. `sun_path` has room for 107 bytes, and a slash and the name
/// of a socket take 30.
const MAX_PATH: usize = 77;
/// The maximum number of entries that are examined of a directory that all users may write.
const MAX_ENTRIES: usize = 4096;

/// A private directory, held open.
pub(crate) struct Directory {
    path: PathBuf,
    file: File,
    /// Whether the directory is one of this provider's own; see [`Directory::is_made`].
    made: bool,
}

/// The places where a directory can be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bases {
    /// The user's own places, with the source of each.
    pub(crate) own: Vec<(String, PathBuf)>,
    /// The places shared by all users.
    pub(crate) common: Vec<(String, PathBuf)>,
}

impl Bases {
    /// Returns the places for this process. A process with raised rights ignores its environment.
    pub(crate) fn for_this_process() -> Bases {
        let variable = |name: &str| {
            let value = std::env::var_os(name).filter(|v| !v.is_empty() && !raised_rights());
            value.map(|v: OsString| (name.to_string(), PathBuf::from(v)))
        };
        let fixed = |path: String| (path.clone(), PathBuf::from(path));
        let mut bases = Bases::default();
        bases.own.extend(variable("XDG_RUNTIME_DIR"));
        bases.own.push(fixed(format!("/run/user/{}", sys::user())));
        bases.common.extend(variable("TMPDIR"));
        bases.common.push(fixed("/tmp".to_string()));
        bases
    }
}

impl Directory {
    /// Returns the directory that `TIELINE_SHM_DIR` names.
    pub(crate) fn given(path: &Path) -> Result<Directory, Failure> {
        let fault = |status: Status, why: &str| {
            Failure::new(status, format!("TIELINE_SHM_DIR={} {why}", path.display()))
        };
        if !path.is_absolute() {
            return Err(fault(Status::Invalid, "is not an absolute path"));
        }
        if path.as_os_str().len() > MAX_PATH {
            return Err(fault(Status::Invalid, "is too long for the name of a socket"));
        }
        match Directory::open(path, false) {
            Ok(directory) => Ok(directory),
            Err(error) if sys::is_exhaustion(&error) => {
                Err(Failure::from_io("TIELINE_SHM_DIR cannot be opened", &error))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(fault(
                Status::Invalid,
                "does not exist: make it, of mode 0700, or correct the name",
            )),
            Err(error) => Err(fault(Status::Invalid, &error.to_string())),
        }
    }

    /// Returns the first usable directory; the error explains why none is usable.
    pub(crate) fn found(bases: &Bases) -> io::Result<Directory> {
        let mut faults = Vec::new();
        let own = bases.own.iter().map(|base| (base, true));
        let common = bases.common.iter().map(|base| (base, false));
        for ((name, base), own) in own.chain(common) {
            let made = if own { within_own(base) } else { within_common(base) };
            match made {
                Ok(directory) => return Ok(directory),
                Err(error) if sys::is_exhaustion(&error) => return Err(error),
                Err(error) => faults.push(format!("{name}: {error}")),
            }
        }
        Err(io::Error::other(faults.join("; ")))
    }

    /// Opens the directory, and creates it if it does not exist.
    fn make(path: &Path) -> io::Result<Directory> {
        if path.as_os_str().len() > MAX_PATH {
            return Err(io::Error::other("the path is too long for the name of a socket"));
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Directory::open(path, true),
        }
    }

    /// Opens the directory, and checks that it is private.
    fn open(path: &Path, made: bool) -> io::Result<Directory> {
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if fs::symlink_metadata(path)?.is_symlink() {
            return refuse("is a symbolic link".to_string());
        }
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ENOTDIR) => io::Error::other("is not a directory"),
                _ => error,
            })?;
        let about = file.metadata()?;
        if about.uid() != sys::user() {
            return refuse(format!("belongs to user {}, not to {}", about.uid(), sys::user()));
        }
        if about.mode() & 0o077 != 0 {
            let mode = about.mode() & 0o777;
            return refuse(format!("is open to others (mode {mode:o}): chmod 700 it"));
        }
        Ok(Directory { path: path.to_path_buf(), file, made })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the directory is one of this provider's own: the provider creates it if it is missing, and removes it when
    /// it is empty.
    pub(crate) fn is_made(&self) -> bool {
        self.made
    }

    /// Checks whether processes of other hosts may have sockets in the directory, which look dead from this host.
    pub(crate) fn is_remote(&self) -> bool {
        sys::is_remote(&self.file)
    }

    /// Renames an entry of the directory to its final name. The entry does not exist if a part of the path was replaced.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        sys::rename_within(&self.file, from, to)
    }
}

/// Returns the base without symbolic links, for peers that see it from another root. Fails on a network file system.
fn local(base: &Path) -> io::Result<(PathBuf, fs::Metadata)> {
    let base = fs::canonicalize(base)?;
    let file = File::open(&base)?;
    if sys::is_remote(&file) {
        return Err(io::Error::other("lies on a network file system"));
    }
    Ok((base, file.metadata()?))
}

fn within_own(base: &Path) -> io::Result<Directory> {
    let (base, about) = local(base)?;
    if about.uid() != sys::user() || about.mode() & 0o022 != 0 {
        return Err(io::Error::other("is not this user's, or others may write there"));
    }
    Directory::make(&base.join("tieline"))
}

fn within_common(base: &Path) -> io::Result<Directory> {
    let (base, about) = local(base)?;
    let of_others = about.uid() != sys::user() && about.uid() != 0;
    if of_others || about.mode() & 0o022 != 0 && about.mode() & libc::S_ISVTX == 0 {
        return Err(io::Error::other("others may remove there what is ours"));
    }
    let name = format!("tieline-{}", sys::user());
    let usual = base.join(&name);
    let taken = match Directory::make(&usual) {
        // The name is taken, for example by a directory of another user.
        Err(error) if fs::symlink_metadata(&usual).is_ok() => error,
        other => return other,
    };
    let prefix = format!("{name}-");
    let entries = fs::read_dir(&base)?.take(MAX_ENTRIES).flatten();
    let named = entries.filter(|e| e.file_name().as_bytes().starts_with(prefix.as_bytes()));
    if let Some(ours) = named.filter_map(|e| Directory::open(&e.path(), true).ok()).next() {
        return Ok(ours);
    }
    let number = sys::random::<4>().map_err(|_| taken)?;
    let number: String = number.iter().map(|byte| format!("{byte:02x}")).collect();
    Directory::make(&base.join(prefix + &number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder like /tmp.
    struct Common(PathBuf);

    impl Common {
        fn new() -> Common {
            let number = u64::from_le_bytes(sys::random().unwrap());
            let path = PathBuf::from(format!("/tmp/tl-{number:x}"));
            DirBuilder::new().mode(0o1777).create(&path).unwrap();
            Common(path)
        }
        fn bases(&self) -> Bases {
            Bases { own: vec![], common: vec![("TMPDIR".to_string(), self.0.clone())] }
        }
        fn usual(&self) -> PathBuf {
            self.0.join(format!("tieline-{}", sys::user()))
        }
    }

    impl Drop for Common {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path, bits: u32) {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
    }

    #[test]
    fn a_directory_of_the_users_own_comes_before_one_that_all_can_write() {
        let (own, common) = (Common::new(), Common::new());
        mode(&own.0, 0o700);
        let both =
            Bases { own: vec![("XDG_RUNTIME_DIR".to_string(), own.0.clone())], ..common.bases() };
        let directory = Directory::found(&both).unwrap();
        assert_eq!(directory.path(), own.0.join("tieline"));
        assert_eq!(fs::metadata(directory.path()).unwrap().mode() & 0o7777, 0o700);
        // A place that others may write to is not the user's own.
        mode(&own.0, 0o777);
        assert_eq!(Directory::found(&both).unwrap().path(), common.usual());
    }

    #[test]
    fn planted_directory_entry_is_not_used_and_blocks_no_process() {
        for trap in ["link", "file", "open to all"] {
            let common = Common::new();
            match trap {
                "link" => {
                    let elsewhere = common.0.join("elsewhere");
                    DirBuilder::new().mode(0o700).create(&elsewhere).unwrap();
                    symlink(&elsewhere, common.usual()).unwrap();
                }
                "file" => fs::write(common.usual(), "").unwrap(),
                _ => {
                    fs::create_dir(common.usual()).unwrap();
                    mode(&common.usual(), 0o777);
                }
            }
            let found = Directory::found(&common.bases());
            let first = found.unwrap_or_else(|why| panic!("{trap}: {why}"));
            assert!(first.path().to_str().unwrap().contains("tieline-"), "{trap}");
            assert_ne!(first.path(), common.usual(), "{trap}");
            // The next process finds the same directory.
            assert_eq!(Directory::found(&common.bases()).unwrap().path(), first.path(), "{trap}");
        }
    }

    #[test]
    fn a_directory_of_another_user_is_not_used() {
        if sys::user() != 0 {
            println!("skipped: giving a directory away needs root");
            return;
        }
        let common = Common::new();
        DirBuilder::new().mode(0o700).create(common.usual()).unwrap();
        std::os::unix::fs::chown(common.usual(), Some(65534), Some(65534)).unwrap();
        assert_ne!(Directory::found(&common.bases()).unwrap().path(), common.usual());
        let failure = Directory::given(&common.usual()).err().unwrap();
        assert!(failure.text.contains("belongs to user 65534"), "{}", failure.text);
        // No directory is created in a place where another user could replace it either.
        std::os::unix::fs::chown(&common.0, Some(65534), Some(65534)).unwrap();
        assert!(
            Directory::found(&common.bases())
                .err()
                .unwrap()
                .to_string()
                .contains("others may remove")
        );
    }

    #[test]
    fn a_path_that_leaves_no_room_for_a_socket_is_not_used() {
        let common = Common::new();
        let long = common.0.join("x".repeat(60));
        DirBuilder::new().mode(0o1777).create(&long).unwrap();
        let bases = Bases { own: vec![], common: vec![("TMPDIR".to_string(), long)] };
        assert!(Directory::found(&bases).err().unwrap().to_string().contains("too long"));
    }

    #[test]
    fn a_given_directory_is_used_as_it_is_or_refused_with_the_reason() {
        let common = Common::new();
        let path = common.0.join("sockets");
        let why = |path: &Path| Directory::given(path).err().unwrap().text;
        assert!(why(&path).contains("does not exist"), "{}", why(&path));
        assert!(!path.exists(), "a name that may be misspelt is not made");
        assert!(why(Path::new("sockets")).contains("absolute"));
        fs::write(&path, "").unwrap();
        assert!(why(&path).contains("not a directory"), "{}", why(&path));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        mode(&path, 0o755);
        assert!(why(&path).contains("open to others (mode 755)"), "{}", why(&path));
        mode(&path, 0o700);
        assert!(!Directory::given(&path).unwrap().is_made(), "it is not ours to remove");
    }
}
