//! `vmlan pkt-gen`: a guest on a port, with the options users of netmap's pkt-gen know.

mod options;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::Args;
use vmlan_tools::pktgen;

pub(crate) use self::options::{number, seconds, usage};

use crate::exit::Failure;
use crate::output::{print, print_json, print_progress};
use crate::process;
use vmlan_frame::error_chain;

const HELP: &str = "\
Examples, in two shells, after `vmlan switch a=vhost-user:/tmp/a.sock b=vhost-user:/tmp/b.sock`;
A and B stand for `vmlan pkt-gen -i vhost-user:/tmp/a.sock` and `... b.sock`:
  rx      B -f rx -S 52:54:00:00:00:0b -W
  tx      A -f tx -D 52:54:00:00:00:0b -l 60 -T 5
  rxseq   B -f rxseq -S 52:54:00:00:00:0b -W         checks the numbers and sums of txseq
  txseq   A -f txseq -D 52:54:00:00:00:0b -n 10M
  pong    B -f pong -S 52:54:00:00:00:0b
  ping    A -f ping -D 52:54:00:00:00:0b -R 1000     or back to back, without -R
  replay  A -f tx -P file.pcapng --recorded-timing
  sizes   A -f tx -l 1514 -l 60                      by chance from 60 to 1514
  ranges  A -f tx -d 10.1.0.1:2000-10.1.0.9:2999 -z  destinations in turn, sources by chance
  threads vmlan pkt-gen -i vhost-user:/tmp/a.sock,queues=2 -f tx -p 2 -a 0

A ping at a rate does not wait for answers. Its round trips are given twice: from when it was
sent, and from when it was due, which counts the time for which we or the NIC were too busy to
send it.

ADDRESS is KIND:PLACE[,KEY=VALUE...], the port as the guest sees it; KEY alone is KEY=on.
  vhost-user: the port's UNIX socket; this plays the VMM and the guest's virtio-net driver
      queues       queue pairs, 1 to 16
      size         descriptors of a ring, a power of two to 32768 (default 1024)
      buffer       bytes of a buffer (default 2048)
      segments     descriptors of each frame: 1, 2, 4 or 8
      mtu          MTU told to the switch
      server       listen on the socket, for a port with `connect`
      on or off, virtio's features: event_idx indirect in_order packed mrg version_1 any_layout
          csum guest_csum tso guest_tso uso guest_uso mtu_feature; the protocol's: reply_ack
          mem_slots inflight status
  vfio-user: the port's UNIX socket; this plays the VMM and the guest's driver
      model        e1000 (default), e1000e, r8169, rtl8139 or vmxnet3, as the switch's port; an
                   rtl8139 is driven in C+ mode, or with plus=off in classic mode
      csb          shared indexes; the switch's port needs csb=on too (default off)
      doorbell     auto (default: mapped if the switch's port is and neither csb nor combine is
                   on), trapped or mapped
      writes       register writes are waited for (default: QEMU 10) or posted (QEMU 11)
      batch        one doorbell for a burst, not for each frame (default off)
      combine      send combining (default off), with combine_frames (64) and combine_us (200)
      completion   interrupt (default) or lazy
      receive      interrupt (default), poll or adaptive
      interrupts   always (default), as a kernel's driver, or idle: only with nothing to do
      itr, tidv, tadv, rdtr, radv   moderation by an e1000 or e1000e, in the registers' units
      mitigate, mitigate_unit       by an r8169: IntrMitigate, like 0x5f51, and its unit, 0 to 3
      size         descriptors of a ring, a multiple of 8 to 4096 (default 256); r8169: to 1024,
                   rtl8139: to 64 (default), vmxnet3: a multiple of 32 (default 512)
      buffer, segment, mtu, budget, refill   bytes and numbers of frames
      promisc      take frames for everybody (default off)
      irq          intx (default), msi or msix (default of e1000e and vmxnet3); unmask,
                   mmap_timeout, reset: what the VMM does
      causes       read (default), or with msi unread: cleared by a write, which can be posted
      on or off: flush secrc csum tso; of a vmxnet3: lro, fence (default on)
  pci: the address of a VM's NIC, like 0000:00:03.0; root inside that VM drives it past the
  kernel, which has its interface back at the end
      via          auto (default), vfio, uio or sysfs
      and those of vfio-user, but for doorbell, writes, unmask and mmap_timeout";

