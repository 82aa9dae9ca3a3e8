//! Requests that arrive while others run join their forward steps, and each has bitwise the same
//! output as alone; cancelled requests leave no trace.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use latent_tts_engine::scheduler::{Event, EventOptions, Scheduler, Submission, SubmitError};
use latent_tts_engine::{
    CancelToken, Engine, EngineError, Lens, Output, Prompt, Request, SamplingParams, Trajectory,
};
use model::testkit::{CheckpointFamily, CheckpointSpec};

use crate::common::*;
use crate::mixed_requests::{mixed_requests, solve_alone, without_searches};
use crate::token_sampling;

/// More sequences than any test submits.
const ROOM: usize = 10_000;

fn submit(scheduler: &Scheduler, request: &Request) -> Receiver<Event> {
    let (sender, receiver) = channel();
    // Ignore errors: the receiver may be gone.
    let events = move |event| drop(sender.send(event));
    scheduler.submit(request.clone(), events).unwrap();
    receiver
}

/// All events of a request.
struct Told {
    trajectories: Vec<Trajectory>,
    result: Result<Output, EngineError>,
}

fn wait(events: &Receiver<Event>) -> Told {
    let mut trajectories: Vec<Trajectory> = Vec::new();
    let mut started = false;
    loop {
        match events.recv().expect("the last event is the result") {
            Event::Started => started = true,
            Event::Token { .. } => panic!("no tokens were asked for"),
            Event::Trajectory(trajectory) => trajectories.push(*trajectory),
            Event::Rewards { number, rewards } => {
                let of = trajectories.iter_mut().find(|t| t.number == number);
                let of = of.expect("a trajectory is told before its rewards");
                (of.process_rewards, of.outcome_reward) = (Some(rewards.process), rewards.outcome);
            }
            Event::Done(result) => {
                assert!(started || result.is_err());
                trajectories.sort_by_key(|t| t.number);
                return Told { trajectories, result: result.map(|reply| *reply) };
            }
        }
    }
}

/// Submits `at_once` requests at a time, the next ones when the first of these replies.
pub fn replies(engine: &Engine, requests: &[Request], at_once: usize) -> Vec<Output> {
    replies_of(&Scheduler::start(engine.clone(), ROOM), requests, at_once)
}

fn replies_of(scheduler: &Scheduler, requests: &[Request], at_once: usize) -> Vec<Output> {
    let mut pending = Vec::new();
    let mut replies = Vec::new();
    let mut reply = |events: Receiver<Event>| {
        let Told { trajectories, result } = wait(&events);
        let reply = result.unwrap();
        if reply.trajectories.len() > 1 && reply.beam.is_none() {
            assert_same_trajectories(&trajectories, &reply.trajectories, "events");
        }
        replies.push(reply);
    };
    for group in requests.chunks(at_once) {
        let mut events: Vec<_> = group.iter().map(|r| submit(scheduler, r)).collect();
        pending.push(events.split_off(1));
        reply(events.remove(0));
    }
    // Restore the order of the requests.
    pending.into_iter().flatten().for_each(reply);
    let stats = scheduler.stats();
    assert!(stats.passes > 0);
    replies
        .sort_by_key(|reply: &Output| requests.iter().position(|request| request.id == reply.id));
    replies
}

fn assert_as_alone(engine: &Engine, requests: &[Request], what: &str) {
    let alone = solve_alone(engine, requests);
    // Half of the memory belongs to the reward model.
    let least = 2 * smallest_memory(engine, requests);
    for (memory, at_once) in
        [(engine.memory(), 100), (engine.memory(), 5), (least, 100), (least, 3)]
    {
        let engine = engine.clone().with_memory(memory);
        let what = format!("{what}, {memory} bytes, {at_once} at once");
        assert_all_same(&replies(&engine, requests, at_once), &alone, &what);
        let ahead = Scheduler::start_looking_ahead(engine, ROOM);
        let what = format!("{what}, looking ahead");
        assert_all_same(&replies_of(&ahead, requests, at_once), &alone, &what);
    }
}

