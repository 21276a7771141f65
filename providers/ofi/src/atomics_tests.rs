//! Atomics over a library that tests play.

use crate::abi::*;
use crate::atomics::{Masks, applied};
use crate::config::Settings;
use crate::double::world::{Atomics, Manners, manners, world};
use crate::double::{Side, domain, settings, until};
use crate::memory::Region;
use crate::{OfiEndpoint, RemoteKey};
use tieline_plugin_api::abi::{Atomic, ModuleAttr};
use tieline_plugin_api::{Domain, Endpoint, Posted, Revoked, Status, atomic_op, caps, op_flags};

#[repr(align(8))]
struct Words([u8; 64]);

fn begin(new: Manners) {
    manners(|manners| *manners = new);
}

/// One device, which does its atomics itself.
fn device(atomics: Atomics) -> Manners {
    Manners { provider: c"cxi", atomics, ..Manners::default() }
}

fn atomic(op: u32, width: u32, offset: u64, operand: u64, compare: u64, fetch: bool) -> Atomic {
    Atomic {
        op,
        width,
        key: core::ptr::null_mut(),
        offset,
        operand,
        compare,
        result: core::ptr::null_mut(),
        cookie: 7,
        flags: if fetch { op_flags::FETCH } else { 0 },
    }
}

fn module(settings: &Settings) -> ModuleAttr {
    domain(settings).unwrap().modules().remove(0)
}

fn claims(attr: &ModuleAttr) -> bool {
    attr.caps & caps::ATOMICS != 0
}

/// Two sides and a key to memory of the far one.
struct Pair {
    near: Side,
    far: Side,
    endpoint: OfiEndpoint,
    key: RemoteKey,
    region: Region,
}

fn pair(memory: &mut [u8]) -> Pair {
    let settings = settings();
    let (mut near, mut far) = (Side::new(&settings), Side::new(&settings));
    let region = far.region(memory);
    let packed = far.packed(&region);
    let endpoint = near.connected(&mut far, 1);
    let key = endpoint.import_key(&packed).unwrap();
    Pair { near, far, endpoint, key, region }
}

impl Pair {
    fn post(&self, op: &Atomic) -> Posted {
        self.endpoint.atomic(&self.key, op, &mut 0)
    }

    /// How it ended, and what it has fetched.
    fn run(&mut self, op: &Atomic) -> Result<u64, Status> {
        let _ = self.post(op)?;
        let (near, far) = (&mut self.near, &mut self.far);
        until(near, far, |near, _| !near.told.ended.is_empty());
        let (cookie, ended) = near.told.ended.remove(0);
        assert_eq!(cookie, 7);
        let value = near.told.values.remove(0);
        ended.map(|()| value)
    }
}

fn word(memory: &[u8]) -> u64 {
    u64::from_ne_bytes(*memory.first_chunk().unwrap())
}

#[test]
fn every_atomic_does_what_its_name_says_in_every_way_of_registration() {
    for mr_mode in [0, FI_MR_VIRT_ADDR, FI_MR_LOCAL | FI_MR_PROV_KEY, FI_MR_ENDPOINT | FI_MR_LOCAL]
    {
        begin(Manners { mr_mode, ..device(Atomics::Kept) });
        let mut memory = Words([0; 64]);
        let mut pair = pair(&mut memory.0);
        for (op, width, fetch) in Masks::each() {
            let (old, operand) = (0x8000_0001_f000_0002, 0xffff_fffe_7000_0003);
            for compare in [old, 5] {
                memory.0[16..24].copy_from_slice(&u64::to_ne_bytes(old));
                let fetched = pair.run(&atomic(op, width, 16, operand, compare, fetch));
                let narrow = if width == 4 { old & u64::from(u32::MAX) } else { old };
                assert_eq!(fetched, Ok(if fetch { narrow } else { 0 }), "{op} of {width}");
                let mut after = old.to_ne_bytes();
                let new = applied(op, width, old, operand, compare);
                let len = width as usize;
                after[..len].copy_from_slice(&crate::atomics::bytes(new, width));
                assert_eq!(memory.0[16..24], after, "{op} of {width} against {compare:#x}");
            }
        }
        drop(pair);
        assert_eq!(world(|world| world.complaints.clone()), [""; 0], "{mr_mode:#x}");
    }
}

#[test]
fn a_module_with_atomics_says_that_they_are_a_devices_and_which() {
    begin(device(Atomics::Kept));
    let attr = module(&settings());
    assert!(claims(&attr) && attr.caps & caps::DEVICE_ATOMICS != 0);
    let masks = [attr.atomic_post32, attr.atomic_post64, attr.atomic_fetch32, attr.atomic_fetch64];
    assert_eq!(masks, [0xff; 4]);
    begin(device(Atomics::None));
    let attr = module(&settings());
    assert!(!claims(&attr) && attr.caps & (caps::DEVICE_ATOMICS | caps::PUT) == caps::PUT);
}

