//! One request's account, open from its head to its end, and the one place where it is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_workers::{Invariant, Note, Pool, Reader, World};
use http::StatusCode;

use crate::access_log::AccessLog;
use crate::account::{Account, Attempts};
use crate::admission::Permit;
use crate::failure::Failure;
use crate::metrics::{RouterMetrics, Series};
use crate::outcome::Outcome;
use crate::route::Route;
use crate::trial::{Entered, Roll, Trials};

/// Who hears of a request's end.
pub struct Books {
    /// Counts it.
    pub(crate) metrics: RouterMetrics,
    /// Writes a line of it, if that is wanted.
    access_log: Option<AccessLog>,
    /// Count it in its trial.
    pub(crate) trials: Arc<Trials>,
    /// What is still under way is to end now.
    cut: AtomicBool,
}

impl Books {
    /// With these readers.
    pub fn new(metrics: RouterMetrics, access_log: Option<AccessLog>, trials: Arc<Trials>) -> Self {
        Self { metrics, access_log, trials, cut: AtomicBool::new(false) }
    }

    /// Whoever is polled next ends.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
    }

    /// Whether all is to end now.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }
}

/// One request, from its head to its end, which is accounted for when this is dropped: exactly once, whatever happens.
pub(crate) struct Record {
    books: Arc<Books>,
    /// Of the request's pool, once that is known.
    series: Option<Arc<Series>>,
    /// When the last chunk of the body came.
    last_chunk: Option<Instant>,
    /// Its place among the requests under way.
    pub(crate) permit: Option<Permit>,
    /// Its place in its trial, once it was admitted.
    pub(crate) entered: Option<Entered>,
    pub(crate) account: Account,
}

impl Record {
    /// Begins with the request's head.
    pub(crate) fn begin(books: &Arc<Books>, world: Arc<World>, route: Route) -> Self {
        let books = Arc::clone(books);
        let account = Account::open(world, route);
        Self { books, series: None, last_chunk: None, permit: None, entered: None, account }
    }

    /// Takes the request into the current trial, and into the one that it names; false while a reset holds new ones.
    pub(crate) fn enter(&mut self, reader: &Reader, roll: &Arc<Roll>) -> bool {
        self.entered = roll.enter(reader, &mut self.account);
        if let (Some(entered), Some(name)) = (&mut self.entered, &self.account.trial) {
            entered.take_part_in(self.books.trials.named(entered.epoch(), name));
        }
        self.entered.is_some()
    }

    /// Picks the request's pool; gives it with what is to be noted of the attempts there.
    pub(crate) fn pick_pool(
        &mut self,
        pick: impl for<'w> FnOnce(&'w World) -> Result<&'w Pool, Failure>,
    ) -> Result<(&Pool, &mut Attempts), Failure> {
        let Account { world, route, model, attempts, .. } = &mut self.account;
        let pool = pick(world)?;
        let series = self.books.metrics.series(route, Some(pool));
        *model = Some(Arc::clone(series.model()));
        self.series = Some(series);
        Ok((pool, attempts))
    }

    /// The response begins.
    pub(crate) fn status(&mut self, status: StatusCode, streamed: bool) {
        self.account.status = status.as_u16();
        self.account.streamed = streamed;
    }

    /// Bytes of the body came from the worker. `has_token` says whether more than comments has come by now. Gives how
    /// long that took, once.
    pub(crate) fn chunk(&mut self, has_token: bool) -> Option<Duration> {
        let series = self.series.as_ref()?;
        // Of a body that is no stream of events only the first bytes are of interest.
        if self.last_chunk.is_some() && !self.account.streamed {
            return None;
        }
        let now = Instant::now();
        let took = now - self.account.started;
        match self.last_chunk.replace(now) {
            None => {
                series.first_byte(&self.books.metrics, took);
                self.account.first_byte = Some(took);
            }
            Some(last) => {
                series.gap(&self.books.metrics, now - last);
                if let Some(entered) = &self.entered {
                    entered.gap(now - last);
                }
            }
        }
        let is_first = has_token && self.account.first_token.is_none();
        is_first.then(|| *self.account.first_token.insert(took))
    }

    /// Whether it is to end now.
    pub(crate) fn is_cut(&self) -> bool {
        self.books.is_cut()
    }

    /// The request met an invariant that does not hold.
    pub(crate) fn note_broken(&self, broken: Invariant) {
        tracing::error!(counter = broken.as_str(), "an invariant is broken: a request was refused for it");
        self.books.trials.auditor().found(broken);
    }

    /// Bytes go to the client.
    pub(crate) fn handed_out(&mut self, bytes: &Bytes) {
        self.account.response_bytes += bytes.len() as u64;
    }

    /// The request is over: everybody who wants to know hears of it here, and nowhere else.
    fn close(&mut self) {
        let account = &mut self.account;
        account.took = account.started.elapsed();
        let series = self.series.take().unwrap_or_else(|| self.books.metrics.series(&account.route, None));
        series.ended(&self.books.metrics, account);
        if let Some(access_log) = &self.books.access_log {
            access_log.note(account);
        }
        if let (Some(asked), Some(ledger)) = (account.attempts.noted, account.world.ledger()) {
            ledger.note(Note::Ended(Box::new(account.noted(asked))));
        }
        match self.entered.take() {
            Some(entered) => entered.close(account),
            None if account.route.class.counts() => self.books.trials.count(account),
            None => {}
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.permit = None;
        if std::thread::panicking() {
            self.account.outcome = Outcome::Panicked;
        }
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use forebay_policy::PolicySettings;
    use forebay_workers::{Auditor, BreakerSettings, HealthSettings, registry};
    use http::Method;
    use prometheus::{Registry, TextEncoder};

    use super::*;
    use crate::relay::ResponseBody;

    #[test]
    fn a_request_that_meets_a_broken_invariant_says_which_and_is_counted_as_that() {
        let (reader, _writer) =
            registry(PolicySettings::default(), 1, HealthSettings::default(), BreakerSettings::default());
        let (series, auditor) = (Registry::new(), Arc::new(Auditor::default()));
        let trials = Arc::new(Trials::new(&reader.world(), Arc::clone(&auditor)));
        let books = Arc::new(Books::new(RouterMetrics::new(&series).unwrap(), None, trials));
        let route = Route::find(&Method::POST, "/v1/messages", true);
        let mut record = Record::begin(&books, reader.world(), route);
        let response = record.answered(Err(Invariant::InFlight.into()));
        drop(record);
        assert_eq!(response.status(), 500);
        assert_eq!(response.headers()["x-forebay-failure"], "router_policy_invariant");
        let ResponseBody::Whole(body) = response.into_body() else { panic!("the router made it") };
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.starts_with(r#"{"type":"error","error":{"type":"api_error""#), "{body}");
        assert!(body.contains(r#""failure":"router_policy_invariant","counter":"in_flight""#), "{body}");
        assert_eq!((auditor.violations_of(Invariant::InFlight), auditor.violations()), (1, 1));
        let metrics = TextEncoder::new().encode_to_string(&series.gather()).unwrap();
        let counted = r#"class="5xx",model="",outcome="policy_invariant",route="/v1/messages"} 1"#;
        assert!(metrics.contains(counted), "{metrics}");
    }
}
