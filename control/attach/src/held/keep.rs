//! Keeping a port for the next switch, and finding it again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmlan_frame::error_chain;
use vmlan_keeper::hold::{Held, Hold, HoldError};
use vmlan_keeper::{Asked, Keeper, Kept};

use super::record::{Client, Interrupt, Record, RecordError, Region, Setup, line};
use crate::AttachError;
use crate::socket::{self, LostSocket, SocketFile};

/// Deaths in a row after which a client is not gone on with: what it sends may be their reason.
const MAX_DEATHS: u32 = 4;

/// Who holds this port's things, under what name.
#[derive(Debug)]
pub struct Keeping {
    hold: Arc<dyn Hold>,
    name: String,
    /// What NIC it is.
    nic: String,
    /// Of the socket's file.
    file: (u64, u64),
    silent: Arc<Mutex<bool>>,
}

/// Silences a port's thread that is left behind: what it says later would be of the next port with
/// that name.
#[derive(Debug)]
pub struct Silencer {
    hold: Arc<dyn Hold>,
    name: String,
    silent: Arc<Mutex<bool>>,
}

impl Silencer {
    /// From now on nothing that the thread says reaches the holder, and nothing is held of its
    /// port.
    pub fn silence(&self) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut silent, true) {
            let _ = self.hold.forget(&self.name);
        }
    }
}

/// Why what was held is of no use.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum LostClient {
    #[error("what was held of it is of no use")]
    Record(#[from] RecordError),
    #[error("its NIC was {was}, and is to be {wanted} now")]
    OtherNic { was: String, wanted: String },
    #[error(transparent)]
    Socket(#[from] LostSocket),
}

/// A client whose switch has died.
pub struct FoundClient {
    pub sock: Kept,
    pub client: Client<OwnedFd>,
    pub regions: Vec<Region<OwnedFd>>,
    pub interrupts: Vec<Interrupt<OwnedFd>>,
    pub chip: Vec<u8>,
    pub state: Option<OwnedFd>,
    pub setup: Vec<Setup<OwnedFd>>,
}

/// A port whose switch has died.
pub struct FoundPort {
    pub keeper: Keeper,
    /// `None`: its VMM listens.
    pub file: Option<SocketFile>,
    pub client: Option<FoundClient>,
}

/// Asks the keepers of all ports among `held` whether they have done what the last switch has asked
/// them: before any port is adopted, for which its keeper is waited for.
pub fn ask_keepers<'h>(held: impl IntoIterator<Item = &'h Held>) -> Asked {
    Asked::all(held.into_iter().filter_map(line))
}

/// What was `held` of the port at `path`, if it is as it was. Its keeper was `asked`.
///
/// # Errors
/// [`LostClient`].
pub fn find(held: &Held, asked: Asked, path: &Path, nic: &str) -> Result<FoundPort, LostClient> {
    let record = Record::decode(held)?;
    if record.nic != nic {
        return Err(LostClient::OtherNic { was: record.nic, wanted: nic.to_owned() });
    }
    let Record { file, listener, line, client, regions, interrupts, chip, state, setup, .. } =
        record;
    let sock = client.as_ref().map(|c| Ok((c.slot, c.socket.try_clone()?)));
    let sock = sock.transpose().map_err(LostSocket::Io)?;
    let (keeper, file, sock) = socket::adopt((path, file), line, listener, sock, asked)?;
    let client = sock.zip(client).map(|(sock, client)| FoundClient {
        sock,
        client,
        regions,
        interrupts,
        chip,
        state,
        setup,
    });
    Ok(FoundPort { keeper, file, client })
}

impl Client<OwnedFd> {
    /// Switches have died that went on with its chip as it was: that may be why.
    pub fn has_killed(&self) -> bool {
        self.deaths >= MAX_DEATHS / 2
    }

    /// True if switches have died again and again that went on with it.
    pub fn is_deadly(&self) -> bool {
        self.deaths >= MAX_DEATHS
    }
}

impl Keeping {
    /// `hold` has things of the port that log lines call `name`. `file` is its socket's; `None`:
    /// its VMM listens.
    pub fn new(hold: Arc<dyn Hold>, name: String, nic: String, file: Option<&SocketFile>) -> Self {
        let file = file.map(SocketFile::id).unwrap_or_default();
        Self { hold, name, nic, file, silent: Arc::default() }
    }

    /// For the port's owner, who may have to leave behind the thread that has this.
    pub fn silencer(&self) -> Silencer {
        let (hold, silent) = (Arc::clone(&self.hold), Arc::clone(&self.silent));
        Silencer { hold, name: self.name.clone(), silent }
    }

