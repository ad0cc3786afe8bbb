use super::*;
use crate::vm_args::mac_of;

const VHOST: &str = "vhost-user:/run/v.sock";
const OBJECT: &str = "memory-backend-memfd,id=vmlan-mem,size=";

/// The words that `command`, split at blanks, has on top of its own.
fn added(command: &str, address: &str, qemu: &str, kvm: bool) -> Result<Vec<String>, String> {
    let words: Vec<OsString> = command.split(' ').map(OsString::from).collect();
    let vmm = vmm_of(&words[0]).unwrap();
    let command = VmCommand { words: &words, vmm, qemu: qemu.parse().unwrap(), kvm, mtu: None };
    let name = "vm1".parse().unwrap();
    let all = command.plugged_in(&name, &address.parse().unwrap()).map_err(|e| e.to_string())?;
    let all: Vec<_> = all.into_iter().map(|w| w.into_string().unwrap()).collect();
    if vmm == Vmm::Qemu {
        assert_eq!(all[..words.len()], command_words(&words), "what the user wrote stays first");
        return Ok(all[words.len()..].to_vec());
    }
    Ok(all)
}

fn command_words(words: &[OsString]) -> Vec<String> {
    words.iter().map(|w| w.to_str().unwrap().to_owned()).collect()
}

fn qemu(command: &str) -> Vec<String> {
    added(&format!("qemu-system-x86_64 {command}"), VHOST, "10.1.1", true).unwrap()
}

fn refused(command: &str) -> String {
    added(&format!("qemu-system-x86_64 {command}"), VHOST, "10.1.1", true).unwrap_err()
}

#[test]
fn qemu_gets_shared_memory_of_the_size_that_the_user_wrote() {
    let words = qemu("-m 2G disk.qcow2");
    assert_eq!(
        words[..6],
        [
            "-object",
            "memory-backend-memfd,id=vmlan-mem,size=2048M,share=on",
            "-machine",
            "memory-backend=vmlan-mem",
            "-chardev",
            "socket,id=chr-vm1,path=/run/v.sock,reconnect-ms=1000",
        ]
    );
    assert!(words[9].starts_with("virtio-net-pci,netdev=net-vm1,mac="), "{words:?}");
    for (given, size) in [
        ("-m 512", "512M"),
        ("--m size=1g,slots=2,maxmem=4G", "1024M"),
        ("-m 1.5G", "1536M"),
        ("-m 2000k", "2000K"),
        ("-m 4097B", "8K"),
        ("-m 1G -m 2G", "2048M"),
        // A value that looks like an option is none.
        ("-m 1G -append -m 5", "1024M"),
    ] {
        assert!(qemu(given)[1].starts_with(&format!("{OBJECT}{size},")), "{given}");
    }
    assert_eq!(qemu("disk.img")[1..4], [&format!("{OBJECT}128M,share=on"), "-m", "128M"]);
    for bad in ["-m x", "-m 1X", "-m .", "-m 0", "-m 1e3G"] {
        assert!(refused(bad).contains("write a size like 512M"), "{bad}");
    }
}

#[test]
fn memory_of_the_users_own_is_used_if_it_is_shared() {
    for own in [
        "-object memory-backend-memfd,id=m,size=1G -machine q35,memory-backend=m",
        "-object memory-backend-file,id=m,size=1G,mem-path=/dev/shm,share=on -M memory-backend=m",
        "-object {\"qom-type\":\"memory-backend-file\",\"id\":\"m\",\"share\":true} \
         -machine memory-backend=m",
        "-object memory-backend-memfd,id=m,size=1G,share=on -numa node,memdev=m",
        // QEMU knows what to say of this.
        "-machine memory-backend=none",
    ] {
        assert_eq!(qemu(&format!("-m 1G {own}"))[0], "-chardev", "{own}");
    }
    let used = "-m 1G -machine memory-backend=m -object";
    let error = refused(&format!("{used} memory-backend-file,id=m,size=1G,mem-path=/dev/shm"));
    assert!(error.contains("memory 'm' is not shared") && error.contains("share=on at"), "{error}");
    let error = refused(&format!("{used} memory-backend-memfd,id=m,size=1G,share=off"));
    assert!(error.contains("write share=on at its -object"), "{error}");
    let error = refused(&format!("{used} memory-backend-ram,id=m,size=1G,share=on"));
    assert!(error.contains("-object memory-backend-memfd,share=on"), "{error}");
    assert!(refused("-mem-path /dev/hugepages").contains("memory-backend-file,id=mem"));
    // What is not the VM's first memory is its own affair.
    let nvdimm = qemu("-m 1G -object memory-backend-file,id=nv,size=1G,mem-path=/nv");
    assert_eq!(nvdimm[0], "-object");
}

#[test]
fn nics_of_the_users_own_stay_unless_they_have_our_names() {
    assert_eq!(qemu("-netdev user,id=n -device e1000,netdev=n -nic none").len(), 12);
    for own in ["-netdev user,id=net-vm1", "-chardev null,id=chr-vm1"] {
        assert!(refused(own).contains("give the port another --name"), "{own}");
    }
    assert!(refused("-object memory-backend-ram,id=vmlan-mem,size=1M").contains("id=vmlan-mem"));
}

