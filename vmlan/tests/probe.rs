//! `vmlan probe`: what it says, never how fast.

use std::process::{Command, Output};

use serde_json::Value;

fn probe(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmlan"));
    command.args(["probe", "--seconds", "0.002"]).args(words).output().unwrap()
}

fn json(words: &[&str]) -> Value {
    let out = probe(&[words, &["--json"]].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn names(report: &Value) -> Vec<&str> {
    let figures = report["figures"].as_array().unwrap();
    figures.iter().map(|f| f["name"].as_str().unwrap()).collect()
}

#[test]
fn all_of_it_as_json_and_as_a_picture() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("new/probe.svg");
    let report = json(&["--svg", svg.to_str().unwrap()]);
    for figure in report["figures"].as_array().unwrap() {
        let ns = |field: &str| figure[field].as_f64().unwrap();
        assert!(ns("median_ns") > 0.0 && ns("p99_ns") >= ns("median_ns"), "{figure}");
        assert!(figure["times"].as_u64() >= figure["batch"].as_u64(), "{figure}");
        assert!(figure["what"].is_string(), "{figure}");
    }
    let found = names(&report);
    let mut wanted = vec!["read", "read-asleep", "write", "write-row", "write-waited", "store"];
    wanted.extend(["frame-posted-asleep", "ring-one-core", "wake-one-core"]);
    wanted.extend(["copy-64-hot", "copy-64-cold", "copy-65536-hot", "copy-65536-cold"]);
    let cores = report["pinned"].as_array().unwrap().len();
    if cores == 2 {
        wanted.extend(["ring", "wake", "line", "frame-posted", "frame-store"]);
    }
    for name in wanted {
        assert!(found.contains(&name), "{name}: {report}");
    }
    assert_eq!(report["techniques"].as_array().unwrap().len(), 6);
    assert!(report["gains_most"].is_string() && report["machine"]["cpu"].is_string());
    let advice = report["advice"].as_str().unwrap();
    assert!(advice.contains("This host gains"), "{advice}");
    assert!(advice.starts_with(report["kvm"]["sentence"].as_str().unwrap()), "{advice}");
    let picture = std::fs::read_to_string(svg).unwrap();
    assert!(picture.contains("copy of 65536 bytes, cold"), "{picture}");
}

#[test]
fn what_kvm_is_here_is_said_plainly() {
    let report = json(&["--only", "kvm,wake"]);
    let (kvm, found) = (&report["kvm"], names(&report));
    let said = kvm["sentence"].as_str().unwrap();
    match (&kvm["opens"], &kvm["hardware"]) {
        (Value::Bool(false), _) => assert!(said.contains("not"), "{said}"),
        (_, Value::Bool(true)) => assert!(found.contains(&"exit-user-port"), "{report}"),
        (_, Value::Bool(false)) => {
            assert!(said.contains("The CPU has no hardware virtualisation behind"), "{said}");
            let text = String::from_utf8(probe(&["--only", "kvm"]).stdout).unwrap();
            assert!(text.contains(" * ") && text.contains("* of the emulator"), "{text}");
        }
        _ => assert!(said.contains("no guest"), "{said}"),
    }
    if kvm["instructions_per_s"].is_number() {
        for name in ["exit-user-read", "exit-kernel-port", "exit-kernel-memory"] {
            assert!(found.contains(&name), "{name}: {report}");
        }
        // On a busy host it may not come in time, which is said.
        let late = report["missing"].to_string().contains("an interrupt did not come");
        assert!(found.contains(&"interrupt-halted") || late, "{report}");
    }
    assert!(report["gains_most"].is_null());
    let advice = report["advice"].as_str().unwrap();
    assert!(advice.contains("takes the parts vfio-user, wake and copy"), "{advice}");
}

#[test]
fn a_missing_kvm_is_told_and_the_rest_measured() {
    let report = json(&["--kvm", "/nowhere/kvm", "--only", "kvm,wake"]);
    assert_eq!(report["kvm"]["opens"], false);
    let said = report["kvm"]["sentence"].as_str().unwrap();
    assert!(said.starts_with("/nowhere/kvm is not there"), "{said}");
    assert!(names(&report).contains(&"wake-one-core"), "{report}");
    let text = probe(&["--kvm", "/nowhere/kvm", "--only", "kvm,wake"]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("not measured: exits from a guest: /nowhere/kvm is not there"), "{text}");
}

#[test]
fn something_else_in_its_place_is_told() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let report = json(&["--kvm", file.path().to_str().unwrap(), "--only", "kvm,wake"]);
    let said = report["kvm"]["sentence"].as_str().unwrap();
    assert!(said.ends_with("is not KVM: give --kvm its device, or leave it out."), "{said}");
    let said = json(&["--kvm", "/dev/null", "--only", "kvm,wake"]);
    assert!(said["advice"].as_str().unwrap().contains("/dev/null is not KVM"), "{said}");
    assert!(report["kvm"]["hardware"].is_null());
}

#[test]
fn wrong_words_and_nothing_to_tell_are_failures() {
    for words in [["--only", "disk"], ["--seconds", "0"], ["--seconds", "NaN"], ["--kvm", ""]] {
        let out = Command::new(env!("CARGO_BIN_EXE_vmlan")).arg("probe").args(words).output();
        assert_eq!(out.unwrap().status.code(), Some(2), "{words:?}");
    }
    let out = probe(&["--kvm", "/nowhere/kvm", "--only", "kvm"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("nothing could be measured"));
}