    /// May say something, as long as this is there.
    fn say(&self) -> Option<MutexGuard<'_, bool>> {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        Some(silent).filter(|silent| !**silent)
    }

    /// The record of the port while nobody is connected. `line` is its keeper's.
    ///
    /// # Errors
    /// Why there is none: one line.
    pub fn record<'f>(
        &self,
        keeper: &'f Keeper,
        line: Option<&'f Arc<OwnedFd>>,
    ) -> Result<Record<BorrowedFd<'f>>, String> {
        let line = line.ok_or("its keeper was killed")?;
        Ok(Record {
            nic: self.nic.clone(),
            file: self.file,
            listener: keeper.listener(),
            line: line.as_fd(),
            client: None,
            regions: Vec::new(),
            interrupts: Vec::new(),
            chip: Vec::new(),
            state: None,
            setup: Vec::new(),
        })
    }

    /// Has the port held as it is.
    ///
    /// # Errors
    /// Why it is not held: one line.
    pub fn put(&self, record: &Record<BorrowedFd<'_>>) -> Result<(), String> {
        let (bytes, fds) = record.encode().ok_or("it has too many descriptors")?;
        let _said = self.say().ok_or("its port was closed")?;
        self.hold.put(&self.name, &fds, &bytes).map_err(|e| error_chain(&e))
    }

    /// Nothing of the port is held any more.
    pub fn forget(&self) -> Result<(), HoldError> {
        let Some(_said) = self.say() else { return Ok(()) };
        self.hold.forget(&self.name)
    }
}

/// A socket to listen at, or a keeper for who connects: that of a switch which has died, if what
/// was `held` of it is of use, with the client that it had. All that is returned are duplicates,
/// and `held` is closed: what the port's thread closes later is closed by nobody here.
pub fn open(
    held: Option<(Held, Asked)>,
    hold: Option<&Arc<dyn Hold>>,
    path: &Path,
    name: &str,
    nic: &str,
    anew: impl FnOnce() -> Result<(Keeper, Option<SocketFile>), AttachError>,
) -> Result<FoundPort, AttachError> {
    if let Some((held, asked)) = held {
        match find(&held, asked, path, nic) {
            Ok(found) => return Ok(found),
            // Nobody else may have the client's socket any more: the holder is to keep it. The next
            // switch may do better.
            Err(LostClient::Socket(LostSocket::Keeper(e))) => {
                return Err(AttachError::Keeper(io::Error::other(e)));
            }
            Err(e) => {
                log::warn!("{name}: does not go on as it was: {}", error_chain(&e));
                hold.iter().for_each(|hold| drop(hold.forget(name)));
                held.let_go();
            }
        }
    }
    let (keeper, file) = anew()?;
    Ok(FoundPort { keeper, file, client: None })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::eventfd;

    /// Names that are held.
    #[derive(Debug, Default)]
    struct Names(Mutex<Vec<String>>);

    impl Hold for Names {
        fn put(&self, name: &str, _: &[BorrowedFd<'_>], _: &[u8]) -> Result<(), HoldError> {
            self.0.lock().unwrap().push(name.to_owned());
            Ok(())
        }

        fn forget(&self, name: &str) -> Result<(), HoldError> {
            self.0.lock().unwrap().retain(|held| held != name);
            Ok(())
        }

        fn all(&self) -> Result<Vec<Held>, HoldError> {
            Ok(Vec::new())
        }

        fn end(&self) {}
    }

    /// A thread that was left behind ends when the port's name is another's.
    #[test]
    fn a_thread_that_was_left_behind_says_nothing_of_the_next_port() {
        let names = Arc::new(Names::default());
        let held = || names.0.lock().unwrap().len();
        let new = || Keeping::new(names.clone(), "port a".into(), String::new(), None);
        let line = eventfd::new().unwrap();
        let record = Record {
            nic: String::new(),
            file: (0, 0),
            listener: None,
            line: line.as_fd(),
            client: None,
            regions: Vec::new(),
            interrupts: Vec::new(),
            chip: Vec::new(),
            state: None,
            setup: Vec::new(),
        };
        let left = new();
        left.put(&record).unwrap();
        left.silencer().silence();
        assert_eq!(held(), 0);
        let next = new();
        next.put(&record).unwrap();
        assert!(left.put(&record).is_err());
        left.forget().unwrap();
        assert_eq!(held(), 1);
    }
}
