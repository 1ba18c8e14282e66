//! Cases of floors, and the proof that one cannot feed itself.

use proptest::prelude::*;

use super::*;
use crate::api::deletion_cost_policy::FloorTarget;

const KIND: Autoscaler = Autoscaler::HorizontalPodAutoscaler;

fn floor(buffer: u32, baseline: u32, hold_down_seconds: u32) -> Floor {
    Floor { target: FloorTarget { kind: KIND, name: "web".into() }, buffer, baseline, hold_down_seconds }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn busy(busy: u32) -> Measured {
    Measured { busy, uncertain: 0 }
}

/// An autoscaler, and the policy that holds it.
struct Scene {
    floor: Floor,
    holder: Holder,
    target: Target,
    generation: i64,
    writes: usize,
}

impl Scene {
    fn new(floor: Floor, min: u32, max: u32, current: u32) -> Self {
        let target = Target { kind: KIND, min: Some(min), max, current, note: None, is_labelled: false, writer: None };
        Self { floor, holder: Holder::default(), target, generation: 1, writes: 0 }
    }

    fn look(&mut self, measured: Measured, second: i64) -> Standing {
        let (standing, change) = self.holder.decide(&self.floor, ("web", self.generation), measured, &self.target, at(second));
        if let Some(change) = change {
            self.holder.written(&change);
            self.target.is_labelled = change.note.is_some();
            (self.target.min, self.target.note, self.target.writer) = (change.min, change.note, None);
            self.writes += 1;
        }
        standing
    }

    /// Somebody else writes the minimum.
    fn written_by(&mut self, writer: &str, min: u32) {
        (self.target.min, self.target.writer) = (Some(min), Some(writer.into()));
    }
}

/// DC-36: a minimum above the maximum is refused by the API server, so it is never asked for.
#[test]
fn dc_36_the_floor_ends_at_the_ceiling() {
    let mut scene = Scene::new(floor(1, 0, 300), 4, 10, 12);
    assert_eq!(scene.look(busy(12), 0), Standing::Held { value: 10, original: 4, is_clamped: true });
    assert!(
        matches!(Scene::new(floor(1, 0, 300), 2, 10, 8).look(busy(10), 0), Standing::Held { value: 8, is_clamped: false, .. }),
        "a surge"
    );
    assert_eq!(scene.target.min, Some(10));
    scene.look(busy(12), 15);
    assert_eq!(scene.writes, 1, "nothing has changed");
}

/// DC-38: up at once, down after the hold-down, and at the end nothing of ours is left.
#[test]
fn dc_38_the_floor_comes_down_again() {
    let mut scene = Scene::new(floor(0, 0, 300), 2, 20, 12);
    for second in (0..600).step_by(15) {
        scene.look(busy(9), second);
        assert_eq!(scene.target.min, Some(9));
    }
    for second in (600..885).step_by(15) {
        scene.look(busy(1), second);
        assert_eq!(scene.target.min, Some(9), "held at {second}");
    }
    assert_eq!(scene.look(busy(1), 885), Standing::NotNeeded { original: 2 });
    assert_eq!((scene.target.min, scene.target.note.clone(), scene.writes), (Some(2), None, 2));
}

/// DC-40: who puts their value back twice means it; a change of the policy is another try.
#[test]
fn dc_40_two_reverts_end_it() {
    let mut scene = Scene::new(floor(1, 0, 300), 2, 20, 12);
    for round in 0..2 {
        assert!(matches!(scene.look(busy(5), round * 30), Standing::Held { value: 6, .. }));
        scene.written_by("gitops", 2);
    }
    for round in 2..50 {
        assert_eq!(scene.look(busy(5), round * 30), Standing::Reverted { original: 2, by: Some("gitops".into()) });
        assert_eq!(scene.target.min, Some(2));
    }
    assert_eq!(scene.writes, 3, "twice the floor, and once the note that it is over");
    // Another leader knows it from the note.
    scene.holder = Holder::default();
    assert!(matches!(scene.look(busy(9), 2000), Standing::Reverted { original: 2, .. }));
    scene.generation += 1;
    assert!(matches!(scene.look(busy(5), 3000), Standing::Held { value: 6, .. }));
}

/// As `kubectl replace` does it: the note goes too.
#[test]
fn a_revert_is_seen_where_the_note_went_with_it() {
    let mut scene = Scene::new(floor(1, 0, 300), 2, 20, 12);
    for round in 0..2 {
        scene.look(busy(5), round * 30);
        scene.written_by("kubectl-replace", 2);
        (scene.target.note, scene.target.is_labelled) = (None, false);
    }
    assert!(matches!(scene.look(busy(5), 60), Standing::Reverted { original: 2, .. }));
}

/// A tool whose values vary undoes the floor all the same.
#[test]
fn lower_values_that_vary_are_reverts_too() {
    let mut scene = Scene::new(floor(1, 0, 300), 2, 20, 12);
    for (round, min) in [(0, 3), (1, 4)] {
        scene.look(busy(8), round * 30);
        scene.written_by("cron", min);
    }
    assert_eq!(scene.look(busy(8), 60), Standing::Reverted { original: 4, by: Some("cron".into()) });
}

/// A write whose answer was lost is ours, though we do not remember it.
#[test]
fn our_own_writes_are_nobodys_reverts() {
    let mut scene = Scene::new(floor(1, 0, 0), 2, 20, 12);
    scene.look(busy(8), 0);
    let held = scene.target.clone();
    scene.look(busy(0), 15);
    // The leader before remembers the floor of 9, and sees the 2 that another leader wrote.
    scene.holder.written(&Change { min: held.min, note: held.note });
    assert_eq!(scene.look(busy(0), 30), Standing::NotNeeded { original: 2 });
    assert!(matches!(scene.look(busy(8), 45), Standing::Held { value: 9, .. }));
    assert_eq!(scene.target.note.as_ref().unwrap().reverts, 0);
}

#[test]
fn a_lost_label_is_put_back_and_a_lost_note_is_said() {
    let mut scene = Scene::new(floor(1, 0, 300), 2, 20, 12);
    scene.look(busy(8), 0);
    scene.target.is_labelled = false;
    scene.look(busy(8), 15);
    assert!(scene.target.is_labelled, "without it nobody would find the floor again");
    scene.target.note = None;
    scene.holder = Holder::default();
    assert_eq!(scene.look(busy(9), 30), Standing::NoteLost);
    assert_eq!(scene.target.min, Some(9), "what is held is not taken for what its owner wrote");
}

#[test]
fn another_value_is_another_original() {
    let mut scene = Scene::new(floor(1, 0, 0), 2, 20, 12);
    scene.look(busy(5), 0);
    scene.written_by("kubectl-edit", 8);
    assert_eq!(scene.look(busy(5), 15), Standing::NotNeeded { original: 8 });
    assert_eq!((scene.target.min, scene.target.note.clone()), (Some(8), None));
    scene.look(busy(10), 30);
    assert_eq!((scene.target.min, scene.target.note.as_ref().unwrap().original), (Some(11), Some(8)));
}

/// DC-41: an autoscaler at rest is left alone; one that was held before is let go once.
#[test]
fn dc_41_without_replicas_nothing_is_written() {
    let mut scene = Scene::new(floor(1, 3, 300), 2, 20, 0);
    assert_eq!((scene.look(busy(0), 0), scene.writes), (Standing::AtRest, 0));
    scene.target.current = 6;
    scene.look(busy(4), 15);
    // Woken up, it would jump to the floor of the day before.
    scene.target.current = 0;
    for second in [3000, 3015, 3030] {
        assert_eq!((scene.look(busy(0), second), scene.writes), (Standing::AtRest, 2));
    }
    assert_eq!((scene.target.min, scene.target.note.clone()), (Some(2), None));
}

/// The runaway of a floor that counts what it has only just made.
#[test]
fn unmeasured_pods_raise_nothing_and_lower_nothing() {
    let mut scene = Scene::new(floor(1, 0, 0), 2, 20, 12);
    assert_eq!(scene.look(Measured { busy: 0, uncertain: 12 }, 0), Standing::NotNeeded { original: 2 });
    scene.look(busy(6), 15);
    // The backend is away, and in the end nothing is known of anybody.
    assert!(matches!(scene.look(Measured { busy: 2, uncertain: 10 }, 30), Standing::Held { value: 7, .. }));
    assert!(matches!(scene.look(Measured { busy: 0, uncertain: 3 }, 45), Standing::Held { value: 4, .. }));
    assert_eq!(scene.writes, 2);
}

#[test]
fn one_autoscaler_has_one_holder() {
    let mut scene = Scene::new(floor(1, 0, 0), 2, 20, 12);
    scene.look(busy(5), 0);
    let mut other = Holder::default();
    let (standing, change) = other.decide(&scene.floor, ("zzz", 1), busy(9), &scene.target, at(1));
    assert_eq!((standing, change), (Standing::HeldByAnother { policy: "web".into() }, None));
}

#[test]
fn what_may_go_to_zero_still_does() {
    let mut scene = Scene::new(floor(1, 2, 0), 0, 20, 6);
    (scene.target.kind, scene.target.min) = (Autoscaler::ScaledObject, None);
    assert_eq!(scene.look(busy(0), 0), Standing::NotNeeded { original: 0 });
    assert!(matches!(scene.look(busy(3), 15), Standing::Held { value: 4, .. }));
    assert_eq!(scene.look(busy(0), 30), Standing::NotNeeded { original: 0 });
    assert_eq!(scene.target.min, None, "what nobody wrote is not there in the end either");
}

#[test]
fn another_leader_holds_on() {
    let mut scene = Scene::new(floor(0, 0, 300), 2, 20, 12);
    scene.look(busy(9), 0);
    scene.holder = Holder::default();
    assert!(matches!(scene.look(busy(1), 290), Standing::Held { value: 9, .. }));
    assert!(matches!(scene.look(busy(1), 580), Standing::Held { value: 9, .. }));
    assert_eq!(scene.look(busy(1), 590), Standing::NotNeeded { original: 2 });
}

#[test]
fn letting_go_restores_what_is_still_ours() {
    let note = Note { policy: "web".into(), generation: 1, original: None, written: 6, reverts: 0, by: None };
    assert_eq!(note.released(KIND, Some(6)), None);
    assert_eq!(note.released(KIND, Some(7)), Some(7), "somebody else's by now");
    let text = serde_json::to_string(&note).unwrap();
    assert_eq!(text, r#"{"policy":"web","generation":1,"original":null,"written":6,"reverts":0}"#);
    assert_eq!(serde_json::from_str::<Note>(&text).unwrap(), note);
}

/// One step of fifteen seconds: what the metrics ask for, which pods turn, and whether new pods look busy at once.
type Step = (u32, Vec<bool>, bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..40_u32, prop::collection::vec(any::<bool>(), 40), any::<bool>()), 1..80)
}

