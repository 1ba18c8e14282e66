//! What becomes of the backend and of the log: the server configuration.

use serde_json::{Map, Value, json};

use super::super::values::Leaf;
use super::super::{Fate, Note};
use super::{Import, set};

/// The keys below which the backend is described.
const BACKEND: [&str; 5] = ["metricsbackend", "backend", "prometheus", "metricsprovider", "datasource"];

impl<'a> Import<'a> {
    pub(super) fn backend(&mut self) {
        let kind =
            self.values.take(&["metricsbackend.type", "backend.type", "metrics.backend", "metricsbackend", "backendtype", "metrics.type"]);
        let kind_text = kind.map_or("prometheus".into(), |leaf| leaf.text().to_lowercase());
        if kind_text != "prometheus" {
            return self.other_backend(kind, &kind_text);
        }
        if let Some(leaf) = kind {
            self.carried(leaf, "server configuration: backends.default.prometheus");
        }
        let mut backend = Map::new();
        let url = self.of_the_backend(&["url", "host", "address", "endpoint"], &["prometheusurl", "prometheushost"]);
        let port = self.of_the_backend(&["port"], &["prometheusport"]);
        if let Some(leaf) = url {
            let text = leaf.text();
            let with_scheme = if text.contains("://") { text } else { format!("http://{text}") };
            let has_port = with_scheme.rsplit('/').next().is_some_and(|last| last.contains(':')) || with_scheme.matches(':').count() > 1;
            let url = match port {
                Some(port) if !has_port => {
                    let (base, path) = split_path(&with_scheme);
                    format!("{base}:{}{path}", port.text())
                }
                _ => with_scheme,
            };
            backend.insert("url".into(), url.into());
            self.carried(leaf, "server configuration: url");
        } else {
            backend.insert("url".into(), "http://prometheus.monitoring:9090".into());
            let text = "server configuration: http://prometheus.monitoring:9090, since no value says where the backend is; put yours there";
            self.notes.push(Note { line: None, path: "url".into(), fate: Fate::NoCounterpart, text: text.into() });
        }
        if let Some(leaf) = port {
            self.carried(leaf, "server configuration: in the url");
        }
        let timeout = self.of_the_backend(&["timeoutseconds", "querytimeout", "timeout"], &["querytimeout", "prometheustimeout"]);
        if let Some(leaf) = timeout {
            match seconds(&leaf.text()) {
                Some(seconds @ 1..=300) => {
                    backend.insert("timeoutSeconds".into(), seconds.into());
                    self.carried(leaf, "server configuration: timeoutSeconds");
                }
                _ => self.note(leaf, Fate::NoCounterpart, "wanted 1 to 300 seconds; the default of 10 stands"),
            }
        }
        if let Some(auth) = self.auth() {
            backend.insert("auth".into(), auth);
        }
        set(&mut self.server, &["backends", "default", "prometheus"], backend.into());
    }

