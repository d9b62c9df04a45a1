//! From which addresses workers may announce themselves. Reads no socket.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A range of addresses, as `10.0.0.0/8`; without a length it is one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    base: IpAddr,
    bits: u8,
}

/// What is taken unless something else is said: this machine and private networks.
const USUAL: [&str; 8] = [
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "::1",
    "fc00::/7",
    "fe80::/10",
];

impl Range {
    /// This machine and private networks.
    pub fn usual() -> Vec<Self> {
        USUAL.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Whether the address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let differ = base.to_bits() ^ address.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let differ = base.to_bits() ^ address.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

impl FromStr for Range {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (base, bits) = match text.split_once('/') {
            Some((base, bits)) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                (base, Some(bits.parse().map_err(|_| ())?))
            }
            Some(_) => return Err(()),
            None => (text, None),
        };
        let base: IpAddr = base.parse().map_err(|_| ())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most { Err(()) } else { Ok(Self { base, bits }) }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_what_its_first_bits_say() {
        let cases = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("172.16.0.0/12", "172.31.255.255", true),
            ("172.16.0.0/12", "172.32.0.0", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("0.0.0.0/0", "::1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("fc00::/7", "fd12::1", true),
            ("fc00::/7", "fe80::1", false),
        ];
        for (range, address, wanted) in cases {
            let range: Range = range.parse().unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), wanted, "{range} {address}");
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for bad in ["", "10", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/+8", "h/8", "/8"]
        {
            assert!(bad.parse::<Range>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_usual_ones_are_this_machine_and_private_networks() {
        let usual = Range::usual();
        assert_eq!(usual.len(), USUAL.len());
        let allows = |address: &str| usual.iter().any(|range| range.contains(address.parse().unwrap()));
        assert!(["127.0.0.1", "::1", "10.9.9.9", "192.168.1.1", "172.20.0.1"].into_iter().all(allows));
        assert!(!["8.8.8.8", "2001:db8::1", "172.15.0.1", "0.0.0.0"].into_iter().any(allows));
    }
}
