//! `--fix`: writes back what can be mended without a choice, and leaves comments, order and everything else as they are. A fix is a change
//! of one line. It is made only where the text that comes of it, read again, is the document with that one value changed.

use serde_json::{Value, json};

use super::finding::Finding;
use super::manifests::Manifest;
use crate::api::documents::{self, key_and_index};

/// A value that is to stand at a path of a document.
struct Fix {
    steps: Vec<String>,
    value: Value,
}

/// The text of a document with what was found there mended, and how many fixes that are.
pub fn fix(manifest: &Manifest, text: &str, findings: &[&Finding]) -> (String, usize) {
    let mut text = text.to_owned();
    let mut fixed = 0;
    for fix in findings.iter().filter_map(|finding| of(manifest, finding)) {
        if let Some(better) = apply(&text, &fix) {
            (text, fixed) = (better, fixed + 1);
        }
    }
    (text, fixed)
}

/// What would mend a finding; none where there is a choice.
fn of(manifest: &Manifest, finding: &Finding) -> Option<Fix> {
    let steps = documents::steps_of(&format!("{}{}", manifest.prefix, finding.field));
    let value = match finding.rule.as_str() {
        "zeroGracePeriod" => json!(0),
        "neverPreempts" => json!("Never"),
        "supportedImage" => {
            let (_, wanted) = finding.message.split_once("wanted ")?;
            json!(wanted.split(": ").next()?)
        }
        _ => return None,
    };
    Some(Fix { steps, value })
}

fn apply(text: &str, fix: &Fix) -> Option<String> {
    let before: Value = documents::yaml(text).ok()?;
    let mut wanted = before.clone();
    *at(&mut wanted, &fix.steps)? = fix.value.clone();
    let written = match &fix.value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let after = replace(text, &fix.steps, &written).or_else(|| insert(text, &fix.steps, &written))?;
    let read: Value = documents::yaml(&after).ok()?;
    (read == wanted && read != before).then_some(after)
}

/// The value at a path, made where its parent is there.
fn at<'a>(tree: &'a mut Value, steps: &[String]) -> Option<&'a mut Value> {
    let (last, parents) = steps.split_last()?;
    let mut at = tree;
    for step in parents {
        at = match key_and_index(step) {
            (key, Some(index)) => at.get_mut(key)?.get_mut(index)?,
            (key, None) => at.get_mut(key)?,
        };
    }
    match key_and_index(last) {
        (key, Some(index)) => at.get_mut(key)?.get_mut(index),
        (key, None) => Some(at.as_object_mut()?.entry(key).or_insert(Value::Null)),
    }
}

/// A line of YAML: how deep its key stands, after any dashes of lists.
fn key_column(line: &str) -> usize {
    let rest = line.trim_start_matches([' ', '-']);
    line.len() - rest.len()
}

fn is_content(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#')
}

/// The line of a key in block style, looked for step by step.
fn find(lines: &[&str], steps: &[String]) -> Option<usize> {
    let (mut from, mut parent) = (0, None::<usize>);
    for step in steps {
        let (key, nth) = key_and_index(step);
        let named = |line: &str| {
            let rest = &line[key_column(line)..];
            [key.to_owned(), format!("\"{key}\""), format!("'{key}'")]
                .iter()
                .any(|key| rest.strip_prefix(key.as_str()).is_some_and(|r| r.starts_with(':')))
        };
        let mut depth = None;
        let mut found = None;
        for (at, line) in lines.iter().enumerate().skip(from).filter(|(_, line)| is_content(line)) {
            let column = key_column(line);
            if parent.is_some_and(|parent| column <= parent) {
                break;
            }
            // The first line below the parent says how deep its keys stand.
            if *depth.get_or_insert(column) == column && named(line) {
                found = Some((at, column));
                break;
            }
        }
        let (at, column) = found?;
        (from, parent) = (at + 1, Some(column));
        if let Some(nth) = nth {
            let dash =
                lines.iter().enumerate().skip(from).filter(|(_, line)| is_content(line)).map(|(_, line)| line.find('-')).next()??;
            let is_item = |(_, line): &(usize, &&str)| line.find(|c| c != ' ') == Some(dash) && line[dash..].starts_with('-');
            let (item, _) = lines.iter().enumerate().skip(from).filter(is_item).nth(nth)?;
            (from, parent) = (item, Some(dash));
        }
    }
    from.checked_sub(1)
}

