//! HorizontalPodAutoscalers, and KEDA's ScaledObjects: what a floor needs to know of one, and how its minimum is written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::listing::{self, CALL_LIMIT, each, is_absent};
use super::status::FIELD_MANAGER;
use crate::admission::scale_downs::{Parent, ParentKind};
use crate::api::deletion_cost_policy::{Autoscaler, FloorTarget};
use crate::cost::contested::last_manager;
use crate::cost::floor::{Change, HELD, NOTE, Note, Target};

/// How often letting go of an autoscaler is tried, where somebody writes it at the same time.
const RELEASES: usize = 5;

/// What KEDA takes for the maximum where none is written (`apis/keda/v1alpha1/scaledobject_types.go`).
const KEDA_MAX: u32 = 100;

/// Annotations by which a ScaledObject is at rest, whatever their value but `false`.
const KEDA_PAUSED: [&str; 2] = ["autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas"];

/// An autoscaler on which a floor can be held.
pub struct Found {
    pub target: Target,
    /// What it scales.
    pub workload: Parent,
    pub handle: Handle,
}

/// Why none can be held, and what stands there all the same.
pub struct Refused {
    pub unfit: Unfit,
    /// The autoscaler, where one was found that may be written.
    pub found: Option<Box<(Handle, Option<Note>)>>,
}

impl From<Unfit> for Refused {
    fn from(unfit: Unfit) -> Self {
        Self { unfit, found: None }
    }
}

/// Names one state of one autoscaler.
#[derive(Clone)]
pub struct Handle {
    namespace: String,
    name: String,
    kind: Autoscaler,
    uid: Option<String>,
    version: Option<String>,
    /// The minimum as it stood.
    min: Option<u32>,
}

impl Handle {
    /// Another one of the same name has another.
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn target(&self) -> FloorTarget {
        FloorTarget { kind: self.kind, name: self.name.clone() }
    }
}

/// Why no floor can be held on an autoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    NotFound,
    /// A controller would write over whatever is changed there.
    Owned {
        kind: String,
        name: String,
    },
    /// Only pods of a ReplicaSet have costs, and only a Deployment or a Rollout has a ReplicaSet that an autoscaler scales.
    OtherWorkload {
        kind: String,
        name: String,
    },
    Paused {
        annotation: &'static str,
    },
    /// Its controller has not said yet how many replicas there are.
    NotReported,
    /// The API server did not answer, or not with what was wanted.
    Failed {
        why: String,
    },
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    Yes,
    /// Somebody else wrote it since it was read, or it is gone. It is looked at again.
    Conflict,
    Refused {
        why: String,
    },
}

/// Reads and writes autoscalers.
#[derive(Clone)]
pub struct Autoscalers {
    client: Client,
}

impl Autoscalers {
    /// The client must not retry by itself.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Looks at an autoscaler.
    pub async fn find(&self, namespace: &str, wanted: &FloorTarget) -> Result<Found, Refused> {
        let object = self.get(namespace, wanted.kind, &wanted.name).await?;
        // KEDA's HPA says how many replicas there are.
        let hpa = match wanted.kind {
            Autoscaler::HorizontalPodAutoscaler => None,
            Autoscaler::ScaledObject => {
                let paused = KEDA_PAUSED.into_iter().find(|key| object.annotations().get(*key).is_some_and(|value| value != "false"));
                if let Some(annotation) = paused {
                    return Err(Refused {
                        unfit: Unfit::Paused { annotation },
                        found: Some(Box::new((read_handle(&object, wanted.kind), read_note(&object)))),
                    });
                }
                let name = object.data.pointer("/status/hpaName").and_then(Value::as_str).map(str::to_owned);
                let name = name.unwrap_or_else(|| format!("keda-hpa-{}", wanted.name));
                let hpa = self.get(namespace, Autoscaler::HorizontalPodAutoscaler, &name).await;
                Some(hpa.map_err(|unfit| if unfit == Unfit::NotFound { Unfit::NotReported } else { unfit })?)
            }
        };
        read(&object, hpa.as_ref().unwrap_or(&object), wanted.kind)
    }

