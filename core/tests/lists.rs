//! Tests of lists of puts and gets, and of operations on memory by address, over every route inside one process.

#![allow(unsafe_code)] // memory by address

use tieline::{
    AtomicOp, Completion, CompletionError, Context, Descriptor, Endpoint, Error, Outcome,
    PostError, Region, RemoteKey, Status, Width, Worker,
};

/// The length of each of the two target regions.
const LEN: usize = 400_000;

/// A worker that is connected to itself, with two target regions and local memory of the same length.
struct Stage {
    context: Context,
    worker: Worker,
    me: Endpoint,
    targets: [Region; 2],
    keys: [RemoteKey; 2],
    local: Region,
}

impl Stage {
    /// `path`: the module that reaches the targets.
    fn new(providers: &str, alloc: bool, path: &str) -> Stage {
        let context = Context::builder().set("TIELINE_PROVIDERS", providers).open().unwrap();
        let worker = context.worker().unwrap();
        let me = worker.connect(&worker.address().unwrap()).unwrap();
        let targets = [(); 2].map(|()| match alloc {
            true => context.alloc(LEN).unwrap(),
            false => context.register(vec![0u8; LEN]).unwrap(),
        });
        let keys = targets.each_ref().map(|t| me.import_key(&t.remote_key().unwrap()).unwrap());
        while keys.iter().any(RemoteKey::is_settling) {
            let _ = worker.progress();
        }
        assert_eq!(keys[0].path(), path);
        let local: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        let local = context.register(local).unwrap();
        Stage { context, worker, me, targets, keys, local }
    }

    fn finish(&self, outcome: Outcome) -> Result<u64, CompletionError> {
        self.worker.finish(outcome)
    }

    /// Ends a post whose failure may be reported by the call or by the completion.
    fn ended(&self, posted: Result<Outcome, PostError>) -> Result<u64, Error> {
        Ok(self.finish(posted?)?)
    }
}

fn each_route(test: impl Fn(Stage)) {
    test(Stage::new("shm,shm-cma", true, "shm/ring"));
    test(Stage::new("shm,shm-cma", false, "shm-cma/copy"));
    test(Stage::new("shm", false, "emulated over shm/ring"));
}

/// The place of a descriptor in the target, the local memory, and its length. The descriptors do not overlap.
fn place(n: usize) -> (usize, usize, usize) {
    (n * 1300 + n % 7, (299 - n) * 1300, [0, 8, 1, 1200, 64, 777][n % 6])
}

/// Makes 300 descriptors for both targets. Every third one takes its local memory by address.
fn descriptors<'a>(stage: &'a Stage, local: &'a Region) -> Vec<Descriptor<'a>> {
    let one = |n| {
        let ((there, here, len), key) = (place(n), &stage.keys[n / 5 % 2]);
        match n % 3 {
            // SAFETY: the region keeps the memory until after the operation, and nothing else accesses it meanwhile.
            0 => unsafe { Descriptor::raw(local.as_ptr().add(here), len, key, there as u64) },
            _ => Descriptor::new(local, here..here + len, key, there as u64),
        }
    };
    (0..300).map(one).collect()
}

fn check_targets(stage: &Stage, bytes: &Region) {
    for n in 0..300 {
        let (there, here, len) = place(n);
        let found = stage.targets[n / 5 % 2].to_vec(there..there + len).unwrap();
        assert_eq!(found, bytes.to_vec(here..here + len).unwrap(), "descriptor {n}");
    }
}

#[test]
fn list_moves_each_descriptor_and_prepared_list_moves_it_again() {
    each_route(|stage| {
        let list = descriptors(&stage, &stage.local);
        let _ = stage.finish(stage.me.put_list(&list).unwrap()).unwrap();
        check_targets(&stage, &stage.local);
        let landing = stage.context.register(vec![0u8; LEN]).unwrap();
        let back = descriptors(&stage, &landing);
        let _ = stage.finish(stage.me.get_list(&back).unwrap()).unwrap();
        check_targets(&stage, &landing);
        let put = stage.me.prepare_put_list(&list).unwrap();
        let get = stage.me.prepare_get_list(&back).unwrap();
        assert_eq!((put.len(), put.is_empty()), (300, false));
        for round in 1..4u8 {
            stage.local.write(0, &vec![round; LEN]).unwrap();
            let _ = stage.finish(stage.me.post_list(&put).unwrap()).unwrap();
            check_targets(&stage, &stage.local);
            let _ = stage.finish(stage.me.post_list(&get).unwrap()).unwrap();
            check_targets(&stage, &landing);
        }
        drop(get);
        assert!(landing.close().is_ok(), "the list has released it");
        let busy = stage.local.close().unwrap_err();
        assert_eq!(busy.error.status(), Status::Busy, "the list of puts keeps it");
    });
}

