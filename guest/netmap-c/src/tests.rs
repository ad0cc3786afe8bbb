//! The region's account of buffers and blocks. Whole programs in C are in tests/tests/netmap_c.rs.

use super::region::{BUFFERS, FIRST, is_buffer, region};

/// Tests share the process's one region: this is the only one that takes from it.
#[test]
fn what_is_given_back_twice_or_was_nobodys_counts_once() {
    let region = region().unwrap();
    let all = region.free_buffers();
    let mine = region.take_buffers(10).unwrap();
    assert!(mine.iter().all(|index| is_buffer(*index)) && region.free_buffers() == all - 10);
    assert!(region.take_buffers(all).is_none(), "more than there are");
    let lies = [mine[0], mine[0], 0, 1, BUFFERS, u32::MAX];
    region.give_buffers(mine.iter().copied().chain(lies));
    region.give_buffers(lies);
    assert_eq!(region.free_buffers(), all);
    assert!(!is_buffer(FIRST - 1) && !is_buffer(BUFFERS));

    let blocks: Vec<_> = (0..3).map(|_| region.take_block(1000).unwrap()).collect();
    assert!(blocks.windows(2).all(|pair| pair[1] >= pair[0] + 1000), "{blocks:?}");
    for block in [blocks[1], blocks[0], blocks[2]] {
        region.give_block(block, 1000);
    }
    assert_eq!(region.take_block(3000), Some(blocks[0]), "neighbours are one again");
    assert!(region.take_block(64 << 20).is_none());
    region.give_block(blocks[0], 3000);
}
