//! What the report of a trial says.
