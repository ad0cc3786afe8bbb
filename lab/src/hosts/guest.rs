//! Guests of the two hosts: threads that drive a NIC of their own with our driver, and a handful of
//! frames.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use vmlan_frame::{Checksum, error_chain};
use vmlan_tools::netmap::{Interest, Port};

use crate::failure::Failure;

/// UDP of these frames: the port on both sides.
const PORT: u16 = 7007;
/// Bytes before the payload: Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;
/// How often a guest that talks does.
const WORD: Duration = Duration::from_millis(10);
/// Longest wait for a frame before a thread looks whether it is to end.
const NAP: Duration = Duration::from_millis(2);

/// Who a guest is: 52:54:00:00:00:N and 10.0.0.N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Station(pub(super) u8);

impl Station {
    fn mac(self) -> [u8; 6] {
        [0x52, 0x54, 0, 0, 0, self.0]
    }

    fn ip(self) -> [u8; 4] {
        [10, 0, 0, self.0]
    }

    fn ethernet(self, to: [u8; 6], ethertype: u16) -> Vec<u8> {
        [&to[..], &self.mac(), &ethertype.to_be_bytes()].concat()
    }

    /// A datagram with `number` in `payload` bytes (4 at least), not to be fragmented.
    pub(super) fn datagram(self, to: Self, number: u32, payload: u16) -> Vec<u8> {
        let mut frame = self.ethernet(to.mac(), 0x0800);
        let ip_len = (payload + 28).to_be_bytes();
        let mut ip = vec![0x45, 0, ip_len[0], ip_len[1], 0, 0, 0x40, 0, 64, 17, 0, 0];
        ip.extend([self.ip(), to.ip()].concat());
        let mut sum = Checksum::default();
        sum.add(&ip);
        ip[10..12].copy_from_slice(&sum.finish().to_be_bytes());
        frame.extend(ip);
        // Without a checksum, as UDP over IPv4 may be.
        for word in [PORT, PORT, payload + 8, 0] {
            frame.extend(word.to_be_bytes());
        }
        frame.extend(number.to_be_bytes());
        frame.resize(HEADERS + usize::from(payload), 0);
        frame
    }

    /// The number in a datagram that is for this station.
    pub(super) fn number(self, frame: &[u8]) -> Option<u32> {
        let is = frame.get(12..14)? == [8, 0] && frame.get(23)? == &17;
        let ours = frame.get(..6)? == self.mac() && frame.get(30..34)? == self.ip();
        let number = frame.get(HEADERS..HEADERS + 4)?.try_into().ok()?;
        (is && ours).then(|| u32::from_be_bytes(number))
    }

    /// Asks all who has an address.
    pub(super) fn asks(self, ip: Self) -> Vec<u8> {
        self.arp([0xff; 6], 1, [0; 6], ip.ip())
    }

    fn arp(self, to: [u8; 6], operation: u8, mac: [u8; 6], ip: [u8; 4]) -> Vec<u8> {
        let mut frame = self.ethernet(to, 0x0806);
        frame.extend([0, 1, 8, 0, 6, 4, 0, operation]);
        frame.extend([&self.mac()[..], &self.ip(), &mac, &ip].concat());
        frame.resize(60, 0);
        frame
    }

    /// The answer to a question for this station's address.
    fn tells(self, frame: &[u8]) -> Option<Vec<u8>> {
        let asks = frame.get(12..22)? == [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
        let from = frame.get(22..28)?.try_into().ok()?;
        let ip = frame.get(28..32)?.try_into().ok()?;
        let ours = frame.get(38..42)? == self.ip();
        (asks && ours).then(|| self.arp(from, 2, from, ip))
    }
}

/// True for an answer to a question of this kind that names `ip`.
pub(super) fn is_told(frame: &[u8], ip: Station) -> bool {
    frame.get(12..14) == Some(&[8, 6])
        && frame.get(20..22) == Some(&[0, 2])
        && frame.get(22..32) == Some(&[&ip.mac()[..], &ip.ip()].concat())
}

/// The MTU that an ICMP "fragmentation needed" (RFC 1191) names.
pub(super) fn too_big(frame: &[u8]) -> Option<u16> {
    let is = frame.get(12..14)? == [8, 0] && frame.get(23)? == &1;
    let mtu = frame.get(40..42)?.try_into().ok()?;
    (is && frame.get(34..36)? == [3, 4]).then(|| u16::from_be_bytes(mtu))
}

/// A guest's NIC.
pub(super) struct Guest {
    nic: Port,
}

impl Guest {
    /// Plugs in; its driver is ready then.
    pub(super) fn open(socket: &Path) -> Result<Self, Failure> {
        let address = format!("vhost-user:{}", socket.display());
        Ok(Self { nic: Port::open(&address).map_err(|e| Failure::Failed(error_chain(&e)))? })
    }

