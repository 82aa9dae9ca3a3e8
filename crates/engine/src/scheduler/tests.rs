//! Tests of requests whose sequences are requeued.

use std::sync::mpsc::channel;

use super::job::{CompletedRequest, Job};
use super::requests::RunningRequests;
use super::token_scores::TokenJob;
use super::{Event, EventOptions};
use crate::engine::tests::{MODELS, all_params, engine, request};
use crate::executor::Lookahead;
use crate::prompt::Prompt;
use crate::reply::{Output, StageSeconds};
use crate::request::{CancelToken, Request};

/// After an out-of-memory error at any step, outputs are unchanged and tokens are sent once.
#[test]
fn requests_that_begin_anew_get_what_they_get_otherwise() {
    for (model, rewards) in MODELS {
        let engine = engine(model, rewards);
        let params = all_params(&engine, 2, 3).into_iter().filter(|params| params.search.is_none());
        let requests: Vec<Request> =
            (1..).zip(params).map(|(id, params)| request(id, params)).collect();
        let tokens: Vec<u32> = (0..40).map(|i| (7 * i + 3) % 50).collect();
        let expected_scores = engine.score_tokens(&tokens).unwrap();
        for steps in 0..9 {
            let (completed, replies) = channel::<CompletedRequest>();
            let mut running = RunningRequests::new(&engine, completed, Lookahead::Always);
            let (sender, events) = channel();
            for request in &requests {
                let prompt = Prompt::new(engine.reasoner(), request.id, &request.question).unwrap();
                let id = request.id;
                let sender = sender.clone();
                let tell = move |event| drop(sender.send((id, event)));
                let mut job = Job::new(request.clone(), prompt, Box::new(tell));
                job.options = EventOptions { tokens: true, ..EventOptions::default() };
                assert!(running.has_room(&job));
                running.join(job);
            }
            let (scored, scores) = channel();
            let done = Box::new(move |result| drop(scored.send(result)));
            let cancel = CancelToken::default();
            running.score_tokens(TokenJob { tokens: tokens.clone(), cancel, done });
            for _ in 0..steps {
                running.step().unwrap();
            }
            assert!(running.restart_all().is_empty());
            while !running.is_empty() {
                running.step().unwrap();
            }
            replies.try_iter().for_each(|done| done.reply(&engine));
            assert_eq!(scores.recv().unwrap().unwrap(), expected_scores);
            let events: Vec<(u32, Event)> = events.try_iter().collect();
            for request in &requests {
                let what = format!("{model:?}, {rewards:?}, {:?}, {steps} steps", request.params);
                let own = || events.iter().filter(|(id, _)| *id == request.id).map(|(_, e)| e);
                let reply = own().find_map(|event| match event {
                    Event::Done(reply) => Some(Output::clone(reply.as_ref().unwrap())),
                    _ => None,
                });
                let reply = reply.unwrap();
                let expected = engine.solve(request).unwrap();
                let seconds = StageSeconds::default();
                let untimed = |reply: &Output| Output { seconds, ..reply.clone() };
                assert_eq!(untimed(&reply), untimed(&expected), "{what}");
                for trajectory in &reply.trajectories {
                    let told = own().filter_map(|event| match *event {
                        Event::Token { number, position, token } if number == trajectory.number => {
                            Some((position, token))
                        }
                        _ => None,
                    });
                    let tokens = trajectory.tokens.iter().copied().enumerate();
                    assert!(told.eq(tokens), "{what}: the tokens of {}", trajectory.number);
                }
            }
        }
    }
}