#[test]
fn requests_that_arrive_while_others_run_get_what_they_get_alone() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let requests = mixed_requests(&pair.reasoner);
        assert_as_alone(&pair.engine(), &requests, &format!("{family:?}, process rewards"));
        let plain = without_searches(&requests);
        assert_as_alone(&pair.unrewarded_engine(), &plain, &format!("{family:?}, no rewards"));
        let pair = RewardedReasoner::with_reference(family);
        assert_as_alone(&pair.engine(), &requests, &format!("{family:?}, outcome rewards"));
    }
}

#[test]
fn lenses_and_forced_thoughts_are_those_of_batches() {
    for family in FAMILIES {
        let engine = RewardedReasoner::of(family).engine();
        let mut requests = without_searches(&mixed_requests(engine.reasoner()));
        requests.retain(|request| request.params.length == exactly(3));
        let alone = engine.solve(&requests[0]).unwrap();
        let lens = Some(Lens { tokens: nonzero(3), sampled: true });
        requests[0].lens = lens;
        let forced = alone.trajectories.iter().rev().map(|t| t.latents.clone()).collect();
        requests.push(Request { id: 999, forced_thoughts: forced, ..requests[0].clone() });
        let alone = solve_alone(&engine, &requests);
        let replies = replies(&engine, &requests, 100);
        assert_all_same(&replies, &alone, &format!("{family:?}"));
        for (reply, alone) in replies.iter().zip(&alone) {
            for (a, b) in reply.trajectories.iter().zip(&alone.trajectories) {
                assert_eq!(a.lens, b.lens, "{family:?}");
            }
        }
        assert_eq!(replies[0].trajectories[0].lens.len(), 3);
    }
}

#[test]
fn rows_without_thoughts_and_end_tokens_get_what_they_get_alone() {
    let engine = Engine::new(token_sampling::cot_reasoner(device(), &CheckpointSpec::default()));
    let mut requests = without_searches(&mixed_requests(engine.reasoner()));
    for request in &mut requests {
        if let latent_tts_engine::LatentLength::AtMost(n) = request.params.length {
            request.params.length = latent_tts_engine::LatentLength::Exactly(n);
        }
    }
    assert_as_alone(&engine, &requests, "cot");
}

/// Answers of different lengths, where the model decides when to stop: a finished sequence has then
/// fed one token too many, which must have no effect.
#[test]
fn answers_that_end_early_are_the_same_looking_ahead() {
    for family in FAMILIES {
        let mut pair = RewardedReasoner::of(family);
        pair.reasoner_mut().model.method.eos.clear();
        let long = SamplingParams {
            max_new_tokens: nonzero(12),
            ..short_params(&pair.reasoner, 6, thought_dropout(0.3))
        };
        let requests: Vec<Request> = questions().iter().map(|q| q.request(long)).collect();
        // The third token becomes an end-of-answer token, wherever it occurs.
        let said = solve_alone(&pair.unrewarded_engine(), &requests);
        let third = said[0].trajectories.iter().map(|t| t.tokens[2]).collect();
        pair.reasoner_mut().model.method.eos = third;
        let engine = pair.unrewarded_engine();
        let alone = solve_alone(&engine, &requests);
        let lengths: HashSet<usize> =
            alone.iter().flat_map(|r| &r.trajectories).map(|t| t.tokens.len()).collect();
        assert!(lengths.iter().any(|&n| n < 12), "{family:?}: no answer ends early");
        let ahead = Scheduler::start_looking_ahead(engine, ROOM);
        let what = format!("{family:?}, looking ahead");
        assert_all_same(&replies_of(&ahead, &requests, 3), &alone, &what);
        assert_empty(&ahead);
    }
}

