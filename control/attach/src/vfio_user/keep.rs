//! Keeping a port for the next switch, and finding it again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use vmlan_frame::error_chain;
use vmlan_keeper::hold::{Held, Hold, HoldError};
use vmlan_keeper::{Keeper, Kept};

use super::record::{Client, Interrupt, Record, RecordError, Region};
use super::server::Served;
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
}

/// A port whose switch has died.
pub struct FoundPort {
    pub keeper: Keeper,
    pub file: SocketFile,
    pub client: Option<FoundClient>,
}

/// What was `held` of the port at `path`, if it is as it was.
///
/// # Errors
/// [`LostClient`].
pub fn find(held: &Held, path: &Path, nic: &str) -> Result<FoundPort, LostClient> {
    let record = Record::decode(held)?;
    if record.nic != nic {
        return Err(LostClient::OtherNic { was: record.nic, wanted: nic.to_owned() });
    }
    let Record { file, listener, line, client, regions, interrupts, chip, state, .. } = record;
    let sock = client.as_ref().map(|c| Ok((c.slot, c.socket.try_clone()?)));
    let sock = sock.transpose().map_err(LostSocket::Io)?;
    let (keeper, file, sock) = socket::adopt(path, file, line, listener, sock)?;
    let found = sock.zip(client);
    let client =
        found.map(|(sock, client)| FoundClient { sock, client, regions, interrupts, chip, state });
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
    /// `hold` has things of the port that log lines call `name`.
    pub fn new(hold: Arc<dyn Hold>, name: String, nic: String, file: (u64, u64)) -> Self {
        Self { hold, name, nic, file }
    }

    /// Has the port held as it is, with a chip that is quiet in this state, or none.
    ///
    /// # Errors
    /// Why it is not held: one line.
    pub fn put(
        &self,
        keeper: &Keeper,
        served: Option<&Served>,
        chip: Vec<u8>,
    ) -> Result<(), String> {
        let (Some(listener), Some(line)) = (keeper.listener(), keeper.line()) else {
            return Err("its keeper was killed".to_owned());
        };
        let interrupts: Vec<_> = served.map(|s| s.session.interrupts()).unwrap_or_default();
        let events = interrupts.iter().map(|i| Interrupt {
            index: i.index,
            vector: i.vector,
            unmask: i.unmask,
            event: i.event.as_fd(),
        });
        let mut record = Record {
            nic: self.nic.clone(),
            file: self.file,
            listener,
            line: line.as_fd(),
            client: None::<Client<BorrowedFd<'_>>>,
            regions: Vec::new(),
            interrupts: events.collect(),
            chip,
            state: served.and_then(|served| served.state.as_ref()).map(|file| file.as_fd()),
        };
        if let Some(served) = served {
            let journal = served.connection.journal().ok_or("it has no journal")?;
            record.client = Some(Client {
                socket: served.connection.fd(),
                journal: journal.fds(),
                area: None,
                slot: served.connection.slot(),
                version: None,
                controls: served.controls,
                adopted: served.adopted,
                deaths: served.deaths,
            });
            if !served.session.put_into(&mut record) {
                return Err("its VM has too many memory files".to_owned());
            }
        }
        let (bytes, fds) = record.encode().ok_or("it has too many descriptors")?;
        self.hold.put(&self.name, &fds, &bytes).map_err(|e| error_chain(&e))
    }

    /// Nothing of the port is held any more.
    pub fn forget(&self) -> Result<(), HoldError> {
        self.hold.forget(&self.name)
    }
}
