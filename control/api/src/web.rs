//! A page for browsers, over the API of a running switch.
//!
//! The API's socket is open to its owner alone; a TCP port is open to every program of this host,
//! and to every page that a browser here has open. So:
//!
//! - Without the token requests only read. With it they may do what the API can.
//! - Where others than this host can connect, the token is needed to read as well.
//! - `Host` is an address or `localhost`: a name of somebody else's that leads here (DNS rebinding)
//!   is refused.
//! - `Origin` and `Sec-Fetch-Site` say that the request comes from this page, or say nothing.
//! - Requests are bounded in size, number and time, as those of the API.

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::client::{Client, ClientError};
use super::server::{CONNECTIONS, http, tend};
use super::{ErrorBody, NewPort, handlers};

const PAGE: &str = include_str!("web/page.html");
const SCRIPT: &str = include_str!("web/page.js");

/// Longest body of a request.
const MAX_BODY: usize = 64 << 10;

/// Fewest characters of a token: what cannot be guessed.
const TOKEN: usize = 16;

/// What browsers are told of every answer: nothing from elsewhere runs or is asked, and nobody
/// shows it in a frame.
const HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("cache-control", "no-store"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
];

type Answer = Response<Full<Bytes>>;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum WebError {
    #[error(
        "{address}: others than this host can connect there: give a file with a token \
        (--token), or listen on 127.0.0.1"
    )]
    Open { address: SocketAddr },
    #[error(
        "{address}: cannot listen ({source}): give an address of this host, and a port that \
        is free"
    )]
    Bind { address: SocketAddr, source: io::Error },
    #[error("the token is not one: it has {TOKEN} characters or more, of ASCII, without spaces")]
    Token,
}

/// The page's server.
#[derive(Debug)]
pub struct Web {
    listener: TcpListener,
    guard: Guard,
    client: Client,
}

/// Who may ask for what.
#[derive(Clone, Debug)]
struct Guard {
    token: Option<String>,
    /// Only this host can connect: reading needs no token.
    own: bool,
}

