//! Readings of a running switch, by a thread of their own: the screen obeys keys meanwhile.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use vmlan_api::client::ClientError;
use vmlan_api::{Client, FdbList, LeaseList, PortList};
use vmlan_engine::info::{FdbLine, LeaseInfo, PortInfo};
use vmlan_engine::stats::Stats;

/// How old may be what costs the switch more than counters do.
const FURTHER: Duration = Duration::from_secs(5);

/// What there is to say of one port beside its counters.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub port: PortInfo,
    pub neighbours: Vec<FdbLine>,
    pub leases: Vec<LeaseInfo>,
}

/// What the switch said.
#[derive(Debug)]
pub(super) enum News {
    Counted {
        at: Instant,
        stats: Box<Stats>,
    },
    About(Box<About>),
    /// It did not answer, and is asked again.
    Lost(String),
}

/// How often to ask, and for which port beside the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    interval: Duration,
    port: Option<String>,
}

/// The thread that asks ends when this is dropped.
#[derive(Debug)]
pub(super) struct Feed {
    news: Receiver<News>,
    wishes: Sender<Wish>,
}

impl Feed {
    pub(super) fn start(client: Client, interval: Duration) -> Self {
        let ((tell, news), (wishes, wished)) = (channel(), channel());
        std::thread::spawn(move || ask(&client, &tell, &wished, interval));
        Self { news, wishes }
    }

    /// What has come and was not looked at.
    pub(super) fn next(&self) -> Option<News> {
        self.news.try_recv().ok()
    }

    pub(super) fn set(&self, interval: Duration, port: Option<&str>) {
        // The thread is there as long as this is.
        let _ = self.wishes.send(Wish { interval, port: port.map(str::to_owned) });
    }
}

fn ask(client: &Client, tell: &Sender<News>, wished: &Receiver<Wish>, interval: Duration) {
    let mut wish = Wish { interval, port: None };
    let (mut next, mut further) = (Instant::now(), Instant::now());
    loop {
        let now = Instant::now();
        if now >= next {
            next = now + wish.interval;
            let news = client.get("/v1/stats").map(|stats| News::Counted { at: now, stats });
            if tell.send(news.unwrap_or_else(|e| News::Lost(e.to_string()))).is_err() {
                return;
            }
        }
        if let Some(name) = wish.port.as_deref().filter(|_| now >= further) {
            further = now + FURTHER;
            // A port that has gone meanwhile is missing among the counters, too.
            if let Ok(about) = about(client, name) {
                let _ = tell.send(News::About(about.into()));
            }
        }
        match wished.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(new) if new == wish => {}
            Ok(new) => {
                (wish, next, further) = (new, Instant::now(), Instant::now());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn about(client: &Client, name: &str) -> Result<About, ClientError> {
    let ports: PortList = client.get("/v1/ports")?;
    let fdb: FdbList = client.get("/v1/fdb")?;
    let leases: LeaseList = client.get("/v1/leases")?;
    Ok(About {
        port: ports.ports.into_iter().find(|p| p.name == name).unwrap_or_default(),
        neighbours: fdb.entries.into_iter().filter(|e| e.port == name).collect(),
        leases: leases.leases.into_iter().filter(|l| l.port == name || l.net == name).collect(),
    })
}
