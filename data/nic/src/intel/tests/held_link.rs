//! What the driver hears of the link after a death.

use super::*;

const LSC: u32 = 1 << 2;
const ICS: u64 = 0xc8;

fn tells_of_the_link<M: Driven>() {
    let mut machine = Machine::<M>::new(false);
    let hears = |machine: &mut Machine<M>| machine.get(ICR) & LSC != 0;
    machine.die();
    assert!(hears(&mut machine), "nobody has read it");
    // The reply may not have arrived.
    machine.die();
    assert!(hears(&mut machine));
    assert!(!hears(&mut machine) && !hears(&mut machine));
    machine.die();
    assert!(!hears(&mut machine), "it is known");
    machine.chip.set_link(false);
    machine.chip.note();
    machine.die();
    assert!(hears(&mut machine), "it has changed since");
    assert!(!hears(&mut machine) && !hears(&mut machine));
    machine.set(ICS, LSC);
    machine.die();
    assert!(hears(&mut machine), "its driver has asked for it");
    machine.hand_over();
    assert!(!hears(&mut machine) && !hears(&mut machine));
    machine.die();
    assert!(!hears(&mut machine), "it is known to the next as well");
}

#[test]
fn a_link_that_was_seen_is_not_told_again() {
    tells_of_the_link::<I82540>();
    tells_of_the_link::<I82574>();
}
