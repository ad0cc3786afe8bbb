use super::*;

/// Registers and accesses for a frame.
fn seen(registers: &[(&str, f64, f64)]) -> Samples<Measured> {
    let per_frame =
        |&(name, reads, writes): &(&str, f64, f64)| (name.to_owned(), PerFrame { reads, writes });
    Samples::near(vec![Some(Measured {
        frames: 1000,
        registers: registers.iter().map(per_frame).collect(),
        interrupts: 1.0,
        mapped: 0.0,
    })])
}

/// As the analysis counts them, and the read pointer of received frames.
fn all(cases: &[Case]) -> Results<'_> {
    let of = |w: &Case| match (w.sends, w.load) {
        (true, Load::Sparse) => seen(&[("TSD", 0.0, 1.0), ("ISR", 1.0, 1.0), ("BMSR", 0.001, 0.0)]),
        (true, Load::Bursts) => seen(&[("TSD", 0.0, 1.0), ("ISR", 0.25, 0.25)]),
        (false, Load::Sparse) => {
            seen(&[("ISR", 3.0, 1.0), ("IMR", 0.0, 2.0), ("CR", 1.0, 0.0), ("CAPR", 0.0, 1.0)])
        }
        (false, Load::Bursts) => seen(&[("ISR", 1.0, 1.0), ("CR", 1.0, 0.0), ("CAPR", 0.0, 1.0)]),
    };
    Results(cases.iter().map(|w| (w, of(w))).collect())
}

#[test]
fn sums_and_registers_stand_beside_the_analysis() {
    let choice = Choice::of(&["rtl8139"]).unwrap();
    let cases = cases(&choice);
    let part = report(&choice, &all(&cases), Value::Null);
    let rows = |n: usize| part.tables[n].rows.iter().map(|r| r.join(" | ")).collect::<Vec<_>>();
    assert_eq!(
        rows(0),
        [
            "the analysis: rtl8139 | 3 | - | 7 | 3",
            "rtl8139 plain | 3.00 = 1.00 r 2.00 w | 1.50 = 0.25 r 1.25 w | 8.00 = 4.00 r 4.00 w | \
                4.00 = 2.00 r 2.00 w",
        ]
    );
    assert_eq!(
        rows(2),
        [
            "(2) R: interrupt status, (5) and (6b) R: rx interrupt? | ISR r | 3 | 3.00 | 1 | 1.00",
            "(3) W: disable, (7) W: enable interrupts | IMR w | 2 | 2.00 | 0 | 0.00",
            "(6) while (R: not empty?) | CR r | 1 | 1.00 | 1 | 1.00",
            "(6b) W: ACK | ISR w | 1 | 1.00 | 1 | 1.00",
            "of the list |  | 7 | 7.00 | 3 | 3.00",
            "not in the list | CAPR w | - | 1.00 | - | 1.00",
            "all |  | - | 8.00 | - | 4.00",
        ]
    );
    assert_eq!(rows(1)[0], "(2) W: fire DMA | TSD w | 1 | 1.00 | - | 1.00");
    assert_eq!(rows(1)[3], "of the list |  | 3 | 3.00 | - | 1.50");
    // BMSR was touched once in a while.
    let names: Vec<_> = part.tables[3].rows.iter().map(|r| r[0].as_str()).collect();
    assert_eq!(names, ["CAPR", "CR", "IMR", "ISR", "TSD", "(interrupts)"]);
    assert_eq!(part.panels[0].series.iter().map(|s| s.1.len()).collect::<Vec<_>>(), [4, 3]);
}

#[test]
fn without_rtl8139_there_is_no_list_of_steps() {
    let choice = Choice::of(&["e1000"]).unwrap();
    let cases = cases(&choice);
    let part = report(&choice, &all(&cases), Value::Null);
    let titles: Vec<_> = part.tables.iter().map(|t| t.title.as_str()).collect();
    let registers =
        ["e1000 plain: by register", "e1000 mapped: by register", "e1000 csb: by register"];
    assert_eq!(titles, [&["Register accesses for a frame"][..], &registers].concat());
    assert_eq!(part.panels.len(), 1);
}

#[test]
fn registers_used_in_turn_count_as_one() {
    assert_eq!(
        ["TSD2", "TSAD0", "TSD", "TSDX", "TDT"].map(family),
        ["TSD", "TSAD", "TSD", "TSDX", "TDT"]
    );
    assert!((mapped(r#"{"frames": 4, "registers": {"mapped": 8}}"#) - 2.0).abs() < 1e-9);
    assert!(mapped("nonsense").abs() < 1e-9);
}
