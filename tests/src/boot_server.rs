//! A host that firmware boots from: ARP (RFC 826), DHCP (RFC 2131) and TFTP (RFC 1350, with the
//! block size of RFC 2348), for one client, over a guest's NIC. It answers what it hears and
//! remembers nothing but the file that was asked for and the size of a block, so that a frame that
//! comes twice is answered twice.

use std::sync::atomic::{AtomicBool, Ordering};

use vmlan_driver::virtio::queues::NetHeader;

use crate::virtio_guest::VirtioGuest;

/// Its own address.
pub const SERVER: [u8; 4] = [10, 77, 0, 1];
/// What it gives to the client.
pub const CLIENT: [u8; 4] = [10, 77, 0, 50];

const BOOTPS: u16 = 67;
const BOOTPC: u16 = 68;
const TFTP: u16 = 69;
/// Where its data comes from.
const TRANSFER: u16 = 2069;
/// Of a DHCP message, up to its options.
const DHCP_FIXED: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];

/// One that has some files by name. DHCP names the first.
#[derive(Debug)]
pub struct BootServer {
    mac: [u8; 6],
    files: Vec<(&'static str, Vec<u8>)>,
    /// Which of them is being sent.
    current: usize,
    block: usize,
}

/// Where an answer goes, and from which UDP port to which.
struct Route {
    mac: [u8; 6],
    ip: [u8; 4],
    ports: [u16; 2],
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl BootServer {
    /// With this MAC address.
    pub fn new(mac: [u8; 6], files: Vec<(&'static str, Vec<u8>)>) -> Self {
        Self { mac, files, current: 0, block: 512 }
    }

    /// Answers on `guest`'s NIC until `stop`.
    pub fn serve(mut self, guest: &mut VirtioGuest, stop: &AtomicBool) {
        let mut answers = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let heard = guest.receive(|_, bytes| answers.extend(self.answer(bytes)));
            answers.retain(|bytes| !guest.send(0, NetHeader::default(), bytes));
            guest.flush();
            if heard == 0 {
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        }
    }

    /// What it says to a frame.
    fn answer(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        match word(frame, 12)? {
            0x0806 => self.arp(frame),
            0x0800 if frame.get(23) == Some(&17) => {
                let (from, source) = (array(frame, 6)?, array(frame, 26)?);
                let udp = 14 + usize::from(frame.get(14)? & 15) * 4;
                let port = word(frame, udp)?;
                let load = frame.get(udp + 8..)?;
                match word(frame, udp + 2)? {
                    BOOTPS => self.dhcp(load),
                    TFTP | TRANSFER => {
                        let load = self.tftp(load)?;
                        let ports = [TRANSFER, port];
                        Some(self.datagram(&Route { mac: from, ip: source, ports }, &load))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn arp(&self, frame: &[u8]) -> Option<Vec<u8>> {
        if word(frame, 20)? != 1 || array(frame, 38)? != SERVER {
            return None;
        }
        let asks = frame.get(22..32)?;
        let head: [&[u8]; 4] = [&asks[..6], &self.mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &self.mac];
        Some([head.concat(), SERVER.to_vec(), asks.to_vec(), vec![0; 18]].concat())
    }

    fn dhcp(&self, asked: &[u8]) -> Option<Vec<u8>> {
        let mut options = asked.get(DHCP_FIXED..)?;
        let kind = loop {
            match *options {
                [53, 1, kind, ..] => break kind,
                [0, ..] => options = &options[1..],
                [_, len, ..] => options = options.get(2 + usize::from(len)..)?,
                _ => return None,
            }
        };
        // DISCOVER is offered, REQUEST acknowledged.
        let answer = if kind == 1 { 2 } else { 5 };
        let mut load = asked[..DHCP_FIXED].to_vec();
        load[0] = 2;
        load[16..20].copy_from_slice(&CLIENT);
        load[20..24].copy_from_slice(&SERVER);
        load[44..236].fill(0);
        let name = self.files.first()?.0.as_bytes();
        load[108..108 + name.len()].copy_from_slice(name);
        load[236..240].copy_from_slice(&MAGIC);
        let [a, b, c, d] = SERVER;
        load.extend([53, 1, answer, 54, 4, a, b, c, d, 1, 4, 255, 255, 255, 0]);
        load.extend([51, 4, 0, 1, 0, 0, 255]);
        load.resize(300, 0);
        // To the client alone: U-Boot has one buffer at a time, and a switch waits for room only at
        // the receiver of a frame that is for nobody else.
        let route = Route { mac: array(asked, 28)?, ip: CLIENT, ports: [BOOTPS, BOOTPC] };
        Some(self.datagram(&route, &load))
    }

    fn tftp(&mut self, asked: &[u8]) -> Option<Vec<u8>> {
        let block = match word(asked, 0)? {
            // RRQ: name, mode, options and their values, each ended by 0.
            1 => {
                let texts: Vec<_> = asked.get(2..)?.split(|byte| *byte == 0).collect();
                // Some put a slash before the name.
                let is_wanted = |name: &str| texts[0].ends_with(name.as_bytes());
                self.current = self.files.iter().position(|(name, _)| is_wanted(name))?;
                let size = texts.windows(2).find(|pair| pair[0] == b"blksize");
                let size = size.and_then(|pair| str::from_utf8(pair[1]).ok()?.parse().ok());
                self.block = size.unwrap_or(512);
                if size.is_some() {
                    return Some(format!("\0\x06blksize\0{}\0", self.block).into_bytes());
                }
                0
            }
            // ACK.
            4 => word(asked, 2)?,
            _ => return None,
        };
        let from = usize::from(block) * self.block;
        // The last block is shorter than the others, and may be empty.
        let data = self.files.get(self.current)?.1.get(from..)?;
        let data = &data[..data.len().min(self.block)];
        Some([&[0, 3], &(block + 1).to_be_bytes(), data].concat())
    }

    fn datagram(&self, to: &Route, load: &[u8]) -> Vec<u8> {
        let len = |more: usize| u16::try_from(load.len() + more).expect("a datagram").to_be_bytes();
        let mut ip =
            [&[0x45, 0][..], &len(28), &[0, 0, 0, 0, 64, 17, 0, 0], &SERVER, &to.ip].concat();
        let words = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum: u32 = words.sum();
        let sum = !(sum + (sum >> 16)) & 0xffff;
        ip[10..12].copy_from_slice(&u16::try_from(sum).expect("16 bits").to_be_bytes());
        let [from, port] = to.ports.map(u16::to_be_bytes);
        // Without a UDP checksum.
        [&to.mac[..], &self.mac, &[8, 0], &ip, &from, &port, &len(8), &[0, 0], load].concat()
    }
}
