use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::Method;

use super::client::ClientError;
use super::routes::{NoRoute, Route, all, find, percent_decode};
use super::*;
use vmlan_config::refusal::{Cause, Refusal};
use vmlan_engine::action::{Action, Holder};
use vmlan_engine::info::PortInfo;
use vmlan_engine::stats::Stats;

#[test]
fn the_description_lists_exactly_the_routes() {
    let description: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
    let mut described = BTreeSet::new();
    for (path, item) in description["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|k| *k != "parameters") {
            described.insert((method.to_uppercase(), path.clone()));
        }
    }
    let routes: BTreeSet<_> =
        all().iter().map(|(m, p)| ((*m).to_owned(), (*p).to_owned())).collect();
    assert_eq!(described, routes);
}

#[test]
fn every_reference_of_the_description_leads_somewhere() {
    fn walk(value: &serde_json::Value, root: &serde_json::Value, found: &mut usize) {
        match value {
            serde_json::Value::Object(map) => {
                if let Some(target) = map.get("$ref").and_then(|r| r.as_str()) {
                    let target = root.pointer(target.trim_start_matches('#'));
                    assert!(target.is_some(), "{map:?}");
                    *found += 1;
                }
                map.values().for_each(|v| walk(v, root, found));
            }
            serde_json::Value::Array(list) => list.iter().for_each(|v| walk(v, root, found)),
            _ => {}
        }
    }
    let root = serde_json::from_str(OPENAPI).unwrap();
    let mut found = 0;
    walk(&root, &root, &mut found);
    assert!(found > 30, "{found}");
}

#[test]
fn paths_lead_to_routes() {
    let get = |path: &str| find(&Method::GET, path);
    assert_eq!(get("/v1/ports"), Ok(Route::ListPorts));
    assert_eq!(get("/v1/ports/vm1"), Ok(Route::GetPort("vm1".into())));
    assert_eq!(
        find(&Method::DELETE, "/v1/fdb/52%3A54:00:00:00:01"),
        Ok(Route::RemoveMac("52:54:00:00:00:01".into()))
    );
    for path in ["/", "/v1/ports/", "/v1/ports/a/b", "/v1/portsx", "/v1/ports/%zz", "/v1/ports/%ff"]
    {
        assert_eq!(get(path), Err(NoRoute::Path), "{path}");
    }
    assert_eq!(find(&Method::PUT, "/v1/ports"), Err(NoRoute::Method(vec!["GET", "POST"])));
    assert_eq!(percent_decode("a%2"), None);
}

/// A server with a control thread that knows no ports but those that are held.
pub(super) struct Rig {
    _dir: tempfile::TempDir,
    pub(super) place: PathBuf,
    server: Option<Server>,
    control: Option<JoinHandle<()>>,
}

pub(super) fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("api.sock");
    let (sender, actions) = channel();
    let control = std::thread::spawn(move || answer_all(&actions));
    let claim = Claim::new(&place, 0o600).unwrap();
    let server = Server::start(claim.publish().unwrap(), None, sender).unwrap();
    Rig { _dir: dir, place, server: Some(server), control: Some(control) }
}

fn answer_all(actions: &Receiver<Action>) {
    let mut held: Vec<Holder> = Vec::new();
    for action in actions {
        match action {
            Action::ListPorts(reply) => {
                drop(reply.send(Ok(vec![PortInfo::default(); held.len()])));
            }
            Action::AddPort(named, Some(holder), reply) => {
                held.push(holder);
                let name = named.name.to_string();
                drop(reply.send(Ok(PortInfo { name, ..PortInfo::default() })));
            }
            Action::RemovePort(_, reply) if !held.is_empty() => {
                held.clear();
                drop(reply.send(Ok(())));
            }
            Action::HolderGone => held.retain(|holder| !holder.is_closed()),
            Action::Stats(reply) => drop(reply.send(Ok(Stats::default()))),
            Action::AddPort(named, _, reply) => {
                let refusal = Refusal::new(Cause::Exists, format!("port {}: taken", named.name));
                drop(reply.send(Err(refusal)));
            }
            Action::GetPort(name, reply) => drop(reply.send(Err(Refusal::no_port(&name)))),
            // Dropping the reply is what a stopping control thread does.
            _ => {}
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.server.take());
        assert!(!self.place.exists(), "the socket is left behind");
        self.control.take().unwrap().join().unwrap();
    }
}

fn new_port(name: &str) -> NewPort {
    NewPort { name: name.into(), address: "stream:/run/s.sock".into(), hold: true }
}

