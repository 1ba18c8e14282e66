//! From the rows of an answer to samples of pods.

use core::net::IpAddr;
use std::collections::{BTreeSet, HashMap};

use k8s_openapi::jiff::Timestamp;

use super::{Row, Rows};
use crate::api::deletion_cost_policy::PodKey;
use crate::cost::GovernedPod;
use crate::cost::readings::Sample;

/// Label names that a message gives, about.
const MOST_LABELS: usize = 64;

/// What became of the rows of one answer.
#[derive(Debug, Default, PartialEq)]
pub struct Matched {
    /// One for each pod, in their order.
    pub samples: Vec<Option<Sample>>,
    /// Rows that name no governed pod, as those of other workloads do.
    pub others: usize,
    /// Rows whose value is NaN: they say nothing.
    pub not_a_number: usize,
    /// Rows with a negative value: they count as 0.
    pub negative: usize,
    /// Rows for a pod that has one already: the highest counts.
    pub duplicates: usize,
    /// Samples that are older than the policy allows to be current.
    pub too_old: usize,
    /// The label names that came back; what to look at when nothing matched.
    pub labels: BTreeSet<String>,
}

impl Matched {
    /// Whether no row is about a governed pod.
    pub fn names_nobody(&self) -> bool {
        self.used() == 0 && self.not_a_number == 0
    }

    /// How many pods have a sample.
    pub fn used(&self) -> usize {
        self.samples.iter().flatten().count()
    }
}

/// The governed pods by what names them in an answer. Made once for all answers of a poll.
pub struct Targets<'a> {
    key: &'a PodKey,
    namespace: &'a str,
    /// Position by key; none where it fits several pods.
    by_key: HashMap<Key<'a>, Option<usize>>,
    pods: usize,
}

impl<'a> Targets<'a> {
    pub fn new(key: &'a PodKey, namespace: &'a str, pods: &'a [impl AsRef<GovernedPod>]) -> Self {
        Self { key, namespace, by_key: index(key, pods), pods: pods.len() }
    }

    /// Matches rows to the pods that they are about. A row that says of which namespace its pod is, is only about pods of that
    /// one. Where the key is an IP, a row is about the pod that has the address *now*; an address that several running pods
    /// share (host network) is about none of them. Samples from before `oldest` are counted.
    pub fn match_rows(&self, rows: &Rows, oldest: Timestamp) -> Matched {
        let mut matched = Matched { samples: vec![None; self.pods], ..Matched::default() };
        for row in rows.iter() {
            let found = key_of(&row, self.key, self.namespace).and_then(|key| self.by_key.get(&key).copied().flatten());
            let Some(slot) = found.and_then(|position| matched.samples.get_mut(position)) else {
                matched.others += 1;
                let room = MOST_LABELS.saturating_sub(matched.labels.len());
                matched.labels.extend(row.label_names().take(room).map(str::to_owned));
                continue;
            };
            if row.value.is_nan() {
                matched.not_a_number += 1;
                continue;
            }
            matched.negative += usize::from(row.value < 0.0);
            matched.too_old += usize::from(row.time < oldest);
            matched.duplicates += usize::from(slot.is_some());
            let value = row.value.max(0.0);
            if slot.is_none_or(|known| value > known.value) {
                *slot = Some(Sample { value, time: row.time });
            }
        }
        matched
    }
}

/// What identifies a pod in an answer.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Name(&'a str),
    Address(IpAddr),
}

fn key_of<'a>(row: &Row<'a>, key: &PodKey, namespace: &str) -> Option<Key<'a>> {
    match key {
        PodKey::Ip(label) => host(row.label(label)?).parse().ok().map(Key::Address),
        PodKey::Label(label) => {
            // `exported_` marks labels of the target beside those of its exporter, which live in another namespace.
            let of_pod = if label.starts_with("exported_") { "exported_namespace" } else { "namespace" };
            let elsewhere = row.label(of_pod).is_some_and(|other| other != namespace);
            row.label(label).filter(|_| !elsewhere).map(Key::Name)
        }
    }
}

fn index<'a>(key: &PodKey, pods: &'a [impl AsRef<GovernedPod>]) -> HashMap<Key<'a>, Option<usize>> {
    let mut by_key: HashMap<Key<'_>, Option<usize>> = HashMap::with_capacity(pods.len());
    let mut insert = |key, position| {
        by_key.entry(key).and_modify(|position| *position = None).or_insert(Some(position));
    };
    for (position, pod) in pods.iter().map(AsRef::as_ref).enumerate() {
        match key {
            PodKey::Label(_) => insert(Key::Name(&pod.name), position),
            PodKey::Ip(_) if pod.is_active() => pod.ips.iter().for_each(|ip| insert(Key::Address(*ip), position)),
            PodKey::Ip(_) => {}
        }
    }
    by_key
}

