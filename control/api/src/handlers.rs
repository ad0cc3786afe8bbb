//! Answers requests: parses them, asks the control thread, and puts the answer into JSON.

use std::sync::mpsc::Sender;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use vmlan_frame::Mac;

use super::body::{AnswerBody, Hold};
use super::events::EventStream;
use super::limits;
use super::routes::{self, NoRoute, Route};
use super::{
    ErrorBody, FdbList, ForwardList, HowToStop, LeaseList, NewMac, NewPort, OPENAPI, PortList,
    WhatIf,
};
use crate::prometheus::prometheus;
use vmlan_config::address::{NamedAddress, PortName, SflowTable};
use vmlan_config::refusal::{Cause, Refusal};
use vmlan_config::vm_args::{QemuVersion, Vmm, Wanted, vm_args};
use vmlan_engine::action::{Action, Reply};
use vmlan_engine::explain::frame::parse_hex;

/// Time for a body to arrive.
const BODY: Duration = Duration::from_secs(10);

pub(super) type Answer = Response<AnswerBody>;

/// Answers one request; whatever goes wrong is an answer too.
pub(super) async fn answer(request: Request<Incoming>, control: Sender<Action>) -> Answer {
    let route = match routes::find(request.method(), request.uri().path()) {
        Ok(route) => route,
        Err(none) => return no_route(&none, request.uri().path()),
    };
    let query = request.uri().query().unwrap_or_default().to_owned();
    let done = match read(request, route.max_body()).await {
        Ok(body) => dispatch(route, &query, &body, &control).await,
        Err(refusal) => Err(refusal),
    };
    done.unwrap_or_else(|refusal| refused(&refusal))
}

async fn dispatch(
    route: Route,
    query: &str,
    body: &[u8],
    control: &Sender<Action>,
) -> Result<Answer, Refusal> {
    match route {
        Route::ListPorts => {
            let ports = ask(control, Action::ListPorts).await?;
            json(StatusCode::OK, &PortList { ports })
        }
        Route::AddPort => add_port(body, control).await,
        Route::GetPort(name) => {
            let name = word(&name)?;
            json(StatusCode::OK, &ask(control, |r| Action::GetPort(name, r)).await?)
        }
        Route::RemovePort(name) => {
            let name = word(&name)?;
            ask(control, |r| Action::RemovePort(name, r)).await?;
            Ok(no_content())
        }
        Route::SetPort(name) => {
            let (name, keys) = (word(&name)?, keys(body)?);
            json(StatusCode::OK, &ask(control, |r| Action::SetPort(name, keys, r)).await?)
        }
        Route::ListFdb => {
            let entries = ask(control, Action::ListFdb).await?;
            json(StatusCode::OK, &FdbList { entries })
        }
        Route::AddMac => add_mac(body, control).await,
        Route::RemoveMac(text) => {
            let (mac, vlan) = (mac(&text)?, vlan(query)?);
            ask(control, |r| Action::RemoveMac(mac, vlan, r)).await?;
            Ok(no_content())
        }
        Route::ListLimits
        | Route::GetLimit(_)
        | Route::SetLimit(_)
        | Route::RemoveLimit(_)
        | Route::Apply
        | Route::Generation => limits::answer(route, body, control).await,
        Route::Process | Route::Stop => process(route, body, control).await,
        Route::Events => listen(control).await,
        Route::GetSflow => json(StatusCode::OK, &ask(control, Action::GetSflow).await?),
        Route::SetSflow => export(Some(body), control).await,
        Route::RemoveSflow => export(None, control).await,
        Route::ListLeases => {
            let leases = ask(control, Action::ListLeases).await?;
            json(StatusCode::OK, &LeaseList { leases })
        }
        Route::RemoveLease(of) => {
            ask(control, |r| Action::RemoveLease(of, r)).await?;
            Ok(no_content())
        }
        Route::ListForwards => {
            let forwards = ask(control, Action::ListForwards).await?;
            json(StatusCode::OK, &ForwardList { forwards })
        }
        Route::Stats => json(StatusCode::OK, &ask(control, Action::Stats).await?),
        Route::Explain => what_if(body, control).await,
        Route::VmArgs(name) => how_to_attach(&name, query, control).await,
        Route::OpenApi => Ok(respond(StatusCode::OK, "application/json", OPENAPI.to_owned())),
        Route::Metrics => metrics(control).await,
    }
}

