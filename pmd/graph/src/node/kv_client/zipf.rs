//! Zipf's distribution by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from
//! monotone discrete distributions", 1996): exact, without tables, and in a bounded number of tries.

/// The exponent that key-value benchmarks use: the most popular of a million keys gets about one request in fifteen.
const EXPONENT: f64 = 0.99;
/// Tries before a draw gives up on being exact; more than nine in ten draws need one.
const TRIES: u32 = 64;

/// Ranks 0, 1, 2 … of which each is drawn with a probability that falls as `1 / (rank + 1)^EXPONENT`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zipf {
    ranks: f64,
    /// Area under the hull up to the first rank, and up to the last.
    area_first: f64,
    area_last: f64,
    /// Closer than this to the hull's place of a rank, the rank is accepted without a look at the hull.
    near: f64,
}

impl Zipf {
    /// Of so many ranks, at least one.
    pub(super) fn new(ranks: u32) -> Self {
        let ranks = f64::from(ranks.max(1));
        Self {
            ranks,
            area_first: area(1.5) - 1.0,
            area_last: area(ranks + 0.5),
            near: 2.0 - place(area(2.5) - density(2.0)),
        }
    }

    /// The rank that `random` leads to, numbers of 32 bits each.
    pub(super) fn rank(&self, mut random: impl FnMut() -> u32) -> u32 {
        for _ in 0..TRIES {
            let share = f64::from(random()) / (f64::from(u32::MAX) + 1.0);
            let u = self.area_last + share * (self.area_first - self.area_last);
            let x = place(u);
            let k = x.round().clamp(1.0, self.ranks);
            if k - x <= self.near || u >= area(k + 0.5) - density(k) {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a whole number from 1 to the number of ranks"
                )]
                return k as u32 - 1;
            }
        }
        0
    }
}

fn density(x: f64) -> f64 {
    x.powf(-EXPONENT)
}

/// Area under the density from 1 to `x`.
fn area(x: f64) -> f64 {
    (x.powf(1.0 - EXPONENT) - 1.0) / (1.0 - EXPONENT)
}

/// Where the area is `u`.
fn place(u: f64) -> f64 {
    (1.0 + u * (1.0 - EXPONENT)).powf(1.0 / (1.0 - EXPONENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::kv_client::draw::Random;

    fn shares(ranks: u32, draws: u32) -> Vec<f64> {
        let (zipf, mut random) = (Zipf::new(ranks), Random::new(7));
        let mut counts = vec![0_u32; ranks as usize];
        for _ in 0..draws {
            counts[zipf.rank(|| random.next().0) as usize] += 1;
        }
        counts.iter().map(|count| f64::from(*count) / f64::from(draws)).collect()
    }

    #[test]
    fn every_rank_has_its_share() {
        for ranks in [1, 2, 3, 10, 1000] {
            let whole: f64 = (1..=ranks).map(|k| density(f64::from(k))).sum();
            let drawn = shares(ranks, 200_000);
            for (rank, drawn) in (1..=ranks).zip(&drawn).take(20) {
                let share = density(f64::from(rank)) / whole;
                let tolerance = 5.0 * (share * (1.0 - share) / 200_000.0).sqrt() + 1e-9;
                assert!((drawn - share).abs() <= tolerance, "{rank} of {ranks}: {drawn} {share}");
            }
        }
    }

    #[test]
    fn the_extremes_are_ranks_too() {
        for ranks in [1, 2, u32::MAX] {
            let zipf = Zipf::new(ranks);
            for number in [0, 1, u32::MAX / 2, u32::MAX] {
                assert!(zipf.rank(|| number) < ranks);
            }
        }
    }
}
