//! HTTP servers: requests in flight, and a little for CPU.

use super::parameter::{Kind, Parameter};
use super::{Definition, Missing, PresetSignal, Scale};

/// OpenTelemetry's semantic conventions call the gauge `http_server_active_requests`; the other names are those of common
/// middleware.
pub(super) const PRESET: Definition = Definition {
    parameters: &[
        Parameter::new(
            "inFlight",
            Kind::Metric,
            "http_server_active_requests|http_server_requests_in_flight|http_requests_in_flight|http_requests_in_progress|http_inflight_requests",
        ),
        Parameter::new("cpu", Kind::Metric, "container_cpu_usage_seconds_total"),
        Parameter::new("cpuContainer", Kind::Container, ""),
        Parameter::new("cpuWindow", Kind::Window, "2m"),
    ],
    signals: &[
        PresetSignal {
            name: "inFlight",
            // A server has one series for each method and route.
            query: |values| values.total("inFlight"),
            weight: 10.0,
            cap: 900.0,
            scale: Scale::Linear,
            ignore_below: 0.0,
            missing: Missing::Unknown,
        },
        PresetSignal {
            name: "cpu",
            query: |values| values.cpu_percent(),
            weight: 0.5,
            cap: 50.0,
            scale: Scale::Linear,
            ignore_below: 10.0,
            missing: Missing::Unknown,
        },
    ],
    work_seconds: None,
};
