//! Log lines with Datadog's reserved attributes: JSON in which `timestamp`, `status`, `message`, `service` and `logger.name`
//! have the names that its pipelines know without configuration.

use std::fmt::{self, Debug};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The attributes that are ours to set; a field of an event with such a name gets a prefix, so that it overwrites none.
const RESERVED: [&str; 9] = ["timestamp", "status", "message", "service", "logger", "host", "source", "ddsource", "ddtags"];

pub struct Datadog;

impl<S, N> FormatEvent<S, N> for Datadog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let status = match *metadata.level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG | Level::TRACE => "debug",
        };
        let mut line = fields.others;
        line.insert("timestamp".into(), format!("{:.3}", Timestamp::now()).into());
        line.insert("status".into(), status.into());
        line.insert("message".into(), fields.message.into());
        line.insert("service".into(), "pecking-order".into());
        line.insert("ddsource".into(), "pecking-order".into());
        line.insert("logger".into(), serde_json::json!({ "name": metadata.target() }));
        writeln!(writer, "{}", Value::Object(line))
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn insert(&mut self, field: &Field, value: Value) {
        match field.name() {
            "message" => self.message = value.as_str().map_or_else(|| value.to_string(), str::to_owned),
            name if RESERVED.contains(&name) => {
                self.others.insert(format!("field_{name}"), value);
            }
            name => {
                self.others.insert(name.into(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.insert(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn has_the_attributes_that_datadog_knows() {
        let lines = Lines::default();
        let written = lines.clone();
        let subscriber = tracing_subscriber::fmt().event_format(Datadog).with_writer(move || written.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(policy = "web", pods = 3, status = "x", "three\nlines \"quoted\"");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((line["status"].as_str(), line["service"].as_str()), (Some("warning"), Some("pecking-order")));
        assert_eq!((line["message"].as_str(), line["policy"].as_str()), (Some("three\nlines \"quoted\""), Some("web")));
        assert_eq!((line["pods"].as_i64(), line["field_status"].as_str()), (Some(3), Some("x")));
        assert!(line["timestamp"].as_str().unwrap().parse::<Timestamp>().is_ok(), "{line}");
        assert!(line["logger"]["name"].as_str().unwrap().contains("datadog_log"));
    }
}
