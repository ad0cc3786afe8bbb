//! How options are written down: shell words, QEMU's commas, XML.

/// Flags and their values, one after the other.
pub(super) fn words(pairs: &[(&str, String)]) -> Vec<String> {
    pairs.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.clone()]).collect()
}

/// What libvirt has no element for: pass the words on.
pub(super) fn libvirt_commandline(args: &[String]) -> String {
    let lines: String =
        args.iter().map(|a| format!("  <qemu:arg value='{}'/>\n", xml(a))).collect();
    format!(
        "<!-- in <domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'> -->\n\
         <qemu:commandline>\n{lines}</qemu:commandline>\n"
    )
}

/// The same domain, its vhost-user NIC without MSI-X; libvirt 8.2 or later.
pub(super) fn libvirt_without_msix(name: &str, domain: &str) -> String {
    let alias = format!("    <alias name='ua-{}'/>\n</interface>", xml(name));
    if !domain.contains("<interface type='vhostuser'>") {
        return domain.to_owned();
    }
    domain.replace("</interface>", &alias)
        + &format!(
            "<!-- in <domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>, last -->\n\
             <qemu:override>\n  <qemu:device alias='ua-{}'>\n    <qemu:frontend>\n      \
             <qemu:property name='vectors' type='unsigned' value='0'/>\n    </qemu:frontend>\n  \
             </qemu:device>\n</qemu:override>\n",
            xml(name)
        )
}

/// QEMU's option parser takes two commas for one.
pub(super) fn commas(text: &str) -> String {
    text.replace(',', ",,")
}

/// Text inside XML, also in single quotes.
pub(super) fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}

/// Shell words, a flag and its value on each line.
pub(super) fn shell(args: &[String]) -> String {
    let lines: Vec<String> = args
        .chunks(2)
        .map(|pair| pair.iter().map(|w| shell_word(w)).collect::<Vec<_>>().join(" "))
        .collect();
    lines.join(" \\\n") + "\n"
}

/// `word`, quoted for a shell where that is necessary.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,./:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