/// What the switch is; asked to stop, it ends, and the answer leaves before.
async fn process(route: Route, body: &[u8], control: &Sender<Action>) -> Result<Answer, Refusal> {
    if route == Route::Process {
        return json(StatusCode::OK, &ask(control, Action::GetProcess).await?);
    }
    let HowToStop { for_good } = parse(body)?;
    json(StatusCode::OK, &ask(control, |r| Action::End(for_good, r)).await?)
}

/// What happens from now on, until the client hangs up.
async fn listen(control: &Sender<Action>) -> Result<Answer, Refusal> {
    let (listener, hello) = ask(control, Action::Listen).await?;
    let body = AnswerBody::events(EventStream::new(listener, &hello));
    Ok(respond(StatusCode::OK, "text/event-stream", body))
}

async fn metrics(control: &Sender<Action>) -> Result<Answer, Refusal> {
    let text = prometheus(&ask(control, Action::Stats).await?);
    Ok(respond(StatusCode::OK, "text/plain; version=0.0.4", text))
}

async fn add_port(body: &[u8], control: &Sender<Action>) -> Result<Answer, Refusal> {
    let new: NewPort = parse(body)?;
    let name = word(&new.name)?;
    let address = new.address.parse().map_err(|e| invalid(format!("port {name}: {e}")))?;
    let named = Box::new(NamedAddress { name, address });
    if !new.hold {
        let made = ask(control, |r| Action::AddPort(named, None, r)).await?;
        return json(StatusCode::CREATED, &made);
    }
    // From here on the port goes when this is hung up on, also before it is there.
    let (hold, holder) = Hold::new(control);
    let made = ask(control, |r| Action::AddPort(named, Some(holder), r)).await?;
    let body = AnswerBody::held(text(&made)? + "\n", hold);
    let mut answer = respond(StatusCode::CREATED, "application/json", body);
    // Who has the connection may be a VMM, which is to ask for nothing.
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(answer)
}

async fn add_mac(body: &[u8], control: &Sender<Action>) -> Result<Answer, Refusal> {
    let new: NewMac = parse(body)?;
    let (mac, port) = (mac(&new.mac)?, word(&new.port)?);
    let made = ask(control, |r| Action::AddMac(mac, port, new.vlan, r)).await?;
    json(StatusCode::CREATED, &made)
}

/// Exports samples as the body says; without a body, stops.
async fn export(body: Option<&[u8]>, control: &Sender<Action>) -> Result<Answer, Refusal> {
    let wrong = |e| invalid(format!("sflow: {e}"));
    let pairs = body.map(keys).transpose()?;
    let table = pairs.map(|p| SflowTable::new(&p)).transpose().map_err(wrong)?;
    let off = table.is_none();
    let info = ask(control, |r| Action::SetSflow(table, r)).await?;
    if off { Ok(no_content()) } else { json(StatusCode::OK, &info) }
}

async fn what_if(body: &[u8], control: &Sender<Action>) -> Result<Answer, Refusal> {
    let what: WhatIf = parse(body)?;
    let (port, frame) = (word(&what.port)?, parse_hex(&what.frame).map_err(invalid)?);
    json(StatusCode::OK, &ask(control, |r| Action::Explain(port, frame, r)).await?)
}

async fn how_to_attach(
    name: &str,
    query: &str,
    control: &Sender<Action>,
) -> Result<Answer, Refusal> {
    let mut wanted = wanted(query)?;
    let name = word(name)?;
    let port = ask(control, |r| Action::GetPort(name.clone(), r)).await?;
    wanted.mtu = port.mtu;
    let address = port.address.parse().map_err(invalid)?;
    let args = vm_args(&name, &address, &wanted).map_err(invalid)?;
    json(StatusCode::OK, &args)
}

/// `vlan=10`, or nothing.
fn vlan(query: &str) -> Result<Option<u16>, Refusal> {
    let wrong = || invalid(format!("'{query}': write vlan=VID, or nothing"));
    let vid = |q: &str| q.strip_prefix("vlan=").and_then(|v| v.parse().ok()).ok_or_else(wrong);
    if query.is_empty() { Ok(None) } else { vid(query).map(Some) }
}

/// `vmm=qemu&memory=1G&qemu=9.2`, all optional.
fn wanted(query: &str) -> Result<Wanted, Refusal> {
    let mut wanted =
        Wanted { vmm: Vmm::Qemu, memory: "1G".into(), qemu: QemuVersion::RECENT, mtu: None };
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = routes::percent_decode(value)
            .ok_or_else(|| invalid(format!("{key}: its escapes are wrong")))?;
        match key {
            "vmm" => wanted.vmm = value.parse().map_err(invalid)?,
            "memory" => wanted.memory = value,
            "qemu" => wanted.qemu = value.parse().map_err(invalid)?,
            _ => {
                let hint = vmlan_config::nearest_word::hint(key, &["vmm", "memory", "qemu"]);
                return Err(invalid(format!("'{key}' is not a parameter of vm-args: {hint}")));
            }
        }
    }
    Ok(wanted)
}

