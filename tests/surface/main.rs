//! All that a vLLM serves: what belongs here shows that each of its routes works through the router as it does without.

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod anthropic;
#[cfg(test)]
mod http;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod stored;
#[cfg(test)]
mod table;
#[cfg(test)]
mod tunnels;
#[cfg(test)]
mod uploads;
