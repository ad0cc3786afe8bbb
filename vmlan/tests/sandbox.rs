//! Everything a switch can be asked for works in its sandbox, and a thread that is taken over gains
//! nothing.

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Guest, Switch, until};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

const VMLAN: &str = env!("CARGO_BIN_EXE_vmlan");

const FIRST: [&str; 4] = [
    "v=vhost-user:@/v.sock",
    "s=stream:@/s.sock",
    "n=vfio-user:@/n.sock",
    "cap=pcap:@/cap.pcapng,ports=v+n",
];

/// Ports of every kind and model that are added later.
const LATER: [&str; 11] = [
    "v2=vhost-user:@/v2.sock,queues=2,mode=0660",
    "vc=vhost-user:@/vc.sock,connect=on",
    "r8169=vfio-user:@/r8169.sock,model=r8169",
    "rtl8139=vfio-user:@/rtl8139.sock,model=rtl8139",
    "plain=vfio-user:@/plain.sock,model=rtl8139,plus=off",
    "vmxnet3=vfio-user:@/vmxnet3.sock,model=vmxnet3",
    "e1000e=vfio-user:@/e1000e.sock,model=e1000e",
    "mapped=vfio-user:@/mapped.sock,doorbell=mapped",
    "csb=vfio-user:@/csb.sock,csb=on",
    "sc=stream:@/sc.sock,connect=on",
    "cap2=pcap:@/cap2.pcapng,snaplen=64",
];

/// Where guests attach, and to which ports.
const GUESTS: [(&str, &str); 10] = [
    ("v", "vhost-user:@/v.sock"),
    ("v2", "vhost-user:@/v2.sock"),
    ("n", "vfio-user:@/n.sock"),
    ("r8169", "vfio-user:@/r8169.sock,model=r8169"),
    ("rtl8139", "vfio-user:@/rtl8139.sock,model=rtl8139"),
    ("plain", "vfio-user:@/plain.sock,model=rtl8139,plus=off"),
    ("vmxnet3", "vfio-user:@/vmxnet3.sock,model=vmxnet3"),
    ("e1000e", "vfio-user:@/e1000e.sock,model=e1000e"),
    ("mapped", "vfio-user:@/mapped.sock"),
    ("csb", "vfio-user:@/csb.sock,csb=on"),
];

fn is_root() -> bool {
    Command::new("id").arg("-u").output().unwrap().stdout == b"0\n"
}

fn temp_dir(parent: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(parent).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    dir
}

/// The program where everybody may read it. Made by another process: one that is forked meanwhile
/// must not hold the copy open for writing ("text file busy").
fn copy_of_program(dir: &Path) -> String {
    let copy = dir.join("vmlan");
    let cp = Command::new("cp").arg(VMLAN).arg(&copy).status().unwrap();
    assert!(cp.success());
    copy.to_str().unwrap().to_owned()
}

fn is_up(switch: &Switch, name: &str) -> bool {
    let stats = switch.json(&["stats"]);
    let ports = stats["ports"].as_array().unwrap();
    ports.iter().any(|p| p["name"] == name && p["up"] == true)
}

/// A guest at each port that VMs connect to, one after the other, and frames of the last one.
fn guests_come_and_go(switch: &Switch) {
    for (name, address) in GUESTS {
        let address = switch.here(address);
        let receiver = Guest::start(&["-i", &address, "-f", "rx"]);
        until(name, || is_up(switch, name));
        drop(receiver);
        let sender = Guest::start(&["-i", &address, "-f", "tx", "-R", "10k"]);
        let frames = || {
            let stats = switch.json(&["stats"]);
            let port = stats["ports"].as_array().unwrap().iter().find(|p| p["name"] == name);
            port.unwrap()["in"]["frames"].as_u64()
        };
        until("its frames", || frames() > Some(100));
        drop(sender);
        until("its end", || !is_up(switch, name));
    }
    let mut peer = UnixStream::connect(switch.path("s.sock")).unwrap();
    until("the stream", || is_up(switch, "s"));
    let frame = [&60u32.to_be_bytes()[..], &[0xff; 6], &[2, 0, 0, 0, 0, 9], &[0; 48]].concat();
    peer.write_all(&frame).unwrap();
    let listener = UnixListener::bind(switch.path("sc.sock")).unwrap();
    std::fs::set_permissions(switch.path("sc.sock"), PermissionsExt::from_mode(0o777)).unwrap();
    drop(listener.accept().unwrap());
}

