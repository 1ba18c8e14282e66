//! A plan as tables.

use std::fmt::Write;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use crate::headroom::wave::Plan;

/// Rows of pods that are shown; `-o json` has all.
const ROWS: usize = 20;

pub fn render(plan: &Plan) -> String {
    let amounts = |amounts: &std::collections::BTreeMap<String, String>| {
        let each: Vec<String> = amounts.iter().map(|(resource, amount)| format!("{resource} {amount}")).collect();
        if each.is_empty() { "nothing".to_owned() } else { each.join(", ") }
    };
    let mut text = String::new();
    let mut say = |line: String| writeln!(text, "{line}").expect("writing to a String does not fail");
    let Some(worst) = plan.waves.first() else {
        return "no node is known to be spot, so there is no wave; `pecking-order headroom spot-labels` lists what tells them".into();
    };
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["wave", "nodes", "pods", "they request", "fit", "do not fit"]);
    for wave in &plan.waves {
        let counts = [wave.nodes, wave.pods, wave.fit, wave.do_not_fit].map(|count| count.to_string());
        let [nodes, pods, fit, do_not_fit] = counts;
        table.add_row([wave.domain.clone(), nodes, pods, amounts(&wave.request), fit, do_not_fit]);
    }
    say(format!("{table}\n"));
    let will_run = plan.placed.iter().filter(|placed| placed.will_run).count();
    say(format!(
        "The worst wave is `{}`: of {} pods {will_run} will run, {} may, and {} do not fit.",
        worst.domain,
        worst.pods,
        plan.placed.len() - will_run,
        plan.left.len()
    ));
    let cost = plan.idle_cost.map_or(String::new(), |cost| format!(", which costs {cost:.2} an hour"));
    say(format!("{} placeholders on nodes that stay hold {}{cost}.", plan.placeholders, amounts(&plan.idle)));
    let mut doubts: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    plan.placed.iter().filter_map(|placed| placed.doubt.as_deref()).for_each(|doubt| *doubts.entry(doubt).or_default() += 1);
    doubts.iter().for_each(|(doubt, count)| say(format!("{count} may run: {doubt}.")));
    if !plan.left.is_empty() {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["does not fit", "requests", "why"]);
        for left in plan.left.iter().take(ROWS) {
            table.add_row([format!("{}/{}", left.namespace, left.name), left.request.clone(), left.why.clone()]);
        }
        say(format!("\n{table}"));
        if plan.left.len() > ROWS {
            say(format!("and {} more; -o json has all", plan.left.len() - ROWS));
        }
    }
    for need in &plan.needed {
        let placed_as = if need.placed_as.is_empty() { String::new() } else { format!(" with {}", need.placed_as) };
        let cost = need.idle_cost.map_or(String::new(), |cost| format!(", {cost:.2} an hour"));
        say(format!(
            "\nNeeded: {} more placeholders of {}{placed_as}. Together they hold {}{cost}.",
            need.count,
            amounts(&need.shape),
            amounts(&need.idle)
        ));
    }
    plan.warnings.iter().for_each(|warning| say(format!("\nWarning: {warning}.")));
    text.trim_end().to_owned()
}
