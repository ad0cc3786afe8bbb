//! `vmlan bench`: a short run writes what it promises, and Ctrl-C leaves nothing behind.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use vmlan_tests::numbered::STALL;
use vmlan_tests::vmlan_program;

/// What a run has written.
fn read(json: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap()
}

fn bench(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(vmlan_program());
    command.arg("bench").args(words).env("TMPDIR", dir);
    command
}

#[test]
fn a_short_run_compares_two_techniques_and_writes_them_down() {
    let (dir, tmp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, svg, results) = (file("raw.json"), file("plots/raw.svg"), file("results.md"));
    std::fs::write(&results, "By hand.\n\n<!-- vmlan bench raw -->\nold\n<!-- end -->\nMore.\n")
        .unwrap();
    let words = "raw --sizes 60 --only plain,csb --rounds 1 --seconds 1 --unpaired";
    let words: Vec<_> =
        words.split(' ').chain(["--json", &json, "--svg", &svg, "--results", &results]).collect();
    let out = bench(tmp.path(), &words).output().unwrap();
    let (said, heard) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{heard}");
    assert!(heard.contains("[2/2] csb, 60 B: "), "{heard}");
    assert!(said.contains("native guests") && said.contains("The paper"), "{said}");
    let json = read(&json);
    for field in ["commit", "machine", "guest", "cores", "seconds", "rounds"] {
        assert!(!json[field].is_null(), "{field}: {json}");
    }
    assert_eq!(json["cells"][1]["technique"], "csb");
    // How fast each is depends on the machine.
    for cell in 0..2 {
        let rate = json["cells"][cell]["figures"]["frames_per_s"].as_f64();
        assert!(rate > Some(0.0), "{json}");
    }
    assert!(std::fs::read_to_string(svg).unwrap().contains("csb"));
    let results = std::fs::read_to_string(results).unwrap();
    assert!(results.starts_with("By hand.") && results.ends_with("More.\n"), "{results}");
    assert!(results.contains("| csb |") && !results.contains("old"), "{results}");
    assert!(results.contains("(plots/raw.svg)"), "{results}");
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn a_budget_ends_a_run_and_what_was_measured_is_kept() {
    let (dir, tmp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (results, ratios) = (file("results.md"), file("results.json"));
    let words =
        "raw --sizes 60 --only plain,posted --rounds 100 --seconds 0.1 --budget 2 --unpaired";
    let words: Vec<_> =
        words.split(' ').chain(["--results", &results, "--ratios", &ratios]).collect();
    let out = bench(tmp.path(), &words).output().unwrap();
    let heard = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{heard}");
    assert!(heard.lines().last().unwrap().contains("the time was up before"), "{heard}");
    let results = std::fs::read_to_string(results).unwrap();
    assert!(results.contains("Missing: ") && results.contains("| plain | "), "{results}");
    let ratios = read(&ratios);
    let missing = ratios[0]["missing"][0].as_str().unwrap();
    assert!(missing.contains("of 200 cells"), "{ratios}");
}

#[test]
fn fairness_is_judged_against_its_goals() {
    let (dir, tmp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, svg) = (file("fairness.json"), file("fairness.svg"));
    let words = [
        "fairness",
        "--part",
        "uplink",
        "--rounds",
        "1",
        "--unpaired",
        "--json",
        &json,
        "--svg",
        &svg,
    ];
    let out = bench(tmp.path(), &words).output().unwrap();
    let (said, heard) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{heard}");
    assert!(said.contains("Shares of an uplink") && said.contains("goal 2 %"), "{said}");
    let json = read(&json);
    // Whether the shares are as wanted is what the bench tells of a machine; the switch's tests
    // judge them in simulated time.
    for cell in 0..2 {
        let cell = &json["cells"][cell];
        assert_eq!((&cell["part"], &cell["round"]), (&"uplink".into(), &1.into()));
        let bits = cell["figures"]["bits"].as_array().unwrap();
        assert!(bits.len() == 3 && bits.iter().all(|bits| bits.as_f64() > Some(0.0)), "{cell}");
    }
    assert!(std::fs::read_to_string(svg).unwrap().contains("weight 4"));
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn register_accesses_are_counted_for_each_frame() {
    let (dir, tmp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, svg) = (file("kvm.json"), file("kvm.svg"));
    let words = "kvm-analysis --part accesses --only rtl8139 --rounds 1 --seconds 1 --unpaired";
    let words: Vec<_> = words.split(' ').chain(["--json", &json, "--svg", &svg]).collect();
    let out = bench(tmp.path(), &words).output().unwrap();
    let (said, heard) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{heard}");
    assert!(said.contains("Register accesses for a frame"), "{said}");
    let json = read(&json);
    // The analysis' three accesses for a transmitted frame; of those for a received one, the
    // acknowledgement and the interrupts that are turned off and on.
    let listed: [(usize, &str, &str, f64); 5] = [
        (0, "TSD", "writes", 1.0),
        (0, "ISR", "reads", 1.0),
        (0, "ISR", "writes", 1.0),
        (2, "ISR", "writes", 1.0),
        (2, "IMR", "writes", 2.0),
    ];
    for (cell, register, kind, listed) in listed {
        let cell: &Value = &json["cells"][cell];
        assert_eq!(cell["load"], "sparse", "{json}");
        let count = cell["figures"]["registers"][register][kind].as_f64().unwrap_or(0.0);
        // Fewer where the machine had no time for us and frames went together; never many more.
        assert!(count > 0.0 && count < 1.3 * listed, "{register} {kind}: {count}, not {listed}");
    }
    assert!(std::fs::read_to_string(svg).unwrap().contains("rtl8139"));
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn an_interrupted_run_says_so_and_takes_its_processes_along() {
    let tmp = tempfile::tempdir().unwrap();
    // Where there is one core, a run that compares begins with a line about it.
    let words = ["raw", "--sizes", "60", "--only", "virtio", "--seconds", "60", "--unpaired"];
    let child =
        bench(tmp.path(), &words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let sockets = || {
        let dirs = std::fs::read_dir(tmp.path()).unwrap().flatten();
        dirs.filter_map(|d| std::fs::read_dir(d.path()).ok()).flatten().count()
    };
    let patience = Instant::now() + STALL;
    // The switch's and both guests' sockets, logs and outputs.
    while sockets() < 9 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(20));
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let out = child.wait_with_output().unwrap();
    let heard = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{heard}");
    assert_eq!(heard.trim(), "vmlan: interrupted");
    assert_eq!(sockets(), 0);
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn with_one_core_it_measures_and_compares_nothing() {
    let tmp = tempfile::tempdir().unwrap();
    let core = std::fs::read_to_string("/proc/self/status").unwrap();
    let core = core.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let core = core.trim().split([',', '-']).next().unwrap();
    let one_core = |words: &str| {
        let words = words.split(' ').map(str::to_owned);
        let mut command = Command::new("taskset");
        command.args(["-c", core]).arg(vmlan_program()).arg("bench").args(words);
        let out = command.env("TMPDIR", tmp.path()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
        (text(&out.stdout), text(&out.stderr))
    };
    let (said, heard) = one_core("raw --sizes 60 --only plain,posted --rounds 1 --seconds 0.2");
    assert!(heard.lines().last().unwrap().contains("one core only"), "{heard}");
    let row = said.lines().find(|line| line.starts_with("posted")).unwrap();
    assert!(!row.contains("near:") && row.trim_end().ends_with('-'), "a ratio of nothing: {row}");
    let (said, heard) = one_core("peers --rounds 1");
    assert!(
        said.is_empty() && heard.lines().last().unwrap().contains("two cores missing"),
        "{heard}"
    );
}

#[test]
fn peers_that_are_not_there_are_named() {
    let tmp = tempfile::tempdir().unwrap();
    let results = tmp.path().join("results.md");
    let older = "<!-- vmlan bench peers -->\nof an older run\n<!-- end -->\n";
    std::fs::write(&results, older).unwrap();
    let mut command = bench(tmp.path(), &["peers", "--only", "ovs-dpdk-13", "--rounds", "1"]);
    command.arg("--results").arg(&results);
    let out = command.env("VMLAN_CACHE", tmp.path()).output().unwrap();
    let heard = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{heard}");
    assert_eq!(heard.trim().lines().count(), 1, "{heard}");
    // The first of what is missing, with the command that helps.
    let named = ["setup.sh peers", "apt-get install", "sudo", "two cores"];
    assert!(named.iter().any(|word| heard.contains(word)), "{heard}");
    // What was measured before is better than nothing.
    assert_eq!(std::fs::read_to_string(results).unwrap(), older);
}

#[test]
fn wrong_usage_is_one_line() {
    let tmp = tempfile::tempdir().unwrap();
    for (words, word) in [
        (&["raws"][..], "raw"),
        (&["raw", "--only", "magic"], "csb-4096"),
        (&["raw", "--sizes", "20"], "60 to 65535"),
        (&["raw", "--seconds", "0"], "--seconds"),
        (&["raw", "--part", "limits"], "--part"),
        (&["fairness", "--part", "magic"], "neighbour"),
        (&["kvm-analysis", "--part", "magic"], "windows"),
        (&["kvm-analysis", "--only", "ne2000"], "r8169"),
        (&["peers", "--only", "vpp"], "ovs-dpdk-13"),
    ] {
        let out = bench(tmp.path(), words).output().unwrap();
        let heard = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{words:?}: {heard}");
        assert!(heard.lines().count() == 1 && heard.contains(word), "{words:?}: {heard}");
    }
}
