//! What a trial came to, as JSON of a versioned schema, and whether it can be compared with others.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forebay_policy::{CacheAwareSettings, HashKeyKind, PolicyKind, PolicySettings, Reason};
use forebay_router::TrialView;
use forebay_router::trial::{Figures, Incidents, Member};
use forebay_workers::BreakerState;
use serde::{Deserialize, Serialize};

use super::doubt::{Doubt, doubts};
use super::named::{NamedReport, unix};
use super::{Admin, problem};
use crate::settings::Settings;

/// Number of the schema: another one for every change that is more than an addition.
const SCHEMA: u32 = 1;

/// What reports say of the settings.
#[derive(Debug, Clone)]
pub struct Config {
    policy: PolicySettings,
    hash_key: Vec<&'static str>,
    threads: usize,
    retries: u32,
    breakers: bool,
    instance: String,
}

impl Config {
    /// Of these settings; `instance` differs between processes.
    pub fn of(settings: &Settings, instance: u64) -> Self {
        let retry = &settings.router.retry;
        Self {
            policy: settings.policy.clone(),
            hash_key: settings.router.hash_key.iter().map(|kind| name_of(*kind)).collect(),
            threads: settings.threads,
            retries: if retry.enabled { retry.attempts.saturating_sub(1) } else { 0 },
            breakers: settings.breaker.enabled,
            instance: format!("{instance:016x}"),
        }
    }
}

fn name_of(kind: HashKeyKind) -> &'static str {
    Reason::from(kind).as_str()
}

/// The report of one trial.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    schema: u32,
    epoch: u64,
    trial: Option<String>,
    /// Whether nothing of it will change any more.
    r#final: bool,
    began_by: &'static str,
    began_unix: f64,
    ended_unix: Option<f64>,
    forebay: &'static str,
    /// Differs between processes.
    instance: &'a str,
    comparable: bool,
    reasons: Vec<Doubt>,
    config: ConfigInForce<'a>,
    workers: Vec<WorkerReport>,
    breaker_transitions: Transitions,
    invariants: Invariants,
    #[serde(flatten)]
    figures: Figures,
    /// Those that its requests named.
    trials: Vec<NamedReport>,
}

#[derive(Serialize)]
struct ConfigInForce<'a> {
    policy: PolicyKind,
    parameters: Parameters<'a>,
    seed: u64,
    load_signal: &'static str,
    /// `cold`, or `warm(n)` after n choices; `none` for a policy without a tree.
    tree: String,
    threads: usize,
    retries: u32,
    breakers: bool,
}

/// Of the policy in force.
#[derive(Serialize)]
#[serde(untagged)]
enum Parameters<'a> {
    CacheAware(&'a CacheAwareSettings),
    ConsistentHash { hash_key: &'a [&'static str] },
    None {},
}

#[derive(Serialize)]
struct WorkerReport {
    worker: String,
    url: Option<String>,
    dp_rank: Option<u32>,
    role: Option<&'static str>,
    version: Option<String>,
    models: Option<Vec<String>>,
    requests: u64,
    decisions: std::collections::BTreeMap<&'static str, u64>,
    /// Most legs in flight at the same time.
    peak_in_flight: Option<u32>,
    breaker_transitions: Transitions,
    left_rotation: u64,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Transitions {
    open: u64,
    half_open: u64,
    closed: u64,
}

#[derive(Serialize)]
struct Invariants {
    checked: u64,
    broken: u64,
}

/// What of a report is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    /// Only the trial that requests called so.
    trial: Option<String>,
}

/// The current trial.
pub(super) async fn current(State(admin): State<Arc<Admin>>, part: Asked) -> Response {
    answer(&admin, None, part)
}

/// One of the last trials.
pub(super) async fn of_epoch(
    State(admin): State<Arc<Admin>>,
    Path(epoch): Path<String>,
    part: Asked,
) -> Response {
    match epoch.parse::<u64>() {
        Ok(epoch) => answer(&admin, Some(epoch), part),
        Err(_) => problem(StatusCode::BAD_REQUEST, "a trial is asked for by its epoch, a whole number"),
    }
}

type Asked = Result<Query<Part>, QueryRejection>;

fn answer(admin: &Admin, epoch: Option<u64>, part: Asked) -> Response {
    let name = match part {
        Ok(Query(Part { trial })) => trial,
        Err(error) => return problem(StatusCode::BAD_REQUEST, &error.body_text()),
    };
    let Some(view) = admin.router.trial(epoch) else {
        let now = admin.reader.world().epoch();
        let message = format!(
            "no such trial is remembered: this is trial {now} of the process, and the last 100 are kept"
        );
        return problem(StatusCode::NOT_FOUND, &message);
    };
    let Some(name) = name else { return Json(Report::of(&admin.config, view)).into_response() };
    match view.named.iter().find(|named| *named.name == *name) {
        Some(named) => Json(NamedReport::of(view.opening.epoch, named)).into_response(),
        None => problem(
            StatusCode::NOT_FOUND,
            &format!(
                "no request of trial {} named {name:?}, or 100 others have been named since",
                view.opening.epoch
            ),
        ),
    }
}

