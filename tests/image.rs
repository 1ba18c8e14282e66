//! The image's last stage holds all that the binary needs: run in a root directory of just those files.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The libraries that the dynamic loader loads, by `ldd`.
fn libraries(binary: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(binary).output().expect("ldd belongs to the C library");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

#[test]
fn the_binary_runs_in_a_root_of_just_the_images_files() {
    let binary = Path::new(env!("CARGO_BIN_EXE_pecking-order"));
    let root = tempfile::tempdir().unwrap();
    let libraries = libraries(binary);
    assert!((2..=5).contains(&libraries.len()), "a C library and its loader, not more: {libraries:?}");
    for library in &libraries {
        let target = root.path().join(library.strip_prefix("/").unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(library, target).unwrap();
    }
    std::fs::copy(binary, root.path().join("pecking-order")).unwrap();
    let world = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/standalone");
    for (directory, file) in
        [("", "server.yaml"), ("", "cluster.yaml"), ("", "samples.yaml"), ("policies", "web.yaml"), ("policies", "general.yaml")]
    {
        let target = root.path().join("world").join(directory);
        std::fs::create_dir_all(&target).unwrap();
        std::fs::copy(world.join(directory).join(file), target.join(file)).unwrap();
    }
    // chroot is root's; anybody else gets a user namespace in which they are root.
    let uid = Command::new("id").arg("-u").output().unwrap().stdout;
    let mut command = if uid == b"0\n" { Command::new("chroot") } else { Command::new("unshare") };
    if uid != b"0\n" {
        command.args(["--map-root-user", "chroot"]);
    }
    let order = ["/pecking-order", "order", "deployment/web", "-n", "shop", "--standalone", "/world"];
    let output = command.arg(root.path()).args(order).output().expect("chroot and unshare belong to coreutils and util-linux");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("web-h"), "{output:?}");
}

#[test]
fn the_dockerfile_gathers_those_files_and_runs_as_nobody() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Dockerfile")).unwrap();
    assert!(text.contains("$(ldd target/release/pecking-order | grep -o '/[^ ]*')"), "the libraries are those that this test takes");
    let last = text.rsplit("FROM ").next().unwrap();
    let lines: Vec<&str> = last.lines().collect();
    assert_eq!(
        lines[..3],
        ["scratch", "COPY --from=build /image /", "USER 65532:65532"],
        "the last stage holds what was gathered, no more"
    );
}