#[test]
fn atomics_that_a_provider_claims_and_does_not_do_are_found_out_and_not_used() {
    begin(device(Atomics::FetchesRefused));
    let opened = domain(&settings()).unwrap();
    let attr = opened.modules().remove(0);
    let fetching = 1 << atomic_op::COMPARE_SWAP;
    assert_eq!((attr.atomic_fetch32, attr.atomic_fetch64), (fetching, fetching));
    assert_eq!((attr.atomic_post32, attr.atomic_post64), (0xff, 0xff));
    assert!(opened.broken_atomics.unwrap().starts_with("14 that it claims"), "seven of each width");
    begin(device(Atomics::TooWide));
    let attr = module(&settings());
    assert_eq!((attr.atomic_post32, attr.atomic_fetch32), (0, 0), "they write beside their place");
    assert_eq!((attr.atomic_post64, attr.atomic_fetch64), (0xff, 0xff));
    begin(device(Atomics::Forgotten));
    let opened = domain(&settings()).unwrap();
    let attr = opened.modules().remove(0);
    assert!(!claims(&attr) && attr.caps & caps::PUT != 0, "puts are another promise");
    assert!(opened.broken_promise.is_none() && opened.broken_atomics.is_some());
}

#[test]
fn atomics_are_asked_for_of_who_has_one_executor_and_where_they_cost_nothing_else() {
    for (provider, trust, claimed) in [
        (c"cxi", "", true),
        (c"sockets", "", true),
        (c"efa", "", false),
        (c"efa", "delivery, atomics", true),
        (c"played", "", false),
        (c"cxi;ofi_rxm", "", false),
    ] {
        begin(Manners { provider, atomics: Atomics::Kept, ..Manners::default() });
        let settings = Settings { trust: trust.into(), ..settings() };
        assert_eq!(claims(&module(&settings)), claimed, "{provider:?} {trust}");
    }
    begin(device(Atomics::Dear));
    let attr = module(&settings());
    assert!(!claims(&attr) && attr.max_put == 1 << 20, "with atomics it is another provider");
}

#[test]
fn trust_believes_what_is_counted_and_tries_nothing() {
    begin(device(Atomics::Forgotten));
    let believing = Settings { trust: "atomics".into(), ..settings() };
    assert_eq!(module(&believing).atomic_fetch64, 0xff);
    manners(|manners| manners.lies = true);
    let opened = domain(&believing).unwrap();
    assert!(opened.broken_promise.is_some(), "what was not named is tried");
    let all = Settings { trust: "delivery,atomics".into(), ..settings() };
    assert!(domain(&all).unwrap().broken_promise.is_none());
}

#[test]
fn an_atomic_that_is_none_or_leads_nowhere_is_refused_before_it_is_posted() {
    begin(device(Atomics::Kept));
    let mut memory = Words([0; 64]);
    let mut pair = pair(&mut memory.0);
    let add = |width, offset| atomic(atomic_op::ADD, width, offset, 1, 0, true);
    for (op, refused) in [
        (atomic(99, 8, 0, 1, 0, true), Status::Unsupported),
        (add(2, 0), Status::Unsupported),
        (add(8, 4), Status::Misaligned),
        (add(4, 2), Status::Misaligned),
        (add(8, 64), Status::OutOfRange),
        (add(8, u64::MAX - 7), Status::OutOfRange),
    ] {
        assert_eq!(pair.post(&op), Err(refused));
    }
    assert_eq!(pair.run(&add(8, 56)), Ok(0), "the last word is within");
    assert_eq!(word(&memory.0[56..]), 1);
}

#[test]
fn an_atomic_that_fails_says_so_and_fetches_nothing() {
    begin(device(Atomics::Kept));
    let mut memory = Words([9; 64]);
    let mut pair = pair(&mut memory.0);
    manners(|manners| manners.fail_transfer = Some(libc::EACCES));
    let add = atomic(atomic_op::ADD, 8, 0, 1, 0, true);
    assert_eq!(pair.run(&add), Err(Status::KeyRejected));
    assert_eq!(pair.run(&add), Ok(0x0909_0909_0909_0909), "the next one is no worse for it");
}

#[test]
fn a_region_is_not_given_back_while_an_atomic_leads_there() {
    begin(device(Atomics::Kept));
    let mut memory = Words([0; 64]);
    let mut pair = pair(&mut memory.0);
    manners(|manners| manners.hold_ways = true);
    let add = atomic(atomic_op::ADD, 8, 0, 1, 0, false);
    assert!(pair.post(&add).is_ok());
    assert_eq!(pair.far.domain.revoke(&pair.region), Revoked::Busy);
    for _ in 0..100 {
        pair.near.poll();
        pair.far.poll();
    }
    assert_eq!(pair.far.domain.revoke(&pair.region), Revoked::Busy);
    manners(|manners| manners.hold_ways = false);
    let Pair { near, far, region, .. } = &mut pair;
    until(near, far, |_, far| far.domain.revoke(region) == Revoked::Quiet);
    assert_eq!(pair.post(&add), Err(Status::KeyRejected));
    assert_eq!(word(&memory.0), 1);
}
