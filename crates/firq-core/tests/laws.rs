//! Every law of fairness, on schedulers of 1, 4 and 64 shards alike: shards are invisible.

mod support;

macro_rules! laws {
    ($name:ident, $shards:literal) => {
        mod $name {
            use crate::support::{Firq, Nested};

            mod core {
                fairness_laws::conformance! { core: |quantum| super::Firq::new($shards, quantum) }
            }

            mod settle {
                fairness_laws::conformance! { settle: |quantum| super::Firq::new($shards, quantum) }
            }

            // With groups, and no key in any, the laws of flat schedulers hold as well.
            mod core_beside_groups {
                fairness_laws::conformance! { core, one world in 4: |quantum| super::Nested::new($shards, quantum) }
            }

            mod trees {
                fairness_laws::conformance! { trees: |quantum| super::Nested::new($shards, quantum) }
            }

            mod tree_settle {
                fairness_laws::conformance! { tree_settle: |quantum| super::Nested::new($shards, quantum) }
            }
        }
    };
}

laws!(one_shard, 1);
laws!(four_shards, 4);
laws!(sixty_four_shards, 64);
