//! The control thread: applies actions one after the other, and lets addresses age.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::action::{Action, Reply};
use crate::info::{Applied, Generation, ProcessInfo};
use crate::ports::{Failed, Ports};
use vmlan_config::address::NamedAddress;
use vmlan_config::file::Config;
use vmlan_config::refusal::{Cause, Refusal};
use vmlan_config::settings::{Conflict, Plan, Running};

/// Calls of [`vmlan_switch::Fdb::tick`] in an ageing time.
const TICKS: u32 = 30;

/// How the end was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// For good.
    Stop,
    /// Another switch goes on.
    HandOver,
}

/// Applies actions until one of them is the end. `process` is what this switch says of itself.
pub fn run(
    ports: &mut Ports,
    running: &Running,
    process: &ProcessInfo,
    actions: &Receiver<Action>,
) -> End {
    let mut clock = AgeingTimer::new(ports.ageing());
    // What is proven by living for a while is so if nothing happens, too.
    clock.keep_after(ports.keep());
    loop {
        match clock.wait(actions) {
            Next::Action(Action::Stop) | Next::Hangup => return End::Stop,
            Next::Action(Action::HandOver) => return End::HandOver,
            Next::Action(Action::End(for_good, reply)) => {
                answer(reply, Ok(process.clone()));
                let held = process.hold_for.is_some() && !for_good;
                return if held { End::HandOver } else { End::Stop };
            }
            Next::Action(Action::GetProcess(reply)) => {
                let fleeting = Some(ports.fleeting());
                answer(reply, Ok(ProcessInfo { fleeting, ..process.clone() }));
            }
            Next::Action(Action::PortChanged) => {
                ports.looked();
                ports.hear_gateways();
                ports.follow_links();
                clock.start();
            }
            Next::Action(Action::HolderGone) => {
                ports.remove_abandoned();
                if running.while_held && !ports.any_held() {
                    log::info!("nobody holds a port any more");
                    return End::Stop;
                }
            }
            Next::Action(action) => {
                // It may take away what kept a port that nobody holds.
                let frees = matches!(
                    action,
                    Action::SetPort(..) | Action::RemovePort(..) | Action::Apply(..)
                );
                apply(ports, running, action);
                if frees {
                    ports.remove_abandoned();
                }
            }
            Next::Tick => {}
        }
        clock.tick(ports);
        clock.forget_after(ports.forget_departed());
        clock.look(ports);
        clock.balance(ports);
        clock.announce_after(ports.announce());
        clock.keep_after(ports.keep());
    }
}

fn apply(ports: &mut Ports, running: &Running, action: Action) {
    match action {
        Action::ListPorts(reply) => answer(reply, Ok(ports.list())),
        Action::GetPort(name, reply) => answer(reply, ports.get(&name)),
        Action::AddPort(named, holder, reply) => answer(reply, ports.add_held(*named, holder)),
        Action::RemovePort(name, reply) => answer(reply, ports.remove(&name)),
        Action::SetPort(name, keys, reply) => answer(reply, ports.set(&name, &keys)),
        Action::ListFdb(reply) => answer(reply, Ok(ports.fdb())),
        Action::AddMac(mac, port, vid, reply) => answer(reply, ports.add_mac(mac, &port, vid)),
        Action::RemoveMac(mac, vid, reply) => answer(reply, ports.remove_mac(mac, vid)),
        Action::GetSflow(reply) => answer(reply, Ok(ports.sflow_info())),
        Action::SetSflow(table, reply) => answer(reply, ports.export(table)),
        Action::ListLeases(reply) => answer(reply, Ok(ports.leases())),
        Action::RemoveLease(of, reply) => answer(reply, ports.forget_lease(&of)),
        Action::ListForwards(reply) => answer(reply, Ok(ports.forwards())),
        Action::Stats(reply) => answer(reply, Ok(ports.stats())),
        Action::Explain(name, frame, reply) => answer(reply, ports.explain(&name, &frame)),
        Action::ListLimits(reply) => answer(reply, Ok(ports.limits())),
        Action::GetLimit(name, reply) => answer(reply, ports.get_limit(&name)),
        Action::SetLimit(name, table, reply) => answer(reply, ports.set_limit(&name, table)),
        Action::RemoveLimit(name, reply) => answer(reply, ports.remove_limit(&name)),
        Action::Apply(config, file, dry_run, generation, reply) => {
            let is_own = file.is_some() && file == running.config;
            let done = at_generation(ports, generation)
                .and_then(|()| apply_file(ports, running, *config, is_own, dry_run));
            answer(reply, done);
        }
        Action::GetGeneration(reply) => {
            answer(reply, Ok(Generation { generation: ports.generation() }));
        }
        Action::Listen(reply) => answer(reply, ports.listen()),
        Action::HolderGone
        | Action::PortChanged
        | Action::GetProcess(_)
        | Action::End(..)
        | Action::Stop
        | Action::HandOver => {}
    }
}

