//! One connection's state, and what each request does to it. Knows nothing of sockets, so that a
//! fuzzer can be the front end.

use std::sync::Arc;

use vmlan_frame::{Counters, Details, Mac, Port};
use vmlan_keeper::Descriptor;
use vmlan_nic::virtio::feature;
use vmlan_ram::Map;

use self::adopt::{Gift, Given};
use super::feature_names;
use super::inflight::{self, InflightRegion};
use super::port::VhostUserPort;
use super::refusal::RequestRefusal;
use super::virtqueues::{Context, VirtqueueTable};
use super::wire::{
    Body, InflightDesc, Message, NO_FD, RegionDesc, Reply, Request, VirtqueueAddr, protocol,
};
use crate::bytes::widen;
use crate::memory::{Files, Memory, MemoryError};

mod adopt;

/// Feature bits of vhost itself.
const F_LOG_ALL: u64 = 1 << 26;
const F_PROTOCOL_FEATURES: u64 = 1 << 30;

/// Features that the front end answers for, and takes from the guest only if the back end has them
/// too: the control queue and what goes over it, announcing, link state, MTU.
const FRONT_END: u64 = feature::MTU | feature::STATUS | feature::MQ | CTRL_VQ | GUEST_ANNOUNCE;
const CTRL_VQ: u64 = 1 << 17;
const GUEST_ANNOUNCE: u64 = 1 << 21;

/// The virtio features offered. Constant: a guest keeps what it negotiated over our restarts, so
/// they must never depend on anything (VPP-536, Snabb #932).
pub const FEATURES: u64 = feature::DATA_PATH | FRONT_END | F_LOG_ALL | F_PROTOCOL_FEATURES;

/// Smallest MTU of IPv4 (RFC 791), and the largest that a frame here can carry.
const MTU: std::ops::RangeInclusive<u64> = 68..=9216;

/// What to do after a request.
#[derive(Debug)]
pub struct Outcome {
    /// To send back.
    pub reply: Option<Reply>,
    /// To log.
    pub refusal: Option<RequestRefusal>,
    /// The front end cannot know that it was refused, and would go on as if all were well: hang up.
    pub hang_up: bool,
}

/// One connection.
pub struct Session {
    port: Arc<VhostUserPort>,
    rings: VirtqueueTable,
    /// Queue pairs to announce.
    queues: u16,
    features: u64,
    protocol: u64,
    memory: Memory,
    inflight: Option<InflightRegion>,
    mtu: Option<u64>,
    status: u64,
    /// What is kept for the next switch, if anything is.
    given: Option<Given>,
    /// The next request was carried out by the switch before, which did not answer it.
    done_before: bool,
}

impl Session {
    /// A front end has connected to `port`, which has `queues` pairs of queues and takes memory in
    /// such `files`. With `held`, descriptors are kept for the next switch.
    ///
    /// GET_QUEUE_NUM has two readings: pairs for QEMU, virtqueues for Cloud Hypervisor. So the
    /// answer is the number of virtqueues, and as many pairs are allowed.
    pub fn new(port: Arc<VhostUserPort>, queues: u16, files: Files, held: bool) -> Self {
        let queues = queues.clamp(1, super::MAX_PAIRS);
        port.both().reset();
        port.set_connected(true);
        Self {
            rings: VirtqueueTable::new(usize::from(queues) * 4, &port),
            port,
            queues,
            features: 0,
            protocol: 0,
            memory: Memory::new(files),
            inflight: None,
            mtu: None,
            status: 0,
            given: held.then(Given::default),
            done_before: false,
        }
    }

    fn counters(&self) -> &Counters {
        self.port.counters()
    }

    fn is_packed(&self) -> bool {
        self.features & feature::RING_PACKED != 0
    }