/// Why a request is refused.
type Refused = (StatusCode, &'static str);

impl Web {
    /// Listens at `address`. With the token in `secret`, requests may also change things.
    ///
    /// # Errors
    /// [`WebError`].
    pub fn bind(
        address: SocketAddr,
        secret: Option<&str>,
        client: Client,
    ) -> Result<Self, WebError> {
        let token = secret.map(str::trim).map(str::to_owned);
        let good = |t: &String| t.len() >= TOKEN && t.bytes().all(|b| b.is_ascii_graphic());
        if token.as_ref().is_some_and(|token| !good(token)) {
            return Err(WebError::Token);
        }
        let own = address.ip().is_loopback();
        if !own && token.is_none() {
            return Err(WebError::Open { address });
        }
        let listener = TcpListener::bind(address)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|source| WebError::Bind { address, source })?;
        Ok(Self { listener, guard: Guard { token, own }, client })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The socket's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves browsers until the process ends.
    ///
    /// # Errors
    /// There is no runtime, or the socket cannot be watched.
    pub fn serve(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.accept())
    }

    async fn accept(self) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let shared = Arc::new((self.guard, self.client));
        let seats = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // The semaphore is never closed, so a permit comes sooner or later.
            let Ok(seat) = seats.clone().acquire_owned().await else { return Ok(()) };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let shared = Arc::clone(&shared);
                    tokio::spawn(async move {
                        connection(stream, &shared.0, &shared.1).await;
                        drop(seat);
                    });
                }
                Err(e) => {
                    // Usually no descriptor is left. This must not become a busy loop.
                    log::warn!("web: cannot accept: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn connection(stream: TcpStream, guard: &Guard, client: &Client) {
    let asked = AtomicBool::new(true);
    let service = service_fn(|request| {
        asked.store(true, Ordering::Relaxed);
        async { Ok::<_, Infallible>(answer(request, guard, client).await) }
    });
    let served = http().serve_connection(TokioIo::new(stream), service);
    tend(served, || asked.swap(false, Ordering::Relaxed)).await;
}

async fn answer(request: Request<Incoming>, guard: &Guard, client: &Client) -> Answer {
    let (head, body) = request.into_parts();
    let mut answer = match guard.admits(&head) {
        Err((status, why)) => error(status, why),
        Ok(()) => match (head.method.as_str(), head.uri.path()) {
            ("GET", "/") => respond("text/html; charset=utf-8", PAGE),
            ("GET", "/page.js") => respond("text/javascript; charset=utf-8", SCRIPT),
            // An answer without an end would keep a seat of those who may listen, for nobody.
            (_, "/v1/events") => {
                error(StatusCode::NOT_FOUND, "no events come by this page: ask the API's socket")
            }
            (_, path) if path == "/metrics" || path.starts_with("/v1/") => {
                forward(Request::from_parts(head, body), client).await
            }
            _ => error(StatusCode::NOT_FOUND, "there is no such path: the page is at /"),
        },
    };
    for (name, value) in HEADERS {
        let name = HeaderName::from_static(name);
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Asks the switch.
async fn forward(request: Request<Incoming>, client: &Client) -> Answer {
    let method = request.method().clone();
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let body = match handlers::read(request, MAX_BODY).await {
        Ok(body) => body,
        Err(refusal) => return error(StatusCode::BAD_REQUEST, &refusal.message),
    };
    let Ok(body) = String::from_utf8(body.to_vec()) else {
        return error(StatusCode::BAD_REQUEST, "the body is not UTF-8");
    };
    if serde_json::from_str::<NewPort>(&body).is_ok_and(|new| new.hold) {
        let text = "no port is held by this page: ask the API's socket, or leave out `hold`";
        return error(StatusCode::BAD_REQUEST, text);
    }
    match client.forward(&method, &path, body).await {
        Ok(said) => {
            let mut answer = Response::new(Full::new(said.body().clone()));
            *answer.status_mut() = said.status();
            if let Some(kind) = said.headers().get(CONTENT_TYPE) {
                answer.headers_mut().insert(CONTENT_TYPE, kind.clone());
            }
            answer
        }
        Err(ClientError::Refused { status, message }) => error(status, &message),
        Err(e) => error(StatusCode::BAD_GATEWAY, &e.to_string()),
    }
}

impl Guard {
    fn admits(&self, head: &Parts) -> Result<(), Refused> {
        let text = |name: &HeaderName| head.headers.get(name).map(|v| v.to_str().unwrap_or(""));
        let host = text(&HOST).unwrap_or("");
        if !is_ours(host) {
            return Err((StatusCode::FORBIDDEN, "the host is neither an address nor localhost"));
        }
        let foreign = text(&ORIGIN).is_some_and(|origin| origin != format!("http://{host}"));
        let site = text(&HeaderName::from_static("sec-fetch-site"));
        if foreign || site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
            return Err((StatusCode::FORBIDDEN, "another page may not ask this one's server"));
        }
        let bare = matches!(head.uri.path(), "/" | "/page.js");
        if head.method == Method::GET && (self.own || bare) || self.is_told(text(&AUTHORIZATION)) {
            return Ok(());
        }
        match (&self.token, self.own) {
            (None, _) => Err((StatusCode::FORBIDDEN, "this page only reads: see --token")),
            (_, true) => Err((StatusCode::UNAUTHORIZED, "a change wants the token: #token=...")),
            _ => Err((StatusCode::UNAUTHORIZED, "the page wants the token: #token=...")),
        }
    }

    /// The request has the token. How long this takes says nothing about how much of it is right.
    fn is_told(&self, said: Option<&str>) -> bool {
        let said = said.and_then(|said| said.strip_prefix("Bearer ")).unwrap_or("");
        let Some(token) = &self.token else { return false };
        let differ = token.bytes().zip(said.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        token.len() == said.len() && differ == 0
    }
}

/// `host`, with or without a port, names no machine by a name that others may have given it.
fn is_ours(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let known = name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok();
    known && !host.contains('@')
}

fn respond(kind: &'static str, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// As the API's errors.
fn error(status: StatusCode, message: &str) -> Answer {
    let body = serde_json::to_string(&ErrorBody { error: message.to_owned() });
    let mut answer = respond("application/json", body.unwrap_or_default());
    *answer.status_mut() = status;
    answer
}
