//! A plan as a picture: a bar for each node, filled by CPU: what stays, what placeholders hold, where the wave's pods go.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::headroom::spot::{self, SpotRow};
use crate::headroom::wave::{Cluster, Domain, Plan, Role};

/// Nodes that are drawn; more are only counted.
const NODES: usize = 200;
const ROW: usize = 22;
const LEFT: usize = 260;
const WIDTH: f64 = 560.0;
const TOP: usize = 64;

#[derive(Default)]
struct Bar {
    all: i64,
    used: i64,
    placeholders: i64,
    wave: i64,
    goes: bool,
}

pub fn render(cluster: &Cluster, plan: &Plan, rows: &[SpotRow], domain: &Domain) -> String {
    let worst = plan.waves.first().map(|wave| wave.domain.as_str());
    let mut bars: BTreeMap<&str, Bar> = BTreeMap::new();
    for (name, node) in &cluster.nodes {
        let goes = spot::is_spot(&node.labels, rows) && Some(domain.of(node).as_str()) == worst;
        let all = node.allocatable.get("cpu").map_or(0, |cpu| (cpu.nanos / 1_000_000) as i64);
        bars.insert(name, Bar { all, goes, ..Bar::default() });
    }
    for pod in &cluster.pods {
        let Some(bar) = bars.get_mut(&*pod.node) else { continue };
        let cpu = pod.kind.request.first().copied().unwrap_or(0);
        *(if pod.role == Role::Placeholder { &mut bar.placeholders } else { &mut bar.used }) += cpu;
    }
    for placed in &plan.placed {
        if let Some(bar) = bars.get_mut(placed.node.as_str()) {
            bar.wave += placed.amounts.first().copied().unwrap_or(0);
        }
    }
    let mut order: Vec<(&str, &Bar)> = bars.iter().map(|(name, bar)| (*name, bar)).collect();
    // What goes first, then what takes most of it.
    order.sort_by_key(|(name, bar)| (!bar.goes, std::cmp::Reverse(bar.wave), *name));
    let shown = order.len().min(NODES);
    let height = TOP + shown * ROW + 40;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 {height}\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n<title>Headroom for the wave {}</title>\n",
        escape(worst.unwrap_or("(none)"))
    );
    let mut draw = |line: String| writeln!(svg, "{line}").expect("writing to a String does not fail");
    draw(format!(
        "<text x=\"10\" y=\"20\" font-size=\"15\">Wave {}: {} pods fit, {} do not</text>",
        escape(worst.unwrap_or("(none)")),
        plan.placed.len(),
        plan.left.len()
    ));
    let legend = [("#9aa5b1", "in use"), ("#e0ac2b", "goes with the wave"), ("#3f7fbf", "the wave's pods"), ("#7bbf6a", "placeholders")];
    for (index, (colour, what)) in legend.iter().enumerate() {
        let x = 10 + index * 160;
        draw(format!(
            "<rect x=\"{x}\" y=\"32\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"43\">{what}</text>",
            x + 18
        ));
    }
    for (index, (name, bar)) in order.iter().take(NODES).enumerate() {
        let y = TOP + index * ROW;
        draw(format!("<text x=\"10\" y=\"{}\">{}</text>", y + 14, escape(&name.chars().take(36).collect::<String>())));
        draw(format!(
            "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{WIDTH}\" height=\"18\" fill=\"#f2f2f2\" stroke=\"{}\"/>",
            if bar.goes { "#b3261e" } else { "#888" }
        ));
        // The wave's pods take what is free first, and then what placeholders hold.
        let held = bar.placeholders.min((bar.all - bar.used - bar.wave).max(0));
        let mut at = 0.0;
        for (amount, colour) in [(bar.used, if bar.goes { "#e0ac2b" } else { "#9aa5b1" }), (bar.wave, "#3f7fbf"), (held, "#7bbf6a")] {
            let width = WIDTH * amount as f64 / bar.all.max(1) as f64;
            draw(format!("<rect x=\"{:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"18\" fill=\"{colour}\"/>", LEFT as f64 + at));
            at += width;
        }
    }
    let more = order.len() - shown;
    let scale = "Each bar is the CPU of one node.";
    draw(format!(
        "<text x=\"10\" y=\"{}\">{scale}{}</text>",
        height - 12,
        if more > 0 { format!(" {more} more nodes are not drawn.") } else { String::new() }
    ));
    svg.push_str("</svg>");
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
