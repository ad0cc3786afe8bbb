//! Keepers of a switch that has died, which are all asked before any is waited for.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime};

use rustix::net::SendFlags;

use crate::line;
use crate::packet::{Head, MARKS, Request};

/// How long all of them together may take. The VMs of others wait meanwhile.
const CATCH_UP: Duration = Duration::from_millis(300);

/// How long one may take whose turn comes after that.
const LAST: Duration = Duration::from_millis(20);

/// What keepers were asked, and how long they may take to answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    mark: u32,
    until: Instant,
}

impl Asked {
    /// Asks all keepers of which a switch that has died had these ends. They have done what they
    /// were asked before when they answer, for which [`Keeper::adopt`](crate::Keeper::adopt) waits.
    pub fn all<'l>(lines: impl IntoIterator<Item = BorrowedFd<'l>>) -> Self {
        let mark = new_mark();
        for line in lines {
            // One that was killed is noticed by whoever waits for it.
            let _ = line::send(line, &Request::Mark(mark).encode(), &[], SendFlags::DONTWAIT);
        }
        Self { mark, until: Instant::now() + CATCH_UP }
    }

    /// When one is not waited for any longer whose turn is at `now`.
    pub fn deadline(self, now: Instant) -> Instant {
        self.until.max(now + LAST)
    }

    /// True if a reply is the answer. Those to others who have asked, and have not read it, come
    /// before.
    pub fn is_answer(self, reply: &[u8]) -> bool {
        Head::decode(reply).is_some_and(|(head, _)| head.bytes == self.mark)
    }
}

/// A mark that nobody has used before. In a container all switches may have the same process id.
fn new_mark() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let [a, b, c, d, ..] = now.as_nanos().to_le_bytes();
    MARKS | u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::io::Errno;
    use rustix::net::RecvFlags;

    use super::*;
    use crate::Keeper;
    use crate::line::Fds;
    use crate::packet::{HEAD, REQUEST, SLOTS};

    /// What a keeper is asked next.
    fn request(line: &OwnedFd) -> Result<Request, Errno> {
        let mut bytes = [0; REQUEST];
        let got = line::recv(line.as_fd(), &mut bytes, &mut Fds::new(), RecvFlags::DONTWAIT)?;
        assert_eq!(got.bytes, REQUEST);
        Ok(Request::decode(&bytes).unwrap())
    }

    fn say(line: &OwnedFd, head: Head) {
        line::send(line.as_fd(), &head.encode(), &[], SendFlags::DONTWAIT).unwrap();
    }

    /// What switches before have asked and not read is not taken for an answer to this one.
    #[test]
    fn keepers_are_asked_together_and_once() {
        let lines: Vec<_> = (0..3).map(|_| line::pair().unwrap()).collect();
        let ask = || Asked::all(lines.iter().map(|(ours, _)| ours.as_fd()));
        let [_, asked] = [ask(), ask()];
        for (_, theirs) in &lines {
            say(theirs, Head::default());
            let marks = [request(theirs), request(theirs)].map(|asked| match asked {
                Ok(Request::Mark(mark)) => mark,
                other => panic!("{other:?}"),
            });
            assert_ne!(marks[0], marks[1]);
            marks.iter().for_each(|mark| say(theirs, Head { bytes: *mark, ..Head::default() }));
            assert_eq!(request(theirs), Err(Errno::AGAIN));
        }
        for (ours, theirs) in lines {
            let (keeper, kept) = Keeper::adopt(ours, None, None, asked).unwrap();
            assert!(kept.is_none());
            // Nothing is left to be read, and nothing else was asked.
            let left = keeper.line().unwrap();
            let none =
                line::recv(left.as_fd(), &mut [0; HEAD], &mut Fds::new(), RecvFlags::DONTWAIT);
            assert_eq!(none, Err(Errno::AGAIN));
            let all = (0..).take(SLOTS).map(Request::LetGo);
            all.for_each(|let_go| assert_eq!(request(&theirs), Ok(let_go)));
            assert_eq!(request(&theirs), Err(Errno::AGAIN));
        }
    }

    /// However many hang: each gets what is left of one time, and then a moment.
    #[test]
    fn all_are_waited_for_together() {
        let asked = Asked::all([]);
        let mut now = asked.until - CATCH_UP;
        for _ in 0..20 {
            now = asked.deadline(now);
        }
        assert_eq!(now, asked.until + 19 * LAST);
    }
}
