//! Says what the polls of a policy come to.

use tracing::{info, warn};

use super::Reporter;
use crate::api::CostPolicy;
use crate::cluster::conditions::{self, Said};
use crate::signals::report::Poll;

/// Says what the polls of one policy come to: in the log of this replica when it changes, and on the status.
pub struct PollReporter {
    reporter: Option<Reporter>,
    last: Vec<Said>,
}

impl PollReporter {
    /// Without a reporter, where policies come from files, only the log is told.
    pub fn new(reporter: Option<Reporter>) -> Self {
        Self { reporter, last: vec![] }
    }

    pub fn report(&mut self, policy: &CostPolicy, poll: Poll) {
        let said = conditions::of_poll(policy, &poll);
        for now in &said {
            let before = self.last.iter().find(|before| before.type_ == now.type_);
            let (namespace, name, condition, reason, message) = (&policy.namespace, &policy.name, now.type_, now.reason, &now.message);
            match before {
                Some(before) if !now.differs_in_kind(before.status.as_str(), before.reason) => {}
                None if !now.is_trouble => {}
                _ if now.is_trouble => warn!(namespace, policy = name, condition, reason, message),
                _ => info!(namespace, policy = name, condition, reason, message),
            }
        }
        if let Some(reporter) = &self.reporter {
            reporter.poll(policy, said.clone(), &poll);
        }
        self.last = said;
    }
}