fn ask_for_everything(switch: &Switch) {
    let ask = |words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        switch.ask(&words)
    };
    for port in LATER {
        ask(&format!("port add {}", switch.here(port)));
    }
    guests_come_and_go(switch);
    for words in [
        "limit set gold rate=1Gbit",
        "port set v macs=first from_rate=100Mbit from_limit=gold vlan=10",
        "port set v2 queues=1",
        "port set v2 mode=0600",
        "port set n link=down",
        "port set n link=up irq_rate_max=8000",
        "port set csb mac=02:00:00:00:00:07",
        "port set s mode=0600",
        "port set cap ports=v",
        "sflow set collector=127.0.0.1:6343 sampling=1 polling=1",
        "sflow set collector=[::1]:6343",
        "sflow show",
        "fdb add 52:54:00:00:00:01 v2",
        "fdb list",
        "fdb del 52:54:00:00:00:01",
        "explain --port v2 --src 52:54:00:00:00:02 --dst ff:ff:ff:ff:ff:ff",
        "limit list",
        "port list",
        "stats",
        "vm-args v",
        "vm-args n --qemu-version 11.0",
    ] {
        ask(words);
    }
    let mut http = UnixStream::connect(switch.api()).unwrap();
    http.write_all(b"GET /metrics HTTP/1.1\r\nhost: vmlan\r\nconnection: close\r\n\r\n").unwrap();
    let mut metrics = String::new();
    http.read_to_string(&mut metrics).unwrap();
    assert!(metrics.contains("200 OK"), "{metrics}");
    let file = switch.path("new.toml");
    let text = "[port.v]\naddress = 'vhost-user:@/v.sock'\n\
        [port.x]\naddress = 'vfio-user:@/x.sock'\n\
        [port.cap2]\naddress = 'pcap:@/cap3.pcapng'\n";
    std::fs::write(&file, switch.here(text)).unwrap();
    ask(&format!("apply {} --dry-run", file.display()));
    ask(&format!("apply {}", file.display()));
    assert!(switch.path("cap3.pcapng").exists());
    ask("sflow off");
    ask("port del cap2");
    ask("port del x");
    let stats = switch.json(&["stats"]);
    assert!(stats["sandbox"].as_str().unwrap().starts_with("on"), "{stats}");
}

/// What it said on standard error of the sandbox, and of threads that failed.
fn complaints(dir: &Path) -> String {
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    let bad = log.lines().filter(|l| l.contains("sandbox: ") || l.contains("panicked"));
    bad.collect::<Vec<_>>().join("\n")
}

/// All of the API, SIGTERM, and kill -9 with a new start, by a user of this kind.
fn works(wrapper: &[&str], tap: Option<&str>) {
    let dir = temp_dir(&std::env::temp_dir());
    let program = copy_of_program(dir.path());
    let wrapper = [wrapper, &[&program]].concat();
    let switch = Switch::within(dir, &wrapper, &[], &FIRST);
    if let Some(tap) = tap {
        switch.ask(&["port", "add", tap]);
        switch.ask(&["port", "set", "t", "vlan=10"]);
        switch.ask(&["port", "del", "t"]);
        switch.ask(&["port", "add", tap]);
    }
    ask_for_everything(&switch);
    // Killed, and started again over what it left.
    switch.signal("KILL");
    let dir = switch.into_dir();
    let switch = Switch::within(dir, &wrapper, &[], &FIRST);
    switch.ask(&["port", "add", &switch.here(LATER[0])]);
    switch.signal("TERM");
    let dir = switch.into_dir();
    let left = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name());
    let sockets: Vec<_> = left.filter(|n| n.to_string_lossy().ends_with(".sock")).collect();
    // Those that the killed one had, and the new one was not asked for.
    assert!(!sockets.iter().any(|n| n == "v.sock" || n == "api.sock"), "{sockets:?}");
    assert_eq!(complaints(dir.path()), "");
}

#[test]
fn all_of_the_api_works_for_whoever_starts_the_switch() {
    if !is_root() {
        return works(&["env"], None);
    }
    works(&["unshare", "--net", "--"], Some("t=tap:vmlan0"));
}

#[test]
fn all_of_the_api_works_for_a_user_without_privileges() {
    if !is_root() {
        return println!("skipped: only root can become another user; the other test covers it");
    }
    let made = "ip tuntap add vmlan0 mode tap user 65534 vnet_hdr && exec setpriv \
        --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all -- \"$@\"";
    works(&["unshare", "--net", "--", "sh", "-c", made, "sh"], Some("t=tap:vmlan0"));
}