/// Puts a value in the place of the one that a key has.
fn replace(text: &str, steps: &[String], value: &str) -> Option<String> {
    let mut lines: Vec<&str> = text.split('\n').collect();
    let at = find(&lines, steps)?;
    let line = lines[at];
    let colon = key_column(line) + line[key_column(line)..].find(": ")? + 2;
    let comment = line[colon..].find(" #").map_or("", |comment| &line[colon + comment..]);
    let ending = if line.ends_with('\r') && !comment.ends_with('\r') { "\r" } else { "" };
    let changed = format!("{}{value}{comment}{ending}", &line[..colon]);
    lines[at] = &changed;
    Some(lines.join("\n"))
}

/// Puts a key that is not there right below its parent.
fn insert(text: &str, steps: &[String], value: &str) -> Option<String> {
    let (key, parents) = steps.split_last()?;
    let mut lines: Vec<&str> = text.split('\n').collect();
    let (at, column) = if parents.is_empty() {
        let first = lines.iter().position(|line| is_content(line))?;
        (first + 1, 0)
    } else {
        let parent = find(&lines, parents)?;
        let child = lines.iter().skip(parent + 1).find(|line| is_content(line))?;
        (parent + 1, key_column(child))
    };
    let ending = if text.contains("\r\n") { "\r" } else { "" };
    let added = format!("{}{key}: {value}{ending}", " ".repeat(column));
    lines.insert(at, &added);
    Some(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str, path: &str, value: Value) -> Option<String> {
        apply(text, &Fix { steps: documents::steps_of(path), value })
    }

    const POD: &str = "# a placeholder\nkind: Pod\nspec:   # what runs\n  terminationGracePeriodSeconds: 30  # why?\n  containers:\n    - name: a\n      image: one\n    - name: b\n      # the pause\n      image: k8s.gcr.io/pause:3.6\n";

    #[test]
    fn comments_and_order_are_kept() {
        let fixed = set(POD, "spec.terminationGracePeriodSeconds", json!(0)).unwrap();
        assert_eq!(fixed, POD.replace("Seconds: 30  # why?", "Seconds: 0 # why?"));
        let fixed = set(POD, "spec.containers[1].image", json!("registry.k8s.io/pause:3.6")).unwrap();
        assert_eq!(fixed, POD.replace("k8s.gcr.io", "registry.k8s.io"));
    }

    #[test]
    fn what_is_not_there_is_put_below_its_parent() {
        let without = POD.replace("  terminationGracePeriodSeconds: 30  # why?\n", "");
        let fixed = set(&without, "spec.terminationGracePeriodSeconds", json!(0)).unwrap();
        assert_eq!(fixed, POD.replace("Seconds: 30  # why?", "Seconds: 0"));
        assert_eq!(set("kind: X\nvalue: 1\n", "preemptionPolicy", json!("Never")).unwrap(), "kind: X\npreemptionPolicy: Never\nvalue: 1\n");
        // Windows' ends of lines stay what they are.
        let fixed = set("kind: X\r\nspec:\r\n  a: 1\r\n", "spec.b", json!(0)).unwrap();
        assert_eq!(fixed, "kind: X\r\nspec:\r\n  b: 0\r\n  a: 1\r\n");
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        assert_eq!(set("{kind: Pod, spec: {terminationGracePeriodSeconds: 30}}\n", "spec.terminationGracePeriodSeconds", json!(0)), None);
        assert_eq!(set("spec: *anchor\n", "spec.terminationGracePeriodSeconds", json!(0)), None);
        let block = "spec:\n  note: |\n    terminationGracePeriodSeconds: 30\n  containers: []\n";
        assert_eq!(
            set(block, "spec.terminationGracePeriodSeconds", json!(0)).unwrap(),
            format!("spec:\n  terminationGracePeriodSeconds: 0\n{}", &block[6..])
        );
    }

    #[test]
    fn lists_of_either_indentation() {
        let flush = "items:\n- spec:\n    a: 1\n- spec:\n    a: 1\n    terminationGracePeriodSeconds: 5\n";
        let fixed = set(flush, "items[1].spec.terminationGracePeriodSeconds", json!(0)).unwrap();
        assert_eq!(fixed, flush.replace("Seconds: 5", "Seconds: 0"));
        let fixed = set(flush, "items[0].spec.terminationGracePeriodSeconds", json!(0)).unwrap();
        assert_eq!(fixed, flush.replacen("    a: 1\n", "    terminationGracePeriodSeconds: 0\n    a: 1\n", 1));
    }
}
