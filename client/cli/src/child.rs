//! A command in a process of its own, with input, variables and a timeout.
//!
//! Shell: processes.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use simplefeed_client::worker::{CannotRun, HandlerError};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
};

/// The longest value of a variable, in bytes.
const VARIABLE_BYTES_MAX: usize = 32 * 1024;

/// Exit codes of `sh` for a command that does not exist, or that may not be run.
const NO_COMMAND: [i32; 2] = [126, 127];

/// Destination of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildOutput {
    /// The command writes to the output of this process.
    Passed,
    /// The caller gets the output, which has at most this number of bytes.
    Taken(usize),
}

/// Runs a command by `sh -c`. After the timeout, or when the future is dropped, the command is
/// killed, together with the processes that the command started in the same process group.
///
/// # Errors
///
/// [`CannotRun`], if there is no such command. Another error, if the command fails, prints too much
/// or takes too long.
pub(crate) async fn run(
    command: &str,
    input: &[u8],
    variables: &[(&'static str, String)],
    timeout: Duration,
    output: ChildOutput,
) -> Result<Vec<u8>, HandlerError> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        // In a process group of its own: one kill ends the command and all processes of the group,
        // and Ctrl-C at the terminal interrupts only this process, not the command.
        .process_group(0);
    let max = match output {
        ChildOutput::Passed => 0,
        ChildOutput::Taken(max) => {
            shell.stdout(Stdio::piped());
            max
        }
    };
    for (name, value) in variables {
        // A variable that is too long makes the start of the command fail (E2BIG), so a long value
        // is left out.
        if value.len() <= VARIABLE_BYTES_MAX {
            shell.env(name, value);
        }
    }
    let spawned = shell.spawn();
    let mut child = spawned.map_err(|error| CannotRun(format!("sh cannot be run: {error}")))?;
    let group = ProcessGroup(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let fed = async {
        if let Some(mut stdin) = stdin {
            // A command need not read the input, so a broken pipe is no failure.
            drop(stdin.write_all(input).await);
        }
    };
    let read = async {
        let mut taken = Vec::new();
        if let Some(stdout) = stdout {
            // One byte more than allowed shows that the output is too long.
            let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
            stdout.take(limit).read_to_end(&mut taken).await?;
        }
        Ok::<_, std::io::Error>(taken)
    };
    let ended = async {
        tokio::pin!(fed);
        // The wait and the read run at the same time: a command that has filled the pipe of its
        // output ends only if somebody reads.
        let both = async { tokio::join!(child.wait(), read) };
        tokio::pin!(both);
        // The command may end without having read all of the input.
        tokio::select! {
            ended = &mut both => ended,
            () = &mut fed => both.await,
        }
    };
    let Ok((status, taken)) = tokio::time::timeout(timeout, ended).await else {
        // The drop kills the whole group. `kill_on_drop` would kill the shell alone.
        drop(group);
        return Err(format!("it took longer than {timeout:?} and was killed").into());
    };
    let (status, taken) = (status?, taken?);
    // The command has ended by itself, so processes that the command has started, and that still
    // run, may go on.
    group.leave_running();
    answer_of(command, status, taken, max)
}

/// Returns the output of a command that has ended, if the command succeeded.
fn answer_of(
    command: &str,
    status: ExitStatus,
    taken: Vec<u8>,
    max: usize,
) -> Result<Vec<u8>, HandlerError> {
    // Before the status: a command that prints too much ends with SIGPIPE, and the status would
    // hide the cause.
    if taken.len() > max {
        return Err(format!("it printed more than {max} bytes").into());
    }
    if status.code().is_some_and(|code| NO_COMMAND.contains(&code)) {
        let reason =
            format!("there is no such command, or it may not be run: {command} ({status})");
        return Err(CannotRun(reason).into());
    }
    if !status.success() {
        return Err(status.to_string().into());
    }
    Ok(taken)
}

/// Process group of a command. A drop kills all processes of the group.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// Prevents the kill: processes that the command has started, and that still run, go on.
    fn leave_running(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // The group may have ended meanwhile.
            let _ended = kill_process_group(leader, Signal::KILL).is_err();
        }
    }
}
