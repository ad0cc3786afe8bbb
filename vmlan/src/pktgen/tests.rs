use clap::Parser;
use vmlan_tools::pktgen::{Function, Options};
use vmlan_transport::Mac;

use super::PktGenArgs;
use super::options::{number, options, range};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: PktGenArgs,
}

fn parse(words: &str) -> Result<Options, String> {
    let line = format!("pkt-gen -i vhost-user:/x,queues=4 {words}");
    let line = Line::try_parse_from(line.split_whitespace()).map_err(|e| e.to_string())?;
    if let Some(reason) = line.args.absent.reason() {
        return Err(reason.into());
    }
    let options = options(&line.args).map_err(|e| e.to_string())?;
    options.check().map(|()| options).map_err(|e| e.to_string())
}

fn refused(words: &str, said: &str) {
    let error = parse(words).expect_err(words);
    assert!(error.contains(said), "{words}: {error}");
}

#[test]
fn numbers_take_units_and_nonsense_is_refused() {
    assert_eq!(number("-R", "0"), Ok(0));
    assert_eq!(number("-R", "10k"), Ok(10_000));
    assert_eq!(number("-R", "1.5M"), Ok(1_500_000));
    for bad in ["", "k", "-1", "1x", "1e400M", "nanM", "1.5"] {
        assert!(number("-R", bad).is_err(), "{bad}");
    }
    let mut ports = 1..=1u16;
    range("--dst-port", Some("5-9"), &mut ports).unwrap();
    assert_eq!(ports, 5..=9);
    assert!(range("--dst-port", Some("5-99999"), &mut ports).is_err());
}

#[test]
fn ends_are_written_as_pkt_gen_has_them_or_as_a_mac() {
    let ip = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap();
    let got = parse("-f tx -d 10.1.0.1:2000-10.1.0.9:2999 -s 10.0.0.7").unwrap();
    assert_eq!((got.dst_ip, got.dst_port), (ip("10.1.0.1")..=ip("10.1.0.9"), 2000..=2999));
    assert_eq!((got.src_ip, got.src_port), (ip("10.0.0.7")..=ip("10.0.0.7"), 1234..=1234));
    let got = parse("-f tx -d 10.1.0.1:7 -d 02:00:00:00:00:01 -S 02:00:00:00:00:02").unwrap();
    assert_eq!((got.dst_mac, got.src_mac), (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])));
    assert_eq!(got.dst_port, 7..=7);
    let got = parse("-f tx -s 52:54:00:00:00:0a -D 52:54:00:00:00:0b").unwrap();
    assert_eq!((got.src_mac.0[5], got.dst_mac.0[5]), (10, 11));
    refused("-f tx -d 10.1.0", "-d: '10.1.0' is neither");
    refused("-f tx -s 10.1.0.1:99999", "-s: '10.1.0.1:99999' is neither");
    refused("-f tx -d 10.1.0.9-10.1.0.1", "smaller end first");
    refused("-f tx -d 02:00:00:00:00:01 -D 02:00:00:00:00:02", "given twice");
    refused("-f tx -D 10.0.0.1", "-D: '10.0.0.1' is not a MAC");
}

#[test]
fn one_size_or_two() {
    let sizes = |words| parse(words).map(|options| (options.least_size, options.size));
    assert_eq!(sizes("-f tx"), Ok((None, 60)));
    assert_eq!(sizes("-f tx -l 1514"), Ok((None, 1514)));
    assert_eq!(sizes("-f tx -l 1514 -l 64"), Ok((Some(64), 1514)));
    assert_eq!(sizes("-f tx -l 64 -l 1514"), Ok((Some(64), 1514)));
    refused("-f tx -l 1 -l 2 -l 3", "one size, or two");
    refused("-f tx -l 59", "59 bytes");
    refused("-f tx -l 1514 -l 59", "59 bytes");
    refused("-f tx -l 65536", "65535");
}

#[test]
fn what_there_is_not_is_refused_by_name() {
    for (words, said) in [
        ("-6", "-6: the frames are IPv4"),
        ("-H 12", "-H: the length"),
        ("-F 4", "-F: write segments="),
        ("-M 100", "-M: see segments="),
        ("-I", "indirect=on"),
        ("-r", "-r: "),
        ("-X", "-X: capture"),
        ("-o 4", "-o: "),
        ("-C 1", "-C: "),
        ("-N", "'-N'"),
    ] {
        refused(&format!("-f tx {words}"), said);
    }
    refused("-f pingseq", "pingseq");
    refused("-f tx -c 2", "-a <CPU>");
    refused("-f tx --recorded-timing", "-P <FILE>");
    refused("-f rx -W --idle-exit 3", "cannot be used with");
}

#[test]
fn threads_silence_and_the_rest_arrive() {
    let got = parse("-f rxseq -p 4 -a 1 -c 2 -W -n 10k -b 7 --report 250 -z -Z -4").unwrap();
    assert_eq!((got.threads, got.cpu, got.cpus), (4, Some(1), Some(2)));
    assert!(got.verify && got.function == Function::Rx && got.random_src && got.random_dst);
    assert_eq!(got.idle_exit, Some(std::time::Duration::from_secs(1)));
    assert_eq!((got.count, got.burst, got.report_every.as_millis()), (10_000, 7, 250));
    refused("-f tx -p 5", "the NIC has 4: add queues=5");
    refused("-f ping -p 2", "-f ping and -p");
}

#[test]
fn a_file_that_is_no_capture_is_one_clear_line() {
    refused("-f tx -P /nonexistent/file.pcap", "it cannot be read: No such file");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "frames, honestly").unwrap();
    refused(&format!("-f tx -P {}", file.path().display()), "this is not a capture: a file");
    std::fs::write(file.path(), [0xd4, 0xc3, 0xb2, 0xa1]).unwrap();
    refused(&format!("-f tx -P {}", file.path().display()), "cut off");
}

#[test]
fn help_names_every_key_of_an_address() {
    let known = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: Vec<_> = super::HELP.split(|c| !known(c)).collect();
    for key in
        [vmlan_transport::address::vhost_user::KEYS, vmlan_transport::address::vfio_user::KEYS]
            .join(", ")
            .split(", ")
    {
        assert!(words.contains(&key), "{key}");
    }
    // clap would fold longer lines without their margin.
    assert!(super::HELP.lines().all(|line| line.len() <= 98));
}
