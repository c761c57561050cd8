//! Max-min fair shares: by weight, and no tenant gets more than it wants.

/// Returns the max-min fair shares of `total`. Tenants get it by weight; the surplus of a tenant that wants less goes
/// to the others in the same way. If all tenants together want less than `total`, each gets all that it wants.
pub(crate) fn shares(weights: &[f64], wanted: &[f64], total: f64) -> Vec<f64> {
    let mut shares = vec![0.0; weights.len()];
    let mut hungry: Vec<usize> = (0..weights.len()).collect();
    let mut left = total;
    loop {
        let weight: f64 = hungry.iter().map(|&at| weights[at]).sum();
        let level = if weight > 0.0 { left / weight } else { 0.0 };
        let is_content = |&at: &usize| wanted[at] <= weights[at] * level;
        let (content, rest): (Vec<usize>, Vec<usize>) = hungry.into_iter().partition(is_content);
        for &at in &content {
            shares[at] = wanted[at];
            left -= wanted[at];
        }
        if content.is_empty() || rest.is_empty() {
            for &at in &rest {
                shares[at] = weights[at] * level;
            }
            return shares;
        }
        hungry = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_want_more_than_there_is_share_by_weight() {
        let many = [1e9; 3];
        assert_eq!(shares(&[3.0, 1.0, 1.0], &many, 100.0), [60.0, 20.0, 20.0]);
    }

    #[test]
    fn what_some_do_not_want_goes_to_the_others() {
        let wanted = [1e9, 5.0, 1e9, 30.0];
        assert_eq!(shares(&[1.0; 4], &wanted, 100.0), [32.5, 5.0, 32.5, 30.0]);
    }

    #[test]
    fn nobody_gets_more_than_it_wants() {
        assert_eq!(shares(&[1.0, 1.0], &[3.0, 4.0], 100.0), [3.0, 4.0]);
        assert_eq!(shares(&[1.0, 1.0], &[0.0, 0.0], 0.0), [0.0, 0.0]);
        assert!(shares(&[], &[], 7.0).is_empty());
    }
}
