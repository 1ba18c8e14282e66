//! What the conditions of a policy say after a poll. Pure: the same poll gives the same words.

pub mod floor;
pub mod room;

use crate::api::CostPolicy;
use crate::api::deletion_cost_policy::ForeignValues;
use crate::cluster::doors::Doors;
use crate::cost::census::Group;
use crate::signals::report::{Outcome, Poll};

/// Why a policy that selects only pods of other kinds is in force in vain.
pub const NONE_HONOURED: &str = "NoneHonoured";

/// A condition as it should stand, without its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub type_: &'static str,
    pub status: Status,
    pub reason: &'static str,
    pub message: String,
    /// Whether somebody should look at it.
    pub is_trouble: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl Said {
    fn new(type_: &'static str, status: Status, reason: &'static str, message: impl Into<String>) -> Self {
        Self { type_, status, reason, message: message.into(), is_trouble: false }
    }

    fn trouble(type_: &'static str, status: Status, reason: &'static str, message: impl Into<String>) -> Self {
        Self { is_trouble: true, ..Self::new(type_, status, reason, message) }
    }

    /// Whether a version of a document is in force.
    pub fn ready(result: Result<(), (&'static str, String)>) -> Self {
        match result {
            Ok(()) => Self::new("Ready", Status::True, "InForce", "this version is in force"),
            Err((reason, message)) => Self::trouble("Ready", Status::False, reason, message),
        }
    }

    /// Whether the change from another is worth an Event: not one of wording.
    pub fn differs_in_kind(&self, status: &str, reason: &str) -> bool {
        self.status.as_str() != status || self.reason != reason
    }
}

/// The conditions after a poll.
pub fn of_poll(policy: &CostPolicy, poll: &Poll) -> Vec<Said> {
    let mut all = vec![backend_reachable(policy, poll), series_match(policy, poll), busy_pods_ready(poll), foreign_values(policy, poll)];
    all.push(targets_honour_cost(poll));
    all.extend(policy.work_seconds().map(|seconds| grace_period(seconds, &poll.census.short_grace)));
    all
}

fn by_signal<'a>(policy: &'a CostPolicy, poll: &'a Poll) -> impl Iterator<Item = (&'a str, &'a Outcome)> {
    policy.signals.iter().map(|signal| signal.name.as_str()).zip(&poll.outcomes)
}

