//! What a connection copies to hand messages out, counted by the kernel. The tests are those of
//! the protocols.

use std::io::Write;
use std::os::unix::net::UnixStream;

use vmlan_keeper::Keeper;

use super::*;

/// What was handed out before it had to be answered.
pub struct Turn {
    pub bodies: Vec<Vec<u8>>,
    /// Bytes that were peeked at for it, from the first that is not taken yet.
    pub peeked: usize,
}

/// Bytes that were peeked at in all these turns.
pub fn peeked(turns: &[Turn]) -> usize {
    turns.iter().map(|turn| turn.peeked).sum()
}

/// All turns of a connection with a journal, in whose socket `sent` waits.
pub fn turns<F: Framing>(sent: &[u8]) -> Vec<Turn> {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    peer.set_nonblocking(true).unwrap();
    peer.write_all(sent).unwrap();
    let kept = Keeper::new(None).unwrap().hold(ours.into()).unwrap();
    let mut connection = Connection::<F>::new(kept, Some(Journal::new().unwrap()));
    let (now, waker) = (Instant::now(), Waker::new().unwrap());
    let (mut takes, mut turns) = (Takes::new(now), Vec::new());
    loop {
        let mut bodies = Vec::new();
        while let Some(message) = connection.read(now, &mut takes).unwrap() {
            bodies.push(message.body.to_vec());
        }
        if bodies.is_empty() {
            assert_eq!(connection.waiting().unwrap(), 0, "bytes that are no message");
            return turns;
        }
        // The next peek would begin where the last one ended.
        turns.push(Turn { bodies, peeked: peek_offset(connection.fd()).unwrap() });
        connection.finish(&[], None, &waker).unwrap();
    }
}
