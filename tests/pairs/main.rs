//! Prefill/decode pairs over real sockets, against workers that check hand-overs as strictly as engines.

#[cfg(test)]
mod changes;
#[cfg(test)]
mod chaos;
#[cfg(test)]
mod conditions;
#[cfg(test)]
mod disagg;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod flows;
#[cfg(test)]
mod internals;
#[cfg(test)]
mod named;
#[cfg(test)]
mod ranks;
#[cfg(test)]
mod records;
#[cfg(test)]
mod reports;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod setting;
