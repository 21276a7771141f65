//! Checks of a provider's attributes, tables and addresses.

use crate::case::Case;
use crate::load;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, succeeds};
use tieline_plugin_api::abi::{ABI_MINOR, Declared, ENTRY_SYMBOL, fixed_str};
use tieline_plugin_api::{caps, connects, memory_caps, note_flags, role};

pub(super) fn the_note_says_who_it_is(case: &Case) -> Checked {
    let note = load::note(&case.path).map_err(Stop::Fail)?;
    let note = tieline_host::check_note(Some(&note), None)
        .map_err(|(_, unfit)| fail("the note", unfit.expected, unfit.found))?;
    holds(
        note.min_core_minor <= note.abi_minor,
        "the least minor of the core",
        format!("at most the provider's own {}", note.abi_minor),
        note.min_core_minor,
    )?;
    let table = case.provider.ops.abi_minor;
    equal("the minor of the provider's table, as in its note", u32::from(note.abi_minor), table)?;
    let known = match note.abi_minor > ABI_MINOR {
        true => u16::MAX,
        false => note_flags::UNWIND | note_flags::RUST,
    };
    equal("flags of the note that its minor does not have", 0, note.flags & !known)
}

pub(super) fn the_entry_symbol_is_there(case: &Case) -> Checked {
    load::entry(&case.path).map(|_| ()).map_err(|why| fail("the entry symbol", ENTRY_SYMBOL, why))
}

pub(super) fn every_claimed_capability_has_its_slot(case: &Case) -> Checked {
    every_slot_is_there(case)?;
    let moves = caps::PUT | caps::GET | caps::ATOMICS;
    let tells =
        caps::AM_SHORT | caps::AM_PACKED | caps::AM_ZCOPY | caps::PUT_NOTIFY | caps::PEER_FAILURE;
    let late = case.attr.caps & moves != 0 && !case.has(caps::SYNCHRONOUS);
    if late || case.attr.caps & tells != 0 {
        let (what, why) = ("a module that brings events", "needs_poll: others are never polled");
        holds(case.has(caps::NEEDS_POLL), what, why, "that it does not claim it")?;
    }
    Ok(())
}

pub(super) fn every_slot_is_there(case: &Case) -> Checked {
    let tables = &case.provider.tables;
    let missing = tables
        .broken_promise(&case.attr)
        .or_else(|| tables.broken_domain_promise(&case.domain_attr));
    missing.map_or(Ok(()), |(promise, slot)| {
        Err(fail(format!("slot {slot}, which belongs to {promise}"), "a function", "none"))
    })
}

