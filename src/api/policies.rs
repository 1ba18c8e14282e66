//! The policies and pools that are in force, compiled once, so that a decision only looks things up.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::core::{Selector, SelectorExt};

use super::documents::Document;
use super::{DeletionCostPolicy, DeletionCostPolicySpec, HEADROOM_LABEL, HeadroomPool, HeadroomPoolSpec};
use crate::cost::Signal;
use crate::cost::signal;
use crate::headroom::spot::{self, SpotRow};

/// Labels as an object carries them.
pub type Labels = BTreeMap<String, String>;

/// A DeletionCostPolicy in force.
#[derive(Debug)]
pub struct CostPolicy {
    pub namespace: String,
    pub name: String,
    pub generation: i64,
    pub spec: DeletionCostPolicySpec,
    /// The preset's and the policy's own.
    pub signals: Vec<Signal>,
    pub selector: Selector,
    key: PolicyKey,
}

impl CostPolicy {
    /// Compiles a policy that has no problems.
    pub fn compile(policy: &DeletionCostPolicy) -> Self {
        let namespace = policy.metadata.namespace.clone().unwrap_or_else(|| "default".into());
        let name = policy.metadata.name.clone().unwrap_or_default();
        Self {
            key: PolicyKey { namespace: namespace.clone(), name: name.clone() },
            namespace,
            name,
            // What cannot be resolved is a problem, and such a policy is not compiled.
            signals: signal::resolve(&policy.spec).unwrap_or_default(),
            generation: policy.metadata.generation.unwrap_or_default(),
            selector: policy.spec.selector.compile(),
            spec: policy.spec.clone(),
        }
    }

    pub fn key(&self) -> &PolicyKey {
        &self.key
    }

    /// How long a unit of work may take, in seconds, where the policy or its preset says so.
    pub fn work_seconds(&self) -> Option<u32> {
        self.spec.work_seconds.or_else(|| self.spec.preset.and_then(|preset| preset.definition().work_seconds))
    }
}

/// Identifies a policy: the same name in two namespaces is two policies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyKey {
    pub namespace: String,
    pub name: String,
}

/// A HeadroomPool in force.
#[derive(Debug)]
pub struct Pool {
    pub name: String,
    pub spec: HeadroomPoolSpec,
    selector: Option<Selector>,
    /// The namespaces and the pods of `gate.pods`.
    gate: Option<(Selector, Selector)>,
    drain_with: Option<Selector>,
    /// The built-in rows and the pool's own.
    pub spot_rows: Vec<SpotRow>,
}

impl Pool {
    /// Compiles a pool that has no problems.
    pub fn compile(pool: &HeadroomPool) -> Self {
        let mut spot_rows = spot::built_in();
        spot_rows.extend(pool.spec.spot_nodes.iter().cloned());
        Self {
            name: pool.metadata.name.clone().unwrap_or_default(),
            selector: pool.spec.placeholders.selector.as_ref().map(|selector| selector.compile()),
            gate: pool.spec.gate.as_ref().map(|gate| (gate.pods.namespace_selector.compile(), gate.pods.selector.compile())),
            drain_with: pool.spec.drain_with.as_ref().map(|drain_with| drain_with.selector.compile()),
            spec: pool.spec.clone(),
            spot_rows,
        }
    }

    /// Whether the labels of an object mark it as this pool's.
    pub fn marks_labels(&self, labels: &Labels) -> bool {
        labels.get(HEADROOM_LABEL).is_some_and(|name| *name == self.name)
            || self.selector.as_ref().is_some_and(|selector| selector.matches(labels))
    }

    /// Whether a pod with these labels waits for room, in a namespace of `gate.pods`.
    pub fn gates(&self, labels: &Labels) -> bool {
        self.gate.as_ref().is_some_and(|(_, pods)| pods.matches(labels))
    }

    /// Whether a namespace with these labels is one of `gate.pods`.
    pub fn gates_namespace(&self, labels: &Labels) -> bool {
        self.gate.as_ref().is_some_and(|(namespaces, _)| namespaces.matches(labels))
    }

    /// Whether a pod is one of `drainWith`.
    pub fn drains_with(&self, namespace: &str, labels: &Labels) -> bool {
        self.spec.drain_with.as_ref().is_some_and(|drain_with| drain_with.namespace == namespace)
            && self.drain_with.as_ref().is_some_and(|selector| selector.matches(labels))
    }

    /// Whether the rules do not hold in a namespace.
    pub fn exempts(&self, namespace: &str) -> bool {
        !namespace.is_empty() && self.spec.exempt_namespaces.iter().any(|exempt| exempt == namespace)
    }

    /// Whether a PriorityClass is this pool's by name.
    pub fn marks_class(&self, name: &str) -> bool {
        self.spec.placeholders.priority_class_names.iter().any(|class| class == name)
    }
}

/// Everything in force, as one immutable snapshot: a decision sees one generation of it.
#[derive(Debug, Default, Clone)]
pub struct Policies {
    costs: BTreeMap<PolicyKey, Arc<CostPolicy>>,
    pools: BTreeMap<String, Arc<Pool>>,
}

impl Policies {
    /// Compiles a document that has no problems.
    pub fn with_document(self, document: &Document) -> Self {
        match document {
            Document::DeletionCostPolicy(policy) => self.with_policy(CostPolicy::compile(policy)),
            Document::HeadroomPool(pool) => self.with_pool(Pool::compile(pool)),
            // What is asked for is no policy.
            Document::HeadroomClaim(_) => self,
        }
    }

    pub fn with_policy(mut self, policy: impl Into<Arc<CostPolicy>>) -> Self {
        let policy = policy.into();
        self.costs.insert(policy.key().clone(), policy);
        self
    }

    pub fn without_policy(mut self, key: &PolicyKey) -> Self {
        self.costs.remove(key);
        self
    }

    pub fn with_pool(mut self, pool: impl Into<Arc<Pool>>) -> Self {
        let pool = pool.into();
        self.pools.insert(pool.name.clone(), pool);
        self
    }

    pub fn without_pool(mut self, name: &str) -> Self {
        self.pools.remove(name);
        self
    }

    pub fn policy(&self, key: &PolicyKey) -> Option<&Arc<CostPolicy>> {
        self.costs.get(key)
    }

    pub fn policies(&self) -> impl Iterator<Item = &Arc<CostPolicy>> {
        self.costs.values()
    }

    /// The policies of a namespace, in the order in which they govern: by name.
    pub fn in_namespace<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Arc<CostPolicy>> {
        let first = PolicyKey { namespace: namespace.into(), name: String::new() };
        let namespace = namespace.to_owned();
        self.costs.range(first..).take_while(move |(key, _)| key.namespace == namespace).map(|(_, policy)| policy)
    }

    /// The policies that govern before this one: those of its namespace whose names sort before its own.
    pub fn before<'a>(&'a self, policy: &'a CostPolicy) -> impl Iterator<Item = &'a Arc<CostPolicy>> {
        self.in_namespace(&policy.namespace).take_while(|earlier| earlier.name < policy.name)
    }

    /// The policy that governs a pod with these labels.
    pub fn governing(&self, namespace: &str, labels: &Labels) -> Option<&Arc<CostPolicy>> {
        self.in_namespace(namespace).find(|policy| policy.selector.matches(labels))
    }

    pub fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.pools.values()
    }

    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.get(name)
    }
}