/// The host of an address: `http://10.0.3.14:5555/x`, `10.0.3.14:5555`, `[fd00::1]:80` and bare addresses.
fn host(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    if let Some(bracketed) = authority.strip_prefix('[') {
        return bracketed.split(']').next().unwrap_or(bracketed);
    }
    match authority.split_once(':') {
        // A second colon: an IPv6 address without brackets, and so without a port.
        Some((_, rest)) if rest.contains(':') => authority,
        Some((host, _)) => host,
        None => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::pod::tests::pod;

    type TestRow = (Vec<(String, String)>, f64);

    fn row(labels: &[(&str, &str)], value: f64) -> TestRow {
        (labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(), value)
    }

    fn match_rows(test_rows: &[TestRow], key: &PodKey, namespace: &str, pods: &[GovernedPod]) -> Matched {
        let mut rows = Rows::default();
        for (labels, value) in test_rows {
            labels.iter().for_each(|(name, text)| rows.label(name, text));
            rows.end(*value, Timestamp::UNIX_EPOCH);
        }
        Targets::new(key, namespace, pods).match_rows(&rows, Timestamp::UNIX_EPOCH)
    }

    fn values(matched: &Matched) -> Vec<Option<f64>> {
        matched.samples.iter().map(|sample| sample.map(|sample| sample.value)).collect()
    }

    /// DC-03: the value is on the hub, under the worker's address.
    #[test]
    fn dc_03_matches_by_the_address_that_a_pod_has_now() {
        let at = |name: &str, ip: &str| GovernedPod { ips: vec![ip.parse().unwrap()], ..pod(name) };
        let gone = GovernedPod { terminating: true, ..at("old", "10.0.3.14") };
        let pods = [gone, at("chrome-2", "10.0.3.14"), at("chrome-6", "fd00::1"), at("host-a", "10.9.9.9"), at("host-b", "10.9.9.9")];
        let rows = [
            row(&[("node_uri", "http://10.0.3.14:5555"), ("namespace", "selenium-hub")], 1.0),
            row(&[("node_uri", "[FD00::1]:80")], 2.0),
            row(&[("node_uri", "10.9.9.9")], 3.0),
        ];
        let matched = match_rows(&rows, &PodKey::Ip("node_uri".into()), "shop", &pods);
        assert_eq!(values(&matched), [None, Some(1.0), Some(2.0), None, None]);
        assert_eq!(matched.others, 1, "an address of two pods is about neither");
    }

    /// DC-44: the label names the exporter.
    #[test]
    fn dc_44_says_which_labels_came_back() {
        let rows = [row(&[("pod", "exporter-0"), ("exported_pod", "worker-a")], 5.0)];
        let matched = match_rows(&rows, &PodKey::Label("pod".into()), "shop", &[pod("worker-a")]);
        assert_eq!(matched.used(), 0);
        assert_eq!(matched.labels.iter().map(String::as_str).collect::<Vec<_>>(), ["exported_pod", "pod"]);
        let matched = match_rows(&rows, &PodKey::Label("exported_pod".into()), "shop", &[pod("worker-a")]);
        assert_eq!(values(&matched), [Some(5.0)]);
        // As a scrape really looks: `namespace` is the exporter's.
        let scraped = |namespace: &str| {
            row(&[("pod", "exporter-0"), ("namespace", "monitoring"), ("exported_pod", "worker-a"), ("exported_namespace", namespace)], 5.0)
        };
        let key = PodKey::Label("exported_pod".into());
        assert_eq!(values(&match_rows(&[scraped("shop")], &key, "shop", &[pod("worker-a")])), [Some(5.0)]);
        assert!(match_rows(&[scraped("other")], &key, "shop", &[pod("worker-a")]).used() == 0);
    }

    #[test]
    fn odd_rows_are_counted_and_do_no_harm() {
        let of = |value| row(&[("pod", "a")], value);
        let matched = match_rows(&[of(f64::NAN), of(-3.0), of(2.0), of(1.0)], &PodKey::default(), "shop", &[pod("a")]);
        assert_eq!(values(&matched), [Some(2.0)]);
        assert_eq!((matched.not_a_number, matched.negative, matched.duplicates), (1, 1, 2));
    }

    #[test]
    fn a_row_of_another_namespace_is_not_ours() {
        let rows = [row(&[("pod", "a"), ("namespace", "other")], 9.0), row(&[("pod", "a"), ("namespace", "shop")], 1.0)];
        assert_eq!(values(&match_rows(&rows, &PodKey::default(), "shop", &[pod("a")])), [Some(1.0)]);
    }

    #[test]
    fn finds_the_host_of_an_address() {
        for (address, wanted) in [
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("https://10.0.0.1:80/a?b", "10.0.0.1"),
            ("fd00::1", "fd00::1"),
            ("[fd00::1]", "fd00::1"),
            ("http://[fd00::1]:80", "fd00::1"),
            ("", ""),
            ("[", ""),
        ] {
            assert_eq!(host(address), wanted, "{address}");
        }
    }
}
