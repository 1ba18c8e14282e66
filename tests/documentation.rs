//! What the documentation shows is true: documents are valid, commands exist, links lead somewhere.

use std::path::{Path, PathBuf};

use pecking_order::api::documents::read_documents;
use pecking_order::server::config::Config;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn pages() -> Vec<(PathBuf, String)> {
    let mut files = vec![root().join("README.md"), root().join("CONTRIBUTING.md"), root().join("SECURITY.md"), root().join("CHANGELOG.md")];
    files.extend(std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    let pages: Vec<_> = files
        .into_iter()
        .filter(|f| f.extension().is_some_and(|e| e == "md"))
        .map(|f| (f.clone(), std::fs::read_to_string(f).unwrap()))
        .collect();
    assert!(pages.len() >= 8);
    pages
}

/// The fenced blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_document_in_the_pages_is_valid() {
    let (mut policies, mut configurations) = (0, 0);
    for (file, page) in pages() {
        for block in blocks(&page, "yaml") {
            if block.contains("apiVersion") {
                let (documents, errors) = read_documents(&file, block);
                assert!(errors.is_empty() && !documents.is_empty(), "{errors:?}");
                policies += documents.len();
            } else {
                let path = tempfile::tempdir().unwrap().keep().join("server.yaml");
                std::fs::write(&path, block).unwrap();
                Config::read(&path).unwrap_or_else(|e| panic!("{}: {e:#}", file.display()));
                configurations += 1;
            }
        }
    }
    assert!(policies >= 4 && configurations >= 1, "the pages have lost their examples");
}

#[test]
fn every_make_target_in_the_pages_exists() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut seen = 0;
    for (file, page) in pages() {
        for rest in page.split("make ").skip(1) {
            let target: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            let quoted = rest[target.len()..].starts_with(['`', '\n']);
            if quoted && !target.is_empty() {
                assert!(makefile.contains(&format!("\n{target}:")), "{}: make {target}", file.display());
                seen += 1;
            }
        }
    }
    assert!(seen >= 5, "found only {seen} targets");
}

#[test]
fn every_link_leads_somewhere() {
    for (file, page) in pages() {
        for rest in page.split("](").skip(1) {
            let link = rest.split(')').next().unwrap();
            if !link.contains("://") {
                let target = file.parent().unwrap().join(link.split('#').next().unwrap());
                assert!(target.exists(), "{}: {link}", file.display());
            }
        }
    }
}

#[test]
fn the_metrics_page_names_what_the_binary_exports() {
    let page = std::fs::read_to_string(root().join("docs/server.md")).unwrap();
    let metrics = pecking_order::server::metrics::Metrics::default();
    // Families without a sample are not printed.
    metrics.room("general", &Default::default(), Default::default());
    metrics.claims("general", "Bound");
    metrics.gate("general", "let_go");
    metrics.refill("general", Default::default());
    metrics.wave(0, 0, 0);
    let exported = metrics.encode(0, 0);
    for line in exported.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(page.contains(name), "docs/server.md does not name {name}");
    }
}

#[test]
fn the_examples_are_valid() {
    let (documents, errors) = pecking_order::api::documents::read_directory(&root().join("examples/standalone/policies"));
    assert!(errors.is_empty() && documents.len() == 2, "{errors:?}");
    Config::read(&root().join("examples/standalone/server.yaml")).unwrap();
}

#[test]
fn every_rule_is_explained_with_what_its_native_twin_cannot_see() {
    let page = std::fs::read_to_string(root().join("docs/headroom.md")).unwrap();
    for rule in pecking_order::headroom::rules::ALL {
        assert!(page.contains(&format!("<a id=\"{}\"></a>`{}`", rule.id, rule.id)), "{} is not explained", rule.id);
        let unseen = if rule.unseen.is_empty() { "nothing" } else { rule.unseen };
        assert!(page.contains(&format!("| `{}` | {unseen} |", rule.id)), "{}: its twin cannot see {unseen}", rule.id);
    }
}
