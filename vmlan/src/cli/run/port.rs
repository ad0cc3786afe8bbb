//! The port of `vmlan run`: of the switch that runs, or of one that is started.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hyper::StatusCode;

use super::{Held, Vm, named_failure, port_name};
use crate::exit::Failure;
use crate::switch_log::SwitchLog;
use vmlan_api::client::ClientError;
use vmlan_api::{Client, NewPort, PortList};
use vmlan_config::address::{Address, Draft, Kind, NamedAddress, PortName};
use vmlan_engine::info::PortInfo;

/// The LAN of a switch that is started.
const NETWORK: &str = "nat:10.77.0.0/24";

/// A switch may be starting, or ending with its last port, while it is asked.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

impl Vm<'_> {
    /// A port of the switch that runs; if none does, of one that ends with the last such port.
    pub(super) fn join_or_start(&self) -> Result<Held, Failure> {
        let client = Client::new(&self.api);
        let mut last = None;
        for _ in 0..TRIES {
            match client.connect() {
                Ok(connection) => match self.join(&client, connection) {
                    Ok(Some(held)) => return Ok(held),
                    // Somebody else took the name first.
                    Ok(None) => continue,
                    Err(Lost::Answer(failure)) => return Err(failure),
                    Err(Lost::Switch(failure)) => last = Some(failure),
                },
                Err(ClientError::NoSwitch { source, .. }) if is_free(&source) => {
                    match self.start() {
                        Ok(held) => return Ok(held),
                        // Unless somebody else was faster.
                        Err(failure) if client.connect().is_err() => return Err(failure),
                        Err(failure) => last = Some(failure),
                    }
                }
                Err(e) => return Err(e.into()),
            }
            std::thread::sleep(PAUSE);
        }
        Err(last.unwrap_or_else(|| Failure::Failed("no name is free: choose one (--name)".into())))
    }

    /// `None`: the name that was free is taken meanwhile.
    fn join(&self, client: &Client, connection: UnixStream) -> Result<Option<Held>, Lost> {
        let list: PortList = client.get("/v1/ports")?;
        let vlan = self.vlan(&list.ports)?;
        let taken = |name: &str| list.ports.iter().any(|port| port.name == name);
        let free = || (1..).map(|n| format!("vm{n}")).find(|name| !taken(name));
        let name = match &self.name {
            Some(name) => name.clone(),
            None => port_name(&free().unwrap_or_default())?,
        };
        let address = self.address(&name, &vlan)?;
        match hold(client, connection, name, address) {
            Err(ClientError::Refused { status: StatusCode::CONFLICT, .. })
                if self.name.is_none() =>
            {
                Ok(None)
            }
            done => Ok(Some(done?)),
        }
    }

    /// The VLAN of the LAN that was named, as a key.
    fn vlan(&self, ports: &[PortInfo]) -> Result<String, Failure> {
        let Some(net) = self.net else { return Ok(String::new()) };
        let nets = || ports.iter().filter(|port| port.kind == Kind::Nat.name());
        let place = |port: &PortInfo| port.address.split(',').next() == Some(net);
        let Some(found) = nets().find(|port| port.name == net || place(port)) else {
            let names: Vec<_> = nets().map(|port| port.name.as_str()).collect();
            let has = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(Failure::Usage(format!(
                "--net {net}: the switch has no such nat: port (it has {has}): see `vmlan port \
                 list`, or start a switch with --new"
            )));
        };
        let mut draft = Draft::parse(&found.address)?;
        let given = self.keys.contains(",vlan=");
        let vlan = draft.take("vlan").filter(|_| !given);
        Ok(vlan.map(|vlan| format!(",vlan={vlan}")).unwrap_or_default())
    }

    /// A port of a switch that is started for it.
    pub(super) fn start(&self) -> Result<Held, Failure> {
        let name = self.name.clone().map_or_else(|| self.first_name(), Ok)?;
        let address = self.address(&name, "")?;
        let log = self.log.display();
        let net = match self.net {
            Some(address) if address.contains(':') => format!("net={address}"),
            Some(name) => {
                port_name(name).map_err(|_| {
                    let text = "the name of a nat: port is wanted, or its address";
                    Failure::Usage(format!("--net {name}: {text}, like {NETWORK}"))
                })?;
                format!("{name}={NETWORK}")
            }
            None => format!("net={NETWORK}"),
        };
        let net: NamedAddress = net.parse().map_err(|e| named_failure(&net, &e))?;
        let failed =
            |e| Failure::Failed(format!("cannot start a switch with its log at {log}: {e}"));
        // The usual place of root is in a directory that the switch would make.
        let dir = self.api.parent().filter(|dir| !dir.exists());
        dir.map(fs::create_dir).transpose().map_err(failed)?;
        let file = SwitchLog::open(&self.log).map_err(failed)?;
        let (ours, mut switch) = self.spawn(&net, &file).map_err(failed)?;
        match hold(&Client::new(&self.api), ours, name, address) {
            Ok(held) => Ok(held),
            Err(refused @ ClientError::Refused { .. }) => Err(refused.into()),
            Err(_) => {
                // It hung up: it could not start, and says why.
                let _ = switch.wait();
                let why = file.last_words();
                Err(Failure::Failed(format!("the switch: {why} (its log: {log})")))
            }
        }
    }

    /// Starts a switch; our end of its first client's connection.
    fn spawn(&self, net: &NamedAddress, log: &SwitchLog) -> io::Result<(UnixStream, Child)> {
        let net = format!("{}={}", net.name, net.address);
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["switch", "--while-held", "--api"]).arg(&self.api).arg(net);
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(log.file()?);
        // That is for the VMM.
        command.env_remove("NOTIFY_SOCKET").current_dir("/");
        Ok((ours, command.spawn()?))
    }
}

fn hold(
    client: &Client,
    connection: UnixStream,
    name: PortName,
    address: Address,
) -> Result<Held, ClientError> {
    let new = NewPort { name: name.to_string(), address: address.to_string(), hold: true };
    let (info, hold) = client.hold(connection, &new)?;
    Ok(Held { name, address, mtu: info.mtu, hold })
}

/// Nobody is there, so a switch can be.
fn is_free(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// Why there is no port.
enum Lost {
    /// That is the answer.
    Answer(Failure),
    /// The switch went away meanwhile: another one may be there soon.
    Switch(Failure),
}

impl From<ClientError> for Lost {
    fn from(e: ClientError) -> Self {
        match e {
            ClientError::Refused { .. } => Self::Answer(e.into()),
            _ => Self::Switch(e.into()),
        }
    }
}

impl From<Failure> for Lost {
    fn from(failure: Failure) -> Self {
        Self::Answer(failure)
    }
}
