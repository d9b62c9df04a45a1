//! The flags of what is done about failures in, settings out: breakers, retries, time limits, admission, drain.

use forebay_router::{AdmissionSettings, RetrySettings, TimeSettings};
use forebay_workers::BreakerSettings;

use crate::given::{Given, Rejected};
use crate::rules::{BOOL, COUNT, DURATION, FACTOR, LIMIT, MILLISECONDS, PLACES, SHARE};
use crate::settings::DrainSettings;

/// The breakers' knobs.
pub(crate) fn breaker(
    disable: Option<Given>,
    [failures, successes]: [Option<Given>; 2],
    [open_for, window]: [Option<Given>; 2],
    or: &BreakerSettings,
) -> Result<BreakerSettings, Rejected> {
    Ok(BreakerSettings {
        enabled: !BOOL.read("disable-circuit-breaker", disable, !or.enabled)?,
        failure_threshold: COUNT.read("cb-failure-threshold", failures, or.failure_threshold)?,
        success_threshold: COUNT.read("cb-success-threshold", successes, or.success_threshold)?,
        open_for: DURATION.read("cb-timeout-duration-secs", open_for, or.open_for)?,
        window: DURATION.read("cb-window-duration-secs", window, or.window)?,
    })
}

/// The knobs of retries.
pub(crate) fn retry(
    [disable, attempts]: [Option<Given>; 2],
    [initial, max, multiplier, jitter]: [Option<Given>; 4],
    or: &RetrySettings,
) -> Result<RetrySettings, Rejected> {
    Ok(RetrySettings {
        enabled: !BOOL.read("disable-retries", disable, !or.enabled)?,
        attempts: COUNT.read("retry-max-retries", attempts, or.attempts)?,
        initial_backoff: MILLISECONDS.read("retry-initial-backoff-ms", initial, or.initial_backoff)?,
        max_backoff: MILLISECONDS.read("retry-max-backoff-ms", max, or.max_backoff)?,
        multiplier: FACTOR.read("retry-backoff-multiplier", multiplier, or.multiplier)?,
        jitter: SHARE.read("retry-jitter-factor", jitter, or.jitter)?,
    })
}

/// The time limits of the request path.
pub(crate) fn times(
    [connect, response_header, stream_idle]: [Option<Given>; 3],
    [request, client_body]: [Option<Given>; 2],
    or: &TimeSettings,
) -> Result<TimeSettings, Rejected> {
    Ok(TimeSettings {
        connect: DURATION.read("connect-timeout-secs", connect, or.connect)?,
        response_header: LIMIT.read("response-header-timeout-secs", response_header, or.response_header)?,
        stream_idle: LIMIT.read("stream-idle-timeout-secs", stream_idle, or.stream_idle)?,
        request: LIMIT.read("request-timeout-secs", request, or.request)?,
        client_body: LIMIT.read("client-body-timeout-secs", client_body, or.client_body)?,
    })
}

/// The knobs of admission.
pub(crate) fn admission(
    given: [Option<Given>; 4],
    or: &AdmissionSettings,
) -> Result<AdmissionSettings, Rejected> {
    let [concurrent, queue, queue_timeout, no_worker_wait] = given;
    Ok(AdmissionSettings {
        concurrent: concurrent.map_or(Ok(or.concurrent), |given| {
            let count = PLACES.of("max-concurrent-requests", &given)?;
            Ok((count > 0).then_some(count))
        })?,
        queue: PLACES.read("queue-size", queue, or.queue)?,
        queue_timeout: DURATION.read("queue-timeout-secs", queue_timeout, or.queue_timeout)?,
        no_worker_wait: LIMIT.read("no-worker-wait-secs", no_worker_wait, or.no_worker_wait)?,
    })
}

/// The knobs of the end.
pub(crate) fn drain(given: [Option<Given>; 2], or: &DrainSettings) -> Result<DrainSettings, Rejected> {
    let [settle, timeout] = given;
    Ok(DrainSettings {
        settle: LIMIT.read("drain-settle-secs", settle, or.settle)?,
        timeout: LIMIT.read("drain-timeout-secs", timeout, or.timeout)?,
    })
}