    /// Handles one request. Descriptors that nobody takes are closed with the message.
    pub fn handle(&mut self, message: Message) -> Outcome {
        let (need_reply, number) = (message.header.need_reply, message.header.number);
        let request = Request::from_number(number);
        let done = std::mem::take(&mut self.done_before) && request.is_some_and(Request::is_once);
        let result = match request {
            Some(_) if done => Ok(None),
            Some(request) => self.carry_out(request, message),
            None => Err(RequestRefusal::Unknown(number)),
        };
        let acks = need_reply && self.protocol & protocol::REPLY_ACK != 0;
        let has_reply = request.is_some_and(Request::has_reply);
        match result {
            Ok(reply) => {
                let reply = reply.or_else(|| acks.then(|| Reply::u64(0)));
                Outcome { reply, refusal: None, hang_up: false }
            }
            Err(refusal) => {
                self.counters().faults.add_shared(1);
                let reply = (acks && !has_reply).then(|| Reply::u64(1));
                let hang_up = reply.is_none() && request.is_some();
                Outcome { reply, refusal: Some(refusal), hang_up }
            }
        }
    }

    fn carry_out(
        &mut self,
        request: Request,
        message: Message,
    ) -> Result<Option<Reply>, RequestRefusal> {
        let gift = self.given.as_ref().map(|_| Gift::of(request, &message));
        let reply = self.dispatch(request, message)?;
        if let (Some(given), Some(gift)) = (&mut self.given, gift) {
            given.take(gift);
        }
        Ok(reply)
    }

    fn dispatch(
        &mut self,
        request: Request,
        message: Message,
    ) -> Result<Option<Reply>, RequestRefusal> {
        let (sizes, counts) = request.limits();
        let (size, count) = (message.body.len(), message.fds.len());
        if !sizes.contains(&size) {
            return Err(RequestRefusal::BodySize { request, size });
        }
        if !counts.contains(&count) {
            return Err(RequestRefusal::FdCount { request, count });
        }
        if self.protocol & request.needs() != request.needs() {
            return Err(RequestRefusal::NotNegotiated(request));
        }
        let body = Body(&message.body);
        if let Some(reply) = self.get(request, body)? {
            return Ok(Some(reply));
        }
        match request {
            Request::SetVringNum
            | Request::SetVringBase
            | Request::SetVringAddr
            | Request::SetVringKick
            | Request::SetVringCall
            | Request::SetVringErr
            | Request::SetVringEnable => self.set_ring(request, body, message.fds)?,
            Request::SetMemTable
            | Request::AddMemReg
            | Request::RemMemReg
            | Request::SetLogBase => {
                self.set_memory(request, body, message.fds)?;
                // This one is answered in any case. QEMU takes any body, Cloud Hypervisor only its
                // own back.
                return Ok((request == Request::SetLogBase)
                    .then(|| Reply { body: message.body, fd: None }));
            }
            _ => self.set_device(request, body, message.fds)?,
        }
        Ok(None)
    }

    /// Requests that answer; `None` for the others.
    fn get(&mut self, request: Request, body: Body<'_>) -> Result<Option<Reply>, RequestRefusal> {
        let value = match request {
            Request::GetFeatures => FEATURES,
            Request::GetProtocolFeatures => protocol::OFFERED,
            Request::GetQueueNum => u64::from(self.queues) * 2,
            Request::GetMaxMemSlots => Map::MAX_REGIONS as u64,
            Request::GetStatus => self.status,
            Request::GetVringBase => return self.get_base(body).map(Some),
            Request::GetInflightFd => return self.get_inflight(body).map(Some),
            _ => return Ok(None),
        };
        Ok(Some(Reply::u64(value)))
    }

    fn context(&mut self) -> (&mut VirtqueueTable, Context<'_>) {
        (&mut self.rings, Context { port: &self.port, inflight: self.inflight.as_ref() })
    }

    fn get_base(&mut self, body: Body<'_>) -> Result<Reply, RequestRefusal> {
        let index = body.u32(0);
        let (rings, cx) = self.context();
        let base = rings
            .stop(&cx, index)
            .map_err(|source| RequestRefusal::Ring { request: Request::GetVringBase, source })?;
        let mut bytes = index.to_ne_bytes().to_vec();
        bytes.extend(base.to_ne_bytes());
        Ok(Reply { body: bytes, fd: None })
    }

    fn get_inflight(&mut self, body: Body<'_>) -> Result<Reply, RequestRefusal> {
        let packed = self.is_packed();
        let (desc, fd) = inflight::create(InflightDesc::parse(body), self.rings.len(), packed)?;
        Ok(Reply { body: desc.encode(body.0.len()), fd: Some(fd) })
    }