#[test]
fn list_with_a_wrong_descriptor_posts_nothing_and_names_its_index() {
    each_route(|stage| {
        let other = stage.worker.connect(&stage.worker.address().unwrap()).unwrap();
        let foreign = other.import_key(&stage.targets[0].remote_key().unwrap()).unwrap();
        let (key, local, end) = (&stage.keys[0], &stage.local, LEN as u64);
        let elsewhere = Context::open().unwrap().register(vec![0; 8]).unwrap();
        let good = Descriptor::new(local, 1..9, key, 0);
        #[expect(clippy::reversed_empty_ranges, reason = "the range is wrong on purpose")]
        let wrong = [
            (Descriptor::new(local, LEN - 7..LEN + 1, key, 0), Status::OutOfRange),
            (Descriptor::new(local, 8..0, key, 0), Status::OutOfRange),
            (Descriptor::new(local, 0..8, key, end - 7), Status::OutOfRange),
            (Descriptor::new(local, 0..8, key, u64::MAX), Status::OutOfRange),
            (Descriptor::new(local, 0..8, &foreign, 0), Status::KeyRejected),
            (Descriptor::new(&elsewhere, 0..8, key, 0), Status::Invalid),
        ];
        for (bad, status) in wrong {
            for index in [0, 1, 4] {
                let mut list = vec![good; 4];
                list.insert(index, bad);
                let refusals = [
                    stage.me.put_list(&list).map(|_| ()),
                    stage.me.get_list(&list).map(|_| ()),
                    stage.me.prepare_put_list(&list).map(|_| ()),
                ];
                for refused in refusals {
                    let refused = refused.unwrap_err();
                    assert!(matches!(refused, PostError::Correct(_)), "{refused}");
                    assert_eq!((refused.status(), refused.index()), (status, Some(index)));
                }
            }
        }
        assert_eq!(stage.targets[0].to_vec(0..8).unwrap(), [0; 8]);
        let list = stage.me.prepare_put_list(&[good]).unwrap();
        let refused = other.post_list(&list).unwrap_err();
        assert_eq!((refused.status(), refused.index()), (Status::KeyRejected, None));
        assert!(stage.me.put_list(&[]).unwrap().is_done());
        let empty = stage.me.prepare_get_list(&[]).unwrap();
        assert!(empty.is_empty() && stage.me.post_list(&empty).unwrap().is_done());
        assert!(stage.me.error().is_none());
    });
}

#[test]
fn list_fails_with_the_lowest_index_whose_target_is_gone() {
    each_route(|stage| {
        let Stage { context, me, targets: [kept, gone], keys, local, worker } = stage;
        let list: Vec<_> = (0..40)
            .map(|n| Descriptor::new(&local, n * 8..n * 8 + 8, &keys[n / 13 % 2], n as u64 * 8))
            .collect();
        let prepared = [me.prepare_put_list(&list).unwrap(), me.prepare_get_list(&list).unwrap()];
        drop(gone);
        let ended = |posted: Result<Outcome, PostError>| -> Result<u64, Error> {
            Ok(worker.finish(posted?)?)
        };
        for posted in [me.put_list(&list), me.post_list(&prepared[0]), me.post_list(&prepared[1])] {
            let error = ended(posted).unwrap_err();
            assert_eq!((error.status(), error.index()), (Status::KeyRejected, Some(13)), "{error}");
        }
        assert_eq!(kept.to_vec(0..104).unwrap(), local.to_vec(0..104).unwrap());
        // The failure was that of one descriptor, so the endpoint and other lists go on.
        let _ = ended(me.put_list(&list[..13])).unwrap();
        assert!(me.error().is_none() && context.worker().is_ok());
    });
}

