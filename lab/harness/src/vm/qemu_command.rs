//! What a guest is made of, as QEMU's command line.

use super::guest::place;
use crate::{Image, NetNs, Result, qemu, vmlan_program};
use std::path::{Path, PathBuf};

/// A guest's NIC.
enum Nic {
    None,
    /// A NIC that QEMU emulates, on `-netdev ...,id=net0`.
    Model(&'static str),
    /// virtio-net over vhost-user, on the same.
    VhostUser,
    /// Whatever the switch serves on this socket.
    VfioUser(PathBuf),
}

/// What a guest is made of: its name, its number on the LAN, its NIC and the QEMU it runs in.
pub struct Boot {
    pub(crate) name: String,
    pub(crate) number: u8,
    netdev: Vec<String>,
    nic: Nic,
    newer: bool,
    reboots: bool,
    /// It can move to another QEMU.
    pub(super) moves: bool,
    /// It is not booted but comes from another QEMU.
    incoming: bool,
    iommu: bool,
    /// Of virtio-net: packed virtqueues.
    packed: bool,
    mtu: Option<u16>,
    /// Sockets of NICs beside the first.
    others: Vec<PathBuf>,
    inside: Vec<String>,
    cpus: u32,
    /// Each CPU is a NUMA node, with its part of the memory.
    nodes: bool,
    /// MiB.
    memory: u32,
    /// The host's processors run it, by KVM.
    kvm: bool,
    /// Added to the kernel's command line.
    append: String,
    /// The memory is left to `vmlan run`, too.
    run: bool,
}

impl Boot {
    /// A guest with no NIC yet. `number` gives its address: 10.77.0.`number`,
    /// 52:54:00:77:00:`number`.
    pub fn new(name: &str, number: u8) -> Boot {
        Boot {
            name: name.into(),
            number,
            netdev: Vec::new(),
            nic: Nic::None,
            newer: false,
            reboots: false,
            moves: false,
            incoming: false,
            iommu: false,
            packed: false,
            mtu: None,
            others: Vec::new(),
            inside: Vec::new(),
            cpus: 1,
            nodes: false,
            memory: 256,
            kvm: false,
            append: String::new(),
            run: false,
        }
    }

    /// The MAC address that goes with a guest's number. An emulated NIC behind vfio-user has it
    /// from the switch.
    pub fn mac(number: u8) -> String {
        format!("52:54:00:77:00:{number:02x}")
    }

    /// virtio-net over vhost-user; QEMU connects and, when the line breaks, tries again each
    /// second.
    #[must_use]
    pub fn vhost_user(self, socket: &Path) -> Boot {
        // The older spelling is gone since QEMU 10; 7.2 does not know the newer.
        let again = if self.newer { "reconnect-ms=1000" } else { "reconnect=1" };
        self.virtio(&format!("socket,id=net,path={},{again}", socket.display()))
    }

    /// The same, but QEMU connects once: without its switch the NIC is dead.
    #[must_use]
    pub fn vhost_user_once(self, socket: &Path) -> Boot {
        self.virtio(&format!("socket,id=net,path={}", socket.display()))
    }

    /// virtio-net over vhost-user; QEMU listens, and waits for the switch to connect before it
    /// starts the guest.
    #[must_use]
    pub fn vhost_user_listening(self, socket: &Path) -> Boot {
        self.virtio(&format!("socket,id=net,path={},server=on,wait=off", socket.display()))
    }

    fn virtio(self, chardev: &str) -> Boot {
        let netdev = words(&["-chardev", chardev, "-netdev", "vhost-user,id=net0,chardev=net"]);
        Boot { netdev, nic: Nic::VhostUser, ..self }
    }

    /// Any NIC model of QEMU over a `stream` socket that somebody else listens on.
    #[must_use]
    pub fn stream(self, socket: &Path, model: &'static str) -> Boot {
        let netdev =
            format!("stream,id=net0,server=off,addr.type=unix,addr.path={}", socket.display());
        Boot { netdev: words(&["-netdev", &netdev]), nic: Nic::Model(model), ..self }
    }

