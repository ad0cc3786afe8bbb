//! `vmlan stop`: the end of a running switch, which is waited for.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use clap::Args;
use hyper::Method;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

use super::ApiArgs;
use crate::exit::Failure;
use crate::output::{print, print_json};
use vmlan_api::client::ClientError;
use vmlan_api::{Client, HowToStop};
use vmlan_engine::info::ProcessInfo;

/// How long a switch may take to end: it unmaps the memory of its VMs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks whether it still answers, where its process cannot be seen.
const LOOK: Duration = Duration::from_millis(20);

/// Arguments of `vmlan stop`.
#[derive(Debug, Args)]
pub(super) struct StopArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// VMs' connections are not held for the next switch (`vmlan switch --hold-for`): their
    /// emulated NICs end with this one
    #[arg(long)]
    for_good: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &StopArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let process = client.get("/v1/process")?;
    let life = Life::of(&client, &process)?;
    stop(&client, args.for_good)?;
    life.end(&process)?;
    let held = process.hold_for.filter(|_| !args.for_good);
    if args.json {
        return print_json(&json!({ "pid": process.pid, "held_for": held }));
    }
    let held = held.map_or_else(String::new, |seconds| {
        format!("; VMs' NICs are held for {seconds} s, for the next switch")
    });
    print(&format!("stopped: process {}{held}\n", process.pid))
}

/// Asks the switch to end.
pub(super) fn stop(client: &Client, for_good: bool) -> Result<ProcessInfo, ClientError> {
    client.send(&Method::POST, "/v1/stop", &HowToStop { for_good })
}

/// Of a switch.
pub(super) enum Life {
    Process(OwnedFd),
    /// Its process cannot be seen from here: as long as it answers.
    Api(Client),
}

impl Life {
    /// Of the switch that says that it is `process`. It is believed if the kernel says the same of
    /// who listens, or if that is a service manager.
    pub(super) fn of(client: &Client, process: &ProcessInfo) -> Result<Self, Failure> {
        let connection = client.connect()?;
        let peer = rustix::net::sockopt::socket_peercred(&connection).map(|peer| peer.pid);
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let same = pid.filter(|pid| process.service || peer == Ok(*pid));
        let process = same.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(process.map_or_else(|| Self::Api(client.clone()), Self::Process))
    }

    /// Waits for its end.
    pub(super) fn end(&self, process: &ProcessInfo) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        while !self.has_ended() {
            if Instant::now() >= end {
                let (pid, seconds) = (process.pid, PATIENCE.as_secs());
                let text = format!("the switch (process {pid}) has not ended within {seconds} s");
                return Err(Failure::Failed(text));
            }
        }
        Ok(())
    }

    /// Looks, and waits for a moment if it has not.
    fn has_ended(&self) -> bool {
        match self {
            Self::Process(process) => {
                let wait = Timespec::try_from(LOOK).ok();
                let mut one = [PollFd::new(process, PollFlags::IN)];
                poll(&mut one, wait.as_ref()).is_ok_and(|ready| ready > 0)
            }
            Self::Api(client) => {
                let gone = client.connect().is_err();
                if !gone {
                    std::thread::sleep(LOOK);
                }
                gone
            }
        }
    }
}
