use super::*;

fn ask(name: &str, address: &str, vmm: Vmm, qemu: &str) -> Result<VmArgs, String> {
    let wanted = Wanted { vmm, memory: "1G".into(), qemu: qemu.parse().unwrap(), mtu: None };
    vm_args(&name.parse().unwrap(), &address.parse().unwrap(), &wanted).map_err(|e| e.to_string())
}

#[test]
fn qemu_gets_shared_memory_a_chardev_that_reconnects_and_a_nic() {
    let args = ask("vm1", "vhost-user:/run/vm1.sock,queues=2", Vmm::Qemu, "9.2").unwrap();
    assert_eq!(
        args.args,
        [
            "-object",
            "memory-backend-memfd,id=vmlan-mem,size=1G,share=on",
            "-m",
            "1G",
            "-machine",
            "memory-backend=vmlan-mem",
            "-chardev",
            "socket,id=chr-vm1,path=/run/vm1.sock,reconnect-ms=1000",
            "-netdev",
            "vhost-user,id=net-vm1,chardev=chr-vm1,queues=2",
            "-device",
            &format!(
                "virtio-net-pci,netdev=net-vm1,mac={},\
                 rx_queue_size=1024,tx_queue_size=1024,mq=on,vectors=6",
                mac_of(&"vm1".parse().unwrap())
            ),
        ]
    );
    assert!(
        args.text.contains("-m 1G \\\n-machine memory-backend=vmlan-mem \\\n"),
        "{}",
        args.text
    );
}

#[test]
fn old_versions_of_qemu_get_the_words_they_know() {
    let chardev = |address: &str, version: &str| {
        ask("a", address, Vmm::Qemu, version).unwrap().args[7].clone()
    };
    assert!(chardev("vhost-user:/a", "7.2.22").ends_with(",reconnect=1"));
    assert!(chardev("vhost-user:/a", "10.0").ends_with(",reconnect-ms=1000"));
    assert!(chardev("vhost-user:/a,connect", "10.0").ends_with(",server=on"));
    assert!(chardev("vhost-user:/a,,b", "10.0").contains("path=/a,,b,"));
    let netdev =
        |version: &str| ask("a", "stream:/a", Vmm::Qemu, version).map(|a| a.args[1].clone());
    assert!(netdev("7.2").unwrap().ends_with("server=off"));
    assert!(netdev("8.0").unwrap().ends_with("server=off,reconnect=1"));
    assert!(netdev("9.2").unwrap().ends_with("server=off,reconnect-ms=1000"));
    assert!(netdev("7.1").unwrap_err().contains("7.2 or later"));
}

#[test]
fn without_kvm_there_is_no_msi_x() {
    let args = ask("a", "vhost-user:/a,queues=2", Vmm::Qemu, "7.2").unwrap();
    let note = |version: &str| args.note(version.parse().unwrap());
    assert!(note("7.2").unwrap().contains("QEMU 7.2 crashes") && note("8.0").is_none());
    assert!(
        ask("a", "stream:/a", Vmm::Qemu, "7.2").unwrap().note("7.2".parse().unwrap()).is_none()
    );
    let tcg = args.for_tcg();
    assert_eq!(tcg.args[..2], ["-accel", "tcg"]);
    let device = tcg.args.last().unwrap();
    assert!(device.ends_with(",mq=on,vectors=0") && !device.contains("vectors=6"), "{device}");
    assert!(tcg.text.starts_with("-accel tcg") && tcg.text.contains(device), "{}", tcg.text);
}

