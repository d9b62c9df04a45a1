//! Clients: they send what is drawn, one request after the other, and judge what comes.

use std::time::Duration;

use forebay_tests::{Client, Head};
use tokio::time::{Instant, sleep, timeout};

use crate::answers::{self, Seen};
use crate::asks::{Ask, Wants};
use crate::tally::Tally;

/// Longest time that any request may take, whatever the faults.
const LIMIT: Duration = Duration::from_secs(180);

/// A connection that stood idle for longer is not used again: the router may close it at the same moment.
const KEPT: Duration = Duration::from_secs(20);

/// A client with a connection that it keeps as long as the router does.
pub(crate) struct Asker<'a> {
    pub(crate) url: &'a str,
    pub(crate) tally: &'a Tally,
    pub(crate) kept: Option<(Client, Instant)>,
}

impl Asker<'_> {
    /// Sends one request, and notes what came of it.
    pub(crate) async fn ask(&mut self, ask: &Ask) -> Seen {
        let client = match self.kept.take() {
            Some((client, since)) if since.elapsed() < KEPT => client,
            _ => Client::connect(self.url).await,
        };
        self.tally.sent();
        let seen = match timeout(LIMIT, self.judge(client, ask)).await {
            Ok(seen) => seen,
            Err(_) => Seen::Wrong(format!("{} {}: hung for {LIMIT:?}", ask.method, ask.path)),
        };
        self.tally.seen(ask.name, &seen);
        seen
    }

    async fn judge(&mut self, mut client: Client, ask: &Ask) -> Seen {
        client.send(&ask.bytes).await;
        if let Wants::LeaveBefore(millis) = ask.wants {
            sleep(Duration::from_millis(millis)).await;
            return Seen::Left;
        }
        // Nothing at all of an answer is one that was cut early: that the router had the request, its count of outcomes
        // must show.
        let Ok(head) = client.head().await else { return Seen::Cut };
        if matches!(ask.wants, Wants::LeaveMid) {
            return Seen::Left;
        }
        let is_stream = head.text("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        if let (Wants::Stream(expected), true) = (&ask.wants, is_stream) {
            let (bytes, whole) = client.body_so_far(&head).await;
            self.keep(client, &head, whole);
            return answers::stream(ask.path, &bytes, whole, expected);
        }
        let Ok(body) = client.body(&head, ask.method).await else { return Seen::Cut };
        let answer = forebay_tests::Answer { head, body };
        let seen = match &ask.wants {
            Wants::Text(expected) => answers::whole(ask.path, &answer, expected),
            Wants::Json(members) => answers::json(&answer, members),
            Wants::Status(status) if answer.status() == *status => Seen::Right,
            Wants::Any => Seen::Right,
            Wants::Stream(_) | Wants::Status(_) | Wants::LeaveBefore(_) | Wants::LeaveMid => {
                answers::failure(&answer.head, &answer.body)
            }
        };
        self.keep(client, &answer.head, true);
        seen
    }

    fn keep(&mut self, client: Client, head: &Head, whole: bool) {
        let closes = head.text("connection").is_some_and(|value| value == "close");
        self.kept = (whole && !closes).then(|| (client, Instant::now()));
    }
}