    async fn get(&self, namespace: &str, kind: Autoscaler, name: &str) -> Result<DynamicObject, Unfit> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource(kind));
        listing::find(&api, name).await.map_err(|why| Unfit::Failed { why })?.ok_or(Unfit::NotFound)
    }

    /// Every autoscaler of the cluster that is labelled as held, with what is noted there, if that can be read; and why some could not be
    /// listed. KEDA copies labels and annotations of a ScaledObject to the HPA that it owns, which is not ours to write.
    pub async fn held(&self) -> (Vec<(Handle, Option<Note>)>, Vec<String>) {
        let (mut held, mut failed) = (Vec::new(), Vec::new());
        for kind in [Autoscaler::HorizontalPodAutoscaler, Autoscaler::ScaledObject] {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource(kind));
            let read = |object: DynamicObject| {
                if owner(&object).is_none() {
                    held.push((read_handle(&object, kind), read_note(&object)));
                }
            };
            match each(&api, ListParams::default().labels(HELD), read).await {
                Ok(()) => {}
                // KEDA is not installed.
                Err(e) if is_absent(&e) => {}
                Err(e) => failed.push(format!("{kind:?}s cannot be listed: {e}")),
            }
        }
        (held, failed)
    }

    /// Writes a minimum and its note, provided that nobody has written the autoscaler since it was read.
    pub async fn write(&self, handle: &Handle, change: &Change) -> Written {
        let text = change.note.as_ref().and_then(|note| serde_json::to_string(note).ok());
        let label = text.as_ref().map(|_| "true");
        let mut patch = json!({"metadata": {"resourceVersion": handle.version, "annotations": {NOTE: text}, "labels": {HELD: label}}});
        // Without it the field's last writer stays who it was.
        if change.min != handle.min {
            patch["spec"] = json!({ field(handle.kind): change.min });
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &handle.namespace, &resource(handle.kind));
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        match timeout(CALL_LIMIT, api.patch(&handle.name, &params, &Patch::Merge(&patch))).await {
            Ok(Ok(_)) => Written::Yes,
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_not_found() => Written::Conflict,
            Ok(Err(e)) => Written::Refused { why: e.to_string() },
            Err(_) => Written::Refused { why: format!("no answer within {CALL_LIMIT:?}") },
        }
    }

    /// Puts back what the owner of an autoscaler had written, where it is still ours. Its controller writes its status all the time, so
    /// a conflict is no reason to leave it; but a note of somebody else's is, and so is that we may not go on.
    pub async fn release(&self, handle: &Handle, note: &Note, may_go_on: &(dyn Fn() -> bool + Sync)) -> Written {
        let mut handle = handle.clone();
        for _ in 0..RELEASES {
            if !may_go_on() {
                return Written::Conflict;
            }
            match self.write(&handle, &Change { min: note.released(handle.kind, handle.min), note: None }).await {
                Written::Conflict => {}
                written => return written,
            }
            match self.get(&handle.namespace, handle.kind, &handle.name).await {
                Ok(object) if owner(&object).is_some() => return Written::Yes,
                Ok(object) => match read_note(&object) {
                    Some(newer) if newer == *note => handle = read_handle(&object, handle.kind),
                    Some(_) => return Written::Conflict,
                    None => return Written::Yes,
                },
                Err(Unfit::NotFound) => return Written::Yes,
                Err(_) => {}
            }
        }
        Written::Conflict
    }
}

fn resource(kind: Autoscaler) -> ApiResource {
    let (group, version, kind, plural) = match kind {
        Autoscaler::HorizontalPodAutoscaler => ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
        Autoscaler::ScaledObject => ("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"),
    };
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: format!("{group}/{version}"),
        kind: kind.into(),
        plural: plural.into(),
    }
}

