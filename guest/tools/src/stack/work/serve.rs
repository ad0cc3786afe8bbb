//! The server of all workloads.

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::State;

use super::super::options::Options;
use super::super::report::Schedule;
use super::super::smoltcp_host::Host;
use super::rr::BUFFER;
use super::sink::{TcpSink, UdpSink};
use super::{Passed, Step, Work};
use crate::workload::{ECHO_PORT, SINK_PORT, Tally};
use vmlan_driver::nic::Nic;

const CONNECTIONS: usize = 4; // Connections that are answered at once.

/// Both sinks, and an echo over UDP and TCP.
pub(super) struct Responder {
    datagrams: UdpSink,
    streams: TcpSink,
    udp: SocketHandle,
    tcp: Vec<SocketHandle>,
    scratch: Box<[u8]>,
}

impl Responder {
    pub(super) fn new<N: Nic>(
        options: &Options,
        host: &mut Host<'_, N>,
        schedule: Schedule,
    ) -> Self {
        let mut answerer = || {
            let handle = host.tcp(BUFFER, BUFFER);
            host.tcp_socket(handle).set_nagle_enabled(false);
            handle
        };
        Self {
            tcp: (0..CONNECTIONS).map(|_| answerer()).collect(),
            datagrams: UdpSink::new(options, schedule),
            streams: TcpSink::new(options, host, SINK_PORT),
            udp: host.udp(ECHO_PORT),
            scratch: vec![0; BUFFER].into(),
        }
    }

    fn echo_datagrams<N: Nic>(
        &mut self,
        host: &mut Host<'_, N>,
        tally: &mut Tally,
        now: u64,
    ) -> bool {
        let socket = host.udp_socket(self.udp);
        let mut any = false;
        while socket.can_send() {
            let Ok((len, from)) = socket.recv_slice(&mut self.scratch) else { break };
            // There is room: that was asked before.
            let _ = socket.send_slice(&self.scratch[..len], from);
            tally.add(now, 1, len as u64);
            any = true;
        }
        any
    }

    fn echo_stream<N: Nic>(
        &mut self,
        at: usize,
        host: &mut Host<'_, N>,
        tally: &mut Tally,
        now: u64,
    ) -> bool {
        let socket = host.tcp_socket(self.tcp[at]);
        if !socket.is_open() {
            // The port is not zero and the socket is closed.
            let _ = socket.listen(ECHO_PORT);
        }
        let mut any = false;
        while socket.can_recv() && socket.can_send() {
            let most = (socket.send_capacity() - socket.send_queue()).min(self.scratch.len());
            let Ok(len) = socket.recv_slice(&mut self.scratch[..most]) else { break };
            let _ = socket.send_slice(&self.scratch[..len]);
            tally.add(now, 1, len as u64);
            any = true;
        }
        if socket.state() == State::CloseWait && !socket.can_recv() {
            tally.connections += 1;
            socket.close();
        }
        any
    }
}

impl<N: Nic> Work<N> for Responder {
    fn pass(&mut self, host: &mut Host<'_, N>, tally: &mut Tally, now: u64) -> Passed {
        let mut any = self.echo_datagrams(host, tally, now);
        for at in 0..self.tcp.len() {
            any |= self.echo_stream(at, host, tally, now);
        }
        let sunk = self.datagrams.pass(host, tally, now)? == Step::Moved;
        let read = self.streams.pass(host, tally, now)? == Step::Moved;
        Ok(Step::moved(any || sunk || read))
    }

    fn close(&mut self, host: &mut Host<'_, N>) -> bool {
        for handle in &self.tcp {
            host.tcp_socket(*handle).abort();
        }
        Work::<N>::close(&mut self.streams, host)
    }
}