/// Fails unless the batch and the queue are empty. The last event is sent before the sequence's
/// removal is counted.
fn assert_empty(scheduler: &Scheduler) {
    for _ in 0..1000 {
        let stats = scheduler.stats();
        if [
            stats.running_requests,
            stats.waiting_requests,
            stats.running_sequences,
            stats.used_slots,
        ] == [0; 4]
        {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("rows were left behind: {:?}", scheduler.stats());
}

#[test]
fn a_cancelled_request_leaves_nothing_behind_and_changes_nothing() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let requests = mixed_requests(&pair.reasoner);
    let alone = solve_alone(&pair.engine(), &requests);
    let scheduler = Scheduler::start(pair.engine(), ROOM);
    let mut cancelled = Vec::new();
    for (i, request) in requests.iter().enumerate() {
        let long = SamplingParams { samples: nonzero(64), ..request.params };
        let cancel = match i % 3 {
            0 => CancelToken::with_timeout(Duration::ZERO),
            1 => CancelToken::with_timeout(Duration::from_millis(3)),
            _ => CancelToken::default(),
        };
        let doomed = Request { params: long, cancel: cancel.clone(), ..request.clone() };
        let events = submit(&scheduler, &doomed);
        let told = wait(&submit(&scheduler, request));
        assert_same(&told.result.unwrap(), &alone[i], &format!("beside a cancelled one, {i}"));
        cancel.cancel();
        cancelled.push(events);
    }
    for events in cancelled {
        // Some were done before they were cancelled.
        let told = wait(&events);
        assert!(matches!(told.result, Ok(_) | Err(EngineError::Cancelled { .. })));
    }
    assert_empty(&scheduler);
}

#[test]
fn the_queue_is_bounded_in_rows() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let params = short_params(&pair.reasoner, 4, thought_dropout(0.2));
    let request = questions()[0].request(params);
    let scheduler = Scheduler::start(pair.engine(), 10);
    let wide = SamplingParams { samples: nonzero(11), ..params };
    let too_wide = scheduler.submit(Request { params: wide, ..request.clone() }, |_| {});
    assert!(matches!(too_wide, Err(SubmitError::TooManySequences { rows: 11, limit: 10 })));
    let long = SamplingParams { max_new_tokens: nonzero(100), ..params };
    let mut taken = Vec::new();
    let mut full = 0;
    for _ in 0..200 {
        let (sender, receiver) = channel();
        let long = Request { params: long, ..request.clone() };
        match scheduler.submit(long, move |event| drop(sender.send(event))) {
            Ok(()) => taken.push(receiver),
            Err(SubmitError::QueueFull { waiting, limit: 10, .. }) if waiting > 6 => full += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(scheduler.stats().waiting_sequences <= 10);
    }
    assert!(full > 0, "200 requests at once were taken");
    scheduler.close();
    assert!(matches!(scheduler.submit(request, |_| {}), Err(SubmitError::Closed)));
    taken.iter().for_each(|events| drop(wait(events).result.unwrap()));
}

#[test]
fn what_is_not_asked_for_is_not_told() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let params = short_params(&pair.reasoner, 4, thought_dropout(0.2));
    let request = questions()[0].request(params);
    let expected = pair.engine().solve(&request).unwrap();
    let scheduler = Scheduler::start(pair.engine(), ROOM);
    let prompt = Prompt::new(&pair.reasoner, request.id, &request.question).unwrap();
    let (sender, receiver) = channel();
    let submission = Submission::generate(prompt, request, move |event| drop(sender.send(event)));
    let options = EventOptions { progress: false, latents: false, tokens: false };
    scheduler.submit_all(vec![submission.with_options(options)]).unwrap();
    assert!(matches!(receiver.recv().unwrap(), Event::Started));
    let Event::Done(Ok(reply)) = receiver.recv().unwrap() else { panic!("only the reply is told") };
    assert!(reply.diversity.is_empty());
    let expected: Vec<Trajectory> = expected
        .trajectories
        .iter()
        .map(|t: &Trajectory| Trajectory { latents: Default::default(), ..t.clone() })
        .collect();
    assert_eq!(reply.trajectories, expected);
}

