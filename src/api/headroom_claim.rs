//! `HeadroomClaim`: a request for one placeholder's room, made before the job's pod exists.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Problem, Problems};

/// How long a claim may last without a sign of its holder, in seconds.
pub const TTL: std::ops::RangeInclusive<u32> = 5..=86_400;

/// The annotation of a job's pod that names its claim.
pub const CLAIM_ANNOTATION: &str = "pecking-order.dev/claim";

/// The annotation of a job's pod that names the job, for claims with `spec.job`.
pub const JOB_ANNOTATION: &str = "pecking-order.dev/job";

/// Asks for the room of one placeholder.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "pecking-order.dev",
    version = "v1alpha1",
    kind = "HeadroomClaim",
    plural = "headroomclaims",
    shortname = "hc",
    category = "pecking-order",
    namespaced,
    label("app.kubernetes.io/name", "pecking-order"),
    status = "HeadroomClaimStatus",
    printcolumn = r#"{"name":"Pool","type":"string","jsonPath":".spec.pool"}"#,
    printcolumn = r#"{"name":"Bound","type":"string","jsonPath":".status.conditions[?(@.type==\"Bound\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Bound\")].reason"}"#,
    printcolumn = r#"{"name":"Renewed","type":"date","jsonPath":".spec.renewTime"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeadroomClaimSpec {
    /// The HeadroomPool. It cannot change.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("the pool of a claim cannot change; make another claim"))]
    pub pool: String,
    /// The claim ends so long after its last sign of life, in seconds, 5 to 86400.
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 5, max = 86_400))]
    pub ttl_seconds: u32,
    /// The holder's last sign of life; its creation where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<MicroTime>,
    /// The job that came of it: the claim then ends when the pod with this annotation `pecking-order.dev/job` has a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub job: Option<String>,
}

fn five_minutes() -> u32 {
    300
}

/// What the product says about the claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeadroomClaimStatus {
    /// `Bound`: whether it holds a slot, or why not. `Released`: how it has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl HeadroomClaimSpec {
    /// Everything that the schema cannot say, and what it says.
    pub fn problems(&self) -> Vec<Problem> {
        let mut p = Problems::default();
        if self.pool.is_empty() {
            p.push("spec.pool", "nothing", "the name of a HeadroomPool");
        }
        p.range("spec.ttlSeconds", self.ttl_seconds, *TTL.start(), *TTL.end());
        p.0
    }
}
