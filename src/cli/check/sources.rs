//! What is to be checked: files, directories with everything below them, and the standard input.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The largest file that is read. The output of a large chart is a few MB.
const MAX_BYTES: u64 = 32 << 20;

/// Directories deeper than this are a mistake.
const MAX_DEPTH: usize = 32;

/// A text, and where it comes from.
pub struct Source {
    pub file: PathBuf,
    pub text: String,
}

/// Something that could not be read, and why.
pub struct Unreadable {
    pub file: PathBuf,
    pub why: String,
}

/// Reads everything. What cannot be read does not hide the rest.
pub fn read(paths: &[PathBuf]) -> (Vec<Source>, Vec<Unreadable>) {
    let mut found = Found::default();
    for path in paths {
        match path.as_os_str() == "-" {
            true => found.read_from("<stdin>".into(), &mut std::io::stdin().lock(), None),
            false if path.is_dir() => found.walk(path, 0),
            false => found.read_file(path),
        }
    }
    (found.sources, found.unreadable)
}

#[derive(Default)]
struct Found {
    sources: Vec<Source>,
    unreadable: Vec<Unreadable>,
    /// A link may lead back to where we have been.
    seen: HashSet<PathBuf>,
}

impl Found {
    fn walk(&mut self, directory: &Path, depth: usize) {
        let real = match std::fs::canonicalize(directory) {
            Ok(real) => real,
            Err(e) => return self.fail(directory, format!("cannot read the directory: {e}")),
        };
        if !self.seen.insert(real) {
            return;
        }
        if depth > MAX_DEPTH {
            return self.fail(directory, format!("is deeper than {MAX_DEPTH} directories"));
        }
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(e) => return self.fail(directory, format!("cannot read the directory: {e}")),
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                self.walk(&path, depth + 1);
            } else if path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json") {
                self.read_file(&path);
            }
        }
    }

    fn read_file(&mut self, file: &Path) {
        match std::fs::File::open(file).and_then(|opened| opened.metadata().map(|metadata| (opened, metadata.len()))) {
            Ok((mut opened, size)) => self.read_from(file.into(), &mut opened, Some(size)),
            Err(e) => self.fail(file, format!("cannot read the file: {e}")),
        }
    }

    fn read_from(&mut self, file: PathBuf, from: &mut dyn Read, size: Option<u64>) {
        if let Some(size) = size.filter(|size| *size > MAX_BYTES) {
            return self.fail(&file, format!("the file has {size} bytes, wanted at most {MAX_BYTES}"));
        }
        let mut bytes = Vec::new();
        // One more than may be, so that more shows.
        match from.take(MAX_BYTES + 1).read_to_end(&mut bytes) {
            Err(e) => self.fail(&file, format!("cannot read it: {e}")),
            Ok(_) if bytes.len() as u64 > MAX_BYTES => self.fail(&file, format!("has more than {MAX_BYTES} bytes, wanted at most as many")),
            Ok(_) => match String::from_utf8(bytes) {
                Ok(text) => self.sources.push(Source { file, text }),
                Err(e) => self.fail(&file, format!("is no UTF-8 text: {}", e.utf8_error())),
            },
        }
    }

    fn fail(&mut self, file: &Path, why: String) {
        self.unreadable.push(Unreadable { file: file.into(), why });
    }
}
