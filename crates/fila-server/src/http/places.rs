//! Places for connections, which the addresses of clients share.
//!
//! Without a name of its own, a client is known by its address: all of IPv4, the network of 64 bits of IPv6. One address
//! gets three quarters of all places, and less while others have many: see [`Pool`]. So no single machine keeps all
//! others out.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drr::Pool;
use foldhash::fast::RandomState;

/// Places for the connections of one port.
#[derive(Debug)]
pub(crate) struct Places {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    by_client: HashMap<IpAddr, u64, RandomState>,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    places: Arc<Places>,
    client: IpAddr,
}

/// Why there is no place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPlace {
    #[error(
        "the server has all its {max} connections (limits.connections); close some, or raise the limit"
    )]
    Full { max: usize },
    #[error(
        "this address has {held} connections, its part of {max} (limits.connections); close some, or raise the limit"
    )]
    PartTaken { held: u64, max: usize },
}

impl Places {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for a connection from this address.
    pub(crate) fn take(self: &Arc<Self>, client: IpAddr) -> Result<ConnectionPlace, NoPlace> {
        let client = network(client);
        let mut taken = self.lock();
        let pool = Pool {
            capacity: self.max as u64,
            used: taken.all,
        };
        if pool.free() == 0 {
            return Err(NoPlace::Full { max: self.max });
        }
        let held = taken.by_client.get(&client).copied().unwrap_or(0);
        if !pool.admits(held, 1) {
            let max = self.max;
            return Err(NoPlace::PartTaken { held, max });
        }
        taken.all += 1;
        *taken.by_client.entry(client).or_default() += 1;
        Ok(ConnectionPlace {
            places: self.clone(),
            client,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Some(held) = taken.by_client.get_mut(&self.client) {
            *held -= 1;
            if *held == 0 {
                taken.by_client.remove(&self.client);
            }
        }
    }
}

/// Returns the address under which a client counts. One client can have all addresses of an IPv6 network.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_leaves_places_for_others_and_gives_its_places_back() {
        let places = Places::new(8);
        let greedy = address("10.0.0.1");
        let mut held: Vec<ConnectionPlace> = (0..6).map(|_| places.take(greedy).unwrap()).collect();
        let refused = places.take(address("::ffff:10.0.0.1")).unwrap_err();
        assert_eq!(refused, NoPlace::PartTaken { held: 6, max: 8 });
        let other = [
            places.take(address("10.0.0.2")),
            places.take(address("::1")),
        ];
        assert!(other.iter().all(Result::is_ok));
        let full = places.take(address("10.0.0.3")).unwrap_err();
        assert_eq!(full, NoPlace::Full { max: 8 });
        drop(other);
        held.pop();
        assert!(places.take(greedy).is_ok());
        drop(held);
        assert!(places.lock().by_client.is_empty());
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        let places = Places::new(4);
        let held: Vec<_> = (1..4)
            .map(|number| places.take(address(&format!("2001:db8::{number}"))))
            .collect();
        assert!(held.iter().all(Result::is_ok));
        assert!(places.take(address("2001:db8::9")).is_err());
        assert!(places.take(address("2001:db8:0:1::9")).is_ok());
    }
}
