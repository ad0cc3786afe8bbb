//! `vmlan web`: a page for browsers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::ValueHint;

use super::ApiArgs;
use crate::exit::Failure;
use crate::output::print;
use vmlan_api::web::{Web, WebError};
use vmlan_engine::stats::Stats;

pub(super) const EXAMPLE: &str = "The page only reads, unless its address ends in #token=TOKEN. \
    Any program of this host can read it.\n\nExample:\n  vmlan web\n  head -c 24 /dev/urandom | \
    base64 > token && vmlan web --token token";

/// Arguments of `vmlan web`.
#[derive(Debug, Args)]
pub(super) struct WebArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// Where browsers connect
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8780")]
    listen: SocketAddr,
    /// A file with a token: who knows it may change things
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token: Option<PathBuf>,
}

/// Serves until the process is ended.
pub(super) fn run(args: &WebArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    // Where no switch answers this says so as all commands do.
    client.get::<Stats>("/v1/stats")?;
    let secret = args.token.as_deref().map(read).transpose()?;
    let web = Web::bind(args.listen, secret.as_deref(), client).map_err(|e| match e {
        WebError::Bind { .. } => Failure::Failed(format!("web: {e}")),
        WebError::Open { .. } | WebError::Token => Failure::Usage(format!("web: {e}")),
    })?;
    let failed = |e: std::io::Error| Failure::Failed(format!("web: {e}"));
    let address = web.address().map_err(failed)?;
    let token = if secret.is_some() { "#token=..., with the token, may change things" } else { "" };
    print(&format!("http://{address}/{token}\n"))?;
    web.serve().map_err(failed)
}

fn read(path: &Path) -> Result<String, Failure> {
    let unread = |e| Failure::Failed(format!("{}: {e}: give a file with a token", path.display()));
    std::fs::read_to_string(path).map_err(unread)
}