pub(super) fn names_and_limits_are_possible(case: &Case) -> Checked {
    for (what, name) in [("domain", &case.domain_attr.name[..]), ("module", &case.attr.name[..])] {
        let text = fixed_str(name)
            .ok_or_else(|| fail(format!("the {what}'s name"), "UTF-8", "other bytes"))?;
        holds(
            !text.is_empty() && text.len() < name.len(),
            format!("the {what}'s name"),
            "a terminated name",
            text,
        )?;
        equal(
            format!("bytes behind the {what}'s name"),
            true,
            name[text.len()..].iter().all(|&b| b == 0),
        )?;
    }
    let mut names: Vec<[u8; 32]> =
        succeeds("query_modules", case.domain.modules())?.iter().map(|m| m.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    equal("different module names", count, names.len())?;
    let attr = &case.attr;
    let roles = [role::DATA, role::CONNECTION_ONLY];
    holds(roles.contains(&attr.role), "the role", "DATA or CONNECTION_ONLY", attr.role)?;
    if case.is_connector() {
        let data = caps::AM_SHORT | caps::AM_PACKED | caps::AM_ZCOPY | caps::PUT | caps::GET;
        equal("what a connection-only module does with data", 0, attr.caps & data)?;
        holds(attr.max_datagram >= 1024, "max_datagram", "at least 1024", attr.max_datagram)?;
        holds(attr.reliable <= 1, "reliable", "0 or 1", attr.reliable)?;
        holds(attr.max_address_len > 0, "max_address_len", "more than 0", 0)?;
    } else {
        let ways = attr.connects & (connects::TO_INTERFACE | connects::TO_ENDPOINT);
        let one = ways.count_ones() == 1;
        holds(one, "connects", "either TO_INTERFACE or TO_ENDPOINT", attr.connects)?;
        let told = caps::AM_SHORT | caps::AM_PACKED | caps::AM_ZCOPY | caps::PUT_NOTIFY;
        if ways == connects::TO_INTERFACE && attr.caps & told != 0 {
            let len = attr.max_identity_len;
            holds(len >= 4096, "max_identity_len", "at least 4096", len)?;
        }
        if ways == connects::TO_ENDPOINT {
            let len = attr.max_endpoint_address_len;
            holds((1..=4096).contains(&len), "max_endpoint_address_len", "1 to 4096", len)?;
        }
    }
    let masks = [attr.atomic_post32, attr.atomic_post64, attr.atomic_fetch32, attr.atomic_fetch64];
    let atomics = masks.iter().fold(0, |all, mask| all | mask);
    // This suite ignores additions of a later minor, as a core of this minor does.
    if case.provider.ops.abi_minor <= u32::from(ABI_MINOR) {
        let known: u64 = caps::ALL.iter().map(|c| c.value).sum();
        equal("capabilities that the provider's minor does not have", 0, attr.caps & !known)?;
        equal("atomics that the provider's minor does not have", 0, atomics & !0xff)?;
        equal("what is reserved in the domain's record", 0, case.domain_attr.reserved)?;
        equal("what is reserved in the provider's table", 0, case.provider.ops.reserved)?;
    }
    let limits = [
        (caps::AM_SHORT, "max_short", attr.max_short, 8),
        (caps::AM_PACKED, "max_packed", attr.max_packed, 64),
        (caps::AM_ZCOPY, "max_zcopy", attr.max_zcopy, 1),
        (caps::AM_ZCOPY | caps::PUT | caps::GET, "max_iov", attr.max_iov as usize, 1),
    ];
    for (capability, name, limit, least) in limits {
        if attr.caps & capability != 0 {
            holds(limit >= least, name, format!("at least {least}"), limit)?;
        }
    }
    let claimed = case.has(caps::ATOMICS);
    holds(!claimed || atomics != 0, "masks of a module with atomics", "at least one bit", "none")?;
    for (class, cost) in attr.cost.iter().enumerate() {
        let sane = |n: f64| n.is_finite() && n >= 0.0;
        let fine = sane(cost.overhead_ns) && sane(cost.latency_ns) && sane(cost.bytes_per_second);
        holds(
            fine,
            format!("cost of class {class}"),
            "finite numbers, not negative",
            format!("{cost:?}"),
        )?;
    }
    holds(attr.max_address_len <= 4096, "max_address_len", "at most 4096", attr.max_address_len)?;
    if attr.connects & connects::TO_INTERFACE != 0 {
        holds(attr.max_address_len > 0, "max_address_len", "more than 0", 0)?;
    }
    if attr.caps & (caps::PUT | caps::GET | caps::ATOMICS) != 0 {
        let len = case.domain_attr.max_key_len;
        holds(len > 0 && len <= 4096, "max_key_len", "1 to 4096", len)?;
        let ways = memory_caps::ALLOC | memory_caps::REGISTER;
        holds(
            case.domain_attr.caps & ways != 0,
            "the domain's memory",
            "alloc or register",
            "neither",
        )?;
    }
    Ok(())
}

pub(super) fn configuration_variables_carry_the_prefix(_: &Case) -> Checked {
    equal("a variable that config_get reads without a declaration", None, load::undeclared())?;
    for Declared { name, doc, .. } in load::declared() {
        let shape = name.starts_with("TIELINE_")
            && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        holds(shape, "a variable's name", "TIELINE_<PROVIDER>_...", &name)?;
        holds(!doc.is_empty(), format!("what {name} does"), "a sentence", "nothing")?;
    }
    Ok(())
}

pub(super) fn an_address_fits_its_stated_length(case: &Case) -> Checked {
    let interface = case.interface()?;
    let whole = case.address_of(&interface)?;
    same(&whole, &case.address_of(&interface)?)?;
    for capacity in [0, 1, whole.len().saturating_sub(1), whole.len()] {
        let (len, overrun) = interface.address_into(capacity);
        equal(format!("the address's length with room for {capacity}"), whole.len() as i64, len)?;
        holds(
            !overrun,
            format!("an address into {capacity} bytes"),
            "no byte beyond them",
            "some",
        )?;
    }
    Ok(())
}

fn same(first: &[u8], second: &[u8]) -> Checked {
    crate::report::same_bytes("the address, asked for again", first, second)
}

pub(super) fn bytes_that_are_no_address_do_no_harm(case: &Case) -> Checked {
    let interface = case.interface()?;
    let good = case.address_of(&interface)?;
    if case.attr.connects & connects::TO_INTERFACE != 0 {
        for len in 0..good.len() {
            let answer = interface.reachable(&good[..len]);
            let what = format!("the first {len} bytes of an address");
            holds(answer.is_err(), what, "unreachable", "reachable")?;
        }
    }
    let mut random = Random(10);
    let mut suspects: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
    suspects.extend((0..150).map(|n| random.bytes(n)));
    suspects.extend((0..good.len()).map(|at| {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        flipped
    }));
    suspects.extend((0..100).map(|_| {
        let mut noisy = good.clone();
        for _ in 0..4 {
            let at = random.below(noisy.len());
            noisy[at] = random.next() as u8;
        }
        noisy
    }));
    suspects.push([good.as_slice(), &[0; 17]].concat());
    suspects.push(vec![0xff; 4096]);
    for address in suspects {
        if let Err(failure) = interface.reachable(&address) {
            holds(
                !failure.text.is_empty(),
                "the reason of a refusal",
                "words",
                failure.status.constant(),
            )?;
        }
        // A connection to an invalid address may be refused immediately or fail later, without further harm.
        if let Ok(endpoint) = interface.connect(&address, &case.identity(), 3) {
            if case.has(caps::AM_SHORT) {
                let _ = endpoint.am_short(1, 1, b"anybody?");
            }
            drop(endpoint);
        }
        let _ = succeeds("poll", interface.poll(16))?;
    }
    // The interface still works.
    case.self_desk().map(|_| ()).or_else(|stop| match stop {
        Stop::Skip(_) => Ok(()),
        failed => Err(failed),
    })
}

pub(super) fn opening_and_closing_leaves_no_descriptor_open(case: &Case) -> Checked {
    let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    // The first desk may open objects that stay for the life of the process.
    drop(case.desk()?);
    let before = open();
    for _ in 0..30 {
        let mut desk = case.desk()?;
        if case.has(caps::AM_SHORT) {
            desk.send(1, 1, b"x")?;
            let _ = desk.receive()?;
        }
    }
    let after = open();
    holds(after <= before + 2, "open descriptors after 30 interfaces", before, after)
}
