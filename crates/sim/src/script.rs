//! An answer as the steps that put it on the wire, with a fault worked in. It plans only; nothing is written here.

use std::time::Duration;

use tokio::time::Instant;

use crate::answer::{Answer, Content, HeadStyle, Length, SANITISED, error_body, reason};
use crate::faults::Fault;
use crate::gates::Stage;
use crate::sse;

/// One step of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Writes in one go.
    Send(Vec<u8>),
    /// Waits for a moment.
    Until(Instant),
    /// Waits for so long.
    Rest(Duration),
    /// Passes the gates of a stage.
    Gate(Stage),
    /// Says nothing until the client leaves.
    Silence,
}

/// What becomes of the connection after the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The answer is complete and the connection can be used again.
    Keep,
    /// The answer is complete; the connection is closed.
    Close,
    /// The answer is not complete; the connection is closed.
    Cut,
    /// The answer is not complete; the connection is reset.
    Reset,
}

/// How an answer is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) steps: Vec<Step>,
    pub(crate) ending: Ending,
}

/// When tokens are ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) first: Instant,
    pub(crate) per_token: Duration,
}

impl Timing {
    fn at(&self, token: u64) -> Instant {
        let later = u32::try_from(token.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first + self.per_token * later
    }
}

/// What a script depends on besides the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) style: &'a HeadStyle,
    /// `None` sends at once.
    pub(crate) timing: Option<Timing>,
    /// Token with which a whole answer is ready.
    pub(crate) last_token: u64,
    /// Whether gates are closed, so that the answer must be sent in parts.
    pub(crate) gated: bool,
    /// Whether the client wants the connection kept.
    pub(crate) keep: bool,
}

/// What happens instead of the rest of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twist {
    Silence,
    Cut,
    Reset,
    Garbage,
    Error,
}

/// The answer a fault gives instead of the real one, if it does.
pub(crate) fn replaced(fault: &Fault, answer: Answer) -> Answer {
    let error = |status, kind, message: &str| Answer::error(status, kind, message, None);
    match fault {
        Fault::Status(status, body) if body.is_empty() => {
            error(*status, reason(*status), "This status was asked for by a test.")
        }
        Fault::Status(status, body) => Answer::json(*status, body.clone()),
        Fault::QueueOverflow => error(
            503,
            "Service Unavailable",
            "QueueOverflow: the number of queued requests has reached --max-num-queued-reqs. Please retry later.",
        ),
        Fault::Paused => Answer::unavailable("The engine is paused for a weight update. Please retry later."),
        Fault::Scaling => {
            Answer::json(503, r#"{"error":"The model is currently scaling. Please try again later."}"#)
        }
        Fault::TooManyRequests => error(429, "RateLimitError", "Too many requests."),
        Fault::TryLater(seconds) => {
            let refusal = error(429, "RateLimitError", "Too many requests.");
            with_header(refusal, "retry-after", seconds.to_string())
        }
        Fault::InternalError => error(500, "InternalServerError", SANITISED),
        Fault::EngineDead => error(
            500,
            "InternalServerError",
            "EngineCore encountered an issue while processing this request.",
        ),
        Fault::EarlyAnswer(status) => error(*status, reason(*status), "Refused before the body was read."),
        Fault::ErrorInStream(_) if matches!(answer.content, Content::Whole(_)) => {
            error(500, "InternalServerError", SANITISED)
        }
        Fault::NoHandOver => handing_over(answer, |_| "null".to_owned()),
        Fault::IncompleteHandOver => {
            handing_over(answer, |params| params.replace("\"remote_block_ids\"", "\"x\""))
        }
        Fault::HugeHead(bytes) => with_header(answer, "x-sim-huge", "h".repeat(*bytes)),
        Fault::ConnectionClose => with_header(answer, "connection", "close".to_owned()),
        Fault::LengthTooLong(_) | Fault::LengthTooShort(_) => joined(answer),
        _ => answer,
    }
}

/// The answer with other hand-over parameters, if it has some.
fn handing_over(mut answer: Answer, change: impl FnOnce(&str) -> String) -> Answer {
    if let Content::Whole(body) = &mut answer.content {
        let text = String::from_utf8_lossy(body).into_owned();
        if let Some((before, rest)) = text.rsplit_once("\"kv_transfer_params\":{")
            && let Some((params, after)) = rest.split_once('}')
        {
            let params = change(&format!("{{{params}}}"));
            *body = format!("{before}\"kv_transfer_params\":{params}{after}").into_bytes();
        }
    }
    answer
}

fn with_header(mut answer: Answer, name: &'static str, value: String) -> Answer {
    answer.headers.push((name, value));
    answer
}

/// The same answer with its records in one body.
fn joined(mut answer: Answer) -> Answer {
    if let Content::Stream(records) = answer.content {
        answer.content = Content::Whole(records.into_iter().flat_map(|record| record.bytes).collect());
    }
    answer
}

/// The steps of an answer under a fault.
pub(crate) fn script(answer: &Answer, fault: Option<&Fault>, plan: &Plan<'_>) -> Script {
    let mut writer = Writer { steps: Vec::new(), plan };
    if plan.gated {
        writer.steps.push(Step::Gate(Stage::BeforeHead));
    }
    let ending = match fault {
        Some(Fault::NeverAnswer) => writer.silence(),
        Some(Fault::CloseBeforeHead) => Ending::Cut,
        Some(Fault::Reset) => Ending::Reset,
        Some(Fault::Garbage) => {
            writer.send(b"\x16\x03\x01 this is no HTTP \x00\xff\r\n\r\n");
            Ending::Cut
        }
        _ => writer.answer(answer, fault),
    };
    if let Some(Fault::ByteByByte(rest)) = fault {
        writer.split(*rest);
    }
    Script { steps: writer.steps, ending }
}

struct Writer<'a> {
    steps: Vec<Step>,
    plan: &'a Plan<'a>,
}

