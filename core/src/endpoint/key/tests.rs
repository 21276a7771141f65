use super::*;

fn native(synchronous: bool, caps: u64) -> ImportedKey {
    ImportedKey {
        raw: RawEndpoint::nowhere(),
        key: std::ptr::null_mut(),
        interface: 0,
        part: 0,
        shared: false,
        rank: 0,
        caps,
        synchronous,
        settled: true,
        post: [0; 2],
        fetch: [0; 2],
        max: [0; 2],
        max_short_put: 0,
        max_iov: 1,
        words: 0,
    }
}

#[test]
fn two_share_a_copy_only_by_what_copies_between_the_processes_of_one_host() {
    let (local, own) = (caps::LOCAL_ONLY, caps::OWN_MEMORY_ONLY);
    let copies = |synchronous| {
        [local, own, local | own, 0].map(|c| native(synchronous, c).copies_between_processes())
    };
    assert_eq!((copies(true), copies(false)), ([true, false, false, false], [false; 4]));
    let maps =
        |synchronous| [local, own, local | own, 0].map(|c| native(synchronous, c).maps_memory());
    assert_eq!((maps(true), maps(false)), ([false, true, true, false], [false; 4]));
}