/// The field of the minimum, below `spec`.
pub fn field(kind: Autoscaler) -> &'static str {
    match kind {
        Autoscaler::HorizontalPodAutoscaler => "minReplicas",
        Autoscaler::ScaledObject => "minReplicaCount",
    }
}

fn read_handle(object: &DynamicObject, kind: Autoscaler) -> Handle {
    Handle {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        kind,
        uid: object.uid(),
        version: object.resource_version(),
        min: count(object, &format!("/spec/{}", field(kind))),
    }
}

fn read_note(object: &DynamicObject) -> Option<Note> {
    serde_json::from_str(object.annotations().get(NOTE)?).ok()
}

fn count(object: &DynamicObject, pointer: &str) -> Option<u32> {
    object.data.pointer(pointer).and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok())
}

fn owner(object: &DynamicObject) -> Option<&OwnerReference> {
    object.owner_references().iter().find(|owner| owner.controller == Some(true))
}

/// How many replicas a workload is asked to have, as its HPA says. The controller writes what it found before it changed it, so where it has
/// lowered the number since, that counts. Pods of a rollout's surge are in neither.
fn replicas(hpa: &DynamicObject) -> Option<u32> {
    let conditions = hpa.data.pointer("/status/conditions").and_then(Value::as_array);
    let is_unable = |c: &Value| c["type"] == "AbleToScale" && c["status"] == "False";
    let current = match (count(hpa, "/status/currentReplicas"), conditions) {
        (Some(current), _) => current,
        // Zero is left out once the status has been written at all; so is what could not be read.
        (None, Some(conditions)) if !conditions.iter().any(is_unable) => 0,
        (None, _) => return None,
    };
    // Without metrics nothing is desired.
    let desired = count(hpa, "/status/desiredReplicas").filter(|desired| *desired > 0);
    Some(desired.map_or(current, |desired| desired.min(current)))
}