impl Writer<'_> {
    /// Adds bytes to the last write, if nothing came in between.
    fn send(&mut self, bytes: &[u8]) {
        match self.steps.last_mut() {
            Some(Step::Send(last)) => last.extend_from_slice(bytes),
            _ => self.steps.push(Step::Send(bytes.to_vec())),
        }
    }

    fn silence(&mut self) -> Ending {
        self.steps.push(Step::Silence);
        Ending::Cut
    }

    fn ready(&mut self, token: u64) {
        if let Some(timing) = self.plan.timing {
            let at = timing.at(token);
            if self.steps.iter().rev().find(|step| matches!(step, Step::Until(_))) != Some(&Step::Until(at)) {
                self.steps.push(Step::Until(at));
            }
        }
    }

    fn answer(&mut self, answer: &Answer, fault: Option<&Fault>) -> Ending {
        let length = match (&answer.content, fault) {
            (Content::Stream(_), _) => Length::Chunked,
            (Content::Whole(body), Some(Fault::LengthTooLong(more))) => Length::Known(body.len() + more),
            (Content::Whole(body), Some(Fault::LengthTooShort(less))) => {
                Length::Known(body.len().saturating_sub(*less))
            }
            (Content::Whole(body), _) => Length::Known(body.len()),
        };
        let head = self.plan.style.head(answer, length);
        if length != Length::Chunked {
            self.ready(self.plan.last_token);
        }
        match fault {
            Some(Fault::Interim(status)) => {
                self.send(format!("HTTP/1.1 {status} {}\r\n\r\n", reason(*status)).as_bytes());
            }
            Some(Fault::CloseMidHead) => {
                self.send(&head[..head.len() / 2]);
                return Ending::Cut;
            }
            _ => {}
        }
        self.send(&head);
        if fault == Some(&Fault::HeadThenSilence) {
            return self.silence();
        }
        if let Some(twist) = self.content(answer, fault) {
            return self.twisted(twist);
        }
        match fault {
            Some(Fault::LengthTooLong(_)) => Ending::Cut,
            Some(Fault::CloseAfterAnswer | Fault::ConnectionClose | Fault::EarlyAnswer(_)) => Ending::Close,
            _ if self.plan.keep => Ending::Keep,
            _ => Ending::Close,
        }
    }

    /// Sends the body up to the twist that stops it, if one does.
    fn content(&mut self, answer: &Answer, fault: Option<&Fault>) -> Option<Twist> {
        let (records, twist) = match (&answer.content, twist(fault)) {
            // An error that would come within a stream has replaced a whole answer already.
            (Content::Whole(body), None | Some((_, _, Twist::Error))) => {
                self.send(body);
                return None;
            }
            (Content::Whole(body), Some((_, _, twist))) => {
                self.send(&body[..body.len() / 2]);
                return Some(twist);
            }
            (Content::Stream(records), twist) => (records, twist),
        };
        for (sent, record) in records.iter().enumerate() {
            let here = twist.filter(|(after, ..)| *after == sent);
            if let Some((_, false, twist)) = here {
                return Some(twist);
            }
            self.ready(record.token);
            let chunk = sse::chunk(&record.bytes);
            if let Some((_, true, twist)) = here {
                self.send(&chunk[..chunk.len() / 2]);
                return Some(twist);
            }
            self.send(&chunk);
            if self.plan.gated {
                self.steps.push(Step::Gate(Stage::AfterChunks(sent + 1)));
            }
        }
        if let Some((_, _, twist)) = twist {
            return Some(twist);
        }
        self.send(sse::LAST_CHUNK);
        None
    }

    fn twisted(&mut self, twist: Twist) -> Ending {
        match twist {
            Twist::Silence => self.silence(),
            Twist::Cut => Ending::Cut,
            Twist::Reset => Ending::Reset,
            Twist::Garbage => {
                self.send(b"zz\r\nthis is no chunk\r\n");
                Ending::Cut
            }
            Twist::Error => {
                let error = error_body(500, "InternalServerError", SANITISED, None);
                self.send(&sse::chunk(&sse::data(&error)));
                self.send(&sse::chunk(&sse::done()));
                self.send(sse::LAST_CHUNK);
                if self.plan.keep { Ending::Keep } else { Ending::Close }
            }
        }
    }

    /// Turns every write into writes of one byte.
    fn split(&mut self, rest: Duration) {
        let steps = std::mem::take(&mut self.steps);
        for step in steps {
            let Step::Send(bytes) = step else {
                self.steps.push(step);
                continue;
            };
            self.steps.extend(bytes.iter().flat_map(|&byte| [Step::Send(vec![byte]), Step::Rest(rest)]));
        }
    }
}

/// After how many records, whether within the next one, and what happens.
fn twist(fault: Option<&Fault>) -> Option<(usize, bool, Twist)> {
    Some(match fault? {
        Fault::StallMidStream(after) => (*after, false, Twist::Silence),
        Fault::CloseMidStream(after) => (*after, false, Twist::Cut),
        Fault::CloseMidRecord(after) => (*after, true, Twist::Cut),
        Fault::CloseAfterDone => (usize::MAX, false, Twist::Cut),
        Fault::ResetMidStream(after) => (*after, false, Twist::Reset),
        Fault::ChunkedGarbage(after) => (*after, false, Twist::Garbage),
        Fault::ErrorInStream(after) => (*after, false, Twist::Error),
        _ => return None,
    })
}
