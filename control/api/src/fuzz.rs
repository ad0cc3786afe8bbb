//! The body of the fuzz target `api`: what a client of the API writes into its socket, up to the
//! actions that come of it. Kept inputs are replayed as a plain test.
//!
//! An input is what the client writes before it shuts its side. All that it asks for is granted.
#![allow(clippy::expect_used, clippy::panic)]

use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use vmlan_config::refusal::Refusal;
use vmlan_engine::action::{Action, Reply};
use vmlan_engine::info::{FdbLine, PortInfo};

use super::ErrorBody;
use super::server::connection;

/// Turns that the server gets for whatever there is to do before it is taken to wait for more.
const TURNS: usize = 64;

struct World {
    runtime: Runtime,
    control: Sender<Action>,
    actions: Receiver<Action>,
}

thread_local! {
    static WORLD: World = world();
}

fn world() -> World {
    // Sockets are looked at in each turn.
    let runtime = Builder::new_current_thread().enable_all().event_interval(1).build();
    let (control, actions) = channel();
    World { runtime: runtime.expect("an event loop"), control, actions }
}

fn yes<T: Default>(reply: Reply<T>) {
    let _ = reply.send(Ok(T::default()));
}

/// The control thread: everything is there but what has a name with an x, and nothing happens.
fn grant(action: Action) {
    let address = "vhost-user:/run/vm1.sock".to_owned();
    let port = PortInfo { name: "vm1".into(), address, ..PortInfo::default() };
    match action {
        Action::GetPort(name, reply) | Action::SetPort(name, _, reply) => {
            let gone = name.as_str().contains('x');
            let _ = reply.send(if gone { Err(Refusal::no_port(&name)) } else { Ok(port) });
        }
        Action::ListPorts(reply) => _ = reply.send(Ok(vec![port])),
        Action::AddPort(_, _, reply) => yes(reply),
        Action::AddMac(_, _, _, reply) => _ = reply.send(Ok(line())),
        Action::ListFdb(reply) => _ = reply.send(Ok(vec![line()])),
        Action::RemovePort(_, reply) | Action::RemoveLimit(_, reply) => yes(reply),
        Action::RemoveMac(_, _, reply) => yes(reply),
        Action::ListLimits(reply) => yes(reply),
        Action::GetLimit(_, reply) | Action::SetLimit(_, _, reply) => yes(reply),
        Action::Apply(_, _, _, _, reply) => yes(reply),
        Action::GetGeneration(reply) => yes(reply),
        Action::GetProcess(reply) | Action::End(_, reply) => yes(reply),
        Action::Listen(reply) => drop(reply),
        Action::GetSflow(reply) | Action::SetSflow(_, reply) => yes(reply),
        Action::ListLeases(reply) => yes(reply),
        Action::RemoveLease(_, reply) => yes(reply),
        Action::ListForwards(reply) => yes(reply),
        Action::Stats(reply) => yes(reply),
        Action::Explain(_, _, reply) => yes(reply),
        Action::HolderGone | Action::PortChanged | Action::Stop | Action::HandOver => {}
    }
}

fn line() -> FdbLine {
    let (mac, port) = ("52:54:00:00:00:01".into(), "vm1".into());
    FdbLine { mac, vlan: Some(10), qinq: None, port, r#static: true, age: None }
}

/// Answers one client.
///
/// # Panics
/// If an answer is not one, or something that was granted fails.
pub fn api(data: &[u8]) {
    let answer = WORLD.with(|world| {
        let talk = talk(data, world.control.clone(), &world.actions);
        world.runtime.block_on(talk).expect("a pair of sockets")
    });
    // The answer to HEAD has no body, whatever it says.
    if !data.windows(4).any(|word| word == b"HEAD") {
        answers(&answer);
    }
}

async fn talk(
    data: &[u8],
    control: Sender<Action>,
    actions: &Receiver<Action>,
) -> std::io::Result<Vec<u8>> {
    let (mut client, server) = UnixStream::pair()?;
    let served = tokio::spawn(connection(server, control, None));
    // It may have hung up already.
    let _ = client.write_all(data).await;
    let (mut answer, mut idle) = (Vec::new(), 0);
    while idle < TURNS {
        idle += 1;
        for action in actions.try_iter() {
            grant(action);
            idle = 0;
        }
        let mut part = [0; 4096];
        match client.try_read(&mut part) {
            Ok(0) => break,
            Ok(n) => {
                answer.extend(&part[..n]);
                idle = 0;
            }
            Err(_) => {}
        }
        tokio::task::yield_now().await;
    }
    let _ = client.shutdown().await;
    let _ = client.read_to_end(&mut answer).await;
    served.await.expect("it does not panic");
    // What it had asked for when it was hung up on.
    actions.try_iter().for_each(grant);
    Ok(answer)
}

/// Answers stand one behind the other; those that refuse say why.
fn answers(mut rest: &[u8]) {
    while !rest.is_empty() {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut fields);
        let head = response.parse(rest).expect("HTTP").unwrap();
        let code = response.code.unwrap_or(0);
        let length =
            response.headers.iter().find(|f| f.name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|f| std::str::from_utf8(f.value).ok()?.parse().ok());
        if code == 201 && length.is_none() {
            // A port that is held: the answer lasts as long, and none follows it.
            return;
        }
        let (body, next) = rest[head..].split_at(length.unwrap_or(0));
        assert_ne!(code, 500, "{}", String::from_utf8_lossy(body));
        if code >= 400 && !body.is_empty() {
            let said: ErrorBody = serde_json::from_slice(body).expect("JSON");
            assert!(
                !said.error.is_empty() && !said.error.contains(char::is_control),
                "{:?}",
                said.error
            );
        }
        rest = next;
    }
}

#[cfg(test)]
#[test]
fn kept_inputs() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/api");
    let files: Vec<_> = std::fs::read_dir(corpus).unwrap().collect();
    assert!(files.len() >= 16, "the seeds are gone from {corpus}");
    for file in files {
        api(&std::fs::read(file.unwrap().path()).unwrap());
    }
}
