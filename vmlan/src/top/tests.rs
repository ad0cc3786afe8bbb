use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use vmlan_engine::info::{FdbLine, LeaseInfo, PortInfo};
use vmlan_engine::stats::{DeviceStats, Flow, PortStats, Stats};

use super::feed::{About, News};
use super::history::Order;
use super::screen::Screen;

/// A port that has moved so many frames, in batches of 32.
fn port(name: &str, frames: u64, drops: u64) -> PortStats {
    let flow = |frames| Flow { frames, bytes: 60 * frames, batches: frames / 32 };
    PortStats {
        name: name.into(),
        kind: "vhost-user".into(),
        r#in: flow(frames),
        out: flow(frames / 2),
        drops: [("receiver-full".to_owned(), drops)].into_iter().filter(|d| d.1 > 0).collect(),
        doorbells: frames / 100,
        up: frames > 0,
        work_ns: frames * 100,
        ..PortStats::default()
    }
}

/// Two readings, a second apart.
fn readings(screen: &mut Screen, ports: &[(&str, u64, u64)]) {
    let at = Instant::now();
    let read = |times: u64| Stats {
        ports: ports.iter().map(|(n, f, d)| port(n, times * f, times * d)).collect(),
        sandbox: "on".into(),
        ..Stats::default()
    };
    for (times, at) in [(1, at), (2, at + Duration::from_secs(1))] {
        screen.take(News::Counted { at, stats: read(times).into() });
    }
}

fn three(screen: &mut Screen) {
    readings(screen, &[("idle", 0, 0), ("lossy", 1_000, 500), ("busy", 2_000_000, 0)]);
}

fn new_screen() -> Screen {
    Screen::new(Order::Rate, Duration::from_secs(1), true)
}

fn press(screen: &mut Screen, keys: &[KeyCode]) -> bool {
    keys.iter().any(|code| screen.press(KeyEvent::new(*code, KeyModifiers::NONE)))
}

/// The lines that are shown.
fn shown(screen: &mut Screen, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let cells = terminal.backend().buffer().content().chunks(usize::from(width));
    let line = |row: &[ratatui::buffer::Cell]| row.iter().map(|c| c.symbol()).collect::<String>();
    cells.map(|row| line(row).trim_end().to_owned()).collect()
}

/// The ports, in the order in which they are listed.
fn order(lines: &[String]) -> Vec<&str> {
    let heads = lines.iter().position(|l| l.starts_with("PORT")).expect("a table");
    let rows = lines[heads + 1..lines.len() - 1].iter();
    rows.filter_map(|l| l.split_whitespace().next()).collect()
}

#[test]
fn eighty_columns_hold_what_matters() {
    let mut screen = new_screen();
    three(&mut screen);
    let lines = shown(&mut screen, (80, 24));
    assert_eq!(lines[0], "vmlan top  3 ports, 2 up, sorted by rate, every 1 s");
    assert_eq!(lines[1], "in 2.00 M frames/s 960.48 Mbit/s  drops 500/s  work 20.0 %  sandbox on");
    let heads = lines.iter().find(|l| l.starts_with("PORT")).unwrap();
    for head in ["LINK", "IN f/s", "IN bit/s", "OUT f/s", "OUT bit/s", "DROPS/s", "WORK"] {
        assert!(heads.contains(head), "no {head}: {heads}");
    }
    assert!(!heads.contains("DOORB/s"), "{heads}");
    let busy = lines.iter().find(|l| l.starts_with("busy")).unwrap();
    for cell in ["up", "2.00 M", "960.00 M", "1.00 M", "480.00 M", "20.0 %", "█"] {
        assert!(busy.contains(cell), "no {cell}: {busy}");
    }
    assert_eq!(order(&lines), ["busy", "lossy", "idle"]);
}

#[test]
fn a_wide_screen_says_more() {
    let mut screen = new_screen();
    three(&mut screen);
    let lines = shown(&mut screen, (200, 50));
    let heads = lines.iter().find(|l| l.starts_with("PORT")).unwrap();
    for head in ["KIND", "BATCH", "DOORB/s", "INTR/s", "FAULTS"] {
        assert!(heads.contains(head), "no {head}: {heads}");
    }
    let busy = lines.iter().find(|l| l.starts_with("busy")).unwrap();
    for cell in ["vhost-user", "32.0", "20.00 k"] {
        assert!(busy.contains(cell), "no {cell}: {busy}");
    }
}

