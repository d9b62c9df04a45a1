//! The flags of what is done about failures in, settings out: breakers, retries, time limits.

use forebay_router::{RetrySettings, TimeSettings};
use forebay_workers::BreakerSettings;

use crate::given::{Given, Rejected};
use crate::rules::{BOOL, COUNT, DURATION, FACTOR, LIMIT, MILLISECONDS, SHARE};

/// The breakers' knobs.
pub(crate) fn breaker(given: [Option<Given>; 5], or: &BreakerSettings) -> Result<BreakerSettings, Rejected> {
    let [disable, failures, successes, open_for, window] = given;
    Ok(BreakerSettings {
        enabled: !BOOL.read("disable-circuit-breaker", disable, !or.enabled)?,
        failure_threshold: COUNT.read("cb-failure-threshold", failures, or.failure_threshold)?,
        success_threshold: COUNT.read("cb-success-threshold", successes, or.success_threshold)?,
        open_for: DURATION.read("cb-timeout-duration-secs", open_for, or.open_for)?,
        window: DURATION.read("cb-window-duration-secs", window, or.window)?,
    })
}

/// The knobs of retries.
pub(crate) fn retry(given: [Option<Given>; 6], or: &RetrySettings) -> Result<RetrySettings, Rejected> {
    let [disable, attempts, initial, max, multiplier, jitter] = given;
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
pub(crate) fn times(given: [Option<Given>; 5], or: &TimeSettings) -> Result<TimeSettings, Rejected> {
    let [connect, response_header, stream_idle, request, client_body] = given;
    Ok(TimeSettings {
        connect: DURATION.read("connect-timeout-secs", connect, or.connect)?,
        response_header: LIMIT.read("response-header-timeout-secs", response_header, or.response_header)?,
        stream_idle: LIMIT.read("stream-idle-timeout-secs", stream_idle, or.stream_idle)?,
        request: LIMIT.read("request-timeout-secs", request, or.request)?,
        client_body: LIMIT.read("client-body-timeout-secs", client_body, or.client_body)?,
    })
}
