//! Streams of bytes by TCP between hosts, numbered blocks of random ones, which have to arrive byte
//! for byte whatever becomes of the LAN meanwhile.

use std::time::Duration;

use vmlan_harness::{HarnessError, LanHost, Result};

use crate::numbered::settles;

/// From whom to whom, of the hosts that are named, and the port.
pub type Stream = (usize, usize, u16);

/// How much of a stream is to arrive before it is believed to go on.
const SOME: u64 = 16 << 10;

/// A program that ends with the shell that starts it, where that can be said.
const WITH: &str = "with=\"setpriv --pdeathsig KILL --\"; $with true || with=";

/// Starts streams, slow ones: both ends keep what they had, guests in memory. The receiver keeps
/// its own direction open until the end.
///
/// # Errors
/// As [`LanHost::sh`].
pub fn start(hosts: &mut [&mut dyn LanHost], streams: &[Stream]) -> Result<()> {
    for &(from, to, port) in streams {
        let (ip, dir) = (hosts[to].ip().to_owned(), hosts[to].files().to_owned());
        // Read and written by the same, a pipe never ends.
        let hold = format!("{dir}/hold.{port}");
        hosts[to].sh(&format!("mkfifo {hold}"))?;
        let receive = format!("exec busybox nc -l -p {port} <>{hold} >{dir}/got.{port}");
        hosts[to].background(&format!("sh -c '{receive}'"))?;
        let listens = format!("busybox netstat -ltn | grep -q ':{port} '");
        hosts[to].sh(&format!("while ! {listens}; do sleep 0.1; done"))?;
        let dir = hosts[from].files().to_owned();
        let block = format!("{dir}/block");
        hosts[from].sh(&format!("test -e {block} || head -c 8000 /dev/urandom > {block}"))?;
        let blocks = format!("n=$((n+1)); echo $n; cat {block}; sleep 0.5");
        let send = format!(
            "{WITH}; while [ -e {block} ]; do {blocks}; done | tee {dir}/sent.{port} | \
             $with busybox nc {ip} {port}"
        );
        hosts[from].background(&format!("sh -c '{send}'"))?;
    }
    Ok(())
}

fn size(host: &mut dyn LanHost, port: u16) -> Result<u64> {
    let said = host.sh(&format!("wc -c < {}/got.{port}", host.files()))?;
    Ok(said.trim().parse().expect("a number"))
}

/// What whoever has to find out why wants to see.
const LOOK: &str = "dmesg | grep -v '<.*>\\|buffer_info' | tail -n 30; cd /sys/class/net/eth0 &&
    cat carrier queues/tx-0/tx_timeout && grep . statistics/[rt]x_* && grep eth0 /proc/interrupts
    ethtool -d eth0 | head -n 60";

/// All streams go on.
///
/// # Errors
/// As [`LanHost::sh`], and [`HarnessError::Failed`] if one stands still.
pub fn flow(hosts: &mut [&mut dyn LanHost], streams: &[Stream], when: &str) -> Result<()> {
    for &(_, to, port) in streams {
        let before = size(hosts[to], port)?;
        let more = || size(hosts[to], port).is_ok_and(|now| now >= before + SOME);
        if !settles(more) {
            let what = format!("{when}: the stream to {} stands still", hosts[to].name());
            let mut heard = String::new();
            for host in &mut *hosts {
                let said = host.run(LOOK, Duration::from_secs(60))?;
                heard += &format!("--- {}\n{}", host.name(), said.text);
            }
            return Err(HarnessError::Failed { what, heard });
        }
    }
    Ok(())
}

/// All streams end, and what has arrived is what was sent.
///
/// # Errors
/// As [`LanHost::sh`].
///
/// # Panics
/// If it is not.
pub fn compare(hosts: &mut [&mut dyn LanHost], streams: &[Stream]) -> Result<()> {
    for host in &mut *hosts {
        host.sh(&format!("rm -f {}/block", host.files()))?;
    }
    for &(from, to, port) in streams {
        let mut sum = |at: usize, file: &str| {
            hosts[at].sh(&format!("md5sum < {}/{file}.{port}", hosts[at].files())).ok()
        };
        let same = || sum(to, "got").is_some_and(|got| sum(from, "sent") == Some(got));
        let same = settles(same);
        assert!(same, "{} did not get what {} sent", hosts[to].name(), hosts[from].name());
    }
    Ok(())
}
