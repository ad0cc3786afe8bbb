//! What is asked wrongly is refused with exit code 2 and one line that says what to do; nothing is
//! left behind.

mod common;

use common::{Guest, Switch, fails, until, vmlan};

/// A switch that must not start: nothing may be in its directory afterwards but `kept`.
fn refused(ports: &[&str], code: i32, said: &[&str], kept: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    for name in kept {
        std::fs::write(dir.path().join(name), "precious").unwrap();
    }
    let here = dir.path().to_str().unwrap();
    let api = format!("{here}/api.sock");
    let ports: Vec<_> = ports.iter().map(|p| p.replace('@', here)).collect();
    let mut args = vec!["switch", "--api", &api];
    args.extend(ports.iter().map(String::as_str));
    fails(&args, code, said);
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, kept, "{ports:?} left something behind");
    for name in kept {
        assert_eq!(std::fs::read_to_string(dir.path().join(name)).unwrap(), "precious");
    }
}

#[test]
fn wrong_addresses_are_wrong_usage() {
    let good = "vm0=vhost-user:@/vm0.sock";
    for (port, said) in [
        (
            "vm1=vhostuser:@/a",
            "port vm1: 'vhostuser' is not a kind of port: did you mean 'vhost-user'?",
        ),
        (
            "vm1=vhost-user:@/a,queue=2",
            "port vm1: 'queue' is not a key of vhost-user: did you mean 'queues'?",
        ),
        ("vm1=vhost-user:@/a,queues=0", "port vm1: queues=0: a number from 1 to 64"),
        ("vm1=vhost-user:", "port vm1: '' is not a valid place"),
        ("vhost-user:@/a", "write NAME=KIND:PLACE"),
        ("vm 1=tap:x", "'vm 1' is not a valid name"),
        ("vm0=vhost-user:@/b", "port vm0: the name is given twice"),
        ("vm1=vhost-user:@/vm0.sock", "is the place of port vm0 already"),
        (
            "vm1=vfio-user:@/a,model=e1001",
            "port vm1: model=e1001: e1000, e1000e, r8169, rtl8139 or vmxnet3 is wanted",
        ),
        (
            "vm1=vfio-user:@/a,model=r8169,doorbell=mapped",
            "port vm1: doorbell=mapped does not go with model=r8169",
        ),
        ("vm1=vfio-user:@/a,poll_idle=2s", "port vm1: poll_idle=2s: a time from 50us to 1s"),
        ("vm1=vfio-user:@/a,doorbel=mapped", "did you mean 'doorbell'?"),
        ("vm1=vhost-user:@/a,link=up", "port vm1: 'link' is not a key of vhost-user"),
        (
            "vm1=vfio-user:@/a,doorbell=mapped,csb",
            "port vm1: csb=on does not go with doorbell=mapped",
        ),
        ("t=tap:waytoolonginterfacename", "port t: 'waytoolonginterfacename'"),
    ] {
        refused(&[good, port], 2, &[said], &[]);
    }
}

#[test]
fn wrong_flags_are_wrong_usage_in_one_line() {
    fails(&["switch", "--foo"], 2, &["--foo"]);
    fails(&["swich"], 2, &["swich", "switch"]);
    fails(&["switch", "--workers", "many"], 2, &["many", "--workers"]);
    fails(&["switch", "--api", "/tmp/x", "--workers", "0"], 2, &["workers=0", "1 to 64"]);
    fails(&["switch", "--api", "/tmp/x", "--cpus", "0-"], 2, &["cpus=0-", "like 2,4-7"]);
    fails(
        &["switch", "--api", "/tmp/x", "--cpus", "0,1", "--workers", "3"],
        2,
        &["workers=3, cpus=0-1", "name 3"],
    );
    fails(&["switch", "--api", "/tmp/x", "--cpus", "8000"], 1, &["cpus=8000", "it can on 0"]);
    fails(&["switch", "--api", "/tmp/x", "--api-mode", "rw"], 2, &["api-mode=rw", "octal"]);
    fails(&["port", "add", "--api", "/x", "a=tpa:b"], 2, &["port a:", "did you mean 'tap'?"]);
    fails(&["port", "set", "--api", "/x", "a", "mode"], 2, &["'mode' has no value"]);
    fails(
        &["fdb", "add", "--api", "/x", "01:02", "a"],
        2,
        &["'01:02'", "52:54:00"].map(|w| w.trim_matches('\'')),
    );
    for of in ["10.77.0.20 ", "a/b", ""] {
        fails(&["lease", "remove", "--api", "/x", of], 2, &[of, "give an IP address"]);
    }
    fails(&["vm-args", "a=tap:t0"], 2, &["port a: a tap port is not for VMs"]);
    fails(&["vm-args", "a=stream:/a", "--vmm", "qemi"], 2, &["did you mean 'qemu'?"]);
    fails(&["pkt-gen", "-i", "tap:x", "-f", "tx"], 2, &["-i: ", "vhost-user:"]);
    fails(&["pkt-gen", "-i", "vhost-user:/x", "-f", "fly"], 2, &["-f: ", "ping or pong"]);
    fails(&["pkt-gen", "-i", "vhost-user:/x", "-f", "tx", "-R", "fast"], 2, &["-R: 'fast'"]);
    fails(&["demo", "--seconds", "0"], 2, &["--seconds 0"]);
}

