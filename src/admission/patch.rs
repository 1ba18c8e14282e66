//! The patches that we answer with. There are three, and no others can be made.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, ReplaceOperation};
use serde_json::{Value, json};

use crate::cost::annotation::{Annotations, COST, MARK};
use crate::headroom::room::GATE;

/// A patch of a pod, never empty. It is built directly from one or two operations: a patch that is the difference of two
/// typed objects would remove every field that our types do not know.
#[derive(Debug, Clone, PartialEq)]
pub struct PodPatch(Patch);

impl PodPatch {
    /// Writes the cost and our mark; `annotations` are those of the object as it was sent. Nothing else is touched. `None`
    /// where both stand there already.
    pub fn cost(annotations: Option<&Annotations>, cost: i32) -> Option<Self> {
        let text = cost.to_string();
        let Some(annotations) = annotations else {
            // An `add` below a map that does not exist fails, and then the API server refuses the user's request.
            return Some(Self(Patch(vec![add(["metadata", "annotations"], json!({COST: text, MARK: text}))])));
        };
        let operations: Vec<_> = [(COST, &annotations.cost), (MARK, &annotations.mark)]
            .into_iter()
            .filter(|(_, found)| found.as_ref() != Some(&text))
            .map(|(key, _)| add(["metadata", "annotations", key], Value::from(text.as_str())))
            .collect();
        (!operations.is_empty()).then_some(Self(Patch(operations)))
    }

    /// Sets a grace period of 30, which the API server always fills in, to 0. Only at CREATE: the field cannot change later.
    pub fn zero_grace_period() -> Self {
        let path = PointerBuf::from_tokens(["spec", "terminationGracePeriodSeconds"]);
        Self(Patch(vec![PatchOperation::Replace(ReplaceOperation { path, value: Value::from(0) })]))
    }

    /// Puts our scheduling gate on a pod, beside those that it has. Only at CREATE: a gate cannot be added later.
    pub fn gate(has_gates: bool) -> Self {
        let gate = json!({ "name": GATE });
        Self(Patch(vec![match has_gates {
            true => add(["spec", "schedulingGates", "-"], gate),
            false => add(["spec", "schedulingGates"], json!([gate])),
        }]))
    }

    /// The operations, as JSON.
    pub fn operations(&self) -> &Patch {
        &self.0
    }

    /// As the answer carries it: the JSON array in standard base64, with padding.
    pub fn encode(&self) -> String {
        STANDARD.encode(serde_json::to_vec(&self.0).expect("operations are plain data"))
    }
}

fn add<'a>(path: impl IntoIterator<Item = &'a str>, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(path), value })
}