/// Reads an autoscaler; `reporting` is the HPA that says how many replicas there are.
fn read(object: &DynamicObject, reporting: &DynamicObject, kind: Autoscaler) -> Result<Found, Refused> {
    if let Some(OwnerReference { kind, name, .. }) = owner(object) {
        return Err(Unfit::Owned { kind: kind.clone(), name: name.clone() }.into());
    }
    let text = |pointer: &str| object.data.pointer(pointer).and_then(Value::as_str);
    let name = text("/spec/scaleTargetRef/name").unwrap_or_default().to_owned();
    // KEDA takes a Deployment where nothing is written.
    let scaled = (text("/spec/scaleTargetRef/kind").unwrap_or("Deployment"), text("/spec/scaleTargetRef/apiVersion").unwrap_or("apps/v1"));
    let workload = match scaled {
        ("Deployment", version) if version.starts_with("apps/") => Parent { kind: ParentKind::Deployment, name },
        ("Rollout", version) if version.starts_with("argoproj.io/") => Parent { kind: ParentKind::Rollout, name },
        (other, _) => {
            let unfit = Unfit::OtherWorkload { kind: other.into(), name };
            return Err(Refused { unfit, found: Some(Box::new((read_handle(object, kind), read_note(object)))) });
        }
    };
    let (handle, maximum) = (
        read_handle(object, kind),
        match kind {
            Autoscaler::HorizontalPodAutoscaler => count(object, "/spec/maxReplicas"),
            Autoscaler::ScaledObject => Some(count(object, "/spec/maxReplicaCount").unwrap_or(KEDA_MAX)),
        },
    );
    let (Some(current), Some(max)) = (replicas(reporting), maximum) else { return Err(Unfit::NotReported.into()) };
    let writer = last_manager(object.managed_fields(), &["f:spec", &format!("f:{}", field(kind))]);
    let target = Target {
        kind,
        min: handle.min,
        max,
        current,
        note: read_note(object),
        is_labelled: object.labels().contains_key(HELD),
        writer: writer.filter(|writer| writer != FIELD_MANAGER),
    };
    Ok(Found { target, workload, handle })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    fn hpa(owner: Value, spec: Value, status: Value) -> DynamicObject {
        object(json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": spec, "status": status,
            "metadata": {"name": "web", "namespace": "shop", "resourceVersion": "7", "ownerReferences": owner}}))
    }

    fn spec(kind: &str, api_version: &str) -> Value {
        json!({"minReplicas": 2, "maxReplicas": 9, "scaleTargetRef": {"kind": kind, "apiVersion": api_version, "name": "web"}})
    }

    fn look(object: &DynamicObject) -> Result<Target, Unfit> {
        read(object, object, Autoscaler::HorizontalPodAutoscaler).map(|found| found.target).map_err(|refused| refused.unfit)
    }

    #[test]
    fn reads_what_a_floor_needs() {
        let found = look(&hpa(json!([]), spec("Deployment", "apps/v1"), json!({"currentReplicas": 5, "conditions": []}))).unwrap();
        assert_eq!(
            found,
            Target {
                kind: Autoscaler::HorizontalPodAutoscaler,
                min: Some(2),
                max: 9,
                current: 5,
                note: None,
                is_labelled: false,
                writer: None
            }
        );
        let rollout = hpa(json!([]), spec("Rollout", "argoproj.io/v1alpha1"), json!({"conditions": []}));
        assert_eq!(look(&rollout).unwrap().current, 0);
    }

    /// DC-39: what KEDA, or any other controller, owns is never written.
    #[test]
    fn dc_39_what_a_controller_owns_is_left_to_it() {
        for kind in ["ScaledObject", "CronHorizontalPodAutoscaler"] {
            let owner = json!([{"apiVersion": "x/v1", "kind": kind, "name": "o", "uid": "u", "controller": true}]);
            let owned = hpa(owner, spec("Deployment", "apps/v1"), json!({"currentReplicas": 5}));
            assert_eq!(look(&owned), Err(Unfit::Owned { kind: kind.into(), name: "o".into() }));
        }
    }

    #[test]
    fn what_cannot_be_held_says_why() {
        let status = || json!({"currentReplicas": 5});
        let other = look(&hpa(json!([]), spec("StatefulSet", "apps/v1"), status()));
        assert_eq!(other, Err(Unfit::OtherWorkload { kind: "StatefulSet".into(), name: "web".into() }));
        assert_eq!(look(&hpa(json!([]), spec("Deployment", "apps/v1"), Value::Null)), Err(Unfit::NotReported));
    }

    /// The status is one step behind: what the HPA has just lowered must not be raised again.
    #[test]
    fn replicas_are_those_that_are_asked_for_now() {
        let of = |status: Value| replicas(&hpa(json!([]), json!({}), status));
        assert_eq!(of(json!({"currentReplicas": 12, "desiredReplicas": 6})), Some(6));
        assert_eq!(of(json!({"currentReplicas": 6, "desiredReplicas": 12})), Some(6), "what is only asked for is not there yet");
        assert_eq!(of(json!({"currentReplicas": 6, "desiredReplicas": 0})), Some(6), "without metrics nothing is desired");
        assert_eq!(of(json!({"conditions": [{"type": "AbleToScale", "status": "False"}]})), None);
    }

    #[test]
    fn a_scaled_object_is_read_with_its_hpa() {
        let scaled = object(json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "web"},
            "spec": {"scaleTargetRef": {"name": "web"}}}));
        let reporting = hpa(json!([]), json!({}), json!({"currentReplicas": 4}));
        let found = read(&scaled, &reporting, Autoscaler::ScaledObject).ok().unwrap();
        assert_eq!(
            found.target,
            Target { kind: Autoscaler::ScaledObject, min: None, max: 100, current: 4, note: None, is_labelled: false, writer: None }
        );
        assert_eq!(found.workload, Parent { kind: ParentKind::Deployment, name: "web".into() });
    }
}