#[test]
fn a_file_is_checked_beside_a_switch_that_runs() {
    let switch = Switch::start(&["s=stream:@/s"]);
    let before = switch.files();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.toml");
    let check = ["switch", "--check", "--config", file.to_str().unwrap()];
    let write = |text: &str| std::fs::write(&file, switch.here(text)).unwrap();
    write("[switch]\nhold-for = 60\nworkers = 2\n[port.s]\naddress = 'stream:@/s'\n");
    assert_eq!(switch.ask(&check), "ok\n");
    write("[switch]\nhold-for = 0\n");
    switch.fails(&check, 2, &["f.toml:2: hold-for=0: a number from 1 to 86400"]);
    write("[port.s]\naddress = 'stream:@/s,watch=t'\n");
    switch.fails(&check, 2, &["f.toml:2: port s: watch=t"]);
    assert_eq!(switch.files(), before);
}

#[test]
fn forwards_are_those_of_the_gateway_that_was_named() {
    let ports = ["lan=nat:10.77.0.0/24,forward=udp:1:v:1", "net2=nat:10.78.0.0/24,vlan=5"];
    let switch = Switch::start(&ports);
    let said = "--net lna: no such nat: port (the switch has lan, net2)";
    for words in [&["list"][..], &["add", "udp:2:v:2"], &["remove", "udp:1:v:1"]] {
        switch.fails(&[&["forward"], words, &["--net", "lna"]].concat(), 2, &[said]);
    }
    switch.fails(&["forward", "add", "udp:2:v:2"], 2, &["say by --net which gateway: lan, net2"]);
    let count = |net: &str| {
        let list = switch.json(&["forward", "list", "--net", net]);
        list["forwards"].as_array().map(Vec::len)
    };
    assert_eq!([count("lan"), count("net2")], [Some(1), Some(0)]);
    switch.ask(&["forward", "del", "udp:1:v:1", "--net", "lan"]);
    assert_eq!(count("lan"), Some(0));
}

#[test]
fn what_is_in_the_way_stays_and_what_was_begun_goes() {
    let first = "vm0=vhost-user:@/vm0.sock";
    refused(
        &[first, "s=stream:@/s.sock", "vm1=vhost-user:@/file"],
        1,
        &["port vm1: ", "/file", "remove it or choose another path"],
        &["file"],
    );
    refused(&[first, "vm1=vhost-user:@/none/a.sock"], 1, &["port vm1: ", "/none` first"], &[]);
    refused(&[first, "s=stream:@/none/a.sock"], 1, &["port s: ", "create it first"], &[]);
    refused(&[first, "vm1=vhost-user:/proc/a.sock"], 1, &["port vm1: ", "/proc/"], &[]);
    refused(&[first, "c=pcap:@/none/a.pcapng"], 1, &["/none/a.pcapng", "create it first"], &[]);
    refused(
        &[first, "c=pcap:@/c.pcapng,ports=vm0+vm9"],
        2,
        &["port c: ports=vm9: there is no such port: the ports are vm0"],
        &[],
    );
    refused(&[first], 1, &["api ", "is in the way", "--api"], &["api.sock"]);
    let other = Switch::start(&["vm1=vhost-user:@/vm1.sock"]);
    let taken = other.here("vm1=vhost-user:@/vm1.sock");
    refused(&[first, &taken], 1, &["port vm1: ", "another process listens"], &[]);
    fails(&["switch", "--api", &other.api()], 1, &["another switch listens there", "--api"]);
    assert_eq!(other.files(), ["api.sock", "vm1.sock"], "the other switch lost its sockets");
}

