//! A long run below the peak with clients that leave: nothing may fail, drift or grow.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::case::Case;
use crate::client::Crowd;
use crate::failure::Failure;
use crate::pairs::{ROUTER_CORE, Site};
use crate::report::megabytes;
use crate::router::{Places, Router, Running};
use crate::sample;

/// Share of the peak that is offered.
const SHARE: f64 = 0.6;

/// Of the run for the peak.
const PEAK: Duration = Duration::from_secs(3);

/// Lines with the memory.
const READINGS: u64 = 20;

/// Longest wait for the last requests to end.
const SETTLE: Duration = Duration::from_secs(10);

/// Slower than this share of what was offered is a failure, so that the run is bounded in time.
const SLOWEST: f64 = 0.2;

/// Sends so many requests; an error names what was wrong.
pub(crate) async fn run(requests: u64, places: &Places) -> Result<(), Failure> {
    let shape = Case::Prompt2KiB.shape().ok_or_else(|| Failure::Refused("no shape".to_owned()))?;
    let site = Site::start(&shape.worker(), shape.requests())?;
    let running = Router::Forebay.start(&site.launch(places, 1, ROUTER_CORE), &site.requests[0]).await?;
    let mut plan = site.plan(running.addr, shape.clients);
    plan.expected = Some(sample::calibrate(&plan, &shape).await?);
    let peak = sample::take(&plan, &shape, PEAK, Some(&running.process)).await;
    (plan.rate, plan.cancel) = (Some(peak.rate * SHARE), true);
    println!("peak {:.0} requests/s, offered {:.0}", peak.rate, peak.rate * SHARE);
    println!("requests | cancelled | errors | resident MB");
    let (crowd, begin) = (Crowd::start(&plan, Duration::ZERO), Instant::now());
    let limit = Duration::from_secs_f64(10.0 + requests as f64 / (peak.rate * SHARE * SLOWEST));
    let (mut next, mut first_half) = (0, 0);
    loop {
        let counts = crowd.tally.counts();
        let done = counts.served + counts.cancelled;
        if done >= next {
            let resident = running.process.resident();
            println!("{done} | {} | {} | {:.1}", counts.cancelled, counts.errors, megabytes(resident));
            next += (requests / READINGS).max(1);
            if done <= requests / 2 {
                first_half = resident;
            }
        }
        if done >= requests {
            break;
        }
        if begin.elapsed() > limit {
            return Err(Failure::Refused(format!("only {done} requests in {limit:?}")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let tally = crowd.finish().await;
    if let Some(complaint) = tally.complaint() {
        return Err(Failure::Refused(format!("{} errors, first: {complaint}", tally.counts().errors)));
    }
    settle(&running).await?;
    let last = running.process.resident();
    println!(
        "load 0 at the end; resident {:.1} MB at half, {:.1} at the end",
        megabytes(first_half),
        megabytes(last)
    );
    // Pages come and go; a leak of even ten bytes a request would show in a run of 600,000.
    if last > first_half + first_half / 20 + (1 << 20) {
        return Err(Failure::Refused("memory grows".to_owned()));
    }
    Ok(())
}

/// Waits until no worker has a request in flight.
async fn settle(running: &Running) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        let page = workers(running).await?;
        let loads: Vec<_> = page.split("\"in_flight\":").skip(1).collect();
        if !loads.is_empty() && loads.iter().all(|load| load.starts_with("0,") || load.starts_with("0}")) {
            return Ok(());
        }
        if begin.elapsed() > SETTLE {
            return Err(Failure::Refused(format!("load is left: {page}")));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn workers(running: &Running) -> Result<String, Failure> {
    let mut connection = TcpStream::connect(running.admin).await.map_err(Failure::at("admin"))?;
    let request = b"GET /workers HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n";
    connection.write_all(request).await.map_err(Failure::at("admin"))?;
    let mut page = String::new();
    connection.read_to_string(&mut page).await.map_err(Failure::at("admin"))?;
    Ok(page)
}
