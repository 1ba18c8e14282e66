//! Trino workers: splits and tasks of the task executor, CPU, and output buffers that other workers still read from.

use super::parameter::{Kind, Parameter};
use super::{Definition, Missing, PresetSignal, Scale, Values};

/// The metrics of Trino's task executor, as the JMX exporter names them by default or in lower case, and as Trino's own
/// `/metrics` does; in recent versions the class behind the bean is TimeSharingTaskExecutor. The output buffers are those of
/// trino-buffer-exporter. Weights and caps are Pod Cost Manager's.
pub(super) const PRESET: Definition = Definition {
    parameters: &[
        Parameter::new(
            "runningSplits",
            Kind::Metric,
            "trino_execution_executor_((timesharing_)?(name_)?(TimeSharing)?TaskExecutor_RunningSplits|(timesharing_)?(name_)?(timesharing)?taskexecutor_runningsplits)",
        ),
        Parameter::new(
            "waitingSplits",
            Kind::Metric,
            "trino_execution_executor_((timesharing_)?(name_)?(TimeSharing)?TaskExecutor_WaitingSplits|(timesharing_)?(name_)?(timesharing)?taskexecutor_waitingsplits)",
        ),
        Parameter::new(
            "runningTasks",
            Kind::MetricPerLevel,
            "trino_execution_executor_((timesharing_)?(name_)?(TimeSharing)?TaskExecutor_RunningTasksLevel|(timesharing_)?(name_)?(timesharing)?taskexecutor_runningtaskslevel){level}",
        ),
        Parameter::new("highPriorityLevels", Kind::Levels, "0,1,2"),
        Parameter::new("lowPriorityLevels", Kind::Levels, "3,4"),
        Parameter::new("cpu", Kind::Metric, "container_cpu_usage_seconds_total"),
        Parameter::new("cpuContainer", Kind::Container, "trino-worker"),
        Parameter::new("cpuWindow", Kind::Window, "2m"),
        Parameter::new("outputBuffers", Kind::Metric, "trino_worker_active_output_buffers"),
    ],
    signals: &[
        gauge("runningSplits", |values| values.gauge("runningSplits"), 10.0, 400.0),
        gauge("waitingSplits", |values| values.gauge("waitingSplits"), 5.0, 300.0),
        gauge("highPriorityTasks", |values| values.gauge_over("runningTasks", "highPriorityLevels"), 15.0, 150.0),
        gauge("lowPriorityTasks", |values| values.gauge_over("runningTasks", "lowPriorityLevels"), 10.0, 100.0),
        // An idle Java process uses a few percent; below this it would look busy for ever.
        PresetSignal { ignore_below: 10.0, ..gauge("cpu", |values| values.cpu_percent(), 0.5, 50.0) },
        // The exporter has no series for a worker that takes part in no query.
        PresetSignal { missing: Missing::Zero, ..gauge("outputBuffers", |values| values.gauge("outputBuffers"), 50.0, 500.0) },
    ],
    // A graceful shutdown waits for `shutdown.grace-period`, two minutes by default, before and after the last task.
    work_seconds: Some(240),
};

const fn gauge(name: &'static str, query: fn(&Values<'_>) -> String, weight: f64, cap: f64) -> PresetSignal {
    PresetSignal { name, query, weight, cap, scale: Scale::Linear, ignore_below: 0.0, missing: Missing::Unknown }
}
