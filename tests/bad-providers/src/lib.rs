//! Broken provider files, made on demand for tests.
//!
//! ```no_run
//! let directory = tieline_bad_providers::Directory::new();
//! directory.compile("good", &[]);
//! directory.compile("crash", &[r#"CONSTRUCTOR=*(volatile int *)0 = 1"#]);
//! // TIELINE_PROVIDER_PATH = directory.path()
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of provider files, which is removed on drop.
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes an empty directory that only this user can write.
    ///
    /// # Panics
    /// Panics if the directory cannot be made.
    #[must_use]
    pub fn new() -> Directory {
        use std::os::unix::fs::DirBuilderExt;
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tieline-bad-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o755).create(&path).expect("a directory in the temporary one");
        Directory { path }
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the provider `name`, whose file need not exist.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("libtieline_{}.so", name.replace('-', "_")))
    }

    /// Compiles `fixtures/provider.c` into the provider `name`, with the given `-D` switches.
    ///
    /// # Panics
    /// Panics if the provider does not compile.
    pub fn compile(&self, name: &str, switches: &[&str]) -> PathBuf {
        self.compile_with(name, switches, &[])
    }

    /// Compiles `fixtures/provider.c` as [`Directory::compile`] does, with further arguments for the compiler.
    ///
    /// # Panics
    /// Panics if the provider does not compile.
    pub fn compile_with(&self, name: &str, switches: &[&str], arguments: &[&str]) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let out = self.file(name);
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let mut command = Command::new(&compiler);
        let _ = command
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-o"])
            .arg(&out)
            .arg("-I")
            .arg(root.join("../../include"))
            .arg(format!("-DNAME=\"{name}\""))
            .args(switches.iter().map(|switch| format!("-D{switch}")))
            .arg(root.join("fixtures/provider.c"))
            .args(arguments);
        let output = command.output().unwrap_or_else(|error| panic!("{compiler}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        out
    }

    /// Copies the shared object that Cargo built from the example `example` into this directory, as the provider `name`.
    ///
    /// # Panics
    /// Panics if the example was not built: `cargo test -p tieline-bad-providers` builds it, `--test` alone does not.
    pub fn copy_example(&self, example: &str, name: &str) -> PathBuf {
        let program = std::env::current_exe().expect("the running program");
        let target = program.parent().and_then(Path::parent).expect("target/debug/deps/program");
        let built = target.join(format!("examples/lib{example}.so"));
        let out = self.file(name);
        let copied = fs::copy(&built, &out);
        assert!(copied.is_ok(), "{}: run `cargo test -p tieline-bad-providers`", built.display());
        out
    }

    /// Returns the path of the program that Cargo built from the example `example`.
    ///
    /// # Panics
    /// Panics if the example was not built, as [`Directory::copy_example`] does.
    #[must_use]
    pub fn example_program(example: &str) -> PathBuf {
        let program = std::env::current_exe().expect("the running program");
        let target = program.parent().and_then(Path::parent).expect("target/debug/deps/program");
        let built = target.join("examples").join(example);
        assert!(built.exists(), "{}: run `cargo test -p tieline-bad-providers`", built.display());
        built
    }

    /// Writes a file as the provider `name`.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let out = self.file(name);
        fs::write(&out, content).expect("a file in our own directory");
        out
    }

    /// Makes a subdirectory.
    ///
    /// # Panics
    /// Panics if the subdirectory cannot be made.
    pub fn inner(&self, name: &str) -> Directory {
        let path = self.path.join(name);
        fs::create_dir(&path).expect("a directory in our own");
        Directory { path }
    }
}

impl Default for Directory {
    fn default() -> Directory {
        Directory::new()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
