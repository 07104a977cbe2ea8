//! Signals that ask a command to end.
//!
//! Shell: signals.

use std::{io, time::Duration};

use rustix::process::Signal as Number;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time,
};

use crate::exit;

/// Time that a command has for an orderly end before the process is ended.
const GRACE: Duration = Duration::from_secs(10);

/// Signals that ask for a shutdown: SIGINT, SIGTERM and SIGHUP.
pub(crate) struct Ends {
    interrupted: Signal,
    terminated: Signal,
    hung_up: Signal,
    told: Option<u8>,
}

impl Ends {
    /// Begins to listen for the signals.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupted: signal(SignalKind::interrupt())?,
            terminated: signal(SignalKind::terminate())?,
            hung_up: signal(SignalKind::hangup())?,
            told: None,
        })
    }

    /// Waits for a signal. Returns the exit code of the signal.
    pub(crate) async fn told(&mut self) -> u8 {
        let code = tokio::select! {
            _ = self.interrupted.recv() => exit::INTERRUPTED,
            _ = self.terminated.recv() => exit::OK,
            _ = self.hung_up.recv() => exit::OK,
        };
        self.told = Some(code);
        code
    }

    /// Returns the exit code of the newest signal so far, or `None` if no signal has come.
    pub(crate) async fn was_told(&mut self) -> Option<u8> {
        // This does not wait: a timeout of zero polls once.
        let _nothing_new = time::timeout(Duration::ZERO, self.told()).await.is_err();
        self.told
    }
}

/// Lets a write fail at the limit of a file's length (`ulimit -f`). Without this call, a signal
/// (SIGXFSZ) would end the process at that limit.
pub(crate) fn survive_long_files() -> io::Result<()> {
    let signal = signal(SignalKind::from_raw(Number::XFSZ.as_raw()))?;
    // tokio's handler stays when the listener is dropped.
    drop(signal);
    Ok(())
}

/// Ends the process `GRACE` after a signal, even if a write to a full pipe blocks the main thread.
#[expect(
    clippy::exit,
    reason = "the main thread is blocked, so it cannot decide"
)]
pub(crate) fn end_in_any_case() -> io::Result<()> {
    let mut ends = Ends::listen()?;
    // A task runs on another thread, even while the main one is blocked.
    tokio::spawn(async move {
        let code = ends.told().await;
        time::sleep(GRACE).await;
        std::process::exit(code.into());
    });
    Ok(())
}
