//! A web server on loopback that names backends as well or as badly as a test wants.

use std::{
    convert::Infallible,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Result;
use axum::{
    Router,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use futures_util::stream;

use super::wire::Wire;

/// How it answers a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// With this text.
    Text(String),
    /// With the first half of this text; then the connection breaks.
    Half(String),
    /// With this status and nothing else.
    Status(u16),
    /// Not at all.
    Never,
}

pub struct Scripted {
    wire: Wire,
    script: Arc<Mutex<Script>>,
}

struct Script {
    answers: Vec<Answer>,
    asked: usize,
}

impl Scripted {
    pub fn start(answers: Vec<Answer>) -> Result<Self> {
        let script = Arc::new(Mutex::new(Script { answers, asked: 0 }));
        let router = Router::new()
            .route("/", get(answer))
            .with_state(Arc::clone(&script));
        Ok(Self {
            wire: Wire::serve(router)?,
            script,
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.wire.address)
    }

    /// From now on these, each in turn, over and over.
    pub fn say(&self, answers: Vec<Answer>) {
        *locked(&self.script) = Script { answers, asked: 0 };
    }

    /// How often it was asked since it was told what to say.
    pub fn asked(&self) -> usize {
        locked(&self.script).asked
    }
}

fn locked(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(State(script): State<Arc<Mutex<Script>>>) -> Response {
    let answer = {
        let mut script = locked(&script);
        let turn = script.asked % script.answers.len();
        script.asked += 1;
        script.answers[turn].clone()
    };
    match answer {
        Answer::Text(text) => text.into_response(),
        Answer::Half(text) => {
            let half = text[..text.len() / 2].to_owned();
            let broken = io::Error::from(io::ErrorKind::ConnectionReset);
            Body::from_stream(stream::iter([Ok(half), Err(broken)])).into_response()
        }
        Answer::Status(code) => StatusCode::from_u16(code)
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            .into_response(),
        Answer::Never => {
            let never: Infallible = std::future::pending().await;
            match never {}
        }
    }
}