#[test]
fn dropping_the_scheduler_cancels_what_is_left() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let requests = mixed_requests(&pair.reasoner);
    let scheduler = Scheduler::start(pair.engine(), ROOM);
    let events: Vec<_> = requests.iter().map(|request| submit(&scheduler, request)).collect();
    drop(scheduler);
    events.iter().for_each(|events| drop(wait(events)));
}

#[test]
fn tokens_are_scored_beside_requests_and_the_likeliest_is_the_greedy_one() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiLlama);
    let engine = pair.unrewarded_engine();
    let scheduler = Scheduler::start(engine.clone(), ROOM);
    let events: Vec<_> = without_searches(&mixed_requests(&pair.reasoner))
        .iter()
        .map(|request| submit(&scheduler, request))
        .collect();
    for length in [1, 2, 17, 40] {
        let tokens: Vec<u32> = (0..length).map(|i| (7 * i + 3) % 50).collect();
        let (sender, receiver) = channel();
        let done = move |scores| drop(sender.send(scores));
        let score = Submission::score(tokens.clone(), CancelToken::default(), done);
        scheduler.submit_all(vec![score]).unwrap();
        let scores = receiver.recv().unwrap().unwrap();
        assert_eq!(scores, engine.score_tokens(&tokens).unwrap());
        assert_eq!(scores.len(), tokens.len());
        assert!(tokens[1..].iter().eq(scores.iter().map(|s| &s.token).take(tokens.len() - 1)));
        let last = scores.last().unwrap();
        assert_eq!((last.token, last.logprob), (last.top, last.top_logprob));
        let mut longer = tokens;
        longer.push(last.token);
        let of_longer = engine.score_tokens(&longer).unwrap();
        assert_eq!(of_longer[..scores.len()], scores[..]);
    }
    let context = engine.reasoner().decoder.config().context;
    assert!(engine.score_tokens(&vec![1; context]).is_ok());
    assert!(matches!(engine.score_tokens(&vec![1; context + 1]), Err(EngineError::TooLong { .. })));
    events.iter().for_each(|events| drop(wait(events).result.unwrap()));
    assert_empty(&scheduler);
}

#[test]
fn tokens_are_told_one_by_one_and_in_their_order() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let params = short_params(&pair.reasoner, 4, thought_dropout(0.2));
    for samples in [1, 4] {
        let params = SamplingParams { samples: nonzero(samples), greedy: true, ..params };
        let request = questions()[0].request(params);
        let scheduler = Scheduler::start(pair.engine(), ROOM);
        let prompt = Prompt::new(&pair.reasoner, request.id, &request.question).unwrap();
        let (sender, receiver) = channel();
        let submission =
            Submission::generate(prompt, request, move |event| drop(sender.send(event)));
        let options = EventOptions { tokens: true, ..EventOptions::default() };
        scheduler.submit_all(vec![submission.with_options(options)]).unwrap();
        let mut told: Vec<Vec<u32>> = vec![Vec::new(); samples];
        let reply = loop {
            match receiver.recv().unwrap() {
                Event::Token { number, position, token } => {
                    assert_eq!(position, told[number as usize].len());
                    told[number as usize].push(token);
                }
                // Its tokens were sent before it.
                Event::Trajectory(t) => assert_eq!(told[t.number as usize][..], t.tokens[..]),
                Event::Done(reply) => break reply.unwrap(),
                Event::Started | Event::Rewards { .. } => {}
            }
        };
        let tokens: Vec<Vec<u32>> = reply.trajectories.iter().map(|t| t.tokens.to_vec()).collect();
        assert_eq!(told, tokens);
        assert!(reply.seconds.prefill > 0.0 && reply.seconds.answers > 0.0);
        let stages = reply.seconds.prefill + reply.seconds.thoughts + reply.seconds.answers;
        assert!(stages + reply.seconds.scores <= reply.seconds.total);
    }
}