impl<'a> Report<'a> {
    pub(super) fn of(config: &'a Config, view: TrialView) -> Self {
        let reasons = doubts(&view);
        let (checked, broken) = view.invariants();
        let workers = workers(&view);
        let opening = &view.opening;
        let sum = |pick: fn(&Transitions) -> u64| workers.iter().map(|w| pick(&w.breaker_transitions)).sum();
        let breaker_transitions =
            Transitions { open: sum(|t| t.open), half_open: sum(|t| t.half_open), closed: sum(|t| t.closed) };
        let trials = view.named.iter().map(|named| NamedReport::of(opening.epoch, named)).collect();
        Self {
            schema: SCHEMA,
            epoch: opening.epoch,
            trial: opening.name.as_deref().map(str::to_owned),
            r#final: view.is_final,
            began_by: if opening.by_reset { "reset" } else { "start" },
            began_unix: unix(opening.at),
            ended_unix: view.standing.ended.map(unix),
            forebay: env!("CARGO_PKG_VERSION"),
            instance: &config.instance,
            comparable: reasons.is_empty(),
            reasons,
            config: ConfigInForce::of(config, view.standing.seed, opening.warm),
            workers,
            breaker_transitions,
            invariants: Invariants { checked, broken },
            figures: Arc::unwrap_or_clone(view.figures),
            trials,
        }
    }
}

impl<'a> ConfigInForce<'a> {
    fn of(config: &'a Config, seed: u64, warm: u64) -> Self {
        let kind = config.policy.kind;
        let (parameters, load_signal) = match kind {
            PolicyKind::CacheAware => (
                Parameters::CacheAware(&config.policy.cache),
                "pending_prefill_tokens_and_requests_in_flight",
            ),
            PolicyKind::ConsistentHash => (Parameters::ConsistentHash { hash_key: &config.hash_key }, "none"),
            PolicyKind::PowerOfTwo | PolicyKind::LeastLoaded => (Parameters::None {}, "requests_in_flight"),
            PolicyKind::RoundRobin | PolicyKind::Random => (Parameters::None {}, "none"),
        };
        let tree = match (kind, warm) {
            (PolicyKind::CacheAware, 0) => "cold".to_owned(),
            (PolicyKind::CacheAware, choices) => format!("warm({choices})"),
            _ => "none".to_owned(),
        };
        let &Config { threads, retries, breakers, .. } = config;
        Self { policy: kind, parameters, seed, load_signal, tree, threads, retries, breakers }
    }
}

/// The workers at the trial's end, and before them those that are gone but were asked.
fn workers(view: &TrialView) -> Vec<WorkerReport> {
    let asked = &view.figures.workers;
    let here = |name: &str| view.standing.fleet.iter().any(|member| member.name == name);
    let gone = asked.iter().filter(|asked| !here(&asked.worker)).map(|asked| WorkerReport {
        worker: asked.worker.clone(),
        url: None,
        dp_rank: None,
        role: None,
        version: None,
        models: None,
        requests: asked.requests,
        decisions: asked.decisions.clone(),
        peak_in_flight: None,
        breaker_transitions: Transitions::default(),
        left_rotation: 0,
    });
    let members = view.incidents().map(|(member, incidents)| worker(view, member, incidents));
    gone.chain(members).collect()
}

fn worker(view: &TrialView, member: &Member, incidents: Incidents) -> WorkerReport {
    let asked = view.figures.workers.iter().find(|asked| asked.worker == member.name);
    let to = |state: BreakerState| incidents.transitions[state as usize];
    WorkerReport {
        worker: member.name.clone(),
        url: Some(member.url.clone()),
        dp_rank: member.dp_rank,
        role: Some(member.role),
        version: member.version.clone(),
        models: member.models.clone(),
        requests: asked.map_or(0, |asked| asked.requests),
        decisions: asked.map(|asked| asked.decisions.clone()).unwrap_or_default(),
        peak_in_flight: Some(incidents.peak),
        breaker_transitions: Transitions {
            open: to(BreakerState::Open),
            half_open: to(BreakerState::HalfOpen),
            closed: to(BreakerState::Closed),
        },
        left_rotation: incidents.left,
    }
}
