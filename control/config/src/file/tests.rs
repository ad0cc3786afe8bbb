use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("vmlan.toml")).map_err(|e| e.to_string())
}

#[test]
fn the_file_says_the_same_with_the_same_words() {
    let config = parse(
        "[switch]\nworkers = 2\napi = '/run/x.sock'\nfull-wait = 50\n\
         [port.b]\nkind = 'vhost-user'\nplace = '/run/b.sock'\nqueues = 2\nconnect = true\nmode = \
         '0660'\n\
         [port.a]\naddress = 'vhost-user:/run/a.sock,queues=2'\n",
    )
    .unwrap();
    assert_eq!(config.switch.workers, Some(2));
    assert_eq!(config.switch.full_wait, Some(50));
    let ports: Vec<_> = config.ports.iter().map(|p| format!("{}={}", p.name, p.address)).collect();
    assert_eq!(
        ports,
        [
            "a=vhost-user:/run/a.sock,queues=2",
            "b=vhost-user:/run/b.sock,connect,mode=0660,queues=2"
        ]
    );
    assert!(parse("").unwrap().ports.is_empty());
    let nic = parse(
        "[port.n]\nkind = 'vfio-user'\nplace = '/n'\nmodel = 'e1000'\ndoorbell = 'mapped'\n\
         poll_idle = '500us'\nirq_rate_max = 8000\nlink = 'down'\nmac = '02:00:00:00:00:01'\n",
    );
    assert_eq!(
        nic.unwrap().ports[0].address.to_string(),
        "vfio-user:/n,doorbell=mapped,irq_rate_max=8000,link=down,\
         mac=02:00:00:00:00:01,model=e1000,poll_idle=500us"
    );
    let plain = "[port.n]\nkind = 'vfio-user'\nplace = '/n'\nmodel = 'rtl8139'\nplus = false\n";
    let plain = parse(plain).unwrap();
    assert_eq!(plain.ports[0].address.to_string(), "vfio-user:/n,model=rtl8139,plus=off");
    let example = parse(EXAMPLE).unwrap();
    assert_eq!((example.ports.len(), example.limits.len()), (2, 1));
    let list = "[port.c]\nkind = 'pcap'\nplace = '/c'\nports = ['vm1', 'vm2']\n";
    assert_eq!(parse(list).unwrap().ports[0].address.to_string(), "pcap:/c,ports=vm1+vm2");
}

