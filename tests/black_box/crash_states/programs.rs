//! The programs that are recorded and checked: the real ones, or those with a planted bug.
//!
//! Shell: builds the second kind, once.

use std::{path::PathBuf, process::Command, sync::OnceLock};

use crate::harness::{cargo, program, workspace};

/// Variable that names the bug, for programs that have some.
pub(super) const BUG: &str = "SIMPLEFEED_PLANTED";

#[derive(Clone, Debug)]
pub(super) struct Programs {
    bug: Option<String>,
}

impl Programs {
    pub(super) fn real() -> Self {
        Self { bug: None }
    }

    /// Programs of the build with planted bugs, one of which is at work.
    pub(super) fn with_bug(bug: &str) -> Self {
        Self {
            bug: Some(bug.into()),
        }
    }

    pub(super) fn bug(&self) -> Option<String> {
        self.bug.clone()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        match self.bug {
            None => program(name),
            Some(_) => planted().join(name),
        }
    }

    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        self.bug.iter().map(|bug| (BUG, bug.clone())).collect()
    }

    pub(super) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.path(name));
        command.envs(self.environment());
        command
    }
}

/// Builds the programs with all planted bugs, once. Returns their folder.
fn planted() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        // Only the crates of the workspace are built again: a wrapper of rustc is not asked for others.
        let target = program("").parent().unwrap().to_path_buf();
        let folder = target.join("planted");
        let mut build = cargo();
        build.args([
            "build",
            "--locked",
            "--quiet",
            "--workspace",
            "--bins",
            "--tests",
        ]);
        build.env("RUSTC_WORKSPACE_WRAPPER", workspace().join("tests/planted"));
        build
            .env("CARGO_BUILD_BUILD_DIR", &target)
            .env("CARGO_TARGET_DIR", &folder);
        let is_release = program("").ends_with("release/");
        if is_release {
            build.arg("--release");
        }
        let built = build.current_dir(workspace()).output().unwrap();
        assert!(
            built.status.success(),
            "the programs with planted bugs cannot be built: {}",
            String::from_utf8_lossy(&built.stderr)
        );
        folder.join(if is_release { "release" } else { "debug" })
    };
    FOLDER.get_or_init(build).clone()
}
