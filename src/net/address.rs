//! Classification of IP addresses: public, private, never allowed.
//!
//! Called by `url` (literals) and `resolve` (DNS answers). The tables follow IANA's IPv4 and IPv6
//! Special-Purpose Address Registries (RFC 6890 and its updates). If a registry marks part of a block as
//! reachable (anycast of PCP, AS112), the whole block is still refused: no service is reached there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Class of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Reachable from the internet.
    Public,
    /// On this host or its networks; an operator may allow it.
    Private,
    /// Never allowed: metadata services, link-local, multicast, reserved, and every form that embeds another
    /// address.
    Never,
}

/// Classifies an address.
pub(super) fn reach(ip: IpAddr) -> Reach {
    match ip {
        IpAddr::V4(ip) => reach_v4(ip),
        IpAddr::V6(ip) => reach_v6(ip),
    }
}

type BlockV4 = (Ipv4Addr, u32);
type BlockV6 = (Ipv6Addr, u32);

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u32) -> BlockV4 {
    (Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(a: u16, b: u16, c: u16, bits: u32) -> BlockV6 {
    (Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), bits)
}

/// Checked first: refused even where private addresses are allowed.
const NEVER_V4: [BlockV4; 15] = [
    v4(0, 0, 0, 0, 8),          // this network (RFC 791)
    v4(100, 100, 100, 200, 32), // metadata service of Alibaba Cloud
    v4(168, 63, 129, 16, 32),   // platform service of Azure, inside a public block
    v4(169, 254, 0, 0, 16),     // link local (RFC 3927), metadata services of most clouds
    v4(192, 0, 0, 0, 24),       // protocol assignments (RFC 6890), Oracle's metadata service
    v4(192, 0, 2, 0, 24),       // documentation (RFC 5737)
    v4(192, 88, 99, 0, 24),     // 6to4 relays (RFC 7526)
    v4(198, 18, 0, 0, 15),      // benchmarks (RFC 2544)
    v4(198, 51, 100, 0, 24),    // documentation (RFC 5737)
    v4(203, 0, 113, 0, 24),     // documentation (RFC 5737)
    v4(192, 31, 196, 0, 24),    // AS112 (RFC 7535)
    v4(192, 52, 193, 0, 24),    // AMT relays (RFC 7450)
    v4(192, 175, 48, 0, 24),    // AS112 (RFC 7534)
    v4(224, 0, 0, 0, 4),        // multicast (RFC 1112)
    v4(240, 0, 0, 0, 4),        // reserved and broadcast (RFC 1112, RFC 8190)
];

const PRIVATE_V4: [BlockV4; 5] = [
    v4(10, 0, 0, 0, 8),     // RFC 1918
    v4(100, 64, 0, 0, 10),  // shared by carriers and overlay networks (RFC 6598)
    v4(127, 0, 0, 0, 8),    // loopback (RFC 1122)
    v4(172, 16, 0, 0, 12),  // RFC 1918
    v4(192, 168, 0, 0, 16), // RFC 1918
];

/// Checked first, as [`NEVER_V4`]. All but the first two are in 2000::/3; addresses outside of it are refused
/// without a table.
const NEVER_V6: [BlockV6; 7] = [
    v6(0xfd00, 0x0ec2, 0, 32),      // metadata service of AWS, inside a private block
    v6(0xfd20, 0x00ce, 0, 32),      // metadata service of Google Cloud, likewise
    v6(0x2001, 0, 0, 23),           // protocol assignments (RFC 2928): Teredo, ORCHID, ...
    v6(0x2001, 0x0db8, 0, 32),      // documentation (RFC 3849)
    v6(0x2002, 0, 0, 16),           // 6to4 (RFC 3056): an IPv4 address inside
    v6(0x2620, 0x004f, 0x8000, 48), // AS112 (RFC 7534)
    v6(0x3fff, 0, 0, 20),           // documentation (RFC 9637)
];

const PRIVATE_V6: [BlockV6; 2] = [
    (Ipv6Addr::LOCALHOST, 128), // RFC 4291
    v6(0xfc00, 0, 0, 7),        // unique local (RFC 4193)
];

/// The only block that IANA has assigned for global unicast (RFC 4291).
///
/// Outside of it are the unspecified address, IPv4-mapped and -compatible ones (::ffff:0:0/96, ::/96), both
/// NAT64 prefixes (64:ff9b::/96, 64:ff9b:1::/48), discard-only 100::/64, segment routing 5f00::/16,
/// link-local fe80::/10, site-local fec0::/10 and multicast ff00::/8.
const UNICAST_V6: BlockV6 = v6(0x2000, 0, 0, 3);

fn reach_v4(ip: Ipv4Addr) -> Reach {
    let within = |blocks: &[BlockV4]| blocks.iter().any(|block| holds_v4(*block, ip));
    if within(&NEVER_V4) {
        Reach::Never
    } else if within(&PRIVATE_V4) {
        Reach::Private
    } else {
        Reach::Public
    }
}

fn reach_v6(ip: Ipv6Addr) -> Reach {
    let within = |blocks: &[BlockV6]| blocks.iter().any(|block| holds_v6(*block, ip));
    if within(&NEVER_V6) || is_isatap(ip) {
        Reach::Never
    } else if within(&PRIVATE_V6) {
        Reach::Private
    } else if holds_v6(UNICAST_V6, ip) {
        Reach::Public
    } else {
        Reach::Never
    }
}

fn holds_v4((network, bits): BlockV4, ip: Ipv4Addr) -> bool {
    (network.to_bits() ^ ip.to_bits()).leading_zeros() >= bits
}

fn holds_v6((network, bits): BlockV6, ip: Ipv6Addr) -> bool {
    (network.to_bits() ^ ip.to_bits()).leading_zeros() >= bits
}

/// Whether the interface identifier embeds an IPv4 address (ISATAP, RFC 5214, section 6.1).
fn is_isatap(ip: Ipv6Addr) -> bool {
    let [_, _, _, _, high, low, _, _] = ip.segments();
    matches!(high, 0 | 0x0200) && low == 0x5efe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach_of(text: &str) -> Reach {
        reach(text.parse().expect("an address"))
    }

    #[test]
    fn the_first_and_last_address_of_each_private_block_is_private() {
        let addresses = "
            10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 127.0.0.0 127.255.255.255
            172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255 ::1 fc00::
            fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
        ";
        for ip in addresses.split_whitespace() {
            assert_eq!(reach_of(ip), Reach::Private, "{ip}");
        }
    }

    #[test]
    fn special_addresses_are_never_reached() {
        let addresses = "
            0.0.0.0 0.255.255.255 100.100.100.200 168.63.129.16 169.254.0.0
            169.254.169.254 169.254.255.255 192.0.0.0 192.0.0.192 192.0.2.1 192.88.99.1
            198.18.0.0 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255
            240.0.0.0 255.255.255.255 :: ::ffff:8.8.8.8 ::ffff:127.0.0.1 ::8.8.8.8
            ::127.0.0.1 64:ff9b::8.8.8.8 64:ff9b::7f00:1 64:ff9b:1::a00:1 100::1 2001::1
            2001:10::1 2001:20::1 2001:1ff::1 2001:db8::1 2002:7f00:1:: 2002:808:808::1
            3fff::1 3fff:fff::1 4000::1 5f00::1 fd00:ec2::254 fd20:ce::254 fe80::1 febf::1
            fec0::1 ff02::1 2606:4700::5efe:7f00:1 2606:4700::200:5efe:7f00:1
            ::ffff:0:127.0.0.1
        ";
        for ip in addresses.split_whitespace() {
            assert_eq!(reach_of(ip), Reach::Never, "{ip}");
        }
    }

    #[test]
    fn the_neighbours_of_special_blocks_are_public() {
        let addresses = "
            1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255
            128.0.0.0 168.63.129.15 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0
            192.0.1.0 192.0.3.0 192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0
            198.17.255.255 198.20.0.0 198.51.99.255 203.0.114.0 223.255.255.255 2000::1
            2001:200::1 2001:db7:ffff::1 2001:db9::1 2003::1 2606:4700::1 3ffe::1
            3fff:1000::1
        ";
        for ip in addresses.split_whitespace() {
            assert_eq!(reach_of(ip), Reach::Public, "{ip}");
        }
    }
}
