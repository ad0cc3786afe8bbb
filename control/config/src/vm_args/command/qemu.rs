//! QEMU's command. Each option has one or two dashes and at most one value; what stands alone is a
//! disk.

use std::ffi::OsString;

use super::keys::{keys, value};
use super::{CommandError, with};

/// Options without a value, of all versions there are.
const WITHOUT_VALUE: &[&str] = &[
    "S",
    "alt-grab",
    "async-teardown",
    "audio-help",
    "ctrl-grab",
    "curses",
    "daemonize",
    "enable-fips",
    "enable-kvm",
    "enable-sync-profile",
    "full-screen",
    "h",
    "help",
    "jitdump",
    "mem-prealloc",
    "no-acpi",
    "no-fd-bootchk",
    "no-hpet",
    "no-quit",
    "no-reboot",
    "no-shutdown",
    "no-user-config",
    "nodefaults",
    "nographic",
    "old-param",
    "only-migratable",
    "perfmap",
    "portrait",
    "preconfig",
    "s",
    "sdl",
    "semihosting",
    "singlestep",
    "snapshot",
    "usb",
    "version",
    "win2k-hack",
    "xen-attach",
    "xen-domid-restrict",
];

/// Our memory's name, in what `vm_args` makes.
const OUR_MEMORY: &str = "vmlan-mem";

const USE_MEMFD: &str = "write -object memory-backend-memfd,share=on for it";
const SHARE_ON: &str = "write share=on at its -object";

/// Options without their dashes, and their values.
fn options(words: &[OsString]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut words = words.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix('-').filter(|flag| !flag.is_empty()) else { continue };
        let flag = flag.strip_prefix('-').unwrap_or(flag);
        let value = if WITHOUT_VALUE.contains(&flag) { None } else { words.next() };
        all.push((flag.to_owned(), value.unwrap_or_default().into_owned()));
    }
    all
}

/// Keys of each option of that name.
fn keys_of(options: &[(String, String)], flags: &[&str]) -> Vec<Vec<(String, String)>> {
    let named = options.iter().filter(|(flag, _)| flags.contains(&flag.as_str()));
    named.map(|(_, value)| keys(value)).collect()
}

/// The size of the memory that is ours to make; `None`: the command makes it, and shares it.
pub(super) fn memory(words: &[OsString]) -> Result<Option<String>, CommandError> {
    let options = options(words);
    if options.iter().any(|(flag, _)| flag == "mem-path") {
        return Err(CommandError::MemPath);
    }
    let machines = keys_of(&options, &["machine", "M"]);
    let mut machines = machines.iter().rev().filter_map(|keys| value(keys, "memory-backend"));
    let nodes = keys_of(&options, &["numa"]);
    let nodes = nodes.iter().filter_map(|node| value(node, "memdev"));
    let used: Vec<_> = machines.next().into_iter().chain(nodes).collect();
    for id in &used {
        shared(&options, id)?;
    }
    if used.is_empty() { size(&options).map(Some) } else { Ok(None) }
}

/// Memory that another process may map has a file, and writes that others see. What has no such
/// object is for QEMU to refuse.
fn shared(options: &[(String, String)], id: &str) -> Result<(), CommandError> {
    let objects = keys_of(options, &["object"]);
    let Some(object) = objects.iter().find(|keys| value(keys, "id") == Some(id)) else {
        return Ok(());
    };
    // The type is a bare word, or in JSON a key.
    let kind = value(object, "qom-type").or(object.first().map(|(word, _)| word.as_str()));
    let share = value(object, "share").map(|on| ["on", "yes", "true"].contains(&on));
    let fix = match (kind, share) {
        (Some("memory-backend-memfd"), None | Some(true)) => return Ok(()),
        (Some("memory-backend-file"), Some(true)) => return Ok(()),
        (Some("memory-backend-shm"), _) => return Ok(()),
        (Some("memory-backend-memfd" | "memory-backend-file"), _) => SHARE_ON,
        _ => USE_MEMFD,
    };
    Err(CommandError::NotShared { id: id.to_owned(), fix })
}

/// What `-m` says, or as much as a machine has by itself.
fn size(options: &[(String, String)]) -> Result<String, CommandError> {
    let mut size = "128M".to_owned();
    for (_, text) in options.iter().filter(|(flag, _)| flag == "m") {
        let keys = keys(text);
        let bare = keys.first().filter(|(_, value)| value.is_empty()).map(|(word, _)| word);
        let said = value(&keys, "size").or(bare.map(String::as_str));
        if let Some(said) = said {
            size = whole_size(said).ok_or_else(|| CommandError::Size(text.clone()))?;
        }
    }
    Ok(size)
}

/// A size as QEMU reads it, where a backend takes it too: a bare number is MiB, it may have a
/// point, and it is rounded up to 8 KiB.
fn whole_size(text: &str) -> Option<String> {
    let (number, shift) = match text.char_indices().next_back()? {
        (at, unit) if unit.is_ascii_alphabetic() => {
            let shift = "BKMGT".find(unit.to_ascii_uppercase())? * 10;
            (&text[..at], shift)
        }
        _ => (text, 20),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |t: &str| t.len() <= 15 && t.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) {
        return None;
    }
    let number: u128 = format!("{whole}{part}").parse().ok()?;
    let bytes = (number << shift) / 10_u128.pow(u32::try_from(part.len()).ok()?);
    let kib = bytes.div_ceil(8 << 10) * 8;
    Some(if kib.is_multiple_of(1024) { format!("{}M", kib / 1024) } else { format!("{kib}K") })
        .filter(|_| kib > 0)
}

/// `words` with the options `more`, those of the memory only if it is ours to make.
pub(super) fn plugged_in(
    words: &[OsString],
    more: &[String],
    memory: bool,
) -> Result<Vec<OsString>, CommandError> {
    let options = options(words);
    let has_size = options.iter().any(|(flag, _)| flag == "m");
    let is_memory = |flag: &str, value: &str| flag == "-m" || value.contains(OUR_MEMORY);
    let kept = more.chunks_exact(2).filter(|pair| match (pair[0].as_str(), pair[1].as_str()) {
        // With `slots` and `maxmem`, perhaps.
        ("-m", _) => memory && !has_size,
        (flag, value) => memory || !is_memory(flag, value),
    });
    let kept: Vec<String> = kept.flatten().cloned().collect();
    let ids = |text: &str| value(&keys(text), "id").map(str::to_owned);
    let theirs: Vec<_> = options.iter().filter_map(|(_, text)| ids(text)).collect();
    if let Some(id) = kept.iter().filter_map(|text| ids(text)).find(|id| theirs.contains(id)) {
        return Err(CommandError::Taken(format!("id={id}")));
    }
    // Last: devices of the user's keep their places on the bus.
    Ok(with(words, words.len(), &kept))
}

/// True if it may run with KVM.
pub(super) fn asks_for_kvm(words: &[OsString]) -> bool {
    let named = words.first().is_some_and(|w| w.to_string_lossy().ends_with("kvm"));
    named
        || options(words).iter().any(|(flag, text)| match flag.as_str() {
            "enable-kvm" => true,
            "accel" => {
                keys(text).iter().any(|(word, v)| word == "kvm" || word == "accel" && v == "kvm")
            }
            "machine" | "M" => {
                value(&keys(text), "accel").is_some_and(|all| all.split(':').any(|a| a == "kvm"))
            }
            _ => false,
        })
}
