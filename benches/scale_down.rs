//! How long a scale-down is held on the real control plane, and how many costs a second are written for it, where none, a tenth and all of
//! the stored costs are wrong.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use control_plane::{Door, Site};
use serde_json::json;

const DOOR: Door = Door::DeploymentScale;

/// The shares of stored costs that are wrong, of a hundred.
const WRONG: [usize; 3] = [0, 10, 100];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    pecking_order::server::install_crypto_provider();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/install.yaml");
    let site = Site::start(1, Path::new(env!("CARGO_BIN_EXE_pecking-order")), &manifest)?;
    let workbench = site.workbench().await?;
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["pods", "go", "stored costs wrong", "writes", "held for", "writes a second"]);
    for pods in [20, 150, 1000] {
        let (namespace, go) = (format!("bench-{pods}"), pods * 2 / 5);
        workbench.set_up(DOOR.kind(), &namespace, json!({}), pods).await?;
        for share in WRONG {
            let names = workbench.names(&namespace, pods).await?;
            let cost = |i: usize| (i + 1) * 5;
            workbench.measure(&namespace, &names.iter().enumerate().map(|(i, pod)| (pod.clone(), cost(i))).collect()).await;
            // So many at both ends are the wrong way round.
            let ends = pods * share / 200;
            let stored = |i: usize| if i < ends || i >= pods - ends { cost(pods - 1 - i) } else { cost(i) };
            let stored: BTreeMap<_, _> = names.iter().enumerate().map(|(i, pod)| (pod.clone(), Some(stored(i)))).collect();
            workbench.store(&namespace, stored).await?;
            let written = || site.installation.metric(r#"pecking_order_pod_writes_total{result="written"}"#);
            let (before, start) = (written()?, Instant::now());
            workbench.scale(DOOR, &namespace, pods - go).await?;
            let (took, writes) = (start.elapsed().as_secs_f64(), written()? - before);
            workbench.names(&namespace, pods - go).await?;
            let rate = if writes > 0.0 { format!("{:.0}", writes / took) } else { String::new() };
            let row = [pods.to_string(), go.to_string(), format!("{share} %"), format!("{writes:.0}"), format!("{took:.2} s"), rate];
            table.add_row(row);
            workbench.scale(DOOR, &namespace, pods).await?;
        }
        workbench.scale(DOOR, &namespace, 0).await?;
    }
    println!("\n{table}\n\nThe settle time of 0.1 s is part of it wherever something was written.");
    Ok(())
}
