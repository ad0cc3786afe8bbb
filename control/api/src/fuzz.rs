//! The body of the fuzz target `api`: what a client of the API writes into its socket, up to the
//! actions that come of it. Kept inputs are replayed as a plain test.
//!
//! An input is what the client writes before it shuts its side. All that it asks for is granted.
#![allow(clippy::expect_used, clippy::panic)]

use std::cell::OnceCell;
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use vmlan_config::refusal::Refusal;
use vmlan_engine::action::{Action, Reply};
use vmlan_engine::info::PortInfo;

use super::ErrorBody;
use super::server::connection;

struct World {
    runtime: Runtime,
    control: Sender<Action>,
}

thread_local! {
    static WORLD: OnceCell<World> = const { OnceCell::new() };
}

fn world() -> World {
    let runtime = Builder::new_current_thread().enable_all().build().expect("an event loop");
    let (control, actions) = channel();
    std::thread::spawn(move || grant(&actions));
    World { runtime, control }
}

/// The control thread: everything is there, and nothing happens.
fn grant(actions: &Receiver<Action>) {
    fn yes<T: Default>(reply: Reply<T>) {
        let _ = reply.send(Ok(T::default()));
    }
    let address = "vhost-user:/run/vm1.sock".to_owned();
    let port = PortInfo { name: "vm1".into(), address, ..PortInfo::default() };
    for action in actions {
        match action {
            Action::GetPort(_, reply) => _ = reply.send(Ok(port.clone())),
            Action::AddPort(named, reply) => {
                let exists = named.name.as_str() == "vm1";
                let _ = reply.send(if exists {
                    Err(Refusal::no_port(&named.name))
                } else {
                    Ok(port.clone())
                });
            }
            Action::AddMac(_, name, _, reply) => _ = reply.send(Err(Refusal::no_port(&name))),
            Action::ListPorts(reply) => _ = reply.send(Ok(vec![port.clone()])),
            Action::SetPort(_, _, reply) => yes(reply),
            Action::RemovePort(_, reply) | Action::RemoveLimit(_, reply) => yes(reply),
            Action::RemoveMac(_, _, reply) => yes(reply),
            Action::ListFdb(reply) => yes(reply),
            Action::ListLimits(reply) => yes(reply),
            Action::GetLimit(_, reply) | Action::SetLimit(_, _, reply) => yes(reply),
            Action::Apply(_, _, reply) => yes(reply),
            Action::GetSflow(reply) | Action::SetSflow(_, reply) => yes(reply),
            Action::Stats(reply) => yes(reply),
            Action::Explain(_, _, reply) => yes(reply),
            Action::PortChanged | Action::Stop => {}
        }
    }
}

/// Answers one client.
///
/// # Panics
/// If an answer is not one, or something that was granted fails.
pub fn api(data: &[u8]) {
    let answer = WORLD.with(|world| {
        let world = world.get_or_init(self::world);
        world.runtime.block_on(talk(data, world.control.clone())).expect("a pair of sockets")
    });
    // The answer to HEAD has no body, whatever it says.
    if !data.windows(4).any(|word| word == b"HEAD") {
        answers(&answer);
    }
}

async fn talk(data: &[u8], control: Sender<Action>) -> std::io::Result<Vec<u8>> {
    let (mut client, server) = UnixStream::pair()?;
    let served = tokio::spawn(connection(server, control));
    // It may have hung up already.
    let _ = client.write_all(data).await;
    let _ = client.shutdown().await;
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    served.await.expect("it does not panic");
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
        let (body, next) = rest[head..].split_at(length.unwrap_or(0));
        assert_ne!(code, 500, "{}", String::from_utf8_lossy(body));
        if code >= 400 && !body.is_empty() {
            let said: ErrorBody = serde_json::from_slice(body).expect("JSON");
            assert!(!said.error.is_empty() && !said.error.contains('\n'), "{:?}", said.error);
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
