use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use super::{MAX_BODY, SCRIPT, Web, WebError, is_ours};
use crate::Client;
use crate::tests::{Rig, rig};

const SECRET: &str = "a-token-of-enough-characters";
const HERE: &str = "host: 127.0.0.1:8780";

/// A page over a switch; `own`: as if only this host could connect.
fn page(secret: Option<&str>, own: bool) -> (SocketAddr, Rig) {
    let rig = rig();
    let any = "127.0.0.1:0".parse().unwrap();
    let mut web = Web::bind(any, secret, Client::new(&rig.place)).unwrap();
    web.guard.own = own;
    let address = web.address().unwrap();
    // It serves until the tests end.
    std::thread::spawn(|| web.serve());
    (address, rig)
}

/// Status and text of the answer to a request with these further lines.
fn ask(at: SocketAddr, first: &str, lines: &[&str], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    let mut request = format!("{first} HTTP/1.1\r\nconnection: close\r\n");
    for line in lines {
        request += &format!("{line}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    // A server that refuses early may reset the connection.
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    (status, answer)
}

const STATS: &str = "GET /v1/stats";
const REMOVE: &str = "DELETE /v1/ports/vm1";

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}")
}

#[test]
fn the_page_comes_with_headers_that_keep_others_out() {
    let (at, _rig) = page(None, true);
    for (first, kind) in [("GET /", "text/html"), ("GET /page.js", "text/javascript")] {
        let (status, answer) = ask(at, first, &[HERE], "");
        assert_eq!(status, 200, "{answer}");
        for words in [kind, "default-src 'none'", "frame-ancestors 'none'", "nosniff"] {
            assert!(answer.contains(words), "{first}: no {words}: {answer}");
        }
    }
    assert_eq!(ask(at, "GET /other", &[HERE], "").0, 404);
    let (status, answer) = ask(at, STATS, &[HERE], "");
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("\"ports\":[]") && answer.contains("default-src"), "{answer}");
    // For Prometheus, which reads no UNIX socket.
    let (status, answer) = ask(at, "GET /metrics", &[HERE], "");
    assert!(status == 200 && answer.contains("text/plain"), "{answer}");
}

#[test]
fn the_switchs_refusals_come_through() {
    let (at, rig) = page(None, true);
    let (status, answer) = ask(at, "GET /v1/ports/vm9", &[HERE], "");
    assert_eq!(status, 404, "{answer}");
    assert!(answer.contains("vm9"), "{answer}");
    assert_eq!(ask(at, "GET /v1/nothing", &[HERE], "").0, 404);
    drop(rig);
    let (status, answer) = ask(at, STATS, &[HERE], "");
    assert_eq!(status, 502, "{answer}");
    assert!(answer.contains("no switch answers there"), "{answer}");
}

#[test]
fn other_pages_and_other_names_are_refused() {
    let (at, _rig) = page(Some(SECRET), true);
    let told = bearer(SECRET);
    for lines in [
        &["host: evil.example:8780"][..],
        &["host: evil.example"],
        &["host: localhost.evil.example"],
        &["host: "],
        &[],
        &[HERE, "origin: http://evil.example"],
        &[HERE, "origin: http://127.0.0.1:9999"],
        &[HERE, "origin: null"],
        &[HERE, "sec-fetch-site: cross-site"],
        &[HERE, "sec-fetch-site: same-site"],
    ] {
        for first in [STATS, REMOVE, "GET /"] {
            let lines = [lines, &[told.as_str()]].concat();
            let (status, answer) = ask(at, first, &lines, "");
            // Without any host it is no request.
            assert!(matches!(status, 400 | 403), "{first} {lines:?}: {answer}");
        }
    }
    for lines in [
        &["host: localhost:8780"][..],
        &["host: [::1]:8780"],
        &["host: 192.168.1.7"],
        &[HERE, "origin: http://127.0.0.1:8780", "sec-fetch-site: same-origin"],
        &[HERE, "sec-fetch-site: none"],
    ] {
        assert_eq!(ask(at, STATS, lines, "").0, 200, "{lines:?}");
    }
}

#[test]
fn without_the_token_nothing_changes() {
    let (reader, _rig) = page(None, true);
    for first in [REMOVE, "POST /v1/ports", "PATCH /v1/ports/vm1", "PUT /v1/limits/a"] {
        let (status, answer) = ask(reader, first, &[HERE], "{}");
        assert_eq!(status, 403, "{answer}");
        assert!(answer.contains("--token"), "{answer}");
    }
    let (at, _rig) = page(Some(SECRET), true);
    assert_eq!(ask(at, STATS, &[HERE], "").0, 200);
    let almost = SECRET.replace('s', "t");
    for wrong in ["", "a", &SECRET[1..], &format!("{SECRET}x"), &almost] {
        assert_eq!(ask(at, REMOVE, &[HERE, &bearer(wrong)], "").0, 401, "{wrong}");
    }
    assert_eq!(ask(at, REMOVE, &[HERE, &format!("authorization: {SECRET}")], "").0, 401);
    // The switch is asked: it has no such port, and says so in its way.
    let status = ask(at, REMOVE, &[HERE, &bearer(SECRET)], "").0;
    assert!(!matches!(status, 401 | 403), "{status}");
}

#[test]
fn where_others_can_connect_reading_wants_the_token() {
    let (at, _rig) = page(Some(SECRET), false);
    assert_eq!(ask(at, "GET /", &[HERE], "").0, 200, "what anybody may read: it holds nothing");
    assert_eq!(ask(at, STATS, &[HERE], "").0, 401);
    assert_eq!(ask(at, STATS, &[HERE, &bearer(SECRET)], "").0, 200);
}

