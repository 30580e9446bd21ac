// SPDX-License-Identifier: Apache-2.0
// All-reduce over the nccl communicator, started by ddprun with one process per rank. It checks the
// sum and prints the bus bandwidth, beside that of NCCL called as nccl-tests calls it, in turn:
// sums and averages, 8 bytes and more. Figures are lines of JSON. Ranks may share a GPU here, which
// Session would refuse.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "bench/nccl/bare_nccl.h"
#include "common/clock.h"
#include "common/error.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/loader.h"
#include "worker_sdk/core/nccl/nccl_communicator.h"
#include "worker_sdk/core/session.h"

namespace {

using namespace ddprun;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSmallSizes[] = {8, 4 << 10, 64 << 10};

// Sums ones on every rank and throws where the result is not the number of ranks.
void check_sum(nccl::CudaApi& cuda, Communicator& comm, TensorView buffer) {
  std::vector<float> host(buffer.count, 1.0F);
  const auto copy = [&](void* to, const void* from) {
    nccl::check_cuda(cuda, cuda.memory_copy(to, from, buffer.size_bytes(), nullptr), comm.rank(),
                     "cudaMemcpyAsync");
    nccl::check_cuda(cuda, cuda.stream_synchronize(nullptr), comm.rank(), "cudaStreamSynchronize");
  };
  copy(buffer.data, host.data());
  comm.all_reduce(buffer, ReduceOp::kSum, {});
  copy(host.data(), buffer.data);
  for (const float value : host) {
    if (value != static_cast<float>(comm.size())) {
      throw Error(ErrorCode::kProtocol, "the sum of ones over " + std::to_string(comm.size()) +
                                            " ranks is " + std::to_string(value));
    }
  }
}

// Median-free on purpose: the mean of 20 all-reduces after 5 to warm up, as nccl-tests does.
// `start` begins one; all of them are over when `stream` is idle.
template <typename Start>
double seconds_per_all_reduce(Communicator& comm, nccl::CudaApi& cuda, nccl::Stream stream,
                              Start&& start) {
  const auto run = [&](int num_times) {
    for (int i = 0; i < num_times; ++i) start();
    nccl::check_cuda(cuda, cuda.stream_synchronize(stream), comm.rank(), "cudaStreamSynchronize");
  };
  constexpr int kNumTimed = 20;
  run(5);
  comm.barrier({});
  const auto begin = Clock::now();
  run(kNumTimed);
  return std::chrono::duration<double>(Clock::now() - begin).count() / kNumTimed;
}

void measure(std::size_t max_mib) {
  const auto session = Session::from_env();
  const auto cuda = nccl::load_cuda();
  const auto library = nccl::load_nccl();
  int num_devices = 0;
  nccl::check_cuda(*cuda, cuda->device_count(&num_devices), session->rank(), "cudaGetDeviceCount");
  nccl::NcclOptions options;
  options.rank = session->rank();
  options.size = session->world_size();
  options.device = session->env().device % num_devices;
  options.key_prefix = "nccl_bandwidth/";
  options.timeout = std::chrono::seconds(60);
  options.init_timeout = std::chrono::seconds(60);
  nccl::check_cuda(*cuda, cuda->set_device(options.device), options.rank, "cudaSetDevice");
  const auto comm = nccl::make_nccl_communicator(cuda, library, session->store(), options);
  const auto memory = comm->allocate(std::max(max_mib * kMiB, kSmallSizes[2]));
  TensorView buffer;
  buffer.data = memory->data();
  buffer.device = Device{Device::Kind::kCuda, options.device};
  bench::BareNccl bare(*cuda, *library, session->store(), options.rank, options.size);
  CallOptions async;
  async.async = true;
  std::vector<std::size_t> sizes(std::begin(kSmallSizes), std::end(kSmallSizes));
  for (std::size_t mib = 1; mib <= max_mib; mib *= 4) sizes.push_back(mib * kMiB);
  for (const std::size_t size_bytes : sizes) {
    buffer.count = size_bytes / sizeof(float);
    check_sum(*cuda, *comm, buffer);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      // The caller's stream, which is the default one, waits for each.
      const double seconds = seconds_per_all_reduce(
          *comm, *cuda, nullptr, [&] { comm->all_reduce(buffer, op, async)->wait(); });
      const double peer =
          seconds_per_all_reduce(*comm, *cuda, bare.stream(), [&] { bare.all_reduce(buffer, op); });
      const double bus = 2.0 * (comm->size() - 1) / comm->size();
      if (comm->rank() != 0) continue;
      std::printf(
          "{\"bytes\": %zu, \"op\": \"%s\", \"ranks\": %d, \"ours_us\": %.3f, \"nccl_us\": %.3f, "
          "\"bus_gb_per_s\": %.3f}\n",
          size_bytes, to_string(op), comm->size(), seconds * 1e6, peer * 1e6,
          static_cast<double>(size_bytes) / 1e9 / seconds * bus);
      std::fflush(stdout);
    }
  }
  comm->barrier({});
}

}  // namespace

// nccl_bandwidth --version | [--max-mib N] [--host-id-each]
int main(int argc, char** argv) {
  std::size_t max_mib = 256;
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--version") == 0) {
        const auto cuda = nccl::load_cuda();
        const auto library = nccl::load_nccl();
        std::printf("NCCL %s (%d) from %s\n", nccl::version_text(library->version()).c_str(),
                    library->version(), library->library().c_str());
        return 0;
      }
      if (std::strcmp(argv[i], "--host-id-each") == 0) {
        // NCCL before 2.30.3 takes ranks with different host ids for different machines.
        const char* rank = std::getenv("RANK");
        ::setenv("NCCL_HOSTID", (std::string("rank") + (rank == nullptr ? "" : rank)).c_str(), 1);
      } else if (std::strcmp(argv[i], "--max-mib") == 0 && i + 1 < argc) {
        max_mib = std::strtoul(argv[++i], nullptr, 10);
      } else {
        std::fprintf(stderr, "usage: nccl_bandwidth [--version] [--max-mib N] [--host-id-each]\n");
        return 2;
      }
    }
    measure(max_mib);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "nccl_bandwidth: %s\n", error.what());
    return 1;
  }
}