/// Many scored prompts do not delay a request, nor a few scored prompts of another submission; nor
/// if they do not fit the memory together.
#[test]
fn tokens_are_scored_in_parts_and_in_turn() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiLlama);
    let engine = pair.unrewarded_engine();
    let params = short_params(&pair.reasoner, 4, thought_dropout(0.2));
    let request = questions()[0].request(params);
    let alone = engine.solve(&request).unwrap();
    let least = smallest_memory(&engine, std::slice::from_ref(&request));
    for memory in [engine.memory(), 2 * least, least] {
        let scheduler = Scheduler::start(engine.clone().with_memory(memory), ROOM);
        let (sender, receiver) = channel();
        let score = |name: &'static str| {
            let sender = sender.clone();
            let done = move |scores: Result<Vec<_>, EngineError>| {
                assert_eq!(scores.unwrap().len(), 30);
                sender.send(name).unwrap();
            };
            Submission::score((0..30).collect(), CancelToken::default(), done)
        };
        let prompt = Prompt::new(&pair.reasoner, request.id, &request.question).unwrap();
        let events = sender.clone();
        let expected = alone.clone();
        let generate = Submission::generate(prompt, request.clone(), move |event| {
            if let Event::Done(reply) = event {
                assert_same(&reply.unwrap(), &expected, "beside tokens");
                events.send("request").unwrap();
            }
        });
        let mut many: Vec<Submission> = (0..1000).map(|_| score("many")).collect();
        many.push(generate);
        scheduler.submit_all(many).unwrap();
        scheduler.submit_all((0..3).map(|_| score("few")).collect()).unwrap();
        let order: Vec<&str> = (0..1004).map(|_| receiver.recv().unwrap()).collect();
        let last = |name| order.iter().rposition(|of| *of == name).unwrap();
        assert_eq!(last("many"), 1003);
        assert!(last("request") < 700, "{memory} bytes: after {} prompts", last("request"));
        assert!(last("few") < 500, "{memory} bytes: after {} prompts", last("few"));
        assert_empty(&scheduler);
    }
}

/// A prompt with a cached prefix is not recomputed up to there, and its trajectories are the same
/// as alone.
#[test]
fn prompts_that_begin_alike_are_computed_once() {
    for family in FAMILIES {
        let engine = RewardedReasoner::of(family).engine();
        let mut requests = without_searches(&mixed_requests(engine.reasoner()));
        let text = "A farmer has 12 cows, 7 hens and 3 goats, and sells 2 cows. ".repeat(2);
        for (i, request) in requests.iter_mut().enumerate() {
            request.question = format!("{text} How many legs have {i} of them?");
        }
        requests.retain(|r: &Request| engine.check(std::slice::from_ref(r)).is_ok());
        assert!(requests.len() > 3, "{family:?}");
        let alone = solve_alone(&engine, &requests);
        let least = 2 * smallest_memory(&engine, &requests);
        for (memory, at_once) in [(engine.memory(), 1), (engine.memory(), 3), (least, 2)] {
            let what = format!("{family:?}, {memory} bytes, {at_once} at once");
            let scheduler = Scheduler::start(engine.clone().with_memory(memory), ROOM);
            for _ in 0..2 {
                let replies = replies_of(&scheduler, &requests, at_once);
                assert_all_same(&replies, &alone, &what);
            }
            assert_empty(&scheduler);
            let stats = scheduler.stats();
            assert!(stats.prefix_slots <= stats.slots, "{what}: {stats:?}");
            assert!(stats.cached_prompt_tokens < stats.prompt_tokens, "{what}: {stats:?}");
            if memory == engine.memory() {
                assert!(stats.cached_prompt_tokens > stats.prompt_tokens / 2, "{what}: {stats:?}");
            }
        }
    }
}