/// Sends an action to the control thread and waits for its answer.
pub(super) async fn ask<T>(
    control: &Sender<Action>,
    make: impl FnOnce(Reply<T>) -> Action,
) -> Result<T, Refusal> {
    let (reply, answer) = oneshot::channel();
    let stopping = || Refusal::new(Cause::Failed, "the switch is stopping");
    control.send(make(reply)).map_err(|_| stopping())?;
    answer.await.unwrap_or_else(|_| Err(stopping()))
}

pub(super) async fn read(request: Request<Incoming>, most: usize) -> Result<Bytes, Refusal> {
    let unread = |e: &dyn std::fmt::Display| {
        invalid(format!("the body cannot be read (at most {most} bytes): {e}"))
    };
    let body = Limited::new(request.into_body(), most).collect();
    match tokio::time::timeout(BODY, body).await {
        Ok(body) => body.map(http_body_util::Collected::to_bytes).map_err(|e| unread(&e)),
        Err(_) => Err(unread(&"it did not arrive in time")),
    }
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|e| invalid(format!("the body is not as it should be: {e}")))
}

/// The keys of `PATCH /v1/ports/{name}`: an object of texts, numbers, booleans and nulls.
pub(super) fn keys(body: &[u8]) -> Result<Vec<(String, String)>, Refusal> {
    let object: serde_json::Map<String, serde_json::Value> = parse(body)?;
    if object.is_empty() {
        return Err(invalid("there is nothing to set: give at least one key"));
    }
    let text = |(key, value)| match value {
        serde_json::Value::String(text) => Ok((key, text)),
        serde_json::Value::Number(n) => Ok((key, n.to_string())),
        // Removes the key.
        serde_json::Value::Null => Ok((key, String::new())),
        serde_json::Value::Bool(on) => Ok((key, if on { "on" } else { "off" }.to_owned())),
        _ => Err(invalid(format!("{key}: give a text, a number, true or false"))),
    };
    object.into_iter().map(text).collect()
}

fn word(name: &str) -> Result<PortName, Refusal> {
    name.parse().map_err(invalid)
}

fn mac(text: &str) -> Result<Mac, Refusal> {
    text.parse().map_err(invalid)
}

pub(super) fn invalid(message: impl ToString) -> Refusal {
    Refusal::new(Cause::Invalid, message.to_string())
}

fn refused(refusal: &Refusal) -> Answer {
    let status = match refusal.cause {
        Cause::Invalid => StatusCode::BAD_REQUEST,
        Cause::NotFound => StatusCode::NOT_FOUND,
        Cause::Exists => StatusCode::CONFLICT,
        Cause::Failed => StatusCode::INTERNAL_SERVER_ERROR,
    };
    error(status, &refusal.message)
}

fn no_route(none: &NoRoute, path: &str) -> Answer {
    match none {
        NoRoute::Path => {
            error(StatusCode::NOT_FOUND, &format!("{path}: no such path: see /v1/openapi.json"))
        }
        NoRoute::Method(allowed) => {
            let allowed = allowed.join(", ");
            let text = format!("{path}: this method is not for it: use {allowed}");
            let mut answer = error(StatusCode::METHOD_NOT_ALLOWED, &text);
            if let Ok(value) = allowed.parse() {
                answer.headers_mut().insert(ALLOW, value);
            }
            answer
        }
    }
}

/// One line, whatever of the request it repeats.
pub(super) fn error(status: StatusCode, message: &str) -> Answer {
    let message = message.replace(char::is_control, "?");
    let body = serde_json::to_string(&ErrorBody { error: message });
    respond(status, "application/json", body.unwrap_or_default())
}

pub(super) fn json<T: Serialize>(status: StatusCode, value: &T) -> Result<Answer, Refusal> {
    Ok(respond(status, "application/json", text(value)?))
}

fn text<T: Serialize>(value: &T) -> Result<String, Refusal> {
    serde_json::to_string(value)
        .map_err(|e| Refusal::new(Cause::Failed, format!("the answer cannot be written: {e}")))
}

pub(super) fn no_content() -> Answer {
    let mut answer = Response::new(AnswerBody::default());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

fn respond(status: StatusCode, kind: &'static str, body: impl Into<AnswerBody>) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