#[test]
fn an_old_qemu_without_kvm_gets_no_msi_x() {
    let device = |command: &str, kvm: bool, version: &str| {
        added(command, VHOST, version, kvm).unwrap().last().unwrap().ends_with(",vectors=0")
    };
    for with in ["-enable-kvm", "-accel kvm", "--accel kvm,x=y", "-M q35,accel=kvm:tcg"] {
        let command = format!("qemu-system-x86_64 {with}");
        assert!(!device(&command, true, "7.2"), "{with}");
        assert!(device(&command, false, "7.2"), "{with}: no KVM here, so TCG if anything");
        assert!(!device(&command, false, "8.0"), "{with}");
    }
    assert!(!device("/usr/bin/kvm disk", true, "7.2"));
    for without in ["disk", "-accel tcg disk", "-append -enable-kvm"] {
        assert!(device(&format!("qemu-system-x86_64 {without}"), true, "7.2.22"), "{without}");
    }
}

#[test]
fn an_emulated_nic_wants_a_qemu_that_can() {
    let e1000 = "vfio-user:/run/v.sock,model=e1000";
    let words = added("qemu-system-x86_64 -m 1G d", e1000, "10.1.1", true).unwrap();
    assert_eq!(words[4..6], ["-nic", "none"]);
    assert!(words[7].contains("\"driver\":\"vfio-user-pci\""), "{words:?}");
    let error = added("qemu-system-x86_64 -m 1G d", e1000, "10.0", true).unwrap_err();
    assert!(error.contains("QEMU 10.1.1 or later"), "{error}");
}

#[test]
fn cloud_hypervisor_takes_each_option_once() {
    let ch = |command: &str, address: &str| {
        let all = added(&format!("cloud-hypervisor {command}"), address, "10.1.1", true);
        all.map(|words| words[1..].join(" "))
    };
    let nic = format!(
        "vhost_user=true,socket=/run/v.sock,vhost_mode=client,num_queues=2,queue_size=1024,mac={}",
        mac_of(&"vm1".parse().unwrap())
    );
    assert_eq!(
        ch("--kernel k", VHOST).unwrap(),
        format!("--kernel k --memory size=512M,shared=on --net {nic}")
    );
    assert_eq!(
        ch("--memory size=2G,hugepages=on --net tap=a tap=b --kernel k", VHOST).unwrap(),
        format!("--memory size=2G,hugepages=on,shared=on --net tap=a tap=b {nic} --kernel k")
    );
    assert_eq!(
        ch("--memory=size=2G,shared=on --net=tap=a -v", VHOST).unwrap(),
        format!("--memory size=2G,shared=on --net tap=a {nic} -v")
    );
    assert_eq!(
        ch("--memory size=0 --memory-zone id=a,size=1G id=b,size=1G,shared=on", VHOST).unwrap(),
        format!(
            "--memory size=0 --memory-zone id=a,size=1G,shared=on id=b,size=1G,shared=on \
                --net {nic}"
        )
    );
    let e1000 = ch("--memory size=1G", "vfio-user:/run/v.sock").unwrap();
    assert_eq!(e1000, "--memory size=1G,shared=on --user-device socket=/run/v.sock");
    let error = ch("--memory size=1G,shared=off", VHOST).unwrap_err();
    assert!(error.contains("write shared=on"), "{error}");
}

#[test]
fn crosvm_and_krunkit_get_what_their_documentation_says() {
    let words = |command: &str, address: &str| added(command, address, "10.1.1", true);
    assert_eq!(
        words("/opt/crosvm --log-level debug run -m 1024 bzImage", VHOST).unwrap()[3..].join(" "),
        "run --vhost-user net,socket=/run/v.sock -m 1024 bzImage"
    );
    assert!(words("crosvm stop s", VHOST).unwrap_err().contains("crosvm run"));
    let error = words("crosvm run k", "vfio-user:/v").unwrap_err();
    assert!(error.contains("crosvm has no NIC for vfio-user ports: use a vhost-user"), "{error}");
    let krunkit = words("krunkit --cpus 2", "stream:/run/v.sock").unwrap();
    let nic = format!(
        "virtio-net,type=unixstream,path=/run/v.sock,mac={}",
        mac_of(&"vm1".parse().unwrap())
    );
    assert_eq!(krunkit[3..], ["--device", &nic]);
    assert!(words("krunkit", VHOST).unwrap_err().contains("use a stream port"));
}

#[test]
fn programs_are_known_by_the_names_of_their_files() {
    let vmm = |name: &str| vmm_of(OsStr::new(name));
    for name in ["qemu-system-x86_64", "/usr/libexec/qemu-kvm", "./qemu-system-aarch64", "kvm"] {
        assert_eq!(vmm(name), Some(Vmm::Qemu), "{name}");
    }
    assert_eq!(vmm("/opt/cloud-hypervisor-static"), Some(Vmm::CloudHypervisor));
    for name in ["virsh", "sudo", "qemu-img", "", "/"] {
        assert_eq!(vmm(name), None, "{name}");
    }
}
