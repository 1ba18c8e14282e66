//! The programs of the control plane: built from Go modules, once per version, into a cache outside of `target/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

/// A Go module under `parts/` that holds nothing but `tool` directives.
struct Part {
    directory: &'static str,
    /// The module whose version names the build.
    module: &'static str,
}

const PARTS: [Part; 4] = [
    Part { directory: "kubernetes", module: "k8s.io/kubernetes" },
    Part { directory: "kwok", module: "sigs.k8s.io/kwok" },
    Part { directory: "prometheus", module: "github.com/prometheus/prometheus" },
    Part { directory: "promtool", module: "github.com/prometheus/prometheus" },
];

/// Where the built programs are.
pub struct Parts {
    directories: Vec<PathBuf>,
}

impl Parts {
    /// Builds what the cache does not have yet. The first time this takes about 15 minutes on two cores.
    pub fn ensure() -> anyhow::Result<Self> {
        let cache = cache_directory()?;
        std::fs::create_dir_all(&cache)?;
        // Two test runs at once must not build the same thing twice.
        let lock = std::fs::File::create(cache.join("lock"))?;
        lock.lock()?;
        let directories = PARTS.iter().map(|part| part.ensure(&cache)).collect::<anyhow::Result<_>>()?;
        Ok(Self { directories })
    }

    /// The path of a program. etcd's module calls its program `server`.
    pub fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        let found = self.directories.iter().map(|directory| directory.join(name)).find(|path| path.exists());
        found.with_context(|| format!("the control plane has no program `{name}`"))
    }
}

impl Part {
    fn ensure(&self, cache: &Path) -> anyhow::Result<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("parts").join(self.directory);
        let version = self.version(&source)?;
        let wanted = cache.join(format!("{}-{version}", self.directory));
        if wanted.exists() {
            return Ok(wanted);
        }
        eprintln!("building {} {version} into {}; this happens once", self.directory, cache.display());
        let unfinished = wanted.with_extension("unfinished");
        let mut flags = "-s -w".to_owned();
        if self.directory == "kubernetes" {
            let (major, minor) = version.trim_start_matches('v').split_once('.').context("a version has two parts")?;
            let minor = minor.split('.').next().unwrap_or(minor);
            let stamp = "k8s.io/component-base/version";
            flags += &format!(" -X {stamp}.gitVersion={version} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}");
        }
        let status = Command::new("go")
            .args(["build", "-trimpath", "-ldflags", &flags, "-o"])
            .arg(format!("{}/", unfinished.display()))
            .arg("tool")
            .env("CGO_ENABLED", "0")
            .current_dir(&source)
            .status();
        match status {
            Ok(status) => ensure!(status.success(), "building {} failed: {status}", self.directory),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                bail!(
                    "Go builds the control plane for these tests, and `go` was not found. Install Go 1.21 or later, which fetches the version that it needs by itself: apt-get install golang-go"
                )
            }
            Err(e) => return Err(e).context("cannot run go"),
        }
        std::fs::rename(&unfinished, &wanted)?;
        Ok(wanted)
    }

    fn version(&self, source: &Path) -> anyhow::Result<String> {
        let module = std::fs::read_to_string(source.join("go.mod"))?;
        let line = module
            .lines()
            .map(|line| line.trim().trim_start_matches("require "))
            .find_map(|line| line.strip_prefix(self.module)?.strip_prefix(' '));
        let version = line.with_context(|| format!("{}/go.mod does not require {}", source.display(), self.module))?;
        Ok(version.split_whitespace().next().unwrap_or(version).to_owned())
    }
}

fn cache_directory() -> anyhow::Result<PathBuf> {
    let given = std::env::var_os("PECKING_ORDER_CACHE").map(PathBuf::from);
    let xdg = || std::env::var_os("XDG_CACHE_HOME").map(|cache| PathBuf::from(cache).join("pecking-order"));
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/pecking-order"));
    let cache = given.or_else(xdg).or_else(home).context("no cache directory: set PECKING_ORDER_CACHE")?;
    Ok(cache.join("control-plane"))
}