    fn set_ring(
        &mut self,
        request: Request,
        body: Body<'_>,
        fds: Vec<Descriptor>,
    ) -> Result<(), RequestRefusal> {
        let (index, value) = (body.u32(0), body.u32(4));
        let fd = match request {
            Request::SetVringKick | Request::SetVringCall | Request::SetVringErr => {
                ring_fd(request, body, fds)?
            }
            _ => None,
        };
        let named = index & 0xff;
        let (rings, cx) = self.context();
        match request {
            Request::SetVringNum => rings.set_size(&cx, index, value),
            Request::SetVringBase => rings.set_base(&cx, index, value),
            Request::SetVringEnable => rings.enable(&cx, index, value != 0),
            Request::SetVringKick => rings.set_kick(&cx, named, fd),
            Request::SetVringCall => rings.set_call(&cx, named, fd),
            Request::SetVringErr => rings.set_err(named, fd),
            _ => {
                let (index, addr) = VirtqueueAddr::parse(body);
                rings.set_addr(&cx, index, addr)
            }
        }
        .map_err(|source| RequestRefusal::Ring { request, source })
    }

    fn set_memory(
        &mut self,
        request: Request,
        body: Body<'_>,
        mut fds: Vec<Descriptor>,
    ) -> Result<(), RequestRefusal> {
        let wrap = |source| RequestRefusal::Memory { request, source };
        match (request, fds.pop()) {
            (Request::SetMemTable, last) => {
                fds.extend(last);
                let regions = self.memory.regions(table(body, fds)?).map_err(wrap)?;
                self.memory.replace(regions).map_err(wrap)?;
            }
            (Request::AddMemReg, Some(fd)) => {
                let region = self.memory.region(RegionDesc::parse(body, 8), fd).map_err(wrap)?;
                self.memory.add(region).map_err(wrap)?;
            }
            (Request::SetLogBase, Some(fd)) => {
                self.memory.set_log(fd, body.u64(8), body.u64(0)).map_err(wrap)?;
            }
            _ => self.memory.remove(RegionDesc::parse(body, 8)).map_err(wrap)?,
        }
        self.remap().map_err(wrap)
    }

    /// Gives the virtqueues the memory as it is now. When this returns, the map before is gone.
    fn remap(&mut self) -> Result<(), MemoryError> {
        let map = self.memory.snapshot(self.features & F_LOG_ALL != 0)?;
        let old = self.port.both().set_map(&map);
        drop(old);
        let (rings, cx) = self.context();
        rings.settle_all(&cx);
        Ok(())
    }

    fn set_device(
        &mut self,
        request: Request,
        body: Body<'_>,
        mut fds: Vec<Descriptor>,
    ) -> Result<(), RequestRefusal> {
        let value = body.u64(0);
        match request {
            Request::SetFeatures => return self.set_features(value),
            Request::SetProtocolFeatures if value & !protocol::OFFERED != 0 => {
                return Err(RequestRefusal::Features(value & !protocol::OFFERED));
            }
            Request::SetProtocolFeatures => self.protocol = value,
            Request::SendRarp => self.port.announce(Mac::new(body.mac(0))),
            Request::NetSetMtu if !MTU.contains(&value) => return Err(RequestRefusal::Mtu(value)),
            Request::NetSetMtu => self.mtu = Some(value),
            Request::SetStatus if value > 0xff => return Err(RequestRefusal::Status(value)),
            Request::SetStatus => {
                self.status = value;
                if value == 0 {
                    self.rings.reset(&self.port);
                }
            }
            Request::ResetDevice => {
                return self.reset().map_err(|source| RequestRefusal::Memory { request, source });
            }
            Request::SetInflightFd => return self.set_inflight(body, fds.pop()),
            // SET_OWNER, RESET_OWNER ("no longer used") and SET_LOG_FD ask nothing of us.
            _ => {}
        }
        Ok(())
    }

