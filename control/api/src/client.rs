//! The other end of the API, for the commands that talk to a running switch.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::{ErrorBody, NewPort};
use vmlan_engine::info::PortInfo;

/// Longest answer: a table of 1024 ports and 100,000 addresses fits several times.
const MAX_ANSWER: usize = 256 << 20;

/// Time for a whole request.
const PATIENCE: Duration = Duration::from_secs(30);

type Driver = tokio::task::JoinHandle<Result<(), hyper::Error>>;

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ClientError {
    #[error("api {}: no switch answers there ({source}): start `vmlan switch`, or say where it is \
        with --api", path.display())]
    NoSwitch { path: PathBuf, source: io::Error },
    #[error("{message}")]
    Refused { status: StatusCode, message: String },
    #[error("api {}: {what}: is that a vmlan switch?", path.display())]
    Broken { path: PathBuf, what: String },
}

impl ClientError {
    /// The request was refused as invalid: it was not tried.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::BAD_REQUEST)
    }
}

/// Talks to the switch that listens at a path.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// For the switch at `path`.
    pub fn new(path: &Path) -> Self {
        Self { path: path.into() }
    }

    /// `GET path`
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.parse(&self.call(&Method::GET, path, String::new())?)
    }

    /// `DELETE path`
    pub fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.call(&Method::DELETE, path, String::new()).map(drop)
    }

    /// `POST path`, `PUT path` or `PATCH path` with a body.
    pub fn send<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_string(body).map_err(|e| self.broken(&e))?;
        self.parse(&self.call(method, path, body)?)
    }

    /// One request; the body of the answer, if it is a success.
    pub fn call(&self, method: &Method, path: &str, body: String) -> Result<Bytes, ClientError> {
        self.within_patience(async {
            let (answer, driver) = self.ask(self.connect()?, method, path, body).await?;
            let done = self.whole(answer).await;
            driver.abort();
            done
        })
    }

    /// One request for somebody else, within a runtime; the answer, whatever it says.
    pub(super) async fn forward(
        &self,
        method: &Method,
        path: &str,
        body: String,
    ) -> Result<Response<Bytes>, ClientError> {
        let forwarded = async {
            let (answer, driver) = self.ask(self.connect()?, method, path, body).await?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            driver.abort();
            Ok(Response::from_parts(head, body.map_err(|e| self.broken(&e))?.to_bytes()))
        };
        self.soon(forwarded).await
    }

    /// A connection, for [`Client::hold`].
    pub fn connect(&self) -> Result<Connection, ClientError> {
        let no_switch = |source| ClientError::NoSwitch { path: self.path.clone(), source };
        Connection::connect(&self.path).map_err(no_switch)
    }

    /// Adds the port `new`, whose `hold` is on. It is closed when all copies of the descriptor that
    /// is returned are.
    pub fn hold(
        &self,
        connection: Connection,
        new: &NewPort,
    ) -> Result<(PortInfo, OwnedFd), ClientError> {
        let kept = connection.try_clone().map_err(|e| self.broken(&e))?;
        let body = serde_json::to_string(new).map_err(|e| self.broken(&e))?;
        let first = self.within_patience(async {
            let asked = self.ask(connection, &Method::POST, "/v1/ports", body).await;
            let (mut answer, driver) = asked?;
            if !answer.status().is_success() {
                return self.whole(answer).await;
            }
            let first = answer.body_mut().frame().await.transpose().map_err(|e| self.broken(&e))?;
            driver.abort();
            let first = first.and_then(|frame| frame.into_data().ok());
            first.ok_or_else(|| self.broken(&"it hung up"))
        })?;
        Ok((self.parse(&first)?, kept.into()))
    }

    /// `GET /v1/events`: calls `each` with each event, in JSON, until that returns false or the
    /// switch ends.
    pub fn events(&self, mut each: impl FnMut(&str) -> bool) -> Result<(), ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| self.broken(&e))?;
        runtime.block_on(async {
            let asked = self.ask(self.connect()?, &Method::GET, "/v1/events", String::new());
            let (mut answer, _driver) = self.soon(asked).await?;
            if !answer.status().is_success() {
                return self.whole(answer).await.map(drop);
            }
            let mut text = Vec::new();
            while let Some(frame) = answer.body_mut().frame().await {
                // The switch has ended.
                let Ok(frame) = frame else { return Ok(()) };
                text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = text.windows(2).position(|w| w == b"\n\n") {
                    let event: Vec<u8> = text.drain(..end + 2).collect();
                    let event = String::from_utf8_lossy(&event);
                    let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                    if data.is_some_and(|data| !each(data)) {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    }

    fn within_patience<T>(
        &self,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| self.broken(&e))?;
        runtime.block_on(self.soon(request))
    }

    async fn soon<T>(
        &self,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(PATIENCE, request).await {
            Ok(done) => done,
            Err(_) => Err(self.broken(&"no answer for 30 seconds")),
        }
    }

    /// Sends a request; the answer, and what moves its bytes.
    async fn ask(
        &self,
        connection: Connection,
        method: &Method,
        path: &str,
        body: String,
    ) -> Result<(Response<Incoming>, Driver), ClientError> {
        connection.set_nonblocking(true).map_err(|e| self.broken(&e))?;
        let stream = UnixStream::from_std(connection).map_err(|e| self.broken(&e))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.broken(&e))?;
        let driver = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "vmlan")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| self.broken(&e))?;
        let answer = sender.send_request(request).await.map_err(|e| self.broken(&e))?;
        Ok((answer, driver))
    }

    /// The body of an answer, if it is a success.
    async fn whole(&self, answer: Response<Incoming>) -> Result<Bytes, ClientError> {
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|e| self.broken(&e))?.to_bytes();
        if status.is_success() { Ok(body) } else { Err(self.refused(status, &body)) }
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(body) => ClientError::Refused { status, message: body.error },
            Err(_) => self.broken(&format!("it answers {status}")),
        }
    }

    fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(body).map_err(|e| self.broken(&e))
    }

    fn broken(&self, what: &dyn std::fmt::Display) -> ClientError {
        ClientError::Broken { path: self.path.clone(), what: what.to_string() }
    }
}
