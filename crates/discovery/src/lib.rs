//! Background tasks that find out about workers and write it down. The request path never calls in here; both sides
//! meet in `workers`.
//!
//! Reading order:
//! - [`settings`]: the knobs.
//! - [`asking`]: one question to a worker, with a time limit: is it well, what does it serve, which version.
//! - `metrics`: what a worker's metrics tell.
//! - [`probe`]: the task that keeps asking one worker.
//! - [`watch`]: puts workers on the list, each with a task of its own.
//! - [`allow`]: from where workers may speak of themselves; [`zmtp`]: how their messages come; `hearing`: the sockets for them.
//! - [`announcement`]: how one announces itself; `announced`: who did, and what follows; [`announcements`]: where they do.
//! - [`readiness`]: where prefill workers say that they have handed over.

pub mod allow;
mod announced;
pub mod announcement;
pub mod announcements;
pub mod asking;
mod hearing;
mod metrics;
pub mod probe;
pub mod readiness;
pub mod settings;
pub mod watch;
pub mod zmtp;

pub use allow::Range;
pub use announcements::{AnnouncementMetrics, Announcements};
pub use probe::Misfit;
pub use readiness::{Readiness, ReadinessMetrics};
pub use settings::{ProbeSettings, RankCount};
pub use watch::Watcher;
