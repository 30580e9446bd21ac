// SPDX-License-Identifier: Apache-2.0
// An NCCL without a GPU, for load_nccl()'s own tests: a library with NCCL's functions, of the
// version in FAKE_NCCL_VERSION of the environment. With FAKE_LIBNCCL_IS_OLD it has those of
// NCCL 2.18 alone, with FAKE_LIBNCCL_IS_TOO_OLD not even these.
//
// It keeps the job of a non-blocking communicator as NCCL before 2.27 does, in the thread that made
// the communicator. The communicator is broken once that thread has ended.
#include "tests/worker_sdk/core/nccl/fake_libnccl.h"

#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

struct ncclComm {
  bool is_broken = false;
};

namespace {

ddprun::test::FakeLibncclCalls calls;

struct ThreadJobs {
  std::vector<ncclComm*> comms;
  ~ThreadJobs() {
    for (ncclComm* comm : comms) comm->is_broken = true;
  }
};
thread_local ThreadJobs jobs;

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

// NCCL_COMM_BLOCKING wins over the configuration, as it does with NCCL.
ncclResult_t make(ncclComm_t* comm, const ncclConfig_t& config) {
  const char* const forced = std::getenv("NCCL_COMM_BLOCKING");
  calls.is_blocking = (forced != nullptr ? std::atoi(forced) : config.blocking) == 1;
  calls.min_ctas = config.minCTAs;
  calls.max_ctas = config.maxCTAs;
  calls.cga_cluster_size = config.cgaClusterSize;
  calls.split_share = config.splitShare;
  calls.net_name = text_of(config.netName);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
  calls.traffic_class = config.trafficClass;
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  calls.comm_name = text_of(config.commName);
#endif
  *comm = new ncclComm;
  if (!calls.is_blocking) jobs.comms.push_back(*comm);
  return ncclSuccess;
}

ncclResult_t note(ncclDataType_t dtype, ncclRedOp_t op = ncclSum) {
  calls.dtype = static_cast<int>(dtype);
  calls.op = static_cast<int>(op);
  return ncclSuccess;
}

ncclResult_t end(ncclComm_t comm) {
  std::erase(jobs.comms, comm);
  delete comm;
  return ncclSuccess;
}

}  // namespace

extern "C" {

ddprun::test::FakeLibncclCalls* fake_libnccl_calls() { return &calls; }

ncclResult_t ncclGetVersion(int* version) {
  const char* const wanted = std::getenv("FAKE_NCCL_VERSION");
  *version = wanted != nullptr ? std::atoi(wanted) : NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return *id = {}, ncclSuccess; }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int,
                                    ncclConfig_t* config) {
  return make(comm, *config);
}
#ifndef FAKE_LIBNCCL_IS_TOO_OLD
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t* made, ncclConfig_t* config) {
  calls.has_split_config = config != nullptr;
  *made = new ncclComm;
  return ncclSuccess;
}
#endif
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->is_broken ? ncclInternalError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return end(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return end(comm); }

ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t dtype, ncclRedOp_t op,
                           ncclComm_t, cudaStream_t) {
  return note(dtype, op);
}
ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t dtype, ncclRedOp_t op, int,
                        ncclComm_t, cudaStream_t) {
  return note(dtype, op);
}
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t dtype, int, ncclComm_t,
                           cudaStream_t) {
  return note(dtype);
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t dtype, ncclComm_t,
                           cudaStream_t) {
  return note(dtype);
}
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t dtype, ncclRedOp_t op,
                               ncclComm_t, cudaStream_t) {
  return note(dtype, op);
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t dtype, int, ncclComm_t, cudaStream_t) {
  return note(dtype);
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t dtype, int, ncclComm_t, cudaStream_t) {
  return note(dtype);
}
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "an error of the fake library"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }

#ifndef FAKE_LIBNCCL_IS_OLD
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int, int, int, ncclUniqueId*,
                                      ncclConfig_t* config) {
  return make(comm, *config);
}
ncclResult_t ncclMemAlloc(void** data, size_t size) {
  *data = std::malloc(size);
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* data) { return std::free(data), ncclSuccess; }
ncclResult_t ncclCommRegister(const ncclComm_t, void* data, size_t, void** handle) {
  return *handle = data, ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
#endif

}  // extern "C"
