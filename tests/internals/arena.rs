//! Buffers of host memory that are cut from regions.

use tapezoo::tensor::{Arena, Host};

/// Bytes of a cache line.
const LINE: usize = 64;

#[test]
fn buffers_are_zeros_apart_from_one_another_and_begin_on_a_line() {
    let mut arena = Arena::default();
    // Sizes around the least that is cut from a region, around a huge page, and above a whole region.
    let sizes = [0, 1, 32_767, 32_768, 32_769, 70_000, 523_264, 524_288, 524_289, 80_000_000, 20_000_000];
    let mut all: Vec<Host<f32>> = vec![];
    for len in sizes.into_iter().chain((0..200).map(|i| 32_700 + 37 * i)) {
        let mut new = arena.host::<f32>(len).unwrap();
        assert!(
            new.len() == len && new.iter().all(|&x| x == 0.0),
            "{len} asked for, {} got, {:?} not 0",
            new.len(),
            new.iter().position(|&x| x != 0.0)
        );
        assert_eq!(new.as_ptr().addr() % LINE, 0, "{len} numbers");
        new.fill(all.len() as f32);
        all.push(new);
    }
    // Some buffers are dropped. The others stay as they are, even after the arena lets go of their regions.
    let all: Vec<_> = all.into_iter().enumerate().filter(|(i, _)| i % 7 != 3).collect();
    drop(arena);
    for (i, host) in &all {
        assert!(host.iter().all(|&x| x == *i as f32), "buffer {i} of {} numbers was written by another", host.len());
    }
}

#[test]
fn integers_and_doubles_share_regions() {
    let mut arena = Arena::default();
    let (mut a, mut b) = (arena.host::<i32>(50_001).unwrap(), arena.host::<f64>(30_001).unwrap());
    a.fill(-1);
    b.fill(0.5);
    assert!(
        a.iter().all(|&x| x == -1) && b.iter().all(|&x| x == 0.5),
        "{:?} and {:?} overwritten",
        a.iter().position(|&x| x != -1),
        b.iter().position(|&x| x != 0.5)
    );
}
