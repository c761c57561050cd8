//! Fair shares of one server among any number of keys.
//!
//! A [`Drr`] knows which keys have work and what they have used. It answers one question,
//! [`next_key`](Drr::next_key), so that keys get service in proportion to their weights, however fast they
//! submit and however much their work costs. It holds no work itself, reads no clock, takes no lock, does
//! no I/O, and allocates only when a key is registered, or when a group's calendar grows.
//!
//! A [`Keyed`] adds names and values: lanes that are found by name, idle ones forgotten when they owe nothing.
//! A [`Pool`] says how much of a shared room one key may hold, so that the others find some.
//!
#![doc = include_str!("../README.md")]
//!
//! # The algorithm
//! Deficit round robin ([Shreedhar and Varghese, *Efficient Fair Queuing Using Deficit Round Robin*,
//! SIGCOMM 1995](https://doi.org/10.1145/217382.217453)) in its **surplus** form: a key is chosen while it
//! has credit, and is charged *after* the choice, so its credit may fall below zero. The cost of the next piece of work need not be
//! known beforehand, and can even be [settled](Drr::settle) when the work is done. Keys compose into trees, since a group can be chosen before its member is.
//!
//! Two things differ from the textbook:
//!
//! - **Weight sets how often a key is visited, not how long.** A round is 65,536 ticks. A key of weight `w`
//!   is visited every `s = ⌊65,536 / w⌋` ticks and granted what it earns in that time, `s · w / 65,536`
//!   quanta: at most one. In a round it gets `weight × quantum`, as in the textbook, but a weight of 1,000 is
//!   spread over the round and not served in one burst of 1,000.
//! - **Rounds are not walked, they are looked up.** A key is filed under the tick of its next visit with
//!   credit in a calendar, and the calendar's hand jumps from one occupied bucket to the next. A key that
//!   owes 10,000 rounds is touched once, when it has paid.
//!
//! A key that has no work sleeps, and one that may not run is parked; both are out of the ring and cost
//! nothing. A key that sat out at least until its next visit would have come is **fresh** when it returns:
//! it is served once ahead of the ring, as in DRR++ and FQ-CoDel ([RFC 8290](https://www.rfc-editor.org/rfc/rfc8290)).
//! Its unused credit is gone; its debt is not.
//!
//! # What always holds
//! In the following, `Q` is the quantum, `wᵢ` a key's weight, `Lᵢ` the largest cost of its work, `Wᵢ` the
//! service it got in some window, and `Tᵢ = Q + Lᵢ` the most it gets in one turn. Everything is measured in
//! cost; a round is `Q` per unit of weight. Each bound is checked after every step of random traces, by the
//! crate `fairness-laws`.
//!
//! **B1, share.** For two keys that have work all through a window, however the window is cut,
//!
//! ```text
//! |Wᵢ/wᵢ − Wⱼ/wⱼ|  ≤  8/7 · (Tᵢ/wᵢ + Tⱼ/wⱼ)         (+ Q, if one of them joined in the window's course)
//! ```
//!
//! *Proof.* Let a key's *position* `pᵢ` be the tick of its last visit with credit plus what it has used of
//! the grants since, divided by its weight. Service moves it by exactly `cost / wᵢ`, because credit is
//! integer arithmetic and grants are what a stride earns: `ΔWᵢ/wᵢ = Δpᵢ`. (1) A filed key's position is not
//! before its tick, and its tick is not before its bucket; the hand is never past an occupied bucket. So
//! `hand ≤ pᵢ`. (2) A key is served when the hand reaches its bucket, at most one bucket before its tick,
//! and a turn ends as soon as it has used its grant: it ends at `pᵢ < hand + bucket + Tᵢ/wᵢ`. The bucket is
//! at most an eighth of the distance at which the key was filed, which was at most `pᵢ − hand`. So
//! `pᵢ ≤ hand + 8/7 · Tᵢ/wᵢ` at all times. By (1) and (2) `pᵢ − pⱼ` stays in an interval as wide as the
//! right-hand side, and a window's difference is the difference of two values in it. A newcomer begins at
//! the clock, which newcomers before it can have moved ahead of the hand, by at most the stride of one of
//! them: hence the `Q`. ∎
//!
//! For comparison, textbook DRR has `2·Lmax + Qmin` for equal weights. With `Q = L` that is `3L` and ours is
//! `4.6L`; for weights of 2 and more ours is smaller, since a heavy key's turn is no longer than a light one's.
//!
//! **B1′, lag.** Against a fluid server that serves all keys at once, a key that has work is never ahead by
//! more than `8/7 · Tᵢ`, nor behind by more than `8/7 · wᵢ/Σw · ΣT`. (Positions lie in the intervals above,
//! and the fluid server's position is their mean, weighted by `w`.)
//!
//! **B2, wait.** A fresh key is served after at most the turn under way, one turn of each of the `F` newcomers
//! before it, and one ring turn before each of them: others get at most `Σ T(newcomers) + (F + 2) · max T`.
//! Without other newcomers that is two turns, with one key in the ring or a million. A key that comes back
//! before it would have been visited again is served when that visit is due, within a pass: others get at
//! most `Σ (wⱼ/wᵢ · Tᵢ + Tⱼ)`. Newcomers in turn cannot starve the ring, however many: they go first until
//! they have had a round's worth, `Q · Σw`, and then take turns with it.
//!
//! [`Drr::bound`] says in numbers what this comes to for a key here and now. For one in the ring that is
//!
//! ```text
//! Σ wⱼ · (tᵢ − h)  +  8/7 · Σ Tⱼ
//! ```
//!
//! with `tᵢ` the tick of its next visit, `h` the hand, and the sums over the others: by (1) and (2) of the proof above,
//! no other is before `h` now, and none is past `tᵢ + 8/7 · Tⱼ/wⱼ` when the hand has come to `tᵢ`. A key that leaves and
//! comes back meanwhile begins at the clock, which is at most a tick past the earliest visit. Where the others stay,
//! a [`Forecast`] says exactly which keys come before a key.
//!
//! **B3, settled cost.** With at most `D` pieces of a key in flight whose true cost is not yet settled, B1
//! widens by `D · (Lᵢ/wᵢ + Lⱼ/wⱼ)`: that much may be used and not yet charged, or charged and not yet given
//! back. Nothing is lost or gained in the long run.
//!
//! **B5, work.** A turn takes one key out of a list and puts it into another. A choice makes one visit, and
//! at most one more for each settlement since the last; finding the next bucket looks at one word for each
//! of the (at most 30) powers of four that distances in the ring span. Neither depends on how many keys
//! there are, how many are parked, or how deep the debts are; [`Drr::work`] counts both.
//!
//! **B6, idleness.** Sleeping, parking and forgetting leave a key's position where it is. On its return it is
//! the later of that position and the present: time it was away pays off debt, and earns nothing. A key that
//! is [forgotten](Drr::forget) in debt leaves a [`Standing`] with which it can be [readmitted](Drr::readmit).
//!
//! **Trees.** A [`Group`] is a key among its siblings, and its members share what it gets by the same rules,
//! in a calendar of its own; every charge is paid by the key and each group above it. All bounds hold on
//! each level, and add up along a path: [`Drr::bound_on_path`] says to what. Splitting into many keys inside a group buys
//! nothing outside it. [`Groups`] finds groups by name, and a [`Keyed`] puts its lanes into them.
//!
//! **Limits.** Weights reach from 1 to 65,536, costs and the quantum from 1 to 2⁴⁴; larger numbers count as the
//! largest. Debt is remembered up to 2⁴⁵ of cost or more. Nothing overflows: virtual time wraps, and starts
//! just before it does, so that every user crosses the wrap within 16 rounds. A key takes 32 bytes.
//!
//! # Not included, on purpose
//! Queues, capacity, deadlines, priorities, time, threads: they belong to the code that embeds the engine. Strict priority between keys is left out because it would void B2.

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(test)]
mod audit;
mod buckets;
mod calendar;
mod calendars;
mod engine;
mod forecast;
mod groups;
mod growth;
mod handle;
mod keyed;
mod numbered;
mod pool;
mod slot;
mod units;

pub use calendar::Work;
pub use engine::Drr;
pub use forecast::Forecast;
pub use groups::{Groups, Nesting};
pub use growth::{extend_to, grow};
pub use handle::{DisbandError, Group, Key, Node, Standing, State, Unknown};
pub use keyed::Keyed;
pub use pool::Pool;
pub use units::{Cost, Costs, Quantum, Weight};
