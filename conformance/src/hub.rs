//! One central interface and its peers, each connected with the central one in both directions.

use crate::case::{Case, Mailbox};
use crate::endpoint::Endpoint;
use crate::interface::{Interface, Received};
use crate::report::{Checked, Stop, equal, fail, holds, succeeds};
use crate::watch::Patience;
use tieline_plugin_api::Status;

/// The base of the cookies of the central interface's endpoints.
pub(crate) const OUT: u64 = 0xc0c1_c2c3_0000_c000;
const BACK: u64 = 0x5051_5253_0000_5000;

pub(crate) struct Spoke {
    /// The number of the interface, which its identity carries.
    pub(crate) number: u32,
    /// The interface; `None` if an interface of the module reaches only itself.
    pub(crate) mailbox: Option<Mailbox>,
    /// The endpoint from the central interface to this one.
    pub(crate) out: Endpoint,
    /// The endpoint from this interface to the central one; `None` if `out` leads to the central interface itself.
    pub(crate) back: Option<Endpoint>,
}

pub(crate) struct Hub<'a> {
    case: &'a Case,
    pub(crate) middle: Mailbox,
    pub(crate) spokes: Vec<Spoke>,
    next: u32,
}

impl Drop for Hub<'_> {
    fn drop(&mut self) {
        self.spokes.clear(); // endpoints are dropped before their targets
    }
}

impl<'a> Hub<'a> {
    pub(crate) fn of(case: &'a Case, spokes: usize) -> Result<Hub<'a>, Stop> {
        let middle = Mailbox::new(case.interface()?);
        let mut hub = Hub { case, middle, spokes: Vec::new(), next: 0 };
        for _ in 0..spokes {
            hub.add()?;
        }
        Ok(hub)
    }

    pub(crate) fn add(&mut self) -> Checked {
        let case = self.case;
        let number = self.next;
        self.next += 1;
        let (here, far) = (self.middle.interface.clone(), case.interface()?);
        let identity = identity(case, number);
        let (out_cookie, back_cookie) = (OUT + u64::from(number), BACK + u64::from(number));
        if case.connects_to_endpoint() {
            let mut mailbox = Mailbox::new(far.clone());
            self.middle.cookies.push(out_cookie);
            mailbox.cookies.push(back_cookie);
            let out = self.connect(&here, &[], &[], out_cookie, None)?;
            let back = self.connect(&far, &[], &[], back_cookie, Some(&mut mailbox))?;
            let capacity = case.attr.max_endpoint_address_len as usize;
            let there = succeeds("the endpoint's address", back.address(capacity))?;
            succeeds("connecting to the endpoint", out.connect(&there))?;
            let there = succeeds("the endpoint's address", out.address(capacity))?;
            succeeds("connecting to the endpoint", back.connect(&there))?;
            self.spokes.push(Spoke { number, mailbox: Some(mailbox), out, back: Some(back) });
            return Ok(());
        }
        let (own, there) = (case.address_of(&here)?, case.address_of(&far)?);
        if here.reachable(&there).is_err() {
            if let Err(why) = here.reachable(&own) {
                return Err(Stop::Skip(format!("its own process is not reachable: {why}")));
            }
            let out = self.connect(&here, &own, &identity, out_cookie, None)?;
            self.spokes.push(Spoke { number, mailbox: None, out, back: None });
            return Ok(());
        }
        let mut mailbox = Mailbox::new(far.clone());
        let out = self.connect(&here, &there, &identity, out_cookie, Some(&mut mailbox))?;
        let back = self.connect(&far, &own, &identity, back_cookie, Some(&mut mailbox))?;
        self.spokes.push(Spoke { number, mailbox: Some(mailbox), out, back: Some(back) });
        Ok(())
    }

    fn connect(
        &mut self,
        from: &Interface,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
        mut with: Option<&mut Mailbox>,
    ) -> Result<Endpoint, Stop> {
        let patience = Patience::new();
        loop {
            match from.connect(address, identity, cookie) {
                Err(failure) if failure.status == Status::Again => {
                    self.turn()?;
                    if let Some(mailbox) = &mut with {
                        let _ = mailbox.turn()?;
                    }
                    patience.still("connect", "success", "AGAIN for ever")?;
                }
                other => return succeeds("connect", other),
            }
        }
    }

    pub(crate) fn turn(&mut self) -> Checked {
        let mut any = self.middle.turn()?;
        for mailbox in self.spokes.iter_mut().filter_map(|spoke| spoke.mailbox.as_mut()) {
            any |= mailbox.turn()?;
        }
        if !any {
            std::thread::yield_now();
        }
        Ok(())
    }

    pub(crate) fn send(&mut self, at: usize, out: bool, header: u64, data: &[u8]) -> Checked {
        let spoke = &self.spokes[at];
        let endpoint = match &spoke.back {
            Some(back) if !out => back.clone(),
            _ => spoke.out.clone(),
        };
        let patience = Patience::new();
        loop {
            match endpoint.am_short(spoke_id(out), header, data) {
                Err(Status::Again) => {
                    self.turn()?;
                    patience.still(
                        "am_short",
                        "room while all sides are polled",
                        "AGAIN for ever",
                    )?;
                }
                other => return succeeds("am_short", other).map(drop),
            }
        }
    }

    /// Returns the next message that arrived at the interface at `at`, or at the central one.
    pub(crate) fn receive(&mut self, at: Option<usize>) -> Result<Received, Stop> {
        let patience = Patience::new();
        loop {
            let mailbox = match at.and_then(|at| self.spokes[at].mailbox.as_mut()) {
                Some(mailbox) => mailbox,
                None => &mut self.middle,
            };
            if let Some(message) = mailbox.messages.pop_front() {
                return Ok(message);
            }
            self.turn()?;
            let what = "a message that was sent to one of several peers";
            patience.still(what, "its arrival", "nothing: did it go to another one?")?;
        }
    }

    pub(crate) fn reaches_others(&self) -> bool {
        self.spokes.iter().any(|spoke| spoke.mailbox.is_some())
    }

    pub(crate) fn is_from(&self, message: &Received, number: u32) -> Checked {
        if self.case.connects_to_endpoint() {
            let (expected, what) = (OUT + u64::from(number), "the peer of a message");
            return equal(
                format!("{what}: the cookie of the endpoint that received it"),
                expected,
                message.peer,
            );
        }
        let arrival = message.sender.map(|at| &self.middle.arrived[at]);
        let Some(arrival) = arrival else {
            return Err(fail("the sender of a message", "one that has arrived", message.peer));
        };
        let expected = identity(self.case, number);
        let what = format!("a message of peer {number}, which carries the number {}", message.peer);
        let found = match arrival.data.first_chunk() {
            Some(other) => format!("PEER_ARRIVED gave it to peer {}", u32::from_le_bytes(*other)),
            None => "another identity".to_string(),
        };
        holds(arrival.data == expected, what, "the number that means it", found)
    }
}

fn spoke_id(out: bool) -> u32 {
    if out { 21 } else { 22 }
}

fn identity(case: &Case, number: u32) -> Vec<u8> {
    let mut identity = number.to_le_bytes().to_vec();
    identity.resize(32, 0xc3);
    identity.truncate(case.attr.max_identity_len as usize);
    identity
}
