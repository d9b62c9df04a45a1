//! What one trial came to: who is under way in it, what is counted of those who were, and the hold under which a new one
//! begins. It routes nothing.
//!
//! - `gate`: new requests held back, and let go again.
//! - `tally`: the counts of one trial.
//! - `roll`: who is under way on one data thread, with its part of the counts.
//! - `trials`: all data threads together, and the trials that were.
//! - `figures`: the counts of a trial in the form in which they are reported.

mod figures;
mod gate;
mod roll;
mod tally;
mod trials;

pub use figures::{
    CacheFigures, Figures, ModelFigures, PrefixFigures, Quantiles, Requests, TimeFigures, TokenFigures,
    WorkerFigures,
};
pub use roll::UnderWay;
pub(crate) use roll::{Entered, Roll};
pub(crate) use trials::Beginning;
pub use trials::{Incidents, Member, Opening, Standing, TrialView, Trials};