#[test]
fn configuration_files_are_checked_before_anything_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vmlan.toml");
    let here = dir.path().to_str().unwrap();
    let config = file.to_str().unwrap();
    fails(&["switch", "--config", config], 1, &[config, "can be read"]);
    for (text, said) in [
        ("[switch]\nworker = 2\n", ":2: unknown field `worker`"),
        ("[port.a]\nkind = 'tap'\nplace = 'x'\nqueue = 1\n", "port a: 'queue' is not a key of tap"),
        ("[port.a\n", ":1: "),
    ] {
        std::fs::write(&file, format!("[port.vm0]\naddress = 'vhost-user:{here}/vm0'\n{text}"))
            .unwrap();
        let said = said.replace(":2:", ":4:").replace(":1:", ":3:");
        fails(
            &["switch", "--config", config, "--api", &format!("{here}/api")],
            2,
            &[config, &said],
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn without_a_switch_the_others_say_so() {
    for args in [
        ["port", "list"].as_slice(),
        &["port", "del", "a"],
        &["fdb", "list"],
        &["stats"],
        &["explain", "--port", "a", "00"],
        &["vm-args", "a"],
    ] {
        let args = [args, &["--api", "/nonexistent/api.sock"]].concat();
        fails(
            &args,
            1,
            &[
                "/nonexistent/api.sock",
                "no switch answers there",
                "start `vmlan --api /nonexistent/api.sock switch`",
            ],
        );
    }
}

#[test]
fn a_guest_that_finds_no_place_is_told_why() {
    let guest = |address: &str, said: &str| {
        fails(&["pkt-gen", "-i", address, "-f", "tx", "-w", "0.2"], 1, &[said]);
    };
    guest(
        "vhost-user:/nonexistent/vm1.sock",
        "is `vmlan switch` running with a port at this path?",
    );
    let switch = Switch::start(&["vm1=vhost-user:@/vm1.sock"]);
    let address = switch.here("vhost-user:@/vm1.sock");
    let _first = Guest::start(&["-i", &address, "-f", "rx"]);
    until("the first guest", || switch.json(&["port", "list"])["ports"][0]["up"] == true);
    guest(&address, "does the port have another front end");
}

#[test]
fn vm_args_need_no_switch_if_the_address_is_given() {
    let out =
        vmlan(&["vm-args", "vm1=vhost-user:/tmp/vm1.sock", "--qemu-version", "9.2", "--json"]);
    assert!(out.status.success());
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["vmm"], "qemu");
    assert!(json["args"].as_array().unwrap().iter().any(|a| a == "memory-backend=vmlan-mem"));
    let out = vmlan(&["vm-args", "vm1=vhost-user:/tmp/vm1.sock", "--memory", "2G"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("size=2G,share=on -m 2G") && text.lines().count() == 1, "{text}");
}

#[test]
fn vm_args_of_an_emulated_nic_are_words_that_a_shell_may_split() {
    let ask = |more: &[&str]| vmlan(&[&["vm-args", "vm2=vfio-user:/tmp/vm2.sock"], more].concat());
    let out = ask(&["--qemu-version", "11.1", "--tcg"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.lines().count() == 1, "{text}");
    let words: Vec<_> = text.split_whitespace().collect();
    assert_eq!(words[..2], ["-accel", "tcg"]);
    assert_eq!(words[words.len() - 2], "-device");
    let device: serde_json::Value = serde_json::from_str(words[words.len() - 1]).unwrap();
    assert_eq!(device["driver"], "vfio-user-pci");
    assert_eq!(device["socket"]["path"], "/tmp/vm2.sock");
    let out = ask(&["--vmm", "cloud-hypervisor"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(text, "--memory size=1G,shared=on --user-device socket=/tmp/vm2.sock\n");
    let old = ["vm-args", "vm2=vfio-user:/tmp/vm2.sock", "--qemu-version", "7.2"];
    fails(&old, 2, &["port vm2: QEMU 7.2 cannot do vfio-user", "10.1.1 or later", "stream port"]);
}

#[test]
fn help_and_version_go_to_standard_output() {
    for args in
        [["--help"].as_slice(), &["--version"], &["switch", "--help"], &["port", "add", "--help"]]
    {
        let out = vmlan(args);
        assert!(
            out.status.success() && !out.stdout.is_empty() && out.stderr.is_empty(),
            "{args:?}"
        );
    }
    let help = String::from_utf8(vmlan(&["switch", "--help"]).stdout).unwrap();
    for word in [
        "vhost-user:",
        "vfio-user:",
        "poll_idle",
        "tap:",
        "stream:",
        "pcap:",
        "queues",
        "mode",
        "Example",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
}

#[test]
fn a_bench_of_nothing_says_what_it_would_have_been_of() {
    for (part, only, said) in [
        ("accesses", "moderated", "accesses of moderated (there are plain, mapped, csb)"),
        ("windows", "mapped,rtl8139", "windows of mapped (there are plain, moderated)"),
        ("chips", "rtl8139,csb", "chips of rtl8139 csb (it has plain, moderated)"),
    ] {
        let args = ["bench", "kvm-analysis", "--part", part, "--only", only];
        fails(&args, 1, &["not measured: ", said]);
    }
}

#[test]
fn exit_codes_are_a_contract() {
    let switch = Switch::start(&["vm1=vhost-user:@/vm1.sock"]);
    let api = switch.api();
    let taken = switch.here("vm1=vhost-user:@/other.sock");
    for (args, code) in [
        (["--version"].as_slice(), 0),
        (&["port", "--help"], 0),
        (&["port", "list", "--api", &api], 0),
        // Tried, and failed.
        (&["port", "list", "--api", "/nonexistent/api.sock"], 1),
        (&["port", "del", "nobody", "--api", &api], 1),
        (&["port", "add", &taken, "--api", &api], 1),
        (&["fdb", "del", "52:54:00:00:00:01", "--api", &api], 1),
        (&["apply", "/nonexistent.toml", "--api", &api], 1),
        (&["switch", "--config", "/nonexistent.toml"], 1),
        (&["switch", "--api", &api], 1),
        // Wrong usage, whoever finds it out.
        (&[], 2),
        (&["port"], 2),
        (&["nonsense"], 2),
        (&["port", "add", "a=nonsense:b", "--api", &api], 2),
        (&["port", "set", "vm1", "nonsense=1", "--api", &api], 2),
        (&["vm-args", "a=tap:t0"], 2),
        (&["pkt-gen", "-i", "nonsense", "-f", "tx"], 2),
        (&["--api", &api, "pkt-gen", "-i", "vhost-user:/x", "-f", "tx"], 2),
    ] {
        let out = vmlan(args);
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{args:?}: {error}");
        assert_eq!(out.stderr.is_empty(), code == 0 || error.is_empty(), "{args:?}: {error}");
    }
}

#[test]
fn api_stands_before_or_behind_the_command() {
    let switch = Switch::start(&["vm1=vhost-user:@/vm1.sock"]);
    let api = switch.api();
    let hint = format!("(attach a VM: vmlan --api {api} vm-args vm1)");
    assert!(switch.said[0].ends_with(&hint), "{:?}", switch.said);
    for args in [
        ["--api", &api, "port", "list"].as_slice(),
        &["port", "--api", &api, "list"],
        &["port", "list", "--api", &api],
        &["--api", "/nonexistent", "port", "list", "--api", &api],
    ] {
        let out = vmlan(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let see = format!("port vm9: there is none: see `vmlan --api {api} port list`");
    fails(&["--api", &api, "port", "del", "vm9"], 1, &[&see]);
    fails(&["--api", &api, "pkt-gen", "-i", "vhost-user:/x", "-f", "tx"], 2, &["leave it out"]);
}