    fn set_features(&mut self, features: u64) -> Result<(), RequestRefusal> {
        if features & !FEATURES != 0 {
            return Err(RequestRefusal::Features(features & !FEATURES));
        }
        let changed = self.features ^ features;
        if changed & !F_LOG_ALL != 0 {
            if self.rings.any_started(&self.port) {
                return Err(RequestRefusal::RingsStarted);
            }
            self.port.both().set_features(features);
        }
        self.features = features;
        self.rings.set_always_enabled(&self.port, features & F_PROTOCOL_FEATURES == 0);
        if changed & F_LOG_ALL != 0 {
            let request = Request::SetFeatures;
            self.remap().map_err(|source| RequestRefusal::Memory { request, source })?;
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), MemoryError> {
        self.rings.reset(&self.port);
        self.features = 0;
        self.status = 0;
        self.inflight = None;
        self.port.both().set_features(0);
        // Nobody asks for a dirty log any more.
        self.remap()
    }

    fn set_inflight(
        &mut self,
        body: Body<'_>,
        fd: Option<Descriptor>,
    ) -> Result<(), RequestRefusal> {
        let Some(fd) = fd else { return Ok(()) };
        if self.rings.any_started(&self.port) {
            return Err(RequestRefusal::RingsStarted);
        }
        let desc = InflightDesc::parse(body);
        self.inflight = Some(InflightRegion::new(desc, fd, self.rings.len(), self.is_packed())?);
        Ok(())
    }

    /// Tells the front end that a virtqueue broke.
    pub fn raise_err(&self) {
        self.rings.raise_err();
    }

    /// The limit's timer has fired: delivers the interrupts that are due.
    pub fn deliver_due(&self) {
        self.rings.deliver(&self.port, self.port.limit().due());
    }

    /// The MTU that the front end tells the guest, if it has said so.
    pub fn mtu(&self) -> Option<u64> {
        self.mtu
    }

    /// For `port list`.
    pub fn details(&self) -> Details {
        let (rx, tx) = self.rings.live();
        let mut list = vec![
            ("features", feature_names::features(self.features)),
            ("features-hex", format!("{:#x}", self.features)),
            ("protocol-features", feature_names::protocol_features(self.protocol)),
            ("protocol-features-hex", format!("{:#x}", self.protocol)),
            ("queues", format!("{rx} receive, {tx} transmit")),
            ("layout", if self.is_packed() { "packed" } else { "split" }.to_owned()),
            ("memory", format!("{} MiB", self.memory.bytes() >> 20)),
        ];
        list.extend(self.mtu.map(|mtu| ("mtu", mtu.to_string())));
        // A front end whose guest has gone does not take its word back.
        let runs = rx + tx > 0;
        if runs && self.memory.has_log() && self.features & F_LOG_ALL != 0 {
            list.push(("migrating", "yes".to_owned()));
        }
        list
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Taking kicks away does not fail.
        let _ = self.port.kicks().set(&[], self.port.counters(), self.port.cost());
        self.port.both().reset();
        // No frame of this front end is under way any more.
        self.port.set_connected(false);
        self.rings.flush_all(&self.port);
    }
}

/// The descriptor of SET_VRING_KICK, CALL or ERR: there is one exactly if bit 8 of the body is
/// clear, and the rest of the body must be the virtqueue's number.
fn ring_fd(
    request: Request,
    body: Body<'_>,
    mut fds: Vec<Descriptor>,
) -> Result<Option<Descriptor>, RequestRefusal> {
    let value = body.u64(0);
    let count = fds.len();
    if value > (NO_FD | 0xff) || (value & NO_FD == 0) != (count == 1) {
        return Err(RequestRefusal::FdCount { request, count });
    }
    Ok(fds.pop())
}

/// The regions of SET_MEM_TABLE, each with its descriptor.
fn table(
    body: Body<'_>,
    fds: Vec<Descriptor>,
) -> Result<Vec<(RegionDesc, Descriptor)>, RequestRefusal> {
    let (regions, size) = (body.u32(0), body.0.len());
    let count = widen(regions);
    if count != fds.len() || count > super::wire::MAX_TABLE || size != 8 + 32 * count {
        return Err(RequestRefusal::Table { regions, fds: fds.len(), size });
    }
    let parse = |(i, fd)| (RegionDesc::parse(body, 8 + 32 * i), fd);
    Ok(fds.into_iter().enumerate().map(parse).collect())
}
