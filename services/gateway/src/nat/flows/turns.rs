//! What a flow does when it has its turn: (there may be more, it stays).

use rustix::io::Errno;
use vmlan_config::gateway::Dns;

use super::{Body, DATAGRAMS, Io, Nat, UDP_HEADERS, tell_unreachable, v4, watch};
use crate::counters::Reason;
use crate::link::{self, ETHERNET};
use crate::nat::names::Answered;
use crate::nat::stack::Wire;
use crate::nat::tcp::Standing;

impl Nat {
    pub(super) fn turn_tcp(&mut self, id: usize, io: &mut Io<'_>) -> (bool, bool) {
        let ends = self.flows.get(id).map(|flow| io.ends(flow.mac));
        let (Some(flow), Some(ends)) = (self.flows.get_mut(id), ends) else {
            return (false, false);
        };
        let Body::Tcp(tcp) = &mut flow.body else { return (false, false) };
        tcp.end_if_idle(io.now);
        let mut wire = Wire::new(io.link, ends, io.setup.mtu, &mut self.scratch);
        let standing = tcp.turn(&mut wire, io.now);
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

    pub(super) fn turn_udp(&mut self, id: usize, io: &mut Io<'_>) -> (bool, bool) {
        let Some(flow) = self.flows.get_mut(id) else { return (false, false) };
        let (Body::Udp(udp), Some((far, guest))) = (&mut flow.body, v4(flow.key)) else {
            return (false, false);
        };
        let ends = io.ends(flow.mac);
        for _ in 0..DATAGRAMS {
            if io.link.room() == 0 {
                return (true, true);
            }
            match udp.receive(&mut self.room, io.now) {
                Ok(len) if len > usize::from(io.setup.mtu - UDP_HEADERS) => {
                    io.counters.refuse(Reason::TooLong);
                }
                Ok(len) => {
                    let data = self.room.get(..len).unwrap_or_default();
                    io.send(&link::udp(ends, far, guest, data));
                }
                Err(Errno::AGAIN) => return (false, io.now < udp.end()),
                Err(_) => {
                    // The guest's program is to know at once that nobody is there.
                    io.counters.refuse(Reason::Unreachable);
                    let ours = link::udp(ends, guest, far, &[]);
                    let packet = ours.get(ETHERNET..).unwrap_or_default();
                    tell_unreachable(io, ends, packet, Errno::CONNREFUSED);
                    return (false, false);
                }
            }
        }
        (true, true)
    }

    pub(super) fn turn_echo(&mut self, id: usize, io: &mut Io<'_>) -> (bool, bool) {
        let Some(flow) = self.flows.get_mut(id) else { return (false, false) };
        let (Body::Echo(echo), Some((far, guest))) = (&mut flow.body, v4(flow.key)) else {
            return (false, false);
        };
        let (ends, ident) = (io.ends(flow.mac), echo.ident());
        for _ in 0..DATAGRAMS {
            match echo.receive(&mut self.room, io.now) {
                Ok(Some((seq_no, data)))
                    if data.len() <= usize::from(io.setup.mtu - UDP_HEADERS) =>
                {
                    let frame =
                        link::echo_reply(ends, (*far.ip(), *guest.ip()), ident, seq_no, data);
                    io.send(&frame);
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
        let (Body::Names(asked), Some((far, guest))) = (&mut flow.body, v4(flow.key)) else {
            return (false, false);
        };
        let ends = io.ends(flow.mac);
        let most = usize::from(io.setup.mtu - UDP_HEADERS);
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
