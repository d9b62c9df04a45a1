use std::path::PathBuf;

use crate::command::{Command, parse};
use crate::settings::Settings;

use super::*;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config").join(name)
}

/// What `forebay check --config FILE` makes of a file, in an empty environment.
fn check(file: &Path) -> Result<Settings, StartupError> {
    let arguments =
        ["forebay", "check", "--config"].map(Into::into).into_iter().chain([file.as_os_str().to_owned()]);
    match parse(arguments, |_| None)? {
        Command::Check { settings, .. } => Ok(*settings),
        _ => panic!("not a check"),
    }
}

/// The files in `config/tests/NAME`, each with what its first line says.
fn files(name: &str) -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(directory("tests").join(name)).unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("# ").to_owned();
            (path, first)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn each_invalid_file_is_refused_with_the_message_on_its_first_line() {
    let files = files("invalid");
    assert!(files.len() > 20);
    for (path, expected) in files {
        let Err(error) = check(&path) else { panic!("{} is accepted", path.display()) };
        let message = error.to_string();
        let shown = message.strip_prefix(&*path.to_string_lossy()).unwrap_or(&message);
        // A list of all keys is as long as the flags are many: its beginning will do.
        let matches =
            expected.strip_suffix(", …").map_or(shown == expected, |begin| shown.starts_with(begin));
        assert!(matches, "{}: {shown}", path.display());
        assert_eq!(error.reason(), "config_invalid", "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn each_valid_file_gives_the_summary_on_its_first_line() {
    let files = files("valid");
    assert!(files.len() >= 5);
    for (path, expected) in files {
        let summary = check(&path).unwrap_or_else(|error| panic!("{error}")).to_string();
        if !expected.is_empty() {
            assert!(summary.starts_with(&expected), "{}: {summary}", path.display());
        }
    }
}

#[test]
fn the_example_is_what_runs_without_a_file() {
    let mut example = check(&directory("example.yaml")).unwrap();
    example.seed = Settings::default().seed;
    assert_eq!(format!("{example:?}"), format!("{:?}", Settings::default()));
}

#[test]
fn the_example_names_every_key() {
    let text = std::fs::read_to_string(directory("example.yaml")).unwrap();
    for key in known_keys() {
        let named = text.lines().any(|line| line.starts_with(&format!("{key}:")));
        let also_called = ["pd-disaggregation", "disagg-connector-type", "routing-threshold"];
        let is_other_name = key.starts_with("prometheus-") || also_called.contains(&&*key);
        assert!(named || is_other_name, "{key} is missing in the example");
    }
}

#[test]
fn every_key_is_a_flag_and_every_flag_is_a_key() {
    let command = <Flags as clap::Args>::augment_args(clap::Command::new("x"));
    let mut flags: Vec<_> = command
        .get_arguments()
        .flat_map(|flag| flag.get_long_and_visible_aliases().unwrap())
        .map(str::to_owned)
        .collect();
    let mut keys = known_keys();
    flags.sort();
    keys.sort();
    assert_eq!(flags, keys);
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let error = check(Path::new("/no/such/file.yaml")).unwrap_err().to_string();
    assert!(error.starts_with("/no/such/file.yaml: cannot be read: "), "{error}");
}

fn known_keys() -> Vec<String> {
    let options = serde_saphyr::options! { with_snippet: false };
    match serde_saphyr::from_str_with_options::<Flags>("no-such-key: 1", options) {
        Err(Error::SerdeUnknownField { expected, .. }) => expected.into_iter().map(str::to_owned).collect(),
        _ => panic!("an unknown key is accepted"),
    }
}
