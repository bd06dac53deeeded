//! The calls of the protocol.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onepool::device::Context;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::admission::Deadline;
use crate::datatype::shown;
use crate::metrics::Metrics;
use crate::model::VERSION;
use crate::proto::grpc_inference_service_server::GrpcInferenceService;
use crate::proto::repository_index_response::ModelIndex;
use crate::proto::system_shared_memory_status_response::RegionStatus;
use crate::proto::*;
use crate::queue::Waiter;
use crate::request;
use crate::run::Served;
use crate::shm::Regions;

/// What the server offers beyond the protocol's core.
const EXTENSIONS: [&str; 3] = ["model_configuration", "model_repository(index)", "system_shared_memory"];

/// What all calls share.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) models: BTreeMap<String, Arc<Served>>,
    pub(crate) devices: Vec<Context>,
    pub(crate) regions: Regions,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) timeout: Duration,
    /// Whether a shutdown has begun.
    pub(crate) closing: watch::Receiver<bool>,
}

impl Service {
    fn model(&self, name: &str, version: &str) -> Result<&Served, Status> {
        let Some(served) = self.models.get(name) else {
            let known: Vec<&str> = self.models.keys().map(String::as_str).take(16).collect();
            return Err(Status::not_found(format!(
                "there is no model {:?}; there are {known:?}",
                shown(name)
            )));
        };
        served.model.check_version(version)?;
        Ok(served)
    }

    fn is_ready(&self) -> bool {
        !*self.closing.borrow() && self.models.values().all(|served| served.model.is_ready())
    }

    async fn infer(&self, request: Request<ModelInferRequest>) -> Result<ModelInferResponse, Status> {
        let latest = || Deadline(Instant::now() + self.timeout);
        let Deadline(deadline) = request.extensions().get().copied().unwrap_or_else(latest);
        let request = request.into_inner();
        let Served { model, queue, .. } = self.model(&request.model_name, &request.model_version)?;
        if !model.is_ready() {
            return Err(Status::unavailable(format!("the device of model {:?} was lost", model.name)));
        }
        let (job, answer) = request::job(model, &self.regions, &request, deadline)?;
        let waiter = Waiter(Arc::clone(&job.life));
        let id = request.id;
        // Messages are large: the request's copy of them goes before the run.
        drop(request.inputs);
        drop(request.raw_input_contents);
        queue.push(job)?;
        let done = answer.await.map_err(|_| Status::unavailable("the server is shutting down"))??;
        drop(waiter);
        Ok(request::response(model, id, done))
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl GrpcInferenceService for Arc<Service> {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Answer<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Answer<ServerReadyResponse> {
        Ok(Response::new(ServerReadyResponse { ready: self.is_ready() }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Answer<ModelReadyResponse> {
        let ModelReadyRequest { name, version } = request.into_inner();
        let ready = self.model(&name, &version)?.model.is_ready() && !*self.closing.borrow();
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Answer<ServerMetadataResponse> {
        Ok(Response::new(ServerMetadataResponse {
            name: "onepool".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: EXTENSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Answer<ModelMetadataResponse> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        Ok(Response::new(self.model(&name, &version)?.model.metadata()))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Answer<ModelInferResponse> {
        self.infer(request).await.map(Response::new)
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> Answer<ModelConfigResponse> {
        let ModelConfigRequest { name, version } = request.into_inner();
        let config = Some(self.model(&name, &version)?.model.config());
        Ok(Response::new(ModelConfigResponse { config }))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Answer<RepositoryIndexResponse> {
        let RepositoryIndexRequest { repository_name, ready } = request.into_inner();
        if !repository_name.is_empty() {
            let name = shown(&repository_name);
            return Err(Status::not_found(format!(
                "there is no repository {name:?}: leave repository_name empty"
            )));
        }
        let models =
            self.models.values().map(|served| &served.model).filter(|model| !ready || model.is_ready()).map(
                |model| {
                    let (state, reason) = match model.is_ready() {
                        true => ("READY", ""),
                        false => ("UNAVAILABLE", "the device was lost"),
                    };
                    let (state, reason) = (state.to_owned(), reason.to_owned());
                    ModelIndex { name: model.name.clone(), version: VERSION.to_owned(), state, reason }
                },
            );
        Ok(Response::new(RepositoryIndexResponse { models: models.collect() }))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Answer<SystemSharedMemoryStatusResponse> {
        let regions = self.regions.list(&request.into_inner().name)?;
        let status = regions.into_iter().map(|region| {
            let (name, key) = (region.name.clone(), region.key.clone());
            let status =
                RegionStatus { name: name.clone(), key, offset: region.offset, byte_size: region.bytes };
            (name, status)
        });
        Ok(Response::new(SystemSharedMemoryStatusResponse { regions: status.collect() }))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Answer<SystemSharedMemoryRegisterResponse> {
        let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request.into_inner();
        let service = Arc::clone(self);
        // Drivers take their time to import much memory.
        let registered = tokio::task::spawn_blocking(move || {
            service.regions.register(&name, &key, offset, byte_size, &service.devices)
        });
        registered.await.map_err(|error| Status::internal(error.to_string()))??;
        self.metrics.regions.set(self.regions.count() as i64);
        Ok(Response::new(SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Answer<SystemSharedMemoryUnregisterResponse> {
        let gone = self.regions.unregister(&request.into_inner().name)?;
        self.models.values().for_each(|served| served.bindings.forget_gone());
        drop(gone);
        self.metrics.regions.set(self.regions.count() as i64);
        Ok(Response::new(SystemSharedMemoryUnregisterResponse {}))
    }
}
