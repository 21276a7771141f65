//! Tests of atomics over the simulated library.

use crate::abi::*;
use crate::atomics::{Masks, applied};
use crate::config::Settings;
use crate::double::world::{Atomics, Manners, manners, world};
use crate::double::{Side, domain, settings, transfer, until};
use crate::memory::Region;
use crate::selftest::Tried;
use crate::{OfiEndpoint, RemoteKey};
use tieline_plugin_api::abi::{Atomic, ModuleAttr};
use tieline_plugin_api::{Domain, Endpoint, Posted, Revoked, Status, atomic_op, caps, op_flags};

#[repr(align(8))]
struct Words([u8; 64]);

fn begin(new: Manners) {
    manners(|manners| *manners = new);
}

/// Returns a device that executes its atomics itself.
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

fn masks(attr: &ModuleAttr) -> [u32; 4] {
    [attr.atomic_post32, attr.atomic_post64, attr.atomic_fetch32, attr.atomic_fetch64]
}

/// Returns settings that trust these claims.
fn trusting(trust: &str) -> Settings {
    Settings { trust: trust.into(), ..settings() }
}

fn claims(attr: &ModuleAttr) -> bool {
    attr.caps & caps::ATOMICS != 0
}

/// Two sides, and a key to the far side's memory.
struct Pair {
    near: Side,
    far: Side,
    endpoint: OfiEndpoint,
    key: RemoteKey,
    region: Region,
}

fn pair(memory: &mut [u8]) -> Pair {
    pair_with(&settings(), memory)
}

fn pair_with(settings: &Settings, memory: &mut [u8]) -> Pair {
    let (mut near, mut far) = (Side::new(settings), Side::new(settings));
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

    /// Runs an atomic and returns its result, with the value that it has fetched.
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
    assert_eq!(masks(&attr), [0xff; 4]);
    begin(device(Atomics::None));
    let attr = module(&settings());
    assert!(!claims(&attr) && attr.caps & (caps::DEVICE_ATOMICS | caps::PUT) == caps::PUT);
}

