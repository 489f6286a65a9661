//! Commands with a deadline, whose output is wanted.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// No measurement takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that does not outlive its handle.
#[derive(Debug)]
pub(crate) struct Kept(pub(crate) Child);

impl Drop for Kept {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is reaped.
        self.0.kill().unwrap_or_default();
        self.0.wait().map(drop).unwrap_or_default();
    }
}

/// Starts a command whose output nobody reads.
pub(crate) fn start(command: &mut Command) -> Result<Kept> {
    let name = format!("{command:?}");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(Kept)
        .with_context(|| format!("cannot start {name}"))
}

/// Runs a command to its end and returns what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = format!("{command:?}");
    let mut child = Kept(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?,
    );
    let (mut stdout, mut stderr) = (child.0.stdout.take(), child.0.stderr.take());
    let out = std::thread::spawn(move || read(stdout.as_mut()));
    let err = std::thread::spawn(move || read(stderr.as_mut()));
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        if Instant::now() > until {
            bail!("{name} did not end within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    if !status.success() {
        bail!("{name} ended with {status}: {}", err.trim().lines().last().unwrap_or("no message"));
    }
    Ok(out)
}

fn read(from: Option<&mut impl std::io::Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        // What was read before an error still tells something.
        from.read_to_end(&mut bytes).map(drop).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
