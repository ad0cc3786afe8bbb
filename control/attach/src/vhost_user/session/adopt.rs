//! What a front end has set up, as requests that set it up again: for the next switch, if this one
//! ends or dies.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use vmlan_keeper::Descriptor;

use super::super::port::VhostUserPort;
use super::super::refusal::RequestRefusal;
use super::super::wire::{Body, Header, Message, RegionDesc, Request, protocol};
use super::Session;
use crate::held::record::{Again, Setup};
use crate::memory::Files;

/// The files that a front end gave, of which this process needs no descriptors itself.
#[derive(Debug, Default)]
pub struct Given {
    memory: Vec<(RegionDesc, Arc<OwnedFd>)>,
    log: Option<(Vec<u8>, Arc<OwnedFd>)>,
    inflight: Option<(Vec<u8>, Arc<OwnedFd>)>,
    /// A descriptor could not be kept.
    lost: bool,
}

/// What of a message [`Given`] is about.
pub struct Gift {
    request: Request,
    body: Vec<u8>,
    files: Vec<Arc<OwnedFd>>,
    lost: bool,
}

impl Gift {
    /// Of a message that is to be carried out.
    pub fn of(request: Request, message: &Message) -> Self {
        let file = |fd: &Descriptor| match fd {
            Descriptor::Memory(fd) | Descriptor::Disk(fd) => Some(fd.try_clone()),
            _ => None,
        };
        let gives = matches!(
            request,
            Request::SetMemTable
                | Request::AddMemReg
                | Request::SetLogBase
                | Request::SetInflightFd
        );
        let files = message.fds.iter().filter(|_| gives).filter_map(file);
        let files: Result<Vec<_>, _> = files.map(|file| file.map(Arc::new)).collect();
        let (body, lost) = (message.body.clone(), files.is_err());
        Self { request, body, files: files.unwrap_or_default(), lost }
    }
}

impl Given {
    /// A message was carried out.
    pub fn take(&mut self, gift: Gift) {
        let Gift { request, body, mut files, lost } = gift;
        self.lost |= lost;
        let one = RegionDesc::parse(Body(&body), 8);
        match (request, files.pop()) {
            (Request::SetMemTable, last) => {
                files.extend(last);
                let regions = files.into_iter().enumerate();
                let desc = |i| RegionDesc::parse(Body(&body), 8 + 32 * i);
                self.memory = regions.map(|(i, file)| (desc(i), file)).collect();
            }
            (Request::AddMemReg, Some(file)) => self.memory.push((one, file)),
            (Request::RemMemReg, _) => {
                let same = |(r, _): &(RegionDesc, _)| {
                    (r.gpa, r.size, r.uva) == (one.gpa, one.size, one.uva)
                };
                let at = self.memory.iter().position(same);
                at.into_iter().for_each(|at| drop(self.memory.remove(at)));
            }
            (Request::SetLogBase, Some(file)) => self.log = Some((body, file)),
            (Request::SetInflightFd, Some(file)) => self.inflight = Some((body, file)),
            (Request::ResetDevice, _) => self.inflight = None,
            _ => {}
        }
    }
}

impl Session {
    /// The requests that set all this up again. `None`: it has lost descriptors.
    pub fn setup(&self) -> Option<Vec<Again>> {
        let Given { memory, log, inflight, lost: false } = self.given.as_ref()? else {
            return None;
        };
        let mut list = Vec::new();
        let mut say = |request: Request, body: Vec<u8>, fd: Option<&Arc<OwnedFd>>| {
            let fd = fd.map(|fd| Arc::clone(fd) as Arc<dyn AsFd>);
            list.push(Setup { number: request.number(), body, fd });
        };
        let word = |value: u64| value.to_ne_bytes().to_vec();
        if self.features != 0 || self.rings.is_always_enabled() {
            say(Request::SetFeatures, word(self.features), None);
        }
        for (desc, file) in memory {
            say(Request::AddMemReg, desc.encode(), Some(file));
        }
        for (request, given) in [(Request::SetLogBase, log), (Request::SetInflightFd, inflight)] {
            if let Some((body, file)) = given {
                say(request, body.clone(), Some(file));
            }
        }
        if let Some(mtu) = self.mtu {
            say(Request::NetSetMtu, word(mtu), None);
        }
        if self.status != 0 {
            say(Request::SetStatus, word(self.status), None);
        }
        list.extend(self.rings.setup(self.is_packed()));
        // The last: until then all are negotiated.
        let (number, body) = (Request::SetProtocolFeatures.number(), word(self.protocol));
        list.push(Setup { number, body, fd: None });
        Some(list)
    }

    /// The front end of a switch that has died is connected to `port`. All that it has set up goes
    /// the way that it went at first. With `done_before` the switch has carried out the next
    /// request.
    ///
    /// # Errors
    /// What would have been refused at first.
    pub fn adopt(
        port: Arc<VhostUserPort>,
        queues: u16,
        files: Files,
        setup: Vec<Setup<OwnedFd>>,
        done_before: bool,
    ) -> Result<Self, RequestRefusal> {
        let mut session = Self::new(port, queues, files, true);
        session.protocol = protocol::OFFERED;
        for Setup { number, body, fd } in setup {
            let request = Request::from_number(number).ok_or(RequestRefusal::Unknown(number))?;
            let header = Header { number, size: body.len(), need_reply: false };
            let fds = fd.map(Descriptor::of).into_iter().collect();
            session.carry_out(request, Message { header, body, fds })?;
        }
        session.done_before = done_before;
        Ok(session)
    }
}
