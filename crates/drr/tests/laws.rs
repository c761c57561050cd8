//! Every law of fairness, on the bare engine, and on lanes whose names say which groups they are in.

#[cfg(test)]
mod support;

macro_rules! laws {
    ($scheduler:ident) => {
        use super::support::$scheduler;

        mod core {
            fairness_laws::conformance! { core: super::$scheduler::new }
        }

        mod settle {
            fairness_laws::conformance! { settle: super::$scheduler::new }
        }

        mod steps {
            fairness_laws::conformance! { steps: super::$scheduler::new }
        }

        mod trees {
            fairness_laws::conformance! { trees: super::$scheduler::new }
        }

        mod tree_bounds {
            fairness_laws::conformance! { tree_bounds: super::$scheduler::new }
        }

        mod tree_settle {
            fairness_laws::conformance! { tree_settle: super::$scheduler::new }
        }

        mod tree_steps {
            fairness_laws::conformance! { tree_steps: super::$scheduler::new }
        }
    };
}

mod bare {
    laws!(Bare);
}

mod named {
    laws!(Named);
}
