//! The config file: YAML in, flags out. Says where in the file something is wrong; does not know what values mean.

use std::path::Path;

use serde_saphyr::{Error, MergeKeyPolicy};

use crate::flags::Flags;
use crate::startup::StartupError;

/// Reads the config file.
///
/// # Errors
/// `ConfigInvalid` in one line: the file cannot be read, is no YAML mapping, or has a key that does not exist, that is
/// given twice, or that wants another kind of value.
pub fn read(path: &Path) -> Result<Flags, StartupError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        StartupError::ConfigInvalid(format!("{}: cannot be read: {error}", path.display()))
    })?;
    parse(&text).map_err(|(place, problem)| {
        StartupError::ConfigInvalid(format!("{}{place}: {problem}", path.display()))
    })
}

/// The flags in a config file's text, or `:LINE:COLUMN` and what is wrong there.
fn parse(text: &str) -> Result<Flags, (String, String)> {
    let options = serde_saphyr::options! { with_snippet: false, merge_keys: MergeKeyPolicy::Error };
    // A file of comments only is as good as an empty one.
    let read: Result<Option<Flags>, Error> = serde_saphyr::from_str_with_options(text, options);
    read.map(Option::unwrap_or_default).map_err(|error| {
        let place = error.location().map(|at| format!(":{}:{}", at.line(), at.column())).unwrap_or_default();
        (place, problem(&error))
    })
}

/// What is wrong, in one line.
fn problem(error: &Error) -> String {
    match error {
        Error::SerdeUnknownField { field, expected, .. } => match nearest(field, expected) {
            Some(known) => format!("unknown key {field:?}; did you mean {known}?"),
            None => format!("unknown key {field:?}; the keys are: {}", expected.join(", ")),
        },
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("{key} is given twice"),
        Error::Message { msg, .. } if msg.starts_with("duplicate field") => {
            format!("{msg}: one of its two names is allowed").replace('`', "")
        }
        Error::Unexpected { expected: "string scalar", .. } => "a single value is expected here".to_owned(),
        Error::Unexpected { expected: "sequence start", .. } => {
            "a list such as [a, b] is expected here".to_owned()
        }
        Error::Unexpected { expected: "mapping start", .. } => "KEY: VALUE is expected here".to_owned(),
        Error::NullIntoString { .. } => "the value is missing; one is needed".to_owned(),
        Error::MultipleDocuments { .. } => "a second document starts here; one is allowed".to_owned(),
        Error::MergeKeyNotAllowed { .. } => {
            "merge keys are not supported; write the keys themselves".to_owned()
        }
        other => without_place(&other.render()),
    }
}

/// The first part of what the parser says on one line; it ends with a place, which is told already.
fn without_place(rendered: &str) -> String {
    let line = rendered.split_whitespace().collect::<Vec<_>>().join(" ");
    line.rfind(" at line ").map_or(line.as_str(), |end| &line[..end]).to_owned()
}

/// The known key that was most likely meant.
fn nearest<'a>(typed: &str, known: &[&'a str]) -> Option<&'a str> {
    let typed = typed.trim_start_matches('-').replace('_', "-");
    let similar = |key: &&str| strsim::jaro_winkler(key, &typed);
    let best = known.iter().copied().max_by(|a, b| similar(a).total_cmp(&similar(b)))?;
    (similar(&best) > 0.8).then_some(best)
}

#[cfg(test)]
mod tests;
