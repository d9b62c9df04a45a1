//! What a trial came to, as JSON of a versioned schema, and whether it can be compared with others.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forebay_router::TrialView;
use forebay_router::trial::{Figures, Incidents, Member};
use forebay_workers::BreakerState;
use serde::{Deserialize, Serialize};

use super::doubt::{Doubt, doubts};
use super::in_force::{Config, ConfigInForce};
use super::named::{NamedReport, unix};
use super::{Admin, problem};

/// Number of the schema: another one for every change that is more than an addition.
const SCHEMA: u32 = 1;

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
    answer(&admin, None, part).await
}

/// One of the last trials.
pub(super) async fn of_epoch(
    State(admin): State<Arc<Admin>>,
    Path(epoch): Path<String>,
    part: Asked,
) -> Response {
    match epoch.parse::<u64>() {
        Ok(epoch) => answer(&admin, Some(epoch), part).await,
        Err(_) => problem(StatusCode::BAD_REQUEST, "a trial is asked for by its epoch, a whole number"),
    }
}

type Asked = Result<Query<Part>, QueryRejection>;

async fn answer(admin: &Admin, epoch: Option<u64>, part: Asked) -> Response {
    let name = match part {
        Ok(Query(Part { trial })) => trial,
        Err(error) => return problem(StatusCode::BAD_REQUEST, &error.body_text()),
    };
    admin.fence.pass().await;
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
            config: ConfigInForce::of(config, view.standing.seed, opening),
            workers,
            breaker_transitions,
            invariants: Invariants { checked, broken },
            figures: Arc::unwrap_or_clone(view.figures),
            trials,
        }
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
