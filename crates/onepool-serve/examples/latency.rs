//! The time of a request by shared memory to a server in another process, against that of a run in this one:
//! `latency MODEL SIZES [DEVICE] [RUNS]`, where `SIZES` are those of every input, as in `1x3x128x128`.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onepool::{HostRegion, Memory, Session, Shape, SharedRegion};
use onepool_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use onepool_serve::proto::infer_parameter::ParameterChoice;
use onepool_serve::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use onepool_serve::proto::{InferParameter, ModelInferRequest, SystemSharedMemoryRegisterRequest};
use onepool_serve::{Config, Server, models_at};
use rustix::shm::{Mode, OFlags};

type Failure = Box<dyn Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match &args[..] {
        [serve, model, device] if serve == "--serve" => runtime.block_on(serve_until_closed(model, device)),
        [model, sizes, rest @ ..] => {
            let device = rest.first().map_or("cpu", String::as_str);
            let runs = rest.get(1).map_or(Ok(200), |text| text.parse())?;
            let dims = sizes.split('x').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
            measure(&runtime, model, &dims, device, runs)
        }
        _ => Err("latency MODEL SIZES [DEVICE] [RUNS]".into()),
    }
}

/// The server's process: it ends when its standard input is closed.
async fn serve_until_closed(model: &str, device: &str) -> Result<(), Failure> {
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        models: models_at(model.as_ref())?,
        devices: vec![device.to_owned()],
        ..Config::default()
    };
    let server = Server::start(config).await?;
    println!("{}", server.address());
    tokio::task::spawn_blocking(|| std::io::stdin().lines().for_each(drop)).await?;
    server.shut_down().await;
    Ok(())
}

/// Median and best of `runs` times.
fn times(runs: usize, mut run: impl FnMut() -> Result<(), Failure>) -> Result<[Duration; 2], Failure> {
    for _ in 0..5 {
        run()?;
    }
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let began = Instant::now();
        run()?;
        times.push(began.elapsed());
    }
    times.sort();
    let median = times.get(runs / 2).copied().unwrap_or_default();
    Ok([median, times.first().copied().unwrap_or_default()])
}

fn measure(
    runtime: &tokio::runtime::Runtime,
    model: &str,
    dims: &[usize],
    device: &str,
    runs: usize,
) -> Result<(), Failure> {
    let session = Session::builder().model(model).device(device).copy_threshold(0).build()?;
    let shape = Shape::new(dims.to_vec())?;
    let region = |bytes: usize| Ok::<Arc<SharedRegion>, Failure>(HostRegion::new(bytes)?.into_shared());
    let mut builder = session.bind();
    let mut inputs = Vec::new();
    for input in session.inputs() {
        let bytes = shape.elements() * input.dtype.map_or(4, |dtype| dtype.bytes());
        builder = builder.input(&input.name, Memory::region(&region(bytes)?).shape(shape.clone()));
        inputs.push((input.name, bytes));
    }
    let mut outputs = Vec::new();
    for output in builder.plan()?.outputs {
        let bytes = output.info.bytes();
        builder = builder.output(&output.name, Memory::region(&region(bytes)?));
        outputs.push((output.name, bytes));
    }
    let mut binding = builder.build()?;

    let mut server = Command::new(std::env::current_exe()?)
        .args(["--serve", model, device])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(server.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let name = models_at(model.as_ref())?.into_iter().next().ok_or("no model")?.name;
    let mut client =
        runtime.block_on(GrpcInferenceServiceClient::connect(format!("http://{}", line.trim())))?;

    let key = format!("/onepool-latency-{}", std::process::id());
    let whole: usize = inputs.iter().chain(&outputs).map(|(_, bytes)| bytes.next_multiple_of(4096)).sum();
    let object = rustix::shm::open(&key, OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR)?;
    File::from(object).set_len(whole as u64)?;
    let registered = SystemSharedMemoryRegisterRequest {
        name: "all".to_owned(),
        key: key.clone(),
        offset: 0,
        byte_size: whole as u64,
    };
    runtime.block_on(client.system_shared_memory_register(registered))?;
    rustix::shm::unlink(&key)?;
    let mut at = 0;
    let mut place = |bytes: usize| {
        let number = |value: usize| InferParameter {
            parameter_choice: Some(ParameterChoice::Int64Param(value as i64)),
        };
        let name = InferParameter { parameter_choice: Some(ParameterChoice::StringParam("all".to_owned())) };
        let offset = number(at);
        at += bytes.next_multiple_of(4096);
        [
            ("shared_memory_region".to_owned(), name),
            ("shared_memory_offset".to_owned(), offset),
            ("shared_memory_byte_size".to_owned(), number(bytes)),
        ]
    };
    let sent = ModelInferRequest {
        model_name: name,
        inputs: (inputs.into_iter())
            .map(|(name, bytes)| InferInputTensor {
                name,
                datatype: "FP32".to_owned(),
                shape: dims.iter().map(|size| *size as i64).collect(),
                parameters: place(bytes).into(),
                ..Default::default()
            })
            .collect(),
        outputs: (outputs.into_iter())
            .map(|(name, bytes)| InferRequestedOutputTensor { name, parameters: place(bytes).into() })
            .collect(),
        ..Default::default()
    };
    let first = runtime.block_on(client.model_infer(sent.clone()))?.into_inner();
    println!("copied by the CPU in each request: {:?}", first.parameters.get("copied_bytes"));

    // In turns, so that what else the machine does is in both.
    let mut ratios = Vec::new();
    for round in 1..=5 {
        let [here, best_here] = times(runs, || Ok(binding.run()?))?;
        let [there, best_there] =
            times(runs, || Ok(runtime.block_on(client.model_infer(sent.clone())).map(drop)?))?;
        let ratio = there.as_secs_f64() / here.as_secs_f64();
        println!(
            "round {round}: in process {here:?} (best {best_here:?}), by shared memory {there:?} (best {best_there:?}), {ratio:.3} times"
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.3}", ratios.get(ratios.len() / 2).copied().unwrap_or_default());
    drop(server.stdin.take());
    server.wait()?;
    Ok(())
}