    /// Any NIC model of QEMU on a TAP device `name` of the namespace `host`, in which this QEMU
    /// then runs.
    #[must_use]
    pub fn tap(self, host: &NetNs, name: &str, model: &'static str) -> Boot {
        let netdev = format!("tap,id=net0,ifname={name},script=no,downscript=no");
        let inside = host.enter(&[]);
        Boot { netdev: words(&["-netdev", &netdev]), nic: Nic::Model(model), inside, ..self }
    }

    /// Whatever `vmlan run` adds for a port of the guest's name at the switch with this API.
    #[must_use]
    pub fn run_by_vmlan(self, api: &Path) -> Boot {
        let (program, api) = (vmlan_program().to_string_lossy(), api.to_string_lossy());
        let inside = words(&[&program, "run", "--api", &api, "--name", &self.name, "--"]);
        Boot { inside, run: true, ..self }
    }

    /// The NIC that the switch serves on `socket` over vfio-user. Its MAC address should be
    /// [`Boot::mac`]`(number)`.
    #[must_use]
    pub fn vfio_user(self, socket: &Path) -> Boot {
        Boot { nic: Nic::VfioUser(socket.into()), newer: true, ..self }
    }

    /// Another NIC that the switch serves over vfio-user, with no address. The guest names it by
    /// when its driver is loaded.
    #[must_use]
    pub fn beside(mut self, socket: &Path) -> Boot {
        self.others.push(socket.into());
        self
    }

    /// Runs in the QEMU that speaks vfio-user, whatever the NIC. To be called before the NIC is
    /// named.
    #[must_use]
    pub fn newer(self) -> Boot {
        Boot { newer: true, ..self }
    }

    /// The guest may reboot; otherwise its reset ends QEMU.
    #[must_use]
    pub fn reboots(self) -> Boot {
        Boot { reboots: true, ..self }
    }

    /// The guest may use packed virtqueues.
    #[must_use]
    pub fn packed(self) -> Boot {
        Boot { packed: true, ..self }
    }

    /// The guest can move to another QEMU: it has a monitor.
    #[must_use]
    pub fn moves(self) -> Boot {
        Boot { moves: true, ..self }
    }

    /// The guest comes from another QEMU.
    pub(super) fn incoming(self) -> Boot {
        Boot { incoming: true, ..self }
    }

    /// The MTU of a virtio NIC, which the guest is told.
    #[must_use]
    pub fn mtu(self, mtu: u16) -> Boot {
        Boot { mtu: Some(mtu), ..self }
    }

    /// The guest has an IOMMU, which lets its kernel's own drivers pass and is there for VFIO.
    #[must_use]
    pub fn iommu(self) -> Boot {
        Boot { iommu: true, ..self }
    }

    /// The guest has so many CPUs; else one.
    #[must_use]
    pub fn cpus(self, cpus: u32) -> Boot {
        Boot { cpus, ..self }
    }

    /// Each of the guest's CPUs is a NUMA node of its own, with as much memory as any other.
    #[must_use]
    pub fn nodes(self) -> Boot {
        Boot { nodes: true, ..self }
    }

    /// The guest has so many MiB of memory; else 256.
    #[must_use]
    pub fn memory(self, memory: u32) -> Boot {
        Boot { memory, ..self }
    }

    /// The host's processors run the guest, by KVM; else QEMU does, by TCG.
    #[must_use]
    pub fn kvm(self, kvm: bool) -> Boot {
        Boot { kvm, ..self }
    }

    /// More words for its kernel's command line.
    #[must_use]
    pub fn append(self, append: &str) -> Boot {
        Boot { append: append.into(), ..self }
    }