#[test]
fn a_port_that_is_held_lasts_as_long_as_its_connection() {
    let rig = rig();
    let client = Client::new(&rig.place);
    let count = || client.get::<PortList>("/v1/ports").unwrap().ports.len();
    let until = |n: usize| {
        let end = Instant::now() + Duration::from_secs(60);
        while count() != n {
            assert!(Instant::now() < end, "{} of {n} ports", count());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // More than connections that are served at once: these are not counted.
    let hold = |n| {
        let (port, fd) = client.hold(client.connect().unwrap(), &new_port(&format!("p{n}")))?;
        assert_eq!(port.name, format!("p{n}"));
        Ok::<_, ClientError>(fd)
    };
    let mut held: Vec<_> = (0..80).map(|n| hold(n).unwrap()).collect();
    assert_eq!(count(), 80);
    let copy = held[0].try_clone().unwrap();
    held.clear();
    until(1);
    drop(copy);
    until(0);
}

#[test]
fn who_holds_a_port_asks_for_nothing_else_and_hears_of_its_end() {
    let rig = rig();
    let body = serde_json::to_string(&new_port("p")).unwrap();
    let mut stream = UnixStream::connect(&rig.place).unwrap();
    write!(
        stream,
        "POST /v1/ports HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}\
         GET /v1/stats HTTP/1.1\r\nhost: x\r\n\r\n",
        body.len()
    )
    .unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 201");
    Client::new(&rig.place).delete("/v1/ports/p").unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"name\":\"p\"") && !rest.contains("HTTP/1.1"), "{rest}");
}

fn raw(place: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(place).unwrap();
    // The server may answer and hang up before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(rig: &Rig, method: &Method, path: &str, body: &str) -> (u16, String) {
    match Client::new(&rig.place).call(method, path, body.into()) {
        Ok(_) => (200, String::new()),
        Err(ClientError::Refused { status, message }) => (status.as_u16(), message),
        Err(e) => panic!("{method} {path}: {e}"),
    }
}

