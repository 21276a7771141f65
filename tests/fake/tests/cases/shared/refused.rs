//! Tests of transfers by both ends that one end, or the lane, cannot continue.

use super::*;

cases! {
    fn refused_large_transfer_takes_another_route() {
        let (gone, declined) = (Status::Unreachable, Status::Declined);
        for (slot, why) in [Slot::Put, Slot::Get].into_iter().flat_map(|s| [(s, gone), (s, declined)]) {
            let world = World::new(1, over_wire());
            let (at_a, at_b) = (over_three(world), over_three(world));
            let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
            let far = at_b.register_with(bytes(LEN), Access::ALL).unwrap();
            let near = at_a.register_with(vec![3; LEN], Access::ALL).unwrap();
            let ab = a.connect(&b.address().unwrap()).unwrap();
            let key = ab.import_key(&far.remote_key().unwrap()).unwrap();
            let met = pending(ab.flush_messages());
            while a.test(&met).is_none() || key.is_settling() {
                let _ = a.progress() + b.progress();
            }
            assert_eq!(&*key.path(), "other:copy/copy");
            world.rule(Rule::every(slot, Act::Refuse(why)).on("copy"));
            let moved = match slot {
                Slot::Put => ab.put(&near, 0..LEN, &key, 0),
                _ => ab.get(&near, 0..LEN, &key, 0),
            };
            let request = pending(moved);
            while a.test(&request).is_none() {
                let _ = a.progress() + b.progress();
            }
            assert_eq!(a.test(&request), Some(Ok(0)));
            let stays = why == Status::Declined;
            let path = if stays { "other:copy/copy" } else { "emulated over fake:wire/wire" };
            assert_eq!(&*key.path(), path);
            let there = far.to_vec(0..LEN).unwrap();
            assert!(there == near.to_vec(0..LEN).unwrap(), "{slot:?}: not all of it");
            assert_eq!(world.faults(), Vec::<String>::new());
        }
    }

    fn failed_large_transfer_leaves_endpoint_usable_if_peer_lives() {
        for (slot, why) in [Slot::Put, Slot::Get].map(|s| [(s, Status::Io), (s, Status::Closed)]).concat() {
            let (world, [at_a, at_b]) = two_contexts();
            let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
            let far = at_b.register_with(bytes(LEN), Access::ALL).unwrap();
            let near = at_a.register_transient(vec![3; LEN]).unwrap();
            let (ab, key) = met(&a, &b, &far);
            world.rule(Rule::every(slot, Act::Refuse(why)).on("copy"));
            let moved = || match slot {
                Slot::Put => ab.put(&near, 0..LEN, &key, 0),
                _ => ab.get(&near, 0..LEN, &key, 0),
            };
            assert_eq!(moved().expect_err("it was refused").status(), why);
            assert!(world.on_the_way(ASSIST).is_some(), "it was not shared");
            assert!(ab.error().is_none(), "{slot:?}: {why} has ended the endpoint");
            world.forget_rules();
            assert!(matches!(moved(), Ok(Outcome::Done(0))));
            assert!(far.to_vec(0..LEN).unwrap() == near.to_vec(0..LEN).unwrap());
            assert_eq!(&*key.path(), "other:copy/copy");
            assert_eq!(world.faults(), Vec::<String>::new());
        }
    }

    /// A part of the transfer may have been written, so the post must not return `Again`.
    fn large_transfer_without_room_midway_continues_later() {
        for slot in [Slot::Put, Slot::Get] {
            let (world, [at_a, at_b]) = two_contexts();
            let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
            let far = at_b.register_with(bytes(LEN), Access::ALL).unwrap();
            let near = at_a.register_transient(vec![3; LEN]).unwrap();
            let (ab, key) = met(&a, &b, &far);
            world.rule(Rule { skip: 1, ..Rule::next(slot, Act::Refuse(Status::Again)).on("copy") });
            let moved = match slot {
                Slot::Put => ab.put(&near, 0..LEN, &key, 0),
                _ => ab.get(&near, 0..LEN, &key, 0),
            };
            // The transfer is retried inline, or after the backlog.
            assert_eq!(a.finish(moved.unwrap()), Ok(0));
            assert!(world.was_refused(slot) && world.on_the_way(ASSIST).is_some());
            assert!(far.to_vec(0..LEN).unwrap() == near.to_vec(0..LEN).unwrap());
            assert_eq!(&*key.path(), "other:copy/copy");
            assert_eq!(world.faults(), Vec::<String>::new());
        }
    }

    fn helpers_grant_covers_one_transfer_and_ends_with_it() {
        let (world, [at_a, at_b]) = two_contexts();
        let (a, b) = (at_a.worker().unwrap(), at_b.worker().unwrap());
        let far = at_b.register_with(vec![0; LEN], Access::ALL).unwrap();
        let near = at_a.register_with(vec![3; FROM + LEN], Access::ALL).unwrap();
        let (ab, key) = met(&a, &b, &far);
        let ba = b.connect(&a.address().unwrap()).unwrap();
        let back = pending(ba.flush_messages());
        while b.test(&back).is_none() {
            let _ = a.progress() + b.progress();
        }
        let put = ab.put(&near, FROM..FROM + LEN, &key, 0);
        assert!(matches!(put, Ok(Outcome::Done(0))), "nobody helps: {put:?}");
        let asked = world.on_the_way(ASSIST).expect("it asked for help");
        let blob = |at: usize| at + 2..at + 2 + usize::from(u16::from_le_bytes([asked[at], asked[at + 1]]));
        let given = &asked[blob(blob(45).end)];
        assert_ne!(given, near.remote_key().unwrap());
        let given = ba.import_key(given).unwrap();
        assert_eq!(given.len(), LEN as u64);
        let put = ba.put_bytes(&[1; 8], &given, 0).unwrap_err();
        assert_eq!(put.status(), Status::KeyRejected, "it may be read, not written");
        let room = at_b.register_transient(vec![0; 8]).unwrap();
        let ended = match ba.get(&room, 0..8, &given, 0).map_err(|error| error.status()) {
            Ok(Outcome::Pending(got)) => loop {
                let _ = a.progress() + b.progress();
                if let Some(ended) = b.test(&got) {
                    break ended.map_err(|error| error.status());
                }
            },
            Ok(Outcome::Done(n)) => Ok(n),
            Err(status) => Err(status),
        };
        assert_eq!(ended, Err(Status::KeyRejected));
        assert_eq!(world.faults(), Vec::<String>::new());
    }
}
