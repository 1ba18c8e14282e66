//! From the rows of an answer to samples of pods.

use core::net::IpAddr;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use super::Row;
use crate::api::deletion_cost_policy::PodKey;
use crate::cost::GovernedPod;
use crate::cost::readings::Sample;

/// What became of the rows of one answer.
#[derive(Debug, Default, PartialEq)]
pub struct Matched {
    /// By pod UID.
    pub samples: HashMap<String, Sample>,
    /// Rows that name no governed pod, as those of other workloads do.
    pub others: usize,
    /// Rows whose value is NaN: they say nothing.
    pub not_a_number: usize,
    /// Rows with a negative value: they count as 0.
    pub negative: usize,
    /// Rows for a pod that has one already: the highest counts.
    pub duplicates: usize,
    /// The label names that came back; what to look at when nothing matched.
    pub labels: BTreeSet<String>,
}

/// Matches rows to the pods that they are about. A row that says of which namespace its pod is, is only about pods of that
/// one. Where the key is an IP, a row is about the pod that has the address *now*; an address that several running pods share
/// (host network) is about none of them.
pub fn match_rows(rows: &[Row], key: &PodKey, namespace: &str, pods: &[impl AsRef<GovernedPod>]) -> Matched {
    let by_key = index(key, pods);
    let mut matched = Matched::default();
    for row in rows {
        let Some(Some(uid)) = key_of(row, key, namespace).and_then(|key| by_key.get(&key)) else {
            matched.others += 1;
            matched.labels.extend(row.labels.keys().take(64).cloned());
            continue;
        };
        if row.value.is_nan() {
            matched.not_a_number += 1;
            continue;
        }
        if row.value < 0.0 {
            matched.negative += 1;
        }
        let sample = Sample { value: row.value.max(0.0), time: row.time };
        match matched.samples.entry((*uid).to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(sample);
            }
            Entry::Occupied(mut entry) => {
                matched.duplicates += 1;
                if sample.value > entry.get().value {
                    entry.insert(sample);
                }
            }
        }
    }
    matched
}

/// What identifies a pod in an answer.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Name(&'a str),
    Address(IpAddr),
}

fn key_of<'a>(row: &'a Row, key: &PodKey, namespace: &str) -> Option<Key<'a>> {
    match key {
        PodKey::Ip(label) => host(row.labels.get(label)?).parse().ok().map(Key::Address),
        PodKey::Label(label) => {
            // `exported_` marks labels of the target beside those of its exporter, which live in another namespace.
            let of_pod = if label.starts_with("exported_") { "exported_namespace" } else { "namespace" };
            let elsewhere = row.labels.get(of_pod).is_some_and(|other| other != namespace);
            row.labels.get(label).filter(|_| !elsewhere).map(|name| Key::Name(name))
        }
    }
}

/// UID by key; `None` where it fits several pods.
fn index<'a>(key: &PodKey, pods: &'a [impl AsRef<GovernedPod>]) -> HashMap<Key<'a>, Option<&'a str>> {
    let mut by_key: HashMap<Key<'_>, Option<&str>> = HashMap::with_capacity(pods.len());
    for pod in pods.iter().map(AsRef::as_ref) {
        let keys: Vec<Key<'_>> = match key {
            PodKey::Label(_) => vec![Key::Name(&pod.name)],
            PodKey::Ip(_) if pod.is_active() => pod.ips.iter().copied().map(Key::Address).collect(),
            PodKey::Ip(_) => vec![],
        };
        for key in keys {
            by_key.entry(key).and_modify(|uid| *uid = None).or_insert(Some(&pod.uid));
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
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::cost::pod::tests::pod;

    fn row(labels: &[(&str, &str)], value: f64) -> Row {
        let labels = labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Row { labels, value, time: Timestamp::UNIX_EPOCH }
    }

    fn values(matched: &Matched) -> Vec<(&str, f64)> {
        let mut values: Vec<_> = matched.samples.iter().map(|(uid, sample)| (uid.as_str(), sample.value)).collect();
        values.sort_by(|a, b| a.0.cmp(b.0));
        values
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
        assert_eq!(values(&matched), [("chrome-2", 1.0), ("chrome-6", 2.0)]);
        assert_eq!(matched.others, 1, "an address of two pods is about neither");
    }

    /// DC-44: the label names the exporter.
    #[test]
    fn dc_44_says_which_labels_came_back() {
        let rows = [row(&[("pod", "exporter-0"), ("exported_pod", "worker-a")], 5.0)];
        let matched = match_rows(&rows, &PodKey::Label("pod".into()), "shop", &[pod("worker-a")]);
        assert!(matched.samples.is_empty());
        assert_eq!(matched.labels.iter().map(String::as_str).collect::<Vec<_>>(), ["exported_pod", "pod"]);
        let matched = match_rows(&rows, &PodKey::Label("exported_pod".into()), "shop", &[pod("worker-a")]);
        assert_eq!(values(&matched), [("worker-a", 5.0)]);
        // As a scrape really looks: `namespace` is the exporter's.
        let scraped = |namespace: &str| {
            row(&[("pod", "exporter-0"), ("namespace", "monitoring"), ("exported_pod", "worker-a"), ("exported_namespace", namespace)], 5.0)
        };
        let key = PodKey::Label("exported_pod".into());
        assert_eq!(values(&match_rows(&[scraped("shop")], &key, "shop", &[pod("worker-a")])), [("worker-a", 5.0)]);
        assert!(match_rows(&[scraped("other")], &key, "shop", &[pod("worker-a")]).samples.is_empty());
    }

    #[test]
    fn odd_rows_are_counted_and_do_no_harm() {
        let of = |value| row(&[("pod", "a")], value);
        let matched = match_rows(&[of(f64::NAN), of(-3.0), of(2.0), of(1.0)], &PodKey::default(), "shop", &[pod("a")]);
        assert_eq!(values(&matched), [("a", 2.0)]);
        assert_eq!((matched.not_a_number, matched.negative, matched.duplicates), (1, 1, 2));
    }

    #[test]
    fn a_row_of_another_namespace_is_not_ours() {
        let rows = [row(&[("pod", "a"), ("namespace", "other")], 9.0), row(&[("pod", "a"), ("namespace", "shop")], 1.0)];
        assert_eq!(values(&match_rows(&rows, &PodKey::default(), "shop", &[pod("a")])), [("a", 1.0)]);
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
