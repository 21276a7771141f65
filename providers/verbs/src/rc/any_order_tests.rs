//! A test of random sequences of posts, polls, revocations and failures: every accepted operation ends exactly once, and the
//! received messages are a gapless prefix of the sent ones.

use crate::RC;
use crate::double::world::{Faults, fault};
use crate::double::{Told, connect, piece, side};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tieline_plugin_api::abi::{KeyParams, RegisterParams};
use tieline_plugin_api::{Domain, Endpoint, Interface, Posting, RmaOp, Status, access, op_flags};

#[derive(Clone, Copy, Debug)]
enum Step {
    Send { len: usize },
    Put { words: usize },
    Get { words: usize },
    Flush,
    PollSender,
    PollReceiver,
    Stuck(bool),
    Refuse(bool),
    Revoke,
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..9000).prop_map(|len| Step::Send { len }),
        4 => (1usize..4096).prop_map(|words| Step::Put { words }),
        3 => (1usize..4096).prop_map(|words| Step::Get { words }),
        1 => Just(Step::Flush),
        6 => Just(Step::PollSender),
        6 => Just(Step::PollReceiver),
        2 => any::<bool>().prop_map(Step::Stuck),
        1 => any::<bool>().prop_map(Step::Refuse),
        1 => prop::sample::select(vec![Step::Revoke, Step::Cut, Step::PollSender, Step::PollReceiver]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn accepted_operations_end_exactly_once(steps in proptest::collection::vec(step(), 0..150)) {
        fault(|faults| *faults = Faults::default());
        let settings = [("TIELINE_VERBS_WINDOW", "4"), ("TIELINE_VERBS_TX_DEPTH", "16")];
        let (mut a, mut b) = (side(&settings), side(&settings));
        let (at_a, at_b) = connect(&mut a, &mut b);
        let (mut target, mut local) = (vec![0u64; 4096], vec![0u64; 4096]);
        let place = piece(&mut target);
        let region = b.domain.register(&RegisterParams::new(place.base, place.len, access::REMOTE_READ | access::REMOTE_WRITE));
        let mut region = Some(region.unwrap());
        let mut bytes = [0; 128];
        let len = b.domain.pack_key(region.as_ref().unwrap(), &KeyParams::empty(), &mut bytes).unwrap();
        let key = at_a.import_key(&bytes[..len]).unwrap();
        let (mut sent, mut pending, mut cookie) = (0u64, BTreeMap::new(), 0u64);
        let (mut refusing, mut harmed) = (false, false);
        for step in steps {
            cookie += 1;
            let posted = match step {
                Step::Send { len } => {
                    let posted = at_a.am_short(1, sent, &vec![sent as u8; len.min(8192)]);
                    sent += u64::from(posted.is_ok());
                    posted
                }
                Step::Put { words } | Step::Get { words } => {
                    let iov = [piece(&mut local[..words])];
                    let op = RmaOp { iov: &iov, len: iov[0].len, offset: 0, cookie, flags: op_flags::REMOTE_COMPLETION };
                    if matches!(step, Step::Put { .. }) { at_a.put(&key, &op) } else { at_a.get(&key, &op) }
                }
                Step::Flush => at_a.flush(cookie),
                Step::PollSender => { a.poll(); continue }
                Step::PollReceiver => { b.poll(); continue }
                Step::Stuck(stuck) => { fault(|faults| faults.stuck = stuck); continue }
                Step::Refuse(refuse) => {
                    refusing = refuse;
                    fault(|faults| faults.refuse_sends = if refuse { libc::ENOMEM } else { 0 });
                    continue
                }
                Step::Revoke => {
                    if let Some(region) = region.take() { b.domain.deregister(region).unwrap() }
                    harmed = true;
                    continue
                }
                Step::Cut => { fault(|faults| faults.cut = true); harmed = true; continue }
            };
            match posted {
                Ok(Posting::Pending) => prop_assert_eq!(pending.insert(cookie, 0), None),
                Ok(Posting::Done) | Err(Status::Again) => {}
                Err(status) => prop_assert!(harmed, "{status:?} although nothing was done to it, refusing {refusing}"),
            }
        }
        fault(|faults| (faults.stuck, faults.refuse_sends) = (false, 0));
        for _ in 0..400 {
            a.poll();
            b.poll();
        }
        for (cookie, result) in &a.told.ended {
            let times = pending.get_mut(cookie);
            prop_assert!(times.is_some(), "{cookie} ended and was never accepted");
            *times.unwrap() += 1;
            prop_assert!(result.is_ok() || harmed, "{cookie}: {result:?}");
        }
        prop_assert!(pending.values().all(|times| *times == 1), "{pending:?}");
        let arrived: Vec<u64> = b.told.messages.iter().map(|(header, _)| *header).collect();
        prop_assert_eq!(&arrived, &(0..arrived.len() as u64).collect::<Vec<_>>());
        prop_assert!(b.told.messages.iter().all(|(header, bytes)| bytes.iter().all(|b| *b == *header as u8)));
        prop_assert!(harmed || arrived.len() as u64 == sent, "{} of {sent}", arrived.len());
        prop_assert!(a.told.failed.len() <= 1 && (harmed || a.told.failed.is_empty()));
        drop((at_a, at_b));
        let Told { ended, .. } = std::mem::take(&mut a.told);
        a.poll();
        prop_assert!(a.told.ended.is_empty() && ended.len() == pending.len(), "nothing comes after the end");
        let address = a.interface.address();
        prop_assert!(a.domain.open_interface(RC, [1; 16]).unwrap().reachable(&address).is_ok());
    }
}