#[test]
fn cloud_hypervisor_and_libvirt_get_theirs() {
    let ch = ask("a", "vhost-user:/a,queues=2,mac=52:54:00:00:00:01", Vmm::CloudHypervisor, "9.2");
    let ch = ch.unwrap();
    assert_eq!(ch.args[1], "size=1G,shared=on");
    assert_eq!(
        ch.args[3],
        "vhost_user=true,socket=/a,vhost_mode=client,\
         num_queues=4,queue_size=1024,mac=52:54:00:00:00:01"
    );
    let xml = ask("a", "vhost-user:/a&b,queues=2", Vmm::Libvirt, "9.2").unwrap().text;
    assert!(xml.contains("path='/a&amp;b' mode='client'"), "{xml}");
    assert!(xml.contains("<access mode='shared'/>") && xml.contains("queues='2'"), "{xml}");
    let tcg = ask("a", "vhost-user:/a", Vmm::Libvirt, "9.2").unwrap().for_tcg();
    for words in ["<alias name='ua-a'/>\n</interface>", "alias='ua-a'", "name='vectors'"] {
        assert!(tcg.text.contains(words), "no {words}: {}", tcg.text);
    }
    let stream = ask("a", "stream:/a", Vmm::Libvirt, "9.2").unwrap();
    assert!(stream.text.contains("<qemu:arg value='-netdev'/>"), "{}", stream.text);
    assert_eq!(stream.clone().for_tcg(), stream);
}

