//! Bugs that tests of crash states must find. They exist only in a build with `--cfg planted`.
//!
//! Shell: the environment, which names the one that is at work.

/// Returns whether a bug is at work.
#[expect(
    clippy::disallowed_methods,
    reason = "no configuration: a release has no planted bugs"
)]
pub(crate) fn is(bug: &str) -> bool {
    std::env::var("SIMPLEFEED_PLANTED").is_ok_and(|planted| planted == bug)
}
