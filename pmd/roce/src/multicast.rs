//! Multicast groups and their members.

use crate::error::ResourceError;
use crate::ids::{Gid, Qpn};
use crate::limits::MAX_GROUPS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Membership {
    group: Gid,
    qpn: Qpn,
}

/// Who is a member of what.
#[derive(Debug)]
pub(crate) struct Groups(Vec<Membership>);

impl Groups {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    /// Makes a datagram queue pair a member; a second time changes nothing.
    pub(crate) fn attach(&mut self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        if !group.is_multicast() {
            let (field, need) = ("mgid", "must be a multicast address");
            return Err(ResourceError::Value { field, value: 0, need });
        }
        let membership = Membership { group, qpn };
        if self.0.contains(&membership) {
            return Ok(());
        }
        let is_new = !self.0.iter().any(|known| known.group == group);
        if is_new && self.groups() == MAX_GROUPS {
            return Err(ResourceError::TooMany(MAX_GROUPS));
        }
        self.0.push(membership);
        Ok(())
    }

    pub(crate) fn detach(&mut self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        let membership = Membership { group, qpn };
        let at = self.0.iter().position(|known| *known == membership);
        self.0.remove(at.ok_or(ResourceError::NotFound)?);
        Ok(())
    }

    /// Groups that a queue pair is a member of.
    pub(crate) fn memberships(&self, qpn: Qpn) -> u32 {
        self.0.iter().map(|known| u32::from(known.qpn == qpn)).sum()
    }

    /// The `nth` membership's queue pair, if the membership is of `group`.
    pub(crate) fn member(&self, nth: usize, group: Gid) -> Option<Qpn> {
        self.0.get(nth).filter(|known| known.group == group).map(|known| known.qpn)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn groups(&self) -> usize {
        let seen_before = |at: usize| self.0[..at].iter().any(|m| m.group == self.0[at].group);
        (0..self.0.len()).filter(|at| !seen_before(*at)).count()
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    fn group(last: u8) -> Gid {
        Gid::from(Ipv4Addr::new(239, 0, 0, last))
    }

    #[test]
    fn a_second_attachment_changes_nothing() {
        let mut groups = Groups::new();
        for _ in 0..2 {
            groups.attach(Qpn::new(7), group(1)).unwrap();
        }
        assert_eq!((groups.memberships(Qpn::new(7)), groups.len()), (1, 1));
        groups.detach(Qpn::new(7), group(1)).unwrap();
        assert_eq!(groups.detach(Qpn::new(7), group(1)), Err(ResourceError::NotFound));
    }

    #[test]
    fn only_groups_and_only_so_many() {
        let mut groups = Groups::new();
        let unicast = Gid::from(Ipv4Addr::LOCALHOST);
        assert!(matches!(groups.attach(Qpn::new(7), unicast), Err(ResourceError::Value { .. })));
        for last in (0..=u8::MAX).take(MAX_GROUPS) {
            groups.attach(Qpn::new(7), group(last)).unwrap();
        }
        assert_eq!(groups.attach(Qpn::new(7), group(200)), Err(ResourceError::TooMany(MAX_GROUPS)));
        groups.attach(Qpn::new(8), group(3)).unwrap();
    }
}
