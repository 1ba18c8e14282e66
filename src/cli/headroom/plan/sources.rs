//! Nodes and pods from files, in pieces and by several readers: a large cluster's are a gigabyte. And the pools of the cluster at hand.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, mpsc};

use anyhow::{Context, bail};
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, Client};

use crate::api::{HeadroomPool, Policies};
use crate::cluster::listing::{each, is_absent, usable};
use crate::headroom::wave::{Cluster, IsPlaceholder, Reader};

/// Read from a file at once.
const CHUNK: usize = 1 << 20;
/// Objects handed to a reader together: at least so many bytes.
const BATCH: usize = 256 << 10;
/// Batches that may wait, so that memory stays bounded whatever is slower.
const WAITING: usize = 8;
/// One object may be so large: more than etcd stores.
const MOST_BYTES: usize = 8 << 20;

/// Reads files.
pub fn from_files(files: &[PathBuf], is_placeholder: IsPlaceholder<'_>) -> anyhow::Result<Cluster> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (sender, receiver) = mpsc::sync_channel::<Vec<Vec<u8>>>(WAITING);
    let receiver = Mutex::new(receiver);
    std::thread::scope(|scope| {
        let receiver = &receiver;
        let read = move || -> anyhow::Result<Reader> {
            let mut reader = Reader::default();
            loop {
                let batch = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(batch) = batch else { return Ok(reader) };
                for object in batch {
                    reader.read(&object, is_placeholder)?;
                }
            }
        };
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        let split = split_all(files, &sender);
        drop(sender);
        let mut done = Vec::new();
        for reader in readers {
            done.push(reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??);
        }
        split?;
        Ok(Reader::cluster(done))
    })
}

fn split_all(files: &[PathBuf], sender: &mpsc::SyncSender<Vec<Vec<u8>>>) -> anyhow::Result<()> {
    for file in files {
        let mut source: Box<dyn Read> = match file.to_str() {
            Some("-") => Box::new(stdin()),
            _ => Box::new(File::open(file).with_context(|| format!("cannot open {}", file.display()))?),
        };
        let (mut splitter, mut chunk) = (Splitter::default(), vec![0; CHUNK]);
        loop {
            let read = source.read(&mut chunk).with_context(|| format!("cannot read {}", file.display()))?;
            if read == 0 {
                break;
            }
            splitter.take(&chunk[..read]).with_context(|| file.display().to_string())?;
            if splitter.ready_bytes >= BATCH && sender.send(splitter.take_ready()).is_err() {
                // The readers have met something that they cannot read, and say so.
                return Ok(());
            }
        }
        splitter.end().with_context(|| file.display().to_string())?;
        let _ = sender.send(splitter.take_ready());
    }
    Ok(())
}

/// Finds the objects of a list without reading them: those in the one array of the outermost object. Lists may follow one another.
#[derive(Default)]
struct Splitter {
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// Within the array of items.
    in_items: bool,
    item: Vec<u8>,
    ready: Vec<Vec<u8>>,
    ready_bytes: usize,
    objects: usize,
}

/// The depth within the array of items.
const ITEMS: usize = 2;

impl Splitter {
    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut at = 0;
        // Where what belongs to the current item begins in these bytes.
        let mut begin = 0;
        while at < bytes.len() {
            if self.in_text {
                if self.escaped {
                    (self.escaped, at) = (false, at + 1);
                    continue;
                }
                match memchr::memchr2(b'"', b'\\', &bytes[at..]) {
                    Some(found) => {
                        at += found;
                        (self.escaped, self.in_text) = (bytes[at] == b'\\', bytes[at] == b'\\');
                        at += 1;
                    }
                    None => at = bytes.len(),
                }
                continue;
            }
            match bytes[at] {
                b'"' => self.in_text = true,
                b'{' | b'[' => {
                    if self.depth == 1 && bytes[at] == b'[' {
                        self.in_items = true;
                    }
                    if self.in_items && self.depth == ITEMS {
                        begin = at;
                    }
                    self.depth += 1;
                }
                b'}' | b']' => {
                    if self.depth == 0 {
                        bail!("found `{}` where nothing is open, wanted JSON as kubectl prints it", char::from(bytes[at]));
                    }
                    self.depth -= 1;
                    if self.in_items && self.depth == ITEMS {
                        self.item.extend_from_slice(&bytes[begin..=at]);
                        self.ready_bytes += self.item.len();
                        self.ready.push(std::mem::take(&mut self.item));
                        self.objects += 1;
                        begin = at + 1;
                    }
                    if self.depth < ITEMS {
                        self.in_items = false;
                    }
                }
                _ => {}
            }
            at += 1;
        }
        if self.in_items && self.depth > ITEMS {
            self.item.extend_from_slice(&bytes[begin..]);
            if self.item.len() > MOST_BYTES {
                bail!("object {} is larger than {MOST_BYTES} bytes", self.objects + 1);
            }
        }
        Ok(())
    }

    fn take_ready(&mut self) -> Vec<Vec<u8>> {
        self.ready_bytes = 0;
        std::mem::take(&mut self.ready)
    }

    fn end(&self) -> anyhow::Result<()> {
        if self.depth > 0 || self.in_text {
            bail!("it ends in the middle of object {}, wanted a whole list", self.objects + 1);
        }
        Ok(())
    }
}

/// The pools of the cluster at hand.
pub async fn pools(client: &Client) -> anyhow::Result<Policies> {
    let mut policies = Policies::default();
    let resource = kube::core::ApiResource::erase::<HeadroomPool>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let read = |object: DynamicObject| {
        if let Some(pool) = usable("HeadroomPool", object) {
            policies = std::mem::take(&mut policies).with_document(&pool);
        }
    };
    match each(&api, ListParams::default(), read).await {
        Ok(()) => {}
        // Without our kinds the mark label still tells.
        Err(e) if is_absent(&e) => {}
        Err(e) => return Err(e).context("cannot list headroompools"),
    }
    Ok(policies)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, chunk: usize) -> anyhow::Result<Vec<String>> {
        let mut splitter = Splitter::default();
        for bytes in text.as_bytes().chunks(chunk) {
            splitter.take(bytes)?;
        }
        splitter.end()?;
        Ok(splitter.take_ready().into_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect())
    }

    #[test]
    fn objects_are_found_wherever_the_pieces_are_cut() {
        let a = r#"{"kind": "Pod", "metadata": {"name": "a]}", "labels": {"x": "\"}"}}, "spec": {"containers": [{}]}}"#;
        let text = format!("{{\"apiVersion\": \"v1\", \"items\": [\n {a},\n {{}} ], \"metadata\": {{\"x\": {{}}}}}}\n{{\"items\": [{a}]}}");
        for chunk in 1..=text.len() {
            assert_eq!(split(&text, chunk).unwrap(), [a, "{}", a], "in pieces of {chunk}");
        }
    }

    #[test]
    fn what_ends_in_the_middle_is_said() {
        assert!(split(r#"{"items": [{"kind": "Pod"}, {"#, 7).unwrap_err().to_string().contains("in the middle of object 2"));
        assert!(split("]", 1).is_err());
    }
}
