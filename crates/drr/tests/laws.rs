//! Every law of fairness, on the bare engine.

#[cfg(test)]
mod support;

use support::Bare;

mod core {
    fairness_laws::conformance! { core: super::Bare::new }
}

mod settle {
    fairness_laws::conformance! { settle: super::Bare::new }
}

mod steps {
    fairness_laws::conformance! { steps: super::Bare::new }
}

mod trees {
    fairness_laws::conformance! { trees: super::Bare::new }
}

mod tree_settle {
    fairness_laws::conformance! { tree_settle: super::Bare::new }
}

mod tree_steps {
    fairness_laws::conformance! { tree_steps: super::Bare::new }
}
