//! Queue workers: jobs in progress, and how long they have been running.

use super::parameter::{Kind, Parameter};
use super::{Definition, Missing, PresetSignal, Scale};

pub(super) const PRESET: Definition = Definition {
    parameters: &[
        Parameter::new("inProgress", Kind::Metric, "jobs_in_progress|worker_jobs_in_progress|queue_jobs_in_progress"),
        Parameter::new("elapsedSeconds", Kind::Metric, "job_elapsed_seconds|jobs_elapsed_seconds"),
    ],
    signals: &[
        PresetSignal {
            name: "inProgress",
            query: |values| values.total("inProgress"),
            weight: 100.0,
            cap: 500.0,
            scale: Scale::Linear,
            ignore_below: 0.0,
            missing: Missing::Unknown,
        },
        // Whose job has run for an hour loses more than whose job has just begun. Logarithmic, so that a job that simply goes on
        // does not change the cost at every poll.
        PresetSignal {
            name: "elapsed",
            query: |values| values.total("elapsedSeconds"),
            weight: 50.0,
            cap: 450.0,
            scale: Scale::Log,
            ignore_below: 0.0,
            missing: Missing::Zero,
        },
    ],
    work_seconds: None,
};
