//! Answers: what goes back over the line that a question came by.

use super::{Line, State, end};
use crate::endpoint::{Inner as EndpointInner, Lines, Owner, Route};
use crate::wireup::ConnectionKey;
use crate::worker::Inner;
use crate::{Error, Status};
use std::rc::Rc;

impl Inner {
    /// The endpoint whose messages go over this line and no other. It claims nothing: the line lives as long as it
    /// would without it.
    pub(in crate::worker) fn answers_over(
        self: &Rc<Self>,
        number: u64,
    ) -> Result<Rc<EndpointInner>, Error> {
        let (peer, way, forming) = {
            let lines = self.wiring.lines.borrow();
            let line = lines.get(&number).ok_or_else(|| Error::from_status(Status::Closed))?;
            match (&line.answers, &line.state) {
                (Some(answers), _) if answers.is_alive() => return Ok(answers.clone()),
                (_, State::Dead(error)) => return Err(error.clone()),
                (_, State::Forming) => (line.peer.clone(), line.way, line.key.clone()),
                (_, State::Ready) => (line.peer.clone(), line.way, None),
            }
        };
        if let Some(key) = forming {
            self.wiring.machine.borrow_mut().data_arrived(self.wiring.now(), &key);
            self.carry_out();
        }
        let answers = self.place_endpoint((*peer).clone(), Route::only(way), Owner::Line)?;
        let _ = self.wiring.by_user.borrow_mut().insert((answers.index, way.interface), number);
        let before = match self.wiring.lines.borrow_mut().get_mut(&number) {
            Some(line) => line.answers.replace(answers.clone()),
            None => None,
        };
        drop(before);
        Ok(answers)
    }

    /// The line is dead: nobody waits for what it would have carried.
    pub(super) fn end_answers(&self, number: u64) {
        let ended = self.wiring.lines.borrow_mut().get_mut(&number).map(|line| {
            let error = line.error();
            (line.answers.take(), error)
        });
        if let Some((answers, error)) = ended {
            end(answers, error);
        }
    }

    /// This endpoint of answers has failed.
    pub(in crate::worker) fn forget_answers(&self, answers: &EndpointInner) {
        for number in self.lines_of(answers) {
            self.end_answers(number);
            self.drop_unused(number);
        }
    }

    /// The worker is closed, and with it all its endpoints: lets go of its connections, and of what providers have there. Also
    /// of those that the application holds endpoints of: somebody may wait at their other end.
    pub(in crate::worker) fn drop_all_lines(&self) {
        if !self.shared.same_process() {
            return;
        }
        let formed: Vec<u64> = {
            let lines = self.wiring.lines.borrow();
            let formed = lines.iter().filter(|(_, line)| !matches!(line.state, State::Forming));
            formed.map(|(number, _)| *number).collect()
        };
        formed.into_iter().for_each(|number| self.drop_failed(number));
        let unused = |line: &Line| {
            !matches!(line.state, State::Forming)
                && line.users.iter().all(|user| user.strong_count() == 0)
        };
        let found: Vec<(u64, Option<ConnectionKey>)> = {
            let lines = self.wiring.lines.borrow();
            let unused = lines.iter().filter(|(_, line)| unused(line));
            unused.map(|(number, line)| (*number, line.key.clone())).collect()
        };
        for (number, key) in found {
            if let Some(key) = key {
                self.wiring.machine.borrow_mut().close(self.wiring.now(), &key);
                let _ = self.wiring.by_key.borrow_mut().remove(&key);
            }
            self.drop_line(number);
        }
    }

    /// Lets go of a dead line also where the application still holds endpoints that failed with it: somebody waits at its
    /// other end, and hears of it when it is closed.
    pub(in crate::worker) fn drop_failed(&self, number: u64) {
        let (users, interface) = match self.wiring.lines.borrow().get(&number) {
            Some(line) => (line.everybody(), line.way.interface),
            None => return,
        };
        for user in users.iter().filter(|user| user.leave_line(interface)) {
            let _ = self.wiring.by_user.borrow_mut().remove(&(user.index, interface));
            if let Some(line) = self.wiring.lines.borrow_mut().get_mut(&number) {
                line.users.retain(|known| known.as_ptr() != Rc::as_ptr(user));
            }
        }
        self.drop_unused(number);
    }

    /// Lets go of a dead line that no endpoint uses.
    pub(super) fn drop_unused(&self, number: u64) {
        let unused = self.wiring.lines.borrow().get(&number).is_some_and(|line| {
            matches!(line.state, State::Dead(_)) && line.users.iter().all(|u| u.strong_count() == 0)
        });
        if unused {
            self.drop_line(number);
        }
    }
}