/// Refuses what was meant for another generation of the configuration.
fn at_generation(ports: &Ports, wanted: Option<u64>) -> Result<(), Refusal> {
    let now = ports.generation();
    if wanted.is_none_or(|wanted| wanted == now) {
        return Ok(());
    }
    let text = format!(
        "the configuration has generation {now}: it was changed by somebody else: look again, and \
         apply with that number, or with none"
    );
    Err(Refusal::new(Cause::Exists, text))
}

/// Makes the switch what a configuration file says, or changes nothing. `is_own`: the one that it
/// was started with.
fn apply_file(
    ports: &mut Ports,
    running: &Running,
    mut config: Config,
    is_own: bool,
    dry_run: bool,
) -> Result<Applied, Refusal> {
    if let Some(text) = running.differs(&config) {
        return Err(Refusal::new(Cause::Invalid, text));
    }
    let plan = Plan::new(&mut config, Vec::new());
    let wrong = |wrong: Conflict| Refusal::new(Cause::Invalid, wrong.placed(&config));
    let order = |p: &&NamedAddress| (!ports.has(p), config.line_of_port(&p.name));
    plan.check(order).map_err(wrong)?;
    let applied = ports.apply(&plan, dry_run).map_err(|Failed { port, refusal }| {
        let place = port.and_then(|port| config.place_of_port(&port, None));
        let place = place.map_or_else(String::new, |place| format!("{place}: "));
        Refusal::new(refusal.cause, format!("{place}{refusal}"))
    })?;
    if is_own && !dry_run {
        ports.configured(&plan);
    }
    Ok(applied)
}

fn answer<T>(reply: Reply<T>, answer: Result<T, Refusal>) {
    // Who asked may have hung up.
    let _ = reply.send(answer);
}

enum Next {
    Action(Action),
    /// It may be time to tick, to forget what was learned at ports that went down, to look for
    /// events, or to announce a guest.
    Tick,
    /// Nobody can ask for anything any more.
    Hangup,
}

/// Ages the forwarding table, looks for events, and sleeps without a limit while nothing could age:
/// no learned address, and no port from which one could be learned.
struct AgeingTimer {
    period: Duration,
    next: Option<Instant>,
    /// When to look again at ports that went down, if the forwarding table was walked just before.
    forget: Option<Instant>,
    /// When to look for events, if somebody listens.
    look: Option<Instant>,
    /// When to look at the workers' loads, while there is any.
    balance: Option<Instant>,
    /// When to announce a guest next.
    announce: Option<Instant>,
    keep: Option<Instant>,
}

impl AgeingTimer {
    fn new(ageing: Duration) -> Self {
        Self {
            period: (ageing / TICKS).max(Duration::from_millis(10)),
            next: None,
            forget: None,
            look: None,
            balance: None,
            announce: None,
            keep: None,
        }
    }

    fn start(&mut self) {
        self.next.get_or_insert_with(|| Instant::now() + self.period);
    }

    fn forget_after(&mut self, wait: Option<Duration>) {
        self.forget = wait.map(|wait| Instant::now() + wait);
    }

    fn look(&mut self, ports: &mut Ports) {
        if self.look.is_none_or(|next| next <= Instant::now()) {
            self.look = ports.look().map(|wait| Instant::now() + wait);
        }
    }

