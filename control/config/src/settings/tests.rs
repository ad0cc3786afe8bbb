use super::*;
use std::path::Path;

fn settings(file: &str, table: SwitchTable, ports: &[&str]) -> Result<Settings, String> {
    let config = Config::parse(file, Path::new("f")).map_err(|e| e.to_string())?;
    let ports = ports.iter().map(|p| p.parse().unwrap()).collect();
    Settings::new(config, table, ports).map_err(|e| e.to_string())
}

fn api() -> SwitchTable {
    SwitchTable { api: Some("/a".into()), ..SwitchTable::default() }
}

#[test]
fn the_command_line_goes_before_the_file() {
    let file = "[switch]\nworkers = 2\nspin = 5\napi = '/f'\n[port.a]\naddress = 'tap:a'\n";
    let table = SwitchTable { workers: Some(3), ..SwitchTable::default() };
    let s = settings(file, table, &["b=tap:b"]).unwrap();
    assert_eq!(
        (s.running.workers, s.running.spin, s.running.api_mode),
        (3, Duration::from_micros(5), 0o600)
    );
    assert_eq!(s.plan.ports.len(), 2);
}

#[test]
fn there_are_as_many_workers_as_cpus_for_them() {
    let s = settings("[switch]\ncpus = '2,4-5'\n", api(), &[]).unwrap().running;
    assert_eq!((s.workers, s.cpus.to_string().as_str()), (3, "2,4-5"));
    let table = SwitchTable { cpus: Some("7".parse().unwrap()), ..api() };
    let s = settings("[switch]\ncpus = '2,4-5'\nworkers = 1\n", table, &[]).unwrap().running;
    assert_eq!((s.workers, s.cpus.to_string().as_str()), (1, "7"));
}