/// Arguments of `vmlan pkt-gen`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct PktGenArgs {
    /// The port, seen from the guest: vhost-user:PATH or vfio-user:PATH[,KEY=VALUE...]; inside a VM
    /// pci:0000:00:03.0[,KEY=VALUE...]
    #[arg(short = 'i', value_name = "ADDRESS")]
    address: String,
    /// What to do: tx, rx, ping or pong; txseq numbers the frames, rxseq checks them
    #[arg(short = 'f', value_name = "FUNCTION")]
    function: String,
    /// Bytes of a frame, without FCS; given twice: sizes by chance between the two [default: 60]
    #[arg(short = 'l', value_name = "SIZE")]
    size: Vec<u32>,
    /// Frames to send or receive, by all threads together; 0: no limit
    #[arg(short = 'n', value_name = "COUNT", default_value = "0")]
    count: String,
    /// Frames a second, of all threads together, like 10k or 1.5M; 0: no limit
    #[arg(short = 'R', value_name = "RATE", default_value = "0")]
    rate: String,
    /// Most frames of one batch
    #[arg(short = 'b', value_name = "BURST", default_value_t = 256)]
    burst: u32,
    /// Destination: addresses and UDP ports that the frames walk through, or a MAC address as for
    /// -D
    #[arg(short = 'd', value_name = "IP[:PORT][-IP[:PORT]]|MAC")]
    dst: Vec<String>,
    /// Source: as for -d, or a MAC address as for -S
    #[arg(short = 's', value_name = "IP[:PORT][-IP[:PORT]]|MAC")]
    src: Vec<String>,
    /// Destination MAC address [default: broadcast]
    #[arg(short = 'D', value_name = "MAC")]
    dst_mac: Option<String>,
    /// Source MAC address
    #[arg(short = 'S', value_name = "MAC")]
    src_mac: Option<String>,
    /// Source address and port by chance, of the ranges if those are given
    #[arg(short = 'z')]
    random_src: bool,
    /// Destination address and port by chance, of the ranges if those are given
    #[arg(short = 'Z')]
    random_dst: bool,
    /// Frames are IPv4, as always
    #[arg(short = '4')]
    ipv4: bool,
    /// Send the frames of a pcap or pcapng file, again and again
    #[arg(short = 'P', value_name = "FILE")]
    replay: Option<PathBuf>,
    /// With -P: at the times that were recorded
    #[arg(long, requires = "replay")]
    recorded_timing: bool,
    /// With -P: so many times through the file
    #[arg(long, value_name = "N", requires = "replay", conflicts_with = "count")]
    laps: Option<u64>,
    /// Threads, each with queue pairs of its own (queues= in the address)
    #[arg(short = 'p', value_name = "THREADS", default_value_t = 1)]
    threads: u16,
    /// Processor of the first thread; the others take the next ones
    #[arg(short = 'a', value_name = "CPU")]
    cpu: Option<u16>,
    /// Processors, from 0 on, that the threads go round
    #[arg(short = 'c', value_name = "CPUS", requires = "cpu")]
    cpus: Option<u16>,
    /// Seconds to run [default: no limit]
    #[arg(short = 'T', value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Destination IPv4 address, or a range A-B that the frames walk through
    #[arg(long, value_name = "IP[-IP]")]
    dst_ip: Option<String>,
    /// Source IPv4 address, or a range
    #[arg(long, value_name = "IP[-IP]")]
    src_ip: Option<String>,
    /// Destination UDP port, or a range
    #[arg(long, value_name = "PORT[-PORT]")]
    dst_port: Option<String>,
    /// Source UDP port, or a range
    #[arg(long, value_name = "PORT[-PORT]")]
    src_port: Option<String>,
    /// Microseconds to poll before sleeping on the interrupt
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 20)]
    spin: u32,
    /// Seconds to wait for the switch and for a link, at the start and if it goes away
    #[arg(short = 'w', long, value_name = "SECONDS", default_value_t = 10.0)]
    wait: f64,
    /// Stop when nothing came for so many seconds, once something has come
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<f64>,
    /// The same with one second
    #[arg(short = 'W', conflicts_with = "idle_exit")]
    quit: bool,
    /// Milliseconds from one line of figures to the next
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    report: u32,
    /// Leave the UDP checksum to the device (with csum=on in the address)
    #[arg(long)]
    offload_checksum: bool,
    /// Print the summary as JSON, and the lines of each second to standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    absent: Absent,
}

