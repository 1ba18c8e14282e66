//! What the layout promises: pure rooms are pure, files stay short, generated files are what their sources say.

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(directory: &str) -> Vec<(PathBuf, String)> {
    let mut found = vec![];
    let mut directories = vec![root().join(directory)];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.clone(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "{directory} has no sources");
    found
}

#[test]
fn the_pure_rooms_do_no_io() {
    let forbidden = [
        "tokio",
        "hyper",
        "axum",
        "reqwest",
        "std::fs",
        "std::net",
        "std::process",
        "std::env",
        "SystemTime::now",
        "Timestamp::now",
        "kube::Client",
        "kube::Api",
        "kube::client",
        "kube::runtime",
        "crate::cluster",
        "crate::server",
        "crate::signals",
        "crate::admission",
    ];
    for (path, text) in ["src/cost", "src/headroom"].into_iter().flat_map(sources) {
        for word in forbidden {
            assert!(!text.contains(word), "{} names {word}", path.display());
        }
    }
}

#[test]
fn files_stay_below_500_lines_and_begin_with_what_they_are_for() {
    for (path, text) in sources("src") {
        let lines = text.lines().count();
        assert!(lines < 500, "{} has {lines} lines", path.display());
        assert!(text.starts_with("//! "), "{} does not say what it is for", path.display());
    }
}

#[test]
fn no_room_is_called_after_nothing() {
    for (path, _) in sources("src") {
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(!["utils", "util", "common", "helpers", "misc"].contains(&name), "{}", path.display());
    }
}

#[test]
fn the_committed_crds_are_those_of_the_types() {
    for (name, yaml) in pecking_order::api::custom_resource_definitions() {
        let committed = std::fs::read_to_string(root().join("manifests/crds").join(&name)).unwrap();
        assert!(committed == yaml, "manifests/crds/{name} is not what the types say; run: make generate");
    }
}

#[test]
fn the_native_policies_are_those_of_the_rules() {
    let directory = root().join("manifests/native-policies");
    let made = pecking_order::cli::native_policies::render(&directory.join("pool.yaml")).unwrap();
    let committed = std::fs::read_to_string(directory.join("general.yaml")).unwrap();
    assert!(committed == made, "manifests/native-policies/general.yaml is not what the rules say; run: make generate");
}

#[test]
fn the_installation_is_made_of_its_parts() {
    let parts = |directory: &str| {
        let mut files: Vec<_> = std::fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    };
    let base = parts("manifests/base");
    let (first, rest) = base.split_first().unwrap();
    let whole: String = [first]
        .into_iter()
        .chain(&parts("manifests/crds"))
        .chain(rest)
        .map(|file| format!("---\n{}", std::fs::read_to_string(file).unwrap()))
        .collect();
    let committed = std::fs::read_to_string(root().join("manifests/install.yaml")).unwrap();
    assert!(committed == whole, "manifests/install.yaml is not made of its parts; run: make generate");
}