/// What is written, and what is said of it.
const MISTAKES: &[(&str, &str)] = &[
    ("[switch]\nworker = 2\n", "vmlan.toml:2: unknown field `worker`"),
    (
        "[switch]\nworkers = 'two'\n",
        "vmlan.toml:2: invalid type: string \"two\": write workers = a number from 1 to 64",
    ),
    (
        "[switch]\nworkers = -1\n",
        "vmlan.toml:2: invalid value: integer `-1`: write workers = a number",
    ),
    ("[switch]\napi = 1\n", "vmlan.toml:2: invalid type: integer `1`: write api = text in quotes"),
    ("[switch]\napi-mode = 1\n", "write api-mode = text in quotes"),
    ("port = 'vm1'\n", "[port.NAME] on lines of their own"),
    (
        "[port]\nvm1 = 'tap:x'\n",
        "vmlan.toml:2: invalid type: string \"tap:x\": write [switch] and [port.NAME]",
    ),
    ("vm1 = 'tap:x'\n", "vmlan.toml:1: unknown field `vm1`: write [switch], [limit.NAME], "),
    ("switch = 2\n", "vmlan.toml:1: invalid type: integer `2`: write [switch]"),
    ("[ports.a]\naddress = 'tap:x'\n", "unknown field `ports`: write [switch]"),
    (
        "[port.c]\nkind = 'pcap'\nplace = 'x'\nports = ['a', 1]\n",
        "vmlan.toml:4: port c: ports: write a list like [\"vm1\"",
    ),
    ("\n[port.a]\naddress = 'tpa:x'\n", "port a: 'tpa' is not a kind of port: did you mean 'tap'?"),
    ("[port.a]\nkind = 'tap'\nplace = 'x'\nqueue = 2\n", "did you mean 'queues'?"),
    ("[port.a]\nkind = 'tap'\n", "'place' is missing"),
    (
        "[port.a]\naddress = 'tap:x'\nqueues = 2\nkind = 'tap'\n",
        "vmlan.toml:4: port a: 'kind' stands in the address already",
    ),
    (
        "[port.a]\naddress = 'tap:x,weight=2'\nmacs = 'first'\nweight = 3\n",
        "vmlan.toml:4: port a: key 'weight' is given twice: leave one out",
    ),
    (
        "[port.a]\naddress = 'tap:x,vlan=2'\nqinq = 3\n",
        "vmlan.toml:3: port a: vlan=2 does not go with qinq=3",
    ),
    (
        "[port.a]\naddress = 'tap:x'\ngroup = ['a']\n",
        "vmlan.toml:3: port a: group is the one group",
    ),
    (
        "[port.a]\nkind = 'stream'\nplace = 'x'\ngroup = ['a']\n",
        "did you mean 'member' (groups that",
    ),
    ("[port.a]\naddress = 7\n", "text in quotes"),
    ("[port.a]\nkind = 'tap'\nplace = 'x'\nqueues = [1]\n", "queues: write"),
    (
        "[port.n]\nkind = 'vfio-user'\nplace = '/n'\npoll_idle = 1\n",
        "port n: poll_idle=1: a time from 50us to 1s, like 1ms, is wanted",
    ),
    (
        "[port.n]\naddress = 'vfio-user:/n,model=r8169'\nlink = 'up'\ndoorbell = 'mapped'\n",
        "vmlan.toml:4: port n: doorbell=mapped does not go with model=r8169: the switch",
    ),
    (
        "[port.n]\naddress = 'vfio-user:/n'\nplus = false\n",
        "vmlan.toml:3: port n: plus=off wants model=rtl8139 beside it",
    ),
    ("[port.'a b']\naddress = 'tap:x'\n", "is not a valid name for a port"),
    (
        "[port.a]\n\n[port.a] # again\n",
        "vmlan.toml:3: [port.a] is given twice, first in line 1: give this port another name, or \
            leave one out",
    ),
    (
        "[port.a]\naddress = 'tap:x,vlan=7'\nweight = 1\nweight = 2\n",
        "vmlan.toml:4: weight is given twice: leave one out",
    ),
    (
        "[port.a]\naddress = 'tap:x'\nvlan = 7\n[group.g]\n[group.g]\n",
        "vmlan.toml:5: [group.g] is given twice, first in line 4: leave one out",
    ),
    (
        "[switch]\nspin = 1\n[switch]\n",
        "vmlan.toml:3: [switch] is given twice, first in line 1: put the keys of both into one",
    ),
    ("[switch\n", "vmlan.toml:1: "),
    (
        "[switch]\nspin = 1\nworkers = 65\n",
        "vmlan.toml:3: workers=65: a number from 1 to 64 is wanted",
    ),
    (
        "[port.a]\nkind = 'tap'\nplace = 'x'\nweight = 2\nto_rate = '0Mbit'\n",
        "vmlan.toml:5: port a: to_rate=0Mbit: a rate from 64kbit to 400Gbit",
    ),
    (
        "[port.a]\naddress = 'tap:x'\n\n[port.b]\naddress = 'tap:y,vlan=0'\n",
        "vmlan.toml:5: port b: vlan=0: a number from 1 to 4094",
    ),
    (
        "[port.a]\nkind = 'tap'\nplace = 'x'\ntrunk = [1, 2,\n 1]\n",
        "vmlan.toml:4: port a: trunk=1+2+1: VID 1 is given twice",
    ),
    ("[port.a]\nkind = 'tap'\nplace = 'x'\ntrunk = [1.5]\n", "trunk: write a list like ["),
    ("[port.a]\nkind = 'tap'\nplace = 'x'\nmember = ['a+b']\n", "member: write a list like ["),
    (
        "[port.a]\nkind = 'tap'\nplace = 'x'\nvlan = 1\nqinq = 2\n",
        "vmlan.toml:5: port a: vlan=1 does not go with qinq=2",
    ),
    ("[limit.gold]\n", "vmlan.toml:1: limit gold: a limit wants rate=RATE, frames=N, or both"),
    (
        "[limit.gold]\nrate = '1Mbit'\nframe = 1\n",
        "vmlan.toml:3: limit gold: 'frame' is not a key of a limit: did you mean 'frames'?",
    ),
    ("[limit.gold]\nrate = 64\n", "vmlan.toml:2: limit gold: rate=64: a rate from 64kbit"),
    ("[limit.gold]\nburst = '1ms'\n", "limit gold: a limit wants"),
    ("[limit.all]\nrate = '1Mbit'\n", "'all' is not a valid name for a limit or group"),
    ("[limit]\nrate = '1Mbit'\n", "write [switch] and [port.NAME] on lines of their own"),
    (
        "[group.web]\nmember = 'a'\n",
        "vmlan.toml:2: group web: 'member' is not a key of a group: leave it out, and write member \
            = \"web\"",
    ),
    ("[sflow]\n", "vmlan.toml:1: [sflow]: [sflow] wants collector"),
    ("[sflow]\ncollector = '10.0.0.1'\n", "vmlan.toml:2: [sflow]: collector=10.0.0.1: IP:PORT"),
    ("[sflow]\ncollector = '10.0.0.1:0'\n", "IP:PORT, like 10.0.0.1:6343"),
    ("[sflow]\ncollector = '10.0.0.1:1'\nsampling = 0\n", "sampling=0: a number from 1"),
];

#[test]
fn a_mistake_is_named_with_its_line() {
    for (text, said) in MISTAKES.iter().copied() {
        let error = parse(text).unwrap_err();
        assert!(error.contains(said), "{text}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn keys_may_stand_beside_the_address() {
    let text = "[port.a]\naddress = 'tap:x,native=1'\ntrunk = [2, '5-6']\nmacs = 'first'\n";
    let config = parse(text).unwrap();
    assert_eq!(config.ports[0].address.to_string(), "tap:x,macs=first,native=1,trunk=2+5-6");
}

#[test]
fn the_example_of_the_manual_is_taken() {
    let manual = include_str!("../../../../docs/policy.md");
    let example = manual.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let mut config = parse(example).unwrap();
    let plan = crate::settings::Plan::new(&mut config, Vec::new());
    assert_eq!((plan.ports.len(), plan.limits.len()), (2, 1));
    assert!(plan.check(|_| 0).is_ok());
}
