//! Every law of fairness, on schedulers of 1, 4 and 64 shards alike: shards are invisible.

mod support;

macro_rules! laws {
    ($name:ident, $shards:literal) => {
        mod $name {
            use crate::support::Firq;

            mod core {
                fairness_laws::conformance! { core: |quantum| super::Firq::new($shards, quantum) }
            }

            mod settle {
                fairness_laws::conformance! { settle: |quantum| super::Firq::new($shards, quantum) }
            }
        }
    };
}

laws!(one_shard, 1);
laws!(four_shards, 4);
laws!(sixty_four_shards, 64);
