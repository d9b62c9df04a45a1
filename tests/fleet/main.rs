//! The fleet as it changes while requests come: workers that are added and taken off, models that come and go and have other
//! names; and what scripts and dashboards that were made for vllm-router find.

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod aliases;
#[cfg(test)]
mod changes;
#[cfg(test)]
mod cors;
#[cfg(test)]
mod familiar;
#[cfg(test)]
mod models;
#[cfg(test)]
mod old_names;
