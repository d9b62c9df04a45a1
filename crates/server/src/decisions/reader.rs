//! From a file of the decision log to its lines, with keys made whole. Says where a log is broken; judges nothing.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use forebay_policy::PrefixKey;
use thiserror::Error;

use super::chain::{Read, from_hex};
use super::line::{ChoiceLine, EndLine, FORMAT, Header, Line};

/// Why a log cannot be read. Each says where.
#[derive(Debug, Error)]
pub(crate) enum LogError {
    #[error("{file}: {error}", file = .0.display(), error = .1)]
    Unreadable(PathBuf, std::io::Error),
    #[error("{file}: it is empty", file = .0.display())]
    Empty(PathBuf),
    #[error("{file}:{line}: {problem}", file = .file.display())]
    Broken { file: PathBuf, line: u64, problem: String },
}

/// A log that is being read.
pub(crate) struct LogReader {
    file: PathBuf,
    input: BufReader<File>,
    /// Number of the line read last.
    line: u64,
    buffer: Vec<u8>,
    keys: Read,
    next: u64,
    pub(crate) header: Header,
    /// What became of the log, as far as it is read.
    pub(crate) fate: Fate,
    /// Bytes read.
    pub(crate) position: u64,
}

/// Whether a log is all there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    /// Numbers that no line has.
    pub(crate) missing: u64,
    /// The last line is cut.
    pub(crate) cut: bool,
    /// The last line, if it came.
    pub(crate) end: Option<EndLine>,
}

impl Fate {
    /// Whether all that choices depended on is there, up to where the log ends.
    pub(crate) fn is_exact(&self) -> bool {
        self.missing == 0 && self.end.is_none_or(|end| end.exact)
    }
}

/// A line, and the key of its prompt if it is a choice with one.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) line: Line,
    pub(crate) prefix: Option<PrefixKey>,
}

impl LogReader {
    /// Opens a log and reads its first line.
    pub(crate) fn open(file: &Path) -> Result<Self, LogError> {
        let unreadable = |error| LogError::Unreadable(file.to_owned(), error);
        let input = BufReader::with_capacity(1 << 18, File::open(file).map_err(unreadable)?);
        let mut reader = Self {
            file: file.to_owned(),
            input,
            line: 0,
            buffer: Vec::new(),
            keys: Read::default(),
            next: 0,
            header: Header::new(0, 0, Default::default(), Vec::new()),
            fate: Fate::default(),
            position: 0,
        };
        match reader.next_line()? {
            Some(Line::Header(header)) if header.format == FORMAT => reader.header = header,
            Some(Line::Header(header)) => {
                let problem = format!("format {} is not known; this program reads {FORMAT}", header.format);
                return Err(reader.broken(&problem));
            }
            Some(_) => return Err(reader.broken("a header is expected here")),
            None => return Err(LogError::Empty(file.to_owned())),
        }
        Ok(reader)
    }

    /// The next line that says something; `None` at the end, or where a cut last line begins.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, LogError> {
        loop {
            let Some(line) = self.next_line()? else { return Ok(None) };
            if let Some(end) = self.fate.end {
                let problem = format!("nothing may follow the end of the log ({} lines)", end.lines);
                return Err(self.broken(&problem));
            }
            match &line {
                Line::KeysBeginAnew {} => self.keys.begin_anew(),
                Line::End(end) => self.fate.end = Some(*end),
                Line::Header(_) => return Err(self.broken("a second header")),
                _ => return self.entry(line).map(Some),
            }
        }
    }

    fn entry(&mut self, line: Line) -> Result<Entry, LogError> {
        if let Some(seq) = line.seq() {
            if seq < self.next {
                let problem = format!("seq is {seq}, and must be at least {}", self.next);
                return Err(self.broken(&problem));
            }
            self.fate.missing += seq - self.next;
            self.next = seq + 1;
        }
        let prefix = match &line {
            Line::Choice(choice) => self.key(choice)?,
            _ => None,
        };
        Ok(Entry { line, prefix })
    }

    fn key(&mut self, choice: &ChoiceLine) -> Result<Option<PrefixKey>, LogError> {
        let Some(key) = &choice.key else { return Ok(None) };
        let Some(new) = from_hex(&key.new) else {
            return Err(self.broken("key.new is no list of hashes with 16 hexadecimal digits each"));
        };
        let earlier = key.from.map(|from| (from, key.blocks));
        match self.keys.whole(choice.seq, earlier, new) {
            Some(blocks) => Ok(Some(PrefixKey::recorded(blocks, key.bytes))),
            None => {
                let from = key.from.unwrap_or_default();
                let problem =
                    format!("key.from refers to {} blocks of line seq {from}, which has not", key.blocks);
                Err(self.broken(&problem))
            }
        }
    }

    fn next_line(&mut self) -> Result<Option<Line>, LogError> {
        self.buffer.clear();
        let read = self.input.read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|error| LogError::Unreadable(self.file.clone(), error))?;
        if read == 0 {
            return Ok(None);
        }
        (self.line, self.position) = (self.line + 1, self.position + read as u64);
        match serde_json::from_slice(&self.buffer) {
            Ok(line) => Ok(Some(line)),
            // The program was ended, or is still writing.
            Err(_) if self.buffer.last() != Some(&b'\n') && self.line > 1 => {
                self.fate.cut = true;
                Ok(None)
            }
            Err(error) => Err(self.broken(&error.to_string())),
        }
    }

    /// Something is wrong with the line read last.
    pub(crate) fn broken(&self, problem: &str) -> LogError {
        // The parser counts lines and columns within the line.
        let problem = problem.replace(" at line 1 column ", " at column ");
        LogError::Broken { file: self.file.clone(), line: self.line, problem }
    }
}
