//! What a flow does when it has its turn: (there may be more, it stays).

use rustix::io::Errno;
use vmlan_config::gateway::Dns;

use super::{Body, DATAGRAMS, Io, Nat, far, tell_unreachable, watch};
use crate::counters::Reason;
use crate::link::{self, ETHERNET, PIECES};
use crate::nat::names::Answered;
use crate::nat::names_by_tcp::Served;
use crate::nat::stack::Wire;
use crate::nat::tcp::Standing;
use crate::services::dns;

impl Nat {
    pub(super) fn turn_tcp(&mut self, id: usize, io: &mut Io<'_>) -> (bool, bool) {
        let ends = self.flows.get(id).map(|flow| io.ends(flow.key.mac));
        let (Some(flow), Some(ends)) = (self.flows.get_mut(id), ends) else {
            return (false, false);
        };
        let Body::Tcp(tcp) = &mut flow.body else { return (false, false) };
        let had = tcp.buffers();
        tcp.end_if_idle(io.now);
        let mut wire = Wire::new(io.link, ends, io.setup.mtu, &mut self.scratch);
        let standing = tcp.turn(&mut wire, io.now);
        let less = had.saturating_sub(tcp.buffers());
        self.buffers = self.buffers.saturating_sub(less);
        let own = io.stations.allowance(flow.port);
        own.into_iter().for_each(|own| own.buffers = own.buffers.saturating_sub(less));
        if tcp.is_answered() && !std::mem::replace(&mut flow.counted, true) {
            io.stations.allowance(flow.port).into_iter().for_each(|own| own.answered());
        }
        match standing {
            Standing::Open => (false, true),
            Standing::Busy => (true, true),
            Standing::Done => (false, false),
            Standing::Failed(e) => {
                io.counters.refuse(Reason::Unreachable);
                let syn = tcp.first_segment().map(<[u8]>::to_vec).unwrap_or_default();
                tell_unreachable(io, ends, &syn, e);
                (false, false)
            }
        }
    }

    pub(super) fn turn_names_by_tcp(
        &mut self,
        id: usize,
        io: &mut Io<'_>,
        names: &dyn dns::Names,
    ) -> (bool, bool) {
        let Some(flow) = self.flows.get_mut(id) else { return (false, false) };
        let (ends, port) = (io.ends(flow.key.mac), flow.port);
        let Body::NamesByTcp(by_tcp) = &mut flow.body else { return (false, false) };
        let servers = match &io.setup.dns {
            Dns::Ask(servers) => servers.as_slice(),
            Dns::Off => &[],
        };
        let (now, setup) = (io.now, io.setup);
        let mut own = io.stations.allowance(port);
        let number = || {
            let may = own.as_mut().is_some_and(|own| own.spend(now));
            may.then(|| u16::try_from(crate::random() & 0xffff).unwrap_or_default())
        };
        let mut wire = Wire::new(io.link, ends, setup.mtu, &mut self.scratch);
        let served = by_tcp.turn((names, &setup.domain, servers), &mut wire, now, number);
        let (Served { new_socket, over }, events) = served;
        let counted = [
            (events.malformed, Reason::DnsMalformed),
            (events.foreign, Reason::DnsForeign),
            (events.limited, Reason::DnsRate),
            (events.unanswered, Reason::DnsUnanswered),
        ];
        counted.iter().for_each(|(n, reason)| io.counters.refuse_some(*reason, *n));
        (0..events.answered).for_each(|_| io.counters.answer("dns"));
        (0..events.forwarded).for_each(|_| io.counters.answer("dns-forwarded"));
        let watched = !new_socket
            || by_tcp.socket().is_none_or(|socket| watch(&self.epoll, socket, id).is_ok());
        (false, !over && watched)
    }

    pub(super) fn turn_udp(&mut self, id: usize, io: &mut Io<'_>) -> (bool, bool) {
        let Some(flow) = self.flows.get_mut(id) else { return (false, false) };
        let Body::Udp(udp) = &mut flow.body else { return (false, false) };
        let (far, guest) = (far(flow.key), flow.key.guest);
        let ends = io.ends(flow.key.mac);
        for _ in 0..DATAGRAMS {
            if io.link.room() < PIECES {
                return (true, true);
            }
            match udp.receive(&mut self.room, io.now) {
                Ok(len) => {
                    let data = self.room.get(..len).unwrap_or_default();
                    io.send(&link::udp(ends, far, guest, data));
                }
                Err(Errno::AGAIN) => return (false, io.now < udp.end()),
                // The way outside is narrower than was known: the kernel knows it now.
                Err(Errno::MSGSIZE) => {}
                Err(e) => {
                    // The guest's program is to know at once that nobody is there.
                    io.counters.refuse(Reason::Unreachable);
                    let ours = link::udp(ends, guest, far, &[]);
                    let packet = ours.get(ETHERNET..).unwrap_or_default();
                    let gone = e == Errno::NOTCONN;
                    tell_unreachable(io, ends, packet, if gone { Errno::CONNREFUSED } else { e });
                    return (false, false);
                }
            }
        }
        (true, true)
    }

    pub(super) fn turn_echo(&mut self, id: usize, io: &mut Io<'_>) -> (bool, bool) {
        let Some(flow) = self.flows.get_mut(id) else { return (false, false) };
        let Body::Echo(echo) = &mut flow.body else { return (false, false) };
        let (far, guest) = (far(flow.key), flow.key.guest);
        let (ends, ident) = (io.ends(flow.key.mac), echo.ident());
        for _ in 0..DATAGRAMS {
            if io.link.room() < PIECES {
                return (true, true);
            }
            match echo.receive(&mut self.room, io.now) {
                Ok(Some((seq_no, data))) => {
                    let way = (far.ip(), guest.ip());
                    io.send(&link::echo_reply(ends, way, ident, seq_no, data));
                }
                Ok(_) => {}
                Err(Errno::AGAIN) => return (false, io.now < echo.end()),
                Err(_) => return (false, false),
            }
        }
        (true, true)
    }

    pub(super) fn turn_names(&mut self, id: usize, io: &mut Io<'_>) -> (bool, bool) {
        let Some(flow) = self.flows.get_mut(id) else { return (false, false) };
        let Body::Names(asked) = &mut flow.body else { return (false, false) };
        let (far, guest) = (far(flow.key), flow.key.guest);
        let ends = io.ends(flow.key.mac);
        let most = io.longest(guest.ip());
        let mut failed = false;
        for _ in 0..DATAGRAMS {
            match asked.receive(&mut self.room, most) {
                Ok(Answered::Yes(answer)) => {
                    io.counters.answer("dns-forwarded");
                    io.send(&link::udp(ends, far, guest, &answer));
                    return (false, false);
                }
                Ok(Answered::Foreign) => io.counters.refuse(Reason::DnsForeign),
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    failed = true;
                    break;
                }
            }
        }
        if !failed && io.now < asked.end() {
            return (false, true);
        }
        let Dns::Ask(servers) = &io.setup.dns else { return (false, false) };
        if asked.again(servers, io.now) {
            return (false, watch(&self.epoll, asked.socket(), id).is_ok());
        }
        io.counters.refuse(Reason::DnsUnanswered);
        let failure = asked.failure();
        io.send(&link::udp(ends, far, guest, &failure));
        (false, false)
    }
}
