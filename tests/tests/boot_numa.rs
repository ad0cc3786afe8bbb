//! Two NUMA nodes, which QEMU gives to a Linux guest: what a worker keeps its batches in lies on
//! the node of its CPU. What that gains cannot be measured here: both nodes are one of the host.

use std::time::Duration;

use vmlan_tests::{
    Boot, Extras, Guest, HarnessError, Image, LanHost, Result, Switch, vmlan_program,
};

/// Pages of a worker's own memory, at least; it has some 240. One of them others may have touched.
const PAGES: usize = 200;

/// Of each piece of memory that is nobody's file or stack and not the first thread's: its pages on
/// both nodes.
fn pages(numa_maps: &str) -> Vec<[usize; 2]> {
    let others = |line: &&str| !["file=", " heap", " stack"].iter().any(|word| line.contains(word));
    let pages = |line: &str, key: &str| {
        let of = |word: &str| word.strip_prefix(key)?.parse().ok();
        line.split(' ').find_map(of).unwrap_or(0)
    };
    let lines = numa_maps.lines().filter(others);
    lines.map(|line| ["N0=", "N1="].map(|key| pages(line, key))).collect()
}

#[test]
fn batches_lie_on_the_node_of_their_worker() -> Result<()> {
    let temporary = tempfile::Builder::new().prefix("vmlan-numa.").tempdir().expect("a directory");
    let dir = temporary.path();
    let extras = Extras { programs: &[vmlan_program()], ..Extras::default() };
    let image = Image::build_with(dir, extras)?;
    let socket = dir.join("numa.sock");
    let _switch = Switch::start(dir, None, &[format!("numa=vhost-user:{}", socket.display())])?;
    let boot = Boot::new("numa", 1).vhost_user(&socket).cpus(2).nodes().memory(768);
    let [mut guest] = Guest::boot(&image, dir, [boot])?;
    guest.background("vmlan switch --cpus 0,1 --api /tmp/api a=vhost-user:/tmp/a")?;
    // Its process has threads, its keepers have none. The last one is that of the API.
    let find = "for i in $(seq 600); do for p in $(pidof vmlan); do
        grep -qs worker1 /proc/$p/task/*/comm && grep -qs api /proc/$p/task/*/comm &&
        cat /proc/$p/numa_maps && exit 0; done; sleep 0.1; done; exit 1";
    let said = guest.run(find, Duration::from_secs(240))?;
    let found = pages(&said.text);
    let on = |node: usize| found.iter().any(|p| p[node] >= PAGES && p[1 - node] < 9);
    println!("  pages by node: {:?}", found.iter().filter(|p| p[0] + p[1] > 9).collect::<Vec<_>>());
    if said.code == 0 && on(0) && on(1) {
        return Ok(());
    }
    Err(HarnessError::Garbled { what: "numa_maps of two workers".into(), heard: said.text })
}