#[test]
fn keys_sort_and_find() {
    let mut screen = new_screen();
    three(&mut screen);
    let mut after = |keys: &[KeyCode]| {
        assert!(!press(&mut screen, keys));
        let lines = shown(&mut screen, (80, 24));
        order(&lines).iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(after(&[KeyCode::Char('s')])[0], "lossy");
    assert_eq!(after(&[KeyCode::Char('s')])[0], "busy");
    assert_eq!(after(&[KeyCode::F(6)]), ["busy", "idle", "lossy"]);
    assert_eq!(after(&[KeyCode::Char('r')]), ["lossy", "idle", "busy"]);
    let find = [KeyCode::Char('/'), KeyCode::Char('l'), KeyCode::Char('q'), KeyCode::Backspace];
    assert_eq!(after(&find), ["lossy", "idle"]);
    // `q` was a letter; now it is a key.
    assert_eq!(after(&[KeyCode::Enter, KeyCode::Esc]), ["lossy", "idle", "busy"]);
    assert!(press(&mut screen, &[KeyCode::Char('q')]));
}

#[test]
fn the_chosen_port_stays_chosen() {
    let mut screen = new_screen();
    three(&mut screen);
    press(&mut screen, &[KeyCode::Down, KeyCode::Down, KeyCode::Down, KeyCode::Up]);
    // The second. It overtakes the first.
    readings(&mut screen, &[("idle", 0, 0), ("lossy", 9_000_000, 0), ("busy", 2_000_000, 0)]);
    press(&mut screen, &[KeyCode::Enter]);
    assert_eq!(screen.shown(), Some("lossy"));
    // It goes away.
    let at = Instant::now() + Duration::from_secs(9);
    screen.take(News::Counted { at, stats: Stats::default().into() });
    let lines = shown(&mut screen, (80, 24)).join("\n");
    assert!(lines.contains("There is no port lossy any more"), "{lines}");
    press(&mut screen, &[KeyCode::Esc, KeyCode::Down, KeyCode::Enter]);
    assert_eq!(screen.shown(), None);
}

#[test]
fn a_pause_shows_what_was_and_the_interval_has_ends() {
    let mut screen = new_screen();
    three(&mut screen);
    press(&mut screen, &[KeyCode::Char('p')]);
    readings(&mut screen, &[("other", 1, 0)]);
    let lines = shown(&mut screen, (80, 24));
    assert!(lines[0].ends_with("PAUSED"), "{}", lines[0]);
    assert_eq!(order(&lines).len(), 3);
    press(&mut screen, &[KeyCode::Char('+'); 10]);
    assert_eq!(screen.interval(), Duration::from_secs(60));
    press(&mut screen, &[KeyCode::Char('-'); 20]);
    assert_eq!(screen.interval(), Duration::from_millis(100));
}

#[test]
fn the_detail_of_a_port_has_all_there_is() {
    let mut screen = new_screen();
    three(&mut screen);
    press(&mut screen, &[KeyCode::Down, KeyCode::Down, KeyCode::Enter]);
    assert_eq!(screen.shown(), Some("lossy"));
    let mac = "52:54:00:00:00:01".to_owned();
    let about = About {
        port: PortInfo {
            name: "lossy".into(),
            address: "vhost-user:/tmp/lossy.sock,from_rate=1Gbit".into(),
            details: [("state".to_owned(), "running".into())].into_iter().collect(),
            ..PortInfo::default()
        },
        neighbours: vec![FdbLine {
            mac: mac.clone(),
            vlan: Some(7),
            qinq: None,
            port: "lossy".into(),
            r#static: false,
            age: Some(3),
        }],
        leases: vec![LeaseInfo {
            ip: "10.77.0.9".into(),
            mac,
            // A guest chooses it.
            hostname: Some("web\u{1b}[31m".into()),
            ..LeaseInfo::default()
        }],
    };
    let late =
        About { port: PortInfo { name: "busy".into(), ..PortInfo::default() }, ..about.clone() };
    screen.take(News::About(about.into()));
    screen.take(News::About(late.into()));
    let lines = shown(&mut screen, (80, 40)).join("\n");
    for words in [
        "vhost-user:/tmp/lossy.sock,from_rate=1Gbit",
        "receiver-full 500/s (1,000)",
        "from it",
        "52:54:00:00:00:01 vlan 7 3 s ago",
        "10.77.0.9",
        "state running",
        "at most 1000",
    ] {
        assert!(lines.contains(words), "no {words}:\n{lines}");
    }
    assert!(!lines.contains('\u{1b}'), "a guest writes to the terminal");
}

#[test]
fn an_emulated_nic_shows_what_it_costs() {
    let mut screen = new_screen();
    let read = |times: u64| {
        let mut nic = port("nic", 1_000 * times, 0);
        let mut device = DeviceStats { delivered: 10 * times, ..DeviceStats::default() };
        device.registers.entry("TDT".into()).or_default().writes = 100 * times;
        nic.device = Some(device);
        Stats { ports: vec![nic], ..Stats::default() }
    };
    let at = Instant::now();
    for (times, at) in [(1, at), (2, at + Duration::from_secs(1))] {
        screen.take(News::Counted { at, stats: read(times).into() });
    }
    press(&mut screen, &[KeyCode::Enter]);
    let lines = shown(&mut screen, (80, 40)).join("\n");
    for words in ["delivered 10/s", "registers for 1,000 frames 66.7", "TDT 100/s w"] {
        assert!(lines.contains(words), "no {words}:\n{lines}");
    }
}

#[test]
fn a_switch_that_does_not_answer_is_told_of() {
    let mut screen = new_screen();
    three(&mut screen);
    screen.take(News::Lost("no switch answers there".into()));
    let lines = shown(&mut screen, (80, 24));
    assert_eq!(lines[1], "no switch answers there");
    assert_eq!(order(&lines).len(), 3, "what was known stays");
    three(&mut screen);
    assert!(shown(&mut screen, (80, 24))[1].starts_with("in "));
}

/// Sizes that no person uses, and every view, do no harm.
#[test]
fn every_size_can_be_drawn() {
    let mut screen = new_screen();
    for keys in [&[][..], &[KeyCode::Down, KeyCode::Enter], &[KeyCode::Char('?')]] {
        three(&mut screen);
        press(&mut screen, keys);
        for size in [(1, 1), (2, 5), (10, 3), (40, 12), (79, 23), (500, 200)] {
            shown(&mut screen, size);
        }
    }
    press(&mut screen, &[KeyCode::Esc, KeyCode::Enter, KeyCode::End, KeyCode::PageDown]);
    let lines = shown(&mut screen, (80, 24)).join("\n");
    assert!(lines.contains("frames/s from it"), "{lines}");
}