    /// A value below one of the keys that mean the backend, or with a name of its own that does.
    fn of_the_backend(&self, keys: &[&str], names: &[&str]) -> Option<&'a Leaf> {
        let below = keys.iter().flat_map(|key| BACKEND.map(|parent| format!("{parent}.{key}")));
        let endings: Vec<String> = below.chain(names.iter().map(ToString::to_string)).collect();
        self.values.take(&endings.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The preset's queries are PromQL, so nothing of another backend can simply go on.
    fn other_backend(&mut self, kind: Option<&Leaf>, name: &str) {
        let what = match name {
            "datadog" => "configure backends.default.datadog, and write a query for each signal: the preset's are PromQL".to_owned(),
            _ => format!("`{name}` is no backend that is known; one of your own fits backends.default.http, with a query for each signal"),
        };
        let of_it = |leaf: &Leaf| BACKEND.iter().any(|key| leaf.is_below(key)) || leaf.is_below("auth");
        let leaves: Vec<&Leaf> = kind.into_iter().chain(self.values.take_where(of_it)).collect();
        for leaf in leaves {
            self.note(leaf, Fate::NoCounterpart, what.clone());
        }
    }

    /// Credentials become files of a mounted Secret: they never stand in a configuration.
    fn auth(&mut self) -> Option<Value> {
        let kind = self.values.take(&["auth.type", "authtype", "auth.method"])?;
        let secret =
            self.values.take(&["auth.secretname", "auth.existingsecret", "auth.secretref.name", "auth.secret.name", "auth.secret"]);
        let name = secret.map_or("prometheus-credentials".into(), Leaf::text);
        if let Some(leaf) = secret {
            self.carried(leaf, format!("mount the Secret `{name}` at /etc/pecking-order/secrets/{name}; the paths below point there"));
        }
        let file = |import: &mut Self, endings: &[&str], default: &str| {
            let leaf = import.values.take(endings);
            let key = leaf.map_or(default.into(), Leaf::text);
            if let Some(leaf) = leaf {
                import.carried(leaf, "the file's name in the mounted Secret");
            }
            format!("/etc/pecking-order/secrets/{name}/{key}")
        };
        let auth = match kind.text().to_lowercase().as_str() {
            "basic" => {
                let password_file = file(self, &["passwordkey", "secretpasswordkey", "secretkey"], "password");
                let username = self.values.take(&["auth.username", "auth.user", "auth.basic.username"]);
                if let Some(leaf) = username {
                    self.carried(leaf, "server configuration: auth.basic.username");
                }
                let username = username.map_or("prometheus".into(), Leaf::text);
                Some(json!({ "basic": { "username": username, "passwordFile": password_file } }))
            }
            "bearer" | "token" => {
                Some(json!({ "bearer": { "tokenFile": file(self, &["tokenkey", "secrettokenkey", "secretkey"], "token") } }))
            }
            _ => None,
        };
        match (&auth, kind.text().to_lowercase().as_str()) {
            (Some(_), _) => self.carried(kind, "server configuration: auth, with the credentials from a file"),
            (None, "none" | "") => self.carried(kind, "server configuration: no auth"),
            (None, _) => self.note(kind, Fate::NoCounterpart, "wanted none, basic or bearer; the backend is asked without credentials"),
        }
        let is_secret = |leaf: &Leaf| ["password", "token", "bearertoken"].iter().any(|key| leaf.is_below(key)) && leaf.is_below("auth");
        for leaf in self.values.take_where(is_secret) {
            self.note(
                leaf,
                Fate::ChangedOnPurpose,
                "not copied: credentials come from files of a mounted Secret, never from a configuration",
            );
        }
        auth
    }

    pub(super) fn schedule_and_logging(&mut self) {
        if let Some(leaf) = self.values.take(&["schedule", "cronschedule"]) {
            let why = "pollSeconds: 15: costs are kept current in memory, and written when a scale-down needs them; a run a minute is up to four decisions of the HPA late";
            self.note(leaf, Fate::ChangedOnPurpose, why);
        }
        if let Some(leaf) = self.values.take(&["dryrun"]) {
            self.carried(leaf, "spec.dryRun");
            if leaf.is_true() {
                self.set(&["dryRun"], json!(true));
            }
        }
        if let Some(leaf) = self.values.take(&["logging.level", "loglevel", "log.level"]) {
            let level = match leaf.text().to_lowercase().as_str() {
                "critical" | "fatal" => "error".into(),
                "warning" => "warn".into(),
                level => level.to_owned(),
            };
            if ["error", "warn", "info", "debug", "trace"].contains(&level.as_str()) {
                self.carried(leaf, "server configuration: log.level");
                set(&mut self.server, &["log", "level"], level.into());
            } else {
                self.note(leaf, Fate::NoCounterpart, "wanted error, warn, info, debug or trace; info stands");
            }
        }
        if let Some(leaf) = self.values.take(&["logging.format", "logformat", "log.format"]) {
            self.carried(leaf, "server configuration: log.format");
            let format = if leaf.text().eq_ignore_ascii_case("json") { "json" } else { "text" };
            set(&mut self.server, &["log", "format"], format.into());
        }
        let is_datadog = |leaf: &Leaf| leaf.is_below("datadog") || leaf.path.contains("ad.datadoghq.com");
        let leaves: Vec<&Leaf> = self.values.take_where(is_datadog).collect();
        let is_on = leaves.iter().any(|leaf| (leaf.key() == "enabled" && leaf.is_true()) || leaf.path.contains("ad.datadoghq.com"));
        if is_on {
            set(&mut self.server, &["log", "format"], "datadog".into());
        }
        for leaf in leaves {
            match is_on {
                true => self.carried(
                    leaf,
                    "server configuration: log.format: datadog, with its reserved attributes; the annotation is in docs/server.md",
                ),
                false => self.note(leaf, Fate::NoCounterpart, "not switched on there, so log.format is not datadog here"),
            }
        }
    }
}

/// The address up to its path, and the path.
fn split_path(url: &str) -> (&str, &str) {
    let start = url.find("://").map_or(0, |at| at + 3);
    match url[start..].find('/') {
        Some(at) => url.split_at(start + at),
        None => (url, ""),
    }
}

/// Seconds of a number or of a duration such as `10s` or `1m`.
fn seconds(text: &str) -> Option<u32> {
    let (digits, factor) = match text.trim() {
        text if text.ends_with('s') => (&text[..text.len() - 1], 1),
        text if text.ends_with('m') => (&text[..text.len() - 1], 60),
        text => (text, 1),
    };
    digits.parse::<u32>().ok()?.checked_mul(factor)
}