#[test]
fn claimed_but_missing_atomics_are_detected_and_not_used() {
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

/// Without a device's atomics, the masks must be empty. Otherwise the core would use the device's atomics and mix them with the
/// processor's.
#[test]
fn a_module_without_atomics_has_empty_masks_and_executes_none() {
    begin(device(Atomics::Forgotten));
    assert_eq!(masks(&module(&settings())), [0; 4]);
    begin(device(Atomics::SwapsRefused));
    let opened = domain(&settings()).unwrap();
    let attr = opened.modules().remove(0);
    assert_eq!((claims(&attr), masks(&attr)), (false, [0; 4]));
    assert!(opened.broken_atomics.unwrap().starts_with("4 that it claims"));
    let mut memory = Words([0; 64]);
    let pair = pair(&mut memory.0);
    for fetch in [false, true] {
        let add = atomic(atomic_op::ADD, 8, 0, 1, 0, fetch);
        assert_eq!(pair.post(&add), Err(Status::Unsupported));
    }
    begin(Manners { lies: true, ..device(Atomics::Kept) });
    let attr = module(&settings());
    assert_eq!((claims(&attr), masks(&attr)), (false, [0; 4]), "it has messages only");
}

#[test]
fn subtly_wrong_atomics_are_detected() {
    let one = |op: u32| 0xff & !(1 << op);
    let (max, untold) = (one(atomic_op::MAX), one(atomic_op::ADD));
    let signed = max & one(atomic_op::MIN);
    for (atomics, left) in [
        (Atomics::Signed, [signed; 4]),
        (Atomics::MaxForgotten, [max; 4]),
        (Atomics::KeepsResults, [0xff, 0xff, untold, untold]),
        (Atomics::SwapsAlways, [0; 4]),
        (Atomics::ReturnsCompared, [0; 4]),
    ] {
        begin(device(atomics));
        let opened = domain(&settings()).unwrap();
        assert_eq!(masks(&opened.modules().remove(0)), left, "{atomics:?}");
        assert!(opened.broken_atomics.is_some(), "{atomics:?}");
    }
}

#[test]
fn unwritten_atomic_result_does_not_leak_an_earlier_result() {
    begin(device(Atomics::KeepsResults));
    let mut memory = Words([7; 64]);
    let mut pair = pair_with(&trusting("atomics"), &mut memory.0);
    for _ in 0..100 {
        assert_ne!(pair.run(&atomic(atomic_op::SWAP, 8, 0, 5, 0, true)), Ok(0));
        assert_eq!(pair.run(&atomic(atomic_op::ADD, 8, 0, 1, 0, true)), Ok(0));
    }
}

#[test]
fn claims_trusted_by_one_context_are_still_tried_by_another() {
    let offer = |settings: &Settings| {
        let offers = crate::offers::offers(crate::load::library("").unwrap(), settings);
        offers.unwrap().used.remove(0)
    };
    begin(Manners { lies: true, ..device(Atomics::Forgotten) });
    let tried = Tried::new();
    let found = |trust: &str| tried.found(&offer(&trusting(trust)), &trusting(trust));
    let believed = found("delivery,atomics");
    assert!(believed.lies.is_none() && believed.atomics.are_enough());
    let all_tried = found("");
    assert!(all_tried.lies.is_some() && !all_tried.atomics.are_enough());
    assert!(found("delivery").lies.is_none());
    assert!(found("atomics").lies.is_some());
    // Each combination is tried once.
    manners(|manners| manners.lies = false);
    assert!(found("").lies.is_some() && found("delivery,atomics").lies.is_none());
    // The result for a device whose atomics were not requested is not reused once they are requested.
    begin(Manners { provider: c"efa", ..device(Atomics::Kept) });
    let tried = Tried::new();
    let found = |trust: &str| tried.found(&offer(&trusting(trust)), &trusting(trust));
    assert!(!found("").atomics.are_enough());
    assert!(found("atomics").atomics.are_enough());
}

#[test]
fn timed_out_trial_is_repeated_and_wrong_result_is_final() {
    let found_by = |tried: &Tried| {
        let offers = crate::offers::offers(crate::load::library("").unwrap(), &settings());
        tried.found(&offers.unwrap().used[0], &settings())
    };
    begin(device(Atomics::Kept));
    let tried = Tried::new();
    manners(|manners| manners.fail_transfer = Some(libc::EIO));
    let once = found_by(&tried);
    assert!(once.lies.is_some() && !once.atomics.are_enough());
    let again = found_by(&tried);
    assert!(again.lies.is_none() && again.atomics.are_enough(), "{:?}", again.lies);
    // A success is final, and after three failures the device is not tried again.
    manners(|manners| manners.fail_transfer = Some(libc::EIO));
    assert!(found_by(&tried).lies.is_none());
    for (times, left_alone) in [(2, false), (3, true)] {
        let tried = Tried::new();
        for _ in 0..times {
            manners(|manners| manners.fail_transfer = Some(libc::EIO));
            assert!(found_by(&tried).lies.is_some());
        }
        manners(|manners| manners.fail_transfer = None);
        assert_eq!(found_by(&tried).lies.is_some(), left_alone, "behind {times} trials");
    }
    begin(Manners { lies: true, ..device(Atomics::Kept) });
    let tried = Tried::new();
    assert!(found_by(&tried).lies.is_some());
    manners(|manners| manners.lies = false);
    assert!(found_by(&tried).lies.is_some(), "what lies once is not believed");
}

#[test]
fn memory_of_a_trial_whose_registration_does_not_end_is_kept() {
    begin(device(Atomics::Kept));
    manners(|manners| manners.keeps_registrations = Some(libc::EBUSY));
    assert!(domain(&settings()).is_ok());
    assert_eq!(world(|world| world.complaints.clone()), [""; 0]);
}

#[test]
fn provider_without_atomic_completions_is_tried_once_and_memory_retained() {
    for stays_open in [false, true] {
        begin(Manners { hold_ways: true, stays_open, ..device(Atomics::Kept) });
        // The library accepts few operations at the same time.
        let few = Settings { queue: 16, ..trusting("delivery") };
        let opened = domain(&few).unwrap();
        let why = opened.broken_atomics.clone().unwrap();
        assert!(why.starts_with("it does not take all atomics"), "{why}");
        assert_eq!(masks(&opened.modules().remove(0)), [0; 4]);
        assert_eq!(world(|world| world.complaints.clone()), [""; 0]);
        let lead_on = world(|world| world.ends.iter().any(|end| !end.ways.is_empty()));
        assert_eq!(lead_on, stays_open, "what the library has kept leads on");
    }
}

#[test]
fn trusting_every_claim_opens_a_single_endpoint() {
    begin(device(Atomics::Kept));
    let believing = trusting("delivery,atomics");
    assert_eq!(masks(&module(&believing)), [0xff; 4]);
    assert_eq!(world(|world| world.ends.len()), 1);
}

#[test]
fn a_question_about_atomics_that_fails_takes_no_provider_away() {
    begin(device(Atomics::Unanswered));
    let attr = module(&settings());
    assert!(!claims(&attr) && attr.caps & caps::PUT != 0);
    let offers = crate::offers::offers(crate::load::library("").unwrap(), &settings()).unwrap();
    assert!(offers.left_out()[0].contains("its atomics alone: fi_getinfo"));
}

#[test]
fn refused_atomic_is_unsupported_and_endpoint_survives() {
    begin(device(Atomics::FetchesRefused));
    let mut memory = Words([0; 64]);
    let mut pair = pair_with(&trusting("atomics"), &mut memory.0);
    let fetching = atomic(atomic_op::ADD, 8, 0, 1, 0, true);
    assert_eq!(pair.post(&fetching), Err(Status::Unsupported));
    assert_eq!(pair.run(&atomic(atomic_op::ADD, 8, 0, 1, 0, false)), Ok(0));
    manners(|manners| manners.fail_transfer = Some(libc::EKEYREJECTED));
    let refused = pair.run(&atomic(atomic_op::ADD, 8, 0, 1, 0, false));
    assert_eq!(refused, Err(Status::KeyRejected));
}

/// If a transfer's address begins at 0, only the owner knows the alignment of its words.
#[test]
fn misaligned_atomic_is_refused_in_every_registration_mode() {
    for mr_mode in [0, FI_MR_VIRT_ADDR, FI_MR_ENDPOINT | FI_MR_LOCAL] {
        begin(Manners { mr_mode, ..device(Atomics::Kept) });
        let mut memory = Words([0; 64]);
        let mut pair = pair(&mut memory.0[4..]);
        let add = |width, offset| atomic(atomic_op::ADD, width, offset, 1, 0, true);
        assert_eq!(pair.post(&add(8, 0)), Err(Status::Misaligned), "{mr_mode:#x}");
        assert_eq!(pair.post(&add(8, 4)), Err(Status::Misaligned), "an offset that is not, either");
        assert_eq!(pair.run(&add(4, 0)), Ok(0), "{mr_mode:#x}");
        assert_eq!(pair.run(&add(8, 8)), Err(Status::Misaligned), "{mr_mode:#x}");
    }
}

/// A put may use another route. An atomic may not, because its key determines its executor.
#[test]
fn atomic_with_key_older_than_interface_is_unsupported() {
    begin(Manners { mr_mode: FI_MR_ENDPOINT, ..device(Atomics::Kept) });
    let mut memory = Words([0; 64]);
    let (mut near, mut far) = (Side::new(&settings()), Side::new(&settings()));
    let region = far.region(&mut memory.0);
    let packed = far.packed(&region);
    let later = far.domain.open_interface(crate::RDM, [0; 16]).unwrap();
    let first = core::mem::replace(&mut far.interface, later);
    let endpoint = near.connected(&mut far, 1);
    let key = endpoint.import_key(&packed).unwrap();
    let mut here = [0; 8];
    assert_eq!(transfer(&endpoint, true, &key, &mut here, 0, 1), Err(Status::Declined));
    let add = atomic(atomic_op::ADD, 8, 0, 1, 0, true);
    assert_eq!(endpoint.atomic(&key, &add, &mut 0), Err(Status::Unsupported));
    drop(first);
}

#[test]
fn atomics_are_requested_only_with_one_executor_and_no_other_cost() {
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
    for atomics in [Atomics::Dear, Atomics::Narrow] {
        begin(device(atomics));
        let attr = module(&settings());
        assert!(!claims(&attr) && attr.max_put == 1 << 20, "with atomics it is another provider");
    }
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
