//! The shape of the workspace: which crate may know which, what pure crates must not touch, and how long files may get.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, PackageId};

/// Which crates a crate may know. A new edge is a decision: it is made here, in the same commit.
const EDGES: [(&str, &[&str]); 9] = [
    (
        "forebay",
        &[
            "forebay-router",
            "forebay-discovery",
            "forebay-dial",
            "forebay-workers",
            "forebay-pd",
            "forebay-policy",
            "forebay-openai",
            "forebay-sim",
        ],
    ),
    (
        "forebay-router",
        &["forebay-dial", "forebay-workers", "forebay-pd", "forebay-policy", "forebay-openai"],
    ),
    ("forebay-discovery", &["forebay-dial", "forebay-workers", "forebay-policy", "forebay-openai"]),
    ("forebay-dial", &["forebay-workers"]),
    ("forebay-workers", &["forebay-policy", "forebay-openai"]),
    ("forebay-pd", &["forebay-openai"]),
    ("forebay-policy", &[]),
    ("forebay-openai", &[]),
    ("forebay-sim", &[]),
];

/// Crates without I/O, tasks and clocks.
const PURE: [&str; 3] = ["forebay-openai", "forebay-policy", "forebay-pd"];

/// What pure crates must not even reach through others.
const IMPURE: [&str; 3] = ["tokio", "hyper", "axum"];

/// What would let time or chance into a pure crate.
const CLOCKS: [&str; 5] = ["Instant::now", "SystemTime", "std::time::Instant", "RandomState", "thread_rng"];

/// Longest file body, tests not counted.
const LINES: usize = 400;

fn metadata() -> Metadata {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    // Packages for other platforms have not been fetched.
    let options = ["--offline", "--filter-platform", &host()].map(str::to_owned);
    let mut command = MetadataCommand::new();
    command.manifest_path(manifest).other_options(options);
    command.exec().unwrap_or_else(|error| unreachable!("cargo metadata: {error}"))
}

/// The platform that this is built on.
fn host() -> String {
    let told = std::process::Command::new("rustc").arg("-vV").output();
    let told = String::from_utf8(told.map(|output| output.stdout).unwrap_or_default()).unwrap_or_default();
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.unwrap_or_else(|| unreachable!("rustc tells no host")).to_owned()
}

/// Every source file of the crates, or of one of them.
fn sources(crate_dir: Option<&str>) -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut dirs: Vec<PathBuf> = match crate_dir {
        Some(name) => vec![crates.join(name).join("src")],
        None => entries(&crates).into_iter().map(|dir| dir.join("src")).collect(),
    };
    let mut files = Vec::new();
    while let Some(dir) = dirs.pop() {
        let (inner, found): (Vec<_>, Vec<_>) = entries(&dir).into_iter().partition(|path| path.is_dir());
        dirs.extend(inner);
        files.extend(found.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs")));
    }
    files
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(dir).unwrap_or_else(|error| unreachable!("{}: {error}", dir.display()));
    read.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
}

/// The file up to its tests, which come last.
fn body(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let end = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
    text[..end].to_owned()
}

fn is_test_file(file: &Path) -> bool {
    file.ends_with("tests.rs") || file.ends_with("testing.rs")
}

#[test]
fn crates_know_only_those_below_them() {
    let metadata = metadata();
    let allowed: BTreeMap<&str, &[&str]> = EDGES.into_iter().collect();
    let members: BTreeSet<String> =
        metadata.workspace_packages().iter().map(|package| package.name.to_string()).collect();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        if matches!(name, "forebay-tests" | "forebay-benches") {
            continue;
        }
        let may = allowed.get(name).unwrap_or_else(|| panic!("{name} is new: say here what it may know"));
        for dependency in &package.dependencies {
            let inside = members.contains(&dependency.name) && dependency.kind == DependencyKind::Normal;
            assert!(
                !inside || may.contains(&dependency.name.as_str()),
                "{name} must not know {}",
                dependency.name
            );
        }
    }
}

#[test]
fn router_and_discovery_never_see_each_other_not_even_through_others() {
    let metadata = metadata();
    for (one, other) in [("forebay-router", "forebay-discovery"), ("forebay-discovery", "forebay-router")] {
        assert!(!closure(&metadata, one).contains(other), "{one} reaches {other}");
    }
    assert!(closure(&metadata, "forebay").contains("forebay-discovery"), "the closure finds nothing");
}

#[test]
fn pure_crates_reach_no_runtime_and_no_sockets() {
    let metadata = metadata();
    for name in PURE {
        let reached = closure(&metadata, name);
        assert!(reached.len() > 1, "the closure of {name} finds nothing");
        for impure in IMPURE {
            assert!(!reached.contains(impure), "{name} reaches {impure}");
        }
    }
    assert!(closure(&metadata, "forebay-router").contains("tokio"), "the closure finds nothing");
}

/// Names of all packages that a crate is built with, tests and build scripts not counted.
fn closure(metadata: &Metadata, name: &str) -> BTreeSet<String> {
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    let nodes: BTreeMap<&PackageId, _> = nodes.map(|node| (&node.id, node)).collect();
    let names: BTreeMap<&PackageId, &str> =
        metadata.packages.iter().map(|package| (&package.id, package.name.as_str())).collect();
    let mut left: Vec<&PackageId> =
        names.iter().filter(|(_, known)| **known == name).map(|(id, _)| *id).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = left.pop() {
        if seen.insert(id) {
            let normal = nodes[id].deps.iter().filter(|dependency| {
                dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
            });
            left.extend(normal.map(|dependency| &dependency.pkg));
        }
    }
    seen.into_iter().map(|id| names[id].to_owned()).collect()
}

#[test]
fn pure_crates_take_time_and_chance_as_arguments() {
    for name in ["openai", "policy", "pd"] {
        let files = sources(Some(name));
        assert!(files.len() > 5);
        for file in files.into_iter().filter(|file| !is_test_file(file)) {
            let text = body(&file);
            for clock in CLOCKS {
                assert!(!text.contains(clock), "{} uses {clock}", file.display());
            }
        }
    }
}

#[test]
fn no_file_outgrows_a_reader() {
    let mut long = Vec::new();
    for file in sources(None).into_iter().filter(|file| !is_test_file(file)) {
        let lines = body(&file).lines().count();
        if lines > LINES {
            long.push(format!("{} has {lines} lines", file.display()));
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn every_file_says_first_what_it_owns() {
    for file in sources(None) {
        let is_tests = is_test_file(&file);
        let text = fs::read_to_string(&file).unwrap_or_default();
        assert!(is_tests || text.starts_with("//! "), "{} does not begin with //!", file.display());
    }
}