    /// Sends a frame, or drops it for want of room.
    pub(super) fn send(&mut self, frame: &[u8]) -> Result<(), Failure> {
        // A full ring is a network that loses a frame, which all here can bear.
        let _ = self.nic.tx(0).push(frame);
        self.nic.txsync().map_err(|e| Failure::Failed(e.to_string()))
    }

    /// The next frame, if one comes within `wait`.
    pub(super) fn receive(&mut self, wait: Duration) -> Result<Option<Vec<u8>>, Failure> {
        let want = Interest { rx: true, tx: false };
        self.nic.poll(want, wait).map_err(|e| Failure::Failed(e.to_string()))?;
        Ok(self.nic.rx(0).pop().map(|frame| frame.to_vec()))
    }
}

/// A guest that answers, in a thread of its own.
pub(super) struct Echo {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
    ready: Receiver<Instant>,
}

impl Echo {
    /// `own` at this socket: it answers datagrams and questions for its address. With `talks_to` it
    /// talks as well, from its first moment on: it asks all for that address.
    pub(super) fn start(socket: &Path, own: Station, talks_to: Option<Station>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (sender, ready) = channel();
        let (socket, stop) = (socket.to_owned(), over.clone());
        let thread = spawn(move || {
            let mut guest = Guest::open(&socket)?;
            // Nobody may wait for it.
            let _ = sender.send(Instant::now());
            let mut word = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                if let Some(to) = talks_to.filter(|_| Instant::now() >= word) {
                    guest.send(&own.asks(to))?;
                    word += WORD;
                }
                let Some(mut frame) = guest.receive(NAP)? else { continue };
                if let Some(answer) = own.tells(&frame) {
                    guest.send(&answer)?;
                } else if own.number(&frame).is_some() {
                    back(&mut frame);
                    guest.send(&frame)?;
                }
            }
            Ok(())
        });
        Self { over, thread: Some(thread), ready }
    }

    /// When its driver was ready.
    pub(super) fn ready(&mut self) -> Result<Instant, Failure> {
        match self.ready.recv() {
            Ok(ready) => Ok(ready),
            Err(_) => Err(self.end().err().unwrap_or_else(|| Failure::Failed("no guest".into()))),
        }
    }

    /// Ends it, as a VM ends.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.unwrap_or(Ok(Ok(()))).unwrap_or_else(|_| Err(Failure::Failed("a guest".into())))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Turns a datagram round. Sums stay as they are.
fn back(frame: &mut [u8]) {
    let (to, from) = frame[..12].split_at_mut(6);
    to.swap_with_slice(from);
    let (from, to) = frame[26..34].split_at_mut(4);
    from.swap_with_slice(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_what_they_are_taken_for() {
        let (a, b) = (Station(1), Station(2));
        let mut frame = a.datagram(b, 7, 1422);
        assert_eq!((frame.len(), b.number(&frame), a.number(&frame)), (1464, Some(7), None));
        back(&mut frame);
        assert_eq!((b.number(&frame), a.number(&frame)), (None, Some(7)));
        let told = b.tells(&a.asks(b)).unwrap();
        assert!(is_told(&told, b) && !is_told(&told, a) && a.tells(&a.asks(b)).is_none());
        assert!(b.tells(&told).is_none() && too_big(&told).is_none() && too_big(&[]).is_none());
    }
}
