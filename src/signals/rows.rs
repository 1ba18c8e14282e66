//! The rows of one answer. There may be a hundred thousand, of which each has a handful of short texts: they are kept in one
//! buffer rather than one by one.

use std::collections::HashMap;
use std::ops::Range;

use k8s_openapi::jiff::Timestamp;

/// Different names of labels in one answer.
const MOST_NAMES: usize = 256;

/// Rows of labels, a value and a time.
#[derive(Debug, Default)]
pub struct Rows {
    text: String,
    /// The few names that all rows share, and their place among them.
    names: Vec<String>,
    by_name: HashMap<String, u16>,
    labels: Vec<(u16, Range<u32>)>,
    rows: Vec<Ended>,
}

/// Where a row ends in the labels, and what it says.
#[derive(Debug)]
struct Ended {
    labels: u32,
    value: f64,
    time: Timestamp,
}

/// One row of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    rows: &'a Rows,
    labels: &'a [(u16, Range<u32>)],
    pub value: f64,
    pub time: Timestamp,
}

impl Rows {
    /// Adds a label to the row that is being read. A label whose name is the 257th or later is left out: no answer that is about
    /// pods has so many.
    pub fn label(&mut self, name: &str, value: &str) {
        let index = match self.by_name.get(name) {
            Some(index) => *index,
            None if self.names.len() >= MOST_NAMES => return,
            None => {
                let index = u16::try_from(self.names.len()).unwrap_or(u16::MAX);
                self.names.push(name.to_owned());
                self.by_name.insert(name.to_owned(), index);
                index
            }
        };
        let start = self.text.len();
        if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(start + value.len())) {
            self.text.push_str(value);
            self.labels.push((index, start..end));
        }
    }

    /// Ends the row that is being read.
    pub fn end(&mut self, value: f64, time: Timestamp) {
        let labels = u32::try_from(self.labels.len()).unwrap_or(u32::MAX);
        self.rows.push(Ended { labels, value, time });
    }

    /// Forgets the labels of the row that is being read: it says nothing.
    pub fn discard(&mut self) {
        self.labels.truncate(self.rows.last().map_or(0, |row| row.labels as usize));
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        let starts = std::iter::once(0).chain(self.rows.iter().map(|row| row.labels as usize));
        starts.zip(&self.rows).map(|(start, row)| Row {
            rows: self,
            labels: self.labels.get(start..row.labels as usize).unwrap_or_default(),
            value: row.value,
            time: row.time,
        })
    }
}

impl<'a> Row<'a> {
    pub fn label(&self, name: &str) -> Option<&'a str> {
        let (_, text) = self.labels.iter().find(|(index, _)| self.rows.names[usize::from(*index)] == name)?;
        Some(&self.rows.text[text.start as usize..text.end as usize])
    }

    pub fn label_names(&self) -> impl Iterator<Item = &'a str> {
        self.labels.iter().map(|(index, _)| self.rows.names[usize::from(*index)].as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_was_put_in() {
        let mut rows = Rows::default();
        rows.label("pod", "a");
        rows.label("namespace", "shop");
        rows.end(1.0, Timestamp::UNIX_EPOCH);
        rows.label("pod", "histogram");
        rows.discard();
        rows.end(2.0, Timestamp::UNIX_EPOCH);
        rows.label("pod", "c");
        rows.end(3.0, Timestamp::UNIX_EPOCH);
        let found: Vec<_> = rows.iter().map(|row| (row.label("pod"), row.label("namespace"), row.value)).collect();
        assert_eq!(found, [(Some("a"), Some("shop"), 1.0), (None, None, 2.0), (Some("c"), None, 3.0)]);
        assert_eq!(rows.iter().next().unwrap().label_names().collect::<Vec<_>>(), ["pod", "namespace"]);
        assert_eq!((rows.len(), rows.is_empty()), (3, false));
    }

    /// An exporter decides on the names of its labels, and may have another for each series.
    #[test]
    fn names_without_end_cost_nothing() {
        let mut rows = Rows::default();
        for index in 0..100_000 {
            rows.label(&format!("name_{index}"), "x");
            rows.end(1.0, Timestamp::UNIX_EPOCH);
        }
        assert_eq!((rows.len(), rows.names.len(), rows.labels.len()), (100_000, 256, 256));
    }
}
