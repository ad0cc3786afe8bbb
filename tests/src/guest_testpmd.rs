//! DPDK's testpmd in a guest: drivers of our NICs that others wrote, past the guest's kernel, by
//! VFIO and an IOMMU.

use crate::{
    Extras, Guest, HarnessError, Image, LanHost, Result, find_program, numbered::STALL, output_of,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// DPDK loads these by name.
const DRIVERS: [&str; 3] = ["librte_mempool_ring", "librte_net_e1000", "librte_net_vmxnet3"];
/// Where they are in the guest.
const IN_GUEST: &str = "lib/dpdk";
/// What `stdbuf` puts into a program, so that testpmd's statistics come when they are printed.
const LINE_BUFFERS: &str = "/usr/libexec/coreutils/libstdbuf.so";
/// MiB of hugepages.
const HUGE: u32 = 96;

/// What testpmd counted on one port, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Frames received.
    pub rx: u64,
    /// Bytes in them.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx: u64,
    /// Bytes in them.
    pub tx_bytes: u64,
    /// Errors of all kinds, without "missed": vmxnet3 says so of frames that had to wait.
    pub errors: u64,
}

/// It runs, at its prompt.
#[derive(Debug)]
pub struct GuestTestpmd {
    asked: u32,
}

/// An image of a guest that has testpmd and what it needs.
///
/// # Errors
/// [`HarnessError::Missing`] without DPDK.
pub fn image(dir: &Path) -> Result<Image> {
    let (testpmd, stdbuf) = (find_program("dpdk-testpmd")?, find_program("stdbuf")?);
    let mut files = vec![(LINE_BUFFERS.to_owned(), PathBuf::from(LINE_BUFFERS))];
    let drivers = drivers(&testpmd)?;
    for name in DRIVERS.map(|name| format!("{name}.so")) {
        files.push((format!("{IN_GUEST}/{name}"), drivers.join(name)));
    }
    let files: Vec<_> = files.iter().map(|(name, path)| (name.as_str(), path.as_path())).collect();
    let modules = &["vfio_iommu_type1", "vfio_pci"];
    Image::build_with(dir, Extras { programs: &[&testpmd, &stdbuf], modules, files: &files })
}

/// Where DPDK keeps its drivers: `dpdk/pmds-VERSION` beside its libraries.
fn drivers(testpmd: &Path) -> Result<PathBuf> {
    let libraries = output_of("ldd", &[&testpmd.to_string_lossy()])?;
    let library = libraries.split_whitespace().find(|word| word.contains("/librte_eal"));
    let folder = Path::new(library.unwrap_or_default()).with_file_name("dpdk");
    let entries = fs::read_dir(&folder).map_err(HarnessError::file(&folder))?;
    let found =
        entries.flatten().find(|entry| entry.file_name().to_string_lossy().contains("pmds"));
    let found = found.map(|entry| entry.path());
    found.ok_or_else(|| HarnessError::missing("DPDK's drivers are missing", vmlan_harness::SETUP))
}