/// Makes `near`, with a cable to `far`.
const PAIR: &str = "ip link add near type veth peer name far && \
    ethtool -K near rxvlan off && ip link set near up && ip link set far up";

/// Capabilities of the threads of this name.
fn capabilities_of(switch: &Switch, thread: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", switch.pid())).unwrap().flatten();
    let mut found = Vec::new();
    for task in tasks.map(|task| task.path()) {
        let read = |name| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        let status = read("status");
        let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap_or_default();
        if read("comm").trim_end() == thread {
            found.push(effective.trim().to_owned());
        }
    }
    found
}

/// A user with these capabilities and no other has the interface as a port, at the start and later;
/// it goes and comes back, and the port's own thread has at most `kept`.
fn follows_an_interface(address: &str, capabilities: &str, thread: &str, kept: &str) {
    if !is_root() {
        return println!("skipped: network interfaces are made by root");
    }
    let dir = temp_dir(&std::env::temp_dir());
    let program = copy_of_program(dir.path());
    let start = format!(
        "{PAIR} && exec setpriv --reuid=65534 --regid=65534 --clear-groups \
         --inh-caps={capabilities} --ambient-caps={capabilities} \
         --bounding-set=-all,{capabilities} -- \"$@\""
    );
    let wrapper = ["unshare", "--net", "--", "sh", "-c", &start, "sh", &program];
    let port = format!("n={address}");
    let switch = Switch::within(dir, &wrapper, &[], &[&port]);
    let there = |line: &str| {
        let pid = switch.pid().to_string();
        let mut enter = Command::new("nsenter");
        let done = enter.args(["-t", &pid, "-n", "--", "sh", "-c", line]).status().unwrap();
        assert!(done.success(), "{line}");
    };
    // Its place is no absolute path.
    switch.fails(&["vm-args", "n"], 2, &["port n"]);
    let other = ["tap:near", "packet:near", "xdp:near"].map(|other| format!("other={other}"));
    for other in &other {
        switch.fails(&["port", "add", other], 1, &["port n is at 'near' already"]);
    }
    for _ in 0..2 {
        until("up", || is_up(&switch, "n"));
        there("ip link delete near");
        until("gone", || !is_up(&switch, "n"));
        let detail = |key| switch.json(&["port", "list"])["ports"][0]["details"][key].clone();
        assert!(detail("state").as_str().unwrap().starts_with("gone: "), "{}", detail("state"));
        there(PAIR);
        until("back", || is_up(&switch, "n"));
        there("ip link set near mtu 1400");
        until("narrower", || detail("mtu") == "1400");
        assert_eq!(capabilities_of(&switch, thread), [kept]);
        switch.ask(&["port", "del", "n"]);
        switch.fails(
            &["port", "add", &port.replace("near", "nothing")],
            1,
            &["`nothing`: there is no such interface here"],
        );
        switch.ask(&["port", "add", &port]);
    }
    switch.signal("TERM");
    let dir = switch.into_dir();
    assert_eq!(complaints(dir.path()), "");
}

#[test]
fn a_packet_socket_needs_no_right_after_the_start() {
    follows_an_interface("packet:near", "+net_raw", "packet near", "0000000000000000");
}

#[test]
fn xdp_needs_few_rights_after_the_start() {
    // CAP_NET_RAW, CAP_IPC_LOCK and CAP_BPF.
    let all = "+net_raw,+net_admin,+bpf,+ipc_lock";
    follows_an_interface("xdp:near", all, "xdp near", "0000008000006000");
}

#[test]
fn what_the_sandbox_refuses_later_is_refused_with_one_line() {
    let elsewhere = temp_dir(Path::new("/var/tmp"));
    let place = |name: &str| elsewhere.path().join(name).to_str().unwrap().to_owned();
    let refused = ["vhost-user", "vfio-user", "stream", "pcap"];
    let ports = refused.map(|kind| format!("{kind}={kind}:{}", place(kind)));
    let switch = Switch::start(&["v=vhost-user:@/v.sock"]);
    for (port, kind) in ports.iter().zip(refused) {
        let named = format!("port {kind}: the sandbox keeps the switch from making anything in ");
        let help = format!("--allow-dir {}", elsewhere.path().display());
        switch.fails(&["port", "add", port], 1, &[&named, &help]);
    }
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    drop(switch);
    for allowed in [&["--allow-dir", elsewhere.path().to_str().unwrap()][..], &["--sandbox", "off"]]
    {
        let switch = Switch::with(allowed, &["v=vhost-user:@/v.sock"], &[]);
        ports.iter().for_each(|port| drop(switch.ask(&["port", "add", port])));
    }
    // What the switch is started with needs no permission.
    let ports = ports.each_ref().map(String::as_str);
    drop(Switch::start(&ports));
}