/// Options of netmap's pkt-gen that have another place here, or none.
#[derive(Debug, Args)]
struct Absent {
    #[arg(short = '6', hide = true)]
    ipv6: bool,
    #[arg(short = 'H', hide = true, value_name = "LENGTH")]
    header: Option<String>,
    #[arg(short = 'F', hide = true, value_name = "FRAGMENTS")]
    fragments: Option<String>,
    #[arg(short = 'M', hide = true, value_name = "SIZE")]
    fragment_size: Option<String>,
    #[arg(short = 'I', hide = true)]
    indirect: bool,
    #[arg(short = 'r', hide = true)]
    unfilled: bool,
    #[arg(short = 'X', hide = true)]
    dump: bool,
    #[arg(short = 'o', hide = true, value_name = "MASK")]
    bits: Option<String>,
    #[arg(short = 'C', hide = true, value_name = "RINGS")]
    rings: Option<String>,
}

impl Absent {
    /// The reason why one of them is refused.
    fn reason(&self) -> Option<&'static str> {
        let all = [
            (self.ipv6, "-6: the frames are IPv4 only; send others with -P FILE"),
            (
                self.header.is_some(),
                "-H: the length of the virtio-net header is agreed on with the switch: 12 bytes, \
                    or 10 with version_1=off,mrg=off in the address",
            ),
            (
                self.fragments.is_some(),
                "-F: write segments=2 (4, 8) into the address, for so many descriptors of each \
                    frame",
            ),
            (self.fragment_size.is_some(), "-M: see segments= in the address; they are cut evenly"),
            (self.indirect, "-I: write indirect=on into the address"),
            (self.unfilled, "-r: buffers are filled once, before the first frame, in any case"),
            (self.dump, "-X: capture frames at the switch: `vmlan port add cap=pcap:FILE`"),
            (self.bits.is_some(), "-o: there are no option bits: see --help for what there is"),
            (self.rings.is_some(), "-C: write size= and queues= into the address"),
        ];
        all.into_iter().find_map(|(given, reason)| given.then_some(reason))
    }
}

/// Runs it.
///
/// # Errors
/// Wrong options, or the port cannot be reached.
pub(crate) fn run(args: &PktGenArgs) -> Result<(), Failure> {
    if let Some(reason) = args.absent.reason() {
        return Err(Failure::Usage(reason.into()));
    }
    let mut options = options::options(args)?;
    options.check().map_err(|e| Failure::Usage(e.to_string()))?;
    vmlan_transport::sys::exact_timers();
    options.stop = Some(process::on_signals()?);
    let summary = pktgen::run(&options, &mut |report| print_progress(args.json, &report));
    let summary = summary.map_err(|e| match &e {
        pktgen::PktGenError::Options(e) => Failure::Usage(e.to_string()),
        pktgen::PktGenError::Cpu { .. } => Failure::Failed(error_chain(&e)),
        _ => Failure::Failed(format!("{}: {}", args.address, error_chain(&e))),
    })?;
    if args.json { print_json(&summary) } else { print(&format!("{summary}\n")) }
}
