//! kubectl, as a given user.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

#[derive(Clone)]
pub struct Kubectl {
    pub program: PathBuf,
    pub kubeconfig: PathBuf,
}

/// What a command said.
#[derive(Debug)]
pub struct Output {
    pub success: bool,
    pub stdout: String,
    /// Errors and warnings.
    pub stderr: String,
}

impl Kubectl {
    /// Runs a command, whatever comes of it.
    pub fn try_run(&self, args: &[&str], input: &str) -> anyhow::Result<Output> {
        let mut child = Command::new(&self.program)
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start kubectl")?;
        // A command that does not read its input has ended already, and says why.
        let _ = child.stdin.take().context("kubectl has a stdin")?.write_all(input.as_bytes());
        let output = child.wait_with_output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Output { success: output.status.success(), stdout: text(output.stdout), stderr: text(output.stderr) })
    }

    /// Runs a command that must succeed.
    pub fn run(&self, args: &[&str]) -> anyhow::Result<String> {
        self.run_with(args, "")
    }

    pub fn run_with(&self, args: &[&str], input: &str) -> anyhow::Result<String> {
        let output = self.try_run(args, input)?;
        if !output.success {
            bail!("kubectl {} failed: {}", args.join(" "), output.stderr.trim());
        }
        Ok(output.stdout)
    }

    pub fn apply(&self, yaml: &str) -> anyhow::Result<String> {
        self.run_with(&["apply", "-f", "-"], yaml)
    }

    /// Applies what may be refused.
    pub fn try_apply(&self, yaml: &str) -> anyhow::Result<Output> {
        self.try_run(&["apply", "-f", "-"], yaml)
    }

    pub fn get(&self, args: &[&str]) -> anyhow::Result<Value> {
        let mut all = vec!["get", "-o", "json"];
        all.extend(args);
        Ok(serde_json::from_str(&self.run(&all)?)?)
    }

    /// The items of a list.
    pub fn list(&self, args: &[&str]) -> anyhow::Result<Vec<Value>> {
        match self.get(args)?["items"].take() {
            Value::Array(items) => Ok(items),
            other => bail!("no list: {other}"),
        }
    }
}
