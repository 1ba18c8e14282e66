//! A process that we started: its log is kept in a file, and it is stopped when it is dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    pub fn start(name: &str, command: &mut Command, directory: &Path) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn();
        let child = child.with_context(|| format!("cannot start {name} ({:?})", command.get_program()))?;
        Ok(Self { name: name.into(), child, log })
    }

    /// Fails where the process has ended by itself; shows the end of its log.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended with {status}:\n{}", self.name, self.log_tail(30)),
        }
    }

    /// The last lines of the log.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        // Both fail only where the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Resident memory of a process, in KiB (`VmRSS` of proc(5)).
pub fn memory_kib(id: u32) -> anyhow::Result<u64> {
    memory(id, "VmRSS:")
}

/// The most that it ever was (`VmHWM`).
pub fn peak_memory_kib(id: u32) -> anyhow::Result<u64> {
    memory(id, "VmHWM:")
}

fn memory(id: u32, field: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).with_context(|| format!("no {field}"))?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

/// CPU time of a process so far, user and system, in clock ticks of 10 ms (fields 14 and 15 of proc(5)'s `stat`).
pub fn cpu_ticks(id: u32) -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name, in parentheses, may hold spaces.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let field = |n: usize| fields.split_whitespace().nth(n).context("no such field")?.parse::<u64>().context("no number");
    Ok(field(11)? + field(12)?)
}
