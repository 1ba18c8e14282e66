//! The table of node labels that mean spot: data, with who sets each.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One node label by which a provider or a tool tells spot nodes from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpotRow {
    /// Who sets the label; shown in messages.
    #[serde(default)]
    pub provider: String,
    /// The label's key.
    pub key: String,
    /// Values that mean spot.
    pub spot: Vec<String>,
    /// Values that mean a regular node; none where a regular node does not carry the label.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regular: Vec<String>,
    /// Further values that do not mean spot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other: Vec<String>,
    /// Rows of one family are in use side by side in some clusters, so shutting out the spot nodes of one proves nothing about another's.
    #[serde(skip)]
    pub family: Option<&'static str>,
}

impl SpotRow {
    /// Every value that is known, those of regular nodes first.
    pub fn values(&self) -> impl Iterator<Item = &String> {
        self.regular.iter().chain(&self.other).chain(&self.spot)
    }

    /// Whether a node has none but these values: of a convention nobody knows all, nor of a label that only spot nodes carry.
    pub fn has_every_value(&self) -> bool {
        !self.regular.is_empty() && self.provider != CONVENTION
    }
}

/// Who sets labels that no provider does.
const CONVENTION: &str = "convention";

/// A row of the built-in table.
struct BuiltIn {
    provider: &'static str,
    key: &'static str,
    spot: &'static [&'static str],
    regular: &'static [&'static str],
    other: &'static [&'static str],
    family: Option<&'static str>,
}

/// The built-in table. Sources are the providers' documentation and the source of the tools that set the labels.
#[rustfmt::skip]
const TABLE: &[BuiltIn] = &[
    BuiltIn { provider: "Karpenter, EKS Auto Mode, AKS node auto-provisioning", key: "karpenter.sh/capacity-type", spot: &["spot"], regular: &["on-demand"], other: &["reserved"], family: Some("aws") },
    BuiltIn { provider: "EKS managed node groups", key: "eks.amazonaws.com/capacityType", spot: &["SPOT"], regular: &["ON_DEMAND"], other: &["CAPACITY_BLOCK"], family: Some("aws") },
    BuiltIn { provider: "Karpenter on AWS", key: "karpenter.k8s.aws/capacity-reservation-interruptible", spot: &["true"], regular: &["false"], other: &[], family: None },
    BuiltIn { provider: "GKE spot VMs", key: "cloud.google.com/gke-spot", spot: &["true"], regular: &[], other: &[], family: Some("gke") },
    BuiltIn { provider: "GKE preemptible VMs", key: "cloud.google.com/gke-preemptible", spot: &["true"], regular: &[], other: &[], family: Some("gke") },
    BuiltIn { provider: "GKE", key: "cloud.google.com/gke-provisioning", spot: &["spot", "preemptible"], regular: &["standard"], other: &[], family: None },
    BuiltIn { provider: "AKS", key: "kubernetes.azure.com/scalesetpriority", spot: &["spot"], regular: &[], other: &["regular"], family: None },
    BuiltIn { provider: "Karpenter on Azure", key: "kubernetes.azure.com/priority", spot: &["spot"], regular: &["regular"], other: &[], family: None },
    BuiltIn { provider: "Oracle OKE", key: "oci.oraclecloud.com/oke-is-preemptible", spot: &["true"], regular: &[], other: &[], family: None },
    BuiltIn { provider: "Alibaba ACK", key: "node.alibabacloud.com/spot-strategy", spot: &["SpotWithPriceLimit", "SpotAsPriceGo"], regular: &["NoSpot"], other: &[], family: None },
    BuiltIn { provider: "Yandex", key: "yandex.cloud/preemptible", spot: &["true"], regular: &["false"], other: &[], family: None },
    BuiltIn { provider: "OpenShift Machine API", key: "machine.openshift.io/interruptible-instance", spot: &[""], regular: &[], other: &[], family: None },
    BuiltIn { provider: "Spot Ocean", key: "spotinst.io/node-lifecycle", spot: &["spot"], regular: &["od"], other: &[], family: None },
    BuiltIn { provider: "CAST AI", key: "scheduling.cast.ai/spot", spot: &["true"], regular: &[], other: &[], family: None },
    BuiltIn { provider: CONVENTION, key: "lifecycle", spot: &["spot", "Ec2Spot"], regular: &["OnDemand", "normal", "on-demand"], other: &[], family: None },
    BuiltIn { provider: CONVENTION, key: "node.kubernetes.io/lifecycle", spot: &["spot"], regular: &["normal", "on-demand"], other: &[], family: None },
    BuiltIn { provider: CONVENTION, key: "kubernetes.io/lifecycle", spot: &["spot"], regular: &["normal", "on-demand"], other: &[], family: None },
    BuiltIn { provider: CONVENTION, key: "node-lifecycle", spot: &["spot"], regular: &["normal", "on-demand"], other: &[], family: None },
    BuiltIn { provider: CONVENTION, key: "aws.amazon.com/spot", spot: &["true"], regular: &["false"], other: &[], family: None },
    BuiltIn { provider: CONVENTION, key: "node-role.kubernetes.io/spot-worker", spot: &["true"], regular: &[], other: &[], family: None },
    BuiltIn { provider: CONVENTION, key: "spot", spot: &["true"], regular: &["false"], other: &[], family: None },
];

/// Whether a node with these labels is a spot node.
pub fn is_spot(labels: &BTreeMap<String, String>, rows: &[SpotRow]) -> bool {
    rows.iter().any(|row| labels.get(&row.key).is_some_and(|value| row.spot.contains(value)))
}

/// The built-in rows.
pub fn built_in() -> Vec<SpotRow> {
    let texts = |values: &[&str]| values.iter().map(ToString::to_string).collect();
    let row = |row: &BuiltIn| SpotRow {
        provider: row.provider.into(),
        key: row.key.into(),
        spot: texts(row.spot),
        regular: texts(row.regular),
        other: texts(row.other),
        family: row.family,
    };
    TABLE.iter().map(row).collect()
}