/// Answers these calls, prctl with this option, as a kernel does that does not know them, for this
/// thread and what it starts.
fn lack(calls: &[i64], prctl: u64) {
    let option = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, prctl);
    let option = SeccompRule::new(vec![option.unwrap()]).unwrap();
    let rules = calls.iter().map(|call| (*call, Vec::new()));
    let rules = rules.chain([(libc::SYS_prctl, vec![option])]).collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let error = SeccompAction::Errno(libc::EINVAL.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, error, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// A kernel without these calls: what `stats` says of the sandbox, and the log.
fn without(calls: &'static [i64], prctl: u64) -> (String, String) {
    let run = move || {
        lack(calls, prctl);
        let switch = Switch::within(temp_dir(&std::env::temp_dir()), &["env", VMLAN], &[], &FIRST);
        let sender = switch.here("vhost-user:@/v.sock");
        let _guest = Guest::start(&["-i", &sender, "-f", "tx", "-R", "10k"]);
        until("the guest", || is_up(&switch, "v"));
        switch.ask(&["port", "add", &switch.here(LATER[2])]);
        let said = switch.json(&["stats"])["sandbox"].as_str().unwrap().to_owned();
        switch.signal("TERM");
        let dir = switch.into_dir();
        assert_eq!(complaints(dir.path()), "");
        (said, std::fs::read_to_string(dir.path().join("log")).unwrap())
    };
    std::thread::spawn(run).join().unwrap()
}

const NO_LANDLOCK: [i64; 3] = [
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
];
/// Asks the kernel where the clocks are, since Linux 6.4.
const GET_AUXV: u64 = 0x4155_5856;
const GET_SECCOMP: u64 = 21;

#[test]
fn what_a_kernel_lacks_is_left_out_with_a_line_each() {
    let (said, log) = without(&NO_LANDLOCK, GET_AUXV);
    assert!(said.starts_with("on, without Landlock"), "{said}");
    assert_eq!(log.matches("the sandbox does without Landlock").count(), 1, "{log}");
    let (said, log) = without(&[libc::SYS_seccomp], GET_SECCOMP);
    assert!(said.starts_with("on, without seccomp"), "{said}");
    assert_eq!(log.matches("the sandbox does without seccomp").count(), 1, "{log}");
    // As in a container that forbids more filters.
    let (said, _) = without(&[libc::SYS_seccomp], GET_AUXV);
    assert!(said.starts_with("on, without seccomp"), "{said}");
}

#[test]
fn a_kernel_before_6_4_has_the_whole_sandbox() {
    let (said, log) = without(&[], GET_AUXV);
    assert_eq!((said.as_str(), log.as_str()), ("on", ""));
}

#[test]
fn without_a_sandbox_stats_say_so() {
    let switch = Switch::with(&["--sandbox", "off"], &[], &[]);
    assert!(switch.ask(&["stats"]).contains("\nsandbox off\n"));
}

/// A process of the same user that is to be left alone.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a worker tries that somebody else gives orders to, and the call that ends the switch.
#[cfg(debug_assertions)]
#[test]
fn a_worker_that_was_taken_over_gains_nothing() {
    let attempts = [
        ("open", "openat"),
        ("write", "openat"),
        ("memory", "openat"),
        ("connect", "socket"),
        ("tcp", "socket"),
        ("exec", "execve"),
        ("fork", "clone"),
        ("trace", "ptrace"),
        ("read", "process_vm_readv"),
        ("kill", "kill"),
        ("own", "fcntl"),
        ("pidfd", "pidfd_open"),
        ("code", "mmap"),
    ];
    let sleep = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let mut victim = Victim(sleep);
    for (what, call) in attempts {
        let dir = tempfile::tempdir().unwrap();
        let api = dir.path().join("api.sock");
        let told = format!("worker:{what}:{}", victim.0.id());
        let mut command = Command::new(VMLAN);
        command.args(["switch", "--api", api.to_str().unwrap()]).env("VMLAN_TEST_MISBEHAVE", told);
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        if said.contains("the sandbox does without seccomp") {
            return println!("skipped: {said}");
        }
        assert_eq!(out.status.code(), Some(159), "{what}: {said}");
        let line = format!("sandbox: a worker thread called {call} (");
        assert!(said.contains(&line) && !said.contains("misbehaved"), "{what}: {said}");
        assert!(victim.0.try_wait().unwrap().is_none(), "{what}: it was ended");
    }
}
