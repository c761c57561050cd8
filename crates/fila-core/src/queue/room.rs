//! The room of a shared pool on one level of a path: of the queue, or of a group in it.

use drr::Pool;

/// The room that the keys and groups of one level share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pool: Pool,
    /// How much more is free on this level after one departure from the path: the pool of a group grows as well, by three
    /// times what becomes free above it.
    per_departure: u64,
}

/// A group or a key, which may hold its part of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartHolder {
    Group(u32),
    /// The key of this lane.
    Key(u32),
}

/// Why a key or group takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoomLeft {
    /// It holds as much as an operator lets it.
    Full {
        max: u64,
    },
    OverPart(Excess),
}

/// A key or group that holds its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess {
    pub(super) held: u64,
    pub(super) part: u64,
    /// How many have to leave until it may take one more.
    pub(super) departures: u64,
}

impl Room {
    pub(super) const fn of_queue(pool: Pool) -> Self {
        Self {
            pool,
            per_departure: 1,
        }
    }

    /// Lets a key or group that holds `held` take one more, and returns the room of its members. With `max` that is what it
    /// may hold, in place of its part.
    ///
    /// # Errors
    /// If it holds that much.
    pub(super) fn enter(self, held: u64, max: Option<u64>) -> Result<Self, NoRoomLeft> {
        match max {
            None => self.share(held).map_err(NoRoomLeft::OverPart),
            Some(max) if held >= max => Err(NoRoomLeft::Full { max }),
            Some(max) => Ok(Self::of_queue(Pool {
                capacity: max,
                used: held,
            })),
        }
    }

    /// Does the same where only parts count.
    ///
    /// # Errors
    /// If it holds its part.
    pub(super) fn share(self, held: u64) -> Result<Self, Excess> {
        let part = self.pool.part();
        let growth = Pool::PART_PER_FREE
            .saturating_mul(self.per_departure)
            .saturating_add(1);
        if self.pool.admits(held, 1) {
            let pool = Pool {
                capacity: part,
                used: held,
            };
            return Ok(Self {
                pool,
                per_departure: growth,
            });
        }
        let missing = held.saturating_add(1).saturating_sub(part);
        let departures = missing.div_ceil(growth).max(1);
        Err(Excess {
            held,
            part,
            departures,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CAPACITY: u64 = 4000;

    /// Groups of members, and what each member holds.
    #[derive(Debug)]
    struct World(Vec<Vec<u64>>);

    impl World {
        fn room(&self, group: usize) -> Result<Room, Excess> {
            let used = self.0.iter().flatten().sum();
            let pool = Pool {
                capacity: CAPACITY,
                used,
            };
            Room::of_queue(pool).share(self.0[group].iter().sum())
        }

        fn try_add(&mut self, group: usize, member: usize) -> Result<(), Excess> {
            self.room(group)?.share(self.0[group][member])?;
            self.0[group][member] += 1;
            Ok(())
        }

        /// Lets these members take turns until none of them is admitted.
        fn fill(&mut self, group: usize, members: std::ops::Range<usize>) {
            while members
                .clone()
                .filter(|&it| self.try_add(group, it).is_ok())
                .count()
                > 0
            {}
        }

        fn held(&self, group: usize) -> u64 {
            self.0[group].iter().sum()
        }
    }

    #[test]
    fn a_group_of_any_size_holds_no_more_than_a_key_alone() {
        let mut pool = Pool {
            capacity: CAPACITY,
            used: 0,
        };
        while Room::of_queue(pool).share(pool.used).is_ok() {
            pool.used += 1;
        }
        for members in [1, 2, 10, 1000] {
            let mut world = World(vec![vec![0; members]]);
            world.fill(0, 0..members);
            assert!(world.held(0) <= pool.used, "{members} members");
            // The more members, the closer they come to it.
            let least = pool.used * (12 * members as u64) / (12 * members as u64 + 1) - 4;
            assert!(world.held(0) >= least, "{members}: {}", world.held(0));
        }
    }

    #[test]
    fn members_that_flood_leave_room_to_another_in_their_group_and_to_other_groups() {
        for flooding in [1, 2, 10, 100] {
            let mut world = World(vec![vec![0; flooding + 1], vec![0]]);
            world.fill(0, 0..flooding);
            world.try_add(0, flooding).unwrap();
            world.try_add(1, 0).unwrap();
        }
    }

    #[test]
    fn a_limit_that_is_set_replaces_the_part_and_is_divided_among_the_members() {
        let pool = Pool {
            capacity: 10,
            used: 9,
        };
        let queue = Room::of_queue(pool);
        assert!(queue.enter(8, None).is_err(), "its part is 3");
        let group = queue.enter(8, Some(20)).unwrap();
        assert_eq!(
            queue.enter(20, Some(20)).unwrap_err(),
            NoRoomLeft::Full { max: 20 }
        );
        // 12 are free in the group.
        assert!(group.enter(19, None).is_ok());
        assert!(group.enter(20, None).is_err());
    }

    proptest! {
        /// Whatever was there before: as many departures as the excess says are enough, and one less is not.
        #[test]
        fn an_excess_says_how_many_have_to_leave(
            mut others in 0u64..3000,
            groups in prop::collection::vec(0u64..1000, 1..4),
            more in 0u64..1000,
        ) {
            // From the top down each level holds what the next one does, and something besides.
            let mut held: Vec<u64> = vec![more; groups.len() + 1];
            for (level, own) in groups.iter().enumerate() {
                held[..=level].iter_mut().for_each(|held| *held += own);
            }
            others = others.min(CAPACITY.saturating_sub(held[0]));
            let walk = |left: u64| {
                let used = others + held[0] - left;
                let mut room = Room::of_queue(Pool { capacity: CAPACITY, used });
                for (level, held) in held.iter().enumerate() {
                    room = room.share(held - left).map_err(|excess| (level, excess))?;
                }
                Ok(())
            };
            if let Err((level, excess)) = walk(0) {
                let least = *held.last().unwrap();
                let before = excess.departures - 1;
                prop_assume!(excess.departures <= least);
                let later = |left| walk(left).err().map(|(level, _)| level);
                prop_assert!(before == 0 || later(before).is_some_and(|it| it <= level));
                prop_assert!(later(excess.departures) != Some(level));
            }
        }
    }
}
