//! Requests about limits that ports share, and about whole configurations.

use std::path::Path;
use std::sync::mpsc::Sender;

use hyper::StatusCode;

use super::handlers::{Answer, ask, invalid, json, keys, no_content, parse};
use super::routes::Route;
use super::{LimitList, NewConfig};
use vmlan_config::address::{LimitTable, rule_name};
use vmlan_config::file::Config;
use vmlan_config::refusal::Refusal;
use vmlan_engine::action::Action;

pub(super) async fn answer(
    route: Route,
    body: &[u8],
    control: &Sender<Action>,
) -> Result<Answer, Refusal> {
    match route {
        Route::GetLimit(name) => {
            let name = rule_name(&name).map_err(invalid)?;
            json(StatusCode::OK, &ask(control, |r| Action::GetLimit(name, r)).await?)
        }
        Route::SetLimit(name) => {
            let name = rule_name(&name).map_err(invalid)?;
            let wrong = |e| invalid(format!("limit {name}: {e}"));
            let table = LimitTable::new(&keys(body)?).map_err(wrong)?;
            json(StatusCode::OK, &ask(control, |r| Action::SetLimit(name, table, r)).await?)
        }
        Route::RemoveLimit(name) => {
            let name = rule_name(&name).map_err(invalid)?;
            ask(control, |r| Action::RemoveLimit(name, r)).await?;
            Ok(no_content())
        }
        Route::Apply => {
            let NewConfig { text, path, file, dry_run, generation } = parse(body)?;
            let config = Config::parse(&text, Path::new(&path)).map_err(invalid)?;
            let make = |reply| Action::Apply(Box::new(config), file, dry_run, generation, reply);
            json(StatusCode::OK, &ask(control, make).await?)
        }
        Route::Generation => json(StatusCode::OK, &ask(control, Action::GetGeneration).await?),
        _ => {
            let limits = ask(control, Action::ListLimits).await?;
            json(StatusCode::OK, &LimitList { limits })
        }
    }
}
