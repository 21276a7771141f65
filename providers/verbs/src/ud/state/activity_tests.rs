//! Tests of the division of the receives among the active channels.

use super::*;

#[test]
fn receives_are_divided_among_active_channels_with_a_reserve() {
    for (channels, share) in [(0, 32), (1, 32), (6, 32), (7, 27), (96, 2), (97, 1), (1000, 1)] {
        let active = Activity { active: channels, ..Activity::default() };
        let before = Activity { before: channels, ..Activity::default() };
        assert_eq!((active.share(), before.share()), (share, share), "{channels}");
    }
}

#[test]
fn span_ends_after_enough_messages_or_after_a_second() {
    let mut activity = Activity::default();
    let mut channels = [0; 3];
    for _ in 0..2 {
        channels.iter_mut().for_each(|last| activity.note(last));
    }
    assert_eq!((activity.active, activity.messages), (3, 6), "each counts once");
    for sample in 1..SAMPLES {
        activity.sample();
        assert_eq!((activity.span, activity.samples), (1, sample));
    }
    activity.sample();
    let Activity { span, samples, messages, active, before } = activity;
    assert_eq!((span, samples, messages, active, before), (2, 0, 0, 0, 3));
    // A channel that was active in the previous span is counted again.
    for _ in 1..2 * RECEIVES {
        activity.note(&mut channels[0]);
    }
    activity.sample();
    assert_eq!((activity.span, activity.active), (2, 1));
    activity.note(&mut channels[1]);
    activity.sample();
    assert_eq!((activity.span, activity.active, activity.before), (3, 0, 2));
}
