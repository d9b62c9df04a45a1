//! Legs whose request id names both workers, as P2P NCCL workers read it: what would kill or hang an engine is counted.

use super::{Leg, PairOptions, PairRole};
use crate::prompt::Ask;

/// A leg with this id, at a worker that others reach at this port.
pub(super) fn leg(pair: &PairOptions, port: u16, id: &str, (ask, prompt): (&Ask, u64)) -> Leg {
    if pair.role == PairRole::Prefill {
        super::prefill(pair, ask, (true, false));
    }
    let Some((prefill, decode, unique)) = read(id) else {
        pair.exchange.violated(match pair.role {
            PairRole::Prefill => "no_address_kills_the_engine",
            PairRole::Decode => "no_address_hangs_the_engine",
        });
        return Leg::default();
    };
    let own = match pair.role {
        PairRole::Prefill => prefill,
        PairRole::Decode => decode,
    };
    let is_hex = unique.len() == 32 && unique.bytes().all(|byte| byte.is_ascii_hexdigit());
    let wrong = [(own != format!("127.0.0.1:{port}"), "named_somebody_else"), (!is_hex, "id_not_unique")];
    wrong.into_iter().filter(|(holds, _)| *holds).for_each(|(_, what)| pair.exchange.violated(what));
    pair.exchange.meet(id, pair.role, prompt);
    Leg { is_fetched: pair.role == PairRole::Decode, ..Leg::default() }
}

/// Both addresses, and what makes the id unique.
fn read(id: &str) -> Option<(&str, &str, &str)> {
    let (prefill, rest) = id.strip_prefix("___prefill_addr_")?.split_once("___decode_addr_")?;
    let (decode, unique) = rest.rsplit_once('_')?;
    Some((prefill, decode, unique))
}
