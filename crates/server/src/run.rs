//! From settings to the end of the process: start, announce, wait for a signal, shut down.

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::app::App;
use crate::events::Event;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::startup::StartupError;

/// Serves until a signal comes.
///
/// # Errors
/// It could not start.
pub fn serve(settings: &Settings) -> Result<(), StartupError> {
    serve_on(&control_runtime()?, settings, |_| {})
}

/// The runtime of the main thread: waits for signals, and in the demo drives the simulated workers.
///
/// # Errors
/// `Internal` if the operating system refuses.
pub fn control_runtime() -> Result<Runtime, StartupError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| StartupError::Internal(format!("cannot start the control runtime: {error}")))
}

/// Serves until a signal comes, on `runtime`; calls `ready` once the first worker is.
///
/// # Errors
/// It could not start.
pub fn serve_on(
    runtime: &Runtime,
    settings: &Settings,
    ready: impl FnOnce(&App),
) -> Result<(), StartupError> {
    // Before the sockets: whoever sees them may send a signal.
    let mut signals = {
        let _inside = runtime.enter();
        let signals = Signals::listen()?;
        if settings.end_with_stdin { signals.and_end_of_stdin()? } else { signals }
    };
    let workers = settings.worker_count();
    let patience = settings.startup_timeout;
    // Not within `block_on`: the application has runtimes of its own and may block on them.
    let app = App::start(settings)?;
    let (url, admin_url) = (app.url(), app.admin_url());
    Event::Listening { url: &url, admin_url: Some(&admin_url), role: None, pid: std::process::id() }
        .announce();
    runtime.block_on(async {
        let came = tokio::select! {
            biased;
            misfit = app.misfit() => {
                end(app, &mut signals).await?;
                return Err(StartupError::ranks(&misfit));
            }
            came = first_ready(&app, workers, patience) => came,
            _ = signals.next() => return end(app, &mut signals).await,
        };
        let Some(eligible_workers) = came else {
            end(app, &mut signals).await?;
            return Err(StartupError::NoWorkerReady { workers, waited: patience });
        };
        Event::Ready { eligible_workers }.announce();
        ready(&app);
        signals.next().await;
        end(app, &mut signals).await
    })
}

/// How many workers are eligible once one is; `None` if workers were given and none is in time.
async fn first_ready(app: &App, workers: usize, patience: std::time::Duration) -> Option<usize> {
    match workers {
        0 => Some(app.wait_ready().await),
        _ => timeout(patience, app.wait_ready()).await.ok(),
    }
}

/// Lets streams end; a second signal ends the process at once.
async fn end(app: App, signals: &mut Signals) -> Result<(), StartupError> {
    tokio::select! {
        () = app.shutdown() => Ok(()),
        code = signals.next() => std::process::exit(code),
    }
}