    /// The whole command line. Its sockets and files are in `dir`; on the agent's we listen.
    pub(super) fn arguments(&self, image: &Image, dir: &Path) -> Result<Vec<String>> {
        let qemu = if self.newer { qemu::with_vfio_user()? } else { qemu::installed()? };
        let mut all = self.inside.clone();
        all.push(qemu.to_string_lossy().into_owned());
        // TCG moves one byte at a time where a kernel is told that `rep movsb` is fast.
        let emulated = ["tcg,thread=multi", "max,erms=off,fsrm=off"];
        let accel = if self.kvm { ["kvm", "host"] } else { emulated };
        all.extend(words(&["-accel", accel[0], "-cpu", accel[1]]));
        all.extend(words(&["-smp", &self.cpus.to_string()]));
        let memory = format!("{}M", self.memory);
        all.extend(words(&["-machine", "q35", "-m", &memory, "-nodefaults"]));
        let shared = |id: &str, mib: u32| {
            words(&["-object", &format!("memory-backend-memfd,id={id},size={mib}M,share=on")])
        };
        if self.nodes {
            for cpu in 0..self.cpus {
                let id = format!("mem{cpu}");
                all.extend(shared(&id, self.memory / self.cpus));
                all.extend(words(&["-numa", &format!("node,cpus={cpu},memdev={id}")]));
            }
        } else if !self.run {
            all.extend(shared("mem", self.memory));
            all.extend(words(&["-machine", "memory-backend=mem"]));
        }
        let file = |what| place(dir, &self.name, what).display().to_string();
        let serial = format!("file:{}", file("serial"));
        let agent = format!("socket,id=agent,path={}", file("agent"));
        all.extend(words(&["-display", "none", "-serial", &serial]));
        all.extend(words(&["-chardev", &agent, "-serial", "chardev:agent"]));
        all.extend(words(&["-kernel", &image.kernel.to_string_lossy()]));
        all.extend(words(&["-initrd", &image.initramfs.to_string_lossy()]));
        // On a busy host a guest may find its timer's interrupt late, and gives up on it, or its
        // own processors stalled, and complains. A sixth of a boot under TCG would be the kernel's
        // tests of its own ciphers.
        let append = "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on \
                      no_timer_check rcupdate.rcu_cpu_stall_suppress=1 nowatchdog \
                      cryptomgr.notests";
        let iommu = if self.iommu { " intel_iommu=on iommu=pt" } else { "" };
        all.extend(words(&["-append", &format!("{append}{iommu} {}", self.append)]));
        if self.iommu {
            // The caching mode tells QEMU of every mapping, so that it can tell the NIC's server.
            all.extend(words(&["-device", "intel-iommu,intremap=on,caching-mode=on"]));
        }
        if !self.reboots {
            all.push("-no-reboot".into());
        }
        if self.moves {
            all.extend(words(&["-qmp", &format!("unix:{},server=on,wait=off", file("qmp"))]));
        }
        if self.incoming {
            all.extend(words(&["-incoming", &format!("unix:{}", file("incoming"))]));
        }
        all.extend(self.netdev.iter().cloned());
        all.extend(self.devices());
        Ok(all)
    }

    fn devices(&self) -> Vec<String> {
        let mac = Boot::mac(self.number);
        let first = match &self.nic {
            Nic::None => None,
            Nic::Model(model) => Some(format!("{model},netdev=net0,mac={mac}")),
            Nic::VhostUser => {
                let packed = if self.packed { ",packed=on" } else { "" };
                let none = !self.newer && qemu::msix_crashes();
                let vectors = if none { ",vectors=0" } else { "" };
                let mtu = self.mtu.map(|mtu| format!(",host_mtu={mtu}")).unwrap_or_default();
                Some(format!("virtio-net-pci,netdev=net0,mac={mac}{packed}{vectors}{mtu}"))
            }
            Nic::VfioUser(socket) => Some(vfio_user(socket)),
        };
        let all = first.into_iter().chain(self.others.iter().map(|socket| vfio_user(socket)));
        all.flat_map(|device| ["-device".into(), device]).collect()
    }
}

fn vfio_user(socket: &Path) -> String {
    serde_json::json!({
        "driver": "vfio-user-pci",
        "socket": { "type": "unix", "path": socket },
    })
    .to_string()
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|&word| word.into()).collect()
}
