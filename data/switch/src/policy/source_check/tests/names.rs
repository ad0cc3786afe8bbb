//! MAC addresses, ARP, RARP, and what is neither ARP nor IP.
use core::net::Ipv4Addr;
use std::sync::atomic::Ordering;

use vmlan_frame::Reason::*;

use super::frames::*;
use super::*;
use crate::fuzz::{MAC, MAC2};
use crate::policy::Macs;

const NOBODY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const CHECKED: [u8; 4] = [LISTED, TWO, IPS, LISTED | IPS];

/// From another Ethernet address, nothing else changed.
fn from(mac: [u8; 6], frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[6..12].copy_from_slice(&mac);
    frame
}

#[test]
fn source_addresses_are_the_listed_ones() {
    for frame in honest() {
        refused(&[LISTED, TWO, LISTED | IPS | DHCP | RA], &from(OTHER, &frame), SpoofedMac);
    }
    let frame = V4::default().frame();
    passes(&[ANY, FIRST, TWO, TWO | IPS], &from(MAC2, &frame));
    refused(&[LISTED], &from(MAC2, &frame), SpoofedMac);
    refused(&[LISTED, TWO, FIRST], &from([0; 6], &frame), SpoofedMac);
    refused(&[LISTED, TWO, FIRST], &from([0xff; 6], &frame), SpoofedMac);
}

#[test]
fn the_first_address_stays_until_it_is_forgotten() {
    let source_check = settings(FIRST);
    let frame = V4::default().frame();
    let check = |frame: &[u8]| source_check.check(frame, frame.len());
    assert_eq!(source_check.peek(&from(OTHER, &frame), frame.len()), Ok(()), "learns nothing");
    assert_eq!(check(&from([1, 0, 0, 0, 0, 1], &frame)), Err(SpoofedMac), "a group is nobody");
    assert_eq!(check(&frame), Ok(()));
    assert_eq!(check(&from(OTHER, &frame)), Err(SpoofedMac));
    assert_eq!(source_check.clone().check(&from(OTHER, &frame), frame.len()), Err(SpoofedMac));
    assert_eq!(check(&frame), Ok(()));
    let Macs::First(first) = &source_check.macs else { unreachable!() };
    first.0.store(0, Ordering::Relaxed);
    assert_eq!(check(&from(OTHER, &frame)), Ok(()));
    assert_eq!(check(&frame), Err(SpoofedMac));
}

#[test]
fn arp_speaks_for_its_own_sender() {
    for operation in [1, 2] {
        passes(&CHECKED, &arp(operation, ME, YOU));
        let other = arp_packet(0x0806, operation, (OTHER, ME), (MAC, YOU));
        refused(&CHECKED, &other, SpoofedArp);
        passes(&[ANY, DHCP, RA], &other);
        let second = arp_packet(0x0806, operation, (MAC2, ME), (MAC, YOU));
        refused(&CHECKED, &second, SpoofedArp);
    }
    // Gratuitous ones.
    passes(&CHECKED, &arp(1, ME, ME));
    passes(&CHECKED, &arp_packet(0x0806, 2, (MAC, ME), ([0xff; 6], ME)));
}

#[test]
fn arp_claims_listed_addresses() {
    for operation in [1, 2] {
        passes(&[LISTED], &arp(operation, YOU, ME));
        refused(&[IPS, LISTED | IPS], &arp(operation, YOU, ME), SpoofedArp);
        refused(&[IPS, LISTED | IPS], &arp(operation, YOU, YOU), SpoofedArp);
        for never in [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
            refused(&[IPS], &arp(operation, never, YOU), SpoofedArp);
        }
        passes(&[IPS], &arp(operation, Ipv4Addr::new(10, 1, 0, 77), YOU));
        refused(&[IPS], &arp(operation, Ipv4Addr::new(10, 1, 1, 77), YOU), SpoofedArp);
    }
    // Probes (RFC 5227) are for what may be claimed, and cannot be answers.
    passes(&CHECKED, &arp(1, NOBODY, ME));
    refused(&[IPS], &arp(1, NOBODY, YOU), SpoofedArp);
    refused(&[IPS], &arp(2, NOBODY, ME), SpoofedArp);
}