/// Takes the guest's NIC with this PCI id (like `15ad 07b0`) from its kernel for VFIO; its address.
///
/// # Errors
/// As [`LanHost::sh`].
pub fn take(guest: &mut Guest, id: &str) -> Result<String> {
    for module in ["vfio_iommu_type1", "vfio_pci"] {
        guest.sh(&format!(
            "while read -r m; do grep -q \"^$m \" /proc/modules || insmod /lib/m/$m || exit 1
             done < /lib/m/{module}.order"
        ))?;
    }
    let said = guest.sh(&format!(
        "for d in /sys/bus/pci/devices/*; do
           [ \"$(cat $d/vendor $d/device | tr -d '\\n')\" = {id} ] || continue
           n=$(basename $d); echo vfio-pci > $d/driver_override
           ! [ -e $d/driver ] || echo $n > $d/driver/unbind
           echo $n > /sys/bus/pci/drivers_probe && echo $n && exit 0
         done; exit 1",
        id = id.split(' ').map(|half| format!("0x{half}")).collect::<String>()
    ))?;
    Ok(said.trim().into())
}

impl GuestTestpmd {
    /// Starts it, with EAL's options and its own, on these devices, whose ports it numbers in the
    /// order of their addresses, and waits for its prompt.
    ///
    /// # Errors
    /// As [`LanHost::sh`], with its words if it ends.
    pub fn start(
        guest: &mut Guest,
        devices: &[String],
        [eal, options]: [&str; 2],
    ) -> Result<GuestTestpmd> {
        let pages = HUGE / 2;
        // It loads no driver from where anybody could have put it.
        guest.sh(&format!(
            "chmod 755 /; mkdir -p /var/run; echo {pages} > /proc/sys/vm/nr_hugepages
             rm -f /tmp/in /tmp/out; mkfifo /tmp/in
             [ $(cat /proc/sys/vm/nr_hugepages) = {pages} ]"
        ))?;
        let devices: String = devices.iter().map(|device| format!(" -a {device}")).collect();
        // Its input has a writer as long as it runs: itself.
        guest.background(&format!(
            "sh -c 'echo $$ > /tmp/pid; exec stdbuf -oL dpdk-testpmd -l 0,1 -d /{IN_GUEST} -m \
             {HUGE} --in-memory --no-telemetry {eal}{devices} -- -i --nb-cores=1 --no-mlockall \
             {options} <> /tmp/in > /tmp/out 2>&1'"
        ))?;
        guest.sh("for i in $(seq 2000); do
               grep -q 'testpmd> ' /tmp/out && exit 0
               [ -d /proc/$(cat /tmp/pid) ] || break; sleep 0.1
             done; cat /tmp/out; exit 1")?;
        let mut testpmd = GuestTestpmd { asked: 0 };
        testpmd.say(guest, "show config fwd")?;
        Ok(testpmd)
    }

    /// A command, or several in as many lines; what it printed.
    ///
    /// # Errors
    /// As [`LanHost::sh`], with what it printed so far.
    pub fn say(&mut self, guest: &mut Guest, command: &str) -> Result<String> {
        self.asked += 1;
        // Its prompt repeats what it reads when it reads it.
        let mark = format!("mark{}end", self.asked);
        let script = format!(
            "n=$(wc -c < /tmp/out); n=$((n + 1)); echo '{command}' > /tmp/in; echo {mark} > /tmp/in
             for i in $(seq {tries}); do
               tail -c +$n /tmp/out | grep -q '{mark}' && break; sleep 0.05
               [ -d /proc/$(cat /tmp/pid) ] || break
             done
             tail -c +$n /tmp/out; [ -d /proc/$(cat /tmp/pid) ]",
            tries = STALL.as_secs() * 20,
        );
        let said = guest.run(&script, 2 * STALL)?;
        let refused = ["Bad arguments", "Command not found", "Invalid", "Fail", "failed", "Please"];
        let (text, rest) = said.text.rsplit_once(&mark).unwrap_or((&said.text, ""));
        if said.code != 0 || rest.is_empty() || refused.iter().any(|word| text.contains(word)) {
            let what = format!("testpmd: {command}");
            return Err(HarnessError::Failed { what, heard: said.text });
        }
        Ok(text.into())
    }

    /// What it counted on port `port`.
    ///
    /// # Errors
    /// As [`GuestTestpmd::say`]; [`HarnessError::Garbled`] if a figure is missing.
    pub fn counted(&mut self, guest: &mut Guest, port: usize) -> Result<Counted> {
        let text = self.say(guest, &format!("show port stats {port}"))?;
        let number = |name: &str| -> Result<u64> {
            let found = text.split_once(name).and_then(|(_, rest)| rest.split_whitespace().next());
            found.and_then(|word| word.parse().ok()).ok_or_else(|| HarnessError::Garbled {
                what: format!("testpmd's {name}"),
                heard: text.clone(),
            })
        };
        let errors = ["RX-errors:", "RX-nombuf:", "TX-errors:"];
        let errors = errors.map(number).into_iter().sum::<Result<u64>>()?;
        let [rx, tx] = [number("RX-packets:")?, number("TX-packets:")?];
        let [rx_bytes, tx_bytes] = [number("RX-bytes:")?, number("TX-bytes:")?];
        Ok(Counted { rx, rx_bytes, tx, tx_bytes, errors })
    }

    /// SIGKILL: no goodbye to its NICs.
    ///
    /// # Errors
    /// As [`LanHost::sh`].
    pub fn kill9(&self, guest: &mut Guest) -> Result<()> {
        guest
            .sh("kill -9 $(cat /tmp/pid); for i in $(seq 600); do
                   [ -d /proc/$(cat /tmp/pid) ] || exit 0; sleep 0.1
                 done; exit 1")
            .map(drop)
    }
}