/// One has no end, and would take a seat from those who listen; so would a port that is held.
#[test]
fn no_answer_goes_on() {
    let (at, _rig) = page(Some(SECRET), true);
    let (status, answer) = ask(at, "GET /v1/events", &[HERE], "");
    assert!(status == 404 && answer.contains("the API's socket"), "{answer}");
    let held = r#"{"name":"a","address":"stream:/a","hold":true}"#;
    let (status, answer) = ask(at, "POST /v1/ports", &[HERE, &bearer(SECRET)], held);
    assert!(status == 400 && answer.contains("`hold`"), "{answer}");
    let (status, answer) =
        ask(at, "POST /v1/ports", &[HERE, &bearer(SECRET)], &held.replace("true", "false"));
    assert!(status == 409 && answer.contains("taken"), "{answer}");
}

/// What `then` prints after the page's script, in Node.js with nothing of a browser that shows
/// anything. `None`: that is not installed.
fn script(then: &str) -> Option<String> {
    let program = format!(
        r##"
        globalThis.location = {{ hash: "#token=ab+c/d%2Be=" }};
        const element = () => ({{
          replaceChildren() {{}}, append() {{}}, setAttribute() {{}}, addEventListener() {{}},
        }});
        globalThis.document = {{ hidden: true, getElementById: element, createElementNS: element }};
        {SCRIPT}
        (async () => {{ {then} process.exit(0); }})();"##
    );
    let out = match std::process::Command::new("node").args(["-e", &program]).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: no node, of Node.js");
            return None;
        }
        out => out.unwrap(),
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8(out.stdout).unwrap())
}

#[test]
fn the_page_knows_tokens_and_techniques_as_they_are_written() {
    let said = script(
        r#"const vm = { name: "vm1", kind: "vfio-user" };
        const shown = (keys) => {
          known.ports = [{ ...vm, address: "vfio-user:/a" + keys }];
          return technique("vm1");
        };
        console.log([token, shown(",csb,mtu=1"), shown(",model=r8169,csb"), shown(",csb=off"),
          shown(",doorbell=mapped")].join(";"));"#,
    );
    let right = "ab+c/d+e=;e1000, CSB;r8169, CSB;e1000;e1000, mapped\n";
    assert!(said.as_deref().is_none_or(|said| said == right), "{said:?}");
}

#[test]
fn a_forward_is_added_to_those_that_there_are_now() {
    let said = script(
        r#"const asked = [];
        const now = { ports: [], leases: [], forwards: [
          { net: "net", forward: "tcp:127.0.0.1:1:a:1" }, { net: "lan", forward: "udp:::2:b:2" }] };
        globalThis.fetch = async (path, { method, body }) => {
          if (method !== "GET") asked.push(`${method} ${path} ${body}`);
          return { ok: true, text: async () => JSON.stringify(now) };
        };
        await forward("net", "2222:vm1:22", null);
        await forward("net", null, "tcp:127.0.0.1:1:a:1");
        console.log(asked.join("\n"));"#,
    );
    let right = "PATCH v1/ports/net {'forward':'tcp:127.0.0.1:1:a:1+2222:vm1:22'}\n\
                 PATCH v1/ports/net {'forward':''}\n"
        .replace('\'', "\"");
    assert!(said.as_deref().is_none_or(|said| said == right), "{said:?}");
}

#[test]
fn requests_are_bounded() {
    let (at, _rig) = page(Some(SECRET), true);
    let long = "x".repeat(MAX_BODY + 1);
    let (status, _) = ask(at, "POST /v1/ports", &[HERE, &bearer(SECRET)], &long);
    assert!(matches!(status, 0 | 400), "{status}");
    let huge = format!("x: {}", "y".repeat(200_000));
    let (status, _) = ask(at, STATS, &[HERE, &huge], "");
    assert!(matches!(status, 0 | 400 | 431), "{status}");
    // Those that say nothing keep nobody out.
    let _silent: Vec<_> = (0..40).map(|_| TcpStream::connect(at).unwrap()).collect();
    assert_eq!(ask(at, STATS, &[HERE], "").0, 200);
}

#[test]
fn what_cannot_be_served_is_said() {
    let bind = |address: &str, secret| {
        Web::bind(address.parse().unwrap(), secret, Client::new(Path::new("/none")))
    };
    assert!(matches!(bind("0.0.0.0:0", None), Err(WebError::Open { .. })));
    assert!(matches!(bind("[::]:0", None), Err(WebError::Open { .. })));
    for wrong in ["", "short", "with a space in its middle"] {
        assert!(matches!(bind("127.0.0.1:0", Some(wrong)), Err(WebError::Token)), "{wrong}");
    }
    let line = format!("{SECRET}\n");
    let taken = bind("127.0.0.1:0", Some(&line)).unwrap();
    let again = bind(&taken.address().unwrap().to_string(), None).unwrap_err();
    assert!(again.to_string().contains("a port that is free"), "{again}");
}

#[test]
fn hosts_are_told_apart() {
    for ours in ["127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8780", "LocalHost:1", "10.0.0.1"] {
        assert!(is_ours(ours), "{ours}");
    }
    for not in ["", "a", "a:80", "127.0.0.1.evil", "localhost.", "evil/127.0.0.1", "x@127.0.0.1"] {
        assert!(!is_ours(not), "{not}");
    }
}