#[test]
fn an_emulated_nic_is_a_vfio_user_device_with_shared_memory() {
    let socket = r#""socket":{"path":"/run/a,b.sock","type":"unix"}"#;
    let device = format!(r#"{{"driver":"vfio-user-pci","id":"net-vm2",{socket}}}"#);
    let device = device.as_str();
    let qemu = ask("vm2", "vfio-user:/run/a,,b.sock,model=e1000", Vmm::Qemu, "10.1.1").unwrap();
    assert_eq!(
        qemu.args,
        [
            "-object",
            "memory-backend-memfd,id=vmlan-mem,size=1G,share=on",
            "-m",
            "1G",
            "-machine",
            "memory-backend=vmlan-mem",
            // Or QEMU would add a NIC of its own, which becomes the guest's first.
            "-nic",
            "none",
            "-device",
            device,
        ]
    );
    assert!(qemu.text.ends_with(&format!("\n-device '{device}'\n")), "{}", qemu.text);
    // For $(vmlan vm-args vm2): a shell would keep the quotes.
    assert_eq!(qemu.substituted().unwrap(), qemu.args.join(" ") + "\n");
    assert_eq!(ask("a", "vfio-user:/a b", Vmm::Qemu, "11.1").unwrap().substituted(), None);
    let quoted = ask("a", r#"vfio-user:/a"b\c"#, Vmm::Qemu, "11.1").unwrap();
    assert!(quoted.args[9].contains(r#""path":"/a\"b\\c""#), "{:?}", quoted.args);
    assert_eq!(qemu.for_tcg().args[..3], ["-accel", "tcg", "-object"]);
    let ch = ask("vm2", "vfio-user:/run/vm2.sock", Vmm::CloudHypervisor, "7.2").unwrap();
    assert_eq!(ch.args, ["--memory", "size=1G,shared=on", "--user-device", "socket=/run/vm2.sock"]);
    let xml = ask("vm2", "vfio-user:/run/vm2.sock", Vmm::Libvirt, "11.1").unwrap().text;
    for part in [
        "<source type='memfd'/>\n  <access mode='shared'/>",
        "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'",
        "<qemu:arg value='-device'/>",
        r#"<qemu:arg value='{"driver":"vfio-user-pci","id":"net-vm2","socket":"#,
        r#""socket":{"path":"/run/vm2.sock","type":"unix"}}'/>"#,
    ] {
        assert!(xml.contains(part), "{part}: {xml}");
    }
}

#[test]
fn a_qemu_without_vfio_user_is_named_with_what_to_do() {
    for vmm in [Vmm::Qemu, Vmm::Libvirt] {
        let error = ask("vm2", "vfio-user:/a", vmm, "7.2.22").unwrap_err();
        assert!(error.contains("port vm2: QEMU 7.2.22 cannot do vfio-user well"), "{error}");
        assert!(error.contains("QEMU 10.1.1 or later") && error.contains("stream port"), "{error}");
        for (keys, fix) in [
            ("", "with -device e1000"),
            (",model=r8169", "-device e1000, for QEMU has no r8169"),
            (",model=rtl8139", "with -device rtl8139"),
            (",model=rtl8139,plus=off", "-device rtl8139, which is a C+ one"),
            (",model=e1000e", "with -device e1000e"),
            (",model=vmxnet3", "with -device vmxnet3"),
        ] {
            let error = ask("vm2", &format!("vfio-user:/a{keys}"), vmm, "7.2").unwrap_err();
            assert!(error.ends_with(fix), "{error}");
        }
        assert!(ask("vm2", "vfio-user:/a", vmm, "10.1").is_err());
    }
    for (text, shown) in [("11", "11.0"), ("10.1.0", "10.1"), ("10.1.1", "10.1.1")] {
        assert_eq!(text.parse::<QemuVersion>().unwrap().to_string(), shown);
    }
    for bad in ["", "x", "10.", "10.1.x", "-1"] {
        assert!(bad.parse::<QemuVersion>().is_err(), "{bad}");
    }
}

#[test]
fn what_no_vm_can_use_is_refused_that_says_what_to_do() {
    assert!(
        ask("t", "tap:t0", Vmm::Qemu, "9.2")
            .unwrap_err()
            .contains("vhost-user, vfio-user or stream")
    );
    let error = ask("s", "stream:/a", Vmm::CloudHypervisor, "9.2").unwrap_err();
    assert!(error.contains("use a vhost-user port"), "{error}");
    assert!("qemi".parse::<Vmm>().unwrap_err().contains("did you mean 'qemu'?"));
    for bad in ["", "G", "1GG", "1X", "-1", "1G,share=off"] {
        assert!(!is_size(bad), "{bad}");
    }
}

#[test]
fn each_name_has_its_own_address_and_keeps_it() {
    let mac = |name: &str| mac_of(&name.parse().unwrap()).to_string();
    assert_eq!(mac("vm1"), mac("vm1"));
    assert_ne!(mac("vm1"), mac("vm2"));
    assert!(mac("vm1").starts_with("52:54:00:"));
    let own = |name: &str| nic_mac_of(&name.parse().unwrap());
    assert_eq!(own("vm1").to_string(), own("vm1").to_string());
    assert_ne!(own("vm1"), own("vm2"));
    for i in 0..1000 {
        let mac = own(&format!("vm{i}"));
        assert!(mac.to_string().starts_with("02:") && !mac.is_group(), "{mac}");
    }
}

#[test]
fn shell_words_survive_the_shell() {
    assert_eq!(shell_word("a=b,c"), "a=b,c");
    assert_eq!(shell_word("it's"), "'it'\\''s'");
    assert_eq!(shell_word(""), "''");
}

#[test]
fn the_guest_is_told_its_mtu() {
    let text = |address: &str, vmm, mtu| {
        let wanted = Wanted { vmm, memory: "1G".into(), qemu: QemuVersion::RECENT, mtu };
        vm_args(&"a".parse().unwrap(), &address.parse().unwrap(), &wanted).unwrap().text
    };
    for (vmm, words) in [
        (Vmm::Qemu, ",host_mtu=1450,rx_queue_size="),
        (Vmm::CloudHypervisor, ",mtu=1450"),
        (Vmm::Libvirt, "<mtu size='1450'/>"),
    ] {
        assert!(text("vhost-user:/a", vmm, Some(1450)).contains(words), "{vmm:?}");
        let own = text("vhost-user:/a,mtu=1400", vmm, Some(1450));
        assert!(own.contains(&words.replace("1450", "1400")), "{own}: the port's own goes first");
        assert!(!text("vhost-user:/a", vmm, None).contains("mtu"), "{vmm:?}");
    }
    assert!(text("stream:/a", Vmm::Qemu, Some(1450)).contains(",host_mtu=1450"));
    assert!(!text("vfio-user:/a", Vmm::Qemu, Some(1450)).contains("mtu"));
}