    fn balance(&mut self, ports: &Ports) {
        if self.balance.is_none_or(|next| next <= Instant::now()) {
            self.balance = ports.balance().map(|wait| Instant::now() + wait);
        }
    }

    fn announce_after(&mut self, wait: Option<Duration>) {
        self.announce = wait.map(|wait| Instant::now() + wait);
    }

    fn keep_after(&mut self, wait: Option<Duration>) {
        self.keep = wait.map(|wait| Instant::now() + wait);
    }

    /// What happens next.
    fn wait(&self, actions: &Receiver<Action>) -> Next {
        let Some(next) =
            [self.next, self.forget, self.look, self.balance, self.announce, self.keep]
                .into_iter()
                .flatten()
                .min()
        else {
            return actions.recv().map_or(Next::Hangup, Next::Action);
        };
        match actions.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(action) => Next::Action(action),
            Err(RecvTimeoutError::Timeout) => Next::Tick,
            Err(RecvTimeoutError::Disconnected) => Next::Hangup,
        }
    }

    fn tick(&mut self, ports: &Ports) {
        let Some(next) = self.next.filter(|next| *next <= Instant::now()) else { return };
        let left = ports.age();
        self.next = (left > 0 || ports.any_up()).then_some(next + self.period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Workers;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use tokio::sync::oneshot;
    use vmlan_config::file::SwitchTable;
    use vmlan_config::settings::Settings;
    use vmlan_switch::{Options, Switch};

    #[test]
    fn the_clock_sleeps_for_good_until_a_port_comes_up() {
        let mut clock = AgeingTimer::new(Duration::from_secs(3));
        let (sender, actions) = channel();
        sender.send(Action::Stop).unwrap();
        assert!(clock.next.is_none());
        assert!(matches!(clock.wait(&actions), Next::Action(Action::Stop)));
        clock.start();
        let first = clock.next;
        clock.start();
        assert_eq!(clock.next, first, "news of ports must not put the tick off");
        assert!(matches!(clock.wait(&actions), Next::Tick));
        drop(sender);
        assert!(matches!(clock.wait(&actions), Next::Hangup));
    }

    #[test]
    fn a_port_that_nobody_holds_goes_when_no_other_names_it_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let switch = Switch::new(Options::default());
        let mut ports = Ports::new(Workers::played(switch.clone()).unwrap(), switch, || {});
        let table = SwitchTable { api: Some(Path::new("/a").into()), ..SwitchTable::default() };
        let running = Settings::new(Config::default(), table, Vec::new()).unwrap().running;
        let (sender, actions) = channel();
        let add = |text: &str, is_held: bool| {
            let port = text.replace('@', dir.path().to_str().unwrap()).parse().unwrap();
            // Its other end is gone at once.
            let holder = is_held.then(|| Arc::new(oneshot::channel().0));
            sender.send(Action::AddPort(Box::new(port), holder, oneshot::channel().0)).unwrap();
        };
        let list = || {
            let (reply, answer) = oneshot::channel();
            sender.send(Action::ListPorts(reply)).unwrap();
            answer
        };
        add("vm1=stream:@/1", true);
        add("vm2=stream:@/2,uplink=vm1", true);
        add("w=stream:@/w,watch=vm2", false);
        sender.send(Action::HolderGone).unwrap();
        let before = list();
        let keys = vec![("watch".to_owned(), String::new())];
        let set = Action::SetPort("w".parse().unwrap(), keys, oneshot::channel().0);
        sender.send(set).unwrap();
        let after = list();
        sender.send(Action::Stop).unwrap();
        run(&mut ports, &running, &ProcessInfo::default(), &actions);
        let names = |mut answer: oneshot::Receiver<Result<Vec<crate::info::PortInfo>, Refusal>>| {
            let ports = answer.try_recv().unwrap().unwrap();
            ports.into_iter().map(|port| port.name).collect::<Vec<_>>()
        };
        assert_eq!(names(before), ["vm1", "vm2", "w"]);
        assert_eq!(names(after), ["w"]);
    }
}