#[test]
fn memory_by_address_is_put_and_fetched_without_a_region() {
    each_route(|stage| {
        let Stage { me, keys, targets, .. } = &stage;
        for len in [0, 1, 8, 100, 5000, 70_000, 300_000] {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 253) as u8 + 1).collect();
            let mut back = vec![0u8; len + 16];
            // SAFETY: both buffers live until `finish` has returned, and nothing else accesses them meanwhile.
            unsafe {
                let put = me.put_raw(bytes.as_ptr(), len, &keys[0], 17).unwrap();
                let _ = stage.finish(put).unwrap();
                let get = me.get_raw(back.as_mut_ptr().add(8), len, &keys[0], 17).unwrap();
                let _ = stage.finish(get).unwrap();
            }
            assert_eq!(targets[0].to_vec(17..17 + len).unwrap(), bytes);
            assert!(back[8..8 + len] == bytes[..] && back[..8] == [0; 8]);
            assert!(back[8 + len..] == [0; 8], "{len}");
        }
        let (word, null) = (7u64.to_ne_bytes(), std::ptr::null_mut());
        // SAFETY: `word` lives until the flush has ended.
        unsafe {
            let put = me.put_raw_with(word.as_ptr(), 8, &keys[1], 8, Completion::Local).unwrap();
            let _ = stage.finish(put).unwrap();
            stage.worker.flush().unwrap();
            let outside = me.put_raw(word.as_ptr(), 8, &keys[0], LEN as u64 - 7).unwrap_err();
            assert_eq!((outside.status(), outside.index()), (Status::OutOfRange, None));
            let outside = me.get_raw(null, 0, &keys[0], LEN as u64 + 1).unwrap_err();
            assert_eq!(outside.status(), Status::OutOfRange);
            assert!(stage.ended(me.put_raw(null, 0, &keys[0], 5)).is_ok());
        }
        // SAFETY: the places live until `finish` has returned, and nothing else accesses them meanwhile.
        unsafe {
            let mut places = [0xeeu8; 24];
            let at = places.as_mut_ptr().add(3);
            let key = &keys[1];
            let fetch = me.fetch_raw(AtomicOp::Add, Width::Bits64, key, 8, 5, at).unwrap();
            assert_eq!(stage.finish(fetch), Ok(7));
            let swap = me.compare_swap_raw(Width::Bits32, key, 8, 12, 1, at.add(8)).unwrap();
            assert_eq!(stage.finish(swap), Ok(12));
            let refused = me.fetch_raw(AtomicOp::Add, Width::Bits64, key, 9, 1, at.add(12));
            assert_eq!(stage.ended(refused).unwrap_err().status(), Status::Misaligned);
            let expected = [&[0xee; 3][..], &7u64.to_ne_bytes(), &12u32.to_ne_bytes(), &[0xee; 9]];
            assert_eq!(places[..], expected.concat());
        }
        assert_eq!(targets[1].to_vec(8..12).unwrap(), 1u32.to_ne_bytes());
    });
}

#[test]
fn counted_fetch_stores_its_value_although_nothing_requests_it() {
    each_route(|stage| {
        let counter = stage.worker.completion_counter().unwrap();
        let mut values = [u64::MAX; 20];
        for value in &mut values {
            let at = std::ptr::from_mut(value).cast();
            let (add, wide, key) = (AtomicOp::Add, Width::Bits64, &stage.keys[0]);
            // SAFETY: the values live until the counter has counted all, and nothing accesses them meanwhile.
            let fetch = unsafe { stage.me.fetch_raw(add, wide, key, 64, 3, at) }.unwrap();
            stage.worker.count(&fetch, &counter).unwrap();
        }
        while counter.pending() > 0 {
            let _ = stage.worker.progress();
        }
        assert_eq!((counter.done(), counter.failed()), (20, 0));
        assert_eq!(values.to_vec(), (0..20).map(|n| n * 3).collect::<Vec<u64>>());
    });
}
