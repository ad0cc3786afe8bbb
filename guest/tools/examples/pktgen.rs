//! The least command line for the traffic tools: `pktgen FUNCTION ADDRESS [SIZE [SECONDS [RATE]]]`;
//! FUNCTION as in pkt-gen (tx, rx, txseq, rxseq, ping, pong). The full one is `vmlan pkt-gen`.
//! Prints the summary as JSON.
use std::time::Duration;

use vmlan_tools::pktgen::{Function, Options, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [function, address, more @ ..] = args.as_slice() else {
        return Err("usage: pktgen FUNCTION ADDRESS [SIZE [SECONDS [RATE]]]".into());
    };
    let mut options = Options::new(address.parse()?, Function::Tx);
    options.set_function(function)?;
    options.size = more.first().map_or(Ok(60), |text| text.parse())?;
    options.seconds =
        more.get(1).map(|text| text.parse().map(Duration::from_secs_f64)).transpose()?;
    options.rate = more.get(2).map_or(Ok(0), |text| text.parse())?;
    let summary = run(&options, &mut |report| eprintln!("{report}"))?;
    println!("{}", serde_json::to_string(&summary)?);
    Ok(())
}
