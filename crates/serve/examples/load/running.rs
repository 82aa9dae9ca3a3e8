//! A server in this process.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use latent_tts::Engine;
use latent_tts_serve::{ServeOptions, Server};
use tokio::sync::oneshot;

/// A server on a thread.
pub struct Running {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Serves `engine`, whose reasoner's files are those of `model`.
    pub fn start(engine: &Engine, model: &str, options: ServeOptions) -> Self {
        let (engine, (stop, stopped)) = (engine.clone(), oneshot::channel::<()>());
        let files = latent_tts::model_files(model).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let options = ServeOptions { address: "127.0.0.1:0".parse().unwrap(), ..options };
                let server = Server::bind(engine, &files, options).await.unwrap();
                sender.send(server.address().unwrap()).unwrap();
                server.run(async { drop(stopped.await) }).await;
            });
        });
        Self { address: receiver.recv().unwrap(), stop, thread }
    }

    /// Simulates SIGTERM; returns the thread that ends with the server.
    pub fn stop(self) -> JoinHandle<()> {
        drop(self.stop);
        self.thread
    }
}