#[test]
fn wrong_requests_get_an_answer_that_says_so() {
    let rig = rig();
    for (method, path, body, code, said) in [
        (Method::GET, "/v1/ports", "", 200, ""),
        (Method::GET, "/v1/nothing", "", 404, "see /v1/openapi.json"),
        (Method::PUT, "/v1/ports", "", 405, "use GET, POST"),
        (Method::POST, "/v1/ports", "{", 400, "the body"),
        (Method::POST, "/v1/ports", r#"{"name":"a"}"#, 400, "missing field `address`"),
        (
            Method::POST,
            "/v1/ports",
            r#"{"name":"a","address":"tap:x","x":1}"#,
            400,
            "unknown field",
        ),
        (Method::POST, "/v1/ports", r#"{"name":"a","address":"tpa:x"}"#, 400, "port a: 'tpa'"),
        (
            Method::POST,
            "/v1/ports",
            r#"{"name":"a b","address":"tap:x"}"#,
            400,
            "'a b' is not a valid name",
        ),
        (Method::POST, "/v1/ports", r#"{"name":"a","address":"tap:x"}"#, 409, "port a: taken"),
        (Method::GET, "/v1/ports/a", "", 404, "port a: there is none"),
        (Method::PATCH, "/v1/ports/a", "{}", 400, "nothing to set"),
        (Method::PATCH, "/v1/ports/a", r#"{"mode":[1]}"#, 400, "mode: give a text"),
        (Method::DELETE, "/v1/ports/a", "", 500, "stopping"),
        (Method::DELETE, "/v1/fdb/zz", "", 400, "'zz' is not a MAC address"),
        (Method::POST, "/v1/fdb", r#"{"mac":"1","port":"a"}"#, 400, "not a MAC address"),
        (Method::GET, "/v1/vm-args/a?vmm=qemi", "", 400, "did you mean 'qemu'?"),
        (Method::GET, "/v1/vm-args/a?vm=qemu", "", 400, "not a parameter of vm-args"),
        (Method::GET, "/v1/vm-args/a?vmm=qemu", "", 404, "port a: there is none"),
    ] {
        let (got, message) = status(&rig, &method, path, body);
        let message_ok = message.replace('`', "'").contains(&said.replace('`', "'"));
        assert!(got == code && message_ok, "{method} {path} {body}: {got} {message}");
    }
}

#[test]
fn garbage_big_bodies_and_dribblers_trouble_nobody_else() {
    let rig = rig();
    assert!(raw(&rig.place, b"\x00\xff\r\n\r\n").starts_with("HTTP/1.1 400"));
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(100_000));
    let answer = raw(&rig.place, long.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    let body = "x".repeat(100_000);
    let (code, message) = status(&rig, &Method::POST, "/v1/ports", &body);
    assert!(code == 400 && message.contains("at most 65536 bytes"), "{code} {message}");
    // As many half requests as there are seats but one.
    let mut slow: Vec<_> = (0..63).map(|_| UnixStream::connect(&rig.place).unwrap()).collect();
    slow.iter_mut().for_each(|s| s.write_all(b"GET /v1/sta").unwrap());
    assert_eq!(status(&rig, &Method::GET, "/v1/stats", "").0, 200);
}

#[test]
fn a_place_is_taken_only_if_nobody_else_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("api.sock");
    let claim = || Claim::new(&place, 0o640);
    let files = || fs::read_dir(dir.path()).unwrap().count();

    drop(claim().unwrap());
    assert_eq!(files(), 0, "a claim that is given up leaves nothing");

    fs::write(&place, "precious").unwrap();
    assert!(matches!(claim(), Err(SocketError::InTheWay(_))));
    assert_eq!(fs::read_to_string(&place).unwrap(), "precious");
    fs::remove_file(&place).unwrap();

    let other = UnixListener::bind(&place).unwrap();
    assert!(matches!(claim(), Err(SocketError::Taken(_))));
    drop(other);
    let (listener, file) = claim().unwrap().publish().unwrap();
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(matches!(claim(), Err(SocketError::Taken(_))));
    drop(file);
    assert_eq!(files(), 0);
    drop(listener);

    // Somebody else's file in our place is not ours to remove.
    let (_listener, file) = claim().unwrap().publish().unwrap();
    fs::remove_file(&place).unwrap();
    fs::write(&place, "precious").unwrap();
    drop(file);
    assert!(place.exists());
    let long = dir.path().join("x".repeat(108));
    assert!(matches!(Claim::new(&long, 0o600), Err(SocketError::TooLong(_))));
}

#[test]
fn no_switch_is_an_error_that_says_what_to_do() {
    let error =
        Client::new(Path::new("/nonexistent/api.sock")).call(&Method::GET, "/", String::new());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("/nonexistent/api.sock") && error.contains("vmlan switch"), "{error}");
}

#[test]
fn the_json_of_errors_is_a_contract() {
    let rig = rig();
    let ask = |request: &str, body: &str| {
        let length = body.len();
        let head = format!("host: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        let answer = raw(&rig.place, format!("{request} HTTP/1.1\r\n{head}{body}").as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let json = head.to_lowercase().contains("\r\ncontent-type: application/json\r\n");
        assert!(json, "{head}");
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    };
    for (request, body, status, error) in [
        (
            "GET /v1/ports/a",
            "",
            "HTTP/1.1 404 Not Found",
            r#"{"error":"port a: there is none: see `vmlan port list`"}"#,
        ),
        (
            "POST /v1/ports",
            r#"{"name":"a","address":"tap:x"}"#,
            "HTTP/1.1 409 Conflict",
            r#"{"error":"port a: taken"}"#,
        ),
        (
            "DELETE /v1/ports/a",
            "",
            "HTTP/1.1 500 Internal Server Error",
            r#"{"error":"the switch is stopping"}"#,
        ),
        (
            "PATCH /v1/ports/a",
            "{}",
            "HTTP/1.1 400 Bad Request",
            r#"{"error":"there is nothing to set: give at least one key"}"#,
        ),
        (
            "PUT /v1/ports",
            "",
            "HTTP/1.1 405 Method Not Allowed",
            r#"{"error":"/v1/ports: this method is not for it: use GET, POST"}"#,
        ),
    ] {
        assert_eq!(ask(request, body), (status.to_owned(), error.to_owned()), "{request}");
    }
}

#[test]
fn a_refusal_is_one_line_whatever_it_repeats() {
    let rig = rig();
    let body = "{\"te\\nxt\\u001b[2J\": 1}";
    let length = body.len();
    let head = format!("POST /v1/apply HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n");
    let answer = raw(&rig.place, format!("{head}connection: close\r\n\r\n{body}").as_bytes());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let said: ErrorBody = serde_json::from_str(body).unwrap();
    assert!(said.error.contains("te?xt?[2J"), "{}", said.error);
}