proptest! {
    /// The HPA's own rules (`reconcileAutoscaler`): below the minimum it raises at once, above the maximum it lowers at once, and
    /// otherwise it goes by its metrics. Whatever happens, the floor never makes more pods than the metrics or its owner ask for.
    #[test]
    fn the_floor_never_feeds_itself(
        steps in steps(), (min, above, buffer, baseline, hold) in (1..6_u32, 0..20_u32, 0..5_u32, 0..10_u32, prop::sample::select(vec![0, 30, 300])),
        start in 1..20_u32,
    ) {
        let max = min + above;
        let mut scene = Scene::new(floor(buffer, baseline, hold), min, max, start.clamp(min, max));
        // Age in steps, and whether it is at work. A pod is new for twelve steps, which is three minutes.
        let mut pods: Vec<(u32, bool)> = vec![(100, false); start.clamp(min, max) as usize];
        for (second, (metrics, turns, new_look_busy)) in (0..).step_by(15).zip(steps) {
            for ((age, at_work), turn) in pods.iter_mut().zip(turns) {
                *at_work ^= turn;
                *age += 1;
            }
            let count = |is_new: bool| pods.iter().filter(|(age, at_work)| (*age < 12) == is_new && (is_new || *at_work)).count() as u32;
            let measured = Measured { busy: count(false), uncertain: count(true) };
            let before = scene.target.current;
            scene.look(measured, second);
            let floor = scene.target.min.unwrap_or(1);
            prop_assert!(floor >= min && floor <= max && floor <= before.max(min), "{floor} of {before}");
            prop_assert!(floor >= (measured.busy + buffer).min(before).min(max), "a pod at work is not held");

            let replicas = if before < floor { floor } else { metrics.clamp(floor, max) };
            prop_assert!(replicas <= before.max(metrics.clamp(min, max)), "the floor made pods");
            // The right ones go; what comes is new.
            pods.sort_by_key(|(_, at_work)| !at_work);
            pods.resize(replicas as usize, (0, new_look_busy));
            scene.target.current = replicas;
        }
    }
}