#[test]
fn doubles_and_wild_numbers_are_refused() {
    let ports = |p: &[&str]| settings("[port.a]\naddress = 'tap:a'\n", api(), p).unwrap_err();
    assert!(ports(&["a=tap:b"]).contains("port a: the name is given twice"));
    assert!(ports(&["b=tap:a"]).contains("'a' is the place of port a already"));
    assert!(ports(&["b=packet:a"]).contains("'a' is the place of port a already"));
    let file = "[port.z]\naddress = 'tap:x'\n[port.a]\naddress = 'tap:x'\n";
    let error = settings(file, api(), &[]).unwrap_err();
    assert!(error.starts_with("f:4: port a: 'x' is the place of port z already"), "{error}");
    let gateways = |p: &[&str]| settings("", api(), p);
    let second = "net2=nat:10.78.0.0/24";
    let error = gateways(&["net=nat:10.77.0.0/24", second]).unwrap_err();
    assert!(error.contains("port net2: net is a gateway of the same broadcast domain"), "{error}");
    assert!(gateways(&["net=nat:10.77.0.0/24,vlan=5", second]).is_ok());
    for (table, said) in [
        (SwitchTable { workers: Some(0), ..api() }, "workers=0: a number from 1 to 64"),
        (SwitchTable { ageing: Some(0), ..api() }, "ageing=0"),
        (
            SwitchTable { workers: Some(3), cpus: Some("0-1".parse().unwrap()), ..api() },
            "workers=3, cpus=0-1: each worker runs on a CPU of its own: leave `workers` out, or \
                name 3",
        ),
        (SwitchTable { spin: Some(u32::MAX), ..api() }, "spin=4294967295"),
        (SwitchTable { api_mode: Some("9".into()), ..api() }, "api-mode=9: write an octal mode"),
    ] {
        let error = settings("", table, &[]).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

/// Two ports, `keys` of each in the file.
fn two(a: &str, b: &str, rest: &str) -> Result<Settings, String> {
    let file = format!(
        "[port.a]\nkind = 'tap'\nplace = 'a'\n{a}\n[port.b]\nkind = 'tap'\nplace = 'b'\n{b}\n{rest}"
    );
    settings(&file, api(), &[])
}

#[test]
fn what_contradicts_the_rest_is_named_with_its_line() {
    for (a, b, rest, said) in [
        (
            "macs = '52:54:00:00:00:01'",
            "weight = 2\nmacs = ['52:54:00:00:00:02', '52:54:00:00:00:01']",
            "",
            "f:9: port b: macs=52:54:00:00:00:01: port a lists it too: leave it out of one of them",
        ),
        (
            "reach = 'web'",
            "member = 'wep'",
            "",
            "f:4: port a: reach=web: there is no such group: the groups are wep",
        ),
        ("reach = 'x'", "", "", "add a port with member= of it, or [group.NAME] to the file"),
        (
            "uplink = 'a'",
            "",
            "",
            "f:4: port a: uplink=a: a port cannot be its own uplink: name another, or any",
        ),
        (
            "uplink = 'up0'",
            "",
            "",
            "f:4: port a: uplink=up0: there is no such port: the ports are b",
        ),
        ("uplink = 'b'", "watch = 'all'", "", "uplink=b: that port takes no part in switching"),
        (
            "to_limit = 'gold'",
            "",
            "[limit.silver]\nrate = '1Mbit'\n",
            "f:4: port a: to_limit=gold: there is no such limit: the limits are silver",
        ),
        ("from_limit = 'gold'", "", "", "from_limit=gold: there is no such limit: add it by"),
        ("watch = 'c'", "", "", "f:4: port a: watch=c: there is no such port: the ports are b"),
        ("watch = 'a'", "", "", "watch=a: there is no such port: the ports are b"),
        ("watch = 'b'", "watch = 'all'", "", "watch=b: there is no such port: add it first"),
    ] {
        let error = two(a, b, rest).unwrap_err();
        assert!(error.contains(said), "{a} {b}: {error}");
        assert!(!error.contains('\n'));
    }
    let groups: String = (0..65).map(|i| format!("[group.g{i}]\n")).collect();
    assert!(two("member = 'a'", "", &groups).unwrap_err().contains("more than 64 groups"));
}

#[test]
fn what_goes_together_is_taken() {
    let settings = two(
        "member = 'web'\nreach = ['web', 'db']\nuplink = 'b'\nfrom_limit = 'gold'\ntrunk = [1, \
            '5-7']\nnative = 1",
        "macs = ['52:54:00:00:00:01']\nto_limit = 'gold'",
        "[group.db]\n[limit.gold]\nrate = '1.5Gbit'\nframes = 100000\n[sflow]\ncollector = \
            '10.0.0.1:6343'\n",
    )
    .unwrap();
    let text: Vec<_> = settings.plan.ports.iter().map(|p| p.address.to_string()).collect();
    assert_eq!(
        text,
        [
            "tap:a,from_limit=gold,member=web,native=1,reach=db+web,trunk=1+5-7,uplink=b",
            "tap:b,macs=52:54:00:00:00:01,to_limit=gold"
        ]
    );
    let limits: Vec<_> = settings.plan.limits.values().map(ToString::to_string).collect();
    assert_eq!(limits, ["rate=1.5Gbit frames=100k burst=10ms"]);
    assert_eq!(settings.plan.sflow.map(|s| s.sampling), Some(1000));
}

#[test]
fn one_address_may_be_that_of_two_ports() {
    // CARP and VRRP move an address between VMs.
    assert!(two("ips = '10.0.0.1'", "ips = ['10.0.0.1', '10.0.0.2']", "").is_ok());
}

#[test]
fn an_address_is_kept_for_one_port_by_a_gateway_that_has_it() {
    let ports = |p: &[&str]| settings("", api(), p);
    let net = "net=nat:10.77.0.0/24";
    let file = "[port.a]\naddress = 'vhost-user:/a,ip=10.77.0.20'\n[port.b]\nkind = \
        'vhost-user'\nplace = '/b'\nip = '10.77.0.20'\n";
    let error = settings(file, api(), &[]).unwrap_err();
    let said = "f:6: port b: ip=10.77.0.20: it is kept for port a already: leave it out of one";
    assert!(error.contains(said), "{error}");
    let error = ports(&[net, "vm1=vhost-user:/a,ip=10.99.0.5"]).unwrap_err();
    let said = "port vm1: ip=10.99.0.5: no nat: port gives it: net has 10.77.0.2 to 10.77.0.254: \
        take one of these, or leave it out";
    assert!(error.contains(said), "{error}");
    for taken in ["10.77.0.0", "10.77.0.1", "10.77.0.255", "10.77.1.2"] {
        let vm = format!("vm1=vhost-user:/a,ip={taken}");
        let error = ports(&[net, &vm]).unwrap_err();
        assert!(error.contains(&format!("ip={taken}: no nat: port gives it")), "{error}");
        assert!(ports(&[&vm]).is_ok(), "a gateway may come that has it");
    }
    for kept in ["10.77.0.2", "10.77.0.254", "10.78.0.9"] {
        let vm = format!("vm1=vhost-user:/a,ip={kept}");
        assert!(ports(&[&vm, net, "net2=nat:10.78.0.0/24,vlan=5"]).is_ok(), "{kept}");
    }
}

#[test]
fn what_needs_a_restart_is_told() {
    let running = settings("", SwitchTable { spin: Some(7), ..api() }, &[]).unwrap().running;
    let differs = |file: &str| running.differs(&Config::parse(file, Path::new("f")).unwrap());
    let same = "[switch]\nworkers = 1\nspin = 7\nageing = 300\napi = '/a'\napi-mode = '600'\n";
    assert_eq!(differs(same), None);
    assert_eq!(differs(""), None);
    for (file, said) in [
        ("[switch]\nspin = 7\nworkers = 2\n", "f:3: [switch] workers=2: the switch runs with 1"),
        ("[switch]\ncpus = '0'\n", "f:2: [switch] cpus=0: the switch runs without, and"),
        ("[switch]\ncpus = '0'\n", "needs a restart: leave it out, or restart"),
        ("[switch]\napi = '/b'\n", "f:2: [switch] api=/b: the switch runs with /a"),
        ("[switch]\nhold-for = 60\n", "hold-for=60: the switch runs without, and"),
        ("[switch]\nhold-for = 60\n", "needs a restart: leave it out, or restart"),
        ("[switch]\napi-mode = '0660'\n", "needs a restart: write api-mode = '0600'"),
        ("[switch]\nfdb-entries = 64\n", "fdb-entries=64: the switch runs with 131072"),
        ("[switch]\nfull-wait = 1\n", "full-wait=1"),
        ("[switch]\nsandbox = 'off'\n", "sandbox=off: the switch runs with on"),
        ("[switch]\nallow-dir = ['/srv']\n", "allow-dir=['/srv']: the switch runs with []"),
    ] {
        let text = differs(file).unwrap();
        assert!(text.contains(said), "{text}");
        // What it says to write can be written.
        if let Some((_, write)) = text.split_once("write ") {
            let line = write.split(", or restart").next().unwrap();
            assert_eq!(differs(&format!("[switch]\n{line}\n")), None, "{line}");
        }
    }
}
