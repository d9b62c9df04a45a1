//! Bootstrap: both legs are the client's request with the address of the prefill worker's bootstrap server and a room in it.

use crate::table::{BOOTSTRAP_DECODE, BOOTSTRAP_PREFILL, Row};

/// Nothing else changes: the workers know their roles.
pub(crate) const TABLE: &[&[Row]] = &[BOOTSTRAP_PREFILL, BOOTSTRAP_DECODE];
