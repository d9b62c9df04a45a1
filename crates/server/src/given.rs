//! A value as somebody gave it: its text and where it stood. Knows how to refuse it in one line, not what it means.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

/// Characters of a refused value that an error shows.
const SHOWN: usize = 80;

/// One value, unread.
#[derive(Clone)]
pub struct Given {
    text: String,
    place: Place,
}

/// Where a value stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the command line.
    Flag,
    /// In the config file.
    File {
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
    },
    /// In the environment variable of this name.
    Environment(&'static str),
}

/// A value that the program cannot use.
#[derive(Debug)]
pub struct Rejected {
    /// Where it stood.
    pub place: Place,
    /// The key, as in the config file.
    pub key: &'static str,
    /// What was wrong and what is allowed.
    pub problem: String,
}

impl Given {
    /// A value as if it stood on the command line.
    pub fn from_flag(text: String) -> Self {
        Self { text, place: Place::Flag }
    }

    /// The value of an environment variable.
    pub fn from_environment(variable: &'static str, text: String) -> Self {
        Self { text, place: Place::Environment(variable) }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// This value is what `problem` is about.
    pub fn reject(&self, key: &'static str, problem: String) -> Rejected {
        Rejected { place: self.place, key, problem }
    }
}

impl FromStr for Given {
    type Err = std::convert::Infallible;

    /// A value from the command line.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::from_flag(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Given {
    /// A scalar of the config file, whatever it looks like.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = Spanned::<String>::deserialize(deserializer)?;
        let place = Place::File { line: found.referenced.line(), column: found.referenced.column() };
        Ok(Self { text: found.value, place })
    }
}

impl fmt::Display for Given {
    /// The text on one line of bounded length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.text.chars().take(SHOWN).collect();
        let cut = if shown.len() < self.text.len() { "…" } else { "" };
        if !shown.is_empty() && shown.chars().all(|c| c.is_ascii_graphic()) {
            write!(f, "{shown}{cut}")
        } else {
            write!(f, "{shown:?}{cut}")
        }
    }
}
