//! What the operating system says about a process and its children: CPU time, memory, context switches.

use std::fs;
use std::time::Duration;

/// The kernel's clock tick in `/proc/PID/stat`: 100 per second on every Linux that runs here.
const TICK: Duration = Duration::from_millis(10);

/// A process and everything that it started.
pub(crate) struct Process {
    pub(crate) pid: u32,
}

/// A reading of counters that only grow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// From `schedstat`, to the nanosecond, of threads that are alive.
    exact: Duration,
    /// From `stat`, to the tick, of all threads.
    ticks: Duration,
    /// Times that a thread went to sleep by itself.
    pub(crate) sleeps: u64,
}

impl Usage {
    /// User and system time from `before` to here.
    pub(crate) fn cpu_since(self, before: Self) -> Duration {
        let exact = self.exact.saturating_sub(before.exact);
        let ticks = self.ticks.saturating_sub(before.ticks);
        // Threads that ended in between took their exact time with them.
        if ticks > exact + exact / 20 + TICK * 2 { ticks } else { exact }
    }
}

impl Process {
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for pid in self.family() {
            usage.ticks += ticks(pid);
            for thread in threads(pid) {
                usage.exact += scheduled(&thread);
                usage.sleeps += field(&format!("{thread}/status"), "voluntary_ctxt_switches:");
            }
        }
        usage
    }

    /// Resident memory, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        self.family().iter().map(|pid| field(&format!("/proc/{pid}/status"), "VmRSS:") * 1024).sum()
    }

    /// The process first, then its descendants.
    pub(crate) fn family(&self) -> Vec<u32> {
        let mut family = vec![self.pid];
        let mut next = 0;
        while let Some(&pid) = family.get(next) {
            for thread in threads(pid) {
                let children = fs::read_to_string(format!("{thread}/children")).unwrap_or_default();
                family.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
            next += 1;
        }
        family
    }
}

/// Folders of the threads of a process; none if it has ended.
fn threads(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path().display().to_string()).collect()
}

fn scheduled(thread: &str) -> Duration {
    let text = fs::read_to_string(format!("{thread}/schedstat")).unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

fn ticks(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in brackets may hold spaces. User and system time are the 14th and 15th field.
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let fields = after_name.split_ascii_whitespace().skip(11).take(2);
    let ticks: u32 = fields.filter_map(|field| field.parse::<u32>().ok()).sum();
    TICK * ticks
}

/// The number behind a name in a `status` file; 0 if it is not there.
fn field(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_ascii_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_time_and_memory() {
        let this = Process { pid: std::process::id() };
        let before = this.usage();
        let mut sum = 0_u64;
        while this.usage().cpu_since(before) < Duration::from_millis(30) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(this.resident() > 1 << 20);
    }
}