fn backend_reachable(policy: &CostPolicy, poll: &Poll) -> Said {
    let failed: Vec<(&'static str, String)> = by_signal(policy, poll)
        .filter_map(|(name, outcome)| match outcome {
            Outcome::Failed { kind, why } => Some((*kind, format!("signal `{name}`: {why}"))),
            _ => None,
        })
        .collect();
    let Some((kind, _)) = failed.first() else {
        return Said::new("BackendReachable", Status::True, "Answering", "every query is answered");
    };
    let reason = match *kind {
        "refused" => "QueryRefused",
        "credentials" => "NoCredentials",
        "timeout" => "Timeout",
        "status" => "ErrorStatus",
        "redirect" => "RedirectRefused",
        "too_often" => "AskedTooOften",
        "too_large" => "AnswerTooLarge",
        "malformed" => "AnswerMalformed",
        _ => "Unreachable",
    };
    let whys: Vec<&str> = failed.iter().map(|(_, why)| why.as_str()).collect();
    let kept = policy.spec.samples.keep_last_seconds;
    Said::trouble("BackendReachable", Status::False, reason, format!("{}; last known values stand in for {kept} s", whys.join("; ")))
}

fn series_match(policy: &CostPolicy, poll: &Poll) -> Said {
    let said = |status, reason, message| Said::new("SeriesMatchTargets", status, reason, message);
    let trouble = |reason, message| Said::trouble("SeriesMatchTargets", Status::False, reason, message);
    if poll.census.pods() == 0 {
        return said(Status::Unknown, "NoPods", "the policy governs no running pod".to_owned());
    }
    for (name, outcome) in by_signal(policy, poll) {
        if let Outcome::NoneMatches { rows, labels } = outcome {
            let labels = labels.join(", ");
            let key = match &policy.spec.pod_key {
                crate::api::deletion_cost_policy::PodKey::Label(label) => format!("the name of a governed pod in the label `{label}`"),
                crate::api::deletion_cost_policy::PodKey::Ip(label) => format!("the address of a governed pod in the label `{label}`"),
            };
            let message =
                format!("signal `{name}`: none of {rows} rows has {key}; their labels are: {labels}. It changes no cost. See spec.podKey");
            return trouble("NoSeriesMatchTargets", message);
        }
    }
    let named = |wanted: &dyn Fn(&Outcome) -> bool| {
        by_signal(policy, poll).filter(|(_, outcome)| wanted(outcome)).map(|(name, _)| name).collect::<Vec<_>>()
    };
    let silent = named(&|outcome| matches!(outcome, Outcome::NoRows { .. }));
    let left_out = named(&|outcome| *outcome == Outcome::NoRows { left_out: true });
    let old = named(&|outcome| *outcome == Outcome::AllOld);
    let asked = poll.outcomes.iter().filter(|outcome| !matches!(outcome, Outcome::Failed { .. })).count();
    match (asked, silent.len()) {
        (0, _) => said(Status::Unknown, "NoAnswer", "no query is answered".to_owned()),
        (_, 0) if !old.is_empty() => trouble(
            "SamplesTooOld",
            format!("every sample is older than spec.samples.maxAgeSeconds ({}): {}", policy.spec.samples.max_age_seconds, old.join(", ")),
        ),
        (_, 0) if poll.outcomes.contains(&Outcome::Doubted) => {
            said(Status::True, "Doubted", "all zero right after an outage; believed if the next poll says so too".to_owned())
        }
        (_, 0) => said(Status::True, "Matching", "the answers are about governed pods".to_owned()),
        (asked, silent_count) if asked == silent_count => trouble(
            "NoSeries",
            format!("no signal has a series for any pod ({}): what is not known from before is unknown", silent.join(", ")),
        ),
        _ if left_out.is_empty() => {
            let kept = policy.spec.samples.keep_last_seconds;
            trouble("NoSeries", format!("no series for any pod: {}; last known values stand in for {kept} s", silent.join(", ")))
        }
        _ => trouble("SignalLeftOut", format!("no series for any pod: {}. Left out; the other signals rank alone", left_out.join(", "))),
    }
}

fn busy_pods_ready(poll: &Poll) -> Said {
    match &poll.census.outranked {
        none if none.count == 0 => Said::new("BusyPodsReady", Status::True, "AllReady", "every pod at work is Ready"),
        some => Said::trouble(
            "BusyPodsReady",
            Status::False,
            "OutrankedByReadiness",
            format!("{}: at work but not Ready. Kubernetes removes pods that are not Ready first, whatever their cost", some.in_words()),
        ),
    }
}

fn foreign_values(policy: &CostPolicy, poll: &Poll) -> Said {
    let (foreign, malformed) = (&poll.census.foreign, &poll.census.malformed);
    if let Some((pod, writer)) = poll.contested.first() {
        let count = poll.contested.len();
        let message = format!("{count} pods, such as {pod}: `{writer}` keeps writing over the cost; only scale-downs write it now");
        return Said::trouble("ForeignValues", Status::True, "Contested", message);
    }
    if malformed.count > 0 {
        let message = format!("{}: the stored cost is no number, and counts as 0 until a scale-down replaces it", malformed.in_words());
        return Said::trouble("ForeignValues", Status::True, "MalformedCost", message);
    }
    if foreign.count == 0 {
        return Said::new("ForeignValues", Status::False, "None", "nobody else writes costs on these pods");
    }
    let (what, is_trouble) = match policy.spec.foreign_values {
        ForeignValues::Skip => ("left alone, and the pods rank by it (spec.foreignValues: Skip)", true),
        ForeignValues::Override => ("replaced when a scale-down or an update needs it (spec.foreignValues: Override)", false),
    };
    let message = format!("{}: somebody else wrote the cost; it is {what}", foreign.in_words());
    Said { is_trouble, ..Said::new("ForeignValues", Status::True, "Found", message) }
}

/// DC-48: Kubernetes reads the cost only where a ReplicaSet or a ReplicationController chooses the victims.
fn targets_honour_cost(poll: &Poll) -> Said {
    if poll.not_honoured.is_empty() {
        return Said::new(
            "TargetsHonourCost",
            Status::True,
            "ReplicaSets",
            "a ReplicaSet or a ReplicationController controls each selected pod",
        );
    }
    let kinds: Vec<String> = poll.not_honoured.iter().map(|(controller, count)| format!("{count} controlled by {controller}")).collect();
    let reason = if poll.census.pods() == 0 { NONE_HONOURED } else { "SomeNotHonoured" };
    let message = format!(
        "selected, but never written: {}. Only a ReplicaSet or a ReplicationController reads the cost; a StatefulSet goes by ordinal, a Job by age",
        kinds.join(", ")
    );
    Said::trouble("TargetsHonourCost", Status::False, reason, message)
}

/// DC-19, DC-20: whether the installed webhook sees the scale-downs of a policy's namespace.
pub fn scale_downs_reviewed(doors: &Doors, namespace: &str) -> Said {
    let trouble = |reason, message| Said::trouble("ScaleDownsReviewed", Status::False, reason, message);
    if let Some(why) = &doors.unreadable {
        return Said::trouble("ScaleDownsReviewed", Status::Unknown, "CannotRead", why.clone());
    }
    if !doors.problems.is_empty() {
        return trouble("DoorClosed", format!("busy pods may go: {}", doors.problems.join("; ")));
    }
    if doors.excluded.iter().any(|excluded| excluded == namespace) {
        let message = format!("the installed hook excludes namespace {namespace} by name: no scale-down of this policy's pods is reviewed");
        return trouble("NamespaceExcluded", message);
    }
    let limits = match doors.selects_otherwise {
        true => "; which namespaces its namespaceSelector matches by labels is not looked at",
        false => "",
    };
    let message = format!("the installed webhook has a rule for every scale-down{limits}");
    Said::new("ScaleDownsReviewed", Status::True, "AllDoors", message)
}

/// DC-49: the right victim still loses its work if it has no time to finish it.
fn grace_period(work_seconds: u32, short: &Group) -> Said {
    if short.count == 0 {
        let message = format!("pods have at least {work_seconds} s to finish their work");
        return Said::new("GracePeriodSuffices", Status::True, "LongEnough", message);
    }
    let message = format!(
        "{}: terminationGracePeriodSeconds is below {work_seconds} s, which a unit of work may take (spec.workSeconds, or the preset's). \
         A pod that is removed at work cannot finish it",
        short.in_words()
    );
    Said::trouble("GracePeriodSuffices", Status::False, "TooShort", message)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::DeletionCostPolicy;
    use crate::cost::census::Census;

    fn policy(change: Value) -> CostPolicy {
        let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}, "signals": [
            {"name": "work", "query": "w", "weight": 1, "cap": 9}, {"name": "cpu", "query": "c", "weight": 1, "cap": 9}]});
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let policy: DeletionCostPolicy = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        CostPolicy::compile(&policy)
    }

    fn poll(outcomes: [Outcome; 2], census: Census) -> Poll {
        Poll { time: Timestamp::UNIX_EPOCH, generation: 1, outcomes: outcomes.into(), census, contested: vec![], not_honoured: vec![] }
    }

    fn said(policy: &CostPolicy, poll: &Poll, type_: &str) -> (Status, &'static str, String) {
        let said = of_poll(policy, poll).into_iter().find(|said| said.type_ == type_).unwrap();
        (said.status, said.reason, said.message)
    }

    fn group(count: u32, examples: &[&str]) -> Group {
        Group { count, examples: examples.iter().map(ToString::to_string).collect() }
    }

    fn busy() -> Census {
        Census { busy: 2, ..Census::default() }
    }

    #[test]
    fn all_is_well() {
        let all = of_poll(&policy(json!({})), &poll([Outcome::Used, Outcome::Used], busy()));
        assert!(all.iter().all(|said| !said.is_trouble), "{all:?}");
        assert!(all.iter().all(|said| said.type_ != "GracePeriodSuffices"), "nobody said how long work takes");
    }

    #[test]
    fn a_backend_that_is_away_is_named_with_each_signal() {
        let failed = Outcome::Failed { kind: "timeout", why: "no answer within 10s".into() };
        let (status, reason, message) = said(&policy(json!({})), &poll([failed.clone(), Outcome::Used], busy()), "BackendReachable");
        assert_eq!((status, reason), (Status::False, "Timeout"));
        assert_eq!(message, "signal `work`: no answer within 10s; last known values stand in for 600 s");
        let all_failed = poll([failed.clone(), failed], busy());
        assert_eq!(said(&policy(json!({})), &all_failed, "SeriesMatchTargets").1, "NoAnswer");
    }

    /// DC-44: the labels that came back are what one has to look at.
    #[test]
    fn dc_44_names_the_labels_that_came_back() {
        let none = Outcome::NoneMatches { rows: 7, labels: vec!["exported_pod".into(), "pod".into()] };
        let (status, reason, message) = said(&policy(json!({})), &poll([none, Outcome::Used], busy()), "SeriesMatchTargets");
        assert_eq!((status, reason), (Status::False, "NoSeriesMatchTargets"));
        assert!(
            message.contains("none of 7 rows") && message.contains("exported_pod, pod") && message.contains("spec.podKey"),
            "{message}"
        );
    }

    #[test]
    fn a_signal_that_nobody_has_is_left_out_by_name() {
        let policy = policy(json!({}));
        let one = said(&policy, &poll([Outcome::Used, Outcome::NoRows { left_out: true }], busy()), "SeriesMatchTargets");
        assert_eq!((one.1, one.2.contains("cpu. Left out")), ("SignalLeftOut", true), "{}", one.2);
        assert_eq!(
            said(&policy, &poll([Outcome::NoRows { left_out: false }, Outcome::NoRows { left_out: false }], busy()), "SeriesMatchTargets")
                .1,
            "NoSeries"
        );
        assert_eq!(
            said(
                &policy,
                &poll([Outcome::NoRows { left_out: false }, Outcome::NoRows { left_out: false }], Census::default()),
                "SeriesMatchTargets"
            )
            .1,
            "NoPods"
        );
        assert_eq!(said(&policy, &poll([Outcome::Used, Outcome::Doubted], busy()), "SeriesMatchTargets").1, "Doubted");
    }

    /// DC-10, DC-26, DC-29.
    #[test]
    fn pods_that_need_a_look_are_named() {
        let census = Census { outranked: group(1, &["x"]), foreign: group(4, &["a", "b", "c"]), ..busy() };
        let poll_ = poll([Outcome::Used, Outcome::Used], census);
        assert_eq!(said(&policy(json!({})), &poll_, "BusyPodsReady").1, "OutrankedByReadiness");
        let (status, _, message) = said(&policy(json!({})), &poll_, "ForeignValues");
        assert!(status == Status::True && message.starts_with("4 pods (a, b, c, …)") && message.contains("Skip"), "{message}");
        assert!(said(&policy(json!({"foreignValues": "Override"})), &poll_, "ForeignValues").2.contains("Override"));
        let census = Census { malformed: group(1, &["m"]), ..busy() };
        assert_eq!(said(&policy(json!({})), &poll([Outcome::Used, Outcome::Used], census), "ForeignValues").1, "MalformedCost");
    }

    #[test]
    fn dc_48_pods_of_other_kinds_are_counted_and_never_honoured() {
        let mixed = Poll { not_honoured: vec![("a Job", 1), ("a StatefulSet", 3)], ..poll([Outcome::Used, Outcome::Used], busy()) };
        let (status, reason, message) = said(&policy(json!({})), &mixed, "TargetsHonourCost");
        assert_eq!((status, reason), (Status::False, "SomeNotHonoured"));
        assert!(message.contains("1 controlled by a Job, 3 controlled by a StatefulSet"), "{message}");
        let pure = Poll { census: Census::default(), ..mixed };
        assert_eq!(said(&policy(json!({})), &pure, "TargetsHonourCost").1, "NoneHonoured");
    }

    #[test]
    fn dc_49_a_grace_period_that_is_shorter_than_the_work_is_said() {
        let census = Census { short_grace: group(2, &["a", "b"]), ..busy() };
        let poll = poll([Outcome::Used, Outcome::Used], census);
        let (status, _, message) = said(&policy(json!({"workSeconds": 600})), &poll, "GracePeriodSuffices");
        assert!(status == Status::False && message.contains("2 pods (a, b)") && message.contains("600 s"), "{message}");
    }
}