#[test]
fn arp_is_whole_and_of_the_kind_that_hosts_use() {
    let good = arp(1, ME, YOU);
    for at in 14..20 {
        let mut odd = good.clone();
        odd[at] ^= 1;
        refused(&CHECKED, &odd, NotParsed);
    }
    for operation in [0, 3, 4, 8, 9, 256, 0x0100] {
        refused(&CHECKED, &arp(operation, ME, YOU), NotParsed);
    }
    (14..42).for_each(|len| refused(&CHECKED, &good[..len], NotParsed));
    passes(&CHECKED, &good[..42]);
    // A second sender behind the packet is padding.
    passes(&CHECKED, &[&good[..42], &good[22..]].concat());
}

#[test]
fn arp_in_tags() {
    for types in [&[0x8100][..], &[0x88a8]] {
        passes(&CHECKED, &tagged(&arp(1, ME, YOU), types));
        refused(&[IPS], &tagged(&arp(1, YOU, ME), types), SpoofedArp);
        refused(
            &CHECKED,
            &tagged(&arp_packet(0x0806, 2, (OTHER, ME), (MAC, YOU)), types),
            SpoofedArp,
        );
    }
    // `macs` follows two tags, and refuses what could be ARP behind more.
    passes(&[LISTED], &tagged(&arp(1, ME, YOU), &[0x88a8, 0x8100]));
    let spoofed = arp_packet(0x0806, 2, (OTHER, ME), (MAC, YOU));
    refused(&[LISTED], &tagged(&spoofed, &[0x88a8, 0x8100]), SpoofedArp);
    refused(&[LISTED], &tagged(&spoofed, &[0x8100, 0x8100, 0x8100]), NotParsed);
    refused(&[LISTED], &tagged(&spoofed, &[0x9100]), NotParsed);
}

#[test]
fn rarp_announces_the_sender_itself() {
    let announce = |sender, target| arp_packet(0x8035, 3, sender, target);
    passes(&CHECKED, &announce((MAC, NOBODY), (MAC, NOBODY)));
    passes(&CHECKED, &announce((MAC, ME), (MAC, ME)));
    refused(&CHECKED, &announce((OTHER, NOBODY), (MAC, NOBODY)), SpoofedArp);
    refused(&CHECKED, &announce((MAC, NOBODY), (OTHER, NOBODY)), SpoofedArp);
    refused(&[IPS], &announce((MAC, YOU), (MAC, NOBODY)), SpoofedArp);
    refused(&[IPS], &announce((MAC, NOBODY), (MAC, YOU)), SpoofedArp);
    refused(&CHECKED, &arp_packet(0x8035, 1, (MAC, ME), (MAC, ME)), NotParsed);
}

#[test]
fn nothing_else_passes_where_addresses_are_listed() {
    let ip = &V4::default().frame()[14..];
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], ip].concat();
    for (ethertype, packet) in [
        (0x8847, ip),           // MPLS
        (0x8864, ip),           // PPPoE
        (0x88cc, &[0; 46][..]), // LLDP
        (0x88e5, ip),           // MACsec
        (0x22ea, ip),
        (0, &[][..]),
        (snap.len() as u16, &snap),
        (0x26, &[0x42, 0x42, 3, 0, 0][..]), // spanning tree
    ] {
        let frame = ethernet(MAC, ethertype, packet);
        refused(&[IPS, IPS | LISTED], &frame, NotParsed);
        refused(&[IPS], &tagged(&frame, &[0x8100]), NotParsed);
        passes(&[ANY], &frame);
    }
    passes(&[LISTED, DHCP | RA], &ethernet(MAC, 0x88cc, &[0; 46]));
    passes(&[LISTED, DHCP | RA], &ethernet(MAC, 0x26, &[0x42, 0x42, 3, 0, 0]));
}

/// CVE-2021-27853, -27854, -27861, -27862: guards passed by what some receivers unwrap.
#[test]
fn guards_are_not_passed_by_wrapping() {
    for packet in [dhcp_discover().frame(), dad(YOU6).frame(), arp(2, YOU, ME)] {
        let kind = [packet[12], packet[13]];
        let snap = [&[0xaa, 0xaa, 3, 0, 0, 0][..], &kind, &packet[14..]].concat();
        for length in [snap.len() as u16, 0, 8, 0x5ff] {
            let frame = ethernet(MAC, length, &snap);
            refused(&[LISTED, DHCP, RA, IPS], &frame, NotParsed);
            refused(&[LISTED, DHCP, RA, IPS], &tagged(&frame, &[0x8100]), NotParsed);
            refused(&[LISTED, DHCP, RA, IPS], &tagged(&frame, &[0x8100, 0x8100]), NotParsed);
        }
        refused(&[LISTED, DHCP, RA, IPS], &tagged(&packet, &[0x8100; 3]), NotParsed);
    }
}
