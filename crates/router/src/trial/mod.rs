//! What one trial came to: who is under way in it, what is counted of those who were, and the hold under which a new one
//! begins. It routes nothing.
//!
//! - `gate`: new requests held back, and let go again.
//! - `tally`: the counts of one trial; `pairs`: those of prefill/decode pairs.
//! - `roll`: who is under way on one data thread, with its part of the counts.
//! - `named`: trials that requests name, several at the same time.
//! - `trials`: all data threads together, and the trials that were.
//! - `figures`: the counts of a trial in the form in which they are reported; `view`: with how it began and ended.
//! - `series`: the metrics that tell trials apart.

mod figures;
mod gate;
mod named;
mod pairs;
mod roll;
mod series;
mod tally;
mod trials;
mod view;

pub use figures::{
    CacheFigures, Figures, LoadFigures, ModelFigures, PrefixFigures, Quantiles, Requests, TimeFigures,
    TokenFigures, WorkerFigures,
};
pub use named::NamedView;
pub use pairs::PairFigures;
pub use roll::UnderWay;
pub(crate) use roll::{Entered, Roll};
pub use series::TrialSeries;
pub(crate) use trials::Beginning;
pub use trials::Trials;
pub use view::{Incidents, Member, Opening, Standing, TrialView, Warmth};
