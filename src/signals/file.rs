//! A static file: answers by query text. For demonstrations, tests, and values that a job writes now and then.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::{Backend, Query, QueryError, Rows};
use crate::api::documents;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// A YAML file `queries: {QUERY: [{labels: {…}, value: …, time: …}]}`, read at every query.
    path: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answers {
    queries: HashMap<String, Vec<Answer>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    labels: BTreeMap<String, String>,
    value: f64,
    /// Now, where absent.
    time: Option<Timestamp>,
}

pub struct File {
    path: PathBuf,
}

impl File {
    pub fn new(config: &Config, directory: &Path) -> Self {
        Self { path: directory.join(&config.path) }
    }

    fn read(&self, query: &Query) -> Result<Rows, String> {
        let text = documents::read_text(&self.path)?;
        let mut answers: Answers = documents::yaml(&text).map_err(|(position, message)| match position {
            Some((line, column)) => format!("{line}:{column}: {message}"),
            None => message,
        })?;
        let Some(rows) = answers.queries.remove(&query.text) else {
            let known = answers.queries.keys().map(|query| format!("`{query}`")).collect::<Vec<_>>().join(", ");
            return Err(format!("no answer for the query `{}`; there is one for {known}", query.text));
        };
        let now = Timestamp::now();
        let mut read = Rows::default();
        for row in rows {
            row.labels.iter().for_each(|(name, value)| read.label(name, value));
            read.end(row.value, row.time.unwrap_or(now));
        }
        Ok(read)
    }
}

impl Backend for File {
    /// What the file says is the operator's own choice.
    fn prepare(&self, query: &str, _: &str) -> Result<String, String> {
        Ok(query.into())
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Rows, QueryError>> {
        let answer = self.read(query).map_err(|message| QueryError::malformed(format!("{}: {message}", self.path.display())));
        Box::pin(std::future::ready(answer))
    }
}
