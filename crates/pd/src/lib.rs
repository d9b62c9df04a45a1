//! Prefill/decode pairs: which requests become one, what each leg says, what comes next after what has happened. Pure:
//! time and chance are arguments, and nothing is sent from here.
//!
//! In reading order:
//!
//! - [`connector`]: the ways to hand KV blocks over
//! - [`endpoint`]: the APIs whose requests can be pairs
//! - [`condition`]: whether a request becomes a pair, and why not
//! - [`room`]: the id of a pair
//! - [`hand_over`]: what the prefill leg's answer says, used once
//! - [`peer`]: where a prefill worker is reached that pushes its blocks
//! - `table`: how the splices of a connector are written down; `one_token`: those of a leg that only prefills
//! - `nixl`, `nixl_push`, `bootstrap`, [`nccl`]: the tables
//! - [`lmcache`]: the same of the one connector whose legs are another API's, and its answers
//! - [`legs`]: bodies of both legs by these tables
//! - [`plan`]: what to do next
//! - [`answer`]: what the client must not see of an answer, and the count of cached tokens put right

pub mod connector;

pub mod endpoint;

pub mod condition;

pub mod room;

pub mod hand_over;

pub mod peer;

mod table;

mod one_token;

mod nixl;

mod nixl_push;

mod bootstrap;

pub mod nccl;

pub mod lmcache;

pub mod legs;

pub mod plan;

pub mod answer;

pub use answer::Correction;
pub use condition::{Bypass, Conditions, PromptFacts};
pub use connector::{Connector, Order};
pub use endpoint::Endpoint;
pub use hand_over::{HandOver, Prefilled};
pub use legs::{Bootstrap, Pairing, Ranks};
pub use peer::Peer;
pub use plan::{Happened, LegFailure, LegKind, Limits, Plan, Recompute, Step};
pub use room::{Room, Rooms};
