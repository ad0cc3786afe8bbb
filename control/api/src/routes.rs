//! Methods and paths.

use hyper::Method;

/// What a request is about; the text is the part of the path in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    ListPorts,
    AddPort,
    GetPort(String),
    RemovePort(String),
    SetPort(String),
    ListFdb,
    AddMac,
    RemoveMac(String),
    ListLimits,
    GetLimit(String),
    SetLimit(String),
    RemoveLimit(String),
    Apply,
    Generation,
    Process,
    Stop,
    Events,
    GetSflow,
    SetSflow,
    RemoveSflow,
    ListLeases,
    RemoveLease(String),
    ListForwards,
    Stats,
    Explain,
    VmArgs(String),
    OpenApi,
    Metrics,
}

impl Route {
    /// Longest body of such a request: 1,000 ports fit a file to apply, with every key there is.
    pub(super) const fn max_body(&self) -> usize {
        match self {
            Self::Apply => 4 << 20,
            _ => 64 << 10,
        }
    }
}

/// Why there is no route.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoRoute {
    /// No such path.
    Path,
    /// The path takes only these methods.
    Method(Vec<&'static str>),
}

enum Make {
    Plain(Route),
    Named(fn(String) -> Route),
}

/// All routes: method, path, what it is. `{name}` stands for one segment.
fn table() -> [(&'static str, &'static str, Make); 28] {
    use Make::{Named, Plain};
    [
        ("GET", "/v1/ports", Plain(Route::ListPorts)),
        ("POST", "/v1/ports", Plain(Route::AddPort)),
        ("GET", "/v1/ports/{name}", Named(Route::GetPort)),
        ("DELETE", "/v1/ports/{name}", Named(Route::RemovePort)),
        ("PATCH", "/v1/ports/{name}", Named(Route::SetPort)),
        ("GET", "/v1/fdb", Plain(Route::ListFdb)),
        ("POST", "/v1/fdb", Plain(Route::AddMac)),
        ("DELETE", "/v1/fdb/{mac}", Named(Route::RemoveMac)),
        ("GET", "/v1/limits", Plain(Route::ListLimits)),
        ("GET", "/v1/limits/{name}", Named(Route::GetLimit)),
        ("PUT", "/v1/limits/{name}", Named(Route::SetLimit)),
        ("DELETE", "/v1/limits/{name}", Named(Route::RemoveLimit)),
        ("POST", "/v1/apply", Plain(Route::Apply)),
        ("GET", "/v1/apply", Plain(Route::Generation)),
        ("GET", "/v1/process", Plain(Route::Process)),
        ("POST", "/v1/stop", Plain(Route::Stop)),
        ("GET", "/v1/events", Plain(Route::Events)),
        ("GET", "/v1/sflow", Plain(Route::GetSflow)),
        ("PUT", "/v1/sflow", Plain(Route::SetSflow)),
        ("DELETE", "/v1/sflow", Plain(Route::RemoveSflow)),
        ("GET", "/v1/leases", Plain(Route::ListLeases)),
        ("DELETE", "/v1/leases/{of}", Named(Route::RemoveLease)),
        ("GET", "/v1/forwards", Plain(Route::ListForwards)),
        ("GET", "/v1/stats", Plain(Route::Stats)),
        ("POST", "/v1/explain", Plain(Route::Explain)),
        ("GET", "/v1/vm-args/{name}", Named(Route::VmArgs)),
        ("GET", "/v1/openapi.json", Plain(Route::OpenApi)),
        ("GET", "/metrics", Plain(Route::Metrics)),
    ]
}

/// Methods and paths of all routes.
#[cfg(test)]
pub(super) fn all() -> Vec<(&'static str, &'static str)> {
    table().iter().map(|(method, path, _)| (*method, *path)).collect()
}

/// Finds the route of a request.
pub(super) fn find(method: &Method, path: &str) -> Result<Route, NoRoute> {
    let mut allowed = Vec::new();
    for (takes, template, make) in table() {
        let Some(segment) = matches(template, path) else { continue };
        if takes == method.as_str() {
            return Ok(match make {
                Make::Plain(route) => route,
                Make::Named(make) => make(segment),
            });
        }
        allowed.push(takes);
    }
    Err(if allowed.is_empty() { NoRoute::Path } else { NoRoute::Method(allowed) })
}

/// The segment that stands in the braces (empty if there are none), if `path` has this shape.
fn matches(template: &str, path: &str) -> Option<String> {
    let Some((before, _)) = template.split_once('{') else {
        return (template == path).then(String::new);
    };
    let segment = path.strip_prefix(before).filter(|s| !s.is_empty() && !s.contains('/'))?;
    percent_decode(segment)
}

/// `%3A` is `:`; no text if the escapes are wrong or make no UTF-8.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        if b != b'%' {
            bytes.push(b);
            continue;
        }
        let (high, low) = (char::from(rest.next()?), char::from(rest.next()?));
        let value = high.to_digit(16)? * 16 + low.to_digit(16)?;
        bytes.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(bytes).ok()
}
